// ORDERED_MOMENTUM, ordered momentum or OrMo (Shi, Yang, Li 2024, "Ordered momentum for
// asynchronous SGD"). The policy is ASP for an optimizer with momentum in which a late gradient
// counts as if it had come in its group.
//
// With K workers, updates 0 to K - 1 of a range are group 0, the next K are group 1, and so on. The
// momentum decays once for each group, as it does once for each step of synchronous SGD. A
// gradient that was computed after v updates belongs to group ceil(v / K): the K gradients of the
// first rows to group 0, those of the rows after 1 to K updates to group 1. If a gradient comes
// `late` groups after its own, the momentum gets the part of the gradient that would be left by
// then. The weights move as far as the gradient would have moved them by then. optim/momentum.cc
// has the formulas.
//
// A gradient of a group that has not begun counts in the present one. The version counts updates
// with samples alone, since no other update is one of the K.
#include <algorithm>
#include <cstdint>

#include "policies/counts_applied.h"
#include "policies/kinds.h"

namespace tandem::policies {
namespace {

class OrderedMomentum final : public CountsAppliedPolicy {
 public:
  OrderedMomentum(int64_t workers, float scale) : CountsAppliedPolicy(scale), workers_(workers) {}

  std::string name() const override { return "ORDERED_MOMENTUM"; }
  Transform OnApply(const RangeProgress& progress, const Update& update,
                    const Group&) const override {
    const int64_t own = (update.version_read + workers_ - 1) / workers_;
    Transform transform = Scaled();
    transform.groups_late = std::max<int64_t>(0, progress.version / workers_ - own);
    transform.begins_group = progress.version % workers_ == 0;
    return transform;
  }

 private:
  const int64_t workers_;
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewOrderedMomentum(const Policy& config, int workers) {
  return std::make_unique<OrderedMomentum>(workers, AsyncScale(config, workers));
}

}  // namespace tandem::policies
