#include "worker/dense/local_sgd.h"

#include <algorithm>

#include "worker/dense/heloco.h"

namespace tandem::worker {

std::unique_ptr<DenseReduction> LocalSgd::New(const job::ResolvedJob& plan, int rank,
                                              int64_t /*bucket_bytes*/, DenseParameters& dense) {
  return std::make_unique<LocalSgd>(dense, OptionsOf(plan, rank), OuterOf(plan));
}

LocalSgd::Outer LocalSgd::OuterOf(const job::ResolvedJob& plan) {
  const tandem::LocalSteps& local = plan.job.dense().local_steps();
  Outer outer;
  outer.learning_rate = static_cast<float>(local.outer_learning_rate());
  outer.momentum = static_cast<float>(local.outer_momentum());
  if (local.outer_optimizer() == tandem::LocalSteps::DELAYED_NESTEROV) {
    outer.momentum_rounds = local.momentum_rounds();
  }
  if (local.outer_optimizer() == tandem::LocalSteps::HELOCO) outer.heloco = local.heloco();
  return outer;
}

void LocalSgd::Outer::Step(absl::Span<const float> moved, float factor,
                           absl::Span<const collectives::Piece> parameters, absl::Span<float> state,
                           absl::Span<float> common) const {
  if (heloco.has_value()) {
    for (const collectives::Piece& parameter : parameters) {
      const auto at = static_cast<size_t>(parameter.begin);
      const auto count = static_cast<size_t>(parameter.count);
      HeLoCoStep(moved.subspan(at, count), factor, state.subspan(at, count),
                 common.subspan(at, count));
    }
    return;
  }
  const auto rounds = static_cast<float>(momentum_rounds);
  const float before = momentum_rounds > 1 ? state.back() : 0;
  const bool last = before + 1 == rounds;
  const float decay = before == 0 ? momentum : 1, ahead = last ? momentum : 0;
  for (size_t i = 0; i < moved.size(); ++i) {
    const float delta = factor * moved[i] / rounds;
    state[i] = decay * state[i] + delta;
    common[i] -= learning_rate * (delta + ahead * state[i]);
  }
  if (momentum_rounds > 1) state.back() = last ? 0 : before + 1;
}

void LocalSgd::Outer::HeLoCoStep(absl::Span<const float> moved, float factor,
                                 absl::Span<float> velocity, absl::Span<float> common) const {
  std::vector<float> delta(moved.begin(), moved.end());
  for (float& element : delta) element *= factor;
  const CorrectedMovement corrected = CorrectMovement(*heloco, delta, velocity);
  const float gain = 1 - momentum;
  for (size_t i = 0; i < delta.size(); ++i) {
    const auto step =
        static_cast<float>(corrected.of_movement * delta[i] + corrected.of_velocity * velocity[i]);
    velocity[i] = momentum * velocity[i] + gain * step;
    common[i] -= learning_rate * (step + momentum * velocity[i]);
  }
}

LocalSgd::LocalSgd(DenseParameters& dense, const Options& options, const Outer& outer)
    : LocalSteps(dense, options), outer_(outer) {
  if (outer_.is_average()) return;
  common_.assign(dense.padded().begin(), dense.padded().end());
  state_.resize(outer_.StateSize(common_.size()));
}

void LocalSgd::BeginLocalSteps() {
  if (outer_.is_average()) return;
  common_.assign(dense().padded().begin(), dense().padded().end());
}

void LocalSgd::WriteShare(float weight, absl::Span<float> share) {
  const absl::Span<const float> values = dense().values();
  for (size_t i = 0; i < share.size(); ++i) share[i] = weight * values[i];
}

void LocalSgd::TakeSyncRound(const SyncRound& sync_round) {
  const absl::Span<float> values = dense().values();
  for (size_t i = 0; i < values.size(); ++i) values[i] = sync_round.sum[i] / sync_round.weight;
  if (outer_.is_average()) return;
  const absl::Span<float> common = absl::MakeSpan(common_).first(values.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = common[i] - values[i];
  outer_.Step(values, 1, dense().parameters(), absl::MakeSpan(state_), common);
  std::copy(common.begin(), common.end(), values.begin());
}

std::vector<float> LocalSgd::ModelToCheckpoint(const SyncRound& sync_round) const {
  // no steps since the last sync round, so replicas are equal
  if (sync_round.weight == 0) return {};
  std::vector<float> model(dense().padded().size());
  for (size_t i = 0; i < sync_round.sum.size(); ++i)
    model[i] = sync_round.sum[i] / sync_round.weight;
  return model;
}

std::vector<std::vector<float>*> LocalSgd::Remembered() {
  if (outer_.is_average()) return {};
  return {&common_, &state_};
}

}  // namespace tandem::worker
