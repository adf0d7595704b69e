#include "server/rows/growable_memory.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem::server {

using Pages = PageArena::Pages;

absl::Status GrowableMemory::Reserve(size_t bytes, size_t soon_free) {
  if (bytes <= usable_) return absl::OkStatus();
  if (segments_ > 0) return AddSegments(bytes, soon_free);
  if (bytes <= block_bytes_) {
    const size_t usable = PageArena::WholePages(Pages::kSmall, bytes);
    TANDEM_RETURN_IF_ERROR(arena_->Count(usable - usable_, soon_free));
    usable_ = usable;
    return absl::OkStatus();
  }
  GrowableMemory larger(arena_, segment_bytes_);
  TANDEM_RETURN_IF_ERROR(bytes <= PageArena::kMaxSmall ? larger.TakeBlock(bytes, soon_free)
                                                       : larger.AddSegments(bytes, soon_free));
  const size_t step = larger.segments_ > 0 ? segment_bytes_ : PageArena::kMaxSmall;
  for (size_t at = 0; at < usable_; at += step) {
    std::memcpy(larger.At(at), At(at), std::min(step, usable_ - at));
  }
  Swap(&larger);
  return absl::OkStatus();
}

// A block smaller than a page is usable as a whole, because the arena counts its page.
absl::Status GrowableMemory::TakeBlock(size_t bytes, size_t soon_free) {
  TANDEM_RETURN_IF_ERROR(MakeTable(PageArena::kMaxSmall / segment_bytes_ + 1));
  TANDEM_ASSIGN_OR_RETURN(const char* const block, arena_->Take(Pages::kSmall, bytes));
  std::fill_n(table_.get(), entries_, reinterpret_cast<uintptr_t>(block));
  block_bytes_ = PageArena::BlockBytes(Pages::kSmall, bytes);
  size_t usable = block_bytes_;
  if (block_bytes_ >= PageArena::kPage) {
    usable = PageArena::WholePages(Pages::kSmall, bytes);
    TANDEM_RETURN_IF_ERROR(arena_->Count(usable, soon_free));
  }
  usable_ = usable;
  return absl::OkStatus();
}

// If the arena refuses to count the pages, the new segments stay for the next call. Until then they
// cost only address space.
absl::Status GrowableMemory::AddSegments(size_t bytes, size_t soon_free) {
  const size_t last = (bytes - 1) / segment_bytes_;
  const size_t in_last = PageArena::WholePages(Pages::kHuge, bytes - last * segment_bytes_);
  const size_t usable = last * segment_bytes_ + std::min(in_last, segment_bytes_);
  TANDEM_RETURN_IF_ERROR(MakeTable(last + 1));
  while (segments_ <= last) {
    TANDEM_ASSIGN_OR_RETURN(const char* const block, arena_->Take(Pages::kHuge, SegmentBlock()));
    table_[segments_] = reinterpret_cast<uintptr_t>(block) - segments_ * segment_bytes_;
    ++segments_;
  }
  TANDEM_RETURN_IF_ERROR(arena_->Count(PagesOf(usable) - PagesOf(usable_), soon_free));
  usable_ = usable;
  return absl::OkStatus();
}

absl::Status GrowableMemory::MakeTable(size_t entries) {
  if (entries <= entries_) return absl::OkStatus();
  entries = std::max(entries, 2 * entries_);
  std::unique_ptr<uintptr_t[]> table(new (std::nothrow) uintptr_t[entries]);
  if (table == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a list of ", entries, " segments"));
  }
  std::copy_n(table_.get(), segments_, table.get());
  table_ = std::move(table);
  entries_ = entries;
  return absl::OkStatus();
}

// The bytes of the pages that the first `usable` bytes are on.
size_t GrowableMemory::PagesOf(size_t usable) const {
  if (segments_ == 0) return usable;
  return usable / segment_bytes_ * SegmentBlock() +
         PageArena::WholePages(Pages::kHuge, usable % segment_bytes_);
}

size_t GrowableMemory::resident() const { return PagesOf(usable_) - PagesOf(discarded_); }

void GrowableMemory::Discard(size_t end) {
  end = std::min(end, usable_);
  if (segments_ == 0 && block_bytes_ >= PageArena::kPage) {
    arena_->Discard(At(discarded_), end - discarded_);
  }
  if (segments_ > 0) {
    for (size_t at = discarded_; at < end; at += segment_bytes_) {
      arena_->Discard(At(at), PagesOf(std::min(end, at + segment_bytes_)) - PagesOf(at));
    }
  }
  discarded_ = end;
}

void GrowableMemory::Free() {
  if (discarded_ < usable_) Discard(usable_);
  for (size_t i = 0; i < segments_; ++i) {
    arena_->Give(Pages::kHuge, At(i * segment_bytes_), SegmentBlock());
  }
  if (block_bytes_ > 0) arena_->Give(Pages::kSmall, At(0), block_bytes_);
}

void GrowableMemory::Swap(GrowableMemory* other) {
  std::swap(arena_, other->arena_);
  std::swap(segment_bytes_, other->segment_bytes_);
  std::swap(table_, other->table_);
  std::swap(entries_, other->entries_);
  std::swap(block_bytes_, other->block_bytes_);
  std::swap(segments_, other->segments_);
  std::swap(usable_, other->usable_);
  std::swap(discarded_, other->discarded_);
}

}  // namespace tandem::server
