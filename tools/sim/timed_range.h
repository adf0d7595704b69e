// A key range in a simulation of times only: server::Range for steps without rows. It admits,
// holds, closes and counts updates as a range does, with the same policy object, but keeps no row,
// key or gradient.
//
// tests/sim/timing_test.cc compares every policy with the ranges of a simulated cluster, update
// by update.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_TIMED_RANGE_H_
#define TANDEM_TOOLS_SIM_TIMED_RANGE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "policies/clocks.h"
#include "policies/policy.h"
#include "server/measure.h"
#include "server/update_record.h"

namespace tandem::sim {

// The reply to a pull of the range. The push of the same step brings it back.
struct TimedRead {
  int64_t version = 0;
  int64_t min_clock = 0;
  uint64_t closed_samples = 0;  // of the step that was closed last
  int64_t at_us = 0;            // time of the reply
  int64_t number = -1;          // of the pull, if the policy counts pulls
};

struct TimedUpdate : policies::Update {
  int64_t first = 0;      // less than `step` only without samples
  bool finished = false;  // the worker has no more data
  TimedRead read;
  int32_t clock_gap = 0, in_flight = 0;
};

// The result of an update of the range, for observers.
struct TimedFate {
  const TimedUpdate& update;
  int64_t version_applied = 0;
  int64_t now_us = 0;
  server::UpdateFate fate = server::kFateApplied;
};

class TimedRange {
 public:
  using Observer = std::function<void(const TimedFate& fate)>;

  // Statistics of one worker's updates. Without histograms, because there may be ten
  // thousand workers.
  struct WorkerStats {
    uint64_t arrived = 0, applied = 0, merged = 0, dropped = 0;
    server::Sum clock_gap, version_staleness, age;  // age in microseconds
  };
  struct Stats {
    uint64_t arrived = 0, applied = 0, merged = 0, dropped = 0;
    server::Measure clock_gap, version_staleness, in_flight, age;
    std::vector<WorkerStats> workers;  // by rank
  };

  // The policy must outlive this. `lockstep`: of the job. `observer` may be null.
  TimedRange(const policies::UpdatePolicy& policy, int workers, bool lockstep, Observer observer);

  bool MayServe(int rank, int64_t step, int depth) const;
  TimedRead Read(int64_t now_us, int rank, int64_t step);
  // Admits the next steps of a worker, with the numbers of `update.read`. False if they came too
  // late and were dropped.
  bool Admit(int64_t now_us, TimedUpdate update);
  // No more updates will come: applies the updates that are held back.
  void FinishDelayed();

  policies::Front front() const { return policies::FrontOf(progress_, properties_); }
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
  void Count(const TimedUpdate& update, server::UpdateFate fate);
  Group NewGroup();

  const policies::UpdatePolicy& policy_;
  const policies::Properties properties_;
  const bool lockstep_;
  const Observer observer_;
  policies::RangeProgress progress_;
  policies::Clocks clocks_;
  std::deque<Group> open_, delayed_;
  std::vector<Group> spare_;  // closed groups, whose memory is reused
  int64_t next_read_ = 0;
  int64_t now_us_ = 0;
  uint64_t last_closed_samples_ = 0;
  Stats stats_;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_TIMED_RANGE_H_
