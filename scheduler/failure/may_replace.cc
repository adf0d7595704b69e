#include "scheduler/failure/may_replace.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "job/user_module.h"

namespace tandem::scheduler {
namespace {

absl::Status No(absl::string_view why) { return absl::FailedPreconditionError(why); }

// A property of some policy of the trained tables.
template <typename Has>
bool AnyPolicy(const job::ResolvedJob& plan, const Has& has) {
  return std::any_of(plan.groups.begin(), plan.groups.end(),
                     [&has](const job::GroupPlan& group) { return has(group.properties); });
}

}  // namespace

// The dead process has pushed its last steps to some ranges and not to others. The new process
// computes these steps again, from rows that have changed meanwhile. So the other ranges get
// gradients that an undisturbed run would not have. Jobs that promise more than that restart.
//
// Workers that take steps together leave an epoch without a barrier, so the scheduler cannot tell
// in which epoch the dead worker was. A policy that collects the updates of a step has steps with
// the gradients of both processes. A policy that decides by the pace of a worker (DSSP) may refuse
// the new process a read that it has answered to the dead one. If a checkpoint waits for that step,
// all workers wait for each other.
absl::Status MayReplaceWorkers(const job::ResolvedJob& plan) {
  const Dense& dense = plan.job.dense();
  if (plan.job.reproducible()) return No("the job is reproducible");
  if (plan.job.staleness().record_order()) {
    return No("the job records the order of updates, and a replay computes each step once");
  }
  if (plan.workers() == 1) return No("the job has no other worker");
  if (plan.job.train().evaluate_only()) return No("the job does not train");
  if (plan.job.data().format() == Data::PROGRAM || job::HasOwnModule(plan.job.model())) {
    return No("the worker's program or module has a state that only the worker has");
  }
  if (plan.dense_table < 0) return No("the workers have the dense parameters");
  if (plan.workers_serve) return No("the workers have rows of tables");
  if (dense.codec().kind() > Codec::NONE) return No("the codec has a state on each worker");
  if (dense.device() == Dense::CUDA) return No("the dense part is on GPUs");
  if (plan.lockstep) return No("the workers take each step together");
  if (AnyPolicy(plan, [](const policies::Properties& p) { return p.skips; })) {
    return No("a policy lets workers skip steps");
  }
  if (AnyPolicy(plan, [](const policies::Properties& p) { return p.measures_steps; })) {
    return No("a policy decides by the pace of each worker");
  }
  if (AnyPolicy(plan, [](const policies::Properties& p) { return p.holds && p.batch == 0; })) {
    return No("a policy collects the updates of a step");
  }
  return absl::OkStatus();
}

absl::Status MayReplaceWorker(const job::ResolvedJob& plan, const WorkerDeath& death) {
  if (const absl::Status may = MayReplaceWorkers(plan); !may.ok()) return may;
  if (!death.running) return No("the job does not train at the moment");
  if (death.comes_again) return No("the failure would come again");
  if (death.other_vacant) return No("the place of another worker is vacant");
  if (death.other_failed) return No("another process has failed, too");
  if (!death.barrier.empty()) return No(absl::StrCat("workers wait at barrier ", death.barrier));
  if (death.commits) return No("worker 0 was writing a checkpoint");
  if (!death.place_known) return No("the worker has not reported its place in this epoch yet");
  if (death.left <= 0) return No("workers were replaced as often as cluster.max_restarts allows");
  return absl::OkStatus();
}

}  // namespace tandem::scheduler
