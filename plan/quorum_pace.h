// How fast workers go whose dense sums, or meetings, do not wait for all of them (dense.quorum,
// local_steps.quorum): the job's own rule of who waits for whom (worker/quorum_leader.h) over the steps
// that a plan has drawn. Sums come one after another, and each takes the links for as long.
//
// Pure; any thread.
#ifndef TANDEM_PLAN_QUORUM_PACE_H_
#define TANDEM_PLAN_QUORUM_PACE_H_

#include <cstdint>

#include "absl/types/optional.h"
#include "plan/facts.h"
#include "proto/job.pb.h"

namespace tandem::plan {

// No steps take less, where nothing takes any time.
inline constexpr double kLeastSeconds = 1e-9;

// As the fields of a job have it.
struct Quorum {
  Dense::Quorum rule = Dense::ALL;
  int count = 0;  // of workers, for meetings; 0: `rule` says. Where there are fewer, all of them
  int bound = 1;
  double grace_seconds = 0;

  friend bool operator==(const Quorum&, const Quorum&) = default;
};

struct QuorumSteps {
  int every = 1;              // steps of a worker from one sum to the next
  absl::optional<int> ahead;  // how many steps it may be ahead of the slowest; none: any number
  double rest = 0;            // seconds of a step beside what it computes and what sums take
  double sum_seconds = 0;     // what one sum takes
};

struct QuorumPace {
  double steps_per_second = 0;  // of all workers together
  double sums = 0;  // for each step of a worker; less than 1 / every where some sum has two steps
};

QuorumPace PaceOf(const Facts& facts, const Quorum& quorum, const QuorumSteps& steps);

}  // namespace tandem::plan

#endif  // TANDEM_PLAN_QUORUM_PACE_H_
