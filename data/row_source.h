// Batches from files with one row a line. A source walks the files, keeps this worker's rows,
// shuffles them in a bounded buffer and cuts them into batches. RowParsers know the formats.
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
#include "proto/wire.pb.h"

namespace tandem::data {

// A selection of rows by their numbers, which count from 0 over all files: the rows [begin, end),
// and of these either all, or those picked by chance, or the others. Whether a row is picked
// depends on (seed, row) alone.
struct RowSelection {
  enum class Part { kAll, kPicked, kOthers };
  int64_t begin = 0;
  int64_t end = std::numeric_limits<int64_t>::max();
  Part part = Part::kAll;
  double chance = 0;
  uint64_t seed = 0;

  bool Has(int64_t row) const;
};

// The rows of one file. In tests and fuzzing the file may be bytes in memory.
class RowFile {
 public:
  // `parser` must outlive this.
  RowFile(std::unique_ptr<LineReader> lines, RowParser* parser);

  // The text of the next row, which is several lines if a quoted cell continues. False at the end.
  absl::StatusOr<bool> Next(absl::string_view* line);
  // Parses the row that was returned last. Errors name file and line.
  absl::Status Parse(absl::string_view line, Row* row) const;
  // In a file of which no row was read: reads the row that begins at byte `offset`, in line
  // `line_number`. False if there is none.
  absl::StatusOr<bool> ReadAt(int64_t offset, int64_t line_number, absl::string_view* line);
  const LineReader& lines() const { return *lines_; }
  // The first line, header or not. Empty before the first row.
  const std::string& first_line() const { return first_line_; }

 private:
  absl::StatusOr<bool> NextRow(absl::string_view* line);
  absl::StatusOr<bool> First(absl::string_view* line);
  absl::Status JoinQuoted(absl::string_view* line);

  const std::unique_ptr<LineReader> lines_;
  RowParser* const parser_;
  bool started_ = false;
  std::string first_line_;
};

// Rows that did not parse and are skipped, up to a given number.
class BadRows {
 public:
  explicit BadRows(int64_t most) : most_(most) {}
  // Keeps the error `bad`, or returns an error if there are too many.
  absl::Status Add(const absl::Status& bad);
  const std::vector<std::string>& texts() const { return texts_; }  // one line each
  int64_t count() const { return earlier_ + static_cast<int64_t>(texts_.size()); }
  void set_earlier(int64_t rows) { earlier_ = rows; }  // skipped before, without a text here

 private:
  const int64_t most_;
  int64_t earlier_ = 0;
  std::vector<std::string> texts_;
};

// The share of one worker in a pass. Row i belongs to worker i mod `workers`, where i counts from
// the first row of the selection.
struct RowShare {
  int rank = 0, workers = 1;
};

// The texts of the selected rows of several files, in their order.
class RowWalk {
 public:
  // `files` and `parser` must outlive this.
  RowWalk(const std::vector<std::string>* files, RowParser* parser, RowSelection selection)
      : files_(files), parser_(parser), selection_(selection) {}

  // The next row; false if there are no more.
  absl::StatusOr<bool> Next(absl::string_view* line);
  // About the row that was returned last: the worker that it belongs to, the index of its file, and
  // the file.
  int OwnerOf(int workers) const {
    return static_cast<int>((row_ - 1 - selection_.begin) % workers);
  }
  size_t file_index() const { return next_file_ - 1; }
  const RowFile& file() const { return *file_; }
  int64_t row() const { return row_ - 1; }  // its number over all files, from 0

  // Before the first Next: continues behind the row at `place`. FAILED_PRECONDITION if the files
  // have another row there.
  absl::Status ContinueAt(const ReadPlace& place);

 private:
  absl::StatusOr<bool> NextLine(absl::string_view* line);

  const std::vector<std::string>* const files_;
  RowParser* const parser_;
  const RowSelection selection_;
  size_t next_file_ = 0;
  std::optional<RowFile> file_;  // the open file
  int64_t row_ = 0;              // number of the next row of the pass
};

class RowDealer;   // data/row_dealer.h
class RowDealers;  // data/row_dealer.h

// One worker's rows in one pass over several files.
class RowPass {
 public:
  // `files` and `parser` must outlive the pass. Up to `skip` rows that do not parse are left out.
  RowPass(const std::vector<std::string>* files, RowParser* parser, RowSelection selection,
          RowShare share, int64_t skip);
  // The same for one of many workers in a process that read the files together.
  RowPass(std::shared_ptr<RowDealer> dealer, RowParser* parser, int rank, int64_t skip);

  // The next row of the share; false if there is none.
  absl::StatusOr<bool> Next(Row* row);

  // The place of the row that was returned last, which is the worker's row number `rows`, counted
  // from 1. None if rows are dealt, or if the file is compressed.
  absl::optional<ReadPlace> Place(int64_t rows) const;
  // Before the first Next: as RowWalk::ContinueAt. False if rows are dealt.
  absl::StatusOr<bool> ContinueAt(const ReadPlace& place);

 private:
  absl::StatusOr<bool> NextRead(Row* row);
  absl::StatusOr<bool> NextDealt(Row* row);

  RowParser* const parser_;
  const RowShare share_;
  BadRows bad_rows_;
  std::optional<RowWalk> walk_;  // empty if rows are dealt
  absl::string_view line_;       // the last row that was read
  const std::shared_ptr<RowDealer> dealer_;
  absl::optional<size_t> file_;  // the file of the last dealt row
};

// Counts the rows of all files together, up to `limit`. Reads the files.
absl::StatusOr<int64_t> CountRows(const std::vector<std::string>& files, RowParser* parser,
                                  int64_t limit);

// Estimates the rows of all files together from the start of the first file with a row and the
// sizes on disk. Exact for a single small file.
absl::StatusOr<int64_t> EstimateRows(const std::vector<std::string>& files, RowParser* parser);

struct RowSourceOptions {
  std::vector<std::string> files;
  RowSelection selection;
  RowShare share;
  int64_t max_bad_rows = 0;
  int64_t batch = 1;           // rows
  int64_t shuffle_buffer = 0;  // rows; 0 keeps file order
  uint64_t seed = 0;
  int64_t estimated_rows = 0;  // rows of this worker
  // The passes of all workers of this process, which must outlive the source. Null: the source
  // reads the files itself.
  RowDealers* dealers = nullptr;
};

std::unique_ptr<BatchSource> NewRowSource(RowSourceOptions options,
                                          std::unique_ptr<RowParser> parser, BatchBuilder builder);

}  // namespace tandem::data

#endif  // TANDEM_DATA_ROW_SOURCE_H_
