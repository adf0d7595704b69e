// One worker's replica for sync rounds that do not wait for all workers (quorum_rounds.h),
// without threads and links: the local optimizer steps, the movement that the worker brings to a
// sync round, and the common model that it takes from there. In a worker quorum_rounds.h runs
// this object, in the simulator tools/sim/sim_quorum.h. Both also run a QuorumMember
// (quorum_member.h), whose parameters are `common` and whose model is NewModel().
//
//   if (replica.Step(gradient, step)) {
//     const SyncReplica::Movement movement = replica.Bring();
//     ... add it to the next sum, wait for it, copy the present model into `common` ...
//     replica.TakeCommon();
//   }
//
// Thread safety: none; but another thread may step NewModel's model, except during State and
// SetState.
#ifndef TANDEM_WORKER_DENSE_SYNC_REPLICA_H_
#define TANDEM_WORKER_DENSE_SYNC_REPLICA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "job/job.h"
#include "worker/dense/dense_parameters.h"
#include "worker/dense/dense_reduction.h"
#include "worker/dense/local_sgd.h"

namespace tandem::worker {

class SyncReplica {
 public:
  struct Options {
    int64_t every = 1;  // steps from one sync round to the next
    LocalSgd::Outer outer;
  };
  static Options OptionsOf(const job::ResolvedJob& plan);

  // `dense`: the replica, equal on all workers; outlives this object.
  SyncReplica(DenseParameters& dense, const Options& options);

  // The common model that the worker last took. The owner of this object writes it.
  DenseParameters& common() { return *common_; }
  // Makes a copy of the common model that takes outer steps. All workers have the same copy after
  // the same sums. This object outlives the copy.
  std::unique_ptr<DenseParameters> NewModel();

  // Takes a local step. True: a sync round is due.
  bool Step(absl::Span<const float> gradient, const DenseReduction::Step& step);

  // The distance that the replica has moved since TakeCommon, padded, plus one element, multiplied
  // by its samples since then.
  struct Movement {
    absl::Span<float> values;
    DenseReduction::Step sync_round;  // number of the sync round, and the samples
  };
  // The movement for a sync round that is due.
  Movement Bring();
  // The movement since the last sync round (if `has_rest`), for the next sync round, whichever
  // workers take part in it. No step may follow before TakeCommon.
  bool has_rest() const { return samples_ > 0; }
  Movement BringRest();

  // Sets the replica to the common model.
  void TakeCommon();
  // All workers begin an epoch at `step`. From here on sync rounds have the same number on all
  // workers; no worker has had more of them than steps.
  void BeginEpoch(int64_t step);

  // After a sync round of all workers: the replica with its optimizer state, and the state of the
  // outer step. SetState restores it before the first step; then the owner must set the model to
  // `common`.
  std::string State() const;
  absl::Status SetState(absl::string_view state);

 private:
  DenseParameters& dense_;
  const Options options_;
  std::vector<float> outer_state_;  // LocalSgd::Outer::StateSize; used by NewModel
  const std::unique_ptr<DenseParameters> common_;
  std::vector<float> moved_;         // padded, plus one element
  int64_t steps_ = 0, samples_ = 0;  // since TakeCommon
  int64_t sync_round_ = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_SYNC_REPLICA_H_
