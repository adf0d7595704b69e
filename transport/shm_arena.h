// The memory that an endpoint sends large parts from: whoever fills a buffer writes straight into
// memory that the receiver maps, so large values are written once and read where they lie.
//
// Buffers are blocks of powers of two inside segments; a segment is one memfd that others can only
// read. Small buffers come from the heap, because small parts are copied into the ring anyway.
// Segments live as long as the arena and its buffers. Only a segment that is a single block above
// kLargestKept is freed with that block.
//
// Thread safety: all methods may be called from any thread.
#ifndef TANDEM_TRANSPORT_SHM_ARENA_H_
#define TANDEM_TRANSPORT_SHM_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "transport/shm_memory.h"

namespace tandem::transport {

class ShmArena final : public BufferSource {
 public:
  // Parts up to this size travel inside the ring: two copies of so little cost less than telling
  // the receiver where they are and hearing that it is done.
  static constexpr size_t kInlineBytes = 4096;
  static constexpr size_t kLargestKept = size_t{64} << 20;

  // Where bytes lie, as other processes see them.
  struct Place {
    uint32_t segment = 0;
    uint64_t offset = 0;
    bool passing = false;  // the segment is unmapped with its block: announce it at each use
  };
  // What another process needs to map a segment; valid as long as a buffer in it is held.
  struct SegmentInfo {
    int fd = -1;
    size_t bytes = 0;
  };

  ShmArena();
  ~ShmArena() override;
  ShmArena(const ShmArena&) = delete;
  ShmArena& operator=(const ShmArena&) = delete;

  // Shared memory if larger than kInlineBytes, and if the system has some; the heap otherwise.
  Buffer Alloc(size_t bytes) override;
  // Shared memory for any size, or why the system gives none. Requires: bytes > 0.
  absl::StatusOr<Buffer> AllocShared(size_t bytes);

  // False: not in shared memory of this arena.
  bool Find(absl::Span<const uint8_t> bytes, Place* place) const;
  SegmentInfo Segment(uint32_t segment) const;

 private:
  class Pool;  // outlives the arena while buffers do
  Pool* pool_;
  HeapBufferSource heap_;
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_SHM_ARENA_H_
