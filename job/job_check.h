// What a job may say: defaults and contradictions. Used by job.cc only; job.h is the interface.
#ifndef TANDEM_JOB_JOB_CHECK_H_
#define TANDEM_JOB_JOB_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace tandem::job {

// Fills every field that has a default and is not set. A policy or optimizer without `kind` takes
// from its parent whatever it does not set itself; one with `kind` stands alone. Filling twice
// changes nothing more.
void FillJobDefaults(Job* job);

// So many workers can train, and of so many steps can be timed (job/timing_plan.h).
inline constexpr int64_t kMaxWorkers = 1024;
inline constexpr int64_t kMaxTimedWorkers = 65536;

// Refuses contradictions and values out of range in a job whose defaults are filled. The message is
// "path: what is wrong; hint", with paths as in `--set`: "table[0].policy.bound".
absl::Status CheckJob(const Job& job, int64_t most_workers);

}  // namespace tandem::job

#endif  // TANDEM_JOB_JOB_CHECK_H_
