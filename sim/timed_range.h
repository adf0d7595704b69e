// One key range of which only the times are asked: what server::Range does with steps, for steps without
// rows. It admits, holds, closes and counts as a range does, by the same policy object, and keeps no row,
// key or gradient. What a range does by looking at each worker is done here by clocks that are kept
// (policies/clocks.h), so that a step costs the same with ten thousand workers.
//
// tests/sim/timing_test.cc holds every policy to the ranges of a simulated cluster, update by update.
//
// Thread safety: none; one thread.
#ifndef TANDEM_SIM_TIMED_RANGE_H_
#define TANDEM_SIM_TIMED_RANGE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "policies/clocks.h"
#include "policies/policy.h"
#include "server/measure.h"
#include "server/update_record.h"

namespace tandem::sim {

// What a read of the range is answered, and what the update that comes from it is told again.
struct TimedRead {
  int64_t version = 0;
  int64_t min_clock = 0;
  uint64_t closed_samples = 0;  // of the step that was closed last
  int64_t at_us = 0;            // when it was answered
  int64_t number = -1;          // of the read, if the policy counts them
};

struct TimedUpdate {
  int rank = 0;
  int64_t first = 0, step = 0;  // first < step only without samples
  uint64_t samples = 0;
  bool finished = false;  // the worker has no more data
  TimedRead read;
  int32_t clock_gap = 0, in_flight = 0;
};

// What became of an update of the range, for observers.
struct TimedFate {
  const TimedUpdate& update;
  int64_t version_applied = 0;
  int64_t now_us = 0;
  server::UpdateFate fate = server::kFateApplied;
};

class TimedRange {
 public:
  using Observer = std::function<void(const TimedFate& fate)>;

  // Count, sum and maximum.
  struct Sum {
    uint64_t count = 0;
    double sum = 0, max = 0;
    void Add(int64_t value);
  };
  // Of one worker's updates; there may be ten thousand, so without histograms.
  struct WorkerStats {
    uint64_t arrived = 0, applied = 0, merged = 0, dropped = 0;
    Sum clock_gap, version_staleness, age;  // age in microseconds
  };
  struct Stats {
    uint64_t arrived = 0, applied = 0, merged = 0, dropped = 0;
    server::Measure clock_gap, version_staleness, in_flight, age;
    std::vector<WorkerStats> workers;  // by rank
  };

  // The policy outlives this. `lockstep`: the job's. `observer` may be null.
  TimedRange(const policies::UpdatePolicy& policy, int workers, bool lockstep, Observer observer);

  bool MayServe(int rank, int64_t step, int depth);
  TimedRead Read(int64_t now_us, int rank, int64_t step);
  // The next steps of a worker. False if they came too late and were dropped.
  bool Admit(int64_t now_us, const TimedUpdate& update);
  // Nothing more will come: what is held back is applied.
  void FinishDelayed();

  // Reads that may not be served now may be when this has changed, or with the next step of their own worker.
  struct Front {
    int64_t version = 0, min_clock = 0;
    int live = 0, slowest = 0;
    friend bool operator==(const Front&, const Front&) = default;
  };
  Front front() const;

  const policies::RangeProgress& progress() const { return progress_; }
  const policies::Properties& properties() const { return properties_; }
  const Stats& stats() const { return stats_; }

 private:
  struct Group {
    std::vector<TimedUpdate> updates;
    int64_t contributions = 0;
    uint64_t samples = 0;
  };

  void Hold(const TimedUpdate& update);
  void Tick(int64_t steps);
  void CloseGroups(int64_t ticks);
  void ApplyFold(const Group& group);
  void ShowApplied();
  void ShowBatches();
  bool ShowsAll() const;
  void Count(const TimedUpdate& update, server::UpdateFate fate);
  Group NewGroup();

  const policies::UpdatePolicy& policy_;
  const policies::Properties properties_;
  const bool lockstep_;
  const Observer observer_;
  policies::Clocks clocks_;
  policies::Clocks shown_;    // of a policy with batches: WorkerProgress::applied
  std::vector<int> unshown_;  // ... the ranks admitted something since
  policies::RangeProgress progress_;
  std::deque<Group> open_, delayed_;
  std::vector<Group> spare_;  // closed; their memory is used again
  int64_t next_read_ = 0;
  int64_t now_us_ = 0;
  uint64_t last_closed_samples_ = 0;
  Stats stats_;
};

}  // namespace tandem::sim

#endif  // TANDEM_SIM_TIMED_RANGE_H_
