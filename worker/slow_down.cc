#include "worker/slow_down.h"

#include <algorithm>

namespace tandem::worker {
namespace {

constexpr absl::Duration kMoment = absl::Milliseconds(200);

}  // namespace

absl::Duration SlowDown::WaitOut(int64_t step, absl::Time begun) {
  const absl::Time computed = MonotonicNow(), until = begun + times_.Of(step);
  if (until <= computed) return absl::ZeroDuration();
  absl::MutexLock lock(&mutex_);
  for (absl::Time now = computed; !over_ && now < until; now = MonotonicNow()) {
    if (changed_.WaitUntil(&mutex_, std::min(until, now + kMoment))) ++moments_slept_;
  }
  return MonotonicNow() - computed;
}

void SlowDown::End() {
  absl::MutexLock lock(&mutex_);
  over_ = true;
  changed_.SignalAll();
}

}  // namespace tandem::worker
