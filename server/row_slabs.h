// The memory of a range's rows, which are numbered 0, 1, 2, .... Each page holds the weights of
// some rows and then the slots of the same rows. A row's weights start on a cache line if the row
// length allows it. A push finds weights and slots in one page, which takes one address translation
// instead of two; that checkpoints a third of its time on a table larger than the caches.
//
// Thread safety: none needed; it belongs to one range.
#ifndef TANDEM_SERVER_ROW_SLABS_H_
#define TANDEM_SERVER_ROW_SLABS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/base/attributes.h"
#include "base/hash.h"
#include "server/growable_mapping.h"

namespace tandem::server {

class RowSlabs {
 public:
  // Requires: dim > 0, slots_per_row >= 0.
  RowSlabs(int dim, int slots_per_row);

  // Makes rows [0, count) addressable. New rows read as zero. Pointers to rows become invalid.
  void Reserve(size_t count);

  float* Weights(uint32_t row) const { return Weights(row, dim_); }
  // The same with the row length known to the compiler. Requires: dim is the row length.
  template <typename Dim>
  float* Weights(uint32_t row, Dim dim) const {
    const uint64_t slab = SlabOf(row);
    return Slab(slab) + (row - slab * rows_per_slab_) * static_cast<size_t>(dim);
  }
  float* Slots(uint32_t row) const {
    const uint64_t slab = SlabOf(row);
    return Slab(slab) + slots_offset_ + (row - slab * rows_per_slab_) * slots_per_row_;
  }

  // Always inlined: g++ believes that a function which only prefetches has no effect, and drops
  // calls to it.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void PrefetchWeights(uint32_t row) const {
    PrefetchLines(Weights(row), weight_lines_);
  }
  ABSL_ATTRIBUTE_ALWAYS_INLINE void PrefetchSlots(uint32_t row) const {
    if (slot_lines_ > 0) PrefetchLines(Slots(row), slot_lines_);
  }

  // The memory of rows [0, count).
  size_t MemoryBytes(size_t count) const;

 private:
  // Prefetches into the second-level cache. That cache can wait for more lines at the same time
  // than the first level can, and a random line takes hundreds of cycles to arrive.
  ABSL_ATTRIBUTE_ALWAYS_INLINE static void PrefetchLines(const float* at, int lines) {
    __builtin_prefetch(at, 0, 2);
    for (int i = 1; i < lines; ++i) __builtin_prefetch(at + 16 * i, 0, 2);
  }

  // row / rows_per_slab, by multiplication: exact for 32-bit rows, as inverse_ is the quotient of
  // 2^64 rounded up and its error times a row stays below 2^64 / rows_per_slab.
  uint64_t SlabOf(uint32_t row) const { return MulHigh(row, inverse_); }
  float* Slab(uint64_t slab) const {
    return static_cast<float*>(mapping_.data()) + slab * slab_floats_;
  }

  size_t dim_;
  size_t slots_per_row_;
  size_t rows_per_slab_;  // at least 2, or inverse_ would not fit
  size_t slab_floats_;
  size_t slots_offset_;  // floats from the start of a slab
  uint64_t inverse_;
  int weight_lines_;  // cache lines to prefetch for a row's weights, and for its slots
  int slot_lines_;
  GrowableMapping mapping_;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROW_SLABS_H_
