// This folder, base/, has what everything else builds on: checks, statuses, files, clocks, hashes,
// buffers. Buffer is a reference-counted range of bytes. Transports hand buffers out
// (Transport::Alloc, received parts) and get them back when the last reference is dropped. Cores
// pass them on without copying.
//
// Thread safety: references may be taken and dropped on any thread. Only the code that allocated
// the buffer writes its bytes, before the buffer is sent; afterwards they are only read.
#ifndef TANDEM_BASE_BUFFER_H_
#define TANDEM_BASE_BUFFER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/types/span.h"
#include "base/check.h"

namespace tandem {

// The owner of the bytes that buffers point to. Its subclass decides what happens when the last
// reference is dropped: free it, return it to a pool, close a message.
class BufferBlock {
 public:
  virtual ~BufferBlock() = default;

  void Ref() { references_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) Recycle();
  }

 protected:
  // Called once, by the thread that dropped the last reference.
  virtual void Recycle() = 0;

 private:
  std::atomic<int> references_{0};
};

class Buffer {
 public:
  Buffer() = default;
  // Takes a reference on `block`, which must keep the bytes [data, data + size) alive.
  Buffer(BufferBlock* block, uint8_t* data, size_t size) : block_(block), data_(data), size_(size) {
    if (block_ != nullptr) block_->Ref();
  }
  Buffer(const Buffer& other) : Buffer(other.block_, other.data_, other.size_) {}
  Buffer(Buffer&& other) noexcept
      : block_(std::exchange(other.block_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer other) noexcept {
    std::swap(block_, other.block_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() {
    if (block_ != nullptr) block_->Unref();
  }

  const uint8_t* data() const { return data_; }
  uint8_t* mutable_data() { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // The bytes [offset, offset + size) of this buffer. The result shares the block.
  Buffer Slice(size_t offset, size_t size) const {
    TANDEM_CHECK(offset <= size_ && size <= size_ - offset);
    return Buffer(block_, data_ + offset, size);
  }

  // The bytes as numbers. Requires: the size is a multiple of sizeof(T), and the data is aligned
  // for T. Buffers from transports and from HeapBufferSource are aligned to at least 8 bytes.
  template <typename T>
  absl::Span<const T> As() const {
    return {reinterpret_cast<const T*>(data_), size_ / sizeof(T)};
  }
  template <typename T>
  absl::Span<T> MutableAs() {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }

 private:
  BufferBlock* block_ = nullptr;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Gives cores the buffers that they send: a transport in production, the heap in the simulator.
class BufferSource {
 public:
  virtual ~BufferSource() = default;
  // Returns uninitialised bytes, aligned to 64. Never fails for sizes within the frame bounds.
  virtual Buffer Alloc(size_t bytes) = 0;
};

// Gives buffers from the heap, and keeps freed ones for reuse by size class.
// Thread safety: any thread.
class HeapBufferSource final : public BufferSource {
 public:
  HeapBufferSource();
  ~HeapBufferSource() override;
  HeapBufferSource(const HeapBufferSource&) = delete;
  HeapBufferSource& operator=(const HeapBufferSource&) = delete;
  Buffer Alloc(size_t bytes) override;

 private:
  class Pool;  // outlives the source while it has buffers
  Pool* pool_;
};

// Returns a buffer from `source` with a copy of `bytes`; for tests and small parts.
Buffer CopyToBuffer(BufferSource& source, absl::Span<const uint8_t> bytes);

}  // namespace tandem

#endif  // TANDEM_BASE_BUFFER_H_
