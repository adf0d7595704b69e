// Marks failures that mean that training has diverged: a loss, a logit or a gradient is infinite or
// NaN. The mark is part of the status, and between processes part of the failure (Failure in
// proto/wire.proto). So a study can distinguish a learning rate that is too large
// from a run that broke.
#ifndef TANDEM_BASE_DIVERGED_H_
#define TANDEM_BASE_DIVERGED_H_

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace tandem {

inline constexpr char kDivergedMark[] = "tandem/diverged";

inline void MarkDiverged(absl::Status* status) { status->SetPayload(kDivergedMark, absl::Cord()); }

inline absl::Status DivergedError(absl::string_view message) {
  absl::Status status = absl::OutOfRangeError(message);
  MarkDiverged(&status);
  return status;
}

inline bool IsDiverged(const absl::Status& status) {
  return status.GetPayload(kDivergedMark).has_value();
}

}  // namespace tandem

#endif  // TANDEM_BASE_DIVERGED_H_
