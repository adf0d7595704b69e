// Stands for an optimizer that a program applies itself, so that plans and saves have a name for it.
#include "base/check.h"
#include "optim/kinds.h"

namespace tandem::optim {
namespace {

class ProgramOptimizer final : public RowOptimizer {
 public:
  std::string name() const override { return "program"; }
  int slots_per_row(int) const override { return 0; }
  void InitSlots(int, absl::Span<float>) const override {}
  void Apply(int, float, absl::Span<const float>, absl::Span<float* const>,
             absl::Span<float* const>) const override {
    TANDEM_CHECK(
        false);  // dense parameters hand the gradient to the program, jobs have no such rows
  }
};

}  // namespace

std::unique_ptr<RowOptimizer> NewProgramOptimizer() { return std::make_unique<ProgramOptimizer>(); }

}  // namespace tandem::optim
