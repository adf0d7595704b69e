// One row of training data, and the interface that each format implements to open files and parse
// rows.
//
// To add a format, write one file with a RowParser, a case in NewRowParser (data/row_data.cc), and
// a case in RowShapeOf (job/row_shape.cc), which tells the numbers and fields of its rows. A format
// that is no text also has a RowFile.
#ifndef TANDEM_DATA_ROW_H_
#define TANDEM_DATA_ROW_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/hash.h"
#include "data/row_file.h"
#include "proto/job.pb.h"

namespace tandem::data {

// The label of a row without a label. Only data.score_only allows such rows.
inline constexpr float kNoLabel = std::numeric_limits<float>::quiet_NaN();

struct Row {
  float label = 0;             // 0 or 1, or kNoLabel
  std::vector<float> numbers;  // one for each numeric column of the format
  std::vector<uint64_t> keys;  // keys of the categorical fields, in order
  // Field f has keys [offsets[f], offsets[f + 1]). Empty: one key per field.
  std::vector<uint32_t> offsets;
  std::vector<float> weights;  // one for each key; empty: all 1

  // The keys of field f are [begin(f), end(f)).
  size_t begin(size_t f) const { return offsets.empty() ? f : offsets[f]; }
  size_t end(size_t f) const { return offsets.empty() ? f + 1 : offsets[f + 1]; }
};

// Parses the rows of one format. Its only state is what must hold over all rows: the labels seen.
// Errors say what was found, what was expected and a hint. The caller adds file and line.
class RowParser {
 public:
  virtual ~RowParser() = default;

  // Opens a file, whose rows this parser then parses; it must outlive the file. Errors name the
  // file. By default: text.
  virtual absl::StatusOr<std::unique_ptr<RowFile>> Open(const std::string& path);

  // Whether the first line of each file names the columns.
  virtual bool has_header() const { return false; }

  // Must be called with the first line of each file, header or not, before any row of the file.
  virtual absl::Status StartFile(absl::string_view /*first_line*/) { return absl::OkStatus(); }

  // Whether a row may consist of several lines. If not, EndsInQuotes is never true.
  virtual bool spans_lines() const { return false; }

  // Whether a quoted cell is open at the end of `line`, so that the row continues in the next line.
  // `inside`: a quoted cell is open at the beginning of `line`.
  virtual bool EndsInQuotes(absl::string_view /*line*/, bool /*inside*/) const { return false; }

  // Whether the line is a row. Blank lines and comments are skipped.
  virtual bool IsRow(absl::string_view line) const {
    return line.find_first_not_of(' ') != absl::string_view::npos;
  }

  // How many columns the rows of the file have that was started last; 0 if the format fixes the
  // number.
  virtual size_t columns() const { return 0; }

  // A hash of a row as the data file has it, by which a resumed run knows the row again. Any thread
  // may call it.
  virtual uint64_t HashOfRow(absl::string_view line) const { return HashName(line); }

  // Parses a row. Overwrites `row` and reuses its memory.
  virtual absl::Status Parse(absl::string_view line, Row* row) = 0;

  // The label that counts as 0 because it was the first that does not count as 1. "" if there was
  // none so far, or the job says what counts as 0.
  virtual std::string LearnedNegative() const { return ""; }
  // Whether a further row may decide that.
  virtual bool Learns() const { return false; }
  // Takes over what another parser of the same data has learned.
  virtual void LearnNegative(absl::string_view /*label*/) {}

  // The numbers of the last parsed row before they are standardised; NaN if missing. Only for
  // formats with data.columns (DELIMITED, PARQUET) and their caches.
  virtual absl::Span<const double> values() const { return {}; }
  // "column 'city' is 'Rome'" for the first cell of that row that `holds`; "" if there is none.
  // Only for DELIMITED and PARQUET.
  virtual std::string ShownIf(bool (* /*holds*/)(absl::string_view cell)) const { return ""; }
  // The texts that the keys of the last parsed row are made of, one for each key; "" for a missing
  // value. Empty if the keys are not made of texts.
  virtual absl::Span<const absl::string_view> texts() const { return {}; }
};

// Format CRITEO: label, 13 integers, 26 categorical values, separated by tabs. An empty cell is a
// missing value. Numbers become sign(x) log(1 + |x|); a missing number is 0. With `labels_optional`
// the label may be an empty cell, or its column may be absent, as in Criteo's test file.
std::unique_ptr<RowParser> NewCriteoParser(bool labels_optional = false);

// Format LIBSVM: "label index:value ...", optionally with "# comment" at the end. Labels are 0/1,
// -1/+1 or False/True, or those that `columns` names. Indices are used as keys unchanged; values
// are weights. Rows with more than `max_ids` ids are refused; 0 = no limit. "qid:N" after the label
// is skipped. With `labels_optional` a row may begin with its first pair.
std::unique_ptr<RowParser> NewLibsvmParser(int max_ids, const Columns& columns = Columns(),
                                           bool labels_optional = false);

// Format DELIMITED: columns chosen by name (with a header) or by number, as `columns` says.
// `statistics` is copied; without it numbers are not standardised, as measuring and checking need
// it. Without `columns.label` no column is read as a label.
//
// With `labels_optional` a label may be a missing value, and a header may lack its column. A file
// without a header lacks labels if its rows have one column less than the training rows
// (`trained_columns`). The columns after the label then have numbers that are one less. Any other
// number of columns is refused. If `trained_columns` is 0 (not known), a file without labels has
// one column less than the job reads.
absl::StatusOr<std::unique_ptr<RowParser>> NewDelimitedParser(
    const Columns& columns, const DataStatistics* statistics = nullptr,
    bool labels_optional = false, int64_t trained_columns = 0);

// Format PARQUET: the same for rows of cells with types (data/parquet_rows.h).
absl::StatusOr<std::unique_ptr<RowParser>> NewParquetParser(
    const Columns& columns, const DataStatistics* statistics = nullptr,
    bool labels_optional = false);

}  // namespace tandem::data

#endif  // TANDEM_DATA_ROW_H_
