// Dense parameters of which every worker has a replica. The common work of the workers after a step
// is a task. The job chooses the reduction that the task runs (dense_reduction.h). The trainer
// knows only whether replicas take each step together, or take local steps with sync rounds
// (local_steps.h).
//
// Thread safety: as DenseSynchroniser.
#ifndef TANDEM_WORKER_DENSE_DENSE_REPLICAS_H_
#define TANDEM_WORKER_DENSE_DENSE_REPLICAS_H_

#include <algorithm>
#include <memory>
#include <string>

#include "worker/dense/dense_synchroniser.h"

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
  // `local`: workers take local steps.
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
  // Lockstep policies report that no worker has samples sooner than the next sync round does.
  bool TellsSamples() const override { return !policies_tell_ && !quorum_; }
  bool SyncsAtEnd() const override { return policies_tell_; }
  bool EndsEpochs() const override { return quorum_; }
  bool HasOwnState() const override { return local_; }
  uint64_t ReadLatest(absl::Time) override { return 0; }

  bool CollectForCheckpoint(DenseCheckpoint* checkpoint, TrainerEffects* effects) override {
    if (!gathers_) return true;
    if (!checkpoint->asked) {
      effects->tasks.push_back(
          GatherDenseTask{checkpoint->id, &checkpoint->missed, &checkpoint->bytes_sent});
    }
    checkpoint->asked = true;
    return checkpoint->collected;
  }
  std::string DenseFile() const override { return dense_.EncodeFile(); }

 private:
  DenseParameters& dense_;
  const bool local_, quorum_, policies_tell_;
  // Whether a checkpoint needs a gather, because a replica has only a share of the optimizer state
  // or is not the model.
  const bool gathers_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_DENSE_REPLICAS_H_
