// The monotonic clock, which nobody can set, and waits that follow it.
//
// MonotonicNow() measures deadlines, heartbeats, silences and durations. absl::Now() is the time of
// day, which an administrator or a time server may set at any moment. The time of day only stamps
// what people or other hosts read (tests/unit/tidy_test.cc says where). Abseil's own waits with a
// deadline or a timeout also follow the time of day; CondVar does not.
#ifndef TANDEM_BASE_CLOCK_H_
#define TANDEM_BASE_CLOCK_H_

#include <condition_variable>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem {

// The time since some moment before this process started, the same for all processes of a host. The
// type is absl::Time, so that values can be compared and added to, but the value is never the time
// of day. Thread safety: any thread.
absl::Time MonotonicNow();

// Detects that this process was stopped, suspended or starved, by the time between two ticks.
// Messages that others sent meanwhile are still unread.
// Therefore their silence in that time must not count.
//
// Thread safety: none.
class PauseWatch {
 public:
  // Call it on each tick, several times a second. Returns how long the process was away; zero if it
  // was not.
  absl::Duration Tick(absl::Time now);

 private:
  absl::Time last_ = absl::InfiniteFuture();
};

// A condition variable for absl::Mutex whose deadlines follow MonotonicNow().
//
// Thread safety: any thread. Signals need not be made with the mutex held.
class CondVar {
 public:
  // Releases the mutex until a signal. Wait may return without a signal, or after a signal for
  // another thread, so check the condition again.
  void Wait(absl::Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Like Wait, but returns at the deadline at the latest. True if the deadline has passed.
  bool WaitUntil(absl::Mutex* mutex, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  void Signal() { changed_.notify_one(); }
  void SignalAll() { changed_.notify_all(); }

 private:
  std::condition_variable_any changed_;
};

}  // namespace tandem

#endif  // TANDEM_BASE_CLOCK_H_
