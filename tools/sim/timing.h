// Simulates the times of a job without its arithmetic: up to tens of thousands of workers under a
// virtual clock. The compute time of a step is drawn at random, and rows and gradients do not
// exist. The policy objects of shards and workers decide (start, serve, apply, tick). Workers take
// their steps in the order of worker/step_order.h, as live ones do. Each group of tables with the
// same policy is one range (timed_range.h), because the ranges of a group get the same messages at
// the same times if the network loses nothing.
//
// Time passes from one event to the next. Events are: a pull or push arrives at the servers, rows
// or an acknowledgement arrive at a worker, a step is computed, an allreduce ends. Sums by quorum
// also have news at rank 0 and the end of a grace time. A step of a job with tables on servers has
// four events.
//
// The network has a delay, and a rate for each process (timed_links.h).
//
// Each worker takes `steps` steps with samples, as with train.max_steps and unlimited data. The job
// ends as after one epoch. There are no evaluations and no checkpoints, nothing is lost, and
// servers reply at once.
//
// The same options give the same run. Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_TIMING_H_
#define TANDEM_TOOLS_SIM_TIMING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "job/job.h"
#include "job/step_time.h"
#include "policies/policy.h"
#include "scheduler/observe/job_report.h"
#include "tools/sim/timed_agenda.h"
#include "tools/sim/timed_links.h"
#include "tools/sim/timed_range.h"
#include "tools/sim/timed_sums.h"
#include "worker/step_order.h"

namespace tandem::sim {

struct TimingOptions {
  uint64_t service_seed = 1;                        // of step times
  int64_t steps = 1000;                             // of each worker
  absl::Duration limit = absl::InfiniteDuration();  // the run ends at this virtual time
  // Compute time of a step of a worker without fault_injection.slow_workers.
  absl::Duration compute = absl::Milliseconds(10);
  std::vector<absl::Duration> min_compute;  // by rank: least time of a step; empty: no minimum
  // By rank, then by step, and again from the first one: the whole time of a step, in place of the
  // two above and of the job's step times; empty: not given.
  std::vector<std::vector<Ticks>> step_ticks;
  absl::optional<Ticks> sum_ticks;                   // of a sum, in place of its messages
  absl::Duration latency = absl::Microseconds(100);  // of every frame
  double bytes_per_second = 0;                       // of each process and direction; 0: no limit
  double step_bytes = 0;   // of the rows that a step pulls, and of the gradients that it pushes
  double dense_bytes = 0;  // summed by an allreduce
  std::function<void(uint32_t group, const TimedFate& fate)> on_update;  // may be null
  std::function<bool()> stopped;  // called sometimes; true: Run ends with CANCELLED
};

class Timing {
 public:
  // INVALID_ARGUMENT for jobs whose times cannot be simulated: tables on workers, and policies with
  // which workers cache rows.
  static absl::Status Check(const job::ResolvedJob& plan);
  // `plan` must outlive this. Returns the error of Check if there is one.
  static absl::StatusOr<std::unique_ptr<Timing>> New(const job::ResolvedJob& plan,
                                                     const TimingOptions& options);

  // Runs the job to its end, once.
  absl::Status Run();

  // After Run: the report of a live run, without bytes, rows and evaluations. waited() and
  // awaited() always exist.
  scheduler::JobReport Report() const;
  // By rank: seconds for which the worker's reads waited, and for which reads of others waited for
  // its push.
  const std::vector<double>& waited() const { return waited_; }
  const std::vector<double>& awaited() const { return awaited_; }
  // By rank: when the last step with samples was over.
  const std::vector<Ticks>& ended() const { return ended_; }
  int64_t sums() const { return sums_->begun(); }  // of dense replicas
  uint64_t event_count() const { return agenda_.taken(); }
  absl::Duration elapsed() const;

 private:
  using Event = TimedEvent;
  using Kind = TimedEvent::Kind;
  using StepOrder = worker::StepOrder;
  struct Gate;
  // A step of a worker, until its push is acknowledged.
  struct Slot {
    int unread = 0;   // groups whose rows have not arrived
    Ticks asked = 0;  // time of the pull
    int32_t clock_gap = 0, in_flight = 0;
  };
  // An acknowledgement in flight.
  struct Ack {
    int64_t step = 0;
    int32_t slot = -1;
    Ticks at = -1;  // -1: the push has not arrived yet
  };
  struct Worker {
    explicit Worker(const StepOrder::Options& options) : order(options) {}

