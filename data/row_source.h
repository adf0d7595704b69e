// Batches from files of one row a line: a pass over the files, this worker's rows of it, a bounded
// shuffle, batches. The formats themselves are RowParsers.
//
// Row i of a pass (counted over all files, without headers and empty lines) belongs to worker
// i mod workers, before shuffling.
#ifndef TANDEM_DATA_ROW_SOURCE_H_
#define TANDEM_DATA_ROW_SOURCE_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/random.h"
#include "data/batch_builder.h"
#include "data/batch_source.h"
#include "data/line_reader.h"
#include "data/row.h"

namespace tandem {

// Rows [begin, end) of the files, counted from 0.
struct RowRange {
  int64_t begin = 0;
  int64_t end = std::numeric_limits<int64_t>::max();
};

// The rows of one file. For tests and fuzzing it may be bytes in memory.
class RowFile {
 public:
  // `parser` must outlive this.
  RowFile(std::unique_ptr<LineReader> lines, RowParser* parser);

  // The text of the next row; false at the end. A file without a row is an error.
  absl::StatusOr<bool> Next(absl::string_view* line);
  // Parses the row last returned; errors name file and line.
  absl::Status Parse(absl::string_view line, Row* row) const;
  const LineReader& lines() const { return *lines_; }

 private:
  absl::StatusOr<bool> First(absl::string_view* line);

  const std::unique_ptr<LineReader> lines_;
  RowParser* const parser_;
  bool started_ = false;
};

// One pass over several files.
class RowPass {
 public:
  // `files` and `parser` must outlive the pass.
  RowPass(const std::vector<std::string>* files, RowParser* parser, RowRange range, int rank,
          int workers);

  // This worker's next row; false when there is none.
  absl::StatusOr<bool> Next(Row* row);

 private:
  absl::StatusOr<bool> NextLine(absl::string_view* line);

  const std::vector<std::string>* const files_;
  RowParser* const parser_;
  const RowRange range_;
  const int rank_, workers_;
  size_t next_file_ = 0;
  std::optional<RowFile> file_;  // open
  int64_t row_ = 0;              // number of the next row of the pass
};

// Rows of all files together, at most `limit`. Reads the files.
absl::StatusOr<int64_t> CountRows(const std::vector<std::string>& files, RowParser* parser,
                                  int64_t limit);

// Rows of all files together, from the start of the first one and the sizes on disk; exact for a
// single small file.
absl::StatusOr<int64_t> EstimateRows(const std::vector<std::string>& files, RowParser* parser);

struct RowSourceOptions {
  std::vector<std::string> files;
  RowRange range;
  int rank = 0;
  int workers = 1;
  int64_t batch = 1;           // rows
  int64_t shuffle_buffer = 0;  // rows; 0 keeps file order
  uint64_t seed = 0;
  int64_t estimated_rows = 0;  // of this worker
};

std::unique_ptr<BatchSource> NewRowSource(RowSourceOptions options,
                                          std::unique_ptr<RowParser> parser, BatchBuilder builder);

}  // namespace tandem

#endif  // TANDEM_DATA_ROW_SOURCE_H_
