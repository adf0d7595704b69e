// The restarts of a run: what the program that starts its roles tells each new scheduler of the
// attempts before (cluster.max_restarts).
#ifndef TANDEM_SCHEDULER_FAILURE_RESTARTS_H_
#define TANDEM_SCHEDULER_FAILURE_RESTARTS_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace tandem::scheduler {

// cluster.max_restarts limits the restarts within this time.
inline constexpr absl::Duration kRestartsCountFor = absl::Hours(1);

// How often the program that starts the job has started all roles again or replaced a worker, and
// at what cost.
struct Restarts {
  int count = 0;
  double seconds = 0;       // from each failure to the next step that all workers have finished
  int64_t steps_again = 0;  // done a second time
  std::string last;         // why the last attempt has failed
  absl::Time down_since;    // the monotonic time of this host at which it has failed
  // `trains_since`: the monotonic time from which the seconds of training count. `started`: the
  // time of day at which training started. nullopt and empty: no attempt has started to train.
  absl::optional<absl::Time> trains_since;
  std::string started;
  int left = 0;  // restarts that are still allowed in this hour
  // If `left` is 0: the monotonic time from which another restart is allowed.
  absl::Time left_again = absl::InfiniteFuture();
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_FAILURE_RESTARTS_H_
