// RowDealer makes one pass over the files of a job for many workers in one process. Each row is
// read once and dealt to its worker, which parses it. When a worker reads ahead of the others,
// their rows wait here as text: at most kMaxHeldBytes for all workers together. Beyond that limit
// the worker with the most waiting text is left behind: its waiting rows are dropped, and it
// continues by reading the files itself.
//
// Each worker meets an error of the files after the rows before the error. The error stays.
//
// Thread safety: none; one thread.
#ifndef TANDEM_DATA_ROW_DEALER_H_
#define TANDEM_DATA_ROW_DEALER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/row_source.h"

namespace tandem::data {

inline constexpr size_t kMaxHeldBytes = size_t{64} << 20;

class RowDealer {
 public:
  // A row that is dealt to a worker.
  struct Dealt {
    std::string line;
    size_t file = 0;          // index in `files`
    int64_t line_number = 0;  // in that file, from 1
  };

  // `files` must outlive the dealer. `parser` checks the head of each file and has the same format
  // as the parsers of the workers. Rows that wait for their workers take at most `max_held` bytes.
  RowDealer(const std::vector<std::string>* files, std::unique_ptr<RowParser> parser,
            RowSelection selection, int workers, size_t max_held = kMaxHeldBytes);

  // The next row of worker `rank`; false if there is none.
  absl::StatusOr<bool> Next(int rank, Dealt* row);
  const std::string& name(size_t file) const { return (*files_)[file]; }
  // The first line of the file, for RowParser::StartFile. A row of the file must have been dealt.
  const std::string& first_line(size_t file) const { return first_lines_[file]; }
  size_t held_bytes() const { return held_bytes_; }

 private:
  // A walk over the files that ends at its first error.
  struct Reader {
    RowWalk walk;
    absl::Status failed = absl::OkStatus();

    absl::StatusOr<bool> Next(absl::string_view* line);
  };
  struct Worker {
    std::deque<Dealt> rows;         // rows that wait for the worker
    size_t bytes = 0;               // size of these rows
    int64_t taken = 0;              // how many rows it has taken
    bool alone = false;             // left behind: no more rows are dealt to it
    std::unique_ptr<Reader> own{};  // own reader, once a worker that was left behind asks again
  };

  static size_t BytesOf(const Dealt& row) { return sizeof(Dealt) + row.line.size(); }
  absl::StatusOr<bool> Read();
  absl::StatusOr<bool> ReadAlone(int rank, Dealt* row);
  Dealt DealtOf(const RowWalk& walk, absl::string_view line);
  void LeaveOneBehind();

  const std::vector<std::string>* const files_;
  const std::unique_ptr<RowParser> parser_;
  const RowSelection selection_;
  const size_t max_held_;
  Reader reader_;                         // reads for all workers that were not left behind
  std::vector<std::string> first_lines_;  // by file
  std::vector<Worker> workers_;
  size_t held_bytes_ = 0;
};

// The passes that workers make for one purpose, such as training. A worker joins the pass that
// another one has begun, or begins it.
class RowDealers {
 public:
  RowDealers(std::vector<std::string> files, RowSelection selection, int workers,
             MakeParser make_parser, size_t max_held = kMaxHeldBytes);

  // The pass over `epoch` for worker `rank`. A worker may pass over an epoch several times; the
  // n-th passes of the workers are one pass. A pass is freed when all workers have released it.
  absl::StatusOr<std::shared_ptr<RowDealer>> Begin(int rank, int64_t epoch);

 private:
  const std::vector<std::string> files_;
  const RowSelection selection_;
  const int workers_;
  const MakeParser make_parser_;
  const size_t max_held_;
  std::map<std::pair<int, int64_t>, int> begun_;  // how often each worker has begun each epoch
  std::map<std::pair<int64_t, int>, std::weak_ptr<RowDealer>> passes_;  // by epoch and repetition
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_ROW_DEALER_H_
