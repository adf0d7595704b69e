// DELAY_ADAPTIVE, a learning rate that falls with the delay of a gradient (Mishchenko, Bach, Even,
// Woodworth 2022, "Asynchronous SGD beats minibatch SGD under arbitrary delays"; for Adam: Wang,
// Wang, Lu, Chen 2024, "FADAS: towards federated adaptive asynchronous optimization"). It is ASP,
// except that the learning rate of an update with delay t is multiplied by min(1, full / t). The
// delay is the number of ticks of the range since the rows of this update were read. Unlike
// STALENESS_AWARE, which makes the gradient smaller, the factor reaches every optimizer: the steps
// of Adam do not depend on the size of gradients.
#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "policies/kinds.h"
#include "policies/on_arrival.h"

namespace tandem::policies {
namespace {

class DelayAdaptive final : public OnArrivalPolicy {
 public:
  DelayAdaptive(int64_t full, float scale) : OnArrivalPolicy(scale), full_(full) {}

  std::string name() const override { return absl::StrCat("DELAY_ADAPTIVE(", full_, ")"); }
  Transform OnApply(const RangeProgress& progress, const Update& update,
                    const Group&) const override {
    const int64_t delay = progress.version - update.version_read;
    Transform transform = Scaled();
    transform.rate = static_cast<float>(full_) / static_cast<float>(std::max(full_, delay));
    return transform;
  }

 private:
  const int64_t full_;
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewDelayAdaptive(const Policy& config, int workers) {
  return std::make_unique<DelayAdaptive>(config.full_rate_delay(), AsyncScale(config, workers));
}

}  // namespace tandem::policies
