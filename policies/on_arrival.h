// The base class of policies that apply each update when it arrives. They hold nothing. Unless the
// policy says otherwise, each update is one tick, the policy promises nothing, and a worker waits
// for nobody: a read waits for the worker's own updates only.
#ifndef TANDEM_POLICIES_ON_ARRIVAL_H_
#define TANDEM_POLICIES_ON_ARRIVAL_H_

#include "policies/policy.h"

namespace tandem::policies {

class OnArrivalPolicy : public UpdatePolicy {
 public:
  // Each update is multiplied by `scale`, in addition to the division by n.
  explicit OnArrivalPolicy(float scale) : scale_(scale) {}

  Properties properties() const override { return {}; }
  bool MayStart(int64_t /*step*/, int64_t /*min_clock*/) const override { return true; }
  bool MayServe(const RangeProgress& progress, int rank, int64_t step, int depth) const override {
    return SeesOwnWrites(progress, rank, step, depth);
  }
  Arrival OnArrival(const RangeProgress&, const Update&) const final { return Arrival::kApply; }
  int64_t Ticks(const RangeProgress&, const Buffered&, const Pushed& pushed) const override {
    return pushed.steps;
  }

 protected:
  // Whether the range has applied the reader's own updates, except those of the last `depth` steps,
  // which the reader may miss because it prefetches so many steps.
  static bool SeesOwnWrites(const RangeProgress& progress, int rank, int64_t step, int depth) {
    return progress.workers[static_cast<size_t>(rank)].applied >= step - depth;
  }
  float scale() const { return scale_; }
  // The transform of an update of which `part` counts.
  Transform Scaled(float part = 1) const { return {.factor = part * scale_, .weight = scale_}; }

 private:
  const float scale_;
};

}  // namespace tandem::policies

#endif  // TANDEM_POLICIES_ON_ARRIVAL_H_
