#include "tools/sim/quadratic.h"

#include <algorithm>
#include <cmath>

#include "base/hash.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "tools/sim/last_tenth.h"

namespace tandem::sim {
namespace {

constexpr uint64_t kRow = 1;  // the only key of each table

}  // namespace

absl::StatusOr<std::unique_ptr<worker::TaskRunner>> QuadraticRunner::New(
    const job::ResolvedJob& plan, int rank, const QuadraticOptions& options,
    QuadraticLosses* losses) {
  TANDEM_ASSIGN_OR_RETURN(
      auto dense, worker::DenseParameters::New(plan.job.dense().optimizer(), options.dense));
  for (float& value : dense->values()) value = static_cast<float>(options.first);
  return std::unique_ptr<worker::TaskRunner>(
      new QuadraticRunner(plan, rank, options, losses, std::move(dense)));
}

absl::Status QuadraticRunner::NoTest() {
  return absl::UnimplementedError("a quadratic has no rows to evaluate on");
}

absl::Status QuadraticRunner::Fetch(worker::StepSlot* slot) {
  if (slot->epoch != epoch_) fetched_ = 0;
  epoch_ = slot->epoch;
  data::Batch& batch = slot->batch;
  batch.Clear();
  batch.sparse.clear();
  if (fetched_++ >= options_.steps) return absl::OkStatus();
  batch.samples = plan_.job.train().batch_size();
  for (const job::TablePlan& table : plan_.tables) {
    if (!table.of_model()) continue;
    data::SparseInput input;
    input.table = table.id;
    input.fields = 1;
    input.keys = {kRow};
    batch.sparse.push_back(std::move(input));
  }
  return absl::OkStatus();
}

// Writes the gradient, summed over the samples, and returns the loss of one sample.
double QuadraticRunner::Descend(uint64_t noise_seed, double samples,
                                absl::Span<const float> weights, absl::Span<float> gradient) const {
  Random random(noise_seed);
  double loss = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double share =
        weights.size() == 1 ? 0 : static_cast<double>(i) / static_cast<double>(weights.size() - 1);
    const double curvature = options_.curvature * std::pow(options_.condition, -share);
    const double weight = weights[i];
    const double noise = options_.noise > 0 ? options_.noise * random.Normal() : 0;
    gradient[i] = static_cast<float>(samples * (curvature * weight + noise));
    loss += curvature * weight * weight / 2;
  }
  return loss;
}

absl::Status QuadraticRunner::Compute(worker::StepSlot* slot) {
  const auto samples = static_cast<double>(slot->batch.samples);
  const uint64_t seed =
      HashCombine(HashCombine(options_.seed, HashName("quadratic")),
                  HashCombine(static_cast<uint64_t>(rank_), static_cast<uint64_t>(slot->step)));
  double loss = 0;
  for (size_t i = 0; i < slot->batch.sparse.size(); ++i) {
    const uint32_t table = slot->batch.sparse[i].table;
    const size_t dim = static_cast<size_t>(plan_.tables[table].dim);
    loss += Descend(HashCombine(seed, table), samples, {slot->rows[i].at()[0], dim},
                    absl::MakeSpan(slot->gradients[i][0], dim));
    slot->rows[i].Clear();
  }
  const size_t count = static_cast<size_t>(dense_->count());
  const absl::Span<const float> values =
      slot->dense.empty() ? dense_->values() : absl::MakeConstSpan(slot->dense).first(count);
  std::fill(slot->dense_gradient.begin(), slot->dense_gradient.end(), 0.0f);
  loss += Descend(HashCombine(seed, ~uint64_t{0}), samples, values,
                  absl::MakeSpan(slot->dense_gradient).first(count));
  slot->loss_sum = samples * loss;
  if (computed_ == 0) {
    losses_->first_sum += loss;
    ++losses_->first_count;
  }
  if (InLastTenth(plan_, options_.steps, ++computed_, slot->step)) {
    losses_->last_sum += loss;
    ++losses_->last_count;
  }
  return absl::OkStatus();
}

}  // namespace tandem::sim
