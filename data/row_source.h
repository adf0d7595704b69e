// Batches from files of one row a line: a pass over the files, this worker's rows of it, a bounded
// shuffle, batches. The formats themselves are RowParsers.
//
// Rows are counted over all files, without headers, blank lines and comments.
#ifndef TANDEM_DATA_ROW_SOURCE_H_
#define TANDEM_DATA_ROW_SOURCE_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/random.h"
#include "data/batch_builder.h"
#include "data/batch_source.h"
#include "data/line_reader.h"
#include "data/row.h"

namespace tandem::data {

// Some of the rows of the files, which are counted from 0: those of [begin, end), and of these all,
// or those that chance picks, or the others. Chance depends on (seed, row) alone.
struct RowSelection {
  enum class Part { kAll, kPicked, kOthers };
  int64_t begin = 0;
  int64_t end = std::numeric_limits<int64_t>::max();
  Part part = Part::kAll;
  double chance = 0;
  uint64_t seed = 0;

  bool Has(int64_t row) const;
};

// The rows of one file. For tests and fuzzing it may be bytes in memory.
class RowFile {
 public:
  // `parser` must outlive this.
  RowFile(std::unique_ptr<LineReader> lines, RowParser* parser);

  // The text of the next row, of several lines where a cell in quotes goes on; false at the end.
  absl::StatusOr<bool> Next(absl::string_view* line);
  // Parses the row last returned; errors name file and line.
  absl::Status Parse(absl::string_view line, Row* row) const;
  const LineReader& lines() const { return *lines_; }
  const std::string& first_line() const {
    return first_line_;
  }  // header or not; once there was a row

 private:
  absl::StatusOr<bool> NextRow(absl::string_view* line);
  absl::StatusOr<bool> First(absl::string_view* line);
  absl::Status JoinQuoted(absl::string_view* line);

  const std::unique_ptr<LineReader> lines_;
  RowParser* const parser_;
  bool started_ = false;
  std::string first_line_;
};

// Rows that did not parse and are left out, up to a number of them.
class BadRows {
 public:
  explicit BadRows(int64_t most) : most_(most) {}
  // Keeps what is wrong, or returns it if there are too many.
  absl::Status Add(const absl::Status& bad);
  const std::vector<std::string>& texts() const { return texts_; }  // one line each

 private:
  const int64_t most_;
  std::vector<std::string> texts_;
};

// Whose rows of a pass: row i of the files belongs to worker i mod `workers`, counted from the first
// row of the selection.
struct RowShare {
  int rank = 0, workers = 1;
};

// The text of the selected rows of several files, in their order.
class RowWalk {
 public:
  // `files` and `parser` must outlive this.
  RowWalk(const std::vector<std::string>* files, RowParser* parser, RowSelection selection)
      : files_(files), parser_(parser), selection_(selection) {}

  // False when there is no more.
  absl::StatusOr<bool> Next(absl::string_view* line);
  // Of the row last returned: whose it is, where it stands, and its file.
  int OwnerOf(int workers) const {
    return static_cast<int>((row_ - 1 - selection_.begin) % workers);
  }
  size_t file_index() const { return next_file_ - 1; }
  const RowFile& file() const { return *file_; }

 private:
  absl::StatusOr<bool> NextLine(absl::string_view* line);

  const std::vector<std::string>* const files_;
  RowParser* const parser_;
  const RowSelection selection_;
  size_t next_file_ = 0;
  std::optional<RowFile> file_;  // open
  int64_t row_ = 0;              // number of the next row of the pass
};

class RowDealer;   // row_dealer.h
class RowDealers;  // likewise

// One pass over several files.
class RowPass {
 public:
  // `files` and `parser` must outlive the pass. Up to `skip` rows that do not parse are left out.
  RowPass(const std::vector<std::string>* files, RowParser* parser, RowSelection selection,
          RowShare share, int64_t skip);
  // The same for one of many workers in a process, which read the files together.
  RowPass(std::shared_ptr<RowDealer> dealer, RowParser* parser, int rank, int64_t skip);

  // The next row of the share; false when there is none.
  absl::StatusOr<bool> Next(Row* row);

 private:
  absl::StatusOr<bool> NextRead(Row* row);
  absl::StatusOr<bool> NextDealt(Row* row);

  RowParser* const parser_;
  const RowShare share_;
  BadRows bad_rows_;
  std::optional<RowWalk> walk_;  // none if rows are dealt
  const std::shared_ptr<RowDealer> dealer_;
  absl::optional<size_t> file_;  // that the last row was dealt from
};

// Rows of all files together, at most `limit`. Reads the files.
absl::StatusOr<int64_t> CountRows(const std::vector<std::string>& files, RowParser* parser,
                                  int64_t limit);

// Rows of all files together, from the start of the first one with a row and the sizes on disk; exact
// for a single small file.
absl::StatusOr<int64_t> EstimateRows(const std::vector<std::string>& files, RowParser* parser);

struct RowSourceOptions {
  std::vector<std::string> files;
  RowSelection selection;
  RowShare share;
  int64_t skip_bad_rows = 0;
  int64_t batch = 1;           // rows
  int64_t shuffle_buffer = 0;  // rows; 0 keeps file order
  uint64_t seed = 0;
  int64_t estimated_rows = 0;  // of this worker
  // The passes of all workers of this process, which outlive the source; null: it reads the files itself.
  RowDealers* dealers = nullptr;
};

std::unique_ptr<BatchSource> NewRowSource(RowSourceOptions options,
                                          std::unique_ptr<RowParser> parser, BatchBuilder builder);

}  // namespace tandem::data

#endif  // TANDEM_DATA_ROW_SOURCE_H_
