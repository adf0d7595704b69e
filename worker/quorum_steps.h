// A worker's steps where the dense parameters do not wait for all workers: by sums of gradients
// (quorum_sums.h) or by meetings of replicas (quorum_meetings.h).
//
// Thread safety: all but WaitingFor by one thread; that by any.
#ifndef TANDEM_WORKER_QUORUM_STEPS_H_
#define TANDEM_WORKER_QUORUM_STEPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/activity.h"
#include "worker/dense_reduction.h"

namespace tandem::worker {

class QuorumSteps {
 public:
  QuorumSteps() = default;
  virtual ~QuorumSteps() = default;
  QuorumSteps(const QuorumSteps&) = delete;
  QuorumSteps& operator=(const QuorumSteps&) = delete;

  // The parameters are about to be read by a step.
  virtual void BeforeStep() {}
  // A step's gradient, padded as in DenseParameters, plus one element; or nothing, if the worker has left
  // out the steps up to this one (sums of gradients only). Returns when the worker may go on; `missed`
  // gets, for each of its contributions that a sum has taken since the last call, how many sums it had
  // missed: those that began between its parameters and its own.
  virtual absl::Status Finish(absl::Span<float> gradient, const DenseReduction::Step& step,
                              std::vector<int64_t>* missed) = 0;
  // This worker has no data left before all settle for a new epoch.
  virtual absl::Status OutOfData() = 0;
  // All ranks: waits for all, and for a sum that has what is left of everybody. Then the parameters of
  // all workers are one model, and have been compared. `step`: at which all begin a new epoch, if they do.
  virtual absl::Status Settle(bool new_epoch, int64_t step, std::vector<int64_t>* missed) = 0;

  // After Settle: what this worker alone has, or a save of the parameters does not; and back, before the
  // first step.
  virtual std::string State() const { return ""; }
  virtual absl::Status SetState(absl::string_view /*state*/) { return absl::OkStatus(); }

  virtual Activity WaitingFor() const = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_QUORUM_STEPS_H_
