#include "worker/step_runner.h"

#include <cmath>
#include <cstring>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "data/pooling.h"
#include "server/range_file.h"
#include "server/save_directory.h"

namespace tandem {
namespace {

constexpr int64_t kAucInterval = 16;  // steps between two estimates

// The model's view of the plan: tables with fields, in the order of Batch::sparse.
ModelInputs InputsOf(const JobPlan& plan, const DataShape& shape) {
  ModelInputs inputs;
  inputs.numeric = shape.numeric;
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    if (t >= shape.table_fields.size() || shape.table_fields[t].empty()) continue;
    ModelInputs::TableInput input;
    input.name = plan.tables[t].name;
    input.fields = static_cast<int>(shape.table_fields[t].size());
    input.dim = plan.tables[t].dim;
    inputs.tables.push_back(std::move(input));
  }
  return inputs;
}

template <typename T>
void Append(std::vector<uint8_t>* bytes, const T* values, size_t count) {
  const auto* const from = reinterpret_cast<const uint8_t*>(values);
  bytes->insert(bytes->end(), from, from + count * sizeof(T));
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepRunner>> StepRunner::New(const JobPlan& plan, int rank,
                                                            uint64_t run,
                                                            const std::string& init_from) {
  std::unique_ptr<StepRunner> runner(new StepRunner(plan, run));
  TANDEM_RETURN_IF_ERROR(runner->Init(rank, init_from));
  return runner;
}

absl::Status StepRunner::Init(int rank, const std::string& init_from) {
  TANDEM_ASSIGN_OR_RETURN(const DataShape shape, FindDataShape(plan_));
  TANDEM_ASSIGN_OR_RETURN(train_, NewTrainSource(plan_, rank));
  const Data& data = plan_.job.data();
  if (HasTestRows(data) || !data.negatives().test_negatives().empty()) {
    TANDEM_ASSIGN_OR_RETURN(test_, NewTestSource(plan_, rank));
  } else if (HasValidationRows(data)) {
    TANDEM_ASSIGN_OR_RETURN(test_, NewValidationSource(plan_, rank));
  }
  TANDEM_ASSIGN_OR_RETURN(
      model_,
      NewDenseModel(
          plan_.job.model(), InputsOf(plan_, shape), plan_.job.cluster().threads_per_worker(),
          plan_.job.dense().device() == Dense::CUDA ? ModelDevice::kCuda : ModelDevice::kCpu));
  TANDEM_ASSIGN_OR_RETURN(
      dense_, DenseParameters::New(plan_.job.dense().optimizer(), model_->parameter_count()));
  InitParameters(model_->parameters(), plan_.job.seed(), dense_->values());
  if (init_from.empty()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const SavedModel saved, SavedModel::Open(init_from));
  if (plan_.dense_table < 0) TANDEM_RETURN_IF_ERROR(saved.CheckDenseIsWhole());
  TANDEM_ASSIGN_OR_RETURN(const RangeImage image, saved.ReadDense(Parameters()));
  if (const absl::Status loaded = dense_->Load(image); !loaded.ok()) {
    return absl::Status(loaded.code(), absl::StrCat(saved.folder(), ": ", loaded.message()));
  }
  return absl::OkStatus();
}

std::vector<SavedParameter> StepRunner::Parameters() const {
  std::vector<SavedParameter> parameters;
  for (const ParameterInfo& p : model_->parameters()) parameters.push_back({p.name, p.shape});
  return parameters;
}

void StepRunner::set_synchroniser(DenseSynchroniser* synchroniser) {
  synchroniser_ = synchroniser;
  if (synchroniser != nullptr && synchroniser->sums_on_device()) {
    model_->LeaveGradientOnDevice();
    synchroniser->set_device_gradient([this](bool zero) { return model_->DeviceGradient(zero); });
  }
  if (synchroniser == nullptr || !synchroniser->overlaps()) return;
  model_->set_gradient_ready([synchroniser](int64_t first) { synchroniser->Ready(first); });
}

absl::Status StepRunner::Run(const TrainerTask& task) {
  switch (task.kind) {
    case TrainerTask::Kind::kFetch:
      return Fetch(task.slot);
    case TrainerTask::Kind::kCompute:
      return Compute(task.slot);
    case TrainerTask::Kind::kSynchronise:
      return Synchronise(task.slot);
    case TrainerTask::Kind::kFetchTest:
      return FetchTest(task.slot, task.first);
    case TrainerTask::Kind::kForward:
      return Forward(task.slot);
    case TrainerTask::Kind::kEvaluationShare:
      FillShare(task.part, task.payload);
      return absl::OkStatus();
    case TrainerTask::Kind::kMergeParts:
      return MergeShares(task);
    case TrainerTask::Kind::kGatherSlots:
      return synchroniser_->GatherSlots();
    case TrainerTask::Kind::kSaveDense:
      TANDEM_RETURN_IF_ERROR(BeginSave(task.path));
      return SaveDenseFile(task.path, *task.text);
    case TrainerTask::Kind::kCommitSave:
      return CommitSave(task.path, plan_, run_, task.step, Parameters());
  }
  return absl::InternalError("unknown task");
}

absl::Status StepRunner::Fetch(StepSlot* slot) {
  if (slot->epoch != epoch_) {
    TANDEM_RETURN_IF_ERROR(train_->StartEpoch(slot->epoch));
    epoch_ = slot->epoch;
  }
  return train_->Next(&slot->batch);
}

absl::Status StepRunner::FetchTest(StepSlot* slot, bool first) {
  if (first) TANDEM_RETURN_IF_ERROR(test_->StartEpoch(0));
  return test_->Next(&slot->batch);
}

absl::Span<const float> StepRunner::ParametersOf(const StepSlot& slot) const {
  if (slot.dense.empty()) return dense_->values();
  return absl::MakeConstSpan(slot.dense).first(static_cast<size_t>(dense_->count()));
}

// Rows of unique keys -> cells, for every sparse input; their frames go back.
void StepRunner::Pool(StepSlot* slot) {
  const std::vector<SparseInput>& inputs = slot->batch.sparse;
  cells_.resize(inputs.size());
  cell_spans_.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int dim = plan_.tables[inputs[i].table].dim;
    const size_t floats = static_cast<size_t>(slot->batch.samples) *
                          static_cast<size_t>(inputs[i].fields) * static_cast<size_t>(dim);
    cells_[i].resize(floats);
    PoolRows(inputs[i], dim, slot->rows[i].at(), absl::MakeSpan(cells_[i]));
    slot->rows[i].Clear();
    cell_spans_.push_back(cells_[i]);
  }
  logits_.resize(static_cast<size_t>(slot->batch.samples));
}

absl::Status StepRunner::Compute(StepSlot* slot) {
  Pool(slot);
  const std::vector<SparseInput>& inputs = slot->batch.sparse;
  cell_gradients_.resize(inputs.size());
  cell_gradient_spans_.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    cell_gradients_[i].resize(cells_[i].size());
    cell_gradient_spans_.push_back(absl::MakeSpan(cell_gradients_[i]));
  }
  const size_t count = static_cast<size_t>(dense_->count());
  if (synchroniser_ != nullptr && synchroniser_->overlaps()) {
    synchroniser_->Begin(absl::MakeSpan(slot->dense_gradient), slot->batch.samples);
  }
  TANDEM_RETURN_IF_ERROR(model_->ForwardBackward(
      slot->batch, ParametersOf(*slot), cell_spans_, absl::MakeSpan(logits_), &slot->loss_sum,
      absl::MakeSpan(slot->dense_gradient).first(count), cell_gradient_spans_));
  for (size_t i = 0; i < inputs.size(); ++i) {
    MergeGradients(inputs[i], plan_.tables[inputs[i].table].dim, cell_gradients_[i],
                   slot->gradients[i]);
  }
  recent_auc_.Add(logits_, slot->batch.labels);
  if (++computed_ % kAucInterval == 0) {
    const double auc = recent_auc_.Estimate();
    slot->recent_auc = std::isfinite(auc) ? auc : 0;
  }
  return absl::OkStatus();
}

