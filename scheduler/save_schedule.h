// When a job that saves is to save by itself: so many seconds after the last save, or at every so many
// steps, whichever comes first; and when a program has asked for it.
//
// Pure; one thread.
#ifndef TANDEM_SCHEDULER_SAVE_SCHEDULE_H_
#define TANDEM_SCHEDULER_SAVE_SCHEDULE_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/time/time.h"
#include "job/job.h"

namespace tandem::scheduler {

class SaveSchedule {
 public:
  explicit SaveSchedule(const Save& save)
      : pause_(save.every_seconds() > 0 ? absl::Seconds(save.every_seconds())
                                        : absl::InfiniteDuration()),
        steps_(save.every_steps()) {}

  // A save is made or given up, or the job begins, when a worker stands at `step`.
  void Done(absl::Time now, int64_t step) {
    next_ = now + pause_;
    next_step_ = steps_ > 0 ? (step / steps_ + 1) * steps_ : std::numeric_limits<int64_t>::max();
    step_ = step;
  }
  // A worker has come so far.
  void OnStep(int64_t step) { step_ = std::max(step_, step); }
  // A program has asked for so many saves since it began. Those of several workers that ask for their
  // n-th are one. False: so many had been asked for before.
  bool OnAsked(int64_t saves) {
    const bool more = saves > asked_;
    asked_ = std::max(asked_, saves);
    return more;
  }
  // The workers are told to make one, which is whatever has been asked for until now.
  void Begin() { begun_ = asked_; }
  bool Due(absl::Time now) const { return now >= next_ || step_ >= next_step_ || asked_ > begun_; }
  int64_t step() const { return step_; }

 private:
  const absl::Duration pause_;
  const int64_t steps_;
  absl::Time next_ = absl::InfiniteFuture();
  int64_t asked_ = 0, begun_ = 0;
  int64_t step_ = 0, next_step_ = std::numeric_limits<int64_t>::max();
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_SAVE_SCHEDULE_H_
