// Time for everything but timestamps: a clock that nobody can set.
//
// Deadlines, beats, silences and durations are measured by MonotonicNow(). absl::Now() is the time
// of day, which an administrator or a time server may set forward or back at any moment: it only
// stamps what people or other hosts read (tests/unit/tidy_test.cc says where). Abseil's own waits
// with a deadline or a timeout follow the time of day, too; CondVar here does not.
#ifndef TANDEM_BASE_CLOCK_H_
#define TANDEM_BASE_CLOCK_H_

#include <condition_variable>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem {

// Time since some moment before this process, the same for all processes of a host; as an
// absl::Time so that it can be compared and added to, but never the time of day. Any thread.
absl::Time MonotonicNow();

// Tells by the time between two ticks that this process was stopped, suspended or starved. Messages
// of others that came meanwhile are still unread, so their silence in that time counts for nothing.
//
// Thread safety: none.
class PauseWatch {
 public:
  // On each tick, several times a second. How long the process was away; zero if it was not.
  absl::Duration Tick(absl::Time now);

 private:
  absl::Time last_ = absl::InfiniteFuture();
};

// A condition variable for absl::Mutex whose deadlines are those of MonotonicNow().
//
// Any thread; signals need not be made with the mutex held.
class CondVar {
 public:
  // Gives the mutex up until a signal, which may be meant for another thread, or none at all: ask
  // again whether what was waited for has come.
  void Wait(absl::Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // The same, at most until the deadline. True if it has passed.
  bool WaitUntil(absl::Mutex* mutex, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  void Signal() { changed_.notify_one(); }
  void SignalAll() { changed_.notify_all(); }

 private:
  std::condition_variable_any changed_;
};

}  // namespace tandem

#endif  // TANDEM_BASE_CLOCK_H_
