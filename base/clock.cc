#include "base/clock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

namespace tandem {

absl::Time MonotonicNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

void CondVar::Wait(absl::Mutex* mutex) { WaitUntil(mutex, absl::InfiniteFuture()); }

bool CondVar::WaitUntil(absl::Mutex* mutex, absl::Time deadline) {
  timespec left = {};
  const bool bounded = deadline != absl::InfiniteFuture();
  if (bounded) {
    const absl::Duration wait = deadline - MonotonicNow();
    if (wait <= absl::ZeroDuration()) return true;
    left = absl::ToTimespec(wait);
  }
  // Whoever signals holds the mutex: after it is given up here, they count this thread. A signal
  // before the system call changes the number, and then the call does not wait.
  waiting_.fetch_add(1, std::memory_order_relaxed);
  const uint32_t signals = signals_.load(std::memory_order_relaxed);
  mutex->Unlock();
  // A timeout relative to now is one of the monotonic clock.
  syscall(SYS_futex, &signals_, FUTEX_WAIT_PRIVATE, signals, bounded ? &left : nullptr, nullptr, 0);
  mutex->Lock();
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  return bounded && MonotonicNow() >= deadline;
}

void CondVar::Notify(int threads) {
  if (waiting_.load(std::memory_order_relaxed) == 0) return;
  signals_.fetch_add(1, std::memory_order_relaxed);
  syscall(SYS_futex, &signals_, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

}  // namespace tandem
