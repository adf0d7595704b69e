// What update policies may have to hold back on a shard, from the job alone.
#ifndef TANDEM_JOB_JOB_BUDGET_H_
#define TANDEM_JOB_JOB_BUDGET_H_

#include <cstdint>

#include "absl/status/status.h"
#include "job/job.h"

namespace tandem {

// Bytes of the largest push of a worker to all servers for `table` in one step, keys included. Rows
// are counted as if no id of a batch repeated, but not beyond the rows that the job expects; of
// libsvm, whose rows have any number of ids, one id a row. Of the dense parameters on servers: the
// weights between the widths that the job names.
int64_t LargestPushBytes(const JobPlan& plan, const TablePlan& table);

// Bytes that policies which hold updates back (BSP, fixed delay) may hold on one shard:
// workers x (depth + 1 + delay) x largest push, by the shard's share.
int64_t HeldBytes(const JobPlan& plan);

// INVALID_ARGUMENT, with the numbers and a hint, if that is above limits.held_bytes_per_shard.
absl::Status CheckHeldBytes(const JobPlan& plan);

}  // namespace tandem

#endif  // TANDEM_JOB_JOB_BUDGET_H_
