// Of the steps that a worker computes in a run, the last tenth: what a problem's result is of.
#ifndef TANDEM_SIM_LAST_TENTH_H_
#define TANDEM_SIM_LAST_TENTH_H_

#include <algorithm>
#include <cstdint>

#include "job/job.h"

namespace tandem::sim {

// `computed`: how many the worker has computed, with this one; `step`: its number in the job, from 0. A run ends
// when all of `steps` an epoch are computed, or at train.max_steps, which counts those that the worker has
// skipped, too, where a policy lets it.
inline bool InLastTenth(const job::JobPlan& plan, int64_t steps, int64_t computed, int64_t step) {
  const Train& train = plan.job.train();
  if (10 * computed > 9 * steps * std::max(1, train.epochs())) return true;
  return train.max_steps() > 0 && 10 * (step + 1) > 9 * train.max_steps();
}

}  // namespace tandem::sim

#endif  // TANDEM_SIM_LAST_TENTH_H_
