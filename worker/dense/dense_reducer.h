// Runs the reduction of a worker's dense parameters (dense_reduction.h) over the group of all
// workers. If the job has buckets, a separate thread reduces while gradients become ready;
// otherwise the caller's thread does.
//
// Thread safety: as DenseSteps.
#ifndef TANDEM_WORKER_DENSE_DENSE_REDUCER_H_
#define TANDEM_WORKER_DENSE_DENSE_REDUCER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "worker/dense/dense_reduction.h"
#include "worker/dense/dense_steps.h"
#include "worker/dense/group_runner.h"

namespace tandem::worker {

class DenseReducer final : public DenseSteps {
 public:
  // `overlap`: reduce while gradients become ready. `runner` outlives this object.
  DenseReducer(std::unique_ptr<DenseReduction> reduction, bool overlap, GroupRunner& runner);
  ~DenseReducer() override;

  bool overlaps() const override { return loop_.joinable(); }
  void BeforeStep() override { reduction_->BeforeStep(); }
  void Begin(absl::Span<float> gradient, const Step& step) override;
  void Ready(int64_t first) override;
  absl::Status Finish(absl::Span<float> gradient, const Step& step, StepResult* result) override;
  absl::Status Settle(bool new_epoch, int64_t step, std::vector<int64_t>* missed) override;
  // The state of the codec (GradientCodec::State) or of the reduction (DenseReduction::State). No
  // job has both.
  std::string State() const override;
  absl::Status SetState(absl::string_view state) override;

 private:
  absl::Status RunAll();
  void Loop();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Reduced() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Used by the reducing thread while a step's gradient is reduced, otherwise by the caller's
  // thread.
  const std::unique_ptr<DenseReduction> reduction_;
  GroupRunner& runner_;

  absl::Mutex mutex_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t ready_from_ ABSL_GUARDED_BY(mutex_) = 0;  // elements from here on are ready
  int64_t needs_from_ ABSL_GUARDED_BY(mutex_) = 0;  // elements needed for the next request
  bool reduced_ ABSL_GUARDED_BY(mutex_) = false;    // no more requests before Close
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::thread loop_;  // runs if the reducer overlaps
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_DENSE_REDUCER_H_
