// CheckStepTimes refuses contradictions in the `fault_injection.slow_workers` part of a job. Used
// by job_check.cc only.
#ifndef TANDEM_JOB_STEP_TIME_CHECK_H_
#define TANDEM_JOB_STEP_TIME_CHECK_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace tandem::job {

// Like CheckJob (job_check.h), for `fault_injection.slow_workers` alone.
absl::Status CheckStepTimes(const Job& job);

}  // namespace tandem::job

#endif  // TANDEM_JOB_STEP_TIME_CHECK_H_
