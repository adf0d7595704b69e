// RENNALA, Rennala SGD (Tyurin, Richtarik 2023, "Optimal time complexities of parallel stochastic
// optimization methods under a fixed computation model"). It is K-batch-async without staleness: a
// gradient joins the open batch if no step was taken since its rows were read. Any other gradient
// is dropped when it arrives. Its worker is not told. It goes on, and reads anew for its next step.
//
// An update without rows in a range has no read there, so it joins the batch that is open.
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
    properties.holds = properties.counts_applied = true;
    properties.batch = batches();
    return properties;
  }
  Arrival OnArrival(const RangeProgress& progress, const Update& update) const override {
    const bool late = update.samples > 0 && update.version_read < progress.version;
    return late ? Arrival::kDrop : InBatchesPolicy::OnArrival(progress, update);
  }
  Transform OnApply(const RangeProgress&, const Update&, const Group&) const override { return {}; }
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewRennala(const Policy& config, int) {
  return std::make_unique<Rennala>(config.batches());
}

}  // namespace tandem::policies
