// Checkpoints, on one worker. A checkpoint is one folder (server/manifest.h names its files). The
// protocol:
//
//   1. All workers enter a barrier, with no push in flight.
//   2. Rank 0 makes the folder and writes the dense part. Each worker writes the state that only it
//      has (of a codec, its replica, its program).
//   3. All workers enter a second barrier. The scheduler has the servers write their ranges before
//      it releases the workers.
//   4. Rank 0 writes the manifest and makes the checkpoint the latest one.
//
// From step 1 to the end a worker pushes nothing, so all parts of the checkpoint are of one moment.
// Meanwhile the worker's reports carry its position. The scheduler collects the positions and gives
// them to rank 0, which stores them in the checkpoint.
//
// A write error ends the checkpoint and the job if the job depends on the checkpoint (of the best
// model, or at the end). A requested checkpoint in the middle of training may fail: the worker that
// could not write says so at the second barrier, the scheduler tells all workers, rank 0 removes
// the parts, and training continues.
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

// One checkpoint, from the moment at which this worker may enter its first barrier.
class CheckpointWriter {
 public:
  CheckpointWriter(TrainerContext& context, DenseSynchroniser& synchroniser, CheckpointId id)
      : context_(context),
        synchroniser_(synchroniser),
        id_(id),
        when_ready_(id == CheckpointId::kFinal  ? BarrierEnter::LAST_CHECKPOINT
                    : id == CheckpointId::kBest ? BarrierEnter::PAUSE_CHECKPOINTS
                                                : BarrierEnter::NONE) {}

  // The checkpoint will contain the steps below `step`. `name`: names its barriers; `path`: the
  // model folder; `request`: number of the command that requested the checkpoint, 0 for the
  // worker's own; `position`: where this worker stands.
  void Begin(const std::string& name, const std::string& path, int64_t step, uint64_t request,
             const TrainPosition& position);
  // True when the checkpoint is done.
  bool Advance(absl::Time now, TrainerEffects* effects);
  // The checkpoint is in progress, so this worker pushes nothing.
  bool holds() const { return stage_ != Stage::kIdle; }
  // All workers have entered the first barrier, so files are being written.
  bool past_first_barrier() const { return stage_ > Stage::kFirstBarrier; }
  const TrainPosition& position() const { return position_; }
  // Why the last checkpoint failed; empty: the checkpoint was written.
  const std::string& failure() const { return failure_; }

  void OnCollected() {
    context_.report.AddMissedSums(dense_.missed);
    context_.report.AddCollectiveBytes(dense_.bytes_sent);
    dense_.collected = true;
  }
  // A task of the checkpoint has ended.
  void OnTaskDone(const absl::Status& status);
  // False if the request does not belong to the checkpoint.
  bool OnCompletion(uint64_t request);

 private:
  enum class Stage { kIdle, kFirstBarrier, kCollect, kWrite, kSecondBarrier, kCommit, kDone };

  bool Step(absl::Time now, TrainerEffects* effects);
  bool Write(TrainerEffects* effects);
  bool PassSecondBarrier(absl::Time now, TrainerEffects* effects);
  bool may_fail() const { return id_ == CheckpointId::kRequested; }
  bool Enter(Stage stage) {
    stage_ = stage;
    return true;
  }
  void Run(TrainerTask task, TrainerEffects* effects);

  TrainerContext& context_;
  DenseSynchroniser& synchroniser_;
  const CheckpointId id_;
  const BarrierEnter::Action when_ready_;  // action of the scheduler at the first barrier
  Stage stage_ = Stage::kIdle;
  std::string name_, directory_;
  int64_t step_ = 0;
  TrainPosition position_;
  DenseCheckpoint dense_;
  std::string bytes_;   // content of the dense file
  std::string record_;  // RunRecord
  std::string failure_;
  int tasks_ = 0;  // tasks running now
};

// A checkpoint that was requested in the middle of training. Workers learn of the request at
// different times. The workers first agree on a step that all of them can still reach, finish the
// steps below it, and write the checkpoint. The request runs at the same time as everything else
// that a worker does: evaluations and ends of epochs may come in between. The scheduler sends the
// next request when all workers have answered that the last checkpoint is written.
class RequestedCheckpoint {
 public:
  RequestedCheckpoint(TrainerContext& context, DenseSynchroniser& synchroniser)
      : context_(context), checkpoint_writer_(context, synchroniser, CheckpointId::kRequested) {}

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

  // The checkpoint must not contain changes by this step and later ones, so these may not begin
  // yet.
  int64_t HoldsFrom() const {
    if (!wanted_ && !stays_) return std::numeric_limits<int64_t>::max();
    return step_ < 0 ? first_free_ : step_;
  }
  // No push at all may be sent.
  bool holds_pushes() const { return checkpoint_writer_.holds() || stays_; }
  CheckpointWriter& saving() { return checkpoint_writer_; }
  const CheckpointWriter& saving() const { return checkpoint_writer_; }

 private:
  TrainerContext& context_;
  CheckpointWriter checkpoint_writer_;
  bool wanted_ = false;
  bool hold_ = false;     // no step is taken after the checkpoint
  bool stays_ = false;    // ... and the checkpoint is written
  uint64_t command_ = 0;  // number of the last accepted command
  absl::Status result_;   // result of that command
  std::string path_;
  int64_t first_free_ = 0;
  int64_t step_ = -1;  // agreed step; -1 = not agreed yet
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_CHECKPOINT_WRITER_H_
