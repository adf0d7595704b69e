// TimedSums has the sums of dense replicas in a simulation of times only (timing.h). A sum waits
// for all workers, or for a quorum (worker/dense/quorum_leader.h).
//
// A sum of all ends on all workers at the same time. By quorum each worker sends its news to
// rank 0. The worker continues when rank 0 releases it and the sums begun so far are over. Sums by
// quorum follow one another.
//
// Thread safety: none.
#ifndef TANDEM_TOOLS_SIM_TIMED_SUMS_H_
#define TANDEM_TOOLS_SIM_TIMED_SUMS_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "job/job.h"
#include "tools/sim/timed_agenda.h"
#include "worker/dense/quorum_leader.h"
#include "worker/step_order.h"

namespace tandem::sim {

class TimedSums {
 public:
  // takes: of a sum. latency: of a message to or from rank 0. `plan` and `agenda` outlive this.
  TimedSums(const job::ResolvedJob& plan, Ticks takes, Ticks latency, TimedAgenda* agenda);

  bool by_quorum() const { return leader_.has_value(); }
  int64_t begun() const { return begun_; }  // number of sums
  // Whether workers enter a sum at this step: every `every` steps, and at each step before
  // `warmup_steps`. They also do in the step after the policies told the end.
  bool Meets(const worker::StepOrder& order) const;
  // A worker enters the sum of a step. kSummed follows.
  void Enter(int rank, int64_t step);
  // By quorum: a worker skipped the steps up to `step`. True if it waits for kSummed.
  bool Skip(int rank, int64_t step);
  // A worker has no more data.
  void Leave(int rank);
  // kNewsArrives and kGraceEnds.
  void OnNews(const TimedEvent& news);
  void Begin();

 private:
  void Send(int rank, int64_t step, bool finished);
  Ticks To(int rank) const { return rank == 0 ? 0 : latency_; }

  const Ticks takes_, latency_;
  const int64_t every_, warmup_steps_;  // of local steps
  TimedAgenda& agenda_;
  std::vector<int64_t> entered_;  // by rank
  int summing_ = 0;               // workers that wait in the current sum of all
  int64_t begun_ = 0;
  absl::optional<worker::QuorumLeader> leader_;
  Ticks end_ = 0;                                   // of the last sum by quorum
  absl::Time grace_ends_ = absl::InfiniteFuture();  // its event is in the agenda
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_TIMED_SUMS_H_
