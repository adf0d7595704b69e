#include "server/pull_times.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::server {

PullTimes::PullTimes(int workers, int reads, bool by_row)
    : by_row_(by_row), of_worker_(static_cast<size_t>(workers)) {
  for (std::vector<int32_t>& places : of_worker_) {
    for (int i = 0; i < reads; ++i) places.push_back(NewPlace());
  }
}

int32_t PullTimes::NewPlace() {
  if (free_.empty()) {
    places_.emplace_back();
    return static_cast<int32_t>(places_.size()) - 1;
  }
  const int32_t place = free_.back();
  free_.pop_back();
  return place;
}

// Orders free places first, then by the time of the answer. The step is no good order: a worker
// that has skipped steps reads later ones again.
std::tuple<bool, int64_t, int64_t> PullTimes::AgeOrder(const Read& read) {
  return {read.step >= 0, read.at_us, read.step};
}

void PullTimes::OnRead(int rank, int64_t step, int64_t version, int64_t now_us,
                       absl::Span<const uint64_t> keys, absl::Span<const uint32_t> rows) {
  TANDEM_CHECK(rows.size() == keys.size());
  const std::vector<int32_t>& places = of_worker_[static_cast<size_t>(rank)];
  const auto at = [this](int32_t place) -> Read& { return places_[static_cast<size_t>(place)]; };
  // A repeated answer keeps its place. A new one takes a free place, or the place of the oldest
  // read.
  const auto same = std::find_if(places.begin(), places.end(), [&](int32_t place) {
    return at(place).step == step && at(place).version == version;
  });
  if (same != places.end()) return;  // the worker may have used the first answer
  Read& read = at(*std::min_element(places.begin(), places.end(), [&](int32_t a, int32_t b) {
    return AgeOrder(at(a)) < AgeOrder(at(b));
  }));
  read.step = step;
  read.version = version;
  read.at_us = now_us;
  if (!by_row_) return;
  read.keys.assign(keys.begin(), keys.end());
  read.rows.assign(rows.begin(), rows.end());
  read.updates.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) read.updates[i] = Updates(rows[i]);
}

void PullTimes::Forget(int rank) {
  for (const int32_t place : of_worker_[static_cast<size_t>(rank)]) {
    places_[static_cast<size_t>(place)].step = -1;
  }
}

int32_t PullTimes::Take(const policies::Update& update) {
  for (int32_t& place : of_worker_[static_cast<size_t>(update.rank)]) {
    const Read& read = places_[static_cast<size_t>(place)];
    if (read.step != update.step || read.version != update.version_read) continue;
    const int32_t taken = place;
    place = NewPlace();
    return taken;
  }
  return kUnknown;
}

void PullTimes::Drop(int32_t read) {
  if (read == kUnknown) return;
  places_[static_cast<size_t>(read)].step = -1;
  free_.push_back(read);
}

bool PullTimes::RowsOf(int32_t read, absl::Span<const uint64_t> keys, std::vector<uint32_t>* rows,
                       std::vector<uint32_t>* updates_as_read) const {
  rows->clear();
  updates_as_read->clear();
  if (read == kUnknown) return keys.empty();
  const Read& from = places_[static_cast<size_t>(read)];
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
    if (row >= updates_.size()) updates_.resize(std::max<size_t>(row + 1, 2 * updates_.size()));
    ++updates_[row];
  }
}

}  // namespace tandem::server
