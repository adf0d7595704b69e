#include "transport/shm_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace tandem::transport {
namespace {
// The seals that fix the size. F_SEAL_SEAL keeps a peer from adding more seals, for example one
// that would refuse this side's mapping.
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::Status Exhausted(const char* what, size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat(what, " of ", bytes, " bytes: ", std::strerror(errno)));
}

absl::StatusOr<OwnedFd> NewMemory(size_t bytes) {
  TANDEM_CHECK(bytes > 0 && bytes % kPageBytes == 0);
  OwnedFd fd(memfd_create("tandem", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return Exhausted("shared memory", bytes);
  }
  return fd;
}
}  // namespace

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, size_);
}

absl::StatusOr<OwnedFd> CreateSharedMemory(size_t bytes) {
  TANDEM_ASSIGN_OR_RETURN(OwnedFd fd, NewMemory(bytes));
  TANDEM_CHECK(fcntl(fd.get(), F_ADD_SEALS, kSizeSeals) == 0);
  return fd;
}

absl::StatusOr<ReadOnlyMemory> CreateMemoryForReaders(size_t bytes) {
  TANDEM_ASSIGN_OR_RETURN(OwnedFd fd, NewMemory(bytes));
  // Map before sealing: F_SEAL_FUTURE_WRITE refuses new writable mappings and keeps existing ones,
  // so this mapping stays the only writable one.
  TANDEM_ASSIGN_OR_RETURN(Mapping mapping, MapSharedMemory(fd.get(), bytes, /*writable=*/true));
  if (fcntl(fd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_FUTURE_WRITE) != 0) {
    return absl::UnimplementedError(
        absl::StrCat("shared memory that its readers cannot write (F_SEAL_FUTURE_WRITE): ",
                     std::strerror(errno)));
  }
  return ReadOnlyMemory{std::move(fd), std::move(mapping)};
}

absl::StatusOr<size_t> CheckSharedMemory(int fd, size_t max_bytes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return absl::InvalidArgumentError("shared memory of a peer: its size is not sealed");
  }
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_size < 1 ||
      static_cast<uint64_t>(info.st_size) > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("shared memory of a peer: ", info.st_size,
                                                   " bytes, expected 1 to ", max_bytes));
  }
  return static_cast<size_t>(info.st_size);
}

absl::StatusOr<Mapping> MapSharedMemory(int fd, size_t bytes, bool writable) {
  void* const at =
      mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return Exhausted("mapping", bytes);
  return Mapping(static_cast<uint8_t*>(at), bytes);
}

}  // namespace tandem::transport
