#include <algorithm>

#include "policies/policy.h"

namespace tandem::policies {

int64_t RangeProgress::MinClock() const {
  int64_t smallest = kInfiniteClock;
  for (const WorkerProgress& worker : workers) {
    if (!worker.finished) smallest = std::min(smallest, worker.applied);
  }
  return smallest;
}

int64_t RangeProgress::MinAdmitted() const {
  int64_t smallest = kInfiniteClock;
  for (const WorkerProgress& worker : workers) smallest = std::min(smallest, worker.admitted);
  return smallest;
}

int64_t RangeProgress::MinAdmittedLive() const {
  int64_t smallest = kInfiniteClock;
  for (const WorkerProgress& worker : workers) {
    if (!worker.finished) smallest = std::min(smallest, worker.admitted);
  }
  return smallest;
}

int RangeProgress::Live() const {
  return static_cast<int>(std::count_if(workers.begin(), workers.end(),
                                        [](const WorkerProgress& w) { return !w.finished; }));
}

int RangeProgress::Slowest() const {
  int slowest = 0;
  int64_t smallest = kInfiniteClock;
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    if (workers[rank].finished || workers[rank].admitted >= smallest) continue;
    smallest = workers[rank].admitted;
    slowest = static_cast<int>(rank);
  }
  return slowest;
}

}  // namespace tandem::policies
