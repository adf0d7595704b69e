#include "worker/dense/sync_replica.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "optim/fold.h"

namespace tandem::worker {
namespace {

// Makes a common model. LocalSgd::Outer steps it, not an optimizer of the job.
std::unique_ptr<DenseParameters> NewCommon(const DenseParameters& like) {
  Optimizer optimizer;
  optimizer.set_kind(Optimizer::PROGRAM);
  absl::StatusOr<std::unique_ptr<DenseParameters>> common =
      DenseParameters::New(optimizer, like.count());
  TANDEM_CHECK(common.ok());
  const absl::Span<const float> values = like.values();
  std::copy(values.begin(), values.end(), (*common)->values().begin());
  return *std::move(common);
}

}  // namespace

SyncReplica::Options SyncReplica::OptionsOf(const job::ResolvedJob& plan) {
  return {plan.job.dense().local_steps().sync_every(), LocalSgd::OuterOf(plan)};
}

SyncReplica::SyncReplica(DenseParameters& dense, const Options& options)
    : dense_(dense),
      options_(options),
      outer_state_(options.outer.StateSize(dense.padded().size())),
      common_(NewCommon(dense)),
      moved_(dense.padded().size() + 1) {}

std::unique_ptr<DenseParameters> SyncReplica::NewModel() {
  std::unique_ptr<DenseParameters> model = NewCommon(*common_);
  model->set_program([this, values = model->padded()](absl::Span<const float> moved, float factor) {
    options_.outer.Step(moved, factor, dense_.parameters(), absl::MakeSpan(outer_state_),
                        values.first(moved.size()));
  });
  return model;
}

bool SyncReplica::Step(absl::Span<const float> gradient, const DenseReduction::Step& step) {
  if (step.samples > 0) {
    dense_.Apply(gradient.first(dense_.padded().size()),
                 optim::FoldFactor(static_cast<double>(step.samples)), step.sample_clock);
    samples_ += step.samples;
  }
  return ++steps_ >= options_.every;
}

SyncReplica::Movement SyncReplica::Bring() {
  Movement movement = BringRest();
  movement.sync_round.number = sync_round_++;
  return movement;
}

SyncReplica::Movement SyncReplica::BringRest() {
  const absl::Span<const float> replica = std::as_const(dense_).values();
  const absl::Span<const float> common = std::as_const(*common_).values();
  const auto weight = static_cast<float>(samples_);
  for (size_t i = 0; i < replica.size(); ++i) moved_[i] = weight * (common[i] - replica[i]);
  Movement movement;
  movement.values = absl::MakeSpan(moved_);
  movement.sync_round.samples = samples_;
  steps_ = samples_ = 0;
  return movement;
}

void SyncReplica::TakeCommon() {
  const absl::Span<const float> common = std::as_const(*common_).values();
  std::copy(common.begin(), common.end(), dense_.values().begin());
  steps_ = samples_ = 0;
}

void SyncReplica::BeginEpoch(int64_t step) { sync_round_ = std::max(sync_round_, step); }

std::string SyncReplica::State() const {
  std::vector<float> floats = dense_.RowsWithSlots();
  floats.insert(floats.end(), outer_state_.begin(), outer_state_.end());
  return std::string(reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float));
}

absl::Status SyncReplica::SetState(absl::string_view state) {
  if (state.empty()) return absl::OkStatus();
  std::vector<float> rows(dense_.RowsWithSlots().size());
  const size_t bytes = (rows.size() + outer_state_.size()) * sizeof(float);
  if (state.size() != bytes) {
    return absl::DataLossError(
        absl::StrCat("saved replica has ", state.size(), " bytes, expected ", bytes));
  }
  std::memcpy(rows.data(), state.data(), rows.size() * sizeof(float));
  std::memcpy(outer_state_.data(), state.data() + rows.size() * sizeof(float),
              outer_state_.size() * sizeof(float));
  TANDEM_RETURN_IF_ERROR(dense_.SetRowsWithSlots(rows));
  const absl::Span<const float> replica = std::as_const(dense_).values();
  std::copy(replica.begin(), replica.end(), common_->values().begin());
  return absl::OkStatus();
}

}  // namespace tandem::worker
