// One worker's replica where meetings do not wait for all workers (quorum_meetings.h), without threads and
// links: the optimizer steps that it takes by itself, what it brings to a meeting, and the common model
// that it takes from there. In a worker quorum_meetings.h runs it, in the simulator sim/sim_quorum.h; both
// beside a QuorumMember (quorum_member.h), whose parameters are `common` and whose model is NewModel().
//
//   if (replica.Step(gradient, step)) {
//     const MeetingReplica::Movement movement = replica.Bring();
//     ... add it to the next sum, wait for it, let `common` become the model of now ...
//     replica.TakeCommon();
//   }
//
// Thread safety: none; but NewModel's steps may be by another thread, as long as none of them is under way
// in State and SetState.
#ifndef TANDEM_WORKER_MEETING_REPLICA_H_
#define TANDEM_WORKER_MEETING_REPLICA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "job/job.h"
#include "worker/dense_parameters.h"
#include "worker/dense_reduction.h"
#include "worker/local_sgd.h"

namespace tandem::worker {

class MeetingReplica {
 public:
  struct Options {
    int64_t every = 1;  // steps from one meeting to the next
    LocalSgd::Outer outer;
  };
  static Options OptionsOf(const job::JobPlan& plan);

  // `dense`: the replica, equal on all workers; outlives this.
  MeetingReplica(DenseParameters& dense, const Options& options);

  // The common model that the worker last took, once whoever runs this has put it there.
  DenseParameters& common() { return *common_; }
  // A copy of it that takes outer steps. This outlives it; the same on all workers after the same sums.
  std::unique_ptr<DenseParameters> NewModel();

  // A step of the worker's own. True: a meeting is due.
  bool Step(absl::Span<const float> gradient, const DenseReduction::Step& step);

  // How far it has moved since TakeCommon, padded, plus one element, times its samples since then.
  struct Movement {
    absl::Span<float> values;
    DenseReduction::Step meeting;  // its number, and the samples
  };
  // To a meeting that is due.
  Movement Bring();
  // To the next one, whoever is there: what there is since the last meeting, if `has_rest`. No step may
  // follow before TakeCommon.
  bool has_rest() const { return samples_ > 0; }
  Movement BringRest();

  // The replica becomes the common model.
  void TakeCommon();
  // All workers begin an epoch at `step`: meetings have the same number everywhere, as a worker has had
  // no more of them than steps.
  void BeginEpoch(int64_t step);

  // After a meeting of all: the replica with its slots, and what the outer step remembers. And back,
  // before the first step; the model has to be set to `common` then.
  std::string State() const;
  absl::Status SetState(absl::string_view state);

 private:
  DenseParameters& dense_;
  const Options options_;
  std::vector<float> velocity_;  // of the outer step, padded; NewModel's
  const std::unique_ptr<DenseParameters> common_;
  std::vector<float> moved_;         // padded, plus one element
  int64_t steps_ = 0, samples_ = 0;  // since TakeCommon
  int64_t meeting_ = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_MEETING_REPLICA_H_
