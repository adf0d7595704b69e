// Marks failures that mean that a checkpoint cannot be loaded, because one of its files is damaged
// or cannot be read. The mark is part of the status, and between processes part of the message
// (Failure in proto/wire.proto). A run passes over such a checkpoint and resumes from an older one.
#ifndef TANDEM_BASE_DAMAGED_CHECKPOINT_H_
#define TANDEM_BASE_DAMAGED_CHECKPOINT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace tandem {

inline constexpr char kDamagedCheckpointMark[] = "tandem/damaged_checkpoint";

// `name`: of the checkpoint's folder, without the model folder.
inline absl::Status DamagedCheckpointError(absl::Status status, absl::string_view name) {
  status.SetPayload(kDamagedCheckpointMark, absl::Cord(name));
  return status;
}

// The name of the folder. Empty: the status is of something else.
inline std::string DamagedCheckpoint(const absl::Status& status) {
  const auto name = status.GetPayload(kDamagedCheckpointMark);
  return name.has_value() ? std::string(*name) : "";
}

}  // namespace tandem

#endif  // TANDEM_BASE_DAMAGED_CHECKPOINT_H_
