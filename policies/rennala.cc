// RENNALA, Rennala SGD (Tyurin, Richtarik 2023, "Optimal time complexities of parallel stochastic
// optimization methods under a fixed computation model"). The policy is K-batch-async without
// staleness: a gradient joins the open batch if no step was taken since its rows were read. Any
// other gradient is dropped when it arrives. The worker is not told, and reads anew for its
// next step.
//
// An update without rows in a range has no read there, so it joins the batch that is open. A push
// without samples belongs to no batch, even if its worker skipped the step: unlike under GBA, no
// read has a place in a batch.
#include "absl/strings/str_cat.h"
#include "policies/in_batches.h"
#include "policies/kinds.h"

namespace tandem::policies {
namespace {

class Rennala final : public InBatchesPolicy {
 public:
  explicit Rennala(int64_t batches) : InBatchesPolicy(batches) {}

  std::string name() const override { return absl::StrCat("RENNALA(", batches(), ")"); }
  Properties properties() const override {
    Properties properties;
    properties.holds = properties.counts_applied = properties.drops = true;
    properties.batch = batches();
    return properties;
  }
  Arrival OnArrival(const RangeProgress& progress, const Update& update) const override {
    if (update.samples == 0) return Arrival::kApply;
    return update.version_read < progress.version ? Arrival::kDrop : Arrival::kHold;
  }
  Transform OnApply(const RangeProgress&, const Update&, const Group&) const override { return {}; }
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewRennala(const Policy& config, int) {
  return std::make_unique<Rennala>(config.batches());
}

}  // namespace tandem::policies
