// Watches liveness: finds nodes that send no heartbeats any more, and lost connections that do not
// come back.
#ifndef TANDEM_SCHEDULER_FAILURE_LIVENESS_MONITOR_H_
#define TANDEM_SCHEDULER_FAILURE_LIVENESS_MONITOR_H_

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "proto/wire.pb.h"
#include "scheduler/state/effects.h"
#include "scheduler/state/membership.h"
#include "scheduler/state/times.h"

namespace tandem::scheduler {

class LivenessMonitor {
 public:
  // `members` outlives the watch.
  LivenessMonitor(const SchedulerTimes& times, Membership* members)
      : times_(times), members_(members) {}

  // Call it on each tick. Reports silent nodes. Returns the failure that ends the job if a node is
  // dead.
  absl::optional<Failure> Check(absl::Time now, SchedulerEffects* effects);
  // A message of the node has arrived.
  void OnHeard(absl::Time now, Node* node, SchedulerEffects* effects);

 private:
  const SchedulerTimes times_;
  Membership* const members_;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_FAILURE_LIVENESS_MONITOR_H_
