// Zeroed memory that grows in place or by moving its pages, never by copying a large block: the
// rows and the index of a range. Pages nobody has written cost nothing, so capacity may run ahead
// of use. From kHugeFrom bytes on it is aligned to huge pages and asks for them.
//
// Thread safety: none needed; it belongs to one range.
#ifndef TANDEM_SERVER_GROWABLE_MAPPING_H_
#define TANDEM_SERVER_GROWABLE_MAPPING_H_

#include <cstddef>
#include <utility>

namespace tandem::server {

class GrowableMapping {
 public:
  static constexpr size_t kPage = size_t{4} << 10;
  static constexpr size_t kHugePage = size_t{2} << 20;
  // Smaller blocks stay on small pages: a process has hundreds of ranges, most of them small.
  static constexpr size_t kHugeFrom = 2 * kHugePage;

  GrowableMapping() = default;
  ~GrowableMapping();
  GrowableMapping(GrowableMapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}
  GrowableMapping& operator=(GrowableMapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }

  // Makes at least `bytes` usable. What is there stays, what is new reads as zero; data() may
  // change. Throws std::bad_alloc, as operator new does, when the system has no addresses or
  // mappings left: the range cannot be used any more, and the server must end.
  void Reserve(size_t bytes);

  // Gives the pages that lie wholly inside [from, to) back; they read as zero again.
  void Discard(size_t from, size_t to);

  void* data() const { return data_; }
  size_t capacity() const { return capacity_; }  // bytes

  // Memory taken when the first `used` bytes have been written.
  size_t ResidentBytes(size_t used) const;

 private:
  void* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_GROWABLE_MAPPING_H_
