// Adagrad (Duchi, Hazan, Singer 2011), epsilon outside the root as in torch:
// s += g * g, w -= rate * g / (sqrt(s) + epsilon). Slots: s[dim].
#include <algorithm>
#include <cmath>

#include "optim/kinds.h"

namespace tandem::optim {
namespace {

class Adagrad final : public RowOptimizer {
 public:
  explicit Adagrad(const OptimizerSettings& settings) : settings_(settings) {}

  std::string name() const override { return "adagrad"; }
  int slots_per_row(int dim) const override { return dim; }
  void InitSlots(int, absl::Span<float> slots) const override {
    std::fill(slots.begin(), slots.end(), settings_.initial_accumulator);
  }

  void Apply(int dim, float scale, const OptimizerStep& step, absl::Span<const float> gradients,
             absl::Span<float* const> rows, absl::Span<float* const> slots) const override {
    const float rate = settings_.learning_rate * step.rate;
    const float epsilon = settings_.epsilon;
    UpdateRows(settings_.gradient, dim, scale, gradients, rows, slots,
               [=](auto d, float* __restrict w, float* __restrict s, auto gradient) {
                 for (int j = 0; j < d; ++j) {
                   const float g = gradient(j, w[j]);
                   s[j] += g * g;
                   w[j] -= rate * g / (std::sqrt(s[j]) + epsilon);
                 }
               });
  }

 private:
  const OptimizerSettings settings_;
};

}  // namespace

std::unique_ptr<RowOptimizer> NewAdagrad(const OptimizerSettings& settings) {
  return std::make_unique<Adagrad>(settings);
}

}  // namespace tandem::optim
