// The bytes of a file, unpacked: plain, gzip or zstd.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_DATA_BYTE_SOURCE_H_
#define TANDEM_DATA_BYTE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::data {

// A stream of unpacked bytes.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Reads up to `size` bytes into `out`; returns 0 at the end. INVALID_ARGUMENT if compressed data
  // are damaged or end too early. Errors do not name the file.
  virtual absl::StatusOr<size_t> Read(char* out, size_t size) = 0;
  // The share of the stored (perhaps compressed) bytes that has been read, from 0 to 1. For
  // estimates.
  virtual double Progress() const = 0;
  // Whether Seek works: for plain files.
  virtual bool seekable() const { return false; }
  // Continues at this byte, which may be beyond the end.
  virtual absl::Status Seek(int64_t offset);
};

// Opens a file. Gzip and zstd are recognised by their first bytes. A name that ends in ".gz" or
// ".zst" requires them. NOT_FOUND if the file cannot be opened.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenFile(const std::string& path);

// A stream over bytes in memory, which must outlive the source.
std::unique_ptr<ByteSource> MemoryBytes(absl::string_view bytes);

}  // namespace tandem::data

#endif  // TANDEM_DATA_BYTE_SOURCE_H_
