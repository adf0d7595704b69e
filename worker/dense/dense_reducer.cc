#include "worker/dense/dense_reducer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::worker {

DenseReducer::DenseReducer(std::unique_ptr<DenseReduction> reduction, bool overlap,
                           GroupRunner& runner)
    : reduction_(std::move(reduction)), runner_(runner) {
  if (overlap) loop_ = std::thread([this] { Loop(); });
}

DenseReducer::~DenseReducer() {
  runner_.Abort("the worker ends");
  if (!overlaps()) return;
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  loop_.join();
}

absl::Status DenseReducer::RunAll() {
  while (const DenseReduction::Request* const request = reduction_->Next()) {
    TANDEM_RETURN_IF_ERROR(runner_.Run(*request));
    reduction_->OnDone();
    TANDEM_RETURN_IF_ERROR(reduction_->failure());
  }
  return absl::OkStatus();
}

void DenseReducer::Begin(absl::Span<float> gradient, const Step& step) {
  absl::MutexLock lock(&mutex_);
  TANDEM_CHECK(!begun_);
  reduction_->Begin(gradient, step);
  begun_ = true;
  reduced_ = false;
  ready_from_ = static_cast<int64_t>(gradient.size());
  needs_from_ = reduction_->needs_from();
}

void DenseReducer::Ready(int64_t first) {
  absl::MutexLock lock(&mutex_);
  ready_from_ = std::min(ready_from_, first);
}

bool DenseReducer::HasWork() const {
  return stop_ || (begun_ && failure_.ok() && !reduced_ && needs_from_ >= ready_from_);
}

bool DenseReducer::Reduced() const { return !failure_.ok() || reduced_; }

// Runs requests while the gradient becomes ready. While HasWork() is true, only this thread uses
// the reduction; the caller's thread only says what is ready.
void DenseReducer::Loop() {
  for (;;) {
    int64_t ready_from = 0;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &DenseReducer::HasWork));
      if (stop_) return;
      ready_from = ready_from_;
    }
    reduction_->Ready(ready_from);
    const absl::Status status = RunAll();
    absl::MutexLock lock(&mutex_);
    failure_.Update(status);
    needs_from_ = reduction_->needs_from();
    reduced_ = reduction_->waits_for_close();
  }
}

absl::Status DenseReducer::Finish(absl::Span<float> gradient, const Step& step,
                                  StepResult* result) {
  // Begin may be missing: a worker without data has no backward pass. Ready(0) lets the loop run
  // every request that can run before Close. Only when the loop has none left (Reduced) does this
  // thread use the reduction: Close changes the parameters, and the remaining requests run here.
  // Without overlap there is no loop, and all requests run here.
  bool begun = false;
  {
    absl::MutexLock lock(&mutex_);
    begun = begun_;
  }
  if (!begun) Begin(gradient, step);
  Ready(0);
  if (overlaps()) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &DenseReducer::Reduced));
    TANDEM_RETURN_IF_ERROR(failure_);
  }
  reduction_->Close();
  TANDEM_RETURN_IF_ERROR(RunAll());
  TANDEM_CHECK(reduction_->over());
  {
    absl::MutexLock lock(&mutex_);
    begun_ = false;
  }
  result->samples_of_all = reduction_->samples_of_all();
  result->empty_steps = reduction_->empty_steps();
  return absl::OkStatus();
}

absl::Status DenseReducer::Settle(bool /*new_epoch*/, int64_t /*step*/,
                                  std::vector<int64_t>* /*missed*/) {
  reduction_->BeginGather();
  return RunAll();
}

std::string DenseReducer::State() const {
  std::string of_codec = runner_.CodecState();
  return of_codec.empty() ? reduction_->State() : of_codec;
}

absl::Status DenseReducer::SetState(absl::string_view state) {
  TANDEM_RETURN_IF_ERROR(runner_.SetCodecState(state));
  return reduction_->SetState(state);
}

}  // namespace tandem::worker
