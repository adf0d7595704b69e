#include "base/clock.h"

#include <chrono>
#include <utility>

namespace tandem {
namespace {

constexpr absl::Duration kLongestTick = absl::Seconds(2);

// Wraps a held absl::Mutex for the standard library's waits.
struct Unlockable {
  void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex->Lock(); }
  void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex->Unlock(); }

  absl::Mutex* mutex;
};

}  // namespace

absl::Time MonotonicNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

absl::Duration PauseWatch::Tick(absl::Time now) {
  const absl::Duration gap = now - std::exchange(last_, now);
  return gap > kLongestTick ? gap : absl::ZeroDuration();
}

void CondVar::Wait(absl::Mutex* mutex) {
  Unlockable lock{mutex};
  changed_.wait(lock);
}

bool CondVar::WaitUntil(absl::Mutex* mutex, absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) {
    Wait(mutex);
    return false;
  }
  Unlockable lock{mutex};
  const std::chrono::nanoseconds since = absl::ToChronoNanoseconds(deadline - absl::UnixEpoch());
  changed_.wait_until(lock, std::chrono::steady_clock::time_point(since));
  return MonotonicNow() >= deadline;
}

}  // namespace tandem
