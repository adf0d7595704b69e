#include "tests/sim/proof/toy_runner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "worker/resume_position.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<worker::TaskRunner>> ToyRunner::New(const job::ResolvedJob& plan,
                                                                   int rank, const ToyModel& model,
                                                                   bool evaluate, Judge& judge) {
  TANDEM_ASSIGN_OR_RETURN(auto dense, worker::DenseParameters::New(plan.job.dense().optimizer(),
                                                                   model.options().dense));
  for (float& value : dense->values()) value = ToyModel::kFirstCount;
  return std::unique_ptr<worker::TaskRunner>(
      new ToyRunner(plan, rank, model, evaluate, judge, std::move(dense)));
}

absl::Status ToyRunner::StartAt(const TrainPosition& start) {
  epoch_ = start.epoch();
  evaluations_ = static_cast<int>(judge_.evaluations_before(rank_));
  if (plan_.job.evaluation().every_epochs() == 1) {
    first_evaluation_ = static_cast<int>(epoch_) - evaluations_;
  }
  TANDEM_RETURN_IF_ERROR(CheckPlace(start));
  int64_t rows = start.rows();
  const int64_t batches = model_.options().batches[static_cast<size_t>(rank_)];
  for (; rows > 0 && batches_ < batches; ++batches_) {
    rows -= model_.Samples(rank_, epoch_, batches_);
  }
  if (rows == 0 || rows > worker::kAllRows / 2) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("worker ", rank_, " resumes within a batch"));
}

bool ToyRunner::HasPlace(int64_t batch) const { return batch % 3 != 2; }

// The place must be that of the last batch before the position that has one.
absl::Status ToyRunner::CheckPlace(const TrainPosition& start) const {
  if (start.epoch_over()) return absl::OkStatus();
  int64_t rows = 0, place = 0;
  for (int64_t batch = 0; rows < start.rows() && start.rows() < worker::kAllRows / 2; ++batch) {
    rows += model_.Samples(rank_, start.epoch(), batch);
    if (HasPlace(batch)) place = rows;
  }
  const ReadPlace& saved = start.place();
  if (saved.rows() == place && (place == 0 || saved.file() == start.epoch())) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("worker ", rank_, " resumes after row ", start.rows(),
                                          " with the place of row ", saved.rows(), ", expected ",
                                          place));
}

absl::Status ToyRunner::Fetch(worker::StepSlot* slot) {
  if (slot->epoch != epoch_) {
    epoch_ = slot->epoch;
    batches_ = 0;
    judge_.OnEpoch(rank_, epoch_, slot->step);
  }
  judge_.OnFetch(rank_, slot->step);
  const int64_t index = batches_++;  // skipped steps take no batch
  batch_in_slot_[slot] = {slot->epoch, slot->step - judge_.first_step_of_epoch(rank_)};
  model_.FillBatch(rank_, slot->epoch, index, &slot->batch);
  slot->place.reset();
  if (slot->batch.samples > 0 && HasPlace(index)) {
    int64_t rows = 0;
    for (int64_t batch = 0; batch <= index; ++batch) {
      rows += model_.Samples(rank_, slot->epoch, batch);
    }
    slot->place.emplace().set_rows(rows);
    slot->place->set_file(slot->epoch);
    slot->place->set_line(1);
  }
  return absl::OkStatus();
}

absl::Status ToyRunner::FetchTest(worker::StepSlot* slot, bool first, worker::HeldOut /*rows*/) {
  if (first) test_index_ = 0;
  model_.FillTestBatch(rank_, test_index_++, &slot->batch);
  return absl::OkStatus();
}

// The norm of a whole update. It makes a count 1 in a mean over the samples of all workers, or,
// without lockstep, in a mean over the update's own samples.
float ToyRunner::Norm(uint32_t table, int64_t step, int64_t own, int64_t sum) const {
  const policies::Properties& policy = plan_.groups[plan_.tables[table].group].properties;
  const bool together = policy.lockstep || step < policy.switch_step;
  return static_cast<float>(together ? sum : own);
}

absl::Status ToyRunner::Compute(worker::StepSlot* slot) {
  const auto [epoch, index] = batch_in_slot_.at(slot);
  const int64_t sum = model_.SumOfSamples(epoch, index);
  for (size_t i = 0; i < slot->batch.sparse.size(); ++i) {
    ComputeTable(slot->batch.sparse[i], sum, i, slot);
  }
  ComputeDense(sum, slot);
  slot->loss_sum = static_cast<double>(slot->batch.samples);
  return absl::OkStatus();
}