absl::Status StepRunner::Synchronise(StepSlot* slot) {
  if (synchroniser_ == nullptr) return absl::InternalError("no one to synchronise with");
  return synchroniser_->Finish(absl::MakeSpan(slot->dense_gradient), slot->batch.samples,
                               &slot->samples_of_all, &slot->bytes_sent);
}

absl::Status StepRunner::Forward(StepSlot* slot) {
  Pool(slot);
  TANDEM_RETURN_IF_ERROR(
      model_->Forward(slot->batch, dense_->values(), cell_spans_, absl::MakeSpan(logits_)));
  AddBatch(slot->batch, logits_, plan_.job.evaluation().top_k(), &*evaluation_);
  return absl::OkStatus();
}

void StepRunner::FillShare(EvaluationShare* share, Buffer* payload) {
  const EvaluationSums& sums = evaluation_->sums;
  share->set_samples(sums.samples);
  share->set_loss_sum(sums.logloss_sum);
  share->set_correct(sums.correct);
  share->set_groups(sums.groups);
  share->set_hits(sums.hit_sum);
  share->set_ndcg(sums.ndcg_sum);
  const ScoreSample& scores = evaluation_->scores;
  std::vector<uint8_t> bytes;
  share->set_binned(!scores.positive_bins().empty());
  if (share->binned()) {
    Append(&bytes, scores.positive_bins().data(), scores.positive_bins().size());
    Append(&bytes, scores.negative_bins().data(), scores.negative_bins().size());
  } else {
    const std::vector<float> labels(scores.labels().begin(), scores.labels().end());
    Append(&bytes, scores.logits().data(), scores.logits().size());
    Append(&bytes, labels.data(), labels.size());
  }
  *payload = bytes.empty() ? Buffer() : CopyToBuffer(buffers_, bytes);
  evaluation_.emplace();
}

