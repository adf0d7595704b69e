// The steps of one epoch on one worker. A step passes through
//
//   fetch its batch -> pull its rows (up to `depth` steps ahead) -> may it start? -> compute ->
//   push gradient sums to every shard -> synchronise the dense part -> the next step
//
// in a slot of its own. step_order.h decides the order. This class gives the steps their rows,
// tasks, pushes and synchronisation.
//
// In jobs without lockstep, the epoch is over when the data runs out. In lockstep jobs, the
// epoch is over at a step in which no worker had samples. With local SGD (local_steps.h) the epoch
// is over at the first sync round to which no worker brings samples. If the policy of a table tells
// the workers sooner that no worker has samples, one more step follows, whose sync round takes what
// is left.
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

  // Begins an epoch at context.step().
  void Begin();
  // Resumes an epoch in which this worker stands at `start`. The servers have all steps below
  // `first_trained`, so the worker reads and drops their batches. Only a process that takes the
  // place of a dead one has such steps.
  void Resume(const TrainPosition& start, int64_t first_trained = 0);
  // Does one thing that can be done; false if there is none. The steps from `hold_from` on may not
  // begin. If one of them has begun, its push and its synchronisation wait.
  bool Advance(absl::Time now, int64_t hold_from, TrainerEffects* effects);
  // The epoch has ended; only pushes may still be in flight.
  bool over() const { return order_.over(); }

  void OnTaskDone(const FetchTask& task);
  void OnTaskDone(const ComputeTask&) { order_.OnComputed(); }
  void OnTaskDone(const SynchroniseTask& task);
  // False if the request does not belong to the pipeline.
  bool OnCompletion(absl::Time now, const client::ClientCore::Completion& completion,
                    TrainerEffects* effects);
  // The current work of the step; no text if the step waits for the client. `synchroniser`: the
  // wait of a running SynchroniseTask.
  Activity Doing(const Activity& synchroniser) const;

 private:
  struct Read {
    uint64_t request = 0;
    bool tells_end = false;  // its answer has the sum of n of the last closed step
  };
  struct Slot {
    StepSlot slot;
    std::vector<Read> reads;
    absl::Time read_since;
  };

  struct Gate;

  void BeginAt(int64_t first_step, int64_t first_trained);
  void DropBatch();
  void CountUpdatesOf(const StepSlot& slot);
  void Skip(absl::Time now, int64_t to, TrainerEffects* effects);
  void StartFetch(TrainerEffects* effects);
  void StartReads(absl::Time now);
  void StartCompute(absl::Time now, TrainerEffects* effects);
  void FinishStep();
  void ReadGroup(absl::Time now, const job::GroupPlan& group, Slot* entry);
  void AskHowFar(absl::Time now, uint32_t group);
  void PreparePushes(StepSlot* slot);
  void AfterCompute(absl::Time now, TrainerEffects* effects);
  void Push(absl::Time now, int64_t in_flight, StepSlot* slot);
  void CancelReads(Slot* entry);
  void FindKeys(const StepSlot& slot, uint32_t group);
  Slot& SlotOf(int64_t step) { return slots_[static_cast<size_t>(order_.SlotOf(step))]; }

  TrainerContext& context_;
  StepOrder& order_;  // of context_
  DenseSynchroniser& synchroniser_;
  const absl::Duration probe_pause_;
  std::vector<Slot> slots_;  // by slot of the order
  // The last skipped step, for the synchroniser: without batch and gradient.
  StepSlot left_out_;

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
