// PLUGIN, a policy that a shared library in C decides (policies/tandem_policy.h). A job loads a
// library only after `tandem policy check` has tried it, and only if it is the one that was tried:
// the check leaves the file LIBRARY.checked with the hash of the library. The hash is a part of the
// job, so all processes of the job have the same library.
#ifndef TANDEM_POLICIES_PLUGIN_H_
#define TANDEM_POLICIES_PLUGIN_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "policies/policy.h"

namespace tandem::policies {

// The hash of the library's bytes, never 0. The error names the file.
absl::StatusOr<uint64_t> HashOfLibrary(const std::string& path);
// Says in LIBRARY.checked that the library of this hash was checked.
absl::Status MarkChecked(const std::string& path, uint64_t hash);

// Sets the hash of a PLUGIN that has none, if its library can be read.
void FillLibraryHash(Policy* config);

// Loads the library of a checked configuration. FAILED_PRECONDITION: the library was not checked,
// or it is not the one whose hash the job has. INVALID_ARGUMENT: it is no library of this version,
// or it refuses its options.
absl::StatusOr<std::unique_ptr<UpdatePolicy>> NewPlugin(const Policy& config, int workers);
// The same without these conditions, for the check itself.
absl::StatusOr<std::unique_ptr<UpdatePolicy>> LoadPlugin(const Policy& config, int workers);

}  // namespace tandem::policies

#endif  // TANDEM_POLICIES_PLUGIN_H_
