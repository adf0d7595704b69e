// Tells ThreadSanitizer about the ordering by the locks of Debian's Abseil. That library was not
// compiled with the sanitizer, so without this file every use of a Mutex looks like a race. The
// linker puts these functions in front of Abseil's (--wrap). Only builds with
// TANDEM_SANITIZE=thread have them.
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);

// `real` is Abseil's function, and `wrapped` is the one that our code calls instead.
#define TANDEM_WRAP(result, real, wrapped, symbol, ...) \
  result real(__VA_ARGS__) asm("__real_" symbol);       \
  result wrapped(__VA_ARGS__) asm("__wrap_" symbol)

TANDEM_WRAP(void, RealLock, Lock, "_ZN4absl7debian35Mutex4LockEv", absl::Mutex*);
TANDEM_WRAP(void, RealUnlock, Unlock, "_ZN4absl7debian35Mutex6UnlockEv", absl::Mutex*);
TANDEM_WRAP(void, RealReaderLock, ReaderLock, "_ZN4absl7debian35Mutex10ReaderLockEv", absl::Mutex*);
TANDEM_WRAP(void, RealReaderUnlock, ReaderUnlock, "_ZN4absl7debian35Mutex12ReaderUnlockEv",
            absl::Mutex*);
TANDEM_WRAP(void, RealAwait, Await, "_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE", absl::Mutex*,
            const absl::Condition&);
TANDEM_WRAP(bool, RealAwaitUntil, AwaitUntil,
            "_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE", absl::Mutex*,
            const absl::Condition&, absl::Time);
TANDEM_WRAP(void, RealCondVarAwait, CondVarAwait, "_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE",
            absl::CondVar*, absl::Mutex*);
TANDEM_WRAP(bool, RealCondVarWait, CondVarWait,
            "_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE", absl::CondVar*,
            absl::Mutex*, absl::Time);
TANDEM_WRAP(void, RealNotify, Notify, "_ZN4absl7debian312Notification6NotifyEv", void*);
TANDEM_WRAP(void, RealWait, Wait, "_ZNK4absl7debian312Notification19WaitForNotificationEv", void*);
TANDEM_WRAP(bool, RealWaitFor, WaitFor,
            "_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE", void*,
            absl::Duration);

// A thread that releases a mutex evaluates the conditions that other threads await. These reads
// happen while the thread still holds the mutex, but after the sanitizer was told of the release,
// so the sanitizer must ignore them.
class IgnoreReads {
 public:
  IgnoreReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

void Lock(absl::Mutex* mutex) {
  RealLock(mutex);
  __tsan_acquire(mutex);
}

void Unlock(absl::Mutex* mutex) {
  __tsan_release(mutex);
  const IgnoreReads conditions;
  RealUnlock(mutex);
}

// The sanitizer here treats readers as ordered among each other, too. It misses no race by that,
// because readers only read.
void ReaderLock(absl::Mutex* mutex) {
  RealReaderLock(mutex);
  __tsan_acquire(mutex);
}

void ReaderUnlock(absl::Mutex* mutex) {
  __tsan_release(mutex);
  const IgnoreReads conditions;
  RealReaderUnlock(mutex);
}

// A thread that waits for a condition releases the mutex meanwhile.
class GivenUp {
 public:
  explicit GivenUp(absl::Mutex* mutex) : mutex_(mutex) {
    __tsan_release(mutex);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  }
  ~GivenUp() {
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    __tsan_acquire(mutex_);
  }

 private:
  absl::Mutex* const mutex_;
};

void Await(absl::Mutex* mutex, const absl::Condition& condition) {
  const GivenUp meanwhile(mutex);
  RealAwait(mutex, condition);
}

bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Time deadline) {
  const GivenUp meanwhile(mutex);
  return RealAwaitUntil(mutex, condition, deadline);
}

void CondVarAwait(absl::CondVar* condition, absl::Mutex* mutex) {
  const GivenUp meanwhile(mutex);
  RealCondVarAwait(condition, mutex);
}

bool CondVarWait(absl::CondVar* condition, absl::Mutex* mutex, absl::Time deadline) {
  const GivenUp meanwhile(mutex);
  return RealCondVarWait(condition, mutex, deadline);
}

void Notify(void* notification) {
  __tsan_release(notification);
  RealNotify(notification);
}

void Wait(void* notification) {
  RealWait(notification);
  __tsan_acquire(notification);
}

bool WaitFor(void* notification, absl::Duration timeout) {
  const bool notified = RealWaitFor(notification, timeout);
  if (notified) __tsan_acquire(notification);
  return notified;
}
