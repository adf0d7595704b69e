#include "server/pull_times.h"

#include <algorithm>

#include "base/check.h"
#include "server/rows/row_index.h"

namespace tandem::server {

PullTimes::PullTimes(int workers, int reads, bool by_row)
    : by_row_(by_row), reads_(reads), newest_(static_cast<size_t>(workers), kUnknown) {}

// Adds a place to the reads of a worker.
int32_t PullTimes::NewPlace(int rank) {
  int32_t place = free_;
  if (place == kUnknown) {
    place = static_cast<int32_t>(places_.size());
    places_.emplace_back();
    if (by_row_) rows_.emplace_back();
  } else {
    free_ = At(place).next;
  }
  int32_t& newest = newest_[static_cast<size_t>(rank)];
  At(place).next = newest;
  newest = place;
  return place;
}

// Orders reads by the time of the answer. The order of steps would be wrong, because a worker that
// has skipped steps reads later ones again.
bool PullTimes::IsOlder(const Read& a, const Read& b) {
  return std::pair(a.at_us, a.step) < std::pair(b.at_us, b.step);
}

void PullTimes::OnRead(int rank, int64_t step, int64_t version, int64_t now_us,
                       absl::Span<const uint64_t> keys, absl::Span<const uint32_t> rows) {
  TANDEM_CHECK(rows.size() == keys.size());
  // A repeated answer keeps its place. A new one takes a new place, or that of the oldest read.
  int count = 0;
  int32_t oldest = kUnknown;
  for (int32_t place = newest_[static_cast<size_t>(rank)]; place != kUnknown;
       place = At(place).next) {
    const Read& read = At(place);
    if (read.step == step && read.version == version) return;  // it may have used the first answer
    if (oldest == kUnknown || IsOlder(read, At(oldest))) oldest = place;
    ++count;
  }
  const int32_t place = count < reads_ ? NewPlace(rank) : oldest;
  Read& read = At(place);
  read.step = step;
  read.version = version;
  read.at_us = now_us;
  if (!by_row_) return;
  Rows& of = rows_[static_cast<size_t>(place)];
  of.keys.assign(keys.begin(), keys.end());
  of.rows.assign(rows.begin(), rows.end());
  of.updates.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) of.updates[i] = CountOf(rows[i]);
}

void PullTimes::Forget(int rank) {
  int32_t& newest = newest_[static_cast<size_t>(rank)];
  while (newest != kUnknown) {
    const int32_t place = newest;
    newest = At(place).next;
    Drop(place);
  }
}

// A worker pushes its steps in order, so reads of earlier steps are of no use any more.
int32_t PullTimes::Take(const policies::Update& update) {
  int32_t taken = kUnknown;
  int32_t* link = &newest_[static_cast<size_t>(update.rank)];
  while (*link != kUnknown) {
    const int32_t place = *link;
    Read& read = At(place);
    if (read.step > update.step) {
      link = &read.next;
      continue;
    }
    *link = read.next;
    if (read.step == update.step && read.version == update.version_read) {
      taken = place;
    } else {
      Drop(place);
    }
  }
  return taken;
}

void PullTimes::Drop(int32_t read) {
  if (read == kUnknown) return;
  At(read).next = free_;
  free_ = read;
}

bool PullTimes::RowsOf(int32_t read, absl::Span<const uint64_t> keys, std::vector<uint32_t>* rows,
                       std::vector<uint32_t>* updates_as_read) const {
  rows->clear();
  updates_as_read->clear();
  if (read == kUnknown) return keys.empty();
  const Rows& from = rows_[static_cast<size_t>(read)];
  size_t at = 0;
  for (const uint64_t key : keys) {
    while (at < from.keys.size() && from.keys[at] != key) ++at;
    if (at == from.keys.size()) return false;
    rows->push_back(from.rows[at]);
    updates_as_read->push_back(from.updates[at]);
    ++at;
  }
  return true;
}

void PullTimes::CountUpdate(absl::Span<const uint32_t> rows) {
  for (const uint32_t row : rows) {
    if (row == RowIndex::kNoRow) continue;
    if (row >= updates_.size()) updates_.resize(std::max<size_t>(row + 1, 2 * updates_.size()));
    ++updates_[row];
  }
}

void PullTimes::OnCreated(absl::Span<const uint32_t> rows) {
  for (const uint32_t row : rows) {
    if (CountOf(row) == 0) continue;
    if (row >= first_.size()) first_.resize(updates_.size());
    first_[row] = updates_[row];
  }
}

}  // namespace tandem::server
