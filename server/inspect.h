// What lies in a file that Tandem has written, as text for people: range files and the dense part
// (range_file.md), saves by their manifests (manifest.h), staleness records (update_record.h).
//
// Any thread.
#ifndef TANDEM_SERVER_INSPECT_H_
#define TANDEM_SERVER_INSPECT_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/status.h"

namespace tandem::server {

struct InspectOptions {
  int64_t limit = 10;  // of rows and of records that are written out; 0 = all
};

// `path`: one of those files, a save, a model folder with a LATEST, or a folder with some of them, of
// which each gets its own lines. The error is one line that names the file; what was written before it
// stands.
absl::Status Inspect(const std::string& path, const InspectOptions& options, std::ostream& out);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_INSPECT_H_
