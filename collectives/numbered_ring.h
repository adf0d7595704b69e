// NumberedRing: the last values of a numbered sequence, in a fixed array. The value of number n is
// at index n modulo the size.
//
// Thread safety: none.
#ifndef TANDEM_COLLECTIVES_NUMBERED_RING_H_
#define TANDEM_COLLECTIVES_NUMBERED_RING_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tandem::collectives {

template <typename T>
class NumberedRing {
 public:
  explicit NumberedRing(size_t size) : values_(size) {}  // at least 1

  size_t size() const { return values_.size(); }
  T& operator[](uint64_t number) { return values_[number % values_.size()]; }
  const T& operator[](uint64_t number) const { return values_[number % values_.size()]; }

  // Doubles the size. The values of the numbers [first, end) are kept.
  void Grow(uint64_t first, uint64_t end) {
    NumberedRing grown(2 * size());
    for (uint64_t n = first; n < end; ++n) grown[n] = std::move((*this)[n]);
    values_ = std::move(grown.values_);
  }

 private:
  std::vector<T> values_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_NUMBERED_RING_H_
