// Who computes: reads batches, turns rows into gradients, scores test data. One interface for a
// compiled model over files (step_runner.h), for the simulator's toy, and for whoever brings a
// model or data of their own. What moves rows, counts steps and keeps replicas equal is the
// trainer's, and not here.
//
// Thread safety: Fetch and FetchTest may run on one thread while the others run on another; each by
// one thread at a time.
#ifndef TANDEM_WORKER_TASK_RUNNER_H_
#define TANDEM_WORKER_TASK_RUNNER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "job/job.h"
#include "server/manifest.h"
#include "worker/dense_parameters.h"
#include "worker/trainer_task.h"

namespace tandem::worker {

class TaskRunner {
 public:
  virtual ~TaskRunner() = default;

  // This worker's dense parameters, with first values. The same object always.
  virtual DenseParameters& dense() = 0;
  virtual bool has_test_data() const = 0;  // rows to evaluate on, of either kind
  // Of this worker's share of an epoch, for the progress line; 0 = unknown.
  virtual int64_t EstimatedRows() const = 0;

  // Names and shapes of the dense parameters, in the order of the flat buffer, for saves; none:
  // they have no names.
  virtual std::vector<server::SavedParameter> Parameters() const { return {}; }

  // Of the file that a module is from; empty: it is from none.
  virtual std::string ModuleContents() const { return ""; }

  // The run goes on: the first batch that is fetched is of `epoch`, behind its first `rows` rows of
  // this worker's share, or, if it has no more, none. Before any Fetch.
  virtual absl::Status StartAt(int64_t /*epoch*/, int64_t /*rows*/) {
    return absl::UnimplementedError("who computes here cannot go on in the middle of a run");
  }
  // For a save in which are the steps below `step`: what a program or a module has to find again if the
  // run goes on from there; empty: nothing. `epoch`: that this worker stands in; `last`: nothing
  // follows the save. On the thread of Compute.
  virtual absl::StatusOr<std::string> ProgramState(int64_t /*step*/, int64_t /*epoch*/,
                                                   bool /*last*/) {
    return std::string();
  }
  // Rows that the first Fetch has passed over so far: it may take long, and is no stall. Any thread.
  virtual int64_t RowsSkipped() const { return 0; }

  // What tasks of these names do (trainer_task.h). An error ends the job with its reason.
  virtual absl::Status Fetch(StepSlot* slot) = 0;
  virtual absl::Status FetchTest(StepSlot* slot, bool first, HeldOut rows) = 0;
  virtual absl::Status Compute(StepSlot* slot) = 0;
  // Cancels the Compute of this step, which then returns OK without a gradient. False if the step is
  // computed already, or may still be. Any thread.
  virtual bool TakeBack(int64_t /*step*/) { return false; }
  virtual absl::Status Score(StepSlot* slot) = 0;
  virtual absl::Status FillShare(EvaluationShare* share, Buffer* payload) = 0;
  virtual absl::StatusOr<std::string> MergeShares(const std::map<int, EvaluationShare>& shares,
                                                  const std::map<int, Buffer>& payloads) = 0;

  // Replicas: a step is synchronised, and the dense parameters have their values for the next one.
  // On the thread of Compute.
  virtual void OnSynchronised() {}

  // From now on Compute calls `ready` as its backward pass goes on: elements of the dense gradient
  // from `first` to its end are final. Who cannot say does not call it.
  virtual void set_gradient_ready(std::function<void(int64_t first)> /*ready*/) {}

  // From now on the dense gradient is taken from where a GPU has it: returns who says where that is
  // after a Compute or, if told so, where there are zeros (a step without samples).
  using DeviceGradient = std::function<absl::StatusOr<float*>(bool zero)>;
  virtual DeviceGradient LeaveGradientOnDevice() {
    return [](bool) -> absl::StatusOr<float*> {
      return absl::UnimplementedError("this model's gradients are on no GPU");
    };
  }
};

// Makes the one of worker `rank`; the plan outlives it.
using MakeTaskRunner =
    std::function<absl::StatusOr<std::unique_ptr<TaskRunner>>(const job::JobPlan& plan, int rank)>;

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TASK_RUNNER_H_
