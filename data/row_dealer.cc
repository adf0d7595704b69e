#include "data/row_dealer.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace tandem::data {

absl::StatusOr<bool> RowDealer::Reader::Next(absl::string_view* line) {
  if (!failed.ok()) return failed;
  absl::StatusOr<bool> more = walk.Next(line);
  failed = more.status();
  return more;
}

RowDealer::RowDealer(const std::vector<std::string>* files, std::unique_ptr<RowParser> parser,
                     RowSelection selection, int workers, size_t max_held)
    : files_(files),
      parser_(std::move(parser)),
      selection_(selection),
      max_held_(max_held),
      reader_{RowWalk(files, parser_.get(), selection)},
      first_lines_(files->size()),
      workers_(static_cast<size_t>(workers)) {}

absl::StatusOr<bool> RowDealer::Next(int rank, Dealt* row) {
  Worker& worker = workers_[static_cast<size_t>(rank)];
  while (worker.rows.empty()) {
    if (worker.alone) return ReadAlone(rank, row);
    TANDEM_ASSIGN_OR_RETURN(const bool more, Read());
    if (!more) return false;
  }
  *row = std::move(worker.rows.front());
  worker.rows.pop_front();
  const size_t bytes = BytesOf(*row);
  worker.bytes -= bytes;
  held_bytes_ -= bytes;
  ++worker.taken;
  return true;
}

// Reads one more row and gives it to the worker that it belongs to.
absl::StatusOr<bool> RowDealer::Read() {
  absl::string_view line;
  TANDEM_ASSIGN_OR_RETURN(const bool more, reader_.Next(&line));
  if (!more) return false;
  const int workers = static_cast<int>(workers_.size());
  Worker& worker = workers_[static_cast<size_t>(reader_.walk.OwnerOf(workers))];
  if (worker.alone) return true;
  worker.rows.push_back(DealtOf(reader_.walk, line));
  const size_t bytes = BytesOf(worker.rows.back());
  worker.bytes += bytes;
  held_bytes_ += bytes;
  if (held_bytes_ > max_held_) LeaveOneBehind();
  return true;
}

void RowDealer::LeaveOneBehind() {
  Worker& most =
      *std::max_element(workers_.begin(), workers_.end(),
                        [](const Worker& a, const Worker& b) { return a.bytes < b.bytes; });
  held_bytes_ -= std::exchange(most.bytes, 0);
  std::deque<Dealt>().swap(most.rows);
  most.alone = true;
}

// Reads the next row for a worker that was left behind. Its own reader starts at the beginning of
// the files and first skips the rows that the worker has already taken.
absl::StatusOr<bool> RowDealer::ReadAlone(int rank, Dealt* row) {
  Worker& worker = workers_[static_cast<size_t>(rank)];
  int64_t past = 0;
  if (worker.own == nullptr) {
    worker.own.reset(new Reader{RowWalk(files_, parser_.get(), selection_)});
    past = worker.taken;
  }
  absl::string_view line;
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, worker.own->Next(&line));
    if (!more) return false;
    if (worker.own->walk.OwnerOf(static_cast<int>(workers_.size())) != rank) continue;
    if (past-- > 0) continue;
    *row = DealtOf(worker.own->walk, line);
    return true;
  }
}

RowDealer::Dealt RowDealer::DealtOf(const RowWalk& walk, absl::string_view line) {
  const size_t file = walk.file_index();
  if (first_lines_[file].empty()) first_lines_[file] = walk.file().first_line();
  return {std::string(line), file, walk.file().line()};
}

RowDealers::RowDealers(std::vector<std::string> files, RowSelection selection, int workers,
                       MakeParser make_parser, size_t max_held)
    : files_(std::move(files)),
      selection_(selection),
      workers_(workers),
      make_parser_(std::move(make_parser)),
      max_held_(max_held) {}

absl::StatusOr<std::shared_ptr<RowDealer>> RowDealers::Begin(int rank, int64_t epoch) {
  std::weak_ptr<RowDealer>& pass = passes_[{epoch, begun_[{rank, epoch}]++}];
  std::shared_ptr<RowDealer> dealer = pass.lock();
  if (dealer != nullptr) return dealer;
  TANDEM_ASSIGN_OR_RETURN(auto parser, make_parser_());
  dealer = std::make_shared<RowDealer>(&files_, std::move(parser), selection_, workers_, max_held_);
  pass = dealer;
  return dealer;
}

}  // namespace tandem::data
