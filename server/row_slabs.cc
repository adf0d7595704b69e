#include "server/row_slabs.h"

#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::server {
namespace {

constexpr size_t kPageFloats = PageArena::kPage / sizeof(float);

// With fewer rows than this a page would have too much unused space. Longer rows are laid out two
// by two instead; each has several lines of its own that share an address translation.
constexpr size_t kLeastRowsPerPage = 8;
constexpr size_t kLineFloats = 16;

// At most this part of a segment is unused, because a slab does not cross its end.
constexpr size_t kUnusedPart = 64;

// For longer rows the processor's own prefetcher recognises the pattern.
constexpr size_t kMostPrefetchedLines = 8;

// The most cache lines that one run of `floats` floats touches, if such runs are laid end to end,
// beginning `offset` floats after the start of a line.
int LinesTouched(size_t offset, size_t floats) {
  if (floats == 0) return 0;
  const bool whole = offset % kLineFloats == 0 && floats % kLineFloats == 0;
  const size_t lines =
      whole ? floats / kLineFloats : (floats - 1 + kLineFloats - 1) / kLineFloats + 1;
  return static_cast<int>(std::min(lines, kMostPrefetchedLines));
}

uint64_t InverseOf(size_t divisor) { return ~uint64_t{0} / divisor + 1; }

// The slabs of a segment of the memory: as many as fit in the fewest huge pages that they fill.
size_t SlabsPerSegment(size_t slab_bytes) {
  size_t bytes = PageArena::kHugePage;
  while (bytes % slab_bytes > bytes / kUnusedPart) bytes += PageArena::kHugePage;
  return bytes / slab_bytes;
}

}  // namespace

RowSlabs::RowSlabs(int dim, int slots_per_row, PageArena* arena)
    : dim_(static_cast<size_t>(dim)),
      slots_per_row_(static_cast<size_t>(slots_per_row)),
      memory_(arena) {
  TANDEM_CHECK(dim > 0 && slots_per_row >= 0);
  const size_t row_floats = dim_ + slots_per_row_;
  rows_per_slab_ = kPageFloats / row_floats;
  slab_floats_ = kPageFloats;
  if (rows_per_slab_ < kLeastRowsPerPage) {
    rows_per_slab_ = 2;
    slab_floats_ = (2 * row_floats + kLineFloats - 1) / kLineFloats * kLineFloats;
  }
  slots_offset_ = rows_per_slab_ * dim_;
  inverse_ = InverseOf(rows_per_slab_);
  const size_t slab_bytes = slab_floats_ * sizeof(float);
  const size_t slabs = SlabsPerSegment(slab_bytes);
  segment_inverse_ = InverseOf(slabs * rows_per_slab_);
  memory_ = GrowableMemory(arena, slabs * slab_bytes);
  weight_lines_ = LinesTouched(0, dim_);
  slot_lines_ = LinesTouched(slots_offset_, slots_per_row_);
}

absl::Status RowSlabs::Grow(size_t count) {
  const size_t slab_bytes = slab_floats_ * sizeof(float);
  const size_t slabs = (count + rows_per_slab_ - 1) / rows_per_slab_;
  TANDEM_RETURN_IF_ERROR(memory_.Reserve(slabs * slab_bytes));
  capacity_ = memory_.usable() / slab_bytes * rows_per_slab_;
  return absl::OkStatus();
}

}  // namespace tandem::server
