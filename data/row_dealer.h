// One pass over the files of a job for many workers in one process: each row is read once and dealt to its
// worker, which parses it. A worker that is further than others leaves their rows here as text, until they
// come to them: at most kMostHeldBytes of all workers together. Beyond that the worker with the most text here
// is left behind: what is held for it is dropped, and it reads the files by itself from where it is.
//
// An error of the files is met by each worker behind the rows before it, and stays.
//
// Thread safety: none; one thread.
#ifndef TANDEM_DATA_ROW_DEALER_H_
#define TANDEM_DATA_ROW_DEALER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/row_source.h"

namespace tandem::data {

inline constexpr size_t kMostHeldBytes = size_t{64} << 20;

class RowDealer {
 public:
  // A row of some worker.
  struct Dealt {
    std::string line;
    size_t file = 0;          // index in `files`
    int64_t line_number = 0;  // in that file, from 1
  };

  // `files` outlives this. `parser`, of the same format as those of the workers, checks the head of each file.
  // Rows that wait for their workers take at most `most_held` bytes.
  RowDealer(const std::vector<std::string>* files, std::unique_ptr<RowParser> parser,
            RowSelection selection, int workers, size_t most_held = kMostHeldBytes);

  // The next row of worker `rank`; false when there is none.
  absl::StatusOr<bool> Next(int rank, Dealt* row);
  const std::string& name(size_t file) const { return (*files_)[file]; }
  // The line that the file begins with, for RowParser::StartFile. Of a file that a row was dealt from.
  const std::string& first_line(size_t file) const { return first_lines_[file]; }
  size_t held_bytes() const { return held_bytes_; }

 private:
  // A walk that is over at its first error.
  struct Reader {
    RowWalk walk;
    absl::Status failed = absl::OkStatus();

    absl::StatusOr<bool> Next(absl::string_view* line);
  };
  struct Worker {
    std::deque<Dealt> rows;         // that wait for it
    size_t bytes = 0;               // they take
    int64_t taken = 0;              // rows so far
    bool alone = false;             // left behind: no more rows are dealt to it
    std::unique_ptr<Reader> own{};  // then; once it has come here again
  };

  static size_t BytesOf(const Dealt& row) { return sizeof(Dealt) + row.line.size(); }
  absl::StatusOr<bool> Read();
  absl::StatusOr<bool> ReadAlone(int rank, Dealt* row);
  Dealt DealtOf(const RowWalk& walk, absl::string_view line);
  void LeaveOneBehind();

  const std::vector<std::string>* const files_;
  const std::unique_ptr<RowParser> parser_;
  const RowSelection selection_;
  const size_t most_held_;
  Reader reader_;                         // of all workers but those that are alone
  std::vector<std::string> first_lines_;  // by file
  std::vector<Worker> workers_;
  size_t held_bytes_ = 0;
};

// The passes of one purpose (training, say) that workers are in: each worker joins the pass that those before
// it have begun, or begins it.
class RowDealers {
 public:
  using MakeParser = std::function<absl::StatusOr<std::unique_ptr<RowParser>>()>;
  RowDealers(std::vector<std::string> files, RowSelection selection, int workers,
             MakeParser make_parser, size_t most_held = kMostHeldBytes);

  // The pass over `epoch` that worker `rank` begins, which may have passed over it before. A pass is gone when
  // all workers have let go of it.
  absl::StatusOr<std::shared_ptr<RowDealer>> Begin(int rank, int64_t epoch);

 private:
  const std::vector<std::string> files_;
  const RowSelection selection_;
  const int workers_;
  const MakeParser make_parser_;
  const size_t most_held_;
  std::map<std::pair<int, int64_t>, int> begun_;  // by worker and epoch: how often
  std::map<std::pair<int64_t, int>, std::weak_ptr<RowDealer>> passes_;  // by epoch and how often
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_ROW_DEALER_H_
