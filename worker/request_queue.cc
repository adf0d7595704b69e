#include "worker/request_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tandem::worker {

const char* NameOf(Request::Kind kind) {
  switch (kind) {
    case Request::Kind::kNothing:
      return "nothing yet";
    case Request::Kind::kBatch:
      return "a batch";
    case Request::Kind::kTestBatch:
      return "a test batch";
    case Request::Kind::kCompute:
      return "the gradients of a step";
    case Request::Kind::kScore:
      return "the scores of a test batch";
    case Request::Kind::kUpdate:
      return "a step of the program's optimizer";
    case Request::Kind::kDigest:
      return "a digest of the parameters";
    case Request::Kind::kState:
      return "the program's state";
    case Request::Kind::kStepDone:
      return "nothing: the step is done";
    case Request::Kind::kEnd:
      return "nothing more: the job has ended";
  }
  return "";
}

// ---- the worker's threads ---------------------------------------------------------------------

absl::Status RequestQueue::Ask(const Request& request) {
  const bool batch =
      request.kind == Request::Kind::kBatch || request.kind == Request::Kind::kTestBatch;
  absl::MutexLock lock(&mutex_);
  Asked& asked = batch ? batch_ : other_;
  TANDEM_CHECK(!asked.open);
  asked.request = request;
  if (request.slot != nullptr) {
    asked.request.step = request.slot->step;
    asked.request.epoch = request.slot->epoch;
    asked.request.sample_clock = request.slot->sample_clock;
    if (!batch) asked.request.samples = request.slot->batch.samples;
  }
  asked.open = true;
  asked.answered =
      resting_ && request.kind == Request::Kind::kCompute && asked.request.step == taken_back_;
  asked.answer = absl::OkStatus();
  changed_.SignalAll();
  // A request in use is waited for even after Close, because the program still works with the
  // slot's memory.
  while ((!asked.answered && !closed_) || asked.in_use) changed_.Wait(&mutex_);
  asked.open = false;
  return asked.answered ? std::move(asked.answer)
                        : absl::CancelledError("the job is over for this worker");
}

void RequestQueue::StepDone() {
  absl::MutexLock lock(&mutex_);
  if (finishing_ == Finishing::kRunning) finishing_ = Finishing::kDone;
  changed_.SignalAll();
}

bool RequestQueue::TakeBack(int64_t step) {
  absl::MutexLock lock(&mutex_);
  if (!resting_ || computed_ >= step) return false;
  taken_back_ = step;
  // The worker may not have asked for these gradients yet; Ask looks at taken_back_ then.
  if (other_.open && other_.request.kind == Request::Kind::kCompute) other_.answered = true;
  changed_.SignalAll();
  return true;
}

void RequestQueue::Close(absl::Status how) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return;
  closed_ = true;
  how_ = std::move(how);
  changed_.SignalAll();
}

// ---- the program's thread ---------------------------------------------------------------------

// A batch goes before a computation, so that its rows travel while the program computes. State and
// digests go before both, because all other work waits for them.
RequestQueue::Asked* RequestQueue::Front() {
  const auto open = [](const Asked& asked) { return asked.open && !asked.answered; };
  if (finishing_ != Finishing::kNo) {
    return open(other_) && other_.request.kind == Request::Kind::kUpdate ? &other_ : nullptr;
  }
  const bool at_rest =
      other_.request.kind == Request::Kind::kState || other_.request.kind == Request::Kind::kDigest;
  if (open(other_) && at_rest) return &other_;
  if (open(batch_)) return &batch_;
  return open(other_) ? &other_ : nullptr;
}

absl::StatusOr<Request> RequestQueue::Next(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    if (closed_) {
      if (!how_.ok()) return how_;
      return Request{.kind = Request::Kind::kEnd};
    }
    if (const Asked* const front = Front(); front != nullptr) return front->request;
    if (finishing_ == Finishing::kDone) {
      finishing_ = Finishing::kNo;
      return Request{.kind = Request::Kind::kStepDone};
    }
    if (changed_.WaitUntil(&mutex_, deadline)) {
      if (closed_ || Front() != nullptr || finishing_ == Finishing::kDone) continue;
      return Request();
    }
  }
}

void RequestQueue::Rest() {
  absl::MutexLock lock(&mutex_);
  resting_ = true;
}

absl::StatusOr<RequestQueue::Use> RequestQueue::Expect(Request::Kind kind, Request::Kind or_kind) {
  absl::MutexLock lock(&mutex_);
  if (closed_ && !how_.ok()) return how_;
  Asked* const front = closed_ ? nullptr : Front();
  // Look at both requests, not only at the front one: a batch may have been requested while the
  // program computed.
  for (Asked* const asked : {&batch_, &other_}) {
    const bool held_back = finishing_ != Finishing::kNo && asked != front;
    if (closed_ || !asked->open || asked->answered || held_back) continue;
    if (asked->request.kind != kind && asked->request.kind != or_kind) continue;
    asked->in_use = true;
    return Use(*this, *asked);
  }
  const Request::Kind wanted = front != nullptr ? front->request.kind
                               : closed_        ? Request::Kind::kEnd
                                                : Request::Kind::kNothing;
  return absl::FailedPreconditionError(
      absl::StrCat(NameOf(kind), " was given, but the worker wants ", NameOf(wanted)));
}

void RequestQueue::Release(Asked& asked) {
  absl::MutexLock lock(&mutex_);
  asked.in_use = false;
  changed_.SignalAll();
}

void RequestQueue::Answer(Asked& asked, absl::Status status) {
  absl::MutexLock lock(&mutex_);
  asked.answer = std::move(status);
  asked.answered = true;
  changed_.SignalAll();
}

void RequestQueue::AnswerCompute(Asked& asked, bool done) {
  absl::MutexLock lock(&mutex_);
  TANDEM_CHECK(asked.request.kind == Request::Kind::kCompute);
  asked.answered = true;
  computed_ = asked.request.step;
  finishing_ = done ? Finishing::kDone : Finishing::kRunning;
  changed_.SignalAll();
}

}  // namespace tandem::worker
