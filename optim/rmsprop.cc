// RMSProp (Tieleman, Hinton 2012), epsilon outside the root as in torch, without momentum and
// centring: v = beta2 v + (1 - beta2) g g, w -= rate * g / (sqrt(v) + epsilon). torch calls beta2
// alpha. Slots: v[dim].
#include <algorithm>
#include <cmath>

#include "optim/kinds.h"

namespace tandem::optim {
namespace {

class RmsProp final : public RowOptimizer {
 public:
  explicit RmsProp(const OptimizerSettings& settings) : settings_(settings) {}

  std::string name() const override { return "rmsprop"; }
  int slots_per_row(int dim) const override { return dim; }
  void InitSlots(int, absl::Span<float> slots) const override {
    std::fill(slots.begin(), slots.end(), 0.0f);
  }

  void Apply(int dim, float scale, const OptimizerStep& step, absl::Span<const float> gradients,
             absl::Span<float* const> rows, absl::Span<float* const> slots) const override {
    const float rate = settings_.learning_rate * step.rate;
    const float epsilon = settings_.epsilon;
    const float beta2 = static_cast<float>(settings_.beta2);
    const float rest2 = static_cast<float>(1 - settings_.beta2);
    UpdateRows(settings_.gradient, dim, scale, gradients, rows, slots,
               [=](auto d, float* __restrict w, float* __restrict v, auto gradient) {
                 for (int j = 0; j < d; ++j) {
                   const float g = gradient(j, w[j]);
                   v[j] = beta2 * v[j] + rest2 * (g * g);
                   w[j] -= rate * g / (std::sqrt(v[j]) + epsilon);
                 }
               });
  }

 private:
  const OptimizerSettings settings_;
};

}  // namespace

std::unique_ptr<RowOptimizer> NewRmsProp(const OptimizerSettings& settings) {
  return std::make_unique<RmsProp>(settings);
}

}  // namespace tandem::optim
