#include "server/range_totals.h"

#include <algorithm>

namespace tandem::server {

RangeTotals::Part::Part(uint32_t range, uint32_t group, RangeTotals* totals)
    : range_(range), group_(group), totals_(totals) {
  if (totals_ != nullptr) totals_->Count(group_, front_.min_clock, 1);
}

RangeTotals::Part::~Part() {
  if (totals_ == nullptr) return;
  totals_->held_bytes_ -= held_bytes_;
  totals_->Count(group_, front_.min_clock, -1);
}

void RangeTotals::Part::Set(size_t held_bytes, const policies::Front& front, bool owes_refresh) {
  if (totals_ == nullptr) return;
  totals_->held_bytes_ = totals_->held_bytes_ - held_bytes_ + held_bytes;
  held_bytes_ = held_bytes;
  if (owes_refresh) totals_->refreshes_.Add(range_);
  if (front == front_) return;
  if (front.min_clock != front_.min_clock) {
    totals_->Count(group_, front.min_clock, 1);
    totals_->Count(group_, front_.min_clock, -1);
  }
  front_ = front;
  totals_->changed_.Add(range_);
}

// Counts more or, if `ranges` is negative, fewer ranges with this clock.
void RangeTotals::Count(uint32_t group, int64_t clock, int64_t ranges) {
  if (group >= clocks_.size()) clocks_.resize(group + 1);
  std::vector<ClockCount>& counts = clocks_[group];
  auto at = std::lower_bound(counts.begin(), counts.end(), clock,
                             [](const ClockCount& a, int64_t b) { return a.clock < b; });
  if (at == counts.end() || at->clock != clock) at = counts.insert(at, {clock, 0});
  at->ranges += ranges;
  if (at->ranges == 0) counts.erase(at);
}

int64_t RangeTotals::MinClock(uint32_t group) const {
  if (group >= clocks_.size() || clocks_[group].empty()) return policies::kInfiniteClock;
  return clocks_[group].front().clock;
}

void RangeTotals::RangeIds::Add(uint32_t id) {
  if (id >= has_.size()) has_.resize(id + 1);
  if (has_[id]) return;
  has_[id] = true;
  ids_.push_back(id);
}

void RangeTotals::RangeIds::Take(std::vector<uint32_t>* ids) {
  ids->clear();
  ids->swap(ids_);
  for (const uint32_t id : *ids) has_[id] = false;
  std::sort(ids->begin(), ids->end());
}

}  // namespace tandem::server
