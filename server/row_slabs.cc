#include "server/row_slabs.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::server {
namespace {

constexpr size_t kPageFloats = GrowableMapping::kPage / sizeof(float);

// With fewer rows than this a page would have too much unused space. Longer rows are laid out two
// by two instead; each has several lines of its own that share an address translation.
constexpr size_t kLeastRowsPerPage = 8;
constexpr size_t kLineFloats = 16;

constexpr double kAddressGrowth = 1.5;  // of addresses; a page costs memory only once written

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

}  // namespace

RowSlabs::RowSlabs(int dim, int slots_per_row)
    : dim_(static_cast<size_t>(dim)), slots_per_row_(static_cast<size_t>(slots_per_row)) {
  TANDEM_CHECK(dim > 0 && slots_per_row >= 0);
  const size_t row_floats = dim_ + slots_per_row_;
  rows_per_slab_ = kPageFloats / row_floats;
  slab_floats_ = kPageFloats;
  if (rows_per_slab_ < kLeastRowsPerPage) {
    rows_per_slab_ = 2;
    slab_floats_ = (2 * row_floats + kLineFloats - 1) / kLineFloats * kLineFloats;
  }
  slots_offset_ = rows_per_slab_ * dim_;
  inverse_ = ~uint64_t{0} / rows_per_slab_ + 1;
  weight_lines_ = LinesTouched(0, dim_);
  slot_lines_ = LinesTouched(slots_offset_, slots_per_row_);
}

void RowSlabs::Reserve(size_t count) {
  const size_t slabs = (count + rows_per_slab_ - 1) / rows_per_slab_;
  const size_t bytes = slabs * slab_floats_ * sizeof(float);
  if (bytes <= mapping_.capacity()) return;
  const double ahead = static_cast<double>(mapping_.capacity()) * kAddressGrowth;
  mapping_.Reserve(std::max(bytes, static_cast<size_t>(ahead)));
}

size_t RowSlabs::MemoryBytes(size_t count) const {
  const size_t slabs = (count + rows_per_slab_ - 1) / rows_per_slab_;
  return mapping_.ResidentBytes(slabs * slab_floats_ * sizeof(float));
}

}  // namespace tandem::server
