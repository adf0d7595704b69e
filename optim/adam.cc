// Adam (Kingma, Ba 2015) on touched rows. Each row has its own step count t, and epsilon stands
// where PyTorch has it:
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g g
//   w -= rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
// Slots: m[dim], v[dim], t. The slot t is a float, so it counts to 2^24 and stays there. Both
// corrections are 1 long before that.
#include <algorithm>
#include <cmath>
#include <vector>

#include "optim/kinds.h"

namespace tandem::optim {
namespace {

// The factors of step t. They are kept in a table, because a power costs more than the rest of a
// row.
struct Correction {
  float rate;    // learning rate / (1 - beta1^t)
  float root_v;  // 1 / sqrt(1 - beta2^t)
};

class Adam final : public RowOptimizer {
 public:
  explicit Adam(const OptimizerSettings& settings) : settings_(settings) {
    corrections_.reserve(kTableSteps);
    for (int t = 0; t < kTableSteps; ++t) corrections_.push_back(Compute(t + 1.0));
  }

  std::string name() const override { return "adam"; }
  int slots_per_row(int dim) const override { return 2 * dim + 1; }
  void InitSlots(int, absl::Span<float> slots) const override {
    std::fill(slots.begin(), slots.end(), 0.0f);
  }

  void Apply(int dim, float scale, absl::Span<const float> gradients, absl::Span<float* const> rows,
             absl::Span<float* const> slots) const override {
    const float beta1 = static_cast<float>(settings_.beta1);
    const float beta2 = static_cast<float>(settings_.beta2);
    const float rest1 = static_cast<float>(1 - settings_.beta1);
    const float rest2 = static_cast<float>(1 - settings_.beta2);
    const float epsilon = settings_.epsilon;
    UpdateRows(settings_.gradient, dim, scale, gradients, rows, slots,
               [=, this](auto d, float* __restrict w, float* __restrict m, auto gradient) {
                 float* __restrict v = m + d;
                 const Correction c = Next(m[2 * d]);
                 for (int j = 0; j < d; ++j) {
                   const float g = gradient(j, w[j]);
                   m[j] = beta1 * m[j] + rest1 * g;
                   v[j] = beta2 * v[j] + rest2 * (g * g);
                   w[j] -= c.rate * m[j] / (std::sqrt(v[j]) * c.root_v + epsilon);
                 }
               });
  }

 private:
  static constexpr int kTableSteps = 8192;  // 64 KiB; later steps compute their factors

  Correction Compute(double t) const {
    return {static_cast<float>(settings_.learning_rate / (1 - std::pow(settings_.beta1, t))),
            static_cast<float>(1 / std::sqrt(1 - std::pow(settings_.beta2, t)))};
  }

  // Counts one step in the slot `t` and returns its factors. A slot of a file made by hand may not
  // hold a count, so it is used as an index only if it is in the table.
  Correction Next(float& t) const {
    t += 1;
    if (t >= 1 && t <= kTableSteps) return corrections_[static_cast<size_t>(t) - 1];
    return Compute(t);
  }

  const OptimizerSettings settings_;
  std::vector<Correction> corrections_;  // for steps 1, 2, ...; constant after construction
};

}  // namespace

std::unique_ptr<RowOptimizer> NewAdam(const OptimizerSettings& settings) {
  return std::make_unique<Adam>(settings);
}

}  // namespace tandem::optim
