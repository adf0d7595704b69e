// The interface of a worker's steps when dense parameters do not wait for all workers: sums of
// gradients (quorum_sums.h), or sync rounds of replicas (quorum_rounds.h).
//
// Thread safety: any thread may call WaitingFor; one thread calls all other methods.
#ifndef TANDEM_WORKER_DENSE_QUORUM_STEPS_H_
#define TANDEM_WORKER_DENSE_QUORUM_STEPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/activity.h"
#include "worker/dense/dense_reduction.h"

namespace tandem::worker {

class QuorumSteps {
 public:
  QuorumSteps() = default;
  virtual ~QuorumSteps() = default;
  QuorumSteps(const QuorumSteps&) = delete;
  QuorumSteps& operator=(const QuorumSteps&) = delete;

  // A step is about to read the parameters.
  virtual void BeforeStep() {}
  // Takes a step's gradient, padded as in DenseParameters, plus one element; empty if the worker
  // has skipped the steps up to this one (sums of gradients only). Returns when the worker may
  // continue. `missed` gets, for each contribution that a sum has taken since the last call, how
  // many sums it had missed: the sums that began between the read of its parameters and its own
  // sum.
  virtual absl::Status Finish(absl::Span<float> gradient, const DenseReduction::Step& step,
                              std::vector<int64_t>* missed) = 0;
  // This worker has no data left until all workers settle for a new epoch.
  virtual absl::Status OutOfData() = 0;
  // Called on all ranks. Waits for all workers, and for a sum with all remaining contributions.
  // After the call the parameters of all workers are one model, and have been compared. `step`: the
  // step at which all workers begin a new epoch, if `new_epoch`.
  virtual absl::Status Settle(bool new_epoch, int64_t step, std::vector<int64_t>* missed) = 0;

  // After Settle: the state for a checkpoint that only this worker has, or that a checkpoint of the
  // parameters does not contain. SetState restores it before the first step.
  virtual std::string State() const { return ""; }
  virtual absl::Status SetState(absl::string_view /*state*/) { return absl::OkStatus(); }

  virtual Activity WaitingFor() const = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_QUORUM_STEPS_H_
