#include "server/rows/page_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/memory_full.h"
#include "base/status_macros.h"

namespace tandem::server {
namespace {

using Pages = PageArena::Pages;
constexpr size_t kPage = PageArena::kPage;
constexpr size_t kMinBlock = PageArena::kMinBlock;
constexpr size_t kMaxSmall = PageArena::kMaxSmall;

// Small blocks of level i have kMinBlock << i bytes. Each half of a block is a block of the level
// below: the buddy system.
constexpr int kPageLevel = std::countr_zero(kPage / kMinBlock);
constexpr int kTopLevel = std::countr_zero(kMaxSmall / kMinBlock);

// A new region has a quarter of the address space that the arena has already, within these bounds.
// So there are few regions (300 for a terabyte), and little is unused where address space is
// limited (ulimit -v, vm.overcommit_memory = 2).
constexpr size_t kMinRegion = size_t{16} << 20;
constexpr size_t kMaxRegion = size_t{4} << 30;

constexpr size_t kNone = ~size_t{0};

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

// The free blocks of a region: a set of numbers below a bound.
class PageArena::FreeBlocks {
 public:
  // False: there is no memory for the set.
  bool Init(size_t bound) {
    words_ = (bound + 63) / 64;
    bits_.reset(new (std::nothrow) uint64_t[words_]());
    return bits_ != nullptr;
  }
  void Add(size_t block) {
    bits_[block / 64] |= Bit(block);
    first_ = std::min(first_, block / 64);
    ++count_;
  }
  bool Has(size_t block) const {
    return block / 64 < words_ && (bits_[block / 64] & Bit(block)) != 0;
  }
  // False: the block is not free.
  bool Remove(size_t block) {
    if (!Has(block)) return false;
    bits_[block / 64] &= ~Bit(block);
    --count_;
    return true;
  }
  size_t count() const { return count_; }
  // The first of `run` free blocks that follow each other; kNone if there are none. The blocks at
  // the beginning are used first, so that regions become empty at their end.
  size_t Find(size_t run) {
    if (count_ < run) return kNone;
    while (bits_[first_] == 0) ++first_;
    size_t begin = first_ * 64 + static_cast<size_t>(std::countr_zero(bits_[first_]));
    for (size_t end = begin; end < words_ * 64; ++end) {
      if (!Has(end)) {
        begin = end + 1;
      } else if (end + 1 - begin == run) {
        return begin;
      }
    }
    return kNone;
  }

 private:
  static uint64_t Bit(size_t block) { return uint64_t{1} << (block % 64); }

  std::unique_ptr<uint64_t[]> bits_;
  size_t words_ = 0;
  size_t first_ = 0;  // all words before it are 0
  size_t count_ = 0;
};

struct PageArena::Region {
  bool Holds(const char* block) const { return block >= begin && block < begin + bytes; }

