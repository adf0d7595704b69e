// K-batch-async SGD (Dutta et al. 2018, "Slow and stale gradients can win the race"): a worker waits
// for nobody; the first K updates to come, whoever sent them, are one step of the optimizer, on their
// mean. K = 1 is ASP. One tick a step, so an update is about (N - 1) / K versions old.
//
// What is left of a batch when nobody has data any more is closed as it is.
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
  Transform OnApply(const RangeProgress&, const Update&) const override { return {}; }
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewKBatchAsync(const Policy& config, int) {
  return std::make_unique<KBatchAsync>(config.batches());
}

}  // namespace tandem::policies
