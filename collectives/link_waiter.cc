#include "collectives/link_waiter.h"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tandem::collectives {
namespace {

constexpr absl::Duration kAwake = absl::Milliseconds(1);
constexpr absl::Duration kSleep = absl::Milliseconds(100);
constexpr int kPauses = 32;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void LinkWaiter::Wait(const CollectiveEngine& engine, int news, absl::Time idle_since,
                      absl::Time now) {
  if (now - idle_since > kAwake) return Sleep(engine, news, now);
  if (!spin_) {
    sched_yield();
    return;
  }
  for (int i = 0; i < kPauses; ++i) Pause();
}

void LinkWaiter::Sleep(const CollectiveEngine& engine, int news, absl::Time now) {
  poll_fds_.clear();
  bool all_wake = true, ready = false;
  // Poll only the links that the engine waits for. Other links may hold bytes that no op wants yet,
  // or may have ended; such a link is always readable and would prevent all sleep.
  for (size_t r = 0; r < links_.size(); ++r) {
    Link* const link = links_[r];
    if (link == nullptr || !engine.WaitsForLink(static_cast<int>(r))) continue;
    ready = ready || !link->PrepareToSleep();
    if (link->fd() < 0) {
      all_wake = false;
      continue;
    }
    const bool writable = link->WantsWritable();
    poll_fds_.push_back({link->fd(), static_cast<short>(POLLIN | (writable ? POLLOUT : 0)), 0});
  }
  if (news >= 0) poll_fds_.push_back({news, POLLIN, 0});
  if (!ready) {
    const absl::Duration left =
        std::min(engine.NextDeadline() - now, all_wake ? kSleep : absl::Milliseconds(1));
    const int64_t ms = std::max<int64_t>(0, absl::ToInt64Milliseconds(left));
    (void)poll(poll_fds_.data(), poll_fds_.size(), static_cast<int>(ms));
  }
  for (Link* const link : links_) {
    if (link != nullptr) link->WakeUp();
  }
}

}  // namespace tandem::collectives
