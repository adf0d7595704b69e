// Prints the contents of a file that Tandem has written, as text for people: range files and the
// dense part (range_file.md), checkpoints by their manifests (manifest.h), staleness records
// (update_record.h), the order of updates (order_file.h).
//
// Thread safety: any thread.
#ifndef TANDEM_SERVER_CHECKPOINT_INSPECT_H_
#define TANDEM_SERVER_CHECKPOINT_INSPECT_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/status.h"

namespace tandem::server {

struct InspectOptions {
  int64_t limit = 10;  // most rows or records to print; 0 = all
};

// `path`: one of those files, a checkpoint, a model folder with a LATEST, or a folder with some of
// them; then each is printed. The error is one line that names the file. Text printed before it is
// kept.
absl::Status Inspect(const std::string& path, const InspectOptions& options, std::ostream& out);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_CHECKPOINT_INSPECT_H_