  Regions next;
  void* mapping = nullptr;
  size_t mapped = 0;
  char* begin = nullptr;  // the part of the mapping that is cut into blocks
  size_t bytes = 0;
  size_t used = 0;  // bytes in blocks
  // Small: by level. Huge: free[0] has the huge pages.
  FreeBlocks free[kTopLevel + 1];
};

PageArena::PageArena(MemoryBudget* budget) : budget_(budget) {}

PageArena::~PageArena() {
  TANDEM_CHECK(used_ == 0 && resident_ == 0);
  for (Regions* const regions : {&small_, &huge_}) {
    while (*regions != nullptr) {  // no block was taken, or munmap failed
      munmap((*regions)->mapping, (*regions)->mapped);
      *regions = std::move((*regions)->next);
    }
  }
}

size_t PageArena::BlockBytes(Pages pages, size_t bytes) {
  if (pages == Pages::kHuge) return WholePages(pages, bytes);
  TANDEM_CHECK(bytes > 0 && bytes <= kMaxSmall);
  return std::max(kMinBlock, std::bit_ceil(bytes));
}

absl::StatusOr<char*> PageArena::Take(Pages pages, size_t bytes) {
  const size_t size = BlockBytes(pages, bytes);
  TANDEM_ASSIGN_OR_RETURN(char* const block, pages == Pages::kSmall
                                                 ? TakeSmall(std::countr_zero(size / kMinBlock))
                                                 : TakeHuge(size / kHugePage));
  used_ += size;
  return block;
}

// Takes the smallest free block that is large enough, in the oldest region that has one, and halves
// it until it has the right size.
absl::StatusOr<char*> PageArena::TakeSmall(int level) {
  Region* region = nullptr;
  int found = level;
  for (;; ++found) {
    for (Region* r = small_.get(); r != nullptr; r = r->next.get()) {
      if (r->free[found].count() > 0) region = r;
    }
    if (region != nullptr || found == kTopLevel) break;
  }
  if (region == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(region, AddRegion(Pages::kSmall, kMaxSmall));
  }
  if (level < kPageLevel && found >= kPageLevel) TANDEM_RETURN_IF_ERROR(Count(kPage));
  size_t block = region->free[found].Find(1);
  region->free[found].Remove(block);
  for (int l = found; l > level; --l) {
    block *= 2;
    region->free[l - 1].Add(block + 1);
  }
  const size_t bytes = kMinBlock << level;
  region->used += bytes;
  char* const at = region->begin + block * bytes;
  if (level < kPageLevel) std::memset(at, 0, bytes);  // others have used the page
  return at;
}

absl::StatusOr<char*> PageArena::TakeHuge(size_t count) {
  Region* region = huge_.get();
  size_t first = kNone;
  for (; region != nullptr; region = region->next.get()) {
    first = region->free[0].Find(count);
    if (first != kNone) break;
  }
  if (region == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(region, AddRegion(Pages::kHuge, count * kHugePage));
    first = 0;
  }
  for (size_t page = first; page < first + count; ++page) region->free[0].Remove(page);
  region->used += count * kHugePage;
  return region->begin + first * kHugePage;
}

void PageArena::Give(Pages pages, char* block, size_t bytes) {
  const size_t size = BlockBytes(pages, bytes);
  Regions* const regions = pages == Pages::kSmall ? &small_ : &huge_;
  Region* region = regions->get();
  while (region != nullptr && !region->Holds(block)) region = region->next.get();
  TANDEM_CHECK(region != nullptr && region->used >= size);
  used_ -= size;
  region->used -= size;
  const size_t offset = static_cast<size_t>(block - region->begin);
  if (pages == Pages::kHuge) {
    for (size_t at = 0; at < size; at += kHugePage) region->free[0].Add((offset + at) / kHugePage);
  } else {
    size_t number = offset / size;
    int level = std::countr_zero(size / kMinBlock);
    for (; level < kTopLevel && region->free[level].Remove(number ^ 1); ++level) {
      number /= 2;  // a block and its buddy make a block of the next level
      if (level + 1 == kPageLevel) Discard(region->begin + number * kPage, kPage);
    }
    region->free[level].Add(number);
  }
  if (region->used == 0) DropRegion(regions, region);
}

absl::Status PageArena::Count(size_t bytes, size_t soon_free) {
  soon_free = std::min({soon_free, bytes, resident_ - twice_});
  if (budget_ != nullptr && !budget_->TryTake(bytes - soon_free)) {
    return MemoryFullError(absl::StrCat("the rows of this shard take ", resident_,
                                        " bytes and need ", bytes, " more: the server uses ",
                                        budget_->used(), " of ", budget_->limit(), " bytes"));
  }
  resident_ += bytes;
  twice_ += soon_free;
  return absl::OkStatus();
}

// The system refuses to take back locked memory (mlockall). The pages must read as zero, so the
// arena clears them.
void PageArena::Discard(char* at, size_t bytes) {
  if (bytes == 0) return;
  if (madvise(at, bytes, MADV_DONTNEED) != 0) std::memset(at, 0, bytes);
  TANDEM_CHECK(resident_ >= bytes);
  resident_ -= bytes;
  const size_t twice = std::min(twice_, bytes);
  twice_ -= twice;
  if (budget_ != nullptr) budget_->Give(bytes - twice);
}

// A region has all blocks free. Huge pages begin at multiples of their size, so their mapping is
// one page longer. The rest of that page stays mapped: to unmap it would make more mappings.
// Regions of small blocks refuse huge pages, which would fill memory that no block counts.
absl::StatusOr<PageArena::Region*> PageArena::AddRegion(Pages pages, size_t least) {
  const bool huge = pages == Pages::kHuge;
  const size_t unit = huge ? kHugePage : kMaxSmall;
  const size_t extra = huge ? kHugePage : 0;
  size_t bytes = RoundUp(std::clamp(reserved_ / 4, kMinRegion, kMaxRegion), unit);
  bytes = std::max(bytes, least);
  void* mapping = MAP_FAILED;
  for (;;) {
    mapping = mmap(nullptr, bytes + extra, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping != MAP_FAILED) break;
    if (bytes == least) return NoMemory(bytes + extra, std::strerror(errno));
    bytes = std::max(least, RoundUp(bytes / 2, unit));
  }
  Regions region(new (std::nothrow) Region);
  bool complete = region != nullptr;
  const int last = huge ? 0 : kTopLevel;
  for (int level = 0; complete && level <= last; ++level) {
    complete = region->free[level].Init(bytes / (huge ? kHugePage : kMinBlock << level));
  }
  if (!complete) {
    munmap(mapping, bytes + extra);
    return NoMemory(bytes, "no memory for the list of free blocks");
  }
  // A hint: without it, only speed or the exactness of resident() differs.
  madvise(mapping, bytes + extra, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  region->mapping = mapping;
  region->mapped = bytes + extra;
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  region->begin = static_cast<char*>(mapping) + (huge ? RoundUp(address, kHugePage) - address : 0);
  region->bytes = bytes;
  for (size_t block = 0; block < bytes / unit; ++block) region->free[last].Add(block);
  reserved_ += region->mapped;
  Regions* const regions = huge ? &huge_ : &small_;
  region->next = std::move(*regions);
  *regions = std::move(region);
  return regions->get();
}

// If the system refuses to unmap it, the region stays, with all blocks free.
void PageArena::DropRegion(Regions* regions, Region* region) {
  if (munmap(region->mapping, region->mapped) != 0) return;
  reserved_ -= region->mapped;
  Regions* link = regions;
  while (link->get() != region) link = &(*link)->next;
  *link = std::move(region->next);
}

absl::Status PageArena::NoMemory(size_t bytes, const char* why) const {
  return absl::ResourceExhaustedError(absl::StrCat("the rows of this shard take ", resident_,
                                                   " bytes and need ", bytes, " more: ", why));
}

}  // namespace tandem::server
