// Error feedback under a fixed delay (Zmushko, Petrov, Abdullaev, Khrushchev, Horváth 2026,
// "One-step gradient delay is not a barrier for large-scale asynchronous pipeline parallel LLM
// pretraining"), around any optimizer but FTRL. Each update u(c) is applied `delay` steps late. In
// step c the row got the older update u(c - delay) instead. When u(c) is computed, this error is
// known, and added:
//   w -= u(c) + (u(c) - u(c - delay)),   u = 0 before the first step
// The paper has a delay of one. With any delay the row has moved by all updates u(0) ... u(c), and
// by the last `delay` of them a second time, in place of those in flight. When none is in flight
// any more (OptimizerStep::settles), that is taken back. Steps without samples are no updates here:
// no optimizer sees them.
// Slots: the last updates u[delay, dim] in a ring, the slots of the optimizer, and the index of the
// oldest update in the ring.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "optim/kinds.h"

namespace tandem::optim {
namespace {

class ErrorFeedback final : public RowOptimizer {
 public:
  ErrorFeedback(std::unique_ptr<RowOptimizer> optimizer, int delay)
      : optimizer_(std::move(optimizer)), delay_(delay) {}

  std::string name() const override {
    return absl::StrCat(optimizer_->name(), "(error_feedback ", delay_, ")");
  }
  int slots_per_row(int dim) const override {
    return delay_ * dim + optimizer_->slots_per_row(dim) + 1;
  }
  int numbers_per_row() const override { return optimizer_->numbers_per_row() + 1; }
  void InitSlots(int dim, absl::Span<float> slots) const override {
    std::fill(slots.begin(), slots.end(), 0.0f);
    optimizer_->InitSlots(dim, slots.subspan(static_cast<size_t>(delay_ * dim),
                                             static_cast<size_t>(optimizer_->slots_per_row(dim))));
  }

  void Apply(int dim, float scale, const OptimizerStep& step, absl::Span<const float> gradients,
             absl::Span<float* const> rows, absl::Span<float* const> slots) const override {
    const auto length = static_cast<size_t>(dim);
    std::vector<float> before(length);
    for (size_t i = 0; i < rows.size(); ++i) {
      float* const w = rows[i];
      float* const ring = slots[i];
      if (step.settles) {
        Settle(dim, ring, w);
        continue;
      }
      float* const inner = ring + delay_ * dim;
      std::copy_n(w, length, before.data());
      optimizer_->Apply(dim, scale, step, gradients.subspan(i * length, length), {&w, 1},
                        {&inner, 1});
      float* const oldest = ring + slots_per_row(dim) - 1;
      const int index = RingIndex(*oldest);
      AddErrorAndStore(dim, before.data(), ring + index * dim, w);
      *oldest = static_cast<float>((index + 1) % delay_);
    }
  }
  bool settles() const override { return true; }

 private:
  // The index of the oldest update; 0 if a file has a number that is none.
  int RingIndex(float oldest) const {
    return oldest > 0 && oldest < static_cast<float>(delay_) ? static_cast<int>(oldest) : 0;
  }

  // `u`: the update of `delay` steps ago, replaced by the current one.
  static void AddErrorAndStore(int dim, const float* __restrict before, float* __restrict u,
                               float* __restrict w) {
    for (int j = 0; j < dim; ++j) {
      const float current = before[j] - w[j];
      w[j] -= current - u[j];
      u[j] = current;
    }
  }

  void Settle(int dim, float* __restrict ring, float* __restrict w) const {
    for (int k = 0; k < delay_; ++k) {
      for (int j = 0; j < dim; ++j) w[j] += ring[k * dim + j];
    }
    std::fill_n(ring, delay_ * dim, 0.0f);
  }

  const std::unique_ptr<RowOptimizer> optimizer_;
  const int delay_;
};

}  // namespace

std::unique_ptr<RowOptimizer> NewErrorFeedback(std::unique_ptr<RowOptimizer> optimizer, int delay) {
  return std::make_unique<ErrorFeedback>(std::move(optimizer), delay);
}

}  // namespace tandem::optim
