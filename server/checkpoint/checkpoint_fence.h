// The fence of a model folder: the file FENCE names the attempt that commits checkpoints there. The
// scheduler raises the fence when an attempt begins, before any other process of the attempt
// starts. A process of an earlier attempt may be suspended, or cut off, and continue later. The
// fence refuses its commit, so the process cannot move LATEST back or remove newer checkpoints.
//
// Thread safety: any thread; one process at a time raises the fence of a folder.
#ifndef TANDEM_SERVER_CHECKPOINT_CHECKPOINT_FENCE_H_
#define TANDEM_SERVER_CHECKPOINT_CHECKPOINT_FENCE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::server {

struct AttemptId {
  uint64_t run = 0;     // View.run
  int64_t attempt = 0;  // View.attempt
};

// The text of a file that names an attempt, as FENCE and OUT/run do, and back. NOT_FOUND: there is
// no file. DATA_LOSS: it contains something else.
std::string TextOf(const AttemptId& id);
absl::StatusOr<AttemptId> ReadAttempt(const std::string& path);

// From now on only this attempt commits. The fence survives a power failure.
absl::Status RaiseFence(const std::string& model_folder, const AttemptId& id);

// FAILED_PRECONDITION: another run or a later attempt has begun, so this attempt must not change
// the folder. OK if the folder has no fence, because older versions raised none.
absl::Status CheckFence(const std::string& model_folder, const AttemptId& id);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_CHECKPOINT_CHECKPOINT_FENCE_H_
