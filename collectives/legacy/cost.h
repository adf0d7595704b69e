// What a schedule costs: exact traffic, and time in the alpha-beta-gamma model (Hockney 1994 with a
// term for arithmetic; Thakur, Rabenseifner & Gropp 2005 price the collectives this way).
//
// The model explains and ranks; alpha, beta and gamma are to be measured on the link at hand.
#ifndef TANDEM_COLLECTIVES_COST_H_
#define TANDEM_COLLECTIVES_COST_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/legacy/schedule.h"

namespace tandem {
inline namespace legacy {

struct CostModel {
  double alpha = 0;  // seconds a message
  double beta = 0;   // seconds a byte sent
  double gamma = 0;  // seconds a byte added
};

// What one rank sends.
struct Traffic {
  int64_t messages = 0;
  int64_t elements = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

// By formula. Exact for any count, also one that the ranks do not divide.
Traffic AllReduceTraffic(AllReduceAlgorithm algorithm, int rank, int ranks, int64_t count);
// By counting the sends of a schedule.
Traffic ScheduleTraffic(const Schedule& schedule);

// Seconds for a vector of `bytes`, by the closed formula (equal blocks). Serial: what could overlap
// is not credited.
double AllReduceSeconds(AllReduceAlgorithm algorithm, int ranks, double bytes,
                        const CostModel& model);

// Seconds until the last rank has finished, by playing the schedules: a rank's sends leave one
// after another (alpha + bytes * beta each) while it receives and adds; the wire itself takes no
// time, and receiving at one rank from several at once is free. Errors as of Replay.
absl::StatusOr<double> ScheduleSeconds(absl::Span<const Schedule> schedules,
                                       const CostModel& model);

// Bus bandwidth = bytes / seconds * this (the convention of nccl-tests): comparable to the speed of
// the link whatever the number of ranks. 0 for one rank, which sends nothing.
double AllReduceBusFactor(int ranks);

}  // namespace legacy
}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_COST_H_
