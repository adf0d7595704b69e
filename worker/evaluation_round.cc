#include "worker/evaluation_round.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "data/batch_source.h"

namespace tandem::worker {

EvaluationRound::EvaluationRound(TrainerContext& context, DenseSynchroniser& synchroniser,
                                 bool has_rows)
    : context_(context),
      synchroniser_(synchroniser),
      has_rows_(has_rows),
      judge_(context.plan.job.train().keep_best(), context.plan.job.evaluation().every_epochs()) {}

void EvaluationRound::Begin() {
  const Data& data = context_.plan.job.data();
  const bool validation =
      KeepsBest() || (data::HasValidationRows(data) && !data::HasTestRows(data));
  rows_ = validation ? HeldOut::kValidation : HeldOut::kTest;
  verdict_ = Verdict();
  stage_ = Stage::kBegin;
}

void EvaluationRound::BeginTest() {
  rows_ = HeldOut::kTest;
  verdict_ = Verdict();
  stage_ = Stage::kBarrier;
}

bool EvaluationRound::Advance(absl::Time now, TrainerEffects* effects) {
  if (task_running_ || !reads_.empty()) return false;
  WorkerBarriers& barriers = context_.barriers;
  // The first barrier (kBarrier) makes all pushes visible before anybody reads. The second
  // (kEndBarrier) lets all workers know the verdict of rank 0, and keeps them from pushing while
  // others still score.
  switch (stage_) {
    case Stage::kBegin:
      return BeginIfDue();
    case Stage::kFinishDelayed:
      // When all workers have entered, no push is in flight. The scheduler then has the servers
      // apply their held updates, and releases the workers afterwards.
      if (!barriers.Pass(now, "finish_delayed", context_.step(), BarrierEnter::FINISH_DELAYED))
        return false;
      return Enter(due_ ? Stage::kBarrier : Stage::kOver);
    // Nobody reads before everybody's pushes are applied.
    case Stage::kBarrier:
      if (!barriers.Pass(now, absl::StrCat("evaluation ", number_), context_.step())) return false;
      share_.Clear();
      first_batch_ = true;
      slot_.step = context_.step();
      slot_.epoch = context_.epoch;
      if (const uint64_t read = synchroniser_.ReadLatest(now); read != 0) reads_.push_back(read);
      return Enter(Stage::kFetch);
    case Stage::kFetch:
      stage_ = Stage::kRead;
      return Run(FetchTestTask{&slot_, std::exchange(first_batch_, false), rows_}, effects);
    case Stage::kRead:
      if (slot_.batch.samples == 0) {
        stage_ = Stage::kShare;
        return Run(FillShareTask{&share_, &payload_}, effects);
      }
      ReadRows(now);
      return Enter(Stage::kScore);
    case Stage::kScore:
      ++context_.progress;
      stage_ = Stage::kFetch;
      return Run(ScoreTask{&slot_}, effects);
    case Stage::kShare:
      KeepOwnShare(now);
      return Enter(Stage::kGather);
    case Stage::kGather:
      return Gather(now, effects);
    case Stage::kJudge:
      return Judge();
    case Stage::kEndBarrier:
      return PassEndBarrier(now);
    case Stage::kOver:
      return false;
  }
  return false;
}

bool EvaluationRound::Run(TrainerTask task, TrainerEffects* effects) {
  task_running_ = true;
  effects->tasks.push_back(std::move(task));
  return true;
}

bool EvaluationRound::IsDue() const {
  const int every = context_.plan.job.evaluation().every_epochs();
  return has_rows_ && (context_.LastEpoch() || (every > 0 && (context_.epoch + 1) % every == 0));
}

bool EvaluationRound::BeginIfDue() {
  due_ = IsDue();
  if (context_.LastEpoch() && context_.HasDelay()) return Enter(Stage::kFinishDelayed);
  return Enter(due_ ? Stage::kBarrier : Stage::kOver);
}

void EvaluationRound::ReadRows(absl::Time now) {
  const std::vector<data::SparseInput>& inputs = slot_.batch.sparse;
  slot_.rows.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const client::TableKeys keys{inputs[i].table, inputs[i].keys};
    client::PulledRows* const rows = &slot_.rows[i];
    const uint32_t group = context_.plan.tables[inputs[i].table].group;
    reads_.push_back(context_.client.PullInPlace(now, group, context_.step(), {&keys, 1},
                                                 {&rows, 1}, kFlagEvaluate));
  }
}

