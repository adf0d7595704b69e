// What a job may say of workers that are slow on purpose. Used by job_check.cc alone.
#ifndef TANDEM_JOB_SERVICE_TIME_CHECK_H_
#define TANDEM_JOB_SERVICE_TIME_CHECK_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace tandem::job {

// As CheckJob (job_check.h), of `service_time` alone.
absl::Status CheckServiceTimes(const Job& job);

}  // namespace tandem::job

#endif  // TANDEM_JOB_SERVICE_TIME_CHECK_H_
