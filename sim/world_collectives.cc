// The dense gradient by allreduce in the simulated world: one engine a worker
// (collectives/engine.h) over links in memory. What is said arrives at once; that the sum is done
// is learned after the delay of the network, once for every step of the schedule.
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
  for (auto& worker : workers_) worker->links.resize(workers_.size());
  for (size_t a = 0; a < workers_.size(); ++a) {
    for (size_t b = a + 1; b < workers_.size(); ++b) {
      InMemoryLink::Pair pair = InMemoryLink::NewPair();
      workers_[a]->links[b] = std::move(pair[0]);
      workers_[b]->links[a] = std::move(pair[1]);
    }
  }
  for (size_t r = 0; r < workers_.size(); ++r) {
    Worker& worker = *workers_[r];
    std::vector<Link*> links;
    for (const auto& link : worker.links) links.push_back(link.get());
    worker.engine = std::make_unique<CollectiveEngine>(static_cast<int>(r), std::move(links));
    CollectiveShape shape;
    shape.rank = static_cast<int>(r);
    shape.ranks = plan_.workers();
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
  ProgressCollectives();
}

void World::ProgressCollectives() {
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& worker : workers_) moved = worker->engine->Progress(now_) || moved;
  }
  for (size_t r = 0; r < workers_.size(); ++r) {
    Worker& worker = *workers_[r];
    if (!worker.synchronising.has_value() || !worker.engine->Ended(worker.sum)) continue;
    const absl::Status result = worker.engine->Result(worker.sum);
    if (!result.ok()) return Fail(result.ToString());
    const auto steps = static_cast<int64_t>(worker.schedule.steps.size());
    After(options_.network.delay * steps,
          [this, rank = static_cast<int>(r), task = std::move(*worker.synchronising)] {
            FinishTask(rank, task);
          });
    worker.synchronising.reset();
  }
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

std::string World::WaitingForSum(int rank) const {
  const Worker& worker = *workers_[rank];
  return worker.engine == nullptr ? "" : worker.engine->WaitingFor(now_);
}

}  // namespace tandem
