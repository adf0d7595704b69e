// Zeroed memory that grows in place or by moving its pages, never by copying a large block. It
// holds the rows and the index of a range. Pages that nobody has written cost nothing, so the
// capacity may exceed the use. A mapping of kHugeFrom bytes or more is aligned to huge pages and
// asks for them.
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

  // Makes at least `bytes` usable. Keeps the contents; new memory reads as zero; data() may change.
  // Throws std::bad_alloc, as operator new does, if the system has no addresses or mappings left.
  // The range cannot be used after that, and the server must end.
  void Reserve(size_t bytes);

  // Gives back the pages that are wholly inside [from, to). These pages read as zero afterwards.
  void Discard(size_t from, size_t to);

  void* data() const { return data_; }
  size_t capacity() const { return capacity_; }  // bytes

  // The memory in use after the first `used` bytes have been written.
  size_t ResidentBytes(size_t used) const;

 private:
  void* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_GROWABLE_MAPPING_H_
