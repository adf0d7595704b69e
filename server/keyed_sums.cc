#include "server/keyed_sums.h"

#include <algorithm>
#include <bit>

#include "base/hash.h"
#include "optim/fold.h"

namespace tandem::server {
namespace {

constexpr uint32_t kNoSlot = ~uint32_t{0};

}  // namespace

void KeyedSums::Start(size_t most, size_t dim, bool reads) {
  dim_ = dim;
  keeps_reads_ = reads;
  slots_.assign(std::bit_ceil(2 * most), kNoSlot);
  keys_.clear();
  reads_.clear();
  sums_.resize(most * dim);
}

void KeyedSums::Add(absl::Span<const uint64_t> keys, const float* values, int64_t read) {
  const size_t slots = slots_.size();
  for (const uint64_t key : keys) {
    size_t at = Mix64(key) & (slots - 1);
    while (slots_[at] != kNoSlot && keys_[slots_[at]] != key) at = (at + 1) & (slots - 1);
    const size_t i = slots_[at] != kNoSlot ? slots_[at] : keys_.size();
    if (i == keys_.size()) {
      slots_[at] = static_cast<uint32_t>(i);
      keys_.push_back(key);
      std::copy_n(values, dim_, sums_.data() + i * dim_);
      if (keeps_reads_) reads_.push_back(read);
    } else {
      optim::FoldAdd(sums_.data() + i * dim_, values, dim_);
      if (keeps_reads_) reads_[i] = std::min(reads_[i], read);
    }
    values += dim_;
  }
}

}  // namespace tandem::server
