// Resolves jobs whose steps are only timed (tools/sim/timing.h) and never run.
#ifndef TANDEM_JOB_TIMING_PLAN_H_
#define TANDEM_JOB_TIMING_PLAN_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "job/job.h"

namespace tandem::job {

// Like Resolve, but for up to 65,536 workers and without the memory budget, since nobody will hold
// rows or updates.
absl::StatusOr<ResolvedJob> ResolveForTiming(const Job& job);
// Like ParseJob, followed by ResolveForTiming.
absl::StatusOr<ResolvedJob> ParseJobForTiming(absl::string_view text, const std::string& file_name,
                                              const Overrides& overrides);
// Like ReadJobFile, followed by ResolveForTiming.
absl::StatusOr<ResolvedJob> ReadJobForTiming(const std::string& path, const Overrides& overrides);

}  // namespace tandem::job

#endif  // TANDEM_JOB_TIMING_PLAN_H_
