// COSINE_GATE, the gate of CGAD (Shah, Sun 2026, "Cosine-gated Adam-decay: drop-in staleness-aware
// outer optimization for decoupled DiLoCo"), for any optimizer. It is ASP, except that a gradient
// of age t is multiplied by exp(-decay t) (1 + cos(pi t / cutoff)) / 2 before the optimizer sees
// it, and a gradient of age `cutoff` or more is dropped. The age is measured, not assumed: it is
// the number of ticks of the range since the rows of this update were read. The steps of Adam do
// not depend on the size of gradients, so with Adam only differences in age matter.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "policies/kinds.h"
#include "policies/on_arrival.h"

namespace tandem::policies {
namespace {

constexpr double kPi = 3.14159265358979323846;

class CosineGate final : public OnArrivalPolicy {
 public:
  CosineGate(double decay, int64_t cutoff, float scale)
      : OnArrivalPolicy(scale), decay_(decay), cutoff_(cutoff) {}

  std::string name() const override {
    return absl::StrCat("COSINE_GATE(", decay_, ", ", cutoff_, ")");
  }
  Properties properties() const override {
    Properties properties;
    properties.drops = true;
    return properties;
  }
  Transform OnApply(const RangeProgress& progress, const Update& update,
                    const Group&) const override {
    const int64_t age = std::max<int64_t>(0, progress.version - update.version_read);
    if (age >= cutoff_) return Scaled(0);
    const double t = static_cast<double>(age);
    const double gate = 0.5 * (1 + std::cos(kPi * t / static_cast<double>(cutoff_)));
    return Scaled(static_cast<float>(gate * std::exp(-decay_ * t)));
  }

 private:
  const double decay_;
  const int64_t cutoff_;
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewCosineGate(const Policy& config, int workers) {
  return std::make_unique<CosineGate>(config.age_decay(), config.age_cutoff(),
                                      AsyncScale(config, workers));
}

}  // namespace tandem::policies
