// Heavy-ball momentum (Polyak 1964), without dampening: b = momentum * b + g, w -= rate * b. A
// row's b decays only when a step touches the row. Slots: b[dim].
#include <algorithm>

#include "optim/kinds.h"

namespace tandem::optim {
namespace {

class Momentum final : public RowOptimizer {
 public:
  explicit Momentum(const OptimizerSettings& settings) : settings_(settings) {}

  std::string name() const override { return "momentum"; }
  int slots_per_row(int dim) const override { return dim; }
  void InitSlots(int, absl::Span<float> slots) const override {
    std::fill(slots.begin(), slots.end(), 0.0f);
  }

  void Apply(int dim, float scale, const OptimizerStep& step, absl::Span<const float> gradients,
             absl::Span<float* const> rows, absl::Span<float* const> slots) const override {
    const float rate = settings_.learning_rate * step.rate;
    const float momentum = settings_.momentum;
    UpdateRows(settings_.gradient, dim, scale, gradients, rows, slots,
               [=](auto d, float* __restrict w, float* __restrict b, auto gradient) {
                 for (int j = 0; j < d; ++j) {
                   b[j] = momentum * b[j] + gradient(j, w[j]);
                   w[j] -= rate * b[j];
                 }
               });
  }

 private:
  const OptimizerSettings settings_;
};

}  // namespace

std::unique_ptr<RowOptimizer> NewMomentum(const OptimizerSettings& settings) {
  return std::make_unique<Momentum>(settings);
}

}  // namespace tandem::optim
