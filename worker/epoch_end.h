// The end of an epoch on one worker. First all its pushes are acknowledged. A lockstep job is
// through then: all workers stand at the same step. In others a worker without data
//
//   pushes END_OF_EPOCH: its clock is infinite, so it holds nobody back;
//   meets the others at a barrier, where they agree on the largest step of all;
//   pushes nothing for the steps up to there, which makes its clock finite again;
//   and meets them once more, so that nobody runs ahead of a clock that is still infinite.
//
// Thread safety: none needed; one thread.
#ifndef TANDEM_WORKER_EPOCH_END_H_
#define TANDEM_WORKER_EPOCH_END_H_

#include "absl/time/time.h"
#include "worker/trainer_context.h"

namespace tandem::worker {

class EpochEnd {
 public:
  explicit EpochEnd(TrainerContext& context) : context_(context) {}

  // The worker's steps of this epoch are pushed.
  void Begin() { stage_ = Stage::kDrain; }
  // Does one thing that can be done; false if there is none. `hold`: nothing is pushed (a save).
  bool Advance(absl::Time now, bool hold);
  // Every worker stands at context.step.
  bool over() const { return stage_ == Stage::kOver; }
  // Not a lockstep job: this worker's clock is finite again; some may still have to make theirs so.
  bool caught_up() const { return stage_ == Stage::kMeetAgain || stage_ == Stage::kOver; }
  // END_OF_EPOCH is pushed: nobody waits for a step of this worker, until it has caught up.
  bool out_of_steps() const { return stage_ == Stage::kMeet || stage_ == Stage::kCatchUp; }

 private:
  enum class Stage { kDrain, kPush, kMeet, kCatchUp, kMeetAgain, kOver };
  bool Enter(Stage stage) {
    stage_ = stage;
    return true;
  }

  TrainerContext& context_;
  Stage stage_ = Stage::kOver;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_EPOCH_END_H_
