#include <algorithm>

#include "policies/clocks.h"
#include "policies/policy.h"

namespace tandem::policies {

void MeasureStep(WorkerPace* pace, int64_t admitted_at, bool whole_step) {
  if (!whole_step) {
    pace->last_push = -1;
    return;
  }
  if (pace->last_push >= 0) {
    pace->step_time = std::max<int64_t>(1, admitted_at - pace->last_push);
  }
  pace->last_push = std::max<int64_t>(0, admitted_at);
}

int64_t RangeProgress::MinClock() const {
  if (clocks != nullptr) return clocks->MinClock();
  int64_t smallest = kInfiniteClock;
  for (const WorkerProgress& worker : workers) {
    if (!worker.finished) smallest = std::min(smallest, worker.applied);
  }
  return smallest;
}

int64_t RangeProgress::MinApplied() const {
  if (clocks != nullptr) return clocks->MinApplied();
  int64_t smallest = kInfiniteClock;
  for (const WorkerProgress& worker : workers) smallest = std::min(smallest, worker.applied);
  return smallest;
}

int64_t RangeProgress::MinAdmitted() const {
  if (clocks != nullptr) return clocks->MinAdmitted();
  int64_t smallest = kInfiniteClock;
  for (const WorkerProgress& worker : workers) smallest = std::min(smallest, worker.admitted);
  return smallest;
}

int64_t RangeProgress::MinAdmittedLive() const {
  if (clocks != nullptr) return clocks->MinAdmittedLive();
  int64_t smallest = kInfiniteClock;
  for (const WorkerProgress& worker : workers) {
    if (!worker.finished) smallest = std::min(smallest, worker.admitted);
  }
  return smallest;
}

int RangeProgress::Live() const {
  if (clocks != nullptr) return clocks->Live();
  return static_cast<int>(std::count_if(workers.begin(), workers.end(),
                                        [](const WorkerProgress& w) { return !w.finished; }));
}

int RangeProgress::Slowest() const {
  if (clocks != nullptr) return clocks->Slowest();
  int slowest = 0;
  int64_t smallest = kInfiniteClock;
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    if (workers[rank].finished || workers[rank].admitted >= smallest) continue;
    smallest = workers[rank].admitted;
    slowest = static_cast<int>(rank);
  }
  return slowest;
}

int64_t RangeProgress::Admitted() const {
  if (clocks != nullptr) return clocks->Admitted();
  int64_t sum = 0;
  for (const WorkerProgress& worker : workers) sum += worker.admitted;
  return sum;
}

int64_t RangeProgress::AdmittedBeyond(int64_t step) const {
  if (clocks != nullptr) return clocks->AdmittedBeyond();
  int64_t sum = 0;
  for (const WorkerProgress& worker : workers) {
    sum += std::max<int64_t>(0, worker.admitted - step);
  }
  return sum;
}

// Updates that are applied when they arrive or with their batch move the version without ending a
// wait. So do those after a switch.
Front FrontOf(const RangeProgress& progress, const Properties& properties) {
  Front front;
  if (properties.holds && properties.batch == 0) {
    front.version = properties.switch_step > 0 ? std::min(progress.version, properties.switch_step)
                                               : progress.version;
  }
  front.min_clock = progress.MinClock();
  front.slowest = properties.measures_steps ? progress.Slowest() : 0;
  front.admitted = properties.asks_again ? progress.Admitted() : 0;
  return front;
}

}  // namespace tandem::policies