    StepOrder order;
    uint32_t life = 0;  // grows when steps are skipped: earlier pulls are then useless
    // After the end of the epoch.
    enum class Stage : uint8_t { kDraining, kLeaving, kDone } stage = Stage::kDraining;
    bool awaits_word = false;
    int64_t taken = 0;                 // steps with samples
    Ticks computes = 0, computed = 0;  // compute time: of the current step, of the steps before
    Ticks shortest_read = -1;
    std::vector<Ack> acks;  // few, in the order of the pushes
  };
  struct WaitingRead {
    Event read;
    Ticks since = 0;
    bool served = false;  // served, but not removed yet
  };
  struct Group {
    std::unique_ptr<policies::UpdatePolicy> policy;
    std::unique_ptr<TimedRange> range;
    std::vector<WaitingRead> parked;              // waiting reads, in order of arrival
    std::vector<std::vector<size_t>> waiting_of;  // by rank: indexes in `parked`
    size_t served = 0;                            // entries of `parked` to be removed
    policies::Front front;                        // after the last push
    std::vector<int64_t> told;          // by rank: the largest minimum clock that it knows
    std::vector<TimedRead> reads;       // by slot of all workers: the reply to the pull
    std::vector<int64_t> acknowledged;  // by slot: the minimum clock in the acknowledgement
  };

  Timing(const job::ResolvedJob& plan, const TimingOptions& options);
  absl::Status Init();

  void Dispatch(const Event& event);

  // Workers.
  void Advance(int rank);
  bool AdvanceOnce(int rank);
  bool Leave(int rank);
  void Skip(int rank);
  void Fetch(int rank);
  void StartRead(int rank);
  void StartCompute(int rank);
  void AfterCompute(int rank);
  Ticks TakesOf(int rank, int64_t step) const;
  void OnSummed(int rank);
  void OnRows(const Event& event);
  void Ask(int rank);
  void TakeAcks(int rank);
  bool AllAcknowledged(int rank);
  void AwaitWord(int rank);
  void PushEmpty(int rank, int64_t to, bool finished);
  bool HasSamples(int64_t step) const { return step < options_.steps; }

  // Servers.
  void OnRead(const Event& event);
  void Answer(Group* group, const Event& read);
  void OnPush(const Event& event);
  void OnProbe(int rank);
  void ServeWaitingReads(Group* group, int freed_by);
  void ServeIfFreed(Group* group, int freed_by, WaitingRead* parked);
  void CountWait(int rank, Ticks since, int freed_by);

  Worker& worker(int rank) { return workers_[static_cast<size_t>(rank)]; }
  int SlotOf(int rank, int64_t step) const {
    return rank * slots_each_ + workers_[static_cast<size_t>(rank)].order.SlotOf(step);
  }
  Slot& slot(int index) { return slots_[static_cast<size_t>(index)]; }

  const job::ResolvedJob& plan_;
  const TimingOptions options_;
  const int depth_;
  const int64_t batch_;
  const bool replicas_;       // dense parameters are replicated
  const bool policies_tell_;  // policies report the end of an epoch
  const int slots_each_;
  const Ticks latency_;
  TimedLinks links_;
  std::vector<job::StepTimes> times_;
  TimedAgenda agenda_;
  Ticks cut_at_ = 0;  // the limit, if it ended the run; else 0
  std::vector<Group> groups_;
  std::vector<Worker> workers_;
  std::vector<Slot> slots_;   // [workers, slots_each_]
  int done_ = 0;              // workers that ended
  std::vector<Ticks> ended_;  // by rank
  absl::optional<TimedSums> sums_;
  int64_t steps_since_ = 0;              // steps with samples of all workers since the last one
  bool nobody_ = false;                  // the last one told that no worker had samples
  std::vector<Ticks> waits_counted_to_;  // by rank
  std::vector<double> waited_, awaited_;
  std::vector<std::vector<double>> pairs_;  // [workers][workers], if there are few
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_TIMING_H_
