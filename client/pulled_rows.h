// PulledRows holds the rows of one table in the frames that brought them, so that rows are not
// copied between the network and their use.
//
// Thread safety: none of its own. A read writes the object until the read is done; afterwards any
// thread may read it. Frames hold memory of the transport, so call Clear() when the rows are no
// longer read.
#ifndef TANDEM_CLIENT_PULLED_ROWS_H_
#define TANDEM_CLIENT_PULLED_ROWS_H_

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "base/buffer.h"

namespace tandem::client {

class PulledRows {
 public:
  // at()[i] is the row of key i of the read: `dim` floats, aligned as floats. Empty unless the read
  // has ended well. Valid until the next read into this object, Clear() or its destruction.
  absl::Span<const float* const> at() const { return {at_.data(), keys_}; }

  void Clear() {
    keys_ = 0;
    frames_.clear();
  }

  // For the code that fills the object, after Clear(). Keep() keeps the memory of rows alive, as
  // frames arrive. Places() returns at the end the array with the place of the row of each key.
  void Keep(const Buffer& values) {
    if (frames_.empty() || frames_.back().data() != values.data()) frames_.push_back(values);
  }
  const float** Places(size_t keys) {
    if (at_.size() < keys) at_.resize(keys);  // never shrinks: no initialisation again
    keys_ = keys;
    return at_.data();
  }

 private:
  std::vector<const float*> at_;
  size_t keys_ = 0;
  std::vector<Buffer> frames_;
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_PULLED_ROWS_H_
