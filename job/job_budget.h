// The memory that a job needs, computed from the job: for updates that policies hold back on a
// shard, for rows, and for the end of a job whose rows have filled the memory of a server. The
// bounds of held updates depend on the job alone, so that a job that starts never reaches
// limits.held_bytes_per_shard.
#ifndef TANDEM_JOB_JOB_BUDGET_H_
#define TANDEM_JOB_JOB_BUDGET_H_

#include <cstdint>

#include "absl/status/status.h"
#include "job/job.h"

namespace tandem::job {

// The most ids that a batch can have for `table`, which is not the dense table. The bound assumes
// that no id repeats. `expected_rows` does not limit it, since that field is only a hint.
int64_t MaxIdsOfBatch(const ResolvedJob& plan, const TablePlan& table);

// The most dense parameters that the job's model can have: every layer with its bias, computed from
// the width of the model's inputs. 0 for a model that the job does not describe (a program's, or
// one from a file).
int64_t MaxDenseParameters(const ResolvedJob& plan);

// The most bytes that update policies may hold on one shard: workers x steps x the part of the
// largest push that one shard gets.
//
// The steps are `delay` closed ones, the open one, and `train.max_inflight_pushes` more. A worker
// may be that many pushes ahead of what this shard has received from it, and the other workers may
// follow it because of the versions of other shards. The prefetch depth changes nothing, since a
// worker cannot push before it has read. Keys are hashed, so with several shards the part of a push
// that one shard gets is random. That part exceeds the bound less than once in 10^9 pushes.
int64_t HeldBytes(const ResolvedJob& plan);

// INVALID_ARGUMENT, with the numbers and a hint, if HeldBytes is above limits.held_bytes_per_shard.
absl::Status CheckHeldBytes(const ResolvedJob& plan);

// The values of a row of the table on a server, in floats: weights, optimizer slots, a clock if the
// table has eviction, and the mean squares of DC_ASGD. A copy for a checkpoint has these and the
// key, all as floats.
double FloatsOfRow(const ResolvedJob& plan, const TablePlan& table);
// The bytes of these values in the types of the table. A checkpoint has these and the key.
double StoredBytesOfRow(const ResolvedJob& plan, const TablePlan& table);
// The bytes that a hot row has in addition, or 0 if no row becomes hot.
double HotBytesOfRow(const TablePlan& table);
// The memory of a row that is not hot, with its place in the index.
double BytesOfRow(const ResolvedJob& plan, const TablePlan& table);
// The rows that the table is expected to have at most: expected_rows, and max_rows of LRU.
int64_t RowsExpected(const TablePlan& table);

// The bytes that a server needs at least besides its process: those that policies may hold back.
int64_t MinServerBytes(const ResolvedJob& plan);

// A shard needs so much free memory to copy the next rows of a checkpoint.
inline constexpr int64_t kRoomToCopy = int64_t{2} << 20;
// Memory for each copied row that the thread which writes a file needs besides the copy
// (server::RangeCopy::Encode).
inline constexpr int64_t kSortBytes = 28;

// The part of a server's memory that is kept free for the end of a job that has filled the rest.
// All code that keeps or checks this part takes it from here. In bytes.
struct Reserve {
  // The end needs this in any case: updates that policies hold back, at most an eighth of the
  // memory. If the job writes checkpoints, also 4 MiB by which the process grows, and kRoomToCopy
  // of each shard.
  int64_t least = 0;
  // For rows until the workers stop. The rows that all workers can create in
  // 2 + max_inflight_pushes steps, in which no id repeats; a sixteenth of the memory, because the
  // index of the rows grows by a fifth at once; and 12 MiB for each shard, because a range has a
  // part of its memory twice while it grows. With `least` at most half of the memory.
  int64_t rows = 0;
  // If the job writes checkpoints: copies of one range of each shard, with the memory to sort them,
  // as if one table had all rows that then fit.
  int64_t copies = 0;

  int64_t total() const { return least + rows + copies; }
};
// `free`: bytes of the server without its process. `saves`: the job writes checkpoints. All 0 if
// the job only evaluates.
Reserve ReserveOf(const ResolvedJob& plan, int64_t free, bool saves);
// The least `free` of a server that can keep the reserve.
int64_t MinFreeBytes(const ResolvedJob& plan, bool saves);

// The ways out for a user whose rows do not fit.
inline constexpr char kWaysToFit[] =
    "a larger cluster.memory_per_server, more servers, table.eviction or table.admission";

}  // namespace tandem::job

#endif  // TANDEM_JOB_JOB_BUDGET_H_
