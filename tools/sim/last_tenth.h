// Tells which steps of a worker are the last tenth of its run. They give the result of a problem.
#ifndef TANDEM_TOOLS_SIM_LAST_TENTH_H_
#define TANDEM_TOOLS_SIM_LAST_TENTH_H_

#include <algorithm>
#include <cstdint>

#include "job/job.h"

namespace tandem::sim {

// `computed`: steps that the worker has computed, with this one. `step`: its number in the job,
// from 0. A run ends when all `steps` steps of each epoch are computed, or at train.max_steps. The
// latter also counts steps that the worker has skipped because of a policy.
inline bool InLastTenth(const job::ResolvedJob& plan, int64_t steps, int64_t computed,
                        int64_t step) {
  const Train& train = plan.job.train();
  if (10 * computed > 9 * steps * std::max(1, train.epochs())) return true;
  return train.max_steps() > 0 && 10 * (step + 1) > 9 * train.max_steps();
}

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_LAST_TENTH_H_
