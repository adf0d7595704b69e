// Memory that two processes share, and what owns it. It is always a memfd: it has no name, so
// nothing is left behind by any exit, and its size is sealed, so that a peer cannot take pages away
// under a reader.
//
// Thread safety: as any value type.
#ifndef TANDEM_TRANSPORT_SHM_MEMORY_H_
#define TANDEM_TRANSPORT_SHM_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/owned_fd.h"

namespace tandem::transport {

inline constexpr size_t kPageBytes = 4096;

// A run of address space that is unmapped with its owner.
class Mapping {
 public:
  Mapping() = default;
  Mapping(uint8_t* data, size_t size) : data_(data), size_(size) {}
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Mapping();

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// `bytes` (a multiple of the page size) of zeroes that can neither shrink nor grow.
// RESOURCE_EXHAUSTED: no descriptor or memory is left.
absl::StatusOr<OwnedFd> CreateSharedMemory(size_t bytes);

// The same, already mapped, and nobody else will ever be able to write it: others that get the
// descriptor can only read. UNIMPLEMENTED on kernels before 5.1.
struct ReadOnlyMemory {
  OwnedFd fd;
  Mapping mapping;  // the one writer's
};
absl::StatusOr<ReadOnlyMemory> CreateMemoryForReaders(size_t bytes);

// The size of memory that came from another process, if it is sealed as CreateSharedMemory does and
// within [1, max_bytes]; INVALID_ARGUMENT otherwise. Only then is it safe to map and touch.
absl::StatusOr<size_t> CheckSharedMemory(int fd, size_t max_bytes);

absl::StatusOr<Mapping> MapSharedMemory(int fd, size_t bytes, bool writable);

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_SHM_MEMORY_H_
