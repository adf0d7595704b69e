// The dense gradient by allreduce in the simulated world: one engine a worker
// (collectives/engine.h) over links of frames (collectives/links/frame_link.h) that cross the
// simulated network, where they are lost, doubled and overtaken like all others.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "optim/fold.h"
#include "sim/world.h"

namespace tandem {
namespace {

// Virtual time ends every world before this.
constexpr absl::Duration kNoDeadline = absl::Hours(10000);

absl::StatusOr<Algorithm> AlgorithmOf(const JobPlan& plan) {
  switch (plan.job.dense().algorithm()) {
    case Dense::RING:
      return Algorithm::kRing;
    case Dense::DIRECT:
    case Dense::AUTO:
      return Algorithm::kDirect;
    default:
      return absl::InvalidArgumentError(
          "the simulated world knows dense.algorithm RING and DIRECT");
  }
}

}  // namespace

absl::Status World::InitCollectives() {
  TANDEM_ASSIGN_OR_RETURN(const Algorithm algorithm, AlgorithmOf(plan_));
  const int ranks = plan_.workers();
  for (int r = 0; r < ranks; ++r) {
    Worker& worker = *workers_[r];
    std::vector<Link*> links;
    for (int peer = 0; peer < ranks; ++peer) {
      FrameLinkOptions options;
      options.self = EndpointId::Worker(r);
      options.group = static_cast<uint32_t>(std::min(r, peer) * ranks + std::max(r, peer));
      options.incarnation = 1;
      options.resend_after = kResend;
      worker.links.push_back(peer == r ? nullptr : std::make_unique<FrameLink>(buffers_, options));
      links.push_back(worker.links.back().get());
    }
    worker.engine = std::make_unique<CollectiveEngine>(r, std::move(links));
    CollectiveShape shape;
    shape.rank = r;
    shape.ranks = ranks;
    shape.count = worker.dense->count() + 1;  // and n
    shape.in_place = true;
    TANDEM_ASSIGN_OR_RETURN(worker.schedule, MakeSchedule(Primitive::kAllReduce, algorithm, shape));
  }
  return absl::OkStatus();
}

void World::Synchronise(int rank, TrainerTask task) {
  Worker& worker = *workers_[rank];
  TANDEM_CHECK(!worker.synchronising.has_value());
  std::vector<float>& gradient = task.slot->dense_gradient;
  gradient[static_cast<size_t>(worker.dense->count())] =
      static_cast<float>(task.slot->batch.samples);
  CollectiveCall call;
  call.algorithm = Algorithm::kDirect;
  call.count = worker.dense->count() + 1;
  call.schedule = &worker.schedule;
  call.input = call.output = gradient.data();
  const auto started = worker.engine->Start(call, now_, kNoDeadline);
  if (!started.ok()) return Fail(started.status().ToString());
  worker.sum = *started;
  worker.synchronising = std::move(task);
  ProgressCollective(rank);
}

void World::OnSegment(int rank, const ParsedFrame& frame) {
  const int from = frame.header.sender.index;
  const absl::Status taken = workers_[rank]->links[static_cast<size_t>(from)]->OnFrame(frame, now_);
  if (!taken.ok()) return Fail(taken.ToString());
  ProgressCollective(rank);
}

void World::ProgressCollective(int rank) {
  Worker& worker = *workers_[rank];
  if (worker.engine == nullptr) return;
  while (worker.engine->Progress(now_)) {
  }
  for (size_t peer = 0; peer < worker.links.size(); ++peer) {
    if (worker.links[peer] == nullptr) continue;
    frames_.clear();
    worker.links[peer]->Flush(now_, &frames_);
    for (Frame& frame : frames_) {
      SendData({EndpointId::Worker(static_cast<int>(peer)), std::move(frame)});
    }
  }
  if (!worker.synchronising.has_value() || !worker.engine->Ended(worker.sum)) return;
  const absl::Status result = worker.engine->Result(worker.sum);
  if (!result.ok()) return Fail(result.ToString());
  After(absl::ZeroDuration(),
        [this, rank, task = std::move(*worker.synchronising)] { FinishTask(rank, task); });
  worker.synchronising.reset();
}

void World::FinishSynchronise(int rank, const TrainerTask& task) {
  Worker& worker = *workers_[rank];
  std::vector<float>& gradient = task.slot->dense_gradient;
  float& samples = gradient[static_cast<size_t>(worker.dense->count())];
  task.slot->samples_of_all = samples;
  samples = 0;  // padding again
  if (task.slot->samples_of_all > 0) {
    worker.dense->Apply(gradient, FoldFactor(task.slot->samples_of_all));
  }
}

Activity World::WaitingForSum(int rank) const {
  const Worker& worker = *workers_[rank];
  if (worker.engine == nullptr) return {};
  const int other = worker.engine->waiting_for();
  return {worker.engine->WaitingFor(now_), other < 0 ? EndpointId() : EndpointId::Worker(other)};
}

}  // namespace tandem
