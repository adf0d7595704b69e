// Heavy-ball momentum (Polyak 1964), without dampening: b = momentum * b + g, w -= rate * b. A
// row's b decays only when a step touches the row. Slots: b[dim].
//
// In groups of updates (Shi, Yang, Li 2024, "Ordered momentum for asynchronous SGD"; their u is
// rate * b, and their beta is the momentum) a step has parts. The first update of a group takes
//   b *= momentum, w -= rate * b,
// and each update adds its gradient, which comes `late` groups after its own,
//   b += momentum^late * g, w -= rate * (1 + momentum + ... + momentum^late) * g.
// So a group of updates that are not late is one step with the sum of their gradients, and a late
// gradient leaves b and w as if it had come in its group. With weight decay each g contains the
// whole decay * w of its arrival.
#include <algorithm>
#include <cmath>

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
    if (step.groups_late >= 0) return ApplyInGroup(dim, scale, step, gradients, rows, slots);
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
  void ApplyInGroup(int dim, float scale, const OptimizerStep& step,
                    absl::Span<const float> gradients, absl::Span<float* const> rows,
                    absl::Span<float* const> slots) const {
    const double momentum = settings_.momentum;
    const double left = std::pow(momentum, static_cast<double>(step.groups_late));
    const float rate = settings_.learning_rate * step.rate;
    const float decay = step.begins_group ? settings_.momentum : 1.0f;
    const float begin = step.begins_group ? rate : 0.0f;
    const float kept = static_cast<float>(left);
    const float moved = rate * static_cast<float>((1 - momentum * left) / (1 - momentum));
    UpdateRows(settings_.gradient, dim, scale, gradients, rows, slots,
               [=](auto d, float* __restrict w, float* __restrict b, auto gradient) {
                 for (int j = 0; j < d; ++j) {
                   const float g = gradient(j, w[j]);
                   const float decayed = decay * b[j];
                   b[j] = decayed + kept * g;
                   w[j] -= begin * decayed + moved * g;
                 }
               });
  }

  const OptimizerSettings settings_;
};

}  // namespace

std::unique_ptr<RowOptimizer> NewMomentum(const OptimizerSettings& settings) {
  return std::make_unique<Momentum>(settings);
}

}  // namespace tandem::optim
