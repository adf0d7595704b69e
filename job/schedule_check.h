// Checks and defaults of schedules of learning rates (the message Schedule in proto/job.proto).
#ifndef TANDEM_JOB_SCHEDULE_CHECK_H_
#define TANDEM_JOB_SCHEDULE_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "job/job.h"

namespace tandem::job {

// Fills in the shape and, from train.max_steps, the end of each schedule in the job.
void FillSchedules(Job* job);

// `path`: of the optimizer. INVALID_ARGUMENT: a field is missing or of another kind, or the
// schedule contradicts train.max_steps.
absl::Status CheckSchedule(const std::string& path, const Optimizer& optimizer, const Job& job);

}  // namespace tandem::job

#endif  // TANDEM_JOB_SCHEDULE_CHECK_H_
