// Elastic averaging SGD, with sync rounds at the same steps on all workers (Zhang, Choromanska,
// LeCun 2015, "Deep learning with elastic averaging SGD", synchronous EASGD). Replicas never become
// equal. At a sync round (local_steps.h) each replica x_i and a centre c move towards each other:
//
//   x_i -= a (x_i - c);   c += a * sum over i of (x_i - c)        both with the old centre
//
// over the workers that had samples since the last sync round. Every worker keeps the same centre.
// The centre is the model: from the end of an epoch until the next step the parameters are the
// centre, so evaluations and programs see it, and the replica is stored elsewhere. A checkpoint
// always has the centre as the model.
//
// Thread safety: as DenseReduction.
#ifndef TANDEM_WORKER_DENSE_ELASTIC_AVERAGING_H_
#define TANDEM_WORKER_DENSE_ELASTIC_AVERAGING_H_

#include <memory>
#include <vector>

#include "worker/dense/local_steps.h"

namespace tandem::worker {

class ElasticAveraging final : public LocalSteps {
 public:
  static std::unique_ptr<DenseReduction> New(const job::ResolvedJob& plan, int rank,
                                             int64_t bucket_bytes, DenseParameters& dense);

  // `dense` outlives this object and has the same values on all workers; these values are the first
  // centre. `elasticity`: `a` in the formula above.
  ElasticAveraging(DenseParameters& dense, const Options& options, float elasticity);

 private:
  void WriteShare(float weight, absl::Span<float> share) override;
  void TakeSyncRound(const SyncRound& sync_round) override;
  void ShowModel() override;
  void ShowReplica() override { ShowModel(); }
  bool CheckpointsSum() const override { return false; }
  std::vector<float> ModelToCheckpoint(const SyncRound&) const override { return centre_; }
  std::vector<std::vector<float>*> Remembered() override { return {&centre_}; }

  const float elasticity_;
  std::vector<float> centre_;  // padded; holds the replica while the parameters are the centre
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_ELASTIC_AVERAGING_H_
