// The base class of policies that apply each update when it arrives and whose version counts
// applied updates alone, not admitted steps. So a dropped update makes no other one older.
//
// The version may be lower than the number of admitted steps even under a policy that drops
// nothing: at the end of an epoch workers push steps without samples, and such a step is no update.
// Properties::counts_applied says so to code that compares versions with steps.
#ifndef TANDEM_POLICIES_COUNTS_APPLIED_H_
#define TANDEM_POLICIES_COUNTS_APPLIED_H_

#include "policies/on_arrival.h"

namespace tandem::policies {

class CountsAppliedPolicy : public OnArrivalPolicy {
 public:
  using OnArrivalPolicy::OnArrivalPolicy;

  Properties properties() const override {
    Properties properties;
    properties.counts_applied = true;
    return properties;
  }
  int64_t Ticks(const RangeProgress&, const Buffered&, const Pushed& pushed) const final {
    return pushed.applied;
  }
};

}  // namespace tandem::policies

#endif  // TANDEM_POLICIES_COUNTS_APPLIED_H_
