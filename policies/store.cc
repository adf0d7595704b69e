// STORE, the policy of a table whose rows programs write themselves, a whole row at a time. No
// gradient ever arrives, so there is no clock, nobody waits, and there is nothing to apply.
// server/rows/row_writes.h describes a write.
#include "policies/kinds.h"

namespace tandem::policies {
namespace {

class Store final : public UpdatePolicy {
 public:
  std::string name() const override { return "KEY_VALUE"; }
  Properties properties() const override {
    Properties p;
    p.order_free = true;  // the table has no part in training
    p.store = true;
    return p;
  }
  bool MayStart(int64_t, int64_t) const override { return true; }
  bool MayServe(const RangeProgress&, int, int64_t, int) const override { return true; }
  Arrival OnArrival(const RangeProgress&, const Update&) const override { return Arrival::kDrop; }
  Transform OnApply(const RangeProgress&, const Update&, const Group&) const override { return {}; }
  int64_t Ticks(const RangeProgress&, const Buffered&, const Pushed&) const override { return 0; }
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewStore(const Policy&, int) { return std::make_unique<Store>(); }

}  // namespace tandem::policies
