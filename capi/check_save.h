// Whether a save is whole: its manifest, and every byte of every file that it lists.
//
// Thread safety: pure functions of files; any thread.
#ifndef TANDEM_CAPI_CHECK_SAVE_H_
#define TANDEM_CAPI_CHECK_SAVE_H_

#include <string>

#include "absl/status/status.h"

namespace tandem::capi {

// Reads all of the save in `folder`, a piece at a time. The first thing that is not as the manifest
// says is the error, which names the file: NOT_FOUND, DATA_LOSS.
absl::Status CheckSave(const std::string& folder);

}  // namespace tandem::capi

#endif  // TANDEM_CAPI_CHECK_SAVE_H_
