// CheckDataSpec refuses contradictions in the `data` part of a job. Used by job_check.cc only;
// job.h is the interface.
#ifndef TANDEM_JOB_DATA_CHECK_H_
#define TANDEM_JOB_DATA_CHECK_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace tandem::job {

// Like CheckJob (job_check.h), for `data` alone.
absl::Status CheckDataSpec(const Data& data);

}  // namespace tandem::job

#endif  // TANDEM_JOB_DATA_CHECK_H_
