// Makes the steps of a worker as long as the job's fault_injection.slow_workers says
// (job/step_time.h): after a shorter step the worker sleeps for the rest of the time.
//
// Thread safety: set_times() before any other thread uses the object; then WaitOut() on the compute
// thread, and End() on any thread.
#ifndef TANDEM_WORKER_SLOW_DOWN_H_
#define TANDEM_WORKER_SLOW_DOWN_H_

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "job/step_time.h"

namespace tandem::worker {

class SlowDown {
 public:
  void set_times(job::StepTimes times) { times_ = std::move(times); }
  // Whether this worker has any times to wait for.
  bool any() const { return times_.any(); }

  // Sleeps until `step`, which began at `begun`, has taken its time. Returns the length of the
  // sleep; 0 if the step took long enough by itself.
  absl::Duration WaitOut(int64_t step, absl::Time begun) ABSL_LOCKS_EXCLUDED(mutex_);

  // Grows during a sleep, so that a long sleep does not look like a stall. Any thread.
  int64_t moments_slept() const { return moments_slept_; }

  // The job is over for this worker: a running sleep ends at once, and no other begins.
  void End() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  job::StepTimes times_;
  absl::Mutex mutex_;
  CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<int64_t> moments_slept_{0};
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_SLOW_DOWN_H_
