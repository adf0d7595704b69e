// What each rank sends by an algorithm, by formula. The checker compares it with what schedules do;
// what an algorithm takes in seconds, on measured links, is the business of tuning/engine_cost.h.
#ifndef TANDEM_COLLECTIVES_PROOF_TRAFFIC_H_
#define TANDEM_COLLECTIVES_PROOF_TRAFFIC_H_

#include <cstdint>

#include "collectives/schedules/algorithms.h"
#include "collectives/schedules/schedule.h"

namespace tandem {

// What one rank sends.
struct Traffic {
  int64_t messages = 0;
  int64_t elements = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

// By formula, of shape.rank. Exact for any count, also one that the ranks do not divide, and for
// any segment. Requires that MakeSchedule accepts the arguments.
Traffic AlgorithmTraffic(Primitive primitive, Algorithm algorithm, const CollectiveShape& shape);
// By counting the sends of a schedule.
Traffic ScheduleTraffic(const Schedule& schedule);

// Bus bandwidth = bytes / seconds * this (the convention of nccl-tests): comparable to the speed of
// the link whatever the number of ranks. `bytes` are those of the vector of all blocks, or of what
// a rank sends in an all-to-all. 0 where nothing travels.
double BusFactor(Primitive primitive, int ranks);

}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_PROOF_TRAFFIC_H_
