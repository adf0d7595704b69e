#include "data/row_dealer.h"

#include <utility>

#include "base/status_macros.h"

namespace tandem::data {

RowDealer::RowDealer(const std::vector<std::string>* files, std::unique_ptr<RowParser> parser,
                     RowSelection selection, int workers)
    : files_(files),
      parser_(std::move(parser)),
      walk_(files, parser_.get(), selection),
      workers_(workers),
      first_lines_(files->size()),
      dealt_(static_cast<size_t>(workers)) {}

absl::StatusOr<bool> RowDealer::Next(int rank, Dealt* row) {
  std::deque<Dealt>& own = dealt_[static_cast<size_t>(rank)];
  while (own.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, Read());
    if (!more) return false;
  }
  *row = std::move(own.front());
  own.pop_front();
  return true;
}

// One more row, to whoever it belongs.
absl::StatusOr<bool> RowDealer::Read() {
  absl::string_view line;
  TANDEM_ASSIGN_OR_RETURN(const bool more, walk_.Next(&line));
  if (!more) return false;
  const size_t file = walk_.file_index();
  if (first_lines_[file].empty()) first_lines_[file] = walk_.file().first_line();
  dealt_[static_cast<size_t>(walk_.OwnerOf(workers_))].push_back(
      {std::string(line), file, walk_.file().lines().line_number()});
  return true;
}

RowDealers::RowDealers(std::vector<std::string> files, RowSelection selection, int workers,
                       MakeParser make_parser)
    : files_(std::move(files)),
      selection_(selection),
      workers_(workers),
      make_parser_(std::move(make_parser)) {}

absl::StatusOr<std::shared_ptr<RowDealer>> RowDealers::Begin(int rank, int64_t epoch) {
  std::weak_ptr<RowDealer>& pass = passes_[{epoch, begun_[{rank, epoch}]++}];
  std::shared_ptr<RowDealer> dealer = pass.lock();
  if (dealer != nullptr) return dealer;
  TANDEM_ASSIGN_OR_RETURN(auto parser, make_parser_());
  dealer = std::make_shared<RowDealer>(&files_, std::move(parser), selection_, workers_);
  pass = dealer;
  return dealer;
}

}  // namespace tandem::data
