// Rows of one table that stay in the frames that brought them: nothing is copied between the
// network and their use.
//
// Thread safety: none of its own; a read writes it before it is done, and whoever reads it
// afterwards may be any thread. Frames hold memory of the transport: clear what is no longer read.
#ifndef TANDEM_CLIENT_PULLED_ROWS_H_
#define TANDEM_CLIENT_PULLED_ROWS_H_

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "base/buffer.h"

namespace tandem::client {

class PulledRows {
 public:
  // at()[i]: the row of the i-th key of the read, `dim` floats (aligned as floats). Empty unless
  // the read has ended well. Valid until the next read into this object, Clear() or its end.
  absl::Span<const float* const> at() const { return {at_.data(), keys_}; }

  void Clear() {
    keys_ = 0;
    frames_.clear();
  }

  // For who reads rows, after Clear(): what keeps rows alive, as they come; at the end where each
  // of `keys` is to be written.
  void Keep(const Buffer& values) {
    if (frames_.empty() || frames_.back().data() != values.data()) frames_.push_back(values);
  }
  const float** Places(size_t keys) {
    if (at_.size() < keys) at_.resize(keys);  // otherwise it stays: nothing to initialise again
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
