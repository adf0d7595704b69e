// The interface of a worker's steps if every worker has a replica of the dense parameters: a
// reduction over all workers (dense_reducer.h), or, with a quorum, sums of gradients
// (quorum_sums.h) or sync rounds of replicas (quorum_rounds.h) that do not wait for all workers.
//
// Thread safety: any thread may call WaitingFor; one thread calls all other methods.
#ifndef TANDEM_WORKER_DENSE_DENSE_STEPS_H_
#define TANDEM_WORKER_DENSE_DENSE_STEPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/activity.h"
#include "worker/dense/dense_reduction.h"

namespace tandem::worker {

class DenseSteps {
 public:
  using Step = DenseReduction::Step;
  struct StepResult {
    double samples_of_all = DenseReduction::kUnknown;  // the sum of n, or kUnknown
    int64_t empty_steps = 1;                           // if the sum is 0: as in DenseReduction
    // With a quorum: for each contribution that a sum has taken since the last call, the number of
    // sums that it had missed: those that began between the read of its parameters and its own sum.
    std::vector<int64_t> missed;
  };

  DenseSteps() = default;
  // Derived classes abort a running request.
  virtual ~DenseSteps() = default;
  DenseSteps(const DenseSteps&) = delete;
  DenseSteps& operator=(const DenseSteps&) = delete;

  // Whether Begin and Ready are called; otherwise Finish does everything.
  virtual bool overlaps() const { return false; }
  // A model is about to compute a step, and reads the parameters.
  virtual void BeforeStep() {}
  // A backward pass begins. `gradient` is as in Finish, and stays valid until Finish.
  virtual void Begin(absl::Span<float> /*gradient*/, const Step& /*step*/) {}
  // Elements from `first` to the end have their final values.
  virtual void Ready(int64_t /*first*/) {}
  // Takes a step's gradient, padded as in DenseParameters, plus one element; empty if the worker
  // has skipped the steps up to this one (sums of gradients only). Returns when the worker may
  // continue. A worker without data calls Finish without Begin.
  virtual absl::Status Finish(absl::Span<float> gradient, const Step& step, StepResult* result) = 0;
  // With a quorum: this worker has no data left until all workers settle for a new epoch.
  virtual absl::Status OutOfData() { return absl::OkStatus(); }
  // Called on all ranks, between steps. Gives rank 0 the state that only other ranks have. With a
  // quorum, waits for all workers, and for a sum with all remaining contributions. After the call
  // the parameters of all workers are one model, and have been compared. `new_epoch`, with a quorum
  // only: all workers begin an epoch at `step`. `missed` is as in StepResult.
  virtual absl::Status Settle(bool new_epoch, int64_t step, std::vector<int64_t>* missed) = 0;

  // After Settle: the state for a checkpoint that only this worker has, or that a checkpoint of the
  // parameters does not contain. SetState restores it before the first step.
  virtual std::string State() const { return ""; }
  virtual absl::Status SetState(absl::string_view /*state*/) { return absl::OkStatus(); }

  // The worker whose contribution is waited for outside the group's requests; or no text.
  virtual Activity WaitingFor() const { return {}; }
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_DENSE_STEPS_H_
