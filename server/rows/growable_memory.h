// Zeroed memory of a range, in an arena. It holds the rows or the index of the range, and grows.
//
// Memory of at most PageArena::kMaxSmall bytes is one small block. It grows page by page within
// its block, and then moves to a block twice as large. Larger memory consists of segments of huge
// pages, which never move. It grows by further segments, so it copies nothing.
//
// Offset o is at address table()[o / segment_bytes] + o. For a small block all entries are the
// same.
//
// Thread safety: none needed; it belongs to one range.
#ifndef TANDEM_SERVER_ROWS_GROWABLE_MEMORY_H_
#define TANDEM_SERVER_ROWS_GROWABLE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "server/rows/page_arena.h"

namespace tandem::server {

class GrowableMemory {
 public:
  // `segment_bytes`: no item crosses a multiple of it. A segment takes whole huge pages, and
  // `segment_bytes` is at most 1/64 less than these. `arena` outlives the memory.
  explicit GrowableMemory(PageArena* arena, size_t segment_bytes = PageArena::kHugePage)
      : arena_(arena), segment_bytes_(segment_bytes) {}
  ~GrowableMemory() { Free(); }
  GrowableMemory(GrowableMemory&& other) noexcept
      : GrowableMemory(other.arena_, other.segment_bytes_) {
    Swap(&other);
  }
  GrowableMemory& operator=(GrowableMemory&& other) noexcept {
    Swap(&other);
    return *this;
  }

  // Makes at least `bytes` usable. Keeps the contents; new memory reads as zero; table() and the
  // addresses in it may change. `soon_free`: as in PageArena::Count. RESOURCE_EXHAUSTED: the
  // contents and usable() have not changed.
  absl::Status Reserve(size_t bytes, size_t soon_free = 0);

  // Gives back the pages of offsets below `end`, which nobody uses any more. Requires: the segments
  // consist of whole huge pages, and `end` is a multiple of segment_bytes, or usable() or more.
  void Discard(size_t end);

  PageArena* arena() const { return arena_; }
  const uintptr_t* table() const { return table_.get(); }
  size_t usable() const { return usable_; }  // bytes
  // The most that it takes: whole pages, as PageArena counts them, or a block smaller than a page.
  size_t resident() const;

 private:
  char* At(size_t offset) const {
    return reinterpret_cast<char*>(table_[offset / segment_bytes_] + offset);
  }
  size_t SegmentBlock() const {
    return PageArena::WholePages(PageArena::Pages::kHuge, segment_bytes_);
  }
  size_t PagesOf(size_t usable) const;
  absl::Status MakeTable(size_t entries);
  absl::Status TakeBlock(size_t bytes, size_t soon_free);
  absl::Status AddSegments(size_t bytes, size_t soon_free);
  void Swap(GrowableMemory* other);
  void Free();

  PageArena* arena_;
  size_t segment_bytes_;
  std::unique_ptr<uintptr_t[]> table_;
  size_t entries_ = 0;      // of the table
  size_t block_bytes_ = 0;  // of the small block; 0: none
  size_t segments_ = 0;     // 0: a small block, or nothing
  size_t usable_ = 0;
  size_t discarded_ = 0;  // offsets below it have been discarded
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROWS_GROWABLE_MEMORY_H_
