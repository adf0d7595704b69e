#include "tools/sim/quadratic.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/hash.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "tools/sim/last_tenth.h"

namespace tandem::sim {
namespace {

constexpr uint64_t kRow = 1;  // the only key of each table

}  // namespace

// With the minimum m_i = i / (d + 1) - 1 for i from 1 to d, and e = x - m, the loss is e A e / 2.
double TridiagonalLoss(absl::Span<const float> x, absl::Span<double> gradient) {
  const size_t d = x.size();
  const auto distance = [&](size_t i) {
    return double{x[i]} + 1 - static_cast<double>(i + 1) / static_cast<double>(d + 1);
  };
  double before = 0, here = distance(0), sum = here * here;
  for (size_t i = 0; i < d; ++i) {
    const double next = i + 1 < d ? distance(i + 1) : 0;
    gradient[i] = (2 * here - before - next) / 4;
    sum += (here - next) * (here - next);
    before = std::exchange(here, next);
  }
  return sum / 8;
}

absl::StatusOr<std::unique_ptr<worker::TaskRunner>> QuadraticRunner::New(
    const job::ResolvedJob& plan, int rank, const QuadraticOptions& options,
    QuadraticLosses* losses) {
  TANDEM_ASSIGN_OR_RETURN(
      auto dense, worker::DenseParameters::New(plan.job.dense().optimizer(), options.dense));
  const absl::Span<float> begin = options.tridiagonal ? dense->values().first(1) : dense->values();
  for (float& value : begin) value = static_cast<float>(options.first);
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
  if (fetched_++ >= options_.steps || IsOver()) return absl::OkStatus();
  batch.samples = plan_.job.train().batch_size();
  if (options_.tridiagonal) return absl::OkStatus();
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

bool QuadraticRunner::IsOver() const {
  if (losses_->reached.has_value()) return true;
  return options_.seconds > 0 && losses_->begun.has_value() &&
         options_.now() - *losses_->begun >= absl::Seconds(options_.seconds);
}

double QuadraticRunner::DiagonalLoss(absl::Span<const float> weights,
                                     absl::Span<double> gradient) const {
  double loss = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double share =
        weights.size() == 1 ? 0 : static_cast<double>(i) / static_cast<double>(weights.size() - 1);
    const double curvature = options_.curvature * std::pow(options_.condition, -share);
    const double weight = weights[i];
    gradient[i] = curvature * weight;
    loss += curvature * weight * weight / 2;
  }
  return loss;
}

// Writes the gradient, summed over the samples, and returns the loss of one sample.
double QuadraticRunner::Descend(uint64_t noise_seed, double samples,
                                absl::Span<const float> weights, absl::Span<float> gradient) {
  exact_.resize(weights.size());
  const absl::Span<double> exact = absl::MakeSpan(exact_);
  const double loss =
      options_.tridiagonal ? TridiagonalLoss(weights, exact) : DiagonalLoss(weights, exact);
  Random random(noise_seed);
  for (size_t i = 0; i < weights.size(); ++i) {
    const double noise = options_.noise > 0 ? options_.noise * random.Normal() : 0;
    gradient[i] = static_cast<float>(samples * (exact[i] + noise));
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
  Note(loss, options_.now() - slot->computed, slot->step);
  return absl::OkStatus();
}

void QuadraticRunner::Note(double loss, absl::Duration read, int64_t step) {
  QuadraticLosses& all = *losses_;
  // No update is applied before a step is computed, so the first step has read the initial values.
  if (!all.begun.has_value()) all.before = loss;
  all.begun = std::min(all.begun.value_or(read), read);
  if (computed_++ == 0) {
    all.first_sum += loss;
    ++all.first_count;
  }
  const bool late =
      options_.seconds > 0 && 10 * (read - *all.begun) > 9 * absl::Seconds(options_.seconds);
  if (late || InLastTenth(plan_, options_.steps, computed_, step)) {
    all.last_sum += loss;
    ++all.last_count;
  }
  if (read >= all.latest_read) {
    all.latest_read = read;
    all.latest = loss;
  }
  // Slow workers compute late what they have read early.
  if (options_.until > 0 && loss <= options_.until * all.before) {
    all.reached = std::min(all.reached.value_or(read), read);
  }
}

}  // namespace tandem::sim
