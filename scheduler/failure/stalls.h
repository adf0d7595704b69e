// Finds the node that holds up all others, from the state that each node reports.
//
// A node that waits is a victim of the node that it waits for. Following the waits leads to a node
// that waits for nobody: the root. If the waits form a circle, its lowest-numbered node counts as
// the root. Pure function; StallWatch calls it on ticks.
#ifndef TANDEM_SCHEDULER_FAILURE_STALLS_H_
#define TANDEM_SCHEDULER_FAILURE_STALLS_H_

#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tandem::scheduler {

// The state of one live node. Indexes are into the same span.
struct WaitState {
  int waits_for = -1;  // the node that this one waits for, or -1
  // The node waits at a barrier. Long waits there are normal while the missing party makes
  // progress.
  bool at_barrier = false;
  bool passes_on = false;  // a server: others wait for a node through it while its own loop runs
  absl::Time moved_at;     // when its main loop last made progress
  absl::Time wait_since;   // when the wait began, if waits_for >= 0
};

struct StalledRoot {
  int root = 0;
  absl::Time since;  // when the progress of the root, or of its longest waiting victim, stopped
  std::vector<int> victims;  // nodes that wait for the root, directly or not; ascending
  bool circle = false;       // the root waits for one of its own victims
  bool at_work = false;      // the root makes progress; only its victims do not
};

// The roots of all waits, and all nodes without progress, that have lasted `stall_after` or longer.
// Ascending.
std::vector<StalledRoot> FindStalls(absl::Time now, absl::Duration stall_after,
                                    absl::Span<const WaitState> nodes);

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_FAILURE_STALLS_H_
