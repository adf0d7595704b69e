// What a schedule costs: exact traffic, and time in the alpha-beta-gamma model (Hockney 1994 with a
// term for arithmetic; Thakur, Rabenseifner & Gropp 2005 price the collectives this way).
//
// The model explains and ranks; alpha, beta and gamma are to be measured on the link at hand.
#ifndef TANDEM_COLLECTIVES_PROOF_COST_H_
#define TANDEM_COLLECTIVES_PROOF_COST_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/schedules/schedule.h"

namespace tandem {

struct CostModel {
  double alpha = 0;  // seconds a message
  double beta = 0;   // seconds a byte sent
  double gamma = 0;  // seconds a byte added, or copied
};

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

// Seconds by the closed formulas of the algorithms' files, for the busiest rank and blocks of equal
// sizes (v-variants: of the average size). Serial: of what could overlap, only the pipelines of
// chain and double tree are credited. A hierarchical algorithm has one model for the links within
// hosts and one for those across; others use `link` alone.
double PredictSeconds(Primitive primitive, Algorithm algorithm, const CollectiveShape& shape,
                      int element_bytes, const CostModel& link, const CostModel& across_hosts);
double PredictSeconds(Primitive primitive, Algorithm algorithm, const CollectiveShape& shape,
                      int element_bytes, const CostModel& link);

// Seconds until the last rank has finished, by playing the schedules: a rank sends one message after
// another and receives one after another (alpha + bytes * beta each), both while it adds. Errors as
// of Replay.
absl::StatusOr<double> ScheduleSeconds(absl::Span<const Schedule> schedules, int element_bytes,
                                       const CostModel& model);

// Bus bandwidth = bytes / seconds * this (the convention of nccl-tests): comparable to the speed of
// the link whatever the number of ranks. `bytes` are those of the vector of all blocks, or of what
// a rank sends in an all-to-all. 0 where nothing travels.
double BusFactor(Primitive primitive, int ranks);

}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_PROOF_COST_H_
