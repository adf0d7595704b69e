// Dense parameters that every worker has a replica of. What the workers do together after a step is
// a task; the reduction that it runs (dense_reduction.h) is chosen by the job, and the trainer does
// not know which one it is.
//
// Thread safety: as DenseSynchroniser.
#ifndef TANDEM_WORKER_DENSE_REPLICAS_H_
#define TANDEM_WORKER_DENSE_REPLICAS_H_

#include <memory>
#include <string>

#include "worker/dense_synchroniser.h"

namespace tandem::worker {

class DenseReplicas final : public DenseSynchroniser {
 public:
  static std::unique_ptr<DenseSynchroniser> New(TrainerContext& context, DenseParameters& dense) {
    return std::make_unique<DenseReplicas>(context, dense);
  }
  DenseReplicas(TrainerContext& context, DenseParameters& dense)
      : dense_(dense), gathers_(context.plan.job.dense().sharded_optimizer()) {}

  bool Prepare(absl::Time) override { return true; }
  absl::Span<const uint64_t> BlocksIn(uint32_t) const override { return {}; }
  void OnRows(StepSlot*) override {}
  void WriteGradient(uint32_t, StepSlot*) override {}
  bool AfterCompute(StepSlot* slot, TrainerEffects* effects) override {
    effects->tasks.push_back(SynchroniseTask{slot});
    return true;
  }
  bool TellsSamples() const override { return true; }
  uint64_t ReadLatest(absl::Time) override { return 0; }

  bool CollectForSave(absl::Time, DenseSave* save, TrainerEffects* effects) override {
    if (!gathers_) return true;
    if (!save->asked) effects->tasks.push_back(GatherDenseTask{save->id});
    save->asked = true;
    return save->collected;
  }
  absl::StatusOr<std::string> FileFor(const DenseSave&) override { return dense_.EncodeFile(); }

 private:
  DenseParameters& dense_;
  const bool gathers_;  // a replica has a share of the optimizer's slots only
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_REPLICAS_H_
