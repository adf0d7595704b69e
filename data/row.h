// One row of training data, and the small interface each text format implements to parse it.
//
// To add a format: one file with a RowParser, a case in NewRowParser (data/row_data.cc), and one in
// RowShapeOf (job/row_shape.cc), which says what numbers and fields its rows have.
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
#include "proto/job.pb.h"

namespace tandem::data {

// The label of a row that has none, where labels are optional (data.score_only).
inline constexpr float kNoLabel = std::numeric_limits<float>::quiet_NaN();

struct Row {
  float label = 0;             // 0 or 1, or kNoLabel
  std::vector<float> numbers;  // as many as the format has numeric columns
  std::vector<uint64_t> keys;  // of the categorical fields, in order
  // Field f has keys [offsets[f], offsets[f + 1]); empty: one key a field.
  std::vector<uint32_t> offsets;
  std::vector<float> weights;  // one per key; empty: all 1

  // The keys of field f are [begin(f), end(f)).
  size_t begin(size_t f) const { return offsets.empty() ? f : offsets[f]; }
  size_t end(size_t f) const { return offsets.empty() ? f + 1 : offsets[f + 1]; }
};

// Parses rows of one format. Stateful only in what must hold over all rows: the labels seen.
// Errors say what was found, what was expected and a hint; the caller adds file and line.
class RowParser {
 public:
  virtual ~RowParser() = default;

  // Whether the first line of each file names the columns.
  virtual bool has_header() const { return false; }

  // Called with the first line of each file, header or not, before any row of it.
  virtual absl::Status StartFile(absl::string_view /*first_line*/) { return absl::OkStatus(); }

  // Whether a cell in quotes is open at the end of `line`, so that the row goes on in the next line.
  // `inside`: one is open at its beginning.
  virtual bool EndsInQuotes(absl::string_view /*line*/, bool /*inside*/) const { return false; }

  // Whether the line is a row; blank lines and comments are skipped.
  virtual bool IsRow(absl::string_view line) const {
    return line.find_first_not_of(' ') != absl::string_view::npos;
  }

  // How many columns a row of the file has that was begun last; 0 where the format says it.
  virtual size_t columns() const { return 0; }

  // Overwrites `row`; reuses its memory.
  virtual absl::Status Parse(absl::string_view line, Row* row) = 0;

  // The label that counts as 0 because it was the first that does not count as 1; "" if none was met,
  // or the job says what counts as 0.
  virtual std::string LearnedNegative() const { return ""; }

  // Of the row last parsed, where the format has columns of its own (DELIMITED): its numbers before
  // they are standardised, NaN if missing, ...
  virtual absl::Span<const double> values() const { return {}; }
  // ... and "column 'city' is 'Rome'" of the first cell that `holds`; "" if none.
  virtual std::string ShownIf(bool (* /*holds*/)(absl::string_view cell)) const { return ""; }
  // Of the row last parsed, where its keys are made of texts: those texts, one a key; "" of a missing one.
  virtual absl::Span<const absl::string_view> texts() const { return {}; }
};

// label, 13 integers, 26 categorical values, tab separated; an empty cell is a missing value.
// Numbers become sign(x) log(1 + |x|); a missing number is 0. With `labels_optional` the label may be an
// empty cell, or its column may be missing, as in Criteo's test file.
std::unique_ptr<RowParser> NewCriteoParser(bool labels_optional = false);

// "label index:value ...", optionally "# comment" at the end. Labels 0/1, -1/+1 or False/True, or
// those that `columns` names; indices are used as keys unchanged, values are weights. Rows with more
// than `max_ids` are refused; 0 = no limit. "qid:N" after the label is skipped. With `labels_optional` a row
// may begin with its first pair.
std::unique_ptr<RowParser> NewLibsvmParser(int max_ids, const Columns& columns = Columns(),
                                           bool labels_optional = false);

// Columns picked by name (with a header) or by number, as `columns` says. Without `statistics` (which
// is not kept) numbers are not standardised, as for measuring and checking. With `labels_optional` a label
// may be a missing value, and a header may lack its column. A file without a header lacks labels if its
// rows have one column less than the training rows (`trained_columns`); columns after the label then count
// one less. Any other number of columns is refused. If `trained_columns` is 0 (not known), a file without
// labels has one column less than the job reads. Without `columns.label` no column is read as a label.
absl::StatusOr<std::unique_ptr<RowParser>> NewDelimitedParser(
    const Columns& columns, const DataStatistics* statistics = nullptr,
    bool labels_optional = false, int64_t trained_columns = 0);

}  // namespace tandem::data

#endif  // TANDEM_DATA_ROW_H_
