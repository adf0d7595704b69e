// Records who waits for whom at a shard: how long the reads of a worker waited, by the worker whose
// push allowed them. That push was the last one to arrive: had it come earlier, the read would have
// been answered earlier. Reads of a worker that wait at the same time count once.
//
// Thread safety: none needed; belongs to a shard.
#ifndef TANDEM_SERVER_WAIT_LOG_H_
#define TANDEM_SERVER_WAIT_LOG_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tandem::server {

class WaitLog {
 public:
  // `in_pairs`: counts for each pair of workers (workers^2 numbers). Otherwise counts how long each
  // worker waited, and how long others waited for it.
  WaitLog(int workers, bool in_pairs)
      : counted_to_(static_cast<size_t>(workers), absl::InfinitePast()) {
    if (in_pairs) {
      seconds_.resize(counted_to_.size() * counted_to_.size());
    } else {
      waited_.resize(counted_to_.size());
      awaited_.resize(counted_to_.size());
    }
  }

  // A read of worker `rank`, which has waited since `since`, is answered. `freed_by`: the worker
  // whose push allowed it.
  void Add(absl::Time now, absl::Time since, int rank, int freed_by) {
    absl::Time& counted_to = counted_to_[static_cast<size_t>(rank)];
    const absl::Time from = std::max(since, counted_to);
    counted_to = now;
    if (from >= now) return;
    const double seconds = absl::ToDoubleSeconds(now - from);
    if (in_pairs()) {
      seconds_[static_cast<size_t>(rank) * workers() + static_cast<size_t>(freed_by)] += seconds;
    } else {
      waited_[static_cast<size_t>(rank)] += seconds;
      awaited_[static_cast<size_t>(freed_by)] += seconds;
    }
  }

  bool in_pairs() const { return !seconds_.empty(); }
  size_t workers() const { return counted_to_.size(); }
  // In pairs: the seconds that worker `rank` has waited, by the worker waited for. Empty if it has
  // never waited.
  absl::Span<const double> Row(size_t rank) const {
    if (counted_to_[rank] == absl::InfinitePast()) return {};
    return absl::MakeConstSpan(seconds_).subspan(rank * workers(), workers());
  }
  // Not in pairs: by rank.
  absl::Span<const double> waited() const { return waited_; }
  absl::Span<const double> awaited() const { return awaited_; }

 private:
  std::vector<double> seconds_;           // [workers, workers]; empty: not in pairs
  std::vector<double> waited_, awaited_;  // by rank; empty: in pairs
  std::vector<absl::Time> counted_to_;    // by rank; waiting before this time is counted
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_WAIT_LOG_H_
