// The bytes of a file, unpacked: plain, gzip or zstd.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_DATA_BYTE_SOURCE_H_
#define TANDEM_DATA_BYTE_SOURCE_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::data {

// Where bytes come from.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Up to `size` bytes into `out`; 0 at the end. INVALID_ARGUMENT if compressed data are damaged or
  // end too early. Errors do not name the file.
  virtual absl::StatusOr<size_t> Read(char* out, size_t size) = 0;
  // How much of the stored (perhaps compressed) bytes has been read, 0 to 1; for estimates.
  virtual double Progress() const = 0;
};

// A file. Gzip and zstd are recognised by their first bytes, and required if the name ends in ".gz"
// or ".zst". NOT_FOUND if it cannot be opened.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenFile(const std::string& path);

// Bytes in memory, which must outlive the source.
std::unique_ptr<ByteSource> MemoryBytes(absl::string_view bytes);

}  // namespace tandem::data

#endif  // TANDEM_DATA_BYTE_SOURCE_H_
