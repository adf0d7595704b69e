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
// If N (`momentum_rounds`) is above 1, the momentum enters only in every N-th sync round
// (delayed Nesterov: Liu et al. 2024, "Asynchronous local-SGD training for language modeling",
// algorithm 3 with c = 0). The velocity takes the mean of the N deltas, and each delta counts 1/N:
//
//   v = (momentum at the first of N sync rounds, otherwise 1) * v + delta / N
//   common -= rate * (delta / N + (momentum at the last of N, otherwise 0) * v)
//
// After N sync rounds the common model has thus taken one step of the formula above with their
// mean. With N = 1 the two formulas are the same, to the bit.
//
// With HeLoCo (heloco.h) the delta of each parameter tensor is corrected first, and the velocity is
// a running mean:
//
//   v = momentum * v + (1 - momentum) * corrected;  common -= rate * (corrected + momentum * v)
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

#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "collectives/schedules/schedule.h"
#include "worker/dense/local_steps.h"

namespace tandem::worker {

class LocalSgd final : public LocalSteps {
 public:
  struct Outer {
    float learning_rate = 1, momentum = 0;
    int64_t momentum_rounds = 1;  // N above; at most 2^20, which a float holds exactly
    absl::optional<HeLoCo> heloco = absl::nullopt;
    bool is_average() const { return learning_rate == 1 && momentum == 0; }
    // Floats of the state of an outer step, all 0 at first: the velocity of `parameters`, and with
    // N above 1 the number of sync rounds since the momentum last entered.
    size_t StateSize(size_t parameters) const { return parameters + (momentum_rounds > 1 ? 1 : 0); }
    // One outer step. `moved` says how far the mean of the replicas has moved: `delta` above is
    // factor * moved[i]. `common` and `moved` have the same length, at most the parameters of the
    // state. `parameters`: where each tensor lies in `common`. Not inline, because local_sgd.cc is
    // built without fused multiply-add and its callers are not.
    void Step(absl::Span<const float> moved, float factor,
              absl::Span<const collectives::Piece> parameters, absl::Span<float> state,
              absl::Span<float> common) const;

   private:
    // The step of one parameter tensor, corrected by HeLoCo.
    void HeLoCoStep(absl::Span<const float> moved, float factor, absl::Span<float> velocity,
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
  // The common model, padded, and the state of its outer step; empty without an outer step.
  std::vector<float> common_, state_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_LOCAL_SGD_H_
