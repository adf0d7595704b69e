// KeyedSums adds up gradients by key: those of the updates of a fold, or of a worker. Contributions
// to a key are added in the order of the calls, starting from a copy of the first one
// (optim/fold.h). Keys are in the order in which they first occur.
//
// Thread safety: none needed; scratch memory of a shard. Reuses its memory.
#ifndef TANDEM_SERVER_KEYED_SUMS_H_
#define TANDEM_SERVER_KEYED_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace tandem::server {

class KeyedSums {
 public:
  // Begins sums of at most `most` keys, each of `dim` floats. `reads`: keeps the first read of each
  // key.
  void Start(size_t most, size_t dim, bool reads);
  // values: [keys, dim]. `read`: the version at which the keys were read. Requires: keys unique.
  void Add(absl::Span<const uint64_t> keys, const float* values, int64_t read);

  const std::vector<uint64_t>& keys() const { return keys_; }
  absl::Span<const float> sums() const {  // [keys, dim]
    return absl::MakeConstSpan(sums_).first(keys_.size() * dim_);
  }
  const std::vector<int64_t>& reads() const { return reads_; }  // by key; empty unless kept

 private:
  size_t dim_ = 0;
  bool keeps_reads_ = false;
  std::vector<uint64_t> keys_;
  std::vector<float> sums_;
  std::vector<int64_t> reads_;
  std::vector<uint32_t> slots_;  // hash table with open addressing: indices in keys_
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_KEYED_SUMS_H_
