// The training loop of one worker: a deterministic state machine over client and barriers. The loop
// hands slow work to its shell as tasks: reading files, computing gradients, summing dense
// gradients over the workers, writing files. The end of a task comes back as an event. The same
// loop therefore runs in production and in the simulator.
//
// Smaller state machines do the work. This class orders them and passes each event to the right
// one:
//
//   prepare (dense_synchroniser.h) -> the steps of an epoch (step_pipeline.h) -> its end
//   (epoch_end.h) -> evaluation (evaluation_round.h) -> the next epoch ...
//   ... -> the last checkpoint (checkpoint_writer.h) -> the end
//
// A requested checkpoint runs at the same time as these phases. With train.keep_best, an evaluation
// that is the best so far is followed by a checkpoint, and the checkpoint by an evaluation of the
// test rows. Training stops early when the evaluation has not improved for the configured patience.
//
// Thread safety: none needed; one thread. While a task runs on a slot, the slot's batch and
// gradients belong to the task; otherwise they belong to the core.
#ifndef TANDEM_WORKER_TRAINER_CORE_H_
#define TANDEM_WORKER_TRAINER_CORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "client/client_core.h"
#include "job/job.h"
#include "proto/activity.h"
#include "proto/outgoing.h"
#include "proto/range_map.h"
#include "worker/checkpoint_writer.h"
#include "worker/dense/dense_parameters.h"
#include "worker/dense/dense_synchroniser.h"
#include "worker/epoch_end.h"
#include "worker/evaluation_round.h"
#include "worker/step_pipeline.h"
#include "worker/trainer_context.h"
#include "worker/trainer_task.h"

namespace tandem::worker {

class TrainerCore {
 public:
  struct Options {
    int rank = 0;
    uint64_t incarnation = 0;
    client::ClientCore::Options client;
    absl::Duration control_resend = absl::Seconds(1);
    bool checkpoint = false;      // write a checkpoint at the end (the scheduler knows where)
    bool evaluate = true;         // false if there are no rows to evaluate on
    int64_t estimated_rows = 0;   // rows of this worker's share, for the progress line; 0 = unknown
    uint64_t files_hash = 0;      // data::HashTrainingFiles, for a process that replaces this one
    std::string checkpoint_path;  // the model folder, where checkpoints go
    // The position from which the run resumes (resume_position.h); none: the run starts at its
    // beginning.
    absl::optional<TrainPosition> start;
    // This process takes the place of a dead worker. `start`, `best` and `epochs_to_first_judged`
    // are those of this message.
    absl::optional<WorkerStart> replaces;
    // Resumed run, rank 0: the best evaluation before the resume.
    absl::optional<BestEvaluation> best;
    // Resumed run, rank 0: the epochs up to the first judged one; 0: no evaluation was judged.
    int64_t epochs_to_first_judged = 0;
    // TaskRunner::TakeBack; empty: no step can be cancelled.
    std::function<bool(int64_t step)> take_back;
  };

  // `dense` may have zero elements (then it is never synchronised). All references outlive the
  // core.
  static absl::StatusOr<std::unique_ptr<TrainerCore>> New(const job::ResolvedJob& plan,
                                                          const Options& options,
                                                          DenseParameters& dense,
                                                          BufferSource& buffers);

  void OnView(absl::Time now, std::shared_ptr<const RangeMap> view, TrainerEffects* effects);
  // Frames from shards, workers and the scheduler (BarrierRelease, Command START / CHECKPOINT /
  // STOP).
  void OnFrame(absl::Time now, const ParsedFrame& frame, TrainerEffects* effects);
  void OnTaskDone(absl::Time now, const TrainerTask& task, const absl::Status& status,
                  TrainerEffects* effects);
  void OnTick(absl::Time now, TrainerEffects* effects);
  // The connection to a shard or to another worker is lost, and with it all frames in flight.
  void OnLost(absl::Time now, EndpointId peer, absl::string_view why);

  // True after STOP: nothing more will happen.
  bool finished() const { return phase_ == Phase::kFinished; }
  // Not OK: the job must fail for this reason (data, NaN, a request past its deadline).
  const absl::Status& failure() const { return context_.failure; }

