// The memory of a range's rows, which are numbered 0, 1, 2, .... Each page holds the weights of
// some rows and then the slots of the same rows. A row's weights start on a cache line if the row
// length allows it. A push finds weights and slots in one page, which takes one address translation
// instead of two; that saves a third of its time on a table larger than the caches.
//
// Thread safety: none needed; it belongs to one range.
#ifndef TANDEM_SERVER_ROWS_ROW_SLABS_H_
#define TANDEM_SERVER_ROWS_ROW_SLABS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "base/hash.h"
#include "server/rows/growable_memory.h"

namespace tandem::server {

class RowSlabs {
 public:
  // `weight_bytes`, `slot_bytes`: of a row. Requires: weight_bytes > 0. `arena` outlives the rows.
  RowSlabs(size_t weight_bytes, size_t slot_bytes, PageArena* arena);

  // Makes rows [0, count) addressable. New rows read as zero. Pointers to rows become invalid.
  // RESOURCE_EXHAUSTED: nothing has changed.
  absl::Status Reserve(size_t count) { return count <= capacity_ ? absl::OkStatus() : Grow(count); }

  void* Weights(uint32_t row) const {
    const uint64_t slab = SlabOf(row);
    return At(row, slab, (row - slab * rows_per_slab_) * weight_bytes_);
  }
  void* Slots(uint32_t row) const {
    const uint64_t slab = SlabOf(row);
    return At(row, slab, slots_offset_ + (row - slab * rows_per_slab_) * slot_bytes_);
  }

  // Start loading the weights, or the slots, of a row. Always inlined: g++ believes that a function
  // which only prefetches has no effect, and drops calls to it.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void PrefetchWeights(const void* weights) const {
    PrefetchLines(weights, weight_lines_);
  }
  ABSL_ATTRIBUTE_ALWAYS_INLINE void PrefetchSlots(const void* slots) const {
    if (slot_lines_ > 0) PrefetchLines(slots, slot_lines_);
  }
  ABSL_ATTRIBUTE_ALWAYS_INLINE void Prefetch(uint32_t row) const {
    PrefetchWeights(Weights(row));
    PrefetchSlots(Slots(row));
  }

  // Rows that are addressable. While it stays the same, pointers to rows stay valid.
  size_t capacity() const { return capacity_; }
  size_t MemoryBytes() const { return memory_.resident(); }
  PageArena* arena() const { return memory_.arena(); }

 private:
  // Prefetches into the second-level cache. That cache can wait for more lines at the same time
  // than the first level can, and a random line takes hundreds of cycles to arrive.
  ABSL_ATTRIBUTE_ALWAYS_INLINE static void PrefetchLines(const void* at, int lines) {
    __builtin_prefetch(at, 0, 2);
    for (int i = 1; i < lines; ++i) __builtin_prefetch(static_cast<const char*>(at) + 64 * i, 0, 2);
  }

  // row / rows_per_slab, by multiplication: exact for 32-bit rows, as inverse_ is the quotient of
  // 2^64 rounded up and its error times a row stays below 2^64 / rows_per_slab.
  uint64_t SlabOf(uint32_t row) const { return MulHigh(row, inverse_); }
  // The address `offset` bytes after the start of a row's slab. The segment comes from the row and
  // not from the slab, so that the two multiplications overlap.
  void* At(uint32_t row, uint64_t slab, size_t offset) const {
    const uint64_t segment = MulHigh(row, segment_inverse_);
    return reinterpret_cast<void*>(memory_.table()[segment] + slab * slab_bytes_ + offset);
  }
  absl::Status Grow(size_t count);

  size_t weight_bytes_, slot_bytes_;  // of a row
  size_t rows_per_slab_;              // at least 2, or inverse_ would not fit
  size_t slab_bytes_;
  size_t slots_offset_;  // from the start of a slab
  uint64_t inverse_;
  uint64_t segment_inverse_;  // the same for rows of a segment of memory_
  int weight_lines_;          // cache lines to prefetch for a row's weights, and for its slots
  int slot_lines_;
  size_t capacity_ = 0;  // rows
  GrowableMemory memory_;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROWS_ROW_SLABS_H_
