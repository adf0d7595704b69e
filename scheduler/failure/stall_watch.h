// Finds the node that makes no progress while others wait. Combines what nodes report in heartbeats
// with what the scheduler knows of its barriers, and follows the waits to one node (stalls.h).
#ifndef TANDEM_SCHEDULER_FAILURE_STALL_WATCH_H_
#define TANDEM_SCHEDULER_FAILURE_STALL_WATCH_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "proto/wire.pb.h"
#include "scheduler/failure/stalls.h"
#include "scheduler/state/barriers.h"
#include "scheduler/state/checkpoint_queue.h"
#include "scheduler/state/commands.h"
#include "scheduler/state/effects.h"
#include "scheduler/state/membership.h"
#include "scheduler/state/times.h"

namespace tandem::scheduler {

class StallWatch {
 public:
  // All pointers outlive the watch. `limit`: the timeout; a stall that lasts this long ends the
  // job. `files_hold_up`: training waits for the files of each checkpoint (a quorum).
  StallWatch(const SchedulerTimes& times, absl::Duration limit, bool files_hold_up,
             Membership* members, const Barriers* barriers, const Commands* commands,
             const CheckpointQueue* checkpoints)
      : times_(times),
        limit_(limit),
        files_hold_up_(files_hold_up),
        members_(*members),
        barriers_(*barriers),
        commands_(*commands),
        checkpoints_(*checkpoints) {}

  // Call it on each tick of a running job. Reports each stall once, and its end. Returns the
  // failure that ends the job if a stall has lasted too long.
  absl::optional<Failure> Check(absl::Time now, SchedulerEffects* effects);
  // The waits of all nodes, in the order of Membership::nodes().
  std::vector<WaitState> WaitStates() const;

 private:
  void AddBarrierWaits(std::vector<WaitState>* states) const;
  bool InBackground(const Barrier& barrier) const;
  int HoldsUp(const std::string& name, const Barrier& barrier) const;
  int WritesCheckpoint() const;
  std::string Describe(absl::Time now, const StalledRoot& stalled) const;
  int IndexOf(const Node* node) const;

  const SchedulerTimes times_;
  const absl::Duration limit_;
  const bool files_hold_up_;
  Membership& members_;
  const Barriers& barriers_;
  const Commands& commands_;
  const CheckpointQueue& checkpoints_;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_FAILURE_STALL_WATCH_H_
