#include "policies/order/pull_sequence.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tandem::policies {

PullSequence::PullSequence(int workers, int reads)
    : reads_(static_cast<size_t>(reads)), places_(static_cast<size_t>(workers) * reads_) {}

PullSequence::Read& PullSequence::At(int rank, int64_t step) {
  return places_[static_cast<size_t>(rank) * reads_ + static_cast<size_t>(step) % reads_];
}

void PullSequence::OnRead(int rank, int64_t step) {
  Read& read = At(rank, step);
  if (read.step >= step) return;
  if (read.step < 0) ++in_use_;
  read = {step, next_++};
}

int64_t PullSequence::Take(int rank, int64_t step) {
  Read& read = At(rank, step);
  if (read.step != step) return next_++;
  read.step = -1;
  --in_use_;
  return read.number;
}

void PullSequence::Forget(int rank) {
  for (size_t i = 0; i < reads_; ++i) {
    Read& read = places_[static_cast<size_t>(rank) * reads_ + i];
    if (read.step >= 0) --in_use_;
    read.step = -1;
  }
}

// While no worker has data, each push restarts the numbers. Usually all places are free then, and
// the call does not look at them.
void PullSequence::Restart(int64_t next) {
  if (in_use_ > 0) {
    for (Read& read : places_) read.step = -1;
  }
  in_use_ = 0;
  next_ = next;
}

size_t PullSequence::EncodedBytes() const { return sizeof next_ + places_.size() * sizeof(Read); }

void PullSequence::Encode(std::string* out) const {
  out->append(reinterpret_cast<const char*>(&next_), sizeof next_);
  out->append(reinterpret_cast<const char*>(places_.data()), places_.size() * sizeof(Read));
}

void PullSequence::Decode(absl::string_view bytes) {
  TANDEM_CHECK(bytes.size() == EncodedBytes());
  std::memcpy(&next_, bytes.data(), sizeof next_);
  std::memcpy(places_.data(), bytes.data() + sizeof next_, places_.size() * sizeof(Read));
  in_use_ = static_cast<size_t>(std::count_if(places_.begin(), places_.end(),
                                              [](const Read& read) { return read.step >= 0; }));
}

}  // namespace tandem::policies
