// tandem simulate --timing-only: how fast a job is, how stale its updates are and who waits for whom, without
// data, rows and gradients (sim/timing.h). Thousands of workers take seconds.
#ifndef TANDEM_CLI_TIMING_COMMAND_H_
#define TANDEM_CLI_TIMING_COMMAND_H_

#include <string>

#include "absl/types/optional.h"
#include "cli/calibration.h"
#include "cli/simulator.h"
#include "job/job.h"

namespace tandem::cli {

// `flags` are checked, with a folder to write into; `live` is the run that the times are of, if any. Returns
// the exit code, as `tandem run`.
int SimulateTiming(const SimulateFlags& flags, const job::JobPlan& plan,
                   const absl::optional<Calibration>& live);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_TIMING_COMMAND_H_
