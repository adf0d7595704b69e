// A key range in a simulation of times only: the order of updates of server::Range
// (policies/order/update_order.h) without rows. It counts what becomes of updates, and measures
// their staleness.
//
// tests/sim/timing_test.cc compares every policy with the ranges of a simulated cluster, update
// by update.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_TIMED_RANGE_H_
#define TANDEM_TOOLS_SIM_TIMED_RANGE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "policies/order/update_order.h"
#include "policies/policy.h"
#include "server/record/measure.h"
#include "server/record/update_record.h"

namespace tandem::sim {

// The reply to a pull of the range. The push of the same step brings it back.
struct TimedRead {
  int64_t version = 0;
  int64_t min_clock = 0;
  uint64_t closed_samples = 0;  // of the step that was closed last
  int64_t at_us = 0;            // time of the reply
};

struct TimedUpdate : policies::Update {
  int64_t first = 0;      // less than `step` only without samples
  bool finished = false;  // the worker has no more data
  TimedRead read;
  int32_t clock_gap = 0, in_flight = 0;
  static constexpr bool kHasGradients = false;
  bool has_rows() const { return samples > 0; }
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
    server::SampleCounts samples;
    server::Sum clock_gap, version_staleness, age;  // age in microseconds
  };
  struct Stats {
    uint64_t arrived = 0, applied = 0, merged = 0, dropped = 0;
    server::SampleCounts samples;
    server::Measure clock_gap, version_staleness, in_flight, age;
    std::vector<WorkerStats> workers;  // by rank
  };

  // The policy must outlive this. `reads`: reads of each worker whose updates may still be on their
  // way. `lockstep`: of the job. `observer` may be null.
  TimedRange(const policies::UpdatePolicy& policy, int workers, int reads, bool lockstep,
             Observer observer);

  bool MayServe(int rank, int64_t step, int depth) const;
  TimedRead Read(int64_t now_us, int rank, int64_t step);
  // Admits the next steps of a worker, with the numbers of `update.read`. False if they came too
  // late and were dropped.
  bool Admit(int64_t now_us, TimedUpdate update);
  // No more updates will come: applies the updates that are held back.
  void FinishDelayed() { order_.FinishDelayed(this); }

  policies::Front front() const { return policies::FrontOf(progress(), properties()); }
  const policies::RangeProgress& progress() const { return order_.progress(); }
  const policies::Properties& properties() const { return order_.properties(); }
  const Stats& stats() const { return stats_; }

 private:
  using Order = policies::UpdateOrder<TimedUpdate>;
  friend Order;

  // The sink of the order.
  void OnAdmit(const TimedUpdate& /*update*/, int64_t /*first*/, bool /*finished*/) {}
  void OnCounted(TimedUpdate* update);
  void Apply(const TimedUpdate& update, const policies::Transform& transform);
  bool Keeps(const TimedUpdate& update) { return update.has_rows(); }
  void Drop(const TimedUpdate& update);
  void Fold(const policies::HeldGroup<TimedUpdate>& group);
  void OnVersion() {}

  // `share`: policies::Transform::share, or 0 if the update is dropped.
  void Count(const TimedUpdate& update, server::UpdateFate fate, float share);

  Order order_;
  const Observer observer_;
  int64_t now_us_ = 0;
  Stats stats_;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_TIMED_RANGE_H_
