// Local SGD whose sync rounds do not wait for all workers (local_steps.quorum): each worker takes
// optimizer steps of its own, and after every so many of them it enters a sync round with the
// workers that are there. After Douillard, Rush, Donchev et al. 2026, "Decoupled DiLoCo for
// resilient distributed pre-training", which also has a quorum, a grace and weights by tokens.
// There, a separate synchroniser sends fragments of the model in turn; here the whole model is
// sent, and a worker waits for its sync round.
//
// A sync round is a sum of quorum_sums.h. Each worker brings its movement: the distance from the
// common model that it last took, multiplied by its samples since then. The common model, which is
// the same on all workers, takes an outer step (local_sgd.h) with the mean over the samples of all
// workers in the sum. The result replaces the worker's replica. Each worker keeps its own optimizer
// state.
//
// A worker that comes too late for its sync round does not wait. The worker takes the present
// common model, and its movement is in the next sum. So every movement is in exactly one sync
// round, and counts there by its samples. This class is a thin shell around the sums;
// sync_replica.h does a worker's part between sync rounds.
//
// If every worker is in every sync round, the result is that of LocalSgd except for rounding: this
// class sums differences, LocalSgd sums models.
//
// A worker whose data ends between two sync rounds gives its movement to the next one.
//
// Settling (for an evaluation, a checkpoint, or the end of an epoch) is a sync round of all
// workers, at whatever step they are. Afterwards each replica is the common model. A checkpoint
// contains that model, each worker's optimizer state, and the state of the outer step.
//
// Thread safety: as DenseSteps.
#ifndef TANDEM_WORKER_DENSE_QUORUM_ROUNDS_H_
#define TANDEM_WORKER_DENSE_QUORUM_ROUNDS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/dense/quorum_sums.h"
#include "worker/dense/sync_replica.h"

namespace tandem::worker {

class QuorumRounds final : public DenseSteps {
 public:
  struct Options {
    QuorumSums::Options sums;
    SyncReplica::Options replica;
  };
  // `dense`: the worker's replica, equal on all workers; outlives this object. The other arguments
  // are those of QuorumSums.
  QuorumRounds(DenseParameters& dense, std::unique_ptr<collectives::AsyncGroup> mail,
               GroupRunner& runner, const Options& options);

  absl::Status Finish(absl::Span<float> gradient, const Step& step, StepResult* result) override;
  absl::Status OutOfData() override;
  absl::Status Settle(bool new_epoch, int64_t step, std::vector<int64_t>* missed) override;
  std::string State() const override { return replica_.State(); }
  absl::Status SetState(absl::string_view state) override;
  Activity WaitingFor() const override { return sums_.WaitingFor(); }

 private:
  void AddRest();

  SyncReplica replica_;
  QuorumSums sums_;  // last member: its thread steps the replica's model
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_QUORUM_ROUNDS_H_
