// Where each worker of a run goes on from a save.
//
// All workers stood still when the save was made, but not all had noticed the same: at the end of an
// epoch one may know that it is over, or be through its evaluation, while another has yet to hear of
// it. A run that goes on needs one answer for all. Nobody trains twice on a row, and what only some
// have done (an evaluation, say) all do again.
#ifndef TANDEM_WORKER_RESUME_POSITION_H_
#define TANDEM_WORKER_RESUME_POSITION_H_

#include <cstdint>
#include <limits>

#include "absl/status/statusor.h"
#include "proto/wire.pb.h"

namespace tandem::worker {

// TrainPosition.rows of a worker that has trained on all its rows of the epoch.
inline constexpr int64_t kAllRows = std::numeric_limits<int64_t>::max() / 2;

// DATA_LOSS if the record is none of a save of a run with so many workers.
absl::StatusOr<TrainPosition> ResumePosition(const RunRecord& record, int rank, int workers);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_RESUME_POSITION_H_
