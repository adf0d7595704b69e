// What a worker wants of the program that drives it: its threads ask and wait, the program's thread
// takes what is wanted, does it and answers. At most two things are wanted at a time, a batch and
// something that computes.
//
// Thread safety: Ask, StepDone, TakeBack and Close from any thread; the rest is for the program's, one at a
// time.
#ifndef TANDEM_WORKER_WANT_QUEUE_H_
#define TANDEM_WORKER_WANT_QUEUE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "worker/trainer_task.h"

namespace tandem::worker {

struct Want {
  enum class Kind {
    kNothing,    // not yet
    kBatch,      // the next batch of slot->epoch
    kTestBatch,  // the next batch of the evaluation after slot->epoch
    kCompute,    // gradients of slot->batch
    kScore,      // scores of slot->batch
    kUpdate,     // a step of the program's optimizer
    kDigest,  // a digest of the dense parameters: AttachedWorker::Next takes it, the program waiting
    kState,   // what the program has to find again, for a save
    kStepDone,  // nothing: the step that was computed last is synchronised
    kEnd,       // nothing any more: the job has ended well
  };
  Kind kind = Kind::kNothing;
  StepSlot* slot = nullptr;      // the worker's, until the answer
  int64_t step = 0, epoch = 0;   // of the slot
  int64_t samples = 0;           // kCompute, kScore: of its batch
  bool first = false;            // kTestBatch: an evaluation begins
  bool validation = false;       // kTestBatch: of the rows by which the best model is judged
  bool last = false;             // kState: of the save at the end of the job
  std::string* state = nullptr;  // kState: where it goes
  uint64_t* digest = nullptr;    // kDigest: likewise
  // kUpdate: the sum over all workers (padded), and what makes it a mean.
  absl::Span<const float> gradient = {};
  float factor = 0;
};

class WantQueue {
 private:
  struct Asked;

 public:
  // While the program works with what a want points to: until then nobody takes it away, even if
  // the job fails meanwhile.
  class Use {
   public:
    Use(WantQueue& queue, Asked& asked) : queue_(&queue), asked_(&asked) {}
    Use(Use&& other) : queue_(std::exchange(other.queue_, nullptr)), asked_(other.asked_) {}
    ~Use() {
      if (queue_ != nullptr) queue_->Release(*asked_);
    }
    Use& operator=(Use&&) = delete;
    const Want& operator*() const { return asked_->want; }
    const Want* operator->() const { return &asked_->want; }
    // An error ends the job.
    void Answer(absl::Status status) { queue_->Answer(*asked_, std::move(status)); }
    // Of a kCompute: from now on nothing but kUpdate is wanted until the step is done, since
    // parameters are about to change. `done`: it is already.
    void AnswerCompute(bool done) { queue_->AnswerCompute(*asked_, done); }

   private:
    WantQueue* queue_;
    Asked* asked_;
  };

  // Waits for the program's answer. CANCELLED once the queue is closed.
  absl::Status Ask(const Want& want);
  // The step that was computed last is synchronised.
  void StepDone();
  // Cancels the wait for the gradients of this step if the program rests and has not given them.
  // Returns whether it did; Ask then returns OK.
  bool TakeBack(int64_t step);
  // Nothing will be wanted any more, and whoever waits is let go: the job has ended, well or not.
  void Close(absl::Status how);

  // What is wanted now, a batch before what computes, and state before both; until it is answered, or something else comes
  // to be wanted first. kNothing: nothing by the deadline. An error: how the job has failed.
  absl::StatusOr<Want> Next(absl::Time deadline);

  // The program computes no more steps.
  void Rest();

  // What is wanted of one of these kinds; FAILED_PRECONDITION says what is wanted instead.
  absl::StatusOr<Use> Expect(Want::Kind kind, Want::Kind or_kind);
  absl::StatusOr<Use> Expect(Want::Kind kind) { return Expect(kind, kind); }

 private:
  struct Asked {
    Want want;
    bool open = false, answered = false, in_use = false;
    absl::Status answer;
  };
  enum class Finishing { kNo, kRunning, kDone };

  void Release(Asked& asked);
  void Answer(Asked& asked, absl::Status status);
  void AnswerCompute(Asked& asked, bool done);
  Asked* Front() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  CondVar changed_;
  Asked batch_ ABSL_GUARDED_BY(mutex_), other_ ABSL_GUARDED_BY(mutex_);
  Finishing finishing_ ABSL_GUARDED_BY(mutex_) = Finishing::kNo;
  bool resting_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t computed_ ABSL_GUARDED_BY(mutex_) = -1;    // the last step whose gradients were given
  int64_t taken_back_ ABSL_GUARDED_BY(mutex_) = -1;  // ... that was taken back
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status how_ ABSL_GUARDED_BY(mutex_);
};

// "a batch", "the gradients of a step", ...
const char* NameOf(Want::Kind kind);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_WANT_QUEUE_H_
