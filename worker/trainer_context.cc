#include "worker/trainer_context.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tandem::worker {

bool PushesUnderWay::OnDone(absl::Time now, uint64_t request, TrainerEffects* effects) {
  const auto it = std::find_if(pushes_.begin(), pushes_.end(),
                               [&](const Push& push) { return push.request == request; });
  if (it == pushes_.end()) return false;
  effects->transfers.push_back({true, it->step, it->since, now});
  pushes_.erase(it);
  return true;
}

// Step numbers grow from push to push, so pushes of one step are neighbours.
int64_t PushesUnderWay::Steps() const {
  int64_t steps = 0;
  for (size_t i = 0; i < pushes_.size(); ++i) {
    steps += i == 0 || pushes_[i].step != pushes_[i - 1].step ? 1 : 0;
  }
  return steps;
}

namespace {

StepOrder::Options OrderOf(const job::ResolvedJob& plan) {
  const int depth = plan.job.train().prefetch_steps();
  return {depth, depth + 2, plan.job.train().max_inflight_pushes(), plan.lockstep};
}

}  // namespace

TrainerContext::TrainerContext(const job::ResolvedJob& job_plan, int own_rank,
                               uint64_t own_incarnation, BufferSource& source,
                               const client::ClientCore::Options& client_options,
                               absl::Duration resend)
    : plan(job_plan),
      rank(own_rank),
      incarnation(own_incarnation),
      buffers(source),
      control_resend(resend),
      client(plan, EndpointId::Worker(rank), incarnation, buffers, client_options),
      barriers(plan.workers(), resend),
      order(OrderOf(plan)) {}

void TrainerContext::Fail(absl::Status status) {
  if (failure.ok()) failure = std::move(status);
}

void TrainerContext::SendControl(EndpointId to, const Control& control, Buffer values) {
  FrameHeader header;
  header.sender = EndpointId::Worker(rank);
  header.incarnation = incarnation;
  control_out.push_back({to, EncodeControlFrame(buffers, header, control, std::move(values))});
}

void TrainerContext::SendDone(EndpointId to, uint64_t command, const absl::Status& status) {
  Control done;
  done.mutable_command_done()->set_id(command);
  done.mutable_command_done()->set_code(static_cast<int32_t>(status.code()));
  done.mutable_command_done()->set_message(std::string(status.message()));
  SendControl(to, done);
}

int64_t TrainerContext::StepLimit() const {
  const Train& train = plan.job.train();
  if (train.evaluate_only()) return 0;
  return train.max_steps() > 0 ? train.max_steps() + closing_steps
                               : std::numeric_limits<int64_t>::max();
}

bool TrainerContext::LastEpoch() const {
  return epoch + 1 >= plan.job.train().epochs() || common_step > StepLimit();
}

bool TrainerContext::HasDelay() const {
  return std::any_of(policies.begin(), policies.end(), [](const auto& policy) {
    return policy->properties().delay > 0 || policy->properties().batch > 0;
  });
}

void TrainerContext::PushEmptyToAll(absl::Time now, int64_t first, int64_t last, uint8_t flags) {
  for (const job::GroupPlan& group : plan.trained_groups()) {
    client::ClientCore::PushInfo info;
    info.group = group.id;
    info.first_step = first;
    info.step = last;
    info.flags = flags;
    pushes.Add(client.Push(now, info, {}, {}), last, now);
  }
}

}  // namespace tandem::worker
