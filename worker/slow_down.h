// Makes the steps of a worker as long as the job's service_time says (job/service_time.h): whoever has
// computed a step earlier sleeps for the rest.
//
// Thread safety: set_times() before any other thread looks; then WaitOut() on the compute thread, and
// End() on any.
#ifndef TANDEM_WORKER_SLOW_DOWN_H_
#define TANDEM_WORKER_SLOW_DOWN_H_

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "job/service_time.h"

namespace tandem::worker {

class SlowDown {
 public:
  void set_times(job::ServiceTimes times) { times_ = std::move(times); }
  // Whether this worker is slow at all.
  bool any() const { return times_.any(); }

  // Sleeps until `step`, which was begun at `begun`, has taken its time. Returns how long that was; 0 if
  // it had taken as long by itself.
  absl::Duration WaitOut(int64_t step, absl::Time begun) ABSL_LOCKS_EXCLUDED(mutex_);

  // Grows during a sleep: it may be long, and is no stall. Any thread.
  int64_t moments_slept() const { return moments_slept_; }

  // The job is over for this worker: a sleep ends at once, and none begins any more.
  void End() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  job::ServiceTimes times_;
  absl::Mutex mutex_;
  CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<int64_t> moments_slept_{0};
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_SLOW_DOWN_H_
