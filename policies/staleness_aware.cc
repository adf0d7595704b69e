// Staleness-aware asynchronous SGD (Zhang et al. 2015, "Staleness-aware async-SGD for distributed
// deep learning"): ASP with a step of eta / max(1, staleness). The staleness is measured, not
// assumed: it is the number of ticks of the range since the rows of this update were read.
#include <algorithm>

#include "policies/kinds.h"
#include "policies/on_arrival.h"

namespace tandem::policies {
namespace {

class StalenessAware final : public OnArrivalPolicy {
 public:
  using OnArrivalPolicy::OnArrivalPolicy;
  std::string name() const override { return "STALENESS_AWARE"; }
  Transform OnApply(const RangeProgress& progress, const Update& update,
                    const Group&) const override {
    const int64_t staleness = progress.version - update.version_read;
    return Scaled(1 / static_cast<float>(std::max<int64_t>(1, staleness)));
  }
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewStalenessAware(const Policy& config, int workers) {
  return std::make_unique<StalenessAware>(AsyncScale(config, workers));
}

}  // namespace tandem::policies
