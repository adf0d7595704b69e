// tandem simulate --timing-only: predicts the speed of a job, the staleness of its updates and the
// waits between workers, without data, rows and gradients (tools/sim/timing.h). Simulates thousands
// of workers in seconds.
#ifndef TANDEM_CLI_TIMING_COMMAND_H_
#define TANDEM_CLI_TIMING_COMMAND_H_

#include <string>

#include "absl/types/optional.h"
#include "cli/calibration.h"
#include "cli/simulator.h"
#include "job/job.h"

namespace tandem::cli {

// Requires: `flags` are checked and name a folder to write into. `live`: the run that gave the
// times, if any. Returns the same exit codes as `tandem run`.
int SimulateTiming(const SimulateFlags& flags, const job::ResolvedJob& plan,
                   const absl::optional<Calibration>& live);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_TIMING_COMMAND_H_
