#include "policies/clocks.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::policies {

Clocks::Clocks(int workers, int64_t beyond)
    : leaves_(std::bit_ceil(static_cast<size_t>(workers))),
      beyond_(beyond),
      least_(2 * leaves_, kInfiniteClock),
      workers_(static_cast<size_t>(workers)),
      live_(workers) {
  TANDEM_CHECK(workers > 0);
  std::fill_n(least_.begin() + static_cast<std::ptrdiff_t>(leaves_), workers, 0);
  for (size_t n = leaves_ - 1; n > 0; --n) least_[n] = std::min(least_[2 * n], least_[2 * n + 1]);
}

void Clocks::Set(int rank, int64_t admitted, bool finished) {
  Worker& worker = workers_[static_cast<size_t>(rank)];
  beyond_sum_ +=
      std::max<int64_t>(0, admitted - beyond_) - std::max<int64_t>(0, worker.admitted - beyond_);
  live_ += (worker.finished ? 1 : 0) - (finished ? 1 : 0);
  worker = {admitted, finished};
  size_t n = leaves_ + static_cast<size_t>(rank);
  least_[n] = finished ? kInfiniteClock : admitted;
  for (n /= 2; n > 0; n /= 2) {
    const int64_t least = std::min(least_[2 * n], least_[2 * n + 1]);
    if (least_[n] == least) return;
    least_[n] = least;
  }
}

// The first worker with the smallest clock, as RangeProgress::Slowest defines it; rank 0 if no
// worker has data.
int Clocks::Slowest() const {
  if (least_[1] == kInfiniteClock) return 0;
  size_t n = 1;
  while (n < leaves_) n = least_[2 * n] == least_[1] ? 2 * n : 2 * n + 1;
  return static_cast<int>(n - leaves_);
}

}  // namespace tandem::policies
