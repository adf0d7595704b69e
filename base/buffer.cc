#include "base/buffer.h"

#include <bit>
#include <cstring>
#include <new>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace tandem {

// Free blocks by power of two. Blocks above kLargestKept go straight back to the heap, and a class
// keeps at most kKeptPerClass blocks, so an idle pool stays small.
class HeapBufferSource::Pool {
 public:
  Buffer Take(size_t bytes) {
    const int size_class = ClassOf(bytes);
    Block* block = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      ++references_;
      if (!free_[size_class].empty()) {
        block = free_[size_class].back();
        free_[size_class].pop_back();
      }
    }
    if (block == nullptr) block = new Block(this, size_class);
    return Buffer(block, block->data(), bytes);
  }

  // The source and every block in use hold a reference. The last one to drop it frees everything.
  void Unref() {
    {
      absl::MutexLock lock(&mutex_);
      if (--references_ > 0) return;
    }
    delete this;
  }

 private:
  static constexpr int kClasses = 48;
  static constexpr size_t kLargestKept = size_t{64} << 20;
  static constexpr size_t kKeptPerClass = 64;
  static constexpr std::align_val_t kAlignment{64};

  class Block final : public BufferBlock {
   public:
    Block(Pool* pool, int size_class)
        : pool_(pool),
          size_class_(size_class),
          data_(static_cast<uint8_t*>(::operator new (size_t{1} << size_class, kAlignment))) {}
    ~Block() override { ::operator delete(data_, kAlignment); }
    uint8_t* data() const { return data_; }

   private:
    void Recycle() override { pool_->Give(this, size_class_); }
    Pool* const pool_;
    const int size_class_;
    uint8_t* const data_;
  };

  ~Pool() {
    for (auto& blocks : free_) {
      for (Block* block : blocks) delete block;
    }
  }

  static int ClassOf(size_t bytes) {
    return bytes <= 64 ? 6 : static_cast<int>(std::bit_width(bytes - 1));
  }

  void Give(Block* block, int size_class) {
    bool kept = false;
    {
      absl::MutexLock lock(&mutex_);
      if ((size_t{1} << size_class) <= kLargestKept && free_[size_class].size() < kKeptPerClass) {
        free_[size_class].push_back(block);
        kept = true;
      }
    }
    if (!kept) delete block;
    Unref();
  }

  absl::Mutex mutex_;
  int64_t references_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<Block*> free_[kClasses] ABSL_GUARDED_BY(mutex_);

  friend class HeapBufferSource;
};

HeapBufferSource::HeapBufferSource() : pool_(new Pool) {}
HeapBufferSource::~HeapBufferSource() { pool_->Unref(); }
Buffer HeapBufferSource::Alloc(size_t bytes) { return pool_->Take(bytes); }

Buffer CopyToBuffer(BufferSource& source, absl::Span<const uint8_t> bytes) {
  Buffer buffer = source.Alloc(bytes.size());
  if (!bytes.empty()) std::memcpy(buffer.mutable_data(), bytes.data(), bytes.size());
  return buffer;
}

}  // namespace tandem
