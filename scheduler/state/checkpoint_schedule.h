// Decides when a job writes a checkpoint by itself: a number of seconds after the last one, or
// every so many steps, whichever comes first; also when a program has asked for one. Until the
// first one the death of a process costs all work of the run, so the first one comes early.
//
// Thread safety: none needed; one thread. No clock inside.
#ifndef TANDEM_SCHEDULER_STATE_CHECKPOINT_SCHEDULE_H_
#define TANDEM_SCHEDULER_STATE_CHECKPOINT_SCHEDULE_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/time/time.h"
#include "job/job.h"

namespace tandem::scheduler {

class CheckpointSchedule {
 public:
  explicit CheckpointSchedule(const Checkpoint& checkpoint)
      : pause_(checkpoint.every_seconds() > 0 ? absl::Seconds(checkpoint.every_seconds())
                                              : absl::InfiniteDuration()),
        steps_(checkpoint.every_steps()) {}

  // The job begins. `is_new`: the run has no checkpoint yet.
  void Start(absl::Time now, bool is_new) {
    Done(now, step_);
    if (is_new && pause_ < absl::InfiniteDuration()) next_ = now + std::min(pause_, kFirst);
  }
  // A checkpoint is written or has failed. `step`: the largest step of a worker now.
  void Done(absl::Time now, int64_t step) {
    next_ = now + pause_;
    next_step_ = steps_ > 0 ? (step / steps_ + 1) * steps_ : std::numeric_limits<int64_t>::max();
    step_ = step;
  }
  // A worker has reached `step`.
  void OnStep(int64_t step) { step_ = std::max(step_, step); }
  // A program has asked for `checkpoints` checkpoints since it began. The n-th requests of several
  // workers count as one. False if another worker has made this request before.
  bool OnAsked(int64_t checkpoints) {
    const bool more = checkpoints > asked_;
    asked_ = std::max(asked_, checkpoints);
    return more;
  }
  // The workers are told to write a checkpoint. It answers all requests made so far.
  void Begin() { begun_ = asked_; }
  bool Due(absl::Time now) const { return now >= next_ || step_ >= next_step_ || asked_ > begun_; }
  int64_t step() const { return step_; }

 private:
  static constexpr absl::Duration kFirst = absl::Seconds(60);

  const absl::Duration pause_;
  const int64_t steps_;
  absl::Time next_ = absl::InfiniteFuture();
  int64_t asked_ = 0, begun_ = 0;
  int64_t step_ = 0, next_step_ = std::numeric_limits<int64_t>::max();
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_STATE_CHECKPOINT_SCHEDULE_H_
