// The end of an epoch on one worker. First the worker waits until all its pushes are acknowledged.
// A lockstep job is finished then: all workers stand at the same step. In other jobs a worker
// without data
//
//   pushes END_OF_EPOCH: its clock becomes infinite, so the worker holds nobody back;
//   enters barriers, at which the workers agree on the largest step of all, and on the first step
//   that no worker had data for;
//   pushes empty steps up to the largest step, which makes its clock finite again;
//   and enters a last barrier, so that nobody runs ahead of a clock that is still infinite.
//
// Two steps close an epoch then: END_OF_EPOCH, and the empty step up to which all workers catch up.
// A run that resumes from a checkpoint of this time needs more, because workers push END_OF_EPOCH
// again.
//
// Thread safety: none needed; one thread.
#ifndef TANDEM_WORKER_EPOCH_END_H_
#define TANDEM_WORKER_EPOCH_END_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "worker/trainer_context.h"

namespace tandem::worker {

class EpochEnd {
 public:
  explicit EpochEnd(TrainerContext& context) : context_(context) {}

  // All steps of this worker in this epoch are pushed.
  void Begin() { stage_ = Stage::kDrain; }
  // Does one thing that can be done; false if there is none. `hold`: nothing may be pushed, because
  // of a checkpoint.
  bool Advance(absl::Time now, bool hold);
  // Every worker stands at context.step().
  bool over() const { return stage_ == Stage::kOver; }
  // Not in lockstep jobs: this worker's clock is finite again; clocks of other workers may still be
  // infinite.
  bool caught_up() const { return stage_ == Stage::kEndBarrier || stage_ == Stage::kOver; }
  // END_OF_EPOCH is pushed: nobody waits for a step of this worker until the worker has caught up.
  bool out_of_steps() const { return stage_ == Stage::kBarrier || stage_ == Stage::kCatchUp; }

 private:
  enum class Stage { kDrain, kPush, kBarrier, kCatchUp, kEndBarrier, kOver };
  bool Enter(Stage stage) {
    stage_ = stage;
    return true;
  }
  bool PassFirst(absl::Time now, const std::string& name, int64_t value);

  TrainerContext& context_;
  Stage stage_ = Stage::kOver;
  int64_t largest_step_ = 0;  // of all workers, from kCatchUp on
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_EPOCH_END_H_
