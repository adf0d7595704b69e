// What policies have in common that wait for nobody and fold every so many updates, in the order in
// which they come, into one step of the optimizer: one tick a batch.
#ifndef TANDEM_POLICIES_IN_BATCHES_H_
#define TANDEM_POLICIES_IN_BATCHES_H_

#include "policies/policy.h"

namespace tandem::policies {

class InBatchesPolicy : public UpdatePolicy {
 public:
  explicit InBatchesPolicy(int64_t batches) : batches_(batches) {}

  bool MayStart(int64_t, int64_t) const final { return true; }
  // A worker reads after what it has pushed has arrived, which may still wait for its batch.
  bool MayServe(const RangeProgress& progress, int rank, int64_t step, int depth) const final {
    return progress.workers[static_cast<size_t>(rank)].admitted >= step - depth;
  }
  Arrival OnArrival(const RangeProgress&, const Update& update) const final {
    return update.samples > 0 ? Arrival::kHold : Arrival::kApply;  // nothing is no part of a batch
  }
  int64_t Ticks(const RangeProgress& progress, const Buffered& buffered, int64_t) const final {
    if (buffered.oldest >= batches_) return 1;
    // Nobody has data any more: nothing will come to what is open.
    return progress.Live() == 0 && buffered.groups > 0 ? 1 : 0;
  }

 protected:
  int64_t batches() const { return batches_; }

 private:
  const int64_t batches_;
};

}  // namespace tandem::policies

#endif  // TANDEM_POLICIES_IN_BATCHES_H_