  // The worker has computed everything and waits for the end of the job.
  bool at_end() const { return said_done_; }
  int64_t step() const { return context_.step(); }
  int64_t epoch() const { return context_.epoch; }
  // The current work of the loop, or the node that it waits for; this process's heartbeats carry
  // it. `synchroniser`: the wait of a running SynchroniseTask, according to its runner.
  Activity Doing(absl::Time now, const Activity& synchroniser) const;
  // Grows whenever the loop makes progress.
  uint64_t progress_count() const { return context_.progress; }
  const client::ClientCore& client() const { return context_.client; }

 private:
  enum class Phase {
    kWaitStart,
    kPrepare,
    kTraining,
    kEpochEnd,
    kEvaluation,
    kCheckpointBest,
    kTestBest,
    kCheckpoint,
    kEnd,
    kFinished,
  };

  TrainerCore(const job::ResolvedJob& plan, const Options& options, DenseParameters& dense,
              BufferSource& buffers);

  // Does everything that can be done now, then collects the frames to send.
  void Advance(absl::Time now, TrainerEffects* effects);
  bool AdvanceOnce(absl::Time now, TrainerEffects* effects);
  bool AdvancePrepare(absl::Time now);
  bool AdvanceRequestedCheckpoint(absl::Time now, TrainerEffects* effects);
  bool AdvanceTraining(absl::Time now, TrainerEffects* effects);
  bool AdvanceEpochEnd(absl::Time now, TrainerEffects* effects);
  bool BeginEvaluation(absl::Time now);
  bool AdvanceEvaluation(absl::Time now, TrainerEffects* effects);
  bool AdvanceEnd(absl::Time now);
  bool KeptBest(absl::Time now);
  bool NextEpochOrEnd();
  void ReportEvaluation(absl::Time now);
  bool Enter(Phase phase);
  void CollectOutgoing(absl::Time now, TrainerEffects* effects);

  void OnControl(absl::Time now, const ParsedFrame& frame);
  void OnCommand(absl::Time now, const Command& command);
  void OnCompletion(absl::Time now, const client::ClientCore::Completion& completion,
                    TrainerEffects* effects);
  void DealOut(const TrainerTask& task, const absl::Status& status);
  CheckpointWriter& CheckpointWriterOf(CheckpointId id);
  const CheckpointWriter* Marking() const;  // the checkpoint at its mark; or null
  void SendReport(absl::Time now, bool done);
  absl::Duration ReportPeriod() const;
  TrainPosition Position() const;
  bool ReportsPlaces() const;
  bool CheckpointIsNear();

  const Options options_;
  TrainerContext context_;
  const std::unique_ptr<DenseSynchroniser> synchroniser_;
  StepPipeline pipeline_;
  EpochEnd epoch_end_;
  EvaluationRound evaluation_;
  RequestedCheckpoint requested_checkpoint_;
  CheckpointWriter best_checkpoint_, final_checkpoint_;

  // With quorum sums: the state of the last sums of an epoch, for which all workers are needed.
  enum class DenseEnd { kAhead, kUnderWay, kReached };

  Phase phase_ = Phase::kWaitStart;
  DenseEnd dense_end_ = DenseEnd::kAhead;
  std::vector<int64_t> missed_sums_;  // EpochEndTask
  uint64_t epoch_end_bytes_ = 0;      // EpochEndTask
  bool have_view_ = false, started_ = false, stop_ = false;
  bool said_done_ = false;
  bool said_back_ = true;        // false: the process replaces another one, and trains no step yet
  int64_t place_of_epoch_ = -1;  // the last epoch in which the worker has reported its place
  bool stops_early_ = false;
  int64_t best_checkpointed_ = -1;  // the step of the best checkpoint of this attempt
  // Rank 0: the best evaluation whose model is in a checkpoint (or is final without checkpoints).
  absl::optional<BestEvaluation> kept_;
  absl::Time next_report_;  // set by START
  // the step at which the scheduler gets the next early report
  int64_t next_checkpoint_step_;
  std::vector<Control> entries_;  // of barriers; scratch memory
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_CORE_H_
