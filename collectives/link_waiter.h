// LinkWaiter: how the engine's thread waits while nothing moves. At first it looks again and again,
// and lets other ranks of its processor run. After a time in which a healthy peer would have
// answered it sleeps on the links that matter.
//
// Thread safety: none; the thread of the engine.
#ifndef TANDEM_COLLECTIVES_LINK_WAITER_H_
#define TANDEM_COLLECTIVES_LINK_WAITER_H_

#include <poll.h>

#include <vector>

#include "absl/time/time.h"
#include "collectives/engine.h"
#include "collectives/links/link.h"

namespace tandem::collectives {

class LinkWaiter {
 public:
  // links[r] leads to rank r and outlives this object; null at the own rank. `spin`: every rank of
  // the host has a core for itself, so nobody needs this core.
  LinkWaiter(std::vector<Link*> links, bool spin) : links_(std::move(links)), spin_(spin) {}

  // Waits a little, at most until the next deadline of `engine`. Nothing has moved since
  // `idle_since`. Readable `news` (a descriptor; -1: none) also ends the wait.
  void Wait(const CollectiveEngine& engine, int news, absl::Time idle_since, absl::Time now);

 private:
  void Sleep(const CollectiveEngine& engine, int news, absl::Time now);

  const std::vector<Link*> links_;
  const bool spin_;
  std::vector<pollfd> poll_fds_;  // used by Sleep; a member to keep its memory
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_LINK_WAITER_H_
