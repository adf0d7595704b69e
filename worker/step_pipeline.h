// The steps of one epoch on one worker. A step passes through
//
//   fetch its batch -> read its rows (up to `depth` steps ahead) -> may it start? -> compute ->
//   push gradient sums to every shard -> synchronise the dense part -> the next step
//
// in a lane of its own; `depth` + 2 lanes are used in turn. The epoch is over when the data has run
// out (jobs that are not lockstep), or at a step that says that no worker had samples (lockstep). With
// workers that meet now and then (local_steps.h) that is the first meeting to which nobody brings any;
// or, where policies have told it, one step more, in which they meet.
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
#include "worker/dense_parameters.h"
#include "worker/dense_synchroniser.h"
#include "worker/trainer_context.h"
#include "worker/trainer_task.h"

namespace tandem::worker {

class StepPipeline {
 public:
  // A worker that may not start a step asks again how far others are, after `probe_pause`. All
  // references outlive this.
  StepPipeline(TrainerContext& context, DenseSynchroniser& synchroniser,
               const DenseParameters& dense, absl::Duration probe_pause);

  // An epoch begins at context.step.
  void Begin();
  // The same for an epoch that began at `first_step` and of which this worker has trained on `rows`.
  void Resume(int64_t first_step, int64_t rows);
  // Does one thing that can be done; false if there is none. The steps from `hold_from` on may not
  // begin.
  bool Advance(absl::Time now, int64_t hold_from, TrainerEffects* effects);
  // The epoch has ended; nothing is under way but pushes.
  bool over() const { return over_; }
  // It has, or ends as soon as it comes on.
  bool ends() const { return over_ || (empty_step_ && !meets_at_end()); }
  int64_t first_step() const { return first_step_; }

  void OnTaskDone(const FetchTask& task);
  void OnTaskDone(absl::Time now, const ComputeTask& task, TrainerEffects* effects);
  void OnTaskDone(const SynchroniseTask& task);
  // False if the request is none of the pipeline's.
  bool OnCompletion(absl::Time now, const client::ClientCore::Completion& completion,
                    TrainerEffects* effects);
  // A push came too late somewhere and was dropped there: `step` is open now (0: none was late).
  void OnOpenStep(int64_t step) { open_step_ = std::max(open_step_, step); }

  // The step has begun: its peers need it to be finished.
  bool step_begun() const;
  // The step at hand is with those who compute.
  bool computing() const;
  // Cancels the step at hand, which was not computed. The result of its compute task is ignored.
  void TakeBack();
  // The step is computed and pushed, or others before it are left out, but not synchronised.
  bool synchronising() const { return synchronising_; }
  // What the step does; no text if it waits for the client. `synchroniser`: what a SynchroniseTask
  // under way waits for.
  Activity Doing(const Activity& synchroniser) const;

 private:
  enum class LaneState { kFree, kFetching, kFetched, kReading, kReady, kComputing };
  struct Read {
    uint64_t request = 0;
    bool tells_end = false;  // its answer tells the sum of n of the last closed step
  };
  struct Lane {
    StepSlot slot;
    LaneState state = LaneState::kFree;
    std::vector<Read> reads;
    absl::Time read_since;
  };

  bool SkipToOpenStep(absl::Time now, int64_t hold_from, TrainerEffects* effects);
  bool StartFetch(TrainerEffects* effects);
  bool StartReads(absl::Time now);
  bool StartCompute(absl::Time now, TrainerEffects* effects);
  bool FinishStep();
  void ReadGroup(absl::Time now, const job::GroupPlan& group, Lane* lane);
  bool MayStart(absl::Time now);
  void AskHowFar(absl::Time now, uint32_t group);
  void PreparePushes(StepSlot* slot);
  void AfterCompute(absl::Time now, TrainerEffects* effects);
  void Push(absl::Time now, int64_t in_flight, StepSlot* slot);
  void End();
  void CancelReads(Lane* lane);
  void FindKeys(const StepSlot& slot, uint32_t group);
  int64_t ClockGap() const;
  bool meets_at_end() const { return synchroniser_.MeetsAtEnd() && !met_at_end_; }
  size_t LaneIndex(int64_t step) const {
    return static_cast<size_t>(step - skipped_) % lanes_.size();
  }
  Lane& LaneOf(int64_t step) { return lanes_[LaneIndex(step)]; }
  const Lane& LaneOf(int64_t step) const { return lanes_[LaneIndex(step)]; }

  TrainerContext& context_;
  DenseSynchroniser& synchroniser_;
  const absl::Duration probe_pause_;
  const int64_t depth_;
  std::vector<Lane> lanes_;

  bool over_ = true;
  bool empty_step_ = false;  // one that no worker had samples for has been seen
  bool met_at_end_ = false;  // and the workers have met in the one after it
  int64_t first_step_ = 0;   // of the epoch
  int64_t next_fetch_ = 0, next_read_ = 0;
  int64_t open_step_ = 0;  // a step of ours came too late: this one is open
  int64_t skipped_ = 0;    // steps so far that were left out; lanes are numbered by the others
  bool fetching_ = false, exhausted_ = false;
  StepSlot left_out_;  // the last of them, for the synchroniser: without batch and gradient
  bool synchronising_ = false;  // the step; under way
  bool skipping_ = false;       // ... not it, but those left out before it
  bool synchronised_ = false;   // ... and done
  int64_t clock_gap_ = 0;       // of the step, when it started

  uint64_t probe_ = 0;  // an empty read that asks for clocks; 0 = none under way
  absl::Time next_probe_ = absl::InfinitePast();

  // Scratch: the inputs of one group.
  std::vector<client::TableKeys> keys_;
  std::vector<size_t> inputs_;  // their places in Batch::sparse
  std::vector<client::PulledRows*> rows_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_STEP_PIPELINE_H_
