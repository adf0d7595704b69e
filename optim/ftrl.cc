// FTRL-Proximal with per-coordinate rates (McMahan et al. 2013). With alpha = rate:
//   n += g g
//   z += g - (1 / eta - 1 / eta_before) w,  where 1 / eta = (beta + sqrt(n)) / alpha
//   w = 0 if |z| <= l1, else -(z - sign(z) l1) / (1 / eta + l2)
// A schedule or a policy changes alpha from step to step. The paper's z would then move weights
// that have no gradient, because w is z times an eta, and z has the etas of earlier steps. Before a
// step w determines z, unless w is 0: the last line gives z = -w (1 / eta_before + l2) -
// sign(w) l1. The second line then needs no eta_before:
//   z = g - w (1 / eta + l2) - sign(w) l1
// Under a constant alpha this is the paper's update of rows that begin with zeros. Other rows keep
// their initial values, and a step of rate 0 moves nothing.
// Slots: z[dim], n[dim].
#include <algorithm>
#include <cmath>
#include <limits>

#include "optim/kinds.h"

namespace tandem::optim {
namespace {

class Ftrl final : public RowOptimizer {
 public:
  explicit Ftrl(const OptimizerSettings& settings) : settings_(settings) {}

  std::string name() const override { return "ftrl"; }
  int slots_per_row(int dim) const override { return 2 * dim; }
  void InitSlots(int dim, absl::Span<float> slots) const override {
    std::fill(slots.begin(), slots.begin() + dim, 0.0f);
    std::fill(slots.begin() + dim, slots.end(), settings_.initial_accumulator);
  }

  void Apply(int dim, float scale, const OptimizerStep& step, absl::Span<const float> gradients,
             absl::Span<float* const> rows, absl::Span<float* const> slots) const override {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float alpha = settings_.learning_rate * step.rate;
    const float beta = settings_.ftrl_beta, l1 = settings_.l1, l2 = settings_.l2;
    UpdateRows(settings_.gradient, dim, scale, gradients, rows, slots,
               [=](auto d, float* __restrict w, float* __restrict z, auto gradient) {
                 float* __restrict n = z + d;
                 for (int j = 0; j < d; ++j) {
                   const float g = gradient(j, w[j]);
                   n[j] += g * g;
                   const float strength = (beta + std::sqrt(n[j])) / alpha + l2;
                   const bool still = strength == kInfinity;  // alpha is 0
                   const float before =
                       w[j] == 0 || still ? z[j] : -w[j] * strength - std::copysign(l1, w[j]);
                   z[j] = before + g;
                   const float over = std::abs(z[j]) - l1;
                   const float moved = over <= 0 ? 0 : -std::copysign(over, z[j]) / strength;
                   w[j] = still ? w[j] : moved;
                 }
               });
  }

 private:
  const OptimizerSettings settings_;
};

}  // namespace

std::unique_ptr<RowOptimizer> NewFtrl(const OptimizerSettings& settings) {
  return std::make_unique<Ftrl>(settings);
}

}  // namespace tandem::optim
