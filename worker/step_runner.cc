#include "worker/step_runner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "data/pooling.h"
#include "worker/dense/load_dense.h"
#include "worker/evaluation_share.h"
#include "worker/resume_position.h"

namespace tandem::worker {
namespace {

// The AUC is estimated after each of the first kAucSteps steps of an interval, then once in
// kAucSteps steps.
constexpr int64_t kAucSteps = 16;
constexpr int64_t kSkippedAtOnce = 1 << 16;

// The model's view of the plan: tables with fields, in the order of Batch::sparse.
models::ModelInputs InputsOf(const job::ResolvedJob& plan, const data::DataShape& shape) {
  models::ModelInputs inputs;
  inputs.numeric = shape.numeric;
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    if (t >= shape.table_fields.size() || shape.table_fields[t].empty()) continue;
    models::ModelInputs::TableInput input;
    input.name = plan.tables[t].name;
    input.fields = static_cast<int>(shape.table_fields[t].size());
    input.dim = plan.tables[t].dim;
    inputs.tables.push_back(std::move(input));
  }
  return inputs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TaskRunner>> StepRunner::New(
    const job::ResolvedJob& plan, int rank, std::shared_ptr<const server::CheckpointReader> saved,
    const MakeModel& make_model, const std::string& scores, data::SharedReader* shared) {
  std::unique_ptr<StepRunner> runner(new StepRunner(plan, rank, std::move(saved)));
  runner->scores_path_ = scores;
  TANDEM_RETURN_IF_ERROR(runner->Init(make_model, shared));
  return runner;
}

absl::Status StepRunner::Init(const MakeModel& make_model, data::SharedReader* shared) {
  // Errors of the user's files come before the model is made. The model needs the shape of the
  // data. A checkpoint is loaded last, because it overwrites the initial values.
  if (!scores_path_.empty()) scores_.open(scores_path_, std::ios::binary | std::ios::trunc);
  TANDEM_RETURN_IF_ERROR(CheckScores());
  TANDEM_ASSIGN_OR_RETURN(const data::DataShape shape, data::FindDataShape(plan_));
  const Data& data = plan_.job.data();
  if (!data.train().empty()) {
    TANDEM_ASSIGN_OR_RETURN(train_, data::NewTrainSource(plan_, rank_, shared));
  }
  if (data::HasTestRows(data)) {
    TANDEM_ASSIGN_OR_RETURN(test_, data::NewTestSource(plan_, rank_, shared));
  }
  if (data::HasValidationRows(data) && (test_ == nullptr || plan_.job.train().has_keep_best())) {
    TANDEM_ASSIGN_OR_RETURN(validation_, data::NewValidationSource(plan_, rank_, shared));
  }
  TANDEM_ASSIGN_OR_RETURN(model_, make_model(plan_, InputsOf(plan_, shape)));
  TANDEM_ASSIGN_OR_RETURN(dense_, DenseParameters::New(plan_.job.dense().optimizer(),
                                                       model_->parameter_count(), Parameters()));
  model_->InitialValues(plan_.job.seed(), dense_->values());
  if (saved_ == nullptr) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(LoadDense(plan_, *saved_, Parameters(), dense_.get()));
  if (!plan_.job.model().has_script()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const models::ModuleState saved, CheckpointState(/*rank=*/0));
  // An evaluate_only job must compute with the module that was trained.
  if (plan_.job.train().evaluate_only()) {
    TANDEM_RETURN_IF_ERROR(models::CheckSameModule(saved.contents, model_->Contents()));
  }
  return model_->SetState(saved.state);
}

absl::StatusOr<models::ModuleState> StepRunner::CheckpointState(int rank) const {
  if (saved_ == nullptr) {
    return absl::FailedPreconditionError(
        "the job begins without a checkpoint, so there is no module state to load");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string bytes, saved_->ReadProgramState(rank));
  absl::StatusOr<models::ModuleState> state = models::ParseModuleState(bytes);
  if (state.ok()) return state;
  return absl::Status(state.status().code(),
                      absl::StrCat(saved_->folder(), ": ", state.status().message()));
}

absl::StatusOr<std::string> StepRunner::ProgramState(int64_t /*step*/, int64_t /*epoch*/,
                                                     bool /*last*/) {
  if (!plan_.job.model().has_script()) return std::string();
  models::ModuleState state;
  state.contents = model_->Contents();
  TANDEM_ASSIGN_OR_RETURN(state.state, model_->State());
  return models::EncodeModuleState(state);
}

std::vector<server::CheckpointParameter> StepRunner::Parameters() const {
  std::vector<server::CheckpointParameter> parameters;
  for (const models::ParameterInfo& p : model_->parameters())
    parameters.push_back({p.name, p.shape});
  return parameters;
}

void StepRunner::set_gradient_ready(std::function<void(int64_t first)> ready) {
  model_->set_gradient_ready(std::move(ready));
}

TaskRunner::DeviceGradient StepRunner::LeaveGradientOnDevice() {
  model_->LeaveGradientOnDevice();
  return [this](bool zero) { return model_->DeviceGradient(zero); };
}

absl::Status StepRunner::StartAt(const TrainPosition& start) {
  start_ = start;
  if (!plan_.job.model().has_script()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const models::ModuleState saved, CheckpointState(rank_));
  TANDEM_RETURN_IF_ERROR(models::CheckSameModule(saved.contents, model_->Contents()));
  return model_->SetState(saved.state);
}

absl::Status StepRunner::Fetch(StepSlot* slot) {
  slot->place.reset();
  if (slot->epoch == start_.epoch() && start_.rows() == kAllRows) {
    slot->batch.Clear();
    return absl::OkStatus();
  }
  if (slot->epoch != epoch_) {
    TANDEM_RETURN_IF_ERROR(train_->StartEpoch(slot->epoch));
    epoch_ = slot->epoch;
    if (epoch_ == start_.epoch()) TANDEM_RETURN_IF_ERROR(SkipToStart());
  }
  TANDEM_RETURN_IF_ERROR(train_->Next(&slot->batch));
  slot->place = train_->Place();
  return absl::OkStatus();
}

absl::Status StepRunner::SkipToStart() {
  int64_t at = 0;
  if (start_.has_place()) {
    TANDEM_ASSIGN_OR_RETURN(at, train_->ContinueAt(start_.place()));
  }
  while (at < start_.rows()) {
    const int64_t rows = std::min(kSkippedAtOnce, start_.rows() - at);
    TANDEM_ASSIGN_OR_RETURN(const int64_t passed, train_->Skip(rows));
    at += passed;
    read_again_ += passed;
    if (passed < rows) break;
  }
  return absl::OkStatus();
}

absl::Status StepRunner::FetchTest(StepSlot* slot, bool first, HeldOut rows) {
  TANDEM_CHECK((rows == HeldOut::kTest ? test_ : validation_) != nullptr);
  data::BatchSource& source = rows == HeldOut::kTest ? *test_ : *validation_;
  if (first) TANDEM_RETURN_IF_ERROR(source.StartEpoch(0));
  return source.Next(&slot->batch);
}

absl::Status StepRunner::CheckScores() const {
  if (scores_path_.empty() || scores_.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(scores_path_, ": cannot be written: disk full?"));
}

absl::Span<const float> StepRunner::ParametersOf(const StepSlot& slot) const {
  if (slot.dense.empty()) return dense_->values();
  return absl::MakeConstSpan(slot.dense).first(static_cast<size_t>(dense_->count()));
}

// Pools the rows of unique keys into cells, for every sparse input, and frees the rows' frames.
void StepRunner::Pool(StepSlot* slot) {
  const std::vector<data::SparseInput>& inputs = slot->batch.sparse;
  cells_.resize(inputs.size());
  pooled_spans_.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int dim = plan_.tables[inputs[i].table].dim;
    const size_t floats = static_cast<size_t>(slot->batch.samples) *
                          static_cast<size_t>(inputs[i].fields) * static_cast<size_t>(dim);
    cells_[i].resize(floats);
    data::PoolRows(inputs[i], dim, slot->rows[i].at(), absl::MakeSpan(cells_[i]));
    slot->rows[i].Clear();
    pooled_spans_.push_back(cells_[i]);
  }
  logits_.resize(static_cast<size_t>(slot->batch.samples));
}

// A step draws the same random numbers in every run of the job, also after a resume.
uint64_t StepRunner::DrawSeed(int64_t step) const {
  const uint64_t worker = HashCombine(plan_.job.seed(), static_cast<uint64_t>(rank_));
  return HashCombine(worker, static_cast<uint64_t>(step));
}

absl::Status StepRunner::Compute(StepSlot* slot) {
  Pool(slot);
  const std::vector<data::SparseInput>& inputs = slot->batch.sparse;
  pooled_gradients_.resize(inputs.size());
  pooled_gradient_spans_.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    pooled_gradients_[i].resize(cells_[i].size());
    pooled_gradient_spans_.push_back(absl::MakeSpan(pooled_gradients_[i]));
  }
  const size_t count = static_cast<size_t>(dense_->count());
  model_->Seed(DrawSeed(slot->step));
  TANDEM_RETURN_IF_ERROR(model_->ForwardBackward(
      slot->batch, ParametersOf(*slot), pooled_spans_, absl::MakeSpan(logits_), &slot->loss_sum,
      absl::MakeSpan(slot->dense_gradient).first(count), pooled_gradient_spans_));
  for (size_t i = 0; i < inputs.size(); ++i) {
    data::MergeGradients(inputs[i], plan_.tables[inputs[i].table].dim, pooled_gradients_[i],
                         slot->gradients[i]);
  }
  if (slot->begins_interval) {
    interval_auc_.Reset();
    interval_steps_ = 0;
  }
  interval_auc_.Add(logits_, slot->batch.labels);
  if (++interval_steps_ <= kAucSteps || interval_steps_ % kAucSteps == 0) {
    const double auc = interval_auc_.Estimate();
    slot->interval_auc = std::isfinite(auc) ? auc : 0;
  }
  return absl::OkStatus();
}

absl::Status StepRunner::Score(StepSlot* slot) {
  Pool(slot);
  TANDEM_RETURN_IF_ERROR(
      model_->Forward(slot->batch, dense_->values(), pooled_spans_, absl::MakeSpan(logits_)));
  data::AddBatch(slot->batch, logits_, plan_.job.evaluation().top_k(), &*evaluation_);
  if (scores_path_.empty()) return absl::OkStatus();
  scores_.write(reinterpret_cast<const char*>(logits_.data()),
                static_cast<std::streamsize>(logits_.size() * sizeof(float)));
  return CheckScores();
}

absl::Status StepRunner::FillShare(EvaluationShare* share, Buffer* payload) {
  EncodeShare(*evaluation_, buffers_, share, payload);
  evaluation_.emplace();
  if (!scores_path_.empty()) scores_.flush();
  return CheckScores();
}

absl::StatusOr<std::string> StepRunner::MergeShares(const std::map<int, EvaluationShare>& shares,
                                                    const std::map<int, Buffer>& payloads) {
  return tandem::worker::MergeShares(shares, payloads, plan_.job.evaluation().top_k());
}

}  // namespace tandem::worker
