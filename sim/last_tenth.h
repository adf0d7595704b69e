// Of the steps that a worker computes in a run, the last tenth: what a problem's result is of.
#ifndef TANDEM_SIM_LAST_TENTH_H_
#define TANDEM_SIM_LAST_TENTH_H_

#include <algorithm>
#include <cstdint>

#include "job/job.h"

namespace tandem::sim {

// `computed`: how many the worker has computed, with this one. `steps`: of each worker, in an epoch, where
// the job's train.max_steps ends none earlier.
inline bool InLastTenth(const job::JobPlan& plan, int64_t steps, int64_t computed) {
  const Train& train = plan.job.train();
  int64_t all = steps * std::max(1, train.epochs());
  if (train.max_steps() > 0) all = std::min(all, train.max_steps());
  return 10 * computed > 9 * all;
}

}  // namespace tandem::sim

#endif  // TANDEM_SIM_LAST_TENTH_H_
