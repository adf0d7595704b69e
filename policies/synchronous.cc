// BSP and FIXED_DELAY, the policies whose workers take each step together. The range holds the
// updates of a step until those of all workers have arrived, folds them in rank order, and applies
// the sum at once (BSP) or some steps later (fixed delay).
//
// BSP, bulk synchronous parallel (Valiant 1990): every read of step k sees exactly the first k
// steps.
//
// Fixed delay: w(c+1) = w(c) - eta * g(c - delay). The first `delay` steps apply nothing; delay 0
// is BSP. The staleness is known and constant, as experiments on stale gradients need it (Langford,
// Smola, Zinkevich 2009, "Slow learners are fast").
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "policies/kinds.h"

namespace tandem::policies {
namespace {

class Synchronous final : public UpdatePolicy {
 public:
  Synchronous(std::string name, int64_t delay) : name_(std::move(name)), delay_(delay) {}

  std::string name() const override { return name_; }
  Properties properties() const override {
    Properties properties;
    properties.lockstep = properties.order_free = properties.holds = true;
    properties.delay = properties.read_bound = delay_;
    properties.clock_bound = 0;
    return properties;
  }
  bool MayStart(int64_t, int64_t) const override { return true; }  // reads wait instead
  bool MayServe(const RangeProgress& progress, int, int64_t step, int) const override {
    return progress.version >= step;
  }
  Arrival OnArrival(const RangeProgress&, const Update&) const override { return Arrival::kHold; }
  Transform OnApply(const RangeProgress&, const Update&, const Group&) const override { return {}; }
  int64_t Ticks(const RangeProgress& progress, const Buffered&, const Pushed&) const override {
    return std::max<int64_t>(0, progress.MinAdmitted() - progress.version);
  }

 private:
  const std::string name_;
  const int64_t delay_;
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewBsp(const Policy&, int) {
  return std::make_unique<Synchronous>("BSP", 0);
}

std::unique_ptr<UpdatePolicy> NewFixedDelay(const Policy& config, int) {
  return std::make_unique<Synchronous>(absl::StrCat("FIXED_DELAY(", config.delay(), ")"),
                                       config.delay());
}

}  // namespace tandem::policies
