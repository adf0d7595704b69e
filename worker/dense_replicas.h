// Dense parameters that every worker has a replica of. What the workers do together after a step is
// a task; the reduction that it runs (dense_reduction.h) is chosen by the job, and the trainer does
// not know which one it is: only whether replicas take each step together, or step by themselves and
// meet now and then (local_steps.h).
//
// Thread safety: as DenseSynchroniser.
#ifndef TANDEM_WORKER_DENSE_REPLICAS_H_
#define TANDEM_WORKER_DENSE_REPLICAS_H_

#include <algorithm>
#include <memory>
#include <string>

#include "worker/dense_synchroniser.h"

namespace tandem::worker {

class DenseReplicas final : public DenseSynchroniser {
 public:
  static std::unique_ptr<DenseSynchroniser> New(TrainerContext& context, DenseParameters& dense) {
    return std::make_unique<DenseReplicas>(context, dense);
  }
  static std::unique_ptr<DenseSynchroniser> NewLocal(TrainerContext& context,
                                                     DenseParameters& dense) {
    return std::make_unique<DenseReplicas>(context, dense, /*local=*/true);
  }
  // `local`: they step by themselves.
  DenseReplicas(TrainerContext& context, DenseParameters& dense, bool local = false)
      : dense_(dense),
        local_(local),
        quorum_(job::SumsByQuorum(context.plan.job)),
        policies_tell_(
            local && !quorum_ &&
            std::any_of(context.plan.groups.begin(), context.plan.groups.end(),
                        [](const job::GroupPlan& group) { return group.properties.lockstep; })),
        gathers_(local || quorum_ || context.plan.job.dense().sharded_optimizer()) {}

  bool Prepare(absl::Time) override { return true; }
  absl::Span<const uint64_t> BlocksIn(uint32_t) const override { return {}; }
  void OnRows(StepSlot*) override {}
  void WriteGradient(uint32_t, StepSlot*) override {}
  bool AfterCompute(StepSlot* slot, TrainerEffects* effects) override {
    effects->tasks.push_back(SynchroniseTask{slot});
    return true;
  }
  // Policies that take steps together know sooner than the next meeting that nobody has samples.
  bool TellsSamples() const override { return !policies_tell_ && !quorum_; }
  bool MeetsAtEnd() const override { return policies_tell_; }
  bool EndsEpochs() const override { return quorum_; }
  bool HasOwnState() const override { return local_; }
  uint64_t ReadLatest(absl::Time) override { return 0; }

  bool CollectForSave(absl::Time, DenseSave* save, TrainerEffects* effects) override {
    if (!gathers_) return true;
    if (!save->asked) {
      effects->tasks.push_back(GatherDenseTask{save->id, &save->missed, &save->bytes_sent});
    }
    save->asked = true;
    return save->collected;
  }
  absl::StatusOr<std::string> FileFor(const DenseSave&) override { return dense_.EncodeFile(); }

 private:
  DenseParameters& dense_;
  const bool local_, quorum_, policies_tell_;
  // A replica has a share of the optimizer's slots only, or is not the model.
  const bool gathers_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_REPLICAS_H_
