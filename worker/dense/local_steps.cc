#include "worker/dense/local_steps.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "optim/fold.h"

namespace tandem::worker {
namespace {

// The numbers at the beginning of a state. The replica follows, by blocks with their optimizer
// state, and then the vectors of the derived class.
struct StateHead {
  int64_t steps = 0, own_steps = 0, own_samples = 0, empty_before = 0, shows_model = 0;
  int64_t floats = 0;  // number of floats that follow
};

std::unique_ptr<AllReduceGradients> NewTogether(DenseParameters& dense,
                                                const LocalSteps::Options& options) {
  if (options.warmup_steps == 0) return nullptr;
  AllReduceGradients::Options together;
  together.rank = options.rank;
  together.ranks = options.ranks;
  together.algorithm = options.algorithm;
  together.batch = options.batch;
  return std::make_unique<AllReduceGradients>(dense, together);
}

size_t FloatsOf(const std::vector<std::vector<float>*>& vectors) {
  size_t floats = 0;
  for (const std::vector<float>* const vector : vectors) floats += vector->size();
  return floats;
}

void AppendFloats(absl::Span<const float> floats, std::string* state) {
  state->append(reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float));
}

}  // namespace

LocalSteps::Options LocalSteps::OptionsOf(const job::ResolvedJob& plan, int rank) {
  const tandem::LocalSteps& local = plan.job.dense().local_steps();
  Options options;
  options.rank = rank;
  options.ranks = plan.workers();
  options.every = local.sync_every();
  options.warmup_steps = local.warmup_steps();
  options.batch = plan.job.train().batch_size();
  options.algorithm = DenseAlgorithm(plan);
  return options;
}

LocalSteps::LocalSteps(DenseParameters& dense, const Options& options)
    : dense_(dense),
      options_(options),
      together_(NewTogether(dense, options)),
      buffer_(dense.values().size() + 1 + static_cast<size_t>(options.ranks)) {}

// ---- a step -----------------------------------------------------------------------------------

void LocalSteps::BeforeStep() { SetShown(false); }

void LocalSteps::SetShown(bool model) {
  if (std::exchange(shows_model_, model) == model) return;
  if (model) {
    ShowModel();
  } else {
    ShowReplica();
  }
}

void LocalSteps::Begin(absl::Span<float> gradient, const Step& step) {
  TANDEM_CHECK(stage_ == Stage::kIdle);
  SetShown(false);
  dense_.SetValuesToCheckpoint({});
  step_ = step;
  gradient_ = gradient;
  samples_of_all_ = kUnknown;
  empty_steps_ = 1;
  stage_ = step.number < options_.warmup_steps ? Stage::kTogether : Stage::kStep;
  if (stage_ == Stage::kTogether) together_->Begin(gradient, step);
}

void LocalSteps::Ready(int64_t first) {
  if (stage_ == Stage::kTogether) together_->Ready(first);
}

void LocalSteps::Close() {
  if (stage_ == Stage::kTogether) {
    together_->Close();
    return EndTogether();
  }
  TANDEM_CHECK(stage_ == Stage::kStep);
  if (step_.samples > 0) {
    dense_.Apply(gradient_, optim::FoldFactor(static_cast<double>(step_.samples)),
                 step_.sample_clock);
    own_samples_ += step_.samples;
  }
  if (step_.samples > 0 || step_.skipped) ++own_steps_;
  ++steps_;
  stage_ = Stage::kIdle;
  if (steps_ == options_.every || step_.last) PrepareSyncRound(Stage::kSyncRound);
}

void LocalSteps::EndTogether() {
  if (!together_->over()) return;
  samples_of_all_ = together_->samples_of_all();
  stage_ = Stage::kIdle;
  if (step_.number + 1 == options_.warmup_steps) BeginLocalSteps();
}

// ---- a sync round -----------------------------------------------------------------------------

void LocalSteps::PrepareSyncRound(Stage stage) {
  stage_ = stage;
  std::fill(buffer_.begin(), buffer_.end(), 0.0f);
  share().end()[1 + options_.rank] = static_cast<float>(own_steps_);
  if (own_samples_ == 0) return;
  // A single worker has weight 1, so that it gets back exactly what it brings.
  const double full = static_cast<double>(options_.batch) * static_cast<double>(options_.every);
  const float weight =
      options_.ranks == 1 ? 1.0f : static_cast<float>(static_cast<double>(own_samples_) / full);
  WriteShare(weight, share());
  *share().end() = weight;
}

const DenseReduction::Request* LocalSteps::Next() {
  if (stage_ == Stage::kTogether) return together_->Next();
  if (under_way_ || (stage_ != Stage::kSyncRound && stage_ != Stage::kGather)) return nullptr;
  request_ = Request();
  request_.count = static_cast<int64_t>(buffer_.size());
  request_.input = request_.output = buffer_.data();
  request_.algorithm = options_.algorithm;
  under_way_ = true;
  return &request_;
}

