// The times of a job without its arithmetic: up to tens of thousands of workers under a virtual clock, of
// which a step is a draw, and rows and gradients are nothing. The policy objects that run on shards and
// workers decide (start, serve, apply, tick), workers go through their steps as worker/step_pipeline.h says,
// and each group of tables with one policy is one range (timed_range.h): on a quiet network the ranges of
// a group are told the same at the same moments.
//
// Time passes from one event to the next. An event is one dispatched entry of the agenda: a read or a push
// that arrives at the servers, rows or a word that arrive at a worker, the end of a step's computing, the
// end of an allreduce. A step of a job with tables on servers has four.
//
// A network is a delay, and a rate of each process (timed_links.h).
//
// Each worker takes `steps` steps with samples, as with train.max_steps and data without end; what ends a
// job is that of one epoch. There are no evaluations and no saves, nothing is lost, and servers take no
// time to answer.
//
// The same options give the same run. Thread safety: none; one thread.
#ifndef TANDEM_SIM_TIMING_H_
#define TANDEM_SIM_TIMING_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "job/job.h"
#include "job/service_time.h"
#include "policies/policy.h"
#include "scheduler/job_report.h"
#include "sim/timed_agenda.h"
#include "sim/timed_links.h"
#include "sim/timed_range.h"

namespace tandem::sim {

struct TimingOptions {
  uint64_t service_seed = 1;  // of service times
  int64_t steps = 1000;       // of each worker
  absl::Duration limit =
      absl::InfiniteDuration();  // then the run is over, wherever its workers are
  // A step of a worker for which the job has no service_time.
  absl::Duration compute = absl::Milliseconds(10);
  std::vector<absl::Duration> least_compute;         // by rank: no step takes less; empty: any may
  absl::Duration latency = absl::Microseconds(100);  // of every frame
  double bytes_per_second = 0;                       // of each process, either way; 0: no limit
  double step_bytes = 0;   // of the rows that a step reads, and of the gradients that it pushes
  double dense_bytes = 0;  // of what an allreduce sums
  std::function<void(uint32_t group, const TimedFate& fate)> on_update;  // may be null
  std::function<bool()> stopped;  // asked now and then; true: Run ends with CANCELLED
};

class Timing {
 public:
  // INVALID_ARGUMENT: a job whose times are not known here: tables on workers, and policies that have
  // workers keep rows.
  static absl::Status Check(const job::JobPlan& plan);
  // `plan` outlives this, and has passed Check; else what that says.
  static absl::StatusOr<std::unique_ptr<Timing>> New(const job::JobPlan& plan,
                                                     const TimingOptions& options);

  // Runs the job to its end, once.
  absl::Status Run();

  // After Run: what a live run reports, but for bytes, rows and evaluations. Of who waited for whom, by
  // worker, there are `waiting` rows only up to kMostInPairs workers; beyond these, WaitedBy and AwaitedBy.
  scheduler::JobReport Report() const;
  static constexpr int kMostInPairs = 256;
  // Seconds by rank that reads of a worker lay parked; and that those of others did until it pushed.
  const std::vector<double>& waited() const { return waited_; }
  const std::vector<double>& awaited() const { return awaited_; }
  uint64_t event_count() const { return agenda_.taken(); }
  absl::Duration elapsed() const;

