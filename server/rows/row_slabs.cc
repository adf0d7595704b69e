#include "server/rows/row_slabs.h"

#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::server {
namespace {

// With fewer rows than this a page would have too much unused space. Longer rows are laid out two
// by two instead; each has several lines of its own that share an address translation.
constexpr size_t kMinRowsPerPage = 8;
constexpr size_t kCacheLine = 64;

// At most this part of a segment is unused, because a slab does not cross its end.
constexpr size_t kUnusedPart = 64;

// For longer rows the processor's own prefetcher recognises the pattern.
constexpr size_t kMaxPrefetchedLines = 8;

// The most cache lines that a run of `bytes` bytes touches, if such runs are laid end to end, the
// first one `offset` bytes after the start of a line.
int LinesTouched(size_t offset, size_t bytes) {
  if (bytes == 0) return 0;
  const bool whole = offset % kCacheLine == 0 && bytes % kCacheLine == 0;
  const bool within = kCacheLine % bytes == 0 && offset % bytes == 0;
  const auto whole_elements = [&](size_t of) { return bytes % of == 0 && offset % of == 0; };
  const size_t element = whole_elements(4) ? 4 : whole_elements(2) ? 2 : 1;
  const size_t lines = whole    ? bytes / kCacheLine
                       : within ? 1
                                : (bytes + kCacheLine - 2 * element) / kCacheLine + 1;
  return static_cast<int>(std::min(lines, kMaxPrefetchedLines));
}

uint64_t InverseOf(size_t divisor) { return ~uint64_t{0} / divisor + 1; }

// The slabs of a segment of the memory: as many as fit in the fewest huge pages that they fill.
size_t SlabsPerSegment(size_t slab_bytes) {
  size_t bytes = PageArena::kHugePage;
  while (bytes % slab_bytes > bytes / kUnusedPart) bytes += PageArena::kHugePage;
  return bytes / slab_bytes;
}

}  // namespace

RowSlabs::RowSlabs(size_t weight_bytes, size_t slot_bytes, PageArena* arena)
    : weight_bytes_(weight_bytes), slot_bytes_(slot_bytes), memory_(arena) {
  TANDEM_CHECK(weight_bytes > 0);
  const size_t row_bytes = weight_bytes + slot_bytes;
  // Slots of floats are aligned also behind elements of one or two bytes.
  const size_t gap = weight_bytes % sizeof(float) == 0 ? 0 : sizeof(float);
  rows_per_slab_ = (PageArena::kPage - gap) / row_bytes;
  slab_bytes_ = PageArena::kPage;
  if (rows_per_slab_ < kMinRowsPerPage) {
    rows_per_slab_ = 2;
    slab_bytes_ = (2 * row_bytes + gap + kCacheLine - 1) / kCacheLine * kCacheLine;
  }
  slots_offset_ = (rows_per_slab_ * weight_bytes + gap) / sizeof(float) * sizeof(float);
  inverse_ = InverseOf(rows_per_slab_);
  const size_t slabs = SlabsPerSegment(slab_bytes_);
  segment_inverse_ = InverseOf(slabs * rows_per_slab_);
  memory_ = GrowableMemory(arena, slabs * slab_bytes_);
  weight_lines_ = LinesTouched(0, weight_bytes);
  slot_lines_ = LinesTouched(slots_offset_, slot_bytes);
}

absl::Status RowSlabs::Grow(size_t count) {
  const size_t slabs = (count + rows_per_slab_ - 1) / rows_per_slab_;
  TANDEM_RETURN_IF_ERROR(memory_.Reserve(slabs * slab_bytes_));
  capacity_ = memory_.usable() / slab_bytes_ * rows_per_slab_;
  return absl::OkStatus();
}

}  // namespace tandem::server
