#include "server/growable_mapping.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

#include "base/check.h"

namespace tandem::server {
namespace {

constexpr size_t kHugePage = GrowableMapping::kHugePage;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Throws std::bad_alloc, as the heap does. The shard's thread catches it and reports an error.
void* MapPages(size_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  return at;
}

void Unmap(void* at, size_t bytes) {
  if (bytes > 0) TANDEM_CHECK(munmap(at, bytes) == 0);
}

// Unmaps a part of the memory from MapPages. The call can fail: if the kernel has merged that
// memory with a neighbouring mapping, it has to split it again, and a process may have too many
// mappings already (vm.max_map_count).
void Trim(void* at, size_t bytes) {
  if (bytes > 0 && munmap(at, bytes) != 0) throw std::bad_alloc();
}

// Maps `bytes` of new memory, aligned to huge pages. Between aligned addresses mremap moves whole
// huge pages by moving page tables. With unaligned addresses it would split them into small pages.
void* MapAligned(size_t bytes) {
  char* const at = static_cast<char*>(MapPages(bytes + kHugePage));
  char* const aligned = at + (kHugePage - reinterpret_cast<uintptr_t>(at) % kHugePage) % kHugePage;
  Trim(at, static_cast<size_t>(aligned - at));
  Trim(aligned + bytes, static_cast<size_t>(at + kHugePage - aligned));
  return aligned;
}

}  // namespace

GrowableMapping::~GrowableMapping() { Unmap(data_, capacity_); }

void GrowableMapping::Reserve(size_t bytes) {
  if (bytes <= capacity_) return;
  const bool huge = bytes >= kHugeFrom;
  const size_t capacity = RoundUp(bytes, huge ? kHugePage : kPage);
  void* const data = huge ? MapAligned(capacity) : MapPages(capacity);
  if (capacity_ >= kHugeFrom) {
    // The old pages and the new part must become one mapping, since mremap moves only one at a
    // time.
    constexpr int kThere = MREMAP_MAYMOVE | MREMAP_FIXED;
    if (mremap(data_, capacity_, capacity, kThere, data) != data) throw std::bad_alloc();
  } else {
    if (huge) madvise(data, capacity, MADV_HUGEPAGE);  // a hint: small pages are only slower
  }
  if (capacity_ > 0 && capacity_ < kHugeFrom) {
    std::memcpy(data, data_, capacity_);  // a small copy; its new pages may be huge ones
    Unmap(data_, capacity_);
  }
  data_ = data;
  capacity_ = capacity;
}

void GrowableMapping::Discard(size_t from, size_t to) {
  const size_t unit = capacity_ >= kHugeFrom ? kHugePage : kPage;
  const size_t first = RoundUp(from, unit);
  const size_t last = std::min(to, capacity_) / unit * unit;
  if (first < last) madvise(static_cast<char*>(data_) + first, last - first, MADV_DONTNEED);
}

size_t GrowableMapping::ResidentBytes(size_t used) const {
  return std::min(capacity_, RoundUp(used, capacity_ >= kHugeFrom ? kHugePage : kPage));
}

}  // namespace tandem::server
