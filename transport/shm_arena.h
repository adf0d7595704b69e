// ShmArena allocates the memory from which an endpoint sends large parts. A sender writes directly
// into memory that the receiver maps, so large values are written once and read in place.
//
// Buffers are blocks inside segments; block sizes are powers of two. A segment is one memfd that
// other processes can only read. Small buffers come from the heap, because small parts are copied
// into the ring anyway. Segments live as long as the arena and its buffers, with one exception: a
// segment that is a single block above kLargestKept is freed with that block.
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
  // Parts up to this size travel inside the ring. Copying so little twice costs less than telling
  // the receiver where the part is and being told when it is no longer needed.
  static constexpr size_t kInlineBytes = 4096;
  static constexpr size_t kLargestKept = size_t{64} << 20;

  // The position of bytes as other processes see it.
  struct Place {
    uint32_t segment = 0;
    uint64_t offset = 0;
    bool passing = false;  // the segment is unmapped with its block: announce it at each use
  };
  // Everything that another process needs to map a segment. Valid as long as a buffer in the
  // segment is held.
  struct SegmentInfo {
    int fd = -1;
    size_t bytes = 0;
  };

  ShmArena();
  ~ShmArena() override;
  ShmArena(const ShmArena&) = delete;
  ShmArena& operator=(const ShmArena&) = delete;

  // Returns shared memory if `bytes` exceeds kInlineBytes and the system has some; otherwise heap
  // memory.
  Buffer Alloc(size_t bytes) override;
  // Returns shared memory for any size, or the reason why the system gives none. Requires: bytes >
  // 0.
  absl::StatusOr<Buffer> AllocShared(size_t bytes);

  // Returns false if the bytes are not in shared memory of this arena.
  bool Find(absl::Span<const uint8_t> bytes, Place* place) const;
  SegmentInfo Segment(uint32_t segment) const;

 private:
  class Pool;  // outlives the arena while it has buffers
  Pool* pool_;
  HeapBufferSource heap_;
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_SHM_ARENA_H_