absl::Status StepRunner::MergeShares(const TrainerTask& task) {
  EvaluationPart all;
  for (const auto& [rank, share] : *task.parts) {
    EvaluationSums sums;
    sums.samples = share.samples();
    sums.logloss_sum = share.loss_sum();
    sums.correct = share.correct();
    sums.groups = share.groups();
    sums.hit_sum = share.hits();
    sums.ndcg_sum = share.ndcg();
    all.sums.Merge(sums);
    const Buffer& payload = task.payloads->at(rank);
    if (share.binned()) {
      const absl::Span<const uint64_t> bins = payload.As<uint64_t>();
      if (bins.size() != 2 * kAucBins) {
        return absl::InvalidArgumentError(absl::StrCat("evaluation share of worker ", rank, ": ",
                                                       bins.size(), " bins, want ", 2 * kAucBins));
      }
      all.scores.AddBins(bins.first(kAucBins), bins.subspan(kAucBins));
    } else {
      const absl::Span<const float> floats = payload.As<float>();
      all.scores.Add(floats.first(floats.size() / 2), floats.subspan(floats.size() / 2));
    }
  }
  const EvaluationResult result = Summarise(all);
  nlohmann::json json;
  if (result.samples > 0) {
    json["samples"] = result.samples;
    json["logloss"] = result.logloss;
    json["accuracy"] = result.accuracy;
    if (std::isfinite(result.auc.value)) {
      json["auc"] = result.auc.value;
      if (result.auc.error > 0) json["auc_error_bound"] = result.auc.error;
    }
  }
  if (result.groups > 0) {
    const int top_k = plan_.job.evaluation().top_k();
    json["groups"] = result.groups;
    json[absl::StrCat("hr_at_", top_k)] = result.hit_rate;
    json[absl::StrCat("ndcg_at_", top_k)] = result.ndcg;
  }
  *task.text = json.dump();
  return absl::OkStatus();
}

}  // namespace tandem
