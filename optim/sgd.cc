// Stochastic gradient descent: w -= rate * g. No slots.
#include "optim/kinds.h"

namespace tandem::optim {
namespace {

class Sgd final : public RowOptimizer {
 public:
  explicit Sgd(const OptimizerSettings& settings) : settings_(settings) {}

  std::string name() const override { return "sgd"; }
  int slots_per_row(int) const override { return 0; }
  void InitSlots(int, absl::Span<float>) const override {}

  void Apply(int dim, float scale, const OptimizerStep& step, absl::Span<const float> gradients,
             absl::Span<float* const> rows, absl::Span<float* const> slots) const override {
    const float rate = settings_.learning_rate * step.rate;
    UpdateRows(settings_.gradient, dim, scale, gradients, rows, slots,
               [=](auto d, float* __restrict w, float*, auto gradient) {
                 for (int j = 0; j < d; ++j) w[j] -= rate * gradient(j, w[j]);
               });
  }

 private:
  const OptimizerSettings settings_;
};

}  // namespace

std::unique_ptr<RowOptimizer> NewSgd(const OptimizerSettings& settings) {
  return std::make_unique<Sgd>(settings);
}

}  // namespace tandem::optim
