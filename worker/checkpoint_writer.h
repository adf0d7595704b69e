// Checkpoints, on one worker. A checkpoint is one folder (server/checkpoint/manifest.h names its
// files). The protocol:
//
//   1. The mark. Each worker stops pushing and enters a barrier when its pushes are acknowledged.
//      The scheduler has the servers mark their ranges before it releases the workers. All parts of
//      the checkpoint are of this moment. The worker's reports carry its position meanwhile.
//   2. Each worker copies what only it has: rank 0 the dense part unless that is on servers, others
//      the state of a codec, a replica or a program. Then training continues.
//   3. Servers and workers write their files. A worker enters a second barrier when its files are
//      on the disk. The scheduler releases this barrier when those of the servers are, too.
//   4. Rank 0 writes the manifest and makes the checkpoint the latest one.
//   5. If the job depends on the checkpoint, all workers meet in a third barrier, with the result
//      of rank 0.
//
// At the mark a worker therefore sends no push for the time of its pushes in flight and of two
// messages, to and from the scheduler. Training does not wait for the disk, with two exceptions.
// The run waits for the checkpoint of the best model and for the one at the end. Jobs with a dense
// quorum wait for each checkpoint, because it finishes the sums of all workers together.
//
// A write error ends the checkpoint and the job if the job depends on the checkpoint (of the best
// model, or at the end). A requested checkpoint in the middle of training may fail: the worker that
// could not write says so at the second barrier, the scheduler tells all workers, rank 0 removes
// the parts, and training continues.
//
// A full disk is different. If the job depends on the checkpoint (of the best model, at the end, or
// before a requested end), rank 0 removes the parts, and all workers begin again with another mark.
// The scheduler releases that mark when the next try is due (scheduler/state/room_wait.h).
// No worker trains meanwhile, so the copies of step 2 stay.
//
// Thread safety: none needed; one thread.
#ifndef TANDEM_WORKER_CHECKPOINT_WRITER_H_
#define TANDEM_WORKER_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <limits>
#include <string>

#include "absl/time/time.h"
#include "proto/wire.pb.h"
#include "worker/dense/dense_synchroniser.h"
#include "worker/trainer_context.h"
#include "worker/trainer_task.h"

namespace tandem::worker {

// One checkpoint, from the moment at which this worker has no push in flight and sends none.
class CheckpointWriter {
 public:
  CheckpointWriter(TrainerContext& context, DenseSynchroniser& synchroniser, CheckpointId id)
      : context_(context), synchroniser_(synchroniser), id_(id) {}

  // The checkpoint will contain this worker's steps below `step`. `name`: names its barriers;
  // `path`: the model folder; `position`: where this worker stands; `ends`: no step follows.
  void Begin(const std::string& name, const std::string& path, int64_t step,
             const TrainPosition& position, bool ends = false);
  // Does all that can be done. True when the checkpoint is done.
  bool Advance(absl::Time now, TrainerEffects* effects);
  bool in_progress() const { return stage_ != Stage::kIdle; }
  // This worker pushes nothing and takes no step.
  bool holds() const { return in_progress() && (waits_ || stage_ <= Stage::kWrite); }
  // The scheduler may make the run record, so this worker's reports carry its position: at the
  // mark, and in jobs with a quorum, whose sums are finished later, until the end.
  bool reports_position() const {
    return stage_ == Stage::kMark || (in_progress() && synchroniser_.EndsEpochs());
  }
  // All workers have marked the checkpoint.
  bool marked() const { return stage_ > Stage::kMark; }
  const TrainPosition& position() const { return position_; }
  // Something is being copied or written, or waits for room on a disk.
  bool writes() const { return tasks_ > 0 || (stage_ == Stage::kMark && tries_ > 0); }
  // Why the last checkpoint failed; empty: the checkpoint was written.
  const std::string& failure() const { return failure_; }

  void OnCollected() {
    context_.report.AddMissedSums(dense_.missed);
    context_.report.AddCollectiveBytes(dense_.bytes_sent);
    dense_.collected = true;
  }
  // A task of the checkpoint has ended.
  void OnTaskDone(const absl::Status& status);

 private:
  enum class Stage {
    kIdle,
    kMark,
    kCollect,
    kCopy,
    kWrite,
    kSecondBarrier,
    kCommit,
    kThirdBarrier,
    kDone
  };

  bool Step(absl::Time now, TrainerEffects* effects);
  bool PassMark(absl::Time now);
  bool Copy(TrainerEffects* effects);
  bool Write(TrainerEffects* effects);
  bool PassSecondBarrier(absl::Time now, TrainerEffects* effects);
  BarrierEnter EntryWithResult(const std::string& name, BarrierEnter::Action action) const;
  bool AfterCommit();
  bool PassThirdBarrier(absl::Time now);
  bool TryAgain();
  std::string NameOfTry() const;
  bool may_fail() const { return id_ == CheckpointId::kRequested; }
  bool Enter(Stage stage) {
    stage_ = stage;
    return true;
  }
  void Run(TrainerTask task, TrainerEffects* effects);

