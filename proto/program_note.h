// Limits of the values that a program which drives a worker may report (ProgramNote and
// ProgramValues of wire.proto).
#ifndef TANDEM_PROTO_PROGRAM_NOTE_H_
#define TANDEM_PROTO_PROGRAM_NOTE_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"

namespace tandem {

inline constexpr size_t kMaxReported = 100;  // values in one report

// INVALID_ARGUMENT: the name is not 1 to 64 visible ASCII characters.
absl::Status CheckReportedName(const std::string& name);

}  // namespace tandem

#endif  // TANDEM_PROTO_PROGRAM_NOTE_H_
