// Local SGD: at a sync round (local_steps.h) the replicas become their average (Stich 2019, "Local
// SGD converges fast and communicates little"; Lin et al. 2020, "Don't use large mini-batches, use
// local SGD"). The average is weighted by samples since the last sync round, as in McMahan et al.
// 2017 ("Communication-efficient learning of deep networks from decentralized data"). In full
// periods all weights are exactly 1, and the result is the plain mean.
//
// With an outer step (DiLoCo: Douillard et al. 2023, "DiLoCo: distributed low-communication
// training of language models"), the distance that the average has moved since the last sync round
// is a gradient for SGD with Nesterov's momentum:
//
//   delta = common - average;  v = momentum * v + delta;  common -= rate * (delta + momentum * v)
//
// The replicas then become the new common model. With rate 1 and no momentum, the result is the
// average itself, to the bit, because no outer step is computed.
//
// Between sync rounds a checkpoint contains the average of the replicas, weighted as at a sync
// round, without an outer step. The average costs the checkpoint one all-reduce and changes no
// replica.
//
// Thread safety: as DenseReduction.
#ifndef TANDEM_WORKER_DENSE_LOCAL_SGD_H_
#define TANDEM_WORKER_DENSE_LOCAL_SGD_H_

#include <memory>
#include <vector>

#include "worker/dense/local_steps.h"

namespace tandem::worker {

class LocalSgd final : public LocalSteps {
 public:
  struct Outer {
    float learning_rate = 1, momentum = 0;
    bool is_average() const { return learning_rate == 1 && momentum == 0; }
    // One outer step. `moved` says how far the mean of the replicas has moved: `delta` above is
    // factor * moved[i]. All three spans have the same length. Not inline, because local_sgd.cc is
    // built without fused multiply-add and its callers are not.
    void Step(absl::Span<const float> moved, float factor, absl::Span<float> velocity,
              absl::Span<float> common) const;
  };
  static Outer OuterOf(const job::ResolvedJob& plan);
  static std::unique_ptr<DenseReduction> New(const job::ResolvedJob& plan, int rank,
                                             int64_t bucket_bytes, DenseParameters& dense);

  // `dense` outlives this object and has the same values on all workers.
  LocalSgd(DenseParameters& dense, const Options& options, const Outer& outer);

 private:
  void WriteShare(float weight, absl::Span<float> share) override;
  void TakeSyncRound(const SyncRound& sync_round) override;
  void BeginLocalSteps() override;
  bool CheckpointsSum() const override { return true; }
  std::vector<float> ModelToCheckpoint(const SyncRound& sync_round) const override;
  std::vector<std::vector<float>*> Remembered() override;

  const Outer outer_;
  std::vector<float> common_, velocity_;  // padded; empty without an outer step
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_LOCAL_SGD_H_
