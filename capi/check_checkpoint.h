// CheckCheckpoint says whether a checkpoint is complete and undamaged: its manifest, and every byte
// of every file that the manifest lists.
//
// Thread safety: pure functions of files; any thread.
#ifndef TANDEM_CAPI_CHECK_CHECKPOINT_H_
#define TANDEM_CAPI_CHECK_CHECKPOINT_H_

#include <string>

#include "absl/status/status.h"

namespace tandem::capi {

// Reads all files of the checkpoint in `folder`, a piece at a time. The error names the first file
// that differs from the manifest: NOT_FOUND or DATA_LOSS.
absl::Status CheckCheckpoint(const std::string& folder);

}  // namespace tandem::capi

#endif  // TANDEM_CAPI_CHECK_CHECKPOINT_H_
