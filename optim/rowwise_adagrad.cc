// Row-wise Adagrad: one accumulator for each row, the mean square of its gradients, as in FBGEMM
// and TorchRec. s += mean(g * g), w -= rate / (sqrt(s) + epsilon) * g. Slots: s.
#include <cmath>

#include "optim/kinds.h"

namespace tandem::optim {
namespace {

class RowwiseAdagrad final : public RowOptimizer {
 public:
  explicit RowwiseAdagrad(const OptimizerSettings& settings) : settings_(settings) {}

  std::string name() const override { return "rowwise_adagrad"; }
  int slots_per_row(int) const override { return 1; }
  int numbers_per_row() const override { return 1; }
  void InitSlots(int, absl::Span<float> slots) const override {
    slots[0] = settings_.initial_accumulator;
  }

  void Apply(int dim, float scale, const OptimizerStep& step, absl::Span<const float> gradients,
             absl::Span<float* const> rows, absl::Span<float* const> slots) const override {
    const float learning_rate = settings_.learning_rate * step.rate;
    const float epsilon = settings_.epsilon;
    UpdateRows(settings_.gradient, dim, scale, gradients, rows, slots,
               [=](auto d, float* __restrict w, float* __restrict slot, auto gradient) {
                 const float sum = LaneSum(d, [=](int j) {
                   const float g = gradient(j, w[j]);
                   return g * g;
                 });
                 const float s = *slot + sum / static_cast<float>(d);
                 *slot = s;
                 const float rate = learning_rate / (std::sqrt(s) + epsilon);
                 for (int j = 0; j < d; ++j) w[j] -= rate * gradient(j, w[j]);
               });
  }

 private:
  const OptimizerSettings settings_;
};

}  // namespace

std::unique_ptr<RowOptimizer> NewRowwiseAdagrad(const OptimizerSettings& settings) {
  return std::make_unique<RowwiseAdagrad>(settings);
}

}  // namespace tandem::optim
