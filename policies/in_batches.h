// The base class of policies that wait for nobody and fold a fixed number of updates, in the order
// of their arrival, into one step of the optimizer. The version moves by one tick for each such
// batch.
#ifndef TANDEM_POLICIES_IN_BATCHES_H_
#define TANDEM_POLICIES_IN_BATCHES_H_

#include "policies/policy.h"

namespace tandem::policies {

class InBatchesPolicy : public UpdatePolicy {
 public:
  explicit InBatchesPolicy(int64_t batches) : batches_(batches) {}

  bool MayStart(int64_t, int64_t) const final { return true; }
  // A worker reads as soon as the range has admitted its own pushes up to the prefetch depth. These
  // pushes may still wait for their batch to be full.
  bool MayServe(const RangeProgress& progress, int rank, int64_t step, int depth) const final {
    return progress.workers[static_cast<size_t>(rank)].admitted >= step - depth;
  }
  Arrival OnArrival(const RangeProgress&, const Update& update) const override {
    // A push without samples belongs to no batch. A skipped one has its place in one, as its read
    // has, and adds nothing.
    return update.samples > 0 || update.skipped ? Arrival::kHold : Arrival::kApply;
  }
  int64_t Ticks(const RangeProgress& progress, const Buffered& buffered,
                const Pushed&) const final {
    if (buffered.oldest >= batches_) return 1;
    // No worker has data any more, so the open batch cannot become full. Close it as it is.
    return progress.Live() == 0 && buffered.groups > 0 ? 1 : 0;
  }

 protected:
  int64_t batches() const { return batches_; }

 private:
  const int64_t batches_;
};

}  // namespace tandem::policies

#endif  // TANDEM_POLICIES_IN_BATCHES_H_
