#include "transport/shm_arena.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::transport {
namespace {
constexpr size_t kSmallestBlock = 8192;
// Bytes of the segments of a size class: the first one, and the largest one. Each segment is twice
// as large as the one before. A block larger than kLargestSegment gets a segment of its own.
constexpr size_t kFirstSegment = size_t{2} << 20;
constexpr size_t kLargestSegment = size_t{64} << 20;
constexpr int kClasses = 40;
}  // namespace

class ShmArena::Pool {
 public:
  absl::StatusOr<Buffer> Take(size_t bytes) {
    const int size_class = ClassOf(bytes);
    absl::MutexLock lock(&mutex_);
    std::vector<Block*>& free = free_[size_class];
    if (free.empty()) TANDEM_RETURN_IF_ERROR(Grow(size_class));
    Block* const block = free.back();
    free.pop_back();
    ++references_;
    return Buffer(block, block->data(), bytes);
  }

  bool Find(absl::Span<const uint8_t> bytes, Place* place) const {
    absl::MutexLock lock(&mutex_);
    for (const Segment& segment : segments_) {
      const uint8_t* const begin = segment.memory.mapping.data();
      const size_t size = segment.memory.mapping.size();
      if (bytes.data() < begin || bytes.data() >= begin + size) continue;
      TANDEM_CHECK(bytes.size() <= size - static_cast<size_t>(bytes.data() - begin));
      *place = {segment.id, static_cast<uint64_t>(bytes.data() - begin), segment.passing};
      return true;
    }
    return false;
  }

  SegmentInfo Info(uint32_t id) const {
    absl::MutexLock lock(&mutex_);
    for (const Segment& segment : segments_) {
      if (segment.id == id) return {segment.memory.fd.get(), segment.memory.mapping.size()};
    }
    TANDEM_CHECK(false);
  }

  // The arena and every buffer hold a reference. The last one to drop it frees everything.
  void Unref() {
    {
      absl::MutexLock lock(&mutex_);
      if (--references_ > 0) return;
    }
    delete this;
  }

 private:
  class Block final : public BufferBlock {
   public:
    Block(Pool* pool, int size_class, uint32_t segment, uint8_t* data)
        : pool_(pool), size_class_(size_class), segment_(segment), data_(data) {}
    uint8_t* data() const { return data_; }
    int size_class() const { return size_class_; }
    uint32_t segment() const { return segment_; }

   private:
    void Recycle() override { pool_->Give(this); }
    Pool* const pool_;
    const int size_class_;
    const uint32_t segment_;
    uint8_t* const data_;
  };
  struct Segment {
    uint32_t id;
    bool passing;
    ReadOnlyMemory memory;
    std::vector<std::unique_ptr<Block>> blocks;
  };

  static int ClassOf(size_t bytes) {
    const int size_class = std::bit_width(std::max(bytes, kSmallestBlock) - 1);
    TANDEM_CHECK(size_class < kClasses);
    return size_class;
  }

  // Makes a segment of free blocks.
  absl::Status Grow(int size_class) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t block_bytes = size_t{1} << size_class;
    const size_t want = std::min(kLargestSegment, kFirstSegment << grown_[size_class]);
    const size_t bytes = std::max(block_bytes, want);
    TANDEM_ASSIGN_OR_RETURN(ReadOnlyMemory memory, CreateMemoryForReaders(bytes));
    grown_[size_class] = std::min(grown_[size_class] + 1, 8);
    Segment& segment = segments_.emplace_back();
    segment.id = next_segment_++;
    segment.passing = block_bytes > kLargestKept;
    segment.memory = std::move(memory);
    uint8_t* const data = segment.memory.mapping.data();
    // the first block is taken first
    for (size_t at = bytes; at >= block_bytes; at -= block_bytes) {
      segment.blocks.push_back(
          std::make_unique<Block>(this, size_class, segment.id, data + at - block_bytes));
      free_[size_class].push_back(segment.blocks.back().get());
    }
    return absl::OkStatus();
  }

  void Give(Block* block) {
    Segment gone;  // unmapped after the lock is released
    {
      absl::MutexLock lock(&mutex_);
      if ((size_t{1} << block->size_class()) <= kLargestKept) {
        free_[block->size_class()].push_back(block);
      } else {
        const auto at = std::find_if(segments_.begin(), segments_.end(),
                                     [&](const Segment& s) { return s.id == block->segment(); });
        gone = std::move(*at);
        segments_.erase(at);
      }
    }
    Unref();
  }

  mutable absl::Mutex mutex_;
  int64_t references_ ABSL_GUARDED_BY(mutex_) = 1;
  uint32_t next_segment_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<Segment> segments_ ABSL_GUARDED_BY(mutex_);
  std::vector<Block*> free_[kClasses] ABSL_GUARDED_BY(mutex_);
  int grown_[kClasses] ABSL_GUARDED_BY(mutex_) = {};
};

ShmArena::ShmArena() : pool_(new Pool) {}
ShmArena::~ShmArena() { pool_->Unref(); }

Buffer ShmArena::Alloc(size_t bytes) {
  if (bytes <= kInlineBytes) return heap_.Alloc(bytes);
  absl::StatusOr<Buffer> shared = pool_->Take(bytes);
  return shared.ok() ? *std::move(shared) : heap_.Alloc(bytes);
}

absl::StatusOr<Buffer> ShmArena::AllocShared(size_t bytes) { return pool_->Take(bytes); }

bool ShmArena::Find(absl::Span<const uint8_t> bytes, Place* place) const {
  return pool_->Find(bytes, place);
}

ShmArena::SegmentInfo ShmArena::Segment(uint32_t segment) const { return pool_->Info(segment); }

}  // namespace tandem::transport
