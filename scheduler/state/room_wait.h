// The wait for room on a disk. A checkpoint that the job depends on (at the end, before a requested
// end, or of the best model) does not fail because a disk is full: the workers try again, from a
// new mark on, every five seconds until there is room or the time is over. If the removal
// of other checkpoints has made room, the first retry is at once. All roles hold meanwhile.
//
// The mark barrier of the next try is held here until the try is due. Only one such checkpoint can
// be in progress, so there is one wait.
// Thread safety: none needed; one thread. No clock or I/O inside.
#ifndef TANDEM_SCHEDULER_STATE_ROOM_WAIT_H_
#define TANDEM_SCHEDULER_STATE_ROOM_WAIT_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "scheduler/state/barriers.h"
#include "scheduler/state/effects.h"

namespace tandem::scheduler {

class RoomWait {
 public:
  static constexpr absl::Duration kPeriod = absl::Seconds(5);  // between two tries
  // Batch systems kill a job soon after their stop signal (Kubernetes and Slurm after 30 s).
  static constexpr absl::Duration kAfterSignal = absl::Seconds(20);

  // `most`: the longest wait.
  explicit RoomWait(absl::Duration most) : most_(most) {}

  // The checkpoint has failed only because a disk is full. True: it is tried again.
  bool TryAgain(absl::Time now, const Barrier& failed);
  // All workers are in the mark barrier `name`, and the checkpoint needs about `bytes`. True: the
  // next try is not due yet, so TakeDue returns the barrier later. At the first try says why the
  // job waits, or that it tries again at once.
  bool Holds(absl::Time now, const std::string& name, const Barrier& mark, int64_t bytes,
             SchedulerEffects* effects);
  // The barrier of a try that is due; empty: there is none. Says once a minute that the job waits.
  std::string TakeDue(absl::Time now, SchedulerEffects* effects);
  // The checkpoint is written.
  void End(absl::Time now, SchedulerEffects* effects);
  // A stop signal has come: the wait ends soon.
  void OnSignal(absl::Time now) { stopped_at_ = std::min(stopped_at_, now); }

  // Between TryAgain and End.
  bool waiting() const { return since_.has_value(); }
  // A checkpoint has failed for want of room, and there is no time left. A new attempt would fail
  // in the same way.
  bool gave_up() const { return gave_up_; }
  // For the status. Requires: waiting().
  absl::Duration waited(absl::Time now) const { return now - *since_; }
  int64_t missing_bytes() const { return missing_bytes_; }  // -1: not known
  // The scheduler was paused for this long.
  void Forgive(absl::Duration pause);

 private:
  absl::Time Deadline() const;

  const absl::Duration most_;
  absl::Time stopped_at_ = absl::InfiniteFuture();
  absl::optional<absl::Time> since_;  // the first failure of the checkpoint
  std::string why_;                   // ... and its text
  absl::Time next_try_, next_line_;
  bool said_ = false;
  bool tried_at_once_ = false;
  bool gave_up_ = false;
  int64_t missing_bytes_ = -1;
  std::string barrier_;  // held; empty: none
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_STATE_ROOM_WAIT_H_
