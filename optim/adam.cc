// Adam (Kingma, Ba 2015) and its variants on touched rows:
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g g
// With StepCount TABLE, t is the number of the table's step, and epsilon stands where torch's
// SparseAdam has it:
//   w -= rate sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon)
// Otherwise each row counts its own steps, and epsilon stands where torch's Adam has it:
//   w -= rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
// The variants:
//   AMSGRAD (Reddi, Kale, Kumar 2018): the largest v so far takes the place of v in the step, as in
//     torch: before the correction.
//   ADAMW (Loshchilov, Hutter 2019): the weight also loses rate * weight_decay of its value.
//   ROWWISE_ADAM: v is one number a row, which takes the mean of g g over the row, as in FBGEMM's
//     PARTIAL_ROWWISE_ADAM. The weight decay of FBGEMM is decoupled, and that of this one is not.
// Slots: m[dim], v[dim] (ROWWISE_ADAM: v), the largest v[dim] of AMSGRAD, and t if a row counts its
// own steps. The slot of t is a float, so it counts to 2^24 and stays there. Both corrections are 1
// long before that.
#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
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

template <Optimizer::Kind kKind>
class Adam final : public RowOptimizer {
 public:
  Adam(const OptimizerSettings& settings, bool by_table)
      : settings_(settings), by_table_(by_table) {
    corrections_.reserve(kTableSteps);
    for (int t = 0; t < kTableSteps; ++t) corrections_.push_back(Compute(t + 1.0));
  }

  std::string name() const override {
    return absl::StrCat(absl::AsciiStrToLower(Optimizer::Kind_Name(kKind)),
                        by_table_ ? "(table)" : "");
  }
  int slots_per_row(int dim) const override { return Moments(dim) + (by_table_ ? 0 : 1); }
  int numbers_per_row() const override {
    return (kKind == Optimizer::ROWWISE_ADAM ? 1 : 0) + (by_table_ ? 0 : 1);
  }
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

  // The slots of a row but for t.
  static constexpr int Moments(int dim) {
    if constexpr (kKind == Optimizer::ROWWISE_ADAM) return dim + 1;
    return kKind == Optimizer::AMSGRAD ? 3 * dim : 2 * dim;
  }

  // correction_of(slot) gives the factors for a row whose moments end before `slot`.
  template <typename CorrectionOf>
  void Update(int dim, float scale, float rate, absl::Span<const float> gradients,
              absl::Span<float* const> rows, absl::Span<float* const> slots,
              CorrectionOf correction_of) const {
    const float beta1 = static_cast<float>(settings_.beta1);
    const float beta2 = static_cast<float>(settings_.beta2);
    const float rest1 = static_cast<float>(1 - settings_.beta1);
    const float rest2 = static_cast<float>(1 - settings_.beta2);
    const float epsilon = settings_.epsilon;
    const float decay = settings_.learning_rate * rate * settings_.decoupled_decay;
    UpdateRows(settings_.gradient, dim, scale, gradients, rows, slots,
               [=](auto d, float* __restrict w, float* __restrict m, auto gradient) {
                 float* __restrict v = m + d;
                 Correction c = correction_of(m + Moments(d));
                 c.rate *= rate;
                 if constexpr (kKind == Optimizer::ROWWISE_ADAM) {
                   const float sum = LaneSum(d, [=](int j) {
                     const float g = gradient(j, w[j]);
                     return g * g;
                   });
                   *v = beta2 * *v + rest2 * (sum / static_cast<float>(d));
                   const float root = std::sqrt(*v) * c.root_v + epsilon;
                   for (int j = 0; j < d; ++j) {
                     m[j] = beta1 * m[j] + rest1 * gradient(j, w[j]);
                     w[j] -= c.rate * m[j] / root;
                   }
                   return;
                 }
                 [[maybe_unused]] float* __restrict largest = v + d;  // AMSGRAD only
                 for (int j = 0; j < d; ++j) {
                   const float g = gradient(j, w[j]);
                   m[j] = beta1 * m[j] + rest1 * g;
                   v[j] = beta2 * v[j] + rest2 * (g * g);
                   if constexpr (kKind == Optimizer::AMSGRAD) {
                     largest[j] = std::max(largest[j], v[j]);
                     w[j] -= c.rate * m[j] / (std::sqrt(largest[j]) * c.root_v + epsilon);
                   } else if constexpr (kKind == Optimizer::ADAMW) {
                     w[j] -= c.rate * m[j] / (std::sqrt(v[j]) * c.root_v + epsilon) + decay * w[j];
                   } else {
                     w[j] -= c.rate * m[j] / (std::sqrt(v[j]) * c.root_v + epsilon);
                   }
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

std::unique_ptr<RowOptimizer> NewAdam(const OptimizerSettings& settings, Optimizer::Kind kind,
                                      Optimizer::StepCount count) {
  const bool by_table = count == Optimizer::TABLE;
  switch (kind) {
    case Optimizer::AMSGRAD:
      return std::make_unique<Adam<Optimizer::AMSGRAD>>(settings, by_table);
    case Optimizer::ADAMW:
      return std::make_unique<Adam<Optimizer::ADAMW>>(settings, by_table);
    case Optimizer::ROWWISE_ADAM:
      return std::make_unique<Adam<Optimizer::ROWWISE_ADAM>>(settings, by_table);
    default:
      return std::make_unique<Adam<Optimizer::ADAM>>(settings, by_table);
  }
}

}  // namespace tandem::optim
