// The plan of a job of which only the times of steps are asked (sim/timing.h).
#ifndef TANDEM_JOB_TIMING_PLAN_H_
#define TANDEM_JOB_TIMING_PLAN_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "job/job.h"

namespace tandem::job {

// As Resolve, for up to 65,536 workers, and without a budget of memory: nobody will hold rows or updates.
absl::StatusOr<JobPlan> ResolveForTiming(const Job& job);
// As ParseJob, and that.
absl::StatusOr<JobPlan> ParseJobForTiming(absl::string_view text, const std::string& file_name,
                                          const Overrides& overrides);
// As ReadJobFile, and that.
absl::StatusOr<JobPlan> ReadJobForTiming(const std::string& path, const Overrides& overrides);

}  // namespace tandem::job

#endif  // TANDEM_JOB_TIMING_PLAN_H_
