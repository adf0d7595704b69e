// HeldGroups is a queue of groups of updates that a range has admitted and not applied yet.
// UpdateOrder has two: the open groups, which the policy holds, and the closed groups that wait for
// a fixed delay. With batches (Properties::batch) at most one group is open. Otherwise each step
// has a group.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_POLICIES_ORDER_HELD_GROUPS_H_
#define TANDEM_POLICIES_ORDER_HELD_GROUPS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "policies/policy.h"

namespace tandem::policies {

// The updates of one group, in the order of arrival. The group of a step is folded in rank order.
// UpdateOrder sorts it when it closes: an insertion in rank order would move half of the other
// updates at each arrival. Updates without rows are counted but not listed, unless the group is
// folded by worker: then they have a part in the weight of their worker.
template <typename U>
struct HeldGroup {
  int64_t step = 0;           // the step, or the number of the tick that will close the group
  uint64_t samples = 0;       // sum of n over all updates, with and without rows
  int64_t sample_clock = 0;   // the largest one of all updates with samples, with and without rows
  int64_t contributions = 0;  // updates that had samples; with batches also skipped ones
  bool skipped = false;       // a worker skipped its batch of this step
  std::vector<U> updates;

  // For UpdatePolicy::OnApply.
  Group View() const { return Group(absl::MakeConstSpan(updates), samples); }
  // The group of a step has several updates of one rank only after a load from several files. The
  // sort is stable, so that these updates stay in the order of the files.
  void SortByRank() {
    const auto before = [](const U& a, const U& b) { return a.rank < b.rank; };
    if (std::is_sorted(updates.begin(), updates.end(), before)) return;
    std::stable_sort(updates.begin(), updates.end(), before);
  }
  // Inserts an update in rank order.
  void Insert(U update) {
    const auto at = std::upper_bound(updates.begin(), updates.end(), update.rank,
                                     [](int rank, const U& other) { return rank < other.rank; });
    updates.insert(at, std::move(update));
  }
};

// A first-in, first-out queue of groups. A new group reuses the memory of a dropped one, so a queue
// that no longer grows allocates nothing.
template <typename U>
class HeldGroups {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  HeldGroup<U>& operator[](size_t i) { return ring_[(first_ + i) % ring_.size()]; }
  const HeldGroup<U>& operator[](size_t i) const { return ring_[(first_ + i) % ring_.size()]; }
  HeldGroup<U>& front() { return (*this)[0]; }
  const HeldGroup<U>& front() const { return (*this)[0]; }

  // Appends a group without updates.
  HeldGroup<U>& Add() {
    if (size_ == ring_.size()) {
      std::rotate(ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(first_), ring_.end());
      first_ = 0;
      ring_.emplace_back();
    }
    HeldGroup<U>& group = (*this)[size_++];
    group.step = 0;
    group.samples = 0;
    group.sample_clock = 0;
    group.contributions = 0;
    group.skipped = false;
    return group;
  }
  // Moves the front of another queue to the end of this one.
  void Take(HeldGroups* from) {
    std::swap(Add(), from->front());
    from->DropFront();
  }
  void DropFront() {
    front().updates.clear();  // keeps its memory
    first_ = (first_ + 1) % ring_.size();
    --size_;
  }
  void Clear() {
    while (!empty()) DropFront();
  }

 private:
  std::vector<HeldGroup<U>> ring_;
  size_t first_ = 0, size_ = 0;
};

}  // namespace tandem::policies

#endif  // TANDEM_POLICIES_ORDER_HELD_GROUPS_H_
