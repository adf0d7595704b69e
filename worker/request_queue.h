// The requests of a worker to the program that drives it. The worker's threads ask and wait; the
// program's thread takes a request, does it and answers. At most two requests are open at a time:
// one for a batch, and one that computes.
//
// Thread safety: Ask, StepDone, TakeBack and Close from any thread; the other methods from one
// thread of the program at a time.
#ifndef TANDEM_WORKER_REQUEST_QUEUE_H_
#define TANDEM_WORKER_REQUEST_QUEUE_H_

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

struct Request {
  enum class Kind {
    kNothing,    // no request yet
    kBatch,      // the next batch of slot->epoch
    kTestBatch,  // the next batch of the evaluation after slot->epoch
    kCompute,    // gradients of slot->batch
    kScore,      // scores of slot->batch
    kUpdate,     // a step of the program's optimizer
    // A digest of the dense parameters. AttachedWorker::Next computes it while the program waits.
    kDigest,
    kState,     // the state that the program needs to resume from a checkpoint
    kStepDone,  // no request: the last computed step is synchronised
    kEnd,       // no more requests: the job has ended well
  };
  Kind kind = Kind::kNothing;
  StepSlot* slot = nullptr;      // belongs to the worker until the answer
  int64_t step = 0, epoch = 0;   // step and epoch of the slot
  int64_t sample_clock = 0;      // of the slot
  int64_t samples = 0;           // kCompute, kScore: samples of the batch
  bool first = false;            // kTestBatch: an evaluation begins
  bool validation = false;       // kTestBatch: from the rows that decide the best model
  bool last = false;             // kState: for the checkpoint at the end of the job
  std::string* state = nullptr;  // kState: where the state goes
  uint64_t* digest = nullptr;    // kDigest: where the digest goes
  // kUpdate: the sum over all workers (padded), and the factor that makes it a mean.
  absl::Span<const float> gradient = {};
  float factor = 0;
};

class RequestQueue {
 private:
  struct Asked;

 public:
  // Protects a request while the program works with its memory: until the Use is gone, the worker
  // does not take the memory back, even if the job fails meanwhile.
  class Use {
   public:
    Use(RequestQueue& queue, Asked& asked) : queue_(&queue), asked_(&asked) {}
    Use(Use&& other) : queue_(std::exchange(other.queue_, nullptr)), asked_(other.asked_) {}
    ~Use() {
      if (queue_ != nullptr) queue_->Release(*asked_);
    }
    Use& operator=(Use&&) = delete;
    const Request& operator*() const { return asked_->request; }
    const Request* operator->() const { return &asked_->request; }
    // An error ends the job.
    void Answer(absl::Status status) { queue_->Answer(*asked_, std::move(status)); }
    // Answers a kCompute. From now on only kUpdate is requested until the step is done, because
    // the parameters are about to change. `done`: the step is done already.
    void AnswerCompute(bool done) { queue_->AnswerCompute(*asked_, done); }

   private:
    RequestQueue* queue_;
    Asked* asked_;
  };

  // Waits for the program's answer. CANCELLED once the queue is closed.
  absl::Status Ask(const Request& request);
  // The last computed step is synchronised.
  void StepDone();
  // Cancels the wait for the gradients of this step, if the program rests and has not given them.
  // Returns whether the wait was cancelled; Ask then returns OK.
  bool TakeBack(int64_t step);
  // There are no more requests, and all waiting calls return: the job has ended, well or not.
  void Close(absl::Status how);

  // The open request: state first, then a batch, then what computes. The result stays the same
  // until the program answers the request or a more urgent one comes. kNothing: no request by the
  // deadline. An error: why the job has failed.
  absl::StatusOr<Request> Next(absl::Time deadline);

  // The program computes no more steps.
  void Rest();

  // The open request of one of these kinds. FAILED_PRECONDITION names the request that is open
  // instead.
  absl::StatusOr<Use> Expect(Request::Kind kind, Request::Kind or_kind);
  absl::StatusOr<Use> Expect(Request::Kind kind) { return Expect(kind, kind); }

 private:
  struct Asked {
    Request request;
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
  int64_t taken_back_ ABSL_GUARDED_BY(mutex_) = -1;  // ... and the last that was taken back
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status how_ ABSL_GUARDED_BY(mutex_);
};

// The name of a request for messages: "a batch", "the gradients of a step", ...
const char* NameOf(Request::Kind kind);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_REQUEST_QUEUE_H_
