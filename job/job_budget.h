// What update policies may have to hold back on a shard, from the job alone: upper bounds, so that a
// job that starts never meets limits.held_bytes_per_shard.
#ifndef TANDEM_JOB_JOB_BUDGET_H_
#define TANDEM_JOB_JOB_BUDGET_H_

#include <cstdint>

#include "absl/status/status.h"
#include "job/job.h"

namespace tandem::job {

// The most ids that a batch has for `table`, which is not the dense one: as if none repeated.
// `expected_rows` is no limit here, it is a hint.
int64_t MostIdsOfBatch(const JobPlan& plan, const TablePlan& table);

// The most dense parameters that the job's model can have: every layer with its bias, from the
// width of what it reads. 0 for a program's, which the job does not describe.
int64_t MostDenseParameters(const JobPlan& plan);

// The most bytes that a worker pushes to all servers for `table` in one step: keys and values.
int64_t LargestPushBytes(const JobPlan& plan, const TablePlan& table);

// The most bytes that policies which hold updates back may hold on one shard:
// workers x steps x the part of the largest push that one shard gets.
//
// Steps: `delay` closed ones, the one that is open, and `train.max_unacknowledged` more. A worker may
// be so many pushes ahead of what this shard has from it, and the others follow it by the versions
// of other shards. (How far ahead a worker reads changes nothing: it cannot push before it has read.)
// Keys are hashed, so with several shards the part of a push is random; it is larger than counted
// here less than once in 10^9 pushes.
int64_t HeldBytes(const JobPlan& plan);

// INVALID_ARGUMENT, with the numbers and a hint, if that is above limits.held_bytes_per_shard.
absl::Status CheckHeldBytes(const JobPlan& plan);

}  // namespace tandem::job

#endif  // TANDEM_JOB_JOB_BUDGET_H_
