#include "sim/sim_quorum.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/allreduce_gradients.h"

namespace tandem::sim {

using worker::QuorumCall;
using worker::QuorumNews;

absl::StatusOr<std::unique_ptr<SimQuorum>> SimQuorum::New(const job::JobPlan& plan, int rank,
                                                          worker::DenseParameters& dense,
                                                          Judge* judge, Post post) {
  const Dense& config = plan.job.dense();
  TANDEM_ASSIGN_OR_RETURN(auto model,
                          worker::DenseParameters::New(config.optimizer(), dense.count()));
  const worker::QuorumMember::Options member = {rank, plan.workers(), worker::DenseAlgorithm(plan)};
  const worker::QuorumLeader::Options leader = {plan.workers(), config.quorum(),
                                                config.quorum_bound()};
  return std::unique_ptr<SimQuorum>(
      new SimQuorum(rank, dense, std::move(model), member, leader, judge, std::move(post)));
}

SimQuorum::SimQuorum(int rank, worker::DenseParameters& dense,
                     std::unique_ptr<worker::DenseParameters> model,
                     const worker::QuorumMember::Options& options,
                     const worker::QuorumLeader::Options& leader, Judge* judge, Post post)
    : rank_(rank),
      judge_(judge),
      post_(std::move(post)),
      member_(dense, std::move(model), options),
      caller_(leader) {}

void SimQuorum::BeforeStep() {
  member_.BeforeStep();
  if (judge_ != nullptr) judge_->quorum()->OnRead(rank_);
}

void SimQuorum::Begin(absl::Span<float> gradient, const Step& step) {
  member_.Add(gradient, step);
  if (judge_ != nullptr) judge_->quorum()->OnAdded(rank_, step.number);
  next_step_ = step.number + 1;
  over_ = false;
  post_(0, QuorumNews{QuorumNews::Says::kGradient, step.number});
}

void SimQuorum::Settle(bool new_epoch, int64_t step) {
  settle_step_ = new_epoch ? step : next_step_;
  over_ = false;
  settles_ = true;
  const auto says = new_epoch ? QuorumNews::Says::kSettleForNewEpoch : QuorumNews::Says::kSettle;
  post_(0, QuorumNews{says, step});
}

void SimQuorum::OnLetter(int from, const Letter& letter) {
  if (const auto* const call = std::get_if<QuorumCall>(&letter)) return calls_.push_back(*call);
  said_.clear();
  caller_.Hear(from, std::get<QuorumNews>(letter), &said_);
  for (const auto& [to, call] : said_) post_(to, call);
}

// ---- sums ---------------------------------------------------------------------------------------

const worker::DenseReduction::Request* SimQuorum::Next() {
  if (stage_ == Stage::kSummed) {
    stage_ = Stage::kCompare;
    return &member_.BeginCompare();
  }
  while (stage_ == Stage::kIdle && !calls_.empty()) {
    if (calls_.front().begins == worker::QuorumLeader::Begins::kNothing) {
      FinishCall();
      continue;
    }
    stage_ = Stage::kSum;
    if (judge_ != nullptr) judge_->quorum()->OnSumBegins(rank_);
    return &member_.BeginSum();
  }
  return nullptr;
}

void SimQuorum::OnDone() {
  if (stage_ == Stage::kCompare) {
    failure_ = member_.EndCompare(settle_step_);
    return FinishCall();
  }
  member_.EndSum();
  if (judge_ != nullptr) judge_->quorum()->OnSumEnds(rank_, member_.model().values());
  if (calls_.front().begins != worker::QuorumLeader::Begins::kLastSum) return FinishCall();
  stage_ = Stage::kSummed;
}

void SimQuorum::FinishCall() {
  const QuorumCall call = calls_.front();
  calls_.pop_front();
  stage_ = Stage::kIdle;
  waits_for_ = call.go_on ? -1 : call.waits_for;
  if (!call.go_on) return;
  over_ = true;
  if (std::exchange(settles_, false)) failure_.Update(member_.BecomeModel());
}

void SimQuorum::TakeMissed(std::vector<int64_t>* missed) {
  const size_t before = missed->size();
  member_.TakeMissed(missed);
  if (judge_ == nullptr) return;
  judge_->quorum()->OnMissed(rank_, absl::MakeConstSpan(*missed).subspan(before));
}

Activity SimQuorum::WaitingFor() const {
  if (waits_for_ < 0) return {};
  const auto worker = static_cast<int>(waits_for_);
  return {absl::StrCat("a gradient of worker ", worker), EndpointId::Worker(worker)};
}

}  // namespace tandem::sim
