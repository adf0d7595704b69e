// Dense parameters on servers: the flat buffer in blocks, each a row of the table "dense". Rank 0
// assigns the initial values before step 0. From then on workers pull and push blocks like any
// rows, under the policy of their table.
//
// Thread safety: as DenseSynchroniser.
#ifndef TANDEM_WORKER_DENSE_DENSE_ON_SERVERS_H_
#define TANDEM_WORKER_DENSE_DENSE_ON_SERVERS_H_

#include <memory>
#include <string>
#include <vector>

#include "worker/dense/dense_synchroniser.h"

namespace tandem::worker {

class DenseOnServers final : public DenseSynchroniser {
 public:
  static std::unique_ptr<DenseSynchroniser> New(TrainerContext& context, DenseParameters& dense) {
    return std::make_unique<DenseOnServers>(context, dense);
  }
  DenseOnServers(TrainerContext& context, DenseParameters& dense);

  bool Prepare(absl::Time now) override;
  absl::Span<const uint64_t> BlocksIn(uint32_t group) const override;
  void OnRows(StepSlot* slot) override;
  void WriteGradient(uint32_t group, StepSlot* slot) override;
  bool AfterCompute(StepSlot*, TrainerEffects*) override { return false; }
  bool TellsSamples() const override { return false; }
  uint64_t ReadLatest(absl::Time now) override;
  bool CollectForCheckpoint(DenseCheckpoint*, TrainerEffects*) override { return true; }
  std::string DenseFile() const override { return ""; }

 private:
  void Assign(absl::Time now);

  TrainerContext& context_;
  DenseParameters& dense_;
  const uint32_t table_, group_;
  bool assigning_ = false;
  std::vector<float> assigned_rows_;  // initial values, until they have arrived
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_DENSE_ON_SERVERS_H_
