#include "tools/sim/sim_quorum.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/checkpoint/range_file.h"
#include "worker/dense/allreduce_gradients.h"

namespace tandem::sim {

using worker::QuorumCall;
using worker::QuorumNews;

absl::StatusOr<std::unique_ptr<SimQuorum>> SimQuorum::New(const job::ResolvedJob& plan, int rank,
                                                          worker::DenseParameters& dense,
                                                          SumObserver& observer, Outside outside) {
  std::unique_ptr<SimQuorum> made(new SimQuorum(plan, rank, dense, observer, std::move(outside)));
  TANDEM_RETURN_IF_ERROR(made->MakeParts());
  return made;
}

absl::Status SimQuorum::MakeParts() {
  const Dense& config = plan_.job.dense();
  std::unique_ptr<worker::DenseParameters> model;
  member_.reset();  // its model refers to the replica
  if (config.synchroniser() == Dense::LOCAL_SGD) {
    replica_ = std::make_unique<worker::SyncReplica>(dense_, worker::SyncReplica::OptionsOf(plan_));
    model = replica_->NewModel();
  } else {
    TANDEM_ASSIGN_OR_RETURN(model,
                            worker::DenseParameters::New(config.optimizer(), dense_.count()));
  }
  const worker::QuorumMember::Options options = {rank_, plan_.workers(),
                                                 worker::DenseAlgorithm(plan_)};
  member_ = std::make_unique<worker::QuorumMember>(
      replica_ == nullptr ? dense_ : replica_->common(), std::move(model), options);
  caller_ = std::make_unique<worker::QuorumCaller>(worker::QuorumLeader::OptionsOf(plan_));
  return absl::OkStatus();
}

// Overwrites the worker's parameters and optimizer state with NaN.
absl::Status SimQuorum::LoseDense() {
  std::vector<float> lost = dense_.RowsWithSlots();
  std::fill(lost.begin(), lost.end(), std::numeric_limits<float>::quiet_NaN());
  return dense_.SetRowsWithSlots(lost);
}

absl::Status SimQuorum::Resume(const std::string& dense_file) {
  TANDEM_CHECK(over_ && stage_ == Stage::kIdle && calls_.empty());
  const std::string state = State();
  TANDEM_RETURN_IF_ERROR(LoseDense());
  if (replica_ == nullptr) {  // else the worker's state has the parameters
    TANDEM_ASSIGN_OR_RETURN(
        const server::RangeImage image,
        server::DecodeRange(
            {reinterpret_cast<const uint8_t*>(dense_file.data()), dense_file.size()}));
    TANDEM_RETURN_IF_ERROR(dense_.Load(image));
  }
  TANDEM_RETURN_IF_ERROR(MakeParts());
  if (replica_ != nullptr) TANDEM_RETURN_IF_ERROR(replica_->SetState(state));
  TANDEM_RETURN_IF_ERROR(member_->SetModel());
  waits_for_ = -1;
  next_step_ = 0;
  if (out_of_data_) OutOfData();
  return absl::OkStatus();
}

// ---- the worker's steps -------------------------------------------------------------------------

void SimQuorum::BeforeStep() {
  if (replica_ != nullptr) return;  // it keeps its own parameters until the next sync round
  member_->BeforeStep();
  observer_.OnRead(rank_);
}

void SimQuorum::Begin(absl::Span<float> gradient, const Step& step) {
  if (gradient.empty()) return Tell(step.number);  // the worker has skipped these steps
  Step brought = step;
  observer_.OnStepped(rank_, step.number);
  if (replica_ == nullptr) {
    member_->Add(gradient, step);
  } else {
    if (!replica_->Step(gradient, step)) return;
    const worker::SyncReplica::Movement movement = replica_->Bring();
    brought = movement.sync_round;
    member_->Add(movement.values, brought);
  }
  observer_.OnBrought(rank_);
  Tell(brought.number);
}

void SimQuorum::Tell(int64_t step) {
  next_step_ = step + 1;
  over_ = false;
  outside_.post(0, QuorumNews{QuorumNews::Says::kGradient, step});
}

void SimQuorum::OutOfData() {
  out_of_data_ = true;
  AddRest();
  outside_.post(0, QuorumNews{QuorumNews::Says::kOutOfData, 0});
}

void SimQuorum::BeginEndOfEpoch(int64_t step) {
  out_of_data_ = false;
  Settle(/*new_epoch=*/true, step);
}

void SimQuorum::AddRest() {
  if (replica_ == nullptr || !replica_->has_rest()) return;
  const worker::SyncReplica::Movement rest = replica_->BringRest();
  member_->Add(rest.values, rest.sync_round);
  observer_.OnBroughtRest(rank_);
}

void SimQuorum::Settle(bool new_epoch, int64_t step) {
  AddRest();
  if (replica_ != nullptr && new_epoch) replica_->BeginEpoch(step);
  settle_step_ = new_epoch ? step : next_step_;
  over_ = false;
  settles_ = true;
  const auto says = new_epoch ? QuorumNews::Says::kSettleForNewEpoch : QuorumNews::Says::kSettle;
  outside_.post(0, QuorumNews{says, step});
}

void SimQuorum::Continue() {
  over_ = true;
  if (std::exchange(settles_, false)) {
    failure_.Update(member_->BecomeModel());
  } else if (replica_ != nullptr) {
    member_->BeforeStep();
  }
  if (replica_ == nullptr) return;
  replica_->TakeCommon();
  observer_.OnTaken(rank_, std::as_const(dense_).values());
}

// ---- letters ------------------------------------------------------------------------------------

void SimQuorum::OnLetter(int from, const Letter& letter) {
  if (const auto* const call = std::get_if<QuorumCall>(&letter)) return calls_.push_back(*call);
  said_.clear();
  caller_->Hear(from, std::get<QuorumNews>(letter), &said_, outside_.now());
  CallAll();
}

void SimQuorum::Wake() {
  wakes_ = absl::InfiniteFuture();
  said_.clear();
  if (outside_.now() >= caller_->wake()) caller_->Wake(outside_.now(), &said_);
  CallAll();
}

void SimQuorum::CallAll() {
  for (const auto& [to, call] : said_) outside_.post(to, call);
  if (caller_->wake() >= wakes_) return;  // an earlier wake-up calls this again
  wakes_ = caller_->wake();
  outside_.wake(wakes_);
}

// ---- sums ---------------------------------------------------------------------------------------

const worker::DenseReduction::Request* SimQuorum::Next() {
  if (stage_ == Stage::kSummed) {
    stage_ = Stage::kCompare;
    return &member_->BeginCompare();
  }
  while (stage_ == Stage::kIdle && !calls_.empty()) {
    if (calls_.front().begins == worker::QuorumLeader::Begins::kNothing) {
      FinishCall();
      continue;
    }
    stage_ = Stage::kSum;
    observer_.OnSumBegins(rank_);
    return &member_->BeginSum();
  }
  return nullptr;
}

void SimQuorum::OnDone() {
  if (stage_ == Stage::kCompare) {
    failure_ = member_->EndCompare(settle_step_);
    return FinishCall();
  }
  member_->EndSum();
  observer_.OnSumEnds(rank_, member_->model().values());
  if (calls_.front().begins != worker::QuorumLeader::Begins::kLastSum) return FinishCall();
  stage_ = Stage::kSummed;
}

void SimQuorum::FinishCall() {
  const QuorumCall call = calls_.front();
  calls_.pop_front();
  stage_ = Stage::kIdle;
  waits_for_ = call.go_on ? -1 : call.waits_for;
  if (call.go_on) Continue();
}

void SimQuorum::TakeMissed(std::vector<int64_t>* missed) {
  const size_t before = missed->size();
  member_->TakeMissed(missed);
  observer_.OnMissed(rank_, absl::MakeConstSpan(*missed).subspan(before));
}

Activity SimQuorum::WaitingFor() const {
  if (waits_for_ < 0) return {};
  const auto worker = static_cast<int>(waits_for_);
  return {absl::StrCat("a gradient of worker ", worker), EndpointId::Worker(worker)};
}

}  // namespace tandem::sim
