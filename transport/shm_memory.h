// Memory that two processes share, and the objects that own it. Shared memory is always a memfd. A
// memfd has no name, so no exit leaves anything behind. Its size is sealed, so a peer cannot take
// pages away while a reader uses them.
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

// A range of address space that is unmapped with its owner.
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

// Creates `bytes` (a multiple of the page size) of zeroes that can neither shrink nor grow.
// RESOURCE_EXHAUSTED: no descriptor or memory is left.
absl::StatusOr<OwnedFd> CreateSharedMemory(size_t bytes);

// Creates memory as CreateSharedMemory does, already mapped. Nobody else will ever be able to write
// it: other processes that get the descriptor can only read. UNIMPLEMENTED on kernels before 5.1.
struct ReadOnlyMemory {
  OwnedFd fd;
  Mapping mapping;  // used by the only writer
};
absl::StatusOr<ReadOnlyMemory> CreateMemoryForReaders(size_t bytes);

// Returns the size of memory that came from another process, if it has the seals of
// CreateSharedMemory and its size is within [1, max_bytes]; INVALID_ARGUMENT otherwise. Only after
// this check is it safe to map and touch the memory, since a peer that could shrink it could crash
// the reader.
absl::StatusOr<size_t> CheckSharedMemory(int fd, size_t max_bytes);

absl::StatusOr<Mapping> MapSharedMemory(int fd, size_t bytes, bool writable);

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_SHM_MEMORY_H_
