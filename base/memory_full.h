// Marks failures that mean that there is no memory for rows of a table, or for copies of rows in a
// checkpoint. The mark is part of the status, and between processes part of the message (Failure
// and CommandDone in proto/wire.proto). A new attempt of the job would fail in the same way. After
// another RESOURCE_EXHAUSTED, such as a full disk, a new attempt may succeed.
#ifndef TANDEM_BASE_MEMORY_FULL_H_
#define TANDEM_BASE_MEMORY_FULL_H_

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace tandem {

inline constexpr char kMemoryFullMark[] = "tandem/memory_full";

inline absl::Status MemoryFullError(absl::string_view message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kMemoryFullMark, absl::Cord());
  return status;
}

inline bool IsMemoryFull(const absl::Status& status) {
  return status.GetPayload(kMemoryFullMark).has_value();
}

}  // namespace tandem

#endif  // TANDEM_BASE_MEMORY_FULL_H_
