// Estimates how many steps a second workers take that wait for each other. Runs the order of their
// steps and updates in the simulator of times (tools/sim/timing.h), with the step times that a plan
// has drawn. Messages take no time here, because their cost is part of a step.
//
// Thread safety: none.
#ifndef TANDEM_TOOLS_PLAN_PACE_H_
#define TANDEM_TOOLS_PLAN_PACE_H_

#include <map>
#include <tuple>
#include <vector>

#include "absl/types/optional.h"
#include "tools/plan/facts.h"
#include "worker/dense/quorum_leader.h"

namespace tandem::plan {

struct Waits {
  // Steps that a worker may be ahead of the slowest; nullopt: any number. With 0 workers take every
  // step together.
  absl::optional<int> bound = 0;
  int every = 0;  // steps of a worker from one sum of dense replicas to the next; 0: no sums
  // Which workers a sum waits for; nullopt: all. A quorum of more workers than there are is all.
  absl::optional<worker::QuorumLeader::Options> quorum = absl::nullopt;
};

struct Pace {
  double steps_per_second = 0;  // summed over all workers
  double sums = 0;              // for each step of a worker
};

// The paces of the same workers under several strategies.
class Pacer {
 public:
  explicit Pacer(const Facts& facts);  // `facts` must outlive this

  // `rest`: seconds of a step without computing and sums. `sum_seconds`: of one sum. Sums follow
  // one another.
  Pace Of(const Waits& waits, double rest, double sum_seconds = 0);

 private:
  struct Run {
    std::vector<double> ended;  // by rank: seconds
    double steps = 0, sums = 0;
  };
  Run RunJob(const Waits& waits, double rest, double sum_seconds) const;

  const Facts& facts_;
  double grain_ = 0;  // runs with a bound are of multiples of this rest
  std::map<std::tuple<int, int, double>, Run> runs_;  // by bound, `every` and rest
};

inline Pace PaceOf(const Facts& facts, const Waits& waits, double rest, double sum_seconds = 0) {
  return Pacer(facts).Of(waits, rest, sum_seconds);
}

}  // namespace tandem::plan

#endif  // TANDEM_TOOLS_PLAN_PACE_H_
