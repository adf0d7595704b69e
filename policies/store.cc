// A table that programs write themselves, whole rows at a time: no gradient ever comes, so there is no
// clock, nobody waits, and there is nothing to apply. What a write is: server/row_writes.h.
#include "policies/kinds.h"

namespace tandem::policies {
namespace {

class Store final : public UpdatePolicy {
 public:
  std::string name() const override { return "STORE"; }
  Properties properties() const override {
    Properties p;
    p.order_free = true;  // of training, which it has no part in
    p.store = true;
    return p;
  }
  bool MayStart(int64_t, int64_t) const override { return true; }
  bool MayServe(const RangeProgress&, int, int64_t, int) const override { return true; }
  Arrival OnArrival(const RangeProgress&, const Update&) const override { return Arrival::kDrop; }
  Transform OnApply(const RangeProgress&, const Update&) const override { return {}; }
  int64_t Ticks(const RangeProgress&, const Buffered&, int64_t) const override { return 0; }
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewStore(const Policy&, int) { return std::make_unique<Store>(); }

}  // namespace tandem::policies
