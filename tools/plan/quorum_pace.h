// Estimates the speed of workers whose dense sums or sync rounds do not wait for all workers
// (dense.quorum, local_steps.quorum). Applies the job's own rule (worker/dense/quorum_leader.h) to
// the step times that a plan has drawn. Sums run one after another, and each occupies the links for
// the same time.
//
// Pure; any thread.
#ifndef TANDEM_TOOLS_PLAN_QUORUM_PACE_H_
#define TANDEM_TOOLS_PLAN_QUORUM_PACE_H_

#include "absl/types/optional.h"
#include "tools/plan/facts.h"
#include "worker/dense/quorum_leader.h"

namespace tandem::plan {

// Least time of a step; avoids a division by zero if nothing takes time.
inline constexpr double kLeastSeconds = 1e-9;

struct QuorumSteps {
  int every = 1;              // steps of a worker from one sum to the next
  absl::optional<int> ahead;  // steps that a worker may be ahead of the slowest; nullopt: any
  double rest = 0;            // seconds of a step without compute and sums
  double sum_seconds = 0;     // seconds of one sum
};

struct QuorumPace {
  double steps_per_second = 0;  // summed over all workers
  double sums = 0;  // sums for each step of a worker; below 1 / every if a sum covers two steps
};

// The number of workers is that of `facts`. A larger quorum is all of them.
QuorumPace PaceOf(const Facts& facts, const worker::QuorumLeader::Options& quorum,
                  const QuorumSteps& steps);

}  // namespace tandem::plan

#endif  // TANDEM_TOOLS_PLAN_QUORUM_PACE_H_
