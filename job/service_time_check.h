// CheckServiceTimes refuses contradictions in the `service_time` part of a job. Used by
// job_check.cc only.
#ifndef TANDEM_JOB_SERVICE_TIME_CHECK_H_
#define TANDEM_JOB_SERVICE_TIME_CHECK_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace tandem::job {

// Like CheckJob (job_check.h), for `service_time` alone.
absl::Status CheckServiceTimes(const Job& job);

}  // namespace tandem::job

#endif  // TANDEM_JOB_SERVICE_TIME_CHECK_H_