void ToyRunner::ComputeTable(const data::SparseInput& input, int64_t sum, size_t i,
                             worker::StepSlot* slot) {
  const size_t dim = static_cast<size_t>(plan_.tables[input.table].dim);
  const float norm = Norm(input.table, slot->step, slot->batch.samples, sum);
  for (size_t k = 0; k < input.keys.size(); ++k) {
    const absl::Span<const float> row(slot->rows[i].at()[k], dim);
    judge_.CheckRead(rank_, slot->step, input.table, input.keys[k], row);
    model_.Gradient(rank_, slot->step, input.keys[k], norm, row,
                    absl::MakeSpan(slot->gradients[i][k], dim));
  }
  judge_.OnUpdates(rank_, slot->step, input.table, input.keys, norm);
}

void ToyRunner::ComputeDense(int64_t sum, worker::StepSlot* slot) {
  const bool on_servers = plan_.dense_table >= 0;
  const size_t count = static_cast<size_t>(dense_->count());
  const absl::Span<const float> values =
      on_servers ? absl::MakeConstSpan(slot->dense).first(count) : dense_->values();
  judge_.CheckDenseRead(rank_, slot->step, values);
  const bool together =
      plan_.job.dense().synchroniser() == Dense::ALLREDUCE && !job::SumsByQuorum(plan_.job);
  const float norm = on_servers ? Norm(static_cast<uint32_t>(plan_.dense_table), slot->step,
                                       slot->batch.samples, sum)
                                : static_cast<float>(together ? sum : slot->batch.samples);
  std::fill(slot->dense_gradient.begin(), slot->dense_gradient.end(), 0.0f);
  model_.Gradient(rank_, slot->step, ToyModel::kDenseKey, norm, values,
                  absl::MakeSpan(slot->dense_gradient).first(count));
  judge_.OnDenseUpdate(rank_, slot->step,
                       on_servers ? dense_->block_keys() : absl::Span<const uint64_t>(), norm);
}

absl::Status ToyRunner::Score(worker::StepSlot* slot) {
  for (size_t i = 0; i < slot->batch.sparse.size(); ++i) {
    const data::SparseInput& input = slot->batch.sparse[i];
    const size_t dim = static_cast<size_t>(plan_.tables[input.table].dim);
    for (size_t k = 0; k < input.keys.size(); ++k) {
      judge_.CheckEvaluated(rank_, input.table, input.keys[k], {slot->rows[i].at()[k], dim});
    }
  }
  judge_.CheckDenseEvaluated(rank_, dense_->values());
  return absl::OkStatus();
}

absl::Status ToyRunner::FillShare(EvaluationShare* share, Buffer* payload) {
  share->set_samples(1 + rank_);
  *payload = buffers_.Alloc(8);
  payload->MutableAs<uint64_t>()[0] = static_cast<uint64_t>(rank_);
  return absl::OkStatus();
}

double ToyRunner::AucOf(uint64_t seed, int evaluation) {
  const uint64_t hash = HashCombine(seed, static_cast<uint64_t>(evaluation));
  return static_cast<double>(500 + hash % 500) / 1000;
}

absl::StatusOr<std::string> ToyRunner::MergeShares(const std::map<int, EvaluationShare>& shares,
                                                   const std::map<int, Buffer>& payloads) {
  if (static_cast<int>(shares.size()) != plan_.workers()) {
    return absl::InternalError("shares are missing");
  }
  for (const auto& [rank, share] : shares) {
    const Buffer& payload = payloads.at(rank);
    if (share.samples() == 1 + rank && share.evaluation() == evaluations_ && payload.size() == 8 &&
        payload.As<uint64_t>()[0] == static_cast<uint64_t>(rank)) {
      continue;
    }
    return absl::InternalError(
        absl::StrCat("the share of rank ", rank, " is not its own: ", share.ShortDebugString()));
  }
  const int number = first_evaluation_ + ++evaluations_;
  return absl::StrCat("{\"evaluation\": ", number,
                      ", \"auc\": ", AucOf(model_.options().seed, number), "}");
}

}  // namespace tandem
