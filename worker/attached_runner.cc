#include "worker/attached_runner.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/dense/load_dense.h"
#include "worker/evaluation_share.h"

namespace tandem::worker {

absl::StatusOr<std::unique_ptr<AttachedRunner>> AttachedRunner::New(
    const job::ResolvedJob& plan, std::shared_ptr<const server::CheckpointReader> saved,
    bool keeps_state, std::vector<server::CheckpointParameter> parameters,
    absl::Span<const float> values, RequestQueue& requests) {
  std::unique_ptr<AttachedRunner> runner(
      new AttachedRunner(plan, saved, keeps_state, std::move(parameters), requests));
  TANDEM_ASSIGN_OR_RETURN(runner->dense_, DenseParameters::New(plan.job.dense().optimizer(),
                                                               static_cast<int64_t>(values.size()),
                                                               runner->parameters_));
  std::copy(values.begin(), values.end(), runner->dense_->values().begin());
  if (saved != nullptr) {
    TANDEM_RETURN_IF_ERROR(LoadDense(plan, *saved, runner->parameters_, runner->dense_.get()));
    TANDEM_ASSIGN_OR_RETURN(std::string state, saved->ReadProgramState(/*rank=*/0));
    if (keeps_state && !state.empty()) runner->resumed_.states.push_back(std::move(state));
  }
  // The replicas call this function in place of a step of the built-in optimizer.
  runner->dense_->set_program([r = runner.get()](absl::Span<const float> gradient, float factor) {
    r->update_ =
        r->requests_.Ask({.kind = Request::Kind::kUpdate, .gradient = gradient, .factor = factor});
  });
  // The digest is taken by the program's thread (AttachedWorker::Next): outside its calls, the
  // program may be changing its parameters.
  runner->dense_->set_digest([r = runner.get()] {
    uint64_t digest = 0;
    const absl::Status asked =
        r->requests_.Ask({.kind = Request::Kind::kDigest, .digest = &digest});
    return asked.ok() ? digest : 0;  // an error: the job is over for this worker
  });
  return runner;
}

// Takes only the epoch: the program's own state says where the program stands in it.
absl::Status AttachedRunner::StartAt(const TrainPosition& start) {
  if (!keeps_state_) {
    return absl::FailedPreconditionError(
        "the program gives no state to checkpoints, so it cannot resume in the middle of a run");
  }
  if (saved_ == nullptr) {
    return absl::FailedPreconditionError(
        "the job begins without a checkpoint, so there is no program state to resume from");
  }
  resumed_.states.clear();
  for (int rank = 0; rank < plan_.workers(); ++rank) {
    TANDEM_ASSIGN_OR_RETURN(std::string state, saved_->ReadProgramState(rank));
    if (state.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(saved_->folder(),
                       ": the checkpoint has no program state, because its program gave none"));
    }
    resumed_.states.push_back(std::move(state));
  }
  resumed_.epoch = start.epoch();
  return absl::OkStatus();
}

absl::StatusOr<std::string> AttachedRunner::ProgramState(int64_t step, int64_t epoch, bool last) {
  std::string state;
  if (!keeps_state_) return state;
  TANDEM_RETURN_IF_ERROR(update_);
  TANDEM_RETURN_IF_ERROR(requests_.Ask({.kind = Request::Kind::kState,
                                        .step = step,
                                        .epoch = epoch,
                                        .last = last,
                                        .state = &state}));
  return state;
}

absl::Status AttachedRunner::Fetch(StepSlot* slot) {
  return requests_.Ask({.kind = Request::Kind::kBatch, .slot = slot});
}

absl::Status AttachedRunner::FetchTest(StepSlot* slot, bool first, HeldOut rows) {
  if (first) reported_.clear();
  return requests_.Ask({.kind = Request::Kind::kTestBatch,
                        .slot = slot,
                        .first = first,
                        .validation = rows == HeldOut::kValidation});
}

absl::Status AttachedRunner::Compute(StepSlot* slot) {
  TANDEM_RETURN_IF_ERROR(update_);
  // Dense parameters are on servers: the program computes with the step's values.
  if (!slot->dense.empty()) {
    std::copy_n(slot->dense.begin(), dense_->count(), dense_->values().begin());
  }
  return requests_.Ask({.kind = Request::Kind::kCompute, .slot = slot});
}

absl::Status AttachedRunner::Score(StepSlot* slot) {
  return requests_.Ask({.kind = Request::Kind::kScore, .slot = slot});
}

void AttachedRunner::AddScores(const data::Batch& batch, absl::Span<const float> logits) {
  data::AddBatch(batch, logits, plan_.job.evaluation().top_k(), &*evaluation_);
}

absl::Status AttachedRunner::FillShare(EvaluationShare* share, Buffer* payload) {
  EncodeShare(*evaluation_, buffers_, share, payload);
  evaluation_.emplace();
  return absl::OkStatus();
}

// Returns an empty result if no worker had samples for the evaluation.
absl::StatusOr<std::string> AttachedRunner::MergeShares(
    const std::map<int, EvaluationShare>& shares, const std::map<int, Buffer>& payloads) {
  const bool empty = std::all_of(shares.begin(), shares.end(), [](const auto& share) {
    return share.second.samples() == 0 && share.second.groups() == 0;
  });
  if (empty && reported_.empty()) return std::string();
  TANDEM_ASSIGN_OR_RETURN(const std::string result,
                          worker::MergeShares(shares, payloads, plan_.job.evaluation().top_k()));
  if (reported_.empty()) return result;
  nlohmann::json json = nlohmann::json::parse(result);
  if (json.is_null()) json = nlohmann::json::object();
  json["reported"] = reported_;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace tandem::worker
