// K-batch-async SGD (Dutta et al. 2018, "Slow and stale gradients can win the race"): a worker
// waits for nobody. The first K updates to arrive, from any workers, make one step of the optimizer
// with their mean. K = 1 is ASP. Each step is one tick, so an update is about (N - 1) / K versions
// old.
//
// When no worker has data any more, an incomplete batch is closed as it is.
#include "absl/strings/str_cat.h"
#include "policies/in_batches.h"
#include "policies/kinds.h"

namespace tandem::policies {
namespace {

class KBatchAsync final : public InBatchesPolicy {
 public:
  explicit KBatchAsync(int64_t batches) : InBatchesPolicy(batches) {}

  std::string name() const override { return absl::StrCat("K_BATCH_ASYNC(", batches(), ")"); }
  Properties properties() const override {
    Properties properties;
    properties.holds = true;
    properties.batch = batches();
    return properties;
  }
  Transform OnApply(const RangeProgress&, const Update&, const Group&) const override { return {}; }
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewKBatchAsync(const Policy& config, int) {
  return std::make_unique<KBatchAsync>(config.batches());
}

}  // namespace tandem::policies
