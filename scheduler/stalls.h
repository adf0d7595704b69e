// Who holds everybody up: from what each node says of itself to the one node to name.
//
// A node that waits is a victim of the one it waits for; following the waits leads to a node that
// waits for nobody (the root) or round in a circle (then its lowest-numbered node stands for it).
// Pure; the core calls it on ticks.
#ifndef TANDEM_SCHEDULER_STALLS_H_
#define TANDEM_SCHEDULER_STALLS_H_

#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tandem::scheduler {

// What one live node says of itself. Indexes are into the same span.
struct WaitState {
  int waits_for = -1;       // the node it waits for, or -1
  bool at_barrier = false;  // it waits at a barrier, where long waits are no fault of the party
                            // that is still at work
  bool passes_on = false;   // a server: others wait through it while its own loop goes on
  absl::Time moved_at;      // when its main loop last came round
  absl::Time wait_since;    // if waits_for >= 0
};

struct StalledRoot {
  int root = 0;
  absl::Time since;          // when progress stopped: of the root, or of its longest waiting victim
  std::vector<int> victims;  // nodes that wait for the root, directly or not; ascending
  bool circle = false;       // the root waits for one of its own victims
  bool at_work = false;      // the root goes on; only its victims stand still
};

// Roots of all waits and standstills that have lasted `stall_after` or longer, ascending.
std::vector<StalledRoot> FindStalls(absl::Time now, absl::Duration stall_after,
                                    absl::Span<const WaitState> nodes);

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_STALLS_H_
