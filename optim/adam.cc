// Adam (Kingma, Ba 2015) on touched rows:
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g g
// With StepCount TABLE, t is the number of the table's step, and epsilon stands where torch's
// SparseAdam has it:
//   w -= rate sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon)
// Otherwise each row counts its own steps, and epsilon stands where torch's Adam has it:
//   w -= rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
// Slots: m[dim], v[dim], and t if a row counts its own steps. This slot is a float, so it counts to
// 2^24 and stays there. Both corrections are 1 long before that.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "optim/kinds.h"

namespace tandem::optim {
namespace {

// The factors of step t. They are kept in a table, because a power costs more than the rest of a
// row.
struct Correction {
  float rate;    // of m
  float root_v;  // of sqrt(v)
};

class Adam final : public RowOptimizer {
 public:
  Adam(const OptimizerSettings& settings, bool by_table)
      : settings_(settings), by_table_(by_table) {
    corrections_.reserve(kTableSteps);
    for (int t = 0; t < kTableSteps; ++t) corrections_.push_back(Compute(t + 1.0));
  }

  std::string name() const override { return by_table_ ? "adam(table)" : "adam"; }
  int slots_per_row(int dim) const override { return 2 * dim + (by_table_ ? 0 : 1); }
  void InitSlots(int, absl::Span<float> slots) const override {
    std::fill(slots.begin(), slots.end(), 0.0f);
  }

  void Apply(int dim, float scale, const OptimizerStep& step, absl::Span<const float> gradients,
             absl::Span<float* const> rows, absl::Span<float* const> slots) const override {
    if (by_table_) {
      TANDEM_CHECK(step.number >= 1);
      const Correction of_step = At(static_cast<double>(step.number));
      return Update(dim, scale, step.rate, gradients, rows, slots,
                    [of_step](float*) { return of_step; });
    }
    Update(dim, scale, step.rate, gradients, rows, slots, [this](float* t) { return At(*t += 1); });
  }

 private:
  static constexpr int kTableSteps = 8192;  // 64 KiB; later steps compute their factors

  // correction_of(slot) gives the factors for a row whose m and v end before `slot`.
  template <typename CorrectionOf>
  void Update(int dim, float scale, float rate, absl::Span<const float> gradients,
              absl::Span<float* const> rows, absl::Span<float* const> slots,
              CorrectionOf correction_of) const {
    const float beta1 = static_cast<float>(settings_.beta1);
    const float beta2 = static_cast<float>(settings_.beta2);
    const float rest1 = static_cast<float>(1 - settings_.beta1);
    const float rest2 = static_cast<float>(1 - settings_.beta2);
    const float epsilon = settings_.epsilon;
    UpdateRows(settings_.gradient, dim, scale, gradients, rows, slots,
               [=](auto d, float* __restrict w, float* __restrict m, auto gradient) {
                 float* __restrict v = m + d;
                 Correction c = correction_of(m + 2 * d);
                 c.rate *= rate;
                 for (int j = 0; j < d; ++j) {
                   const float g = gradient(j, w[j]);
                   m[j] = beta1 * m[j] + rest1 * g;
                   v[j] = beta2 * v[j] + rest2 * (g * g);
                   w[j] -= c.rate * m[j] / (std::sqrt(v[j]) * c.root_v + epsilon);
                 }
               });
  }

  Correction Compute(double t) const {
    const double rate = settings_.learning_rate / (1 - std::pow(settings_.beta1, t));
    const double root = std::sqrt(1 - std::pow(settings_.beta2, t));
    if (by_table_) return {static_cast<float>(rate * root), 1};
    return {static_cast<float>(rate), static_cast<float>(1 / root)};
  }

  // The factors of step t. A slot of a file made by hand may not hold a count, so `t` is used as an
  // index only if it is in the table.
  Correction At(double t) const {
    if (t >= 1 && t <= kTableSteps) return corrections_[static_cast<size_t>(t) - 1];
    return Compute(t);
  }

  const OptimizerSettings settings_;
  const bool by_table_;
  std::vector<Correction> corrections_;  // for steps 1, 2, ...; constant after construction
};

}  // namespace

std::unique_ptr<RowOptimizer> NewAdam(const OptimizerSettings& settings,
                                      Optimizer::StepCount count) {
  return std::make_unique<Adam>(settings, count == Optimizer::TABLE);
}

}  // namespace tandem::optim
