// The interface of the code that computes: a task runner reads batches, turns rows into gradients
// and scores held-out rows. Implementations: a compiled model over files (step_runner.h), a program
// with its own model or data (attached_runner.h), and the simulator's toy model. The trainer, not
// the runner, moves rows, counts steps and keeps replicas equal.
//
// Thread safety: Fetch and FetchTest may run on one thread while the other methods run on another.
// Each method is called by one thread at a time.
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
#include "server/checkpoint/manifest.h"
#include "worker/dense/dense_parameters.h"
#include "worker/trainer_task.h"

namespace tandem::worker {

class TaskRunner {
 public:
  virtual ~TaskRunner() = default;

  // This worker's dense parameters, with initial values. Always the same object.
  virtual DenseParameters& dense() = 0;
  virtual bool has_test_data() const = 0;  // rows to evaluate on, test or validation
  // The rows of this worker's share of an epoch, for the progress line; 0 = unknown.
  virtual int64_t EstimatedRows() const = 0;

  // Names and shapes of the dense parameters for checkpoints, in the order of the flat buffer.
  // Empty: the parameters have no names.
  virtual std::vector<server::CheckpointParameter> Parameters() const { return {}; }

  // A hash of the file that the module comes from; empty: the module comes from no file.
  virtual std::string ModuleContents() const { return ""; }

  // The run resumes: the first fetched batch belongs to start.epoch() and follows the first
  // start.rows() rows of this worker's share (resume_position.h). If the share has no more rows,
  // the first batch is empty. Called before any Fetch.
  virtual absl::Status StartAt(const TrainPosition& /*start*/) {
    return absl::UnimplementedError("this task runner cannot resume in the middle of a run");
  }
  // The state that a program or a module needs to resume from a checkpoint that contains the steps
  // below `step`; empty: no state. `epoch`: the epoch of this worker; `last`: nothing follows the
  // checkpoint. Called on the thread of Compute.
  virtual absl::StatusOr<std::string> ProgramState(int64_t /*step*/, int64_t /*epoch*/,
                                                   bool /*last*/) {
    return std::string();
  }
  // Rows of this worker that the first Fetch has read again so far, to skip them. Reading them may
  // take long, and the growing number shows that the worker has not stalled. Any thread.
  virtual int64_t RowsReadAgain() const { return 0; }

  // Each of these runs the task of the same name (trainer_task.h). An error ends the job and gives
  // the reason.
  virtual absl::Status Fetch(StepSlot* slot) = 0;
  virtual absl::Status FetchTest(StepSlot* slot, bool first, HeldOut rows) = 0;
  virtual absl::Status Compute(StepSlot* slot) = 0;
  // Cancels the Compute of this step, which then returns OK without a gradient. False if the step
  // is computed already, or if the runner may still compute it. Any thread.
  virtual bool TakeBack(int64_t /*step*/) { return false; }
  virtual absl::Status Score(StepSlot* slot) = 0;
  virtual absl::Status FillShare(EvaluationShare* share, Buffer* payload) = 0;
  virtual absl::StatusOr<std::string> MergeShares(const std::map<int, EvaluationShare>& shares,
                                                  const std::map<int, Buffer>& payloads) = 0;

  // With replicas: a step is synchronised, so the dense parameters have their values for the next
  // step. Called on the thread of Compute.
  virtual void OnSynchronised() {}

  // From now on Compute calls `ready` during its backward pass: elements of the dense gradient from
  // `first` to the end are final. A runner that does not know when elements are final never calls
  // `ready`.
  virtual void set_gradient_ready(std::function<void(int64_t first)> /*ready*/) {}

  // From now on the dense gradient stays in GPU memory. The returned function gives its address
  // there after a Compute. With `zero` the function gives the address of a gradient of zeros (a
  // step without samples).
  using DeviceGradient = std::function<absl::StatusOr<float*>(bool zero)>;
  virtual DeviceGradient LeaveGradientOnDevice() {
    return [](bool) -> absl::StatusOr<float*> {
      return absl::UnimplementedError("this model does not keep its gradients on a GPU");
    };
  }
};

// Makes the task runner of worker `rank`; the plan outlives the runner.
using MakeTaskRunner = std::function<absl::StatusOr<std::unique_ptr<TaskRunner>>(
    const job::ResolvedJob& plan, int rank)>;

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TASK_RUNNER_H_
