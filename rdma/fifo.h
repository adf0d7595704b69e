// Fifo: a queue in one piece of memory that grows when needed and is then reused. A data path that
// has reached its size therefore allocates nothing (std::deque allocates as it moves).
//
// Thread safety: none.
#ifndef TANDEM_RDMA_FIFO_H_
#define TANDEM_RDMA_FIFO_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"

namespace tandem::rdma {

template <typename T>
class Fifo {
 public:
  // Makes room for `capacity` items, so that the queue grows only beyond that.
  void Reserve(size_t capacity) {
    while (items_.size() < capacity) Grow();
  }
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  // The number of the front item, counted over everything ever pushed; its successors follow.
  uint64_t front_number() const { return popped_; }
  uint64_t next_number() const { return popped_ + size_; }

  T& front() { return At(popped_); }
  // The item with this number, which must still be in the queue.
  T& At(uint64_t number) {
    TANDEM_CHECK(number - popped_ < size_);
    return items_[Place(number - popped_)];
  }
  T& Push(T item) {
    if (size_ == items_.size()) Grow();
    T& place = items_[Place(size_++)];
    place = std::move(item);
    return place;
  }
  T Pop() {
    TANDEM_CHECK(size_ > 0);
    T item = std::exchange(items_[head_], T());
    head_ = Place(1);
    --size_;
    ++popped_;
    return item;
  }

 private:
  size_t Place(size_t i) const { return (head_ + i) & (items_.size() - 1); }
  void Grow() {
    std::vector<T> larger(items_.empty() ? 16 : 2 * items_.size());
    for (size_t i = 0; i < size_; ++i) {
      larger[i] = std::move(items_[Place(i)]);
    }
    items_ = std::move(larger);
    head_ = 0;
  }

  std::vector<T> items_;  // its size is a power of two
  size_t head_ = 0, size_ = 0;
  uint64_t popped_ = 0;
};

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_FIFO_H_
