// Fills in the defaults of a job and refuses contradictions in it. Used by job.cc only; job.h is
// the interface.
#ifndef TANDEM_JOB_JOB_CHECK_H_
#define TANDEM_JOB_JOB_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace tandem::job {

// Fills every field that has a default and is not set. A policy or optimizer without `kind` takes
// the fields that it does not set from its parent. A policy or optimizer with `kind` takes nothing
// from its parent. Filling a second time changes nothing.
void FillJobDefaults(Job* job);

// The most workers of a job that trains, and of a job whose steps are only timed
// (job/timing_plan.h).
inline constexpr int64_t kMaxWorkers = 1024;
inline constexpr int64_t kMaxTimedWorkers = 65536;

// Refuses contradictions in a job whose values are checked (field_check.h) and whose defaults are
// filled in. The message is "path: what is wrong; hint", with paths as in `--set`:
// "table[0].policy.bound".
absl::Status CheckJob(const Job& job, int64_t max_workers);

}  // namespace tandem::job

#endif  // TANDEM_JOB_JOB_CHECK_H_
