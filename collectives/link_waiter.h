// How the thread of an engine waits while nothing moves: it looks again and again, giving way to
// other ranks of its processor, and sleeps on the links that matter once that has taken longer than
// a healthy peer lets one wait.
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
  // links[r] leads to rank r and outlives this; null at the own rank. `spin`: every rank of the
  // host has a core for itself, so that nobody has to give way.
  LinkWaiter(std::vector<Link*> links, bool spin) : links_(std::move(links)), spin_(spin) {}

  // Nothing has moved since `idle_since`: waits a little, at most until the next deadline of
  // `engine`. Readable `news` (a descriptor; -1: none) ends it too.
  void Wait(const CollectiveEngine& engine, int news, absl::Time idle_since, absl::Time now);

 private:
  void Sleep(const CollectiveEngine& engine, int news, absl::Time now);

  const std::vector<Link*> links_;
  const bool spin_;
  std::vector<pollfd> poll_fds_;  // of Sleep; kept for its memory
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_LINK_WAITER_H_
