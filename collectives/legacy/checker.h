// Proves a set of schedules right without a network, for all data and all timings at once.
//
// The schedules are replayed (replay.h) on symbols: an element holds not a number but the list of
// contributions that were added to make it. Elements that no schedule ever separates are treated as
// one, so the proof costs the same for ten elements as for ten billion.
#ifndef TANDEM_COLLECTIVES_CHECKER_H_
#define TANDEM_COLLECTIVES_CHECKER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/legacy/schedule.h"

namespace tandem {
inline namespace legacy {

struct CheckOptions {
  // Messages a pair may have in flight; the schedules must finish within this bound.
  int max_in_flight = 1;
  // Also require that every element is ((c0 + c1) + c2) + ..., as a rank-order fold makes it.
  bool rank_order = false;
};

// OK if every rank ends with every rank's contribution exactly once in every element. Otherwise the
// message says which contribution is missing or doubled, at which rank and elements; or which rank
// waits for whom; or which message does not fit (errors of Replay).
absl::Status CheckAllReduce(absl::Span<const Schedule> schedules, const CheckOptions& options);

// Builds the schedules of an algorithm and checks all that it promises: CheckAllReduce with one
// message in flight, the traffic of cost.h, and for direct the order of additions.
absl::Status CheckAllReduceAlgorithm(AllReduceAlgorithm algorithm, int ranks, int64_t count);

// OK if each rank sends exactly what AllReduceTraffic says.
absl::Status CheckAllReduceTraffic(AllReduceAlgorithm algorithm,
                                   absl::Span<const Schedule> schedules);

}  // namespace legacy
}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_CHECKER_H_
