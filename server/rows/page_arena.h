// The memory of the rows of a shard. The arena reserves address space in a few large regions and
// cuts them into blocks, so a process has few mappings, whatever the number of its ranges. (The
// kernel allows vm.max_map_count mappings, usually 65,530.)
//
// There are two kinds of blocks. A small block has a power of two of bytes, at most kMaxSmall, and
// is on small pages. A huge block consists of whole huge pages and asks for them. Each
// region has blocks of one kind. The larger the arena, the larger a new region. The arena unmaps a
// region when its last block comes back.
//
// A new block reads as zero. A page costs memory only once it has been written. The owner of a
// block therefore counts the pages that it is about to write (Count). It gives pages back with
// Discard, before it gives the block back. So pages of free blocks are never in memory, and three
// counts are exact at any time, at the cost of an addition:
//   reserved()  bytes of address space
//   used()      bytes of the blocks that owners have
//   resident()  bytes of the pages that owners have counted: the most that rows take in memory.
//               A counted page that is not written yet takes no memory.
// A block smaller than a page shares a page with others. The arena counts that page.
//
// Errors: RESOURCE_EXHAUSTED if the system refuses address space or the budget refuses the pages
// (then also base/memory_full.h). used() and resident() are then unchanged. The arena neither
// aborts nor throws.
//
// Thread safety: none needed; it belongs to one shard's thread.
#ifndef TANDEM_SERVER_ROWS_PAGE_ARENA_H_
#define TANDEM_SERVER_ROWS_PAGE_ARENA_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/rows/memory_budget.h"

namespace tandem::server {

class PageArena {
 public:
  static constexpr size_t kPage = size_t{4} << 10;
  static constexpr size_t kHugePage = size_t{2} << 20;
  static constexpr size_t kMinBlock = 512;
  // A process may have 100,000 ranges, most of them small: those stay on small pages.
  static constexpr size_t kMaxSmall = 2 * kHugePage;

  enum class Pages { kSmall, kHuge };

  // `budget`: counts resident(), and outlives the arena; null: no limit.
  explicit PageArena(MemoryBudget* budget = nullptr);
  // Requires: all blocks have been given back.
  ~PageArena();
  PageArena(const PageArena&) = delete;
  PageArena& operator=(const PageArena&) = delete;

  // `bytes`, rounded up to whole pages.
  static constexpr size_t WholePages(Pages pages, size_t bytes) {
    const size_t page = pages == Pages::kSmall ? kPage : kHugePage;
    return (bytes + page - 1) / page * page;
  }
  // The size of a block for `bytes` bytes. Requires: bytes > 0; at most kMaxSmall if kSmall.
  static size_t BlockBytes(Pages pages, size_t bytes);

  // Returns a block of BlockBytes(pages, bytes), aligned to its pages (a small one below kPage to
  // its own size).
  absl::StatusOr<char*> Take(Pages pages, size_t bytes);
  // `bytes`: as in Take. Requires: the owner has discarded the pages that it has counted.
  void Give(Pages pages, char* block, size_t bytes);

  // Counts `bytes` of pages that the owner will write. `soon_free`: the owner will discard this
  // many bytes before it has written as many new ones, so the budget counts only one of the two.
  absl::Status Count(size_t bytes, size_t soon_free = 0);
  // Gives whole pages that have been counted back to the system. They read as zero afterwards.
  void Discard(char* at, size_t bytes);

  size_t reserved() const { return reserved_; }
  size_t used() const { return used_; }
  size_t resident() const { return resident_; }

 private:
  class FreeBlocks;
  struct Region;
  using Regions = std::unique_ptr<Region>;  // a list, the newest first

  absl::StatusOr<char*> TakeSmall(int level);
  absl::StatusOr<char*> TakeHuge(size_t count);
  absl::StatusOr<Region*> AddRegion(Pages pages, size_t least);
  void DropRegion(Regions* regions, Region* region);
  absl::Status NoMemory(size_t bytes, const char* why) const;

  MemoryBudget* const budget_;
  Regions small_, huge_;
  size_t reserved_ = 0, used_ = 0, resident_ = 0;
  size_t twice_ = 0;  // part of resident_ that the budget does not count (soon_free)
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROWS_PAGE_ARENA_H_