void LocalSteps::OnDone() {
  if (stage_ == Stage::kTogether) {
    together_->OnDone();
    return EndTogether();
  }
  TANDEM_CHECK(under_way_);
  under_way_ = false;
  const Stage stage = std::exchange(stage_, Stage::kIdle);
  if (stage == Stage::kSyncRound) return EndSyncRound();
  if (options_.rank == 0) dense_.SetValuesToCheckpoint(ModelToCheckpoint(SyncRoundOf()));
}

LocalSteps::SyncRound LocalSteps::SyncRoundOf() const {
  const size_t count = dense_.values().size();
  SyncRound sync_round;
  sync_round.sum = absl::MakeConstSpan(buffer_).first(count);
  sync_round.weight = buffer_[count];
  const double full = static_cast<double>(options_.batch) * static_cast<double>(options_.every);
  sync_round.own_weight = static_cast<float>(static_cast<double>(own_samples_) / full);
  return sync_round;
}

void LocalSteps::EndSyncRound() {
  // The worker with the most steps with a batch says how many steps of the period were trained: a
  // worker without data gets no more in this epoch, so all steps after these were empty for all
  // workers. The epoch is over if no step had a batch, or if the policies said so (step_.last).
  const auto with_samples = absl::MakeConstSpan(buffer_).subspan(dense_.values().size() + 1);
  const auto most =
      static_cast<int64_t>(*std::max_element(with_samples.begin(), with_samples.end()));
  const SyncRound sync_round = SyncRoundOf();
  samples_of_all_ = static_cast<double>(sync_round.weight) * static_cast<double>(options_.batch) *
                    static_cast<double>(options_.every);
  if (most > 0) {
    if (sync_round.weight > 0) {
      TakeSyncRound(sync_round);
    } else {  // all workers with data have skipped their steps
      samples_of_all_ = kUnknown;
    }
    empty_before_ = steps_ - most;
  } else {
    samples_of_all_ = 0;
    empty_steps_ = steps_ + empty_before_;
  }
  steps_ = own_steps_ = own_samples_ = 0;
  if (most > 0 && !step_.last) return;
  empty_before_ = 0;
  SetShown(true);  // the epoch is over
}

// ---- checkpoints ------------------------------------------------------------------------------

void LocalSteps::BeginGather() {
  TANDEM_CHECK(stage_ == Stage::kIdle);
  // Three cases: the parameters are the model already; the model is a sum of shares; or the derived
  // class has the model.
  if (shows_model_) return;
  if (CheckpointsSum() && steps_ > 0) return PrepareSyncRound(Stage::kGather);
  if (options_.rank == 0) dense_.SetValuesToCheckpoint(ModelToCheckpoint(SyncRound()));
}

std::string LocalSteps::State() {
  const std::vector<float> rows = dense_.RowsWithSlots();
  StateHead head;
  head.steps = steps_;
  head.own_steps = own_steps_;
  head.own_samples = own_samples_;
  head.empty_before = empty_before_;
  head.shows_model = shows_model_ ? 1 : 0;
  const std::vector<std::vector<float>*> remembered = Remembered();
  head.floats = static_cast<int64_t>(rows.size() + FloatsOf(remembered));
  std::string state(reinterpret_cast<const char*>(&head), sizeof head);
  AppendFloats(rows, &state);
  for (const std::vector<float>* const vector : remembered) AppendFloats(*vector, &state);
  return state;
}

absl::Status LocalSteps::SetState(absl::string_view state) {
  if (state.empty()) return absl::OkStatus();
  const std::vector<std::vector<float>*> remembered = Remembered();
  std::vector<float> rows(dense_.RowsWithSlots().size());
  const size_t floats = rows.size() + FloatsOf(remembered);
  StateHead head;
  if (state.size() == sizeof head + floats * sizeof(float)) {
    std::memcpy(&head, state.data(), sizeof head);
  }
  if (head.floats != static_cast<int64_t>(floats)) {
    return absl::DataLossError(absl::StrCat("saved replica has ", state.size(), " bytes, expected ",
                                            sizeof head + floats * sizeof(float)));
  }
  const char* at = state.data() + sizeof head;
  const auto take = [&at](std::vector<float>* vector) {
    std::memcpy(vector->data(), at, vector->size() * sizeof(float));
    at += vector->size() * sizeof(float);
  };
  take(&rows);
  TANDEM_RETURN_IF_ERROR(dense_.SetRowsWithSlots(rows));
  for (std::vector<float>* const vector : remembered) take(vector);
  steps_ = head.steps;
  own_steps_ = head.own_steps;
  own_samples_ = head.own_samples;
  empty_before_ = head.empty_before;
  shows_model_ = head.shows_model != 0;
  return absl::OkStatus();
}

}  // namespace tandem::worker