  TrainerContext& context_;
  DenseSynchroniser& synchroniser_;
  const CheckpointId id_;
  bool depends_ = false;  // the job depends on the checkpoint
  bool waits_ = false;    // training waits for the files
  Stage stage_ = Stage::kIdle;
  std::string name_, path_;
  std::string directory_;  // the folder of the checkpoint, from the release of the mark
  int64_t step_ = 0;       // of this worker; from the release of the mark: the largest of all
  TrainPosition position_;
  DenseCheckpoint dense_;
  std::string bytes_;            // content of the dense file
  std::string state_, program_;  // CopyWorkerTask
  std::string record_;           // RunRecord
  std::string failure_;
  bool no_room_ = false;     // failure_ is only a full disk
  bool commits_ = false;     // after the second barrier: rank 0 commits
  bool again_ = false;       // after it: the scheduler lets the workers try again
  int tries_ = 0;            // earlier ones of this checkpoint
  int64_t free_bytes_ = -1;  // rank 0, after a try: room on the disk; -1: not known
  int tasks_ = 0;            // tasks running now
};

// A checkpoint that was requested in the middle of training. The request reaches workers at
// different times. It runs at the same time as everything else that a worker does:
// evaluations and ends of epochs may come in between. The scheduler sends the next request when all
// workers have answered that the last checkpoint is written.
//
// The cut. If workers take steps together, they first agree on a step that all of them can still
// reach, finish the steps below it, and mark there. They do the same if dense sums wait for a
// quorum, or if a policy collects the updates of a step (BACKUP_WORKERS, SYNC_SWITCH). In all other
// jobs each worker marks at its own next step: the first one that it has not pushed. A step that is
// being computed is pushed after the mark, so no worker waits for a slower one. A worker whose
// program or module has a state first finishes and pushes the step that it computes, because the
// state contains the step.
class RequestedCheckpoint {
 public:
  RequestedCheckpoint(TrainerContext& context, DenseSynchroniser& synchroniser);

  // Some ranges have steps of this worker below `step` from the process before this one. A
  // checkpoint needs them in all ranges, so the worker does not mark before it has pushed them.
  void SetFirstCut(int64_t step) { first_cut_ = step; }
  // `first_free`: the first step that this worker has not begun. A repeated command is answered if
  // its checkpoint is done; otherwise it changes nothing.
  void OnCommand(const Command& command, int64_t first_free);

  // The state of the rest of the worker.
  struct TrainingState {
    // The worker has no data left, so it waits for no other worker, and no other worker waits for
    // it.
    bool out_of_steps = false;
    bool synchronising = false;  // its last step is not synchronised yet
    TrainPosition position;      // where it stands between two steps
  };
  // A checkpoint is requested and not written yet.
  bool wanted() const { return wanted_; }
  // Does one thing that can be done; false if there is none.
  bool Advance(absl::Time now, const TrainingState& state, TrainerEffects* effects);

  // The checkpoint must not contain changes by this step and later ones. So these may not begin
  // yet, and if this step has begun, its push must wait.
  int64_t HoldsFrom() const {
    if (!holding_) return std::numeric_limits<int64_t>::max();
    return step_ < 0 ? first_free_ : step_;
  }
  // No push at all may be sent.
  bool holds_pushes() const {
    const bool at_cut = own_step_ && context_.step() >= step_;
    return holding_ && (at_cut || !wanted_ || checkpoint_writer_.in_progress());
  }
  CheckpointWriter& saving() { return checkpoint_writer_; }
  const CheckpointWriter& saving() const { return checkpoint_writer_; }

 private:
  // The command's number as people read it: commands are numbered from 2^32 + 1.
  uint32_t number() const { return static_cast<uint32_t>(command_); }

  TrainerContext& context_;
  CheckpointWriter checkpoint_writer_;
  const bool own_step_;       // the cut is at each worker's own step,
  const bool finishes_step_;  // ... after the step that the worker computes
  bool wanted_ = false;
  bool hold_ = false;     // no step is taken after the checkpoint
  bool holding_ = false;  // from the command to the end of the mark, or for ever
  uint64_t command_ = 0;  // number of the last accepted command
  absl::Status result_;   // result of that command
  std::string path_;
  int64_t first_free_ = 0;
  int64_t first_cut_ = 0;
  int64_t step_ = -1;  // of the cut; -1 = not agreed yet
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_CHECKPOINT_WRITER_H_
