// Where the programs of Tandem are: in the folder of this one. The compiled worker may be
// elsewhere, since a wheel of the Python package has none: $TANDEM_WORKER names that of a source
// build.
//
// Thread safety: free functions.
#ifndef TANDEM_NODE_PROGRAMS_H_
#define TANDEM_NODE_PROGRAMS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem::node {

inline constexpr char kWorkerProgram[] = "tandem-worker";

std::string ProgramPath(absl::string_view name);

// NOT_FOUND, with the way to get it, if that program is not there.
absl::Status CheckProgram(absl::string_view name);

}  // namespace tandem::node

#endif  // TANDEM_NODE_PROGRAMS_H_
