#include "worker/dense/elastic_averaging.h"

#include <algorithm>

namespace tandem::worker {

std::unique_ptr<DenseReduction> ElasticAveraging::New(const job::ResolvedJob& plan, int rank,
                                                      int64_t /*bucket_bytes*/,
                                                      DenseParameters& dense) {
  return std::make_unique<ElasticAveraging>(
      dense, OptionsOf(plan, rank),
      static_cast<float>(plan.job.dense().local_steps().elasticity()));
}

ElasticAveraging::ElasticAveraging(DenseParameters& dense, const Options& options, float elasticity)
    : LocalSteps(dense, options),
      elasticity_(elasticity),
      centre_(dense.padded().begin(), dense.padded().end()) {}

// Ignores the weight: all workers move the centre equally, however many samples they had.
void ElasticAveraging::WriteShare(float /*weight*/, absl::Span<float> share) {
  const absl::Span<const float> values = dense().values();
  for (size_t i = 0; i < share.size(); ++i) share[i] = values[i] - centre_[i];
}

void ElasticAveraging::TakeSyncRound(const SyncRound& sync_round) {
  const absl::Span<float> values = dense().values();
  for (size_t i = 0; i < values.size(); ++i) {
    if (sync_round.own_weight > 0) values[i] -= elasticity_ * (values[i] - centre_[i]);
    centre_[i] += elasticity_ * sync_round.sum[i];
  }
}

// Swaps centre and replica; a second call swaps them back.
void ElasticAveraging::ShowModel() {
  std::swap_ranges(centre_.begin(), centre_.end(), dense().padded().begin());
}

}  // namespace tandem::worker
