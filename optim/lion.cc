// Lion (Chen et al. 2023): w -= rate * (sign(beta1 m + (1 - beta1) g) + weight_decay w), then
// m = beta2 m + (1 - beta2) g. Slots: m[dim].
#include <algorithm>

#include "optim/kinds.h"

namespace tandem::optim {
namespace {

class Lion final : public RowOptimizer {
 public:
  explicit Lion(const OptimizerSettings& settings) : settings_(settings) {}

  std::string name() const override { return "lion"; }
  int slots_per_row(int dim) const override { return dim; }
  void InitSlots(int, absl::Span<float> slots) const override {
    std::fill(slots.begin(), slots.end(), 0.0f);
  }

  void Apply(int dim, float scale, const OptimizerStep& step, absl::Span<const float> gradients,
             absl::Span<float* const> rows, absl::Span<float* const> slots) const override {
    const float rate = settings_.learning_rate * step.rate;
    const float decay = rate * settings_.decoupled_decay;
    const float beta1 = static_cast<float>(settings_.beta1);
    const float beta2 = static_cast<float>(settings_.beta2);
    const float rest1 = static_cast<float>(1 - settings_.beta1);
    const float rest2 = static_cast<float>(1 - settings_.beta2);
    UpdateRows(settings_.gradient, dim, scale, gradients, rows, slots,
               [=](auto d, float* __restrict w, float* __restrict m, auto gradient) {
                 for (int j = 0; j < d; ++j) {
                   const float g = gradient(j, w[j]);
                   const float c = beta1 * m[j] + rest1 * g;
                   w[j] -= rate * static_cast<float>((c > 0) - (c < 0)) + decay * w[j];
                   m[j] = beta2 * m[j] + rest2 * g;
                 }
               });
  }

 private:
  const OptimizerSettings settings_;
};

}  // namespace

std::unique_ptr<RowOptimizer> NewLion(const OptimizerSettings& settings) {
  return std::make_unique<Lion>(settings);
}

}  // namespace tandem::optim
