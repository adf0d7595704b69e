// What a program that drives a worker may report (ProgramNote of wire.proto).
#ifndef TANDEM_PROTO_PROGRAM_NOTE_H_
#define TANDEM_PROTO_PROGRAM_NOTE_H_

#include <string>

#include "absl/status/status.h"

namespace tandem {

// INVALID_ARGUMENT: a name that is not 1 to 64 characters of visible ASCII, or a value that is infinite
// or no number, which JSON has no word for.
absl::Status CheckReported(const std::string& name, double value);

}  // namespace tandem

#endif  // TANDEM_PROTO_PROGRAM_NOTE_H_
