#include "worker/want_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tandem::worker {

const char* NameOf(Want::Kind kind) {
  switch (kind) {
    case Want::Kind::kNothing:
      return "nothing yet";
    case Want::Kind::kBatch:
      return "a batch";
    case Want::Kind::kTestBatch:
      return "a test batch";
    case Want::Kind::kCompute:
      return "the gradients of a step";
    case Want::Kind::kScore:
      return "the scores of a test batch";
    case Want::Kind::kUpdate:
      return "a step of the program's optimizer";
    case Want::Kind::kDigest:
      return "a digest of the parameters";
    case Want::Kind::kState:
      return "the program's state";
    case Want::Kind::kStepDone:
      return "nothing: the step is done";
    case Want::Kind::kEnd:
      return "nothing more: the job has ended";
  }
  return "";
}

// ---- the worker's threads ---------------------------------------------------------------------

absl::Status WantQueue::Ask(const Want& want) {
  const bool batch = want.kind == Want::Kind::kBatch || want.kind == Want::Kind::kTestBatch;
  absl::MutexLock lock(&mutex_);
  Asked& asked = batch ? batch_ : other_;
  TANDEM_CHECK(!asked.open);
  asked.want = want;
  if (want.slot != nullptr) {
    asked.want.step = want.slot->step;
    asked.want.epoch = want.slot->epoch;
    if (!batch) asked.want.samples = want.slot->batch.samples;
  }
  asked.open = true;
  asked.answered = resting_ && want.kind == Want::Kind::kCompute && asked.want.step == taken_back_;
  asked.answer = absl::OkStatus();
  changed_.SignalAll();
  // A task in use is waited for even after Close, because the program still works with the slot's
  // memory.
  while ((!asked.answered && !closed_) || asked.in_use) changed_.Wait(&mutex_);
  asked.open = false;
  return asked.answered ? std::move(asked.answer)
                        : absl::CancelledError("the job is over for this worker");
}

void WantQueue::StepDone() {
  absl::MutexLock lock(&mutex_);
  if (finishing_ == Finishing::kRunning) finishing_ = Finishing::kDone;
  changed_.SignalAll();
}

bool WantQueue::TakeBack(int64_t step) {
  absl::MutexLock lock(&mutex_);
  if (!resting_ || computed_ >= step) return false;
  taken_back_ = step;
  // The worker may not have asked for these gradients yet; Ask looks at taken_back_ then.
  if (other_.open && other_.want.kind == Want::Kind::kCompute) other_.answered = true;
  changed_.SignalAll();
  return true;
}

void WantQueue::Close(absl::Status how) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return;
  closed_ = true;
  how_ = std::move(how);
  changed_.SignalAll();
}

// ---- the program's thread ---------------------------------------------------------------------

// A batch goes before a computation, so that its rows travel while the program computes. State and
// digests go before both, because all other work waits for them.
WantQueue::Asked* WantQueue::Front() {
  const auto open = [](const Asked& asked) { return asked.open && !asked.answered; };
  if (finishing_ != Finishing::kNo) {
    return open(other_) && other_.want.kind == Want::Kind::kUpdate ? &other_ : nullptr;
  }
  const bool at_rest =
      other_.want.kind == Want::Kind::kState || other_.want.kind == Want::Kind::kDigest;
  if (open(other_) && at_rest) return &other_;
  if (open(batch_)) return &batch_;
  return open(other_) ? &other_ : nullptr;
}

absl::StatusOr<Want> WantQueue::Next(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    if (closed_) {
      if (!how_.ok()) return how_;
      return Want{.kind = Want::Kind::kEnd};
    }
    if (const Asked* const front = Front(); front != nullptr) return front->want;
    if (finishing_ == Finishing::kDone) {
      finishing_ = Finishing::kNo;
      return Want{.kind = Want::Kind::kStepDone};
    }
    if (changed_.WaitUntil(&mutex_, deadline)) {
      if (closed_ || Front() != nullptr || finishing_ == Finishing::kDone) continue;
      return Want();
    }
  }
}

void WantQueue::Rest() {
  absl::MutexLock lock(&mutex_);
  resting_ = true;
}

absl::StatusOr<WantQueue::Use> WantQueue::Expect(Want::Kind kind, Want::Kind or_kind) {
  absl::MutexLock lock(&mutex_);
  if (closed_ && !how_.ok()) return how_;
  Asked* const front = closed_ ? nullptr : Front();
  // Look at both tasks, not only at the front one: a batch may have become wanted while the program
  // computed.
  for (Asked* const asked : {&batch_, &other_}) {
    const bool held_back = finishing_ != Finishing::kNo && asked != front;
    if (closed_ || !asked->open || asked->answered || held_back) continue;
    if (asked->want.kind != kind && asked->want.kind != or_kind) continue;
    asked->in_use = true;
    return Use(*this, *asked);
  }
  const Want::Kind wanted = front != nullptr ? front->want.kind
                            : closed_        ? Want::Kind::kEnd
                                             : Want::Kind::kNothing;
  return absl::FailedPreconditionError(
      absl::StrCat(NameOf(kind), " was given, but the worker wants ", NameOf(wanted)));
}

void WantQueue::Release(Asked& asked) {
  absl::MutexLock lock(&mutex_);
  asked.in_use = false;
  changed_.SignalAll();
}

void WantQueue::Answer(Asked& asked, absl::Status status) {
  absl::MutexLock lock(&mutex_);
  asked.answer = std::move(status);
  asked.answered = true;
  changed_.SignalAll();
}

void WantQueue::AnswerCompute(Asked& asked, bool done) {
  absl::MutexLock lock(&mutex_);
  TANDEM_CHECK(asked.want.kind == Want::Kind::kCompute);
  asked.answered = true;
  computed_ = asked.want.step;
  finishing_ = done ? Finishing::kDone : Finishing::kRunning;
  changed_.SignalAll();
}

}  // namespace tandem::worker