bool EvaluationRound::OnCompletion(uint64_t request) {
  const auto it = std::find(reads_.begin(), reads_.end(), request);
  if (it == reads_.end()) return false;
  reads_.erase(it);
  return true;
}

// ---- shares -----------------------------------------------------------------------------------

void EvaluationRound::KeepOwnShare(absl::Time now) {
  share_.set_evaluation(number_);
  share_taken_ = context_.rank == 0;
  next_send_ = now;
  pause_ = context_.control_resend;
  if (context_.rank != 0) return;
  shares_[0] = share_;
  payloads_[0] = payload_;
}

bool EvaluationRound::Gather(absl::Time now, TrainerEffects* effects) {
  if (!share_taken_) {
    SendShare(now);
    return false;
  }
  if (context_.rank == 0 && static_cast<int>(shares_.size()) < context_.plan.workers())
    return false;
  stage_ = Stage::kJudge;
  if (context_.rank != 0) return true;
  return Run(MergeSharesTask{&shares_, &payloads_, &result_}, effects);
}

bool EvaluationRound::Judge() {
  if (context_.rank == 0 && Judged()) {
    const absl::StatusOr<Verdict> verdict = judge_.Judge(context_.epoch, context_.step(), result_);
    if (!verdict.ok()) {
      context_.Fail(verdict.status());
      return false;
    }
    verdict_ = *verdict;
  }
  report_due_ = true;
  told_ = WhereAndWhat(result_);
  return Enter(Stage::kEndBarrier);
}

void EvaluationRound::SendShare(absl::Time now) {
  if (now < next_send_) return;
  next_send_ = now + pause_;
  pause_ *= 2;  // a share may be large, and still in flight over a reliable link
  Control control;
  *control.mutable_evaluation_share() = share_;
  context_.SendControl(EndpointId::Worker(0), control, payload_);
}

void EvaluationRound::OnShare(EndpointId from, const EvaluationShare& share,
                              const Buffer& payload) {
  if (context_.rank != 0) return;
  // A share that arrives twice changes nothing: a task may be reading the first copy.
  if (share.evaluation() == number_ && from.role == Role::kWorker &&
      from.index < context_.plan.workers() && shares_.emplace(from.index, share).second) {
    payloads_[from.index] = payload;
  }
  // Acknowledge also a share of an earlier evaluation: its sender only waits for the
  // acknowledgement.
  context_.SendDone(from, static_cast<uint64_t>(share.evaluation()));
}

void EvaluationRound::OnShareTaken(uint64_t number) {
  if (number == static_cast<uint64_t>(number_)) share_taken_ = true;
}

void EvaluationRound::OnRankZeroLost(absl::Time now) {
  next_send_ = std::min(next_send_, now + context_.control_resend);
}

std::optional<std::string> EvaluationRound::TakeReport() {
  if (!report_due_) return std::nullopt;
  report_due_ = false;
  result_.clear();
  return told_;
}

// Adds to the result when it was measured and on which rows. A runner's result that is not a JSON
// object stays unchanged.
std::string EvaluationRound::WhereAndWhat(const std::string& result) const {
  nlohmann::json json = nlohmann::json::parse(result, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return result;
  const bool trained = !context_.plan.job.train().evaluate_only();
  json["epoch"] = trained ? context_.epoch + 1 : 0;
  json["step"] = trained ? context_.step() : 0;
  if (rows_ == HeldOut::kValidation) {
    json["data"] = "validation";
    // Without either, the rows are those of a program, which does not say what they are.
  } else if (KeepsBest() || data::HasTestRows(context_.plan.job.data())) {
    json["data"] = "test";
  }
  if (verdict_.best) json["best"] = true;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool EvaluationRound::PassEndBarrier(absl::Time now) {
  const std::string barrier = absl::StrCat(kEvaluated, number_);
  BarrierEnter entry;
  entry.set_name(barrier);
  entry.set_value(KeepsBest() ? verdict_.Pack() : context_.step());
  entry.set_evaluation_json(told_);
  if (!context_.barriers.Pass(now, std::move(entry))) return false;
  if (KeepsBest()) verdict_ = Verdict::Unpack(context_.barriers.MaxValue(barrier));
  ++number_;
  payload_ = Buffer();
  // Clear the shares here and not when an evaluation begins: shares of fast workers may arrive
  // before this worker knows that the next evaluation has begun.
  shares_.clear();
  payloads_.clear();
  return Enter(Stage::kOver);
}

}  // namespace tandem::worker
