// Adam (Kingma, Ba 2015) on rows that make up for the steps that they have missed. A row then has
// the weights that torch's dense Adam gives it, with gradient 0 in each step without the row:
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g g
//   w -= rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
// t is the number of the table's step. A row that has missed k steps has beta1^k m and beta2^k v,
// so each missed step is a function of m and v as the last update has left them:
//   w -= rate beta1^k / (1 - beta1^t) * m / (sqrt(beta2^k / (1 - beta2^t)) sqrt(v) + epsilon)
// The k-th missed step moves w by about (beta1 / sqrt(beta2))^k of the move of the last update.
// Steps for which this factor is below 2^-24 are left out, which bounds the cost of a row: 158
// steps move w with the default betas.
// Slots: m[dim], v[dim], and t of the last update (0: none), a uint32 with the bytes of a float.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "optim/kinds.h"

namespace tandem::optim {
namespace {

// The step of the last update. The number may be read as a float only by its bytes.
int64_t LastUpdate(const float* slot) {
  uint32_t last;
  std::memcpy(&last, slot, sizeof last);
  return last;
}

void SetLastUpdate(int64_t step, float* slot) {
  const auto last = static_cast<uint32_t>(step);
  std::memcpy(slot, &last, sizeof last);
}

// The number of missed steps that move a row.
int64_t MovingSteps(double beta1, double beta2) {
  return static_cast<int64_t>(-24 / std::log2(beta1 / std::sqrt(beta2)));
}

class CatchUpAdam final : public RowOptimizer {
 public:
  explicit CatchUpAdam(const OptimizerSettings& settings)
      : settings_(settings), moving_(MovingSteps(settings.beta1, settings.beta2)) {}

  std::string name() const override { return "adam(catch_up)"; }
  int slots_per_row(int dim) const override { return 2 * dim + 1; }
  int numbers_per_row() const override { return 1; }
  void InitSlots(int, absl::Span<float> slots) const override {
    std::fill(slots.begin(), slots.end(), 0.0f);
  }

  void Apply(int dim, float scale, const OptimizerStep& step, absl::Span<const float> gradients,
             absl::Span<float* const> rows, absl::Span<float* const> slots) const override {
    TANDEM_CHECK(step.number >= 1);
    const auto t = static_cast<double>(step.number);
    const float rate = step.rate * static_cast<float>(settings_.learning_rate /
                                                      (1 - std::pow(settings_.beta1, t)));
    const auto root_v = static_cast<float>(1 / std::sqrt(1 - std::pow(settings_.beta2, t)));
    const auto beta1 = static_cast<float>(settings_.beta1);
    const auto beta2 = static_cast<float>(settings_.beta2);
    const auto rest1 = static_cast<float>(1 - settings_.beta1);
    const auto rest2 = static_cast<float>(1 - settings_.beta2);
    const float epsilon = settings_.epsilon;
    UpdateRows(settings_.gradient, dim, scale, gradients, rows, slots,
               [=, this, number = step.number](auto d, float* __restrict w, float* __restrict m,
                                               auto gradient) {
                 CatchUpRow(d, number - 1, w, m, w, m);
                 float* __restrict v = m + d;
                 for (int j = 0; j < d; ++j) {
                   const float g = gradient(j, w[j]);
                   m[j] = beta1 * m[j] + rest1 * g;
                   v[j] = beta2 * v[j] + rest2 * (g * g);
                   w[j] -= rate * m[j] / (std::sqrt(v[j]) * root_v + epsilon);
                 }
                 SetLastUpdate(number, m + 2 * d);
               });
  }

  bool catches_up() const override { return true; }
  void CatchUp(int dim, int64_t now, const float* weights, const float* slots, float* out,
               float* out_slots) const override {
    DispatchDim(dim, [&](auto d) { CatchUpRow(d, now, weights, slots, out, out_slots); });
  }

 private:
  static constexpr int kLanes = 8;
  using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

  // The factors of a missed step.
  struct Factors {
    float rate;    // of m
    float root_v;  // of sqrt(v)
  };

  template <typename Dim>
  void CatchUpRow(Dim d, int64_t now, const float* weights, const float* slots, float* out,
                  float* out_slots) const {
    if (out != weights) std::copy_n(weights, static_cast<size_t>(d), out);
    const int64_t last = LastUpdate(slots + 2 * d);
    const int64_t missed = last == 0 ? 0 : std::max<int64_t>(now - last, 0);
    if (missed > 0) Move(d, last, std::min(missed, moving_), slots, out);
    if (out_slots == nullptr) return;
    if (out_slots != slots) std::copy_n(slots, static_cast<size_t>(2 * d + 1), out_slots);
    if (missed == 0) return;
    const auto k = static_cast<double>(missed);
    const auto decay1 = static_cast<float>(std::pow(settings_.beta1, k));
    const auto decay2 = static_cast<float>(std::pow(settings_.beta2, k));
    for (int j = 0; j < d; ++j) out_slots[j] *= decay1;
    for (int j = 0; j < d; ++j) out_slots[d + j] *= decay2;
    SetLastUpdate(now, out_slots + 2 * d);
  }

  // Moves w[d] by the `steps` steps that follow `last`. Computes the factors of some steps at a
  // time, because all elements need them.
  template <typename Dim>
  void Move(Dim d, int64_t last, int64_t steps, const float* slots, float* w) const {
    constexpr int64_t kSteps = 64;
    const double beta1 = settings_.beta1, beta2 = settings_.beta2;
    double power1 = std::pow(beta1, static_cast<double>(last));
    double power2 = std::pow(beta2, static_cast<double>(last));
    double decay1 = settings_.learning_rate, decay2 = 1;
    Factors factors[kSteps];
    while (steps > 0) {
      const auto count = static_cast<int>(std::min(steps, kSteps));
      for (int k = 0; k < count; ++k) {
        power1 *= beta1;
        power2 *= beta2;
        decay1 *= beta1;
        decay2 *= beta2;
        factors[k].rate = static_cast<float>(decay1 / (1 - power1));
        factors[k].root_v = static_cast<float>(std::sqrt(decay2 / (1 - power2)));
      }
      int j = 0;
      for (; j + kLanes <= d; j += kLanes) {
        MoveLanes(factors, count, kLanes, slots + j, slots + d + j, w + j);
      }
      if (j < d) MoveLanes(factors, count, d - j, slots + j, slots + d + j, w + j);
      steps -= count;
    }
  }

  // Moves the first `lanes` elements of w.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void MoveLanes(const Factors* factors, int count, int lanes,
                                              const float* m, const float* v, float* w) const {
    const size_t bytes = static_cast<size_t>(lanes) * sizeof(float);
    Lanes weight = {}, momentum = {}, root = {};
    std::memcpy(&weight, w, bytes);
    std::memcpy(&momentum, m, bytes);
    for (int l = 0; l < lanes; ++l) root[l] = std::sqrt(v[l]);
    for (int k = 0; k < count; ++k) {
      weight -= factors[k].rate * momentum / (factors[k].root_v * root + settings_.epsilon);
    }
    std::memcpy(w, &weight, bytes);
  }

  const OptimizerSettings settings_;
  const int64_t moving_;
};

}  // namespace

std::unique_ptr<RowOptimizer> NewCatchUpAdam(const OptimizerSettings& settings) {
  return std::make_unique<CatchUpAdam>(settings);
}

}  // namespace tandem::optim