 private:
  using Event = TimedEvent;
  using Kind = TimedEvent::Kind;
  enum class SlotState : uint8_t { kFree, kReading, kReady, kComputing };
  // A step of a worker, until its push is acknowledged.
  struct Slot {
    SlotState state = SlotState::kFree;
    int unread = 0;   // groups that have not been answered
    Ticks asked = 0;  // when it was read
    int32_t clock_gap = 0, in_flight = 0;
  };
  // An acknowledgement under way.
  struct Ack {
    int64_t step = 0;
    int32_t slot = -1;
    Ticks at = -1;  // -1: the push has not arrived yet
  };
  struct Worker {
    int64_t step = 0, pushed = 0, next_read = 0;
    int64_t open_step = 0;  // a step of its own came too late: this one is open
    int64_t skipped = 0;    // steps left out so far; slots are numbered by the others
    uint32_t life = 0;      // grows when steps are left out: what was read before is of no use
    bool computing = false, synchronising = false;
    bool ends = false;  // a step that no worker had samples for has been seen
    enum class Stage : uint8_t { kTraining, kDraining, kLeaving, kDone } stage = Stage::kTraining;
    bool awaits_word = false;
    int64_t taken = 0;                 // steps with samples
    Ticks computes = 0, computed = 0;  // the step under way; those that are over
    Ticks shortest_read = -1;
    std::deque<Ack> acks;
  };
  struct Parked {
    Event read;
    Ticks since = 0;
    bool served = false;  // and not yet removed
  };
  struct Group {
    std::unique_ptr<policies::UpdatePolicy> policy;
    std::unique_ptr<TimedRange> range;
    std::vector<Parked> parked;                  // in the order in which they came
    std::vector<std::vector<size_t>> parked_of;  // by rank: places in it
    size_t served = 0;                           // of them, not yet removed
    TimedRange::Front front;                     // when they were looked at last
    std::vector<int64_t> told;                   // by rank: the largest minimum clock that it knows
    std::vector<TimedRead> reads;                // by slot of all workers: what it was answered
    std::vector<int64_t>
        acknowledged;  // likewise: the minimum clock that its acknowledgement tells
  };

  Timing(const job::JobPlan& plan, const TimingOptions& options);
  absl::Status Init();

  void Dispatch(const Event& event);

  // Workers.
  void Advance(int rank);
  bool AdvanceOnce(int rank);
  bool Leave(int rank);
  bool SkipToOpenStep(int rank);
  bool StartRead(int rank);
  bool StartCompute(int rank);
  void AfterCompute(int rank);
  void BeginSum();
  void OnSummed();
  void OnRows(const Event& event);
  bool MayStart(int rank);
  int64_t ClockGap(int rank) const;
  void TakeAcks(int rank);
  bool AllAcknowledged(int rank);
  void AwaitWord(int rank);
  void PushEmpty(int rank, int64_t to, bool finished);
  bool HasSamples(int64_t step) const { return step < options_.steps; }
  bool Meets(int64_t step) const;

  // Servers.
  void OnRead(const Event& event);
  void Answer(Group* group, const Event& read);
  void OnPush(const Event& event);
  void OnProbe(int rank);
  void ServeParked(Group* group, int freed_by);
  void ServeIfFreed(Group* group, int freed_by, Parked* parked);
  void CountWait(int rank, Ticks since, int freed_by);

  Worker& worker(int rank) { return workers_[static_cast<size_t>(rank)]; }
  int SlotOf(int rank, int64_t step) const {
    const Worker& w = workers_[static_cast<size_t>(rank)];
    return rank * slots_each_ + static_cast<int>((step - w.skipped) % slots_each_);
  }
  Slot& slot(int index) { return slots_[static_cast<size_t>(index)]; }

  const job::JobPlan& plan_;
  const TimingOptions options_;
  const int depth_;
  const int64_t batch_;
  const bool replicas_;       // of dense parameters
  const bool policies_tell_;  // that an epoch is over
  const int64_t every_;       // steps between two allreduces
  const int slots_each_;
  const Ticks latency_;
  TimedLinks links_;
  std::vector<job::ServiceTimes> times_;
  TimedAgenda agenda_;
  Ticks cut_at_ = 0;  // the limit, if that ended the run
  std::vector<Group> groups_;
  std::vector<Worker> workers_;
  std::vector<Slot> slots_;              // [workers, slots_each_]
  int done_ = 0;                         // workers
  int summing_ = 0;                      // workers that have come
  int64_t steps_since_ = 0;              // the last one, with samples, of all workers
  std::vector<Ticks> waits_counted_to_;  // by rank
  std::vector<double> waited_, awaited_;
  std::vector<std::vector<double>> pairs_;  // [workers][workers], if there are few
};

}  // namespace tandem::sim

#endif  // TANDEM_SIM_TIMING_H_
