// Spin decides how long to look for events before sleeping. Sleeping and waking costs two system
// calls and a pass through the kernel's scheduler, several microseconds. But a thread that spins on
// a core that another thread needs delays everybody, even the thread that it waits for.
//
// So Spin spins for as long as spinning has been useful lately (kMin to kMax, doubled by success,
// halved by failure), and not at all while more threads want to run than there are cores. Spin
// reads the number of runnable threads from the system only just before sleeping, and at most every
// kLook.
//
// Thread safety: none; each thread has its own.
#ifndef TANDEM_TRANSPORT_SPIN_H_
#define TANDEM_TRANSPORT_SPIN_H_

#include <algorithm>
#include <chrono>
#include <utility>

#include "transport/shm_memory.h"

namespace tandem::transport {

enum class SpinMode {
  kNever,
  kWhenCoresAreFree,
  kAlways,  // for programs with cores of their own, e.g. by real-time priority
};

class Spin {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kMin = std::chrono::microseconds(4);
  static constexpr auto kMax = std::chrono::microseconds(200);
  static constexpr auto kLook = std::chrono::milliseconds(10);

  explicit Spin(SpinMode mode);

  // Calls `ready` until it returns true (then returns true) or until the time to spin is over.
  template <typename Ready>
  bool Until(Ready ready, Clock::time_point deadline) {
    Clock::time_point now = Clock::now();
    begun_ = now;
    if (!Allowed(now)) return false;
    const Clock::time_point end = std::min(deadline, now + budget_);
    Clock::time_point before = now;
    do {
      for (int i = 0; i < 16; ++i) {
        if (ready()) {
          Grow();
          return true;
        }
        Pause();
      }
      before = std::exchange(now, Clock::now());
      if (now - before > kTakenAway) {
        Crowded(now);
        return ready();
      }
    } while (now < end);
    failed_ = true;
    return false;
  }

  // Call it after Until returned false and the caller has slept. A short total wait lengthens the
  // next spin; a long one shortens it.
  void Slept() {
    if (!allowed_ && mode_ != SpinMode::kAlways) return;
    if (Clock::now() - begun_ <= kMax) {
      Grow();
    } else {
      budget_ = std::max<Clock::duration>(kMin, budget_ / 2);
    }
  }

  bool allowed() const { return allowed_; }

 private:
  // Sixteen looks take well under a microsecond. A longer pause means that another thread had the
  // core.
  static constexpr auto kTakenAway = std::chrono::microseconds(100);

  static void Pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  void Grow() { budget_ = std::min<Clock::duration>(kMax, budget_ * 2); }
  bool Allowed(Clock::time_point now);
  void Crowded(Clock::time_point now);

  const SpinMode mode_;
  OwnedFd load_;  // /proc/loadavg
  int cores_ = 1;
  bool allowed_ = false;
  bool failed_ = true;  // the last spin
  Clock::time_point next_look_ = Clock::time_point::min();
  Clock::time_point begun_ = Clock::time_point::min();
  Clock::duration budget_ = kMax;
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_SPIN_H_
