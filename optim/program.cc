// The stand-in for an optimizer that a program applies itself, so that plans and checkpoints have a
// name for it. A row of a table that programs write may have slots for the program's own use.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "optim/kinds.h"

namespace tandem::optim {
namespace {

class ProgramOptimizer final : public RowOptimizer {
 public:
  explicit ProgramOptimizer(int slots) : slots_(slots) {}
  std::string name() const override {
    return slots_ == 0 ? "program" : absl::StrCat("program(", slots_, ")");
  }
  int slots_per_row(int) const override { return slots_; }
  void InitSlots(int, absl::Span<float> slots) const override {
    std::fill(slots.begin(), slots.end(), 0.0f);
  }
  void Apply(int, float, const OptimizerStep&, absl::Span<const float>, absl::Span<float* const>,
             absl::Span<float* const>) const override {
    TANDEM_CHECK(false);  // programs apply dense gradients; such tables get none
  }

 private:
  const int slots_;
};

}  // namespace

std::unique_ptr<RowOptimizer> NewProgramOptimizer(int slots) {
  return std::make_unique<ProgramOptimizer>(slots);
}

}  // namespace tandem::optim
