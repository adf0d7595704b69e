#include "worker/slow_down.h"

namespace tandem::worker {

absl::Duration SlowDown::WaitOut(int64_t step, absl::Time begun) {
  const absl::Time computed = MonotonicNow(), until = begun + times_.Of(step);
  if (until <= computed) return absl::ZeroDuration();
  absl::MutexLock lock(&mutex_);
  while (!over_ && !changed_.WaitUntil(&mutex_, until)) {
  }
  return MonotonicNow() - computed;
}

void SlowDown::End() {
  absl::MutexLock lock(&mutex_);
  over_ = true;
  changed_.SignalAll();
}

}  // namespace tandem::worker
