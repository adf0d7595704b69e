// The steps of one epoch on one worker. A step passes through
//
//   fetch its batch -> pull its rows (up to `depth` steps ahead) -> may it start? -> compute ->
//   push gradient sums to every shard -> synchronise the dense part -> the next step
//
// in a slot of its own, one of `depth` + 2 that are used in turn. In jobs without lockstep, the
// epoch is over when the data has run out. In lockstep jobs, the epoch is over at a step in which
// no worker had samples. With local SGD (local_steps.h) the epoch is over at the first sync round
// to which no worker brings samples. If the policy of a table tells the workers sooner that no
// worker has samples, one more step follows, whose sync round takes what is left.
//
// Thread safety: none needed; one thread. In the steady state nothing is allocated.
#ifndef TANDEM_WORKER_STEP_PIPELINE_H_
#define TANDEM_WORKER_STEP_PIPELINE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "client/client_core.h"
#include "proto/activity.h"
#include "worker/dense/dense_parameters.h"
#include "worker/dense/dense_synchroniser.h"
#include "worker/trainer_context.h"
#include "worker/trainer_task.h"

namespace tandem::worker {

class StepPipeline {
 public:
  // A worker that may not start a step asks for the progress of the others again after
  // `probe_pause`. All references outlive this object.
  StepPipeline(TrainerContext& context, DenseSynchroniser& synchroniser,
               const DenseParameters& dense, absl::Duration probe_pause);

  // Begins an epoch at context.step.
  void Begin();
  // Resumes an epoch in which this worker stands at `start`. The servers have all steps below
  // `first_trained`, so the worker reads and drops their batches. Only a process that takes the
  // place of a dead one has such steps.
  void Resume(const TrainPosition& start, int64_t first_trained = 0);
  // Does one thing that can be done; false if there is none. The steps from `hold_from` on may not
  // begin. If one of them has begun, its push and its synchronisation wait.
  bool Advance(absl::Time now, int64_t hold_from, TrainerEffects* effects);
  // The epoch has ended; only pushes may still be in flight.
  bool over() const { return over_; }
  // The epoch has ended, or will end at the next Advance.
  bool ends() const { return over_ || (empty_step_ && !syncs_at_end()); }
  int64_t first_step() const { return first_step_; }

  void OnTaskDone(const FetchTask& task);
  void OnTaskDone(const ComputeTask& task);
  void OnTaskDone(const SynchroniseTask& task);
  // False if the request does not belong to the pipeline.
  bool OnCompletion(absl::Time now, const client::ClientCore::Completion& completion,
                    TrainerEffects* effects);
  // A shard dropped a push that came too late: `step` is open now (0: no push was late).
  void OnOpenStep(int64_t step) { open_step_ = std::max(open_step_, step); }

  // The current step has begun, so other workers need its result.
  bool step_begun() const;
  // The current step is with the task runner, which computes it.
  bool computing() const;
  // Cancels the current step, which was not computed. The pipeline ignores the result of its
  // compute task.
  void TakeBack();
  // The current step is computed and pushed, or skipped steps are reported, but the synchroniser
  // has not finished.
  bool synchronising() const { return synchronising_; }
  // The current work of the step; no text if the step waits for the client. `synchroniser`: the
  // wait of a running SynchroniseTask.
  Activity Doing(const Activity& synchroniser) const;

 private:
  enum class SlotState { kFree, kFetching, kFetched, kReading, kReady, kComputing };
  struct Read {
    uint64_t request = 0;
    bool tells_end = false;  // its answer has the sum of n of the last closed step
  };
  struct Slot {
    StepSlot slot;
    SlotState state = SlotState::kFree;
    std::vector<Read> reads;
    absl::Time read_since;
  };

  bool DropBatch();
  void CountUpdatesOf(const StepSlot& slot);
  bool SkipToOpenStep(absl::Time now, int64_t hold_from, TrainerEffects* effects);
  bool StartFetch(TrainerEffects* effects);
  bool StartReads(absl::Time now);
  bool StartCompute(absl::Time now, TrainerEffects* effects);
  bool FinishStep();
  void ReadGroup(absl::Time now, const job::GroupPlan& group, Slot* entry);
  bool MayStart(absl::Time now);
  void AskHowFar(absl::Time now, uint32_t group);
  void PreparePushes(StepSlot* slot);
  void AfterCompute(absl::Time now, TrainerEffects* effects);
  void Push(absl::Time now, int64_t in_flight, StepSlot* slot);
  void End();
  void CancelReads(Slot* entry);
  void FindKeys(const StepSlot& slot, uint32_t group);
  int64_t ClockGap() const;
  bool syncs_at_end() const { return synchroniser_.SyncsAtEnd() && !synced_at_end_; }
  size_t SlotIndex(int64_t step) const {
    return static_cast<size_t>(step - skipped_) % slots_.size();
  }
  Slot& SlotOf(int64_t step) { return slots_[SlotIndex(step)]; }
  const Slot& SlotOf(int64_t step) const { return slots_[SlotIndex(step)]; }

  TrainerContext& context_;
  DenseSynchroniser& synchroniser_;
  const absl::Duration probe_pause_;
  const int64_t depth_;
  std::vector<Slot> slots_;

  bool over_ = true;
  bool empty_step_ = false;     // seen a step for which no worker had samples
  bool synced_at_end_ = false;  // ... and the workers had a sync round in the step after it
  int64_t first_step_ = 0;      // first step of the epoch
  int64_t first_trained_ = 0;   // batches of earlier steps are dropped
  int64_t next_fetch_ = 0, next_read_ = 0;
  // A push of this worker came too late; this step was open then.
  int64_t open_step_ = 0;
  // Steps skipped so far. Lanes are numbered by the steps that were not skipped.
  int64_t skipped_ = 0;
  bool fetching_ = false, exhausted_ = false;
  bool computed_ = false;  // the compute task of the current step has ended; nothing is pushed yet
  // The last skipped step, for the synchroniser: without batch and gradient.
  StepSlot left_out_;
  // The synchroniser works on the current step,
  bool synchronising_ = false;
  bool skipping_ = false;      // ... or on the steps skipped before it,
  bool synchronised_ = false;  // ... and has finished
  int64_t clock_gap_ = 0;      // clock gap of the step when it started

  uint64_t probe_ = 0;  // an empty pull that asks for clocks; 0 = none in flight
  absl::Time next_probe_ = absl::InfinitePast();

  // Scratch memory: the inputs of one group.
  std::vector<client::TableKeys> keys_;
  std::vector<size_t> inputs_;  // their indexes in Batch::sparse
  std::vector<client::PulledRows*> rows_;
  std::vector<uint32_t> ranges_;  // with keys of a table
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_STEP_PIPELINE_H_
