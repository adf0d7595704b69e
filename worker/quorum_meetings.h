// Local SGD whose meetings do not wait for all workers (local_steps.quorum): each worker takes optimizer
// steps of its own, and after every so many of them it meets those who are there. After Douillard, Rush,
// Donchev et al. 2026, "Decoupled DiLoCo for resilient distributed pre-training", which has a quorum,
// a grace and weights by tokens; there fragments of the model travel in turn by a synchroniser of its own,
// here the model travels whole, and a worker waits for its meeting.
//
// A meeting is a sum of quorum_sums.h. What a worker brings is how far it has moved since the common
// model that it last took, times its samples since then; the common model, the same on all workers, takes
// an outer step (local_sgd.h) with the mean over the samples of all who are in the sum, and becomes the
// worker's replica. The slots of a worker's optimizer stay its own. A worker that comes too late for its
// meeting does not wait: it takes the common model of then, and what it brings is in the next sum. So
// every movement is in exactly one meeting, and counts there by its samples. This is the thin shell;
// meeting_replica.h has what a worker does between meetings.
//
// With everybody in every meeting it is LocalSgd, but for rounding: differences are summed, not models.
//
// A worker whose data end between two meetings leaves what it has moved to the next one.
//
// Settling (an evaluation, a save, the end of an epoch) is a meeting of all, wherever they are: replicas
// are then the common model. A save has that model, and of each worker its slots, and the outer step's.
//
// Thread safety: as QuorumSteps.
#ifndef TANDEM_WORKER_QUORUM_MEETINGS_H_
#define TANDEM_WORKER_QUORUM_MEETINGS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/meeting_replica.h"
#include "worker/quorum_sums.h"

namespace tandem::worker {

class QuorumMeetings final : public QuorumSteps {
 public:
  struct Options {
    QuorumSums::Options sums;
    MeetingReplica::Options replica;
  };
  // `dense`: the worker's replica, equal on all workers; outlives this. The rest is QuorumSums'.
  QuorumMeetings(DenseParameters& dense, std::unique_ptr<collectives::AsyncGroup> mail,
                 collectives::GroupWatch* watch, QuorumSums::Run run, QuorumSums::Idle idle,
                 const Options& options);

  absl::Status Finish(absl::Span<float> gradient, const DenseReduction::Step& step,
                      std::vector<int64_t>* missed) override;
  absl::Status OutOfData() override;
  absl::Status Settle(bool new_epoch, int64_t step, std::vector<int64_t>* missed) override;
  std::string State() const override { return replica_.State(); }
  absl::Status SetState(absl::string_view state) override;
  Activity WaitingFor() const override { return sums_.WaitingFor(); }

 private:
  void AddRest();

  MeetingReplica replica_;
  QuorumSums sums_;  // the last member: its thread steps the replica's model
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_QUORUM_MEETINGS_H_
