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
  explicit WaitLog(int workers)
      : seconds_(static_cast<size_t>(workers) * static_cast<size_t>(workers), 0.0),
        counted_to_(static_cast<size_t>(workers), absl::InfinitePast()) {}

  // A read of worker `rank`, which has waited since `since`, is answered. `freed_by`: the worker
  // whose push allowed it.
  void Add(absl::Time now, absl::Time since, int rank, int freed_by) {
    absl::Time& counted_to = counted_to_[static_cast<size_t>(rank)];
    const absl::Time from = std::max(since, counted_to);
    if (from < now) {
      seconds_[static_cast<size_t>(rank) * counted_to_.size() + static_cast<size_t>(freed_by)] +=
          absl::ToDoubleSeconds(now - from);
    }
    counted_to = now;
  }

  size_t workers() const { return counted_to_.size(); }
  // Seconds that worker `rank` has waited, by the worker waited for. Empty if it has never waited.
  absl::Span<const double> Row(size_t rank) const {
    if (counted_to_[rank] == absl::InfinitePast()) return {};
    return absl::MakeConstSpan(seconds_).subspan(rank * workers(), workers());
  }

 private:
  std::vector<double> seconds_;         // [workers, workers]
  std::vector<absl::Time> counted_to_;  // by rank; waiting before this time is counted
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_WAIT_LOG_H_
