// tandem simulate --timing-only: predicts the speed of a job, the staleness of its updates and the
// waits between workers, without data, rows and gradients (tools/sim/timing.h). Simulates thousands
// of workers in seconds.
#ifndef TANDEM_TOOLS_SIM_COMMAND_TIMING_COMMAND_H_
#define TANDEM_TOOLS_SIM_COMMAND_TIMING_COMMAND_H_

#include <string>

#include "absl/types/optional.h"
#include "job/job.h"
#include "tools/sim/command/calibration.h"
#include "tools/sim/command/simulator.h"

namespace tandem::sim {

// Requires: `flags` are checked and name a folder to write into. `live`: the run that gave the
// times, if any. Returns the same exit codes as `tandem run`.
int SimulateTiming(const SimulateFlags& flags, const job::ResolvedJob& plan,
                   const absl::optional<Calibration>& live);

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_COMMAND_TIMING_COMMAND_H_
