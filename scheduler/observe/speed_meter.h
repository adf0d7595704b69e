// SpeedMeter measures the speed of training in each reporting interval, from the reports of the
// workers.
//
// The speed is the sum of the workers' speeds. A worker's speed is its samples divided by the time
// between its own reports, because the interval of the scheduler ends up to half an interval after
// its last report. Pauses for evaluations and checkpoints do not count. If a worker trained for
// less than half an interval, one step more or less would change its speed much. Its speed is then
// measured since an earlier interval.
//
// Thread safety: none needed; one thread.
#ifndef TANDEM_SCHEDULER_OBSERVE_SPEED_METER_H_
#define TANDEM_SCHEDULER_OBSERVE_SPEED_METER_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "proto/wire.pb.h"

namespace tandem::scheduler {

class SpeedMeter {
 public:
  // `interval`: the usual time between two calls of Take.
  SpeedMeter(int workers, absl::Duration interval)
      : least_(absl::ToDoubleSeconds(interval) / 2), workers_(static_cast<size_t>(workers)) {}

  // Training starts.
  void Start(absl::Time now);
  // Ignores a report before Start. Requires: `progress` is valid (report_check.h), and `rank` is
  // that of a worker.
  void Add(absl::Time now, int rank, const Progress& progress);
  // Ends an interval and returns its samples per second. Workers that have sent no report in the
  // interval count as 0. nullopt: no worker trained, because all paused.
  absl::optional<double> Take();

 private:
  struct Mark {
    absl::Time at;
    int64_t samples = 0;
    double paused = 0;  // seconds since the start of the process
  };
  struct Worker {
    std::deque<Mark> ends;  // ends of intervals, oldest first; empty before Start, and never after
    Mark now;               // the last report
  };
  // The seconds between two marks in which the worker did not pause.
  static double Trained(const Mark& from, const Mark& to);

  const double least_;  // seconds of training over which a speed is measured
  std::vector<Worker> workers_;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_OBSERVE_SPEED_METER_H_
