// The checkpoints of a running job: requested ones, those of the job's schedule, and the one before
// a requested end. Asks the workers for one at a time, and keeps its result.
//
// Thread safety: none needed; one thread. No clock or I/O inside.
#ifndef TANDEM_SCHEDULER_JOB_CHECKPOINTS_H_
#define TANDEM_SCHEDULER_JOB_CHECKPOINTS_H_

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "job/job.h"
#include "proto/wire.pb.h"
#include "scheduler/state/barriers.h"
#include "scheduler/state/checkpoint_queue.h"
#include "scheduler/state/checkpoint_schedule.h"
#include "scheduler/state/commands.h"
#include "scheduler/state/effects.h"
#include "scheduler/state/membership.h"
#include "scheduler/state/room_wait.h"

namespace tandem::scheduler {

class JobCheckpoints {
 public:
  // `folder`: the model folder; empty: the job writes no checkpoints by itself. `saved`: the
  // checkpoint that the run resumes from has all steps before this one; -1: a new run. All pointers
  // outlive this object.
  JobCheckpoints(const Checkpoint& checkpoint, std::string folder, int64_t saved,
                 Membership* members, Commands* commands, Barriers* barriers);

  // The place of a worker has become vacant. Ask() waits for OnReplaced.
  void OnVacant() { replacing_ = true; }
  // The new processes of all replaced workers have trained the steps that some range lacked. Does
  // what a waiting Ask() would have done.
  void OnReplaced(absl::Time now, SchedulerEffects* effects) {
    replacing_ = false;
    if (std::exchange(asks_later_, false)) Ask(now, effects);
  }

  // The job starts.
  void Start(absl::Time now) {
    schedule_.Start(now, /*is_new=*/checkpointed_step_ < 0);
    checkpointed_at_ = now;
  }
  // A worker has reached `step`.
  void OnStep(int64_t step) { schedule_.OnStep(step); }
  // The program of this worker has asked for `checkpoints` checkpoints since it began.
  void OnAsked(const Node& node, int64_t checkpoints, SchedulerEffects* effects);
  // True if the schedule asks for a checkpoint now.
  bool Due(absl::Time now) const;
  // The next checkpoint is the one before a requested end: no step and no checkpoint follows it.
  // `why`: who has asked for the end.
  void SetEnding(const std::string& why) { ending_for_ = why; }
  bool ending() const { return !ending_for_.empty(); }

  // Asks for a checkpoint to `folder`, now or when those before it have ended. The answer says how
  // many requested checkpoints will then have ended. FAILED_PRECONDITION in the answer: none can be
  // made.
  UserAnswer Request(absl::Time now, const std::string& folder, SchedulerEffects* effects);
  // Asks all workers for the first checkpoint of the queue. A worker that has lost its connection
  // is asked when it is back. While a worker is replaced, nobody is asked, because all others would
  // wait for the new process: OnReplaced asks later.
  void Ask(absl::Time now, SchedulerEffects* effects);
  // A node has answered a command with an error. True if the error means that the node could not
  // write its part of a checkpoint that may fail.
  bool NoteFailure(const Node& node, const CommandDone& done);
  // All workers are in the barrier of a mark: none has a push in flight, and none sends one before
  // the release. Names the folder of the checkpoint, and returns the MARK for the servers.
  Command Mark(uint64_t run, int64_t attempt, Barrier* barrier);
  // All workers are in the CHECKPOINT barrier. Returns the CHECKPOINT for the servers.
  Command Write(const Barrier& barrier);
  // The state of the job is that of the checkpoint. `record`: RunRecord at this moment.
  // `requested`: it is the requested checkpoint.
  void OnMark(std::string record, bool requested) {
    record_ = std::move(record);
    marked_ = requested;
  }
  // The requested checkpoint is marked, and its files are being written.
  bool marked() const { return marked_; }
  // The worker has died after the mark. In jobs whose workers may be replaced only rank 0 writes
  // files, so the checkpoint continues without the worker. Requires: its rank is not 0.
  void Excuse(const Node& worker) {
    excused_.insert(worker.index);
    commands_.OnDone(worker, request_);
  }
  const std::set<int>& excused() const { return excused_; }
  const std::string& record() const { return record_; }
  // The CHECKPOINT or COMMITTED barrier is about to be released: the servers have written, or there
  // was an error before; or rank 0 has committed, or could not.
  void OnBarrier(const Barrier& barrier);
  // Whether the job depends on the checkpoint of this CHECKPOINT or COMMITTED barrier.
  bool DependsOn(const Barrier& barrier) const { return !barrier.may_fail || hold_; }
  // The failure of a job whose checkpoint has failed because a disk stays full.
  Failure NoRoom(const Barrier& barrier) const;
  // Ends a pause (PAUSE_CHECKPOINTS): the checkpoint of the best model is committed, and counts
  // like a requested one. True if another checkpoint has been requested meanwhile.
  bool Resume(absl::Time now, SchedulerEffects* effects);
  // The requested checkpoint is written, or has failed: reports it, and removes it from the queue.
  void Finish(absl::Time now, SchedulerEffects* effects);

  RoomWait& room() { return room_; }
  const RoomWait& room() const { return room_; }
  CheckpointQueue& queue() { return queue_; }
  const CheckpointQueue& queue() const { return queue_; }
  const std::string& folder() const { return folder_; }
  // The number of requested checkpoints that were written or have failed.
  int64_t ended() const { return ended_; }
  // When the last checkpoint was complete; before the first one, when the job started.
  absl::Time checkpointed_at() const { return checkpointed_at_; }
  // The reason of a job that ends because rows have filled the memory of a server, with the
  // checkpoint that the job has, and what a user can do.
  std::string WithWaysOut(const std::string& reason) const;
  // The result of the last checkpoint, for the report of a requested end.
  JobReport::Stop Last() const { return {checkpointed_step_, last_failure_, ending_for_}; }

 private:
  const std::string folder_;
  Membership& members_;
  Commands& commands_;
  Barriers& barriers_;
  CheckpointQueue queue_;
  CheckpointSchedule schedule_;
  RoomWait room_;
  uint64_t request_ = 0;     // number of the command that asks for the current checkpoint
  bool hold_ = false;        // ... and workers take no step after it
  bool replacing_ = false;   // between OnVacant and OnReplaced
  bool asks_later_ = false;  // OnReplaced calls Ask
  bool marked_ = false;
  std::set<int> excused_;     // ranks that do not take part in the current checkpoint any more
  std::string record_;        // RunRecord at the last mark
  std::string failure_;       // error of the current checkpoint, or of the last one
  std::string last_failure_;  // error of the last one that has ended
  int64_t step_ = 0;  // the same checkpoint has all steps before this one; -1: not known yet
  int64_t checkpointed_step_;  // likewise, for the last checkpoint that succeeded; -1: none
  absl::Time checkpointed_at_;
  int64_t ended_ = 0;
  std::string ending_for_;  // who has asked for the end; empty: nobody
  bool unable_ = false;     // workers have answered that they cannot write checkpoints
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_JOB_CHECKPOINTS_H_
