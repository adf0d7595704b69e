// Computes where each worker of a run resumes from a checkpoint.
//
// No worker pushes while a checkpoint is marked, but some have more information than others. At the
// end of an epoch, one worker may know that the epoch is over, or may have finished the
// evaluation, while another does not know yet. The resumed run needs one answer for all. No worker
// trains twice on a row, and all workers repeat a step that only some had done (an evaluation, for
// example).
//
// A run that ended at its step limit (train.max_steps) may resume with a larger limit or none. It
// then continues in the same epoch. With the same limit, for example after a failure during the
// last checkpoint, the epoch is over and the run adds no step.
#ifndef TANDEM_WORKER_RESUME_POSITION_H_
#define TANDEM_WORKER_RESUME_POSITION_H_

#include <cstdint>
#include <limits>

#include "absl/status/statusor.h"
#include "proto/wire.pb.h"

namespace tandem::worker {

// TrainPosition.rows of a worker that has trained on all its rows of the epoch.
inline constexpr int64_t kAllRows = std::numeric_limits<int64_t>::max() / 2;

// `max_steps`: train.max_steps of the resumed run. DATA_LOSS if the record is not of a run with
// `workers` workers, or contradicts itself.
absl::StatusOr<TrainPosition> ResumePosition(const RunRecord& record, int rank, int workers,
                                             int64_t max_steps);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_RESUME_POSITION_H_
