// The optimizers that NewRowOptimizer chooses from, with one .cc file each. Internal to optim/.
#ifndef TANDEM_OPTIM_KINDS_H_
#define TANDEM_OPTIM_KINDS_H_

#include <memory>

#include "optim/optimizer.h"
#include "optim/row_update.h"

namespace tandem::optim {

// The settings of a checked Optimizer message, with defaults filled in and in the precision of the
// arithmetic.
struct OptimizerSettings {
  float learning_rate = 0;
  float momentum = 0;
  double beta1 = 0;  // double, because powers of them are taken
  double beta2 = 0;
  float epsilon = 0;
  float initial_accumulator = 0;
  float l1 = 0, l2 = 0, ftrl_beta = 0;
  float decoupled_decay = 0;  // weight_decay of the kinds that do not add it to the gradient
  GradientRule gradient;
};

std::unique_ptr<RowOptimizer> NewSgd(const OptimizerSettings& settings);
std::unique_ptr<RowOptimizer> NewMomentum(const OptimizerSettings& settings);
std::unique_ptr<RowOptimizer> NewAdagrad(const OptimizerSettings& settings);
std::unique_ptr<RowOptimizer> NewRowwiseAdagrad(const OptimizerSettings& settings);
std::unique_ptr<RowOptimizer> NewFtrl(const OptimizerSettings& settings);
std::unique_ptr<RowOptimizer> NewRmsProp(const OptimizerSettings& settings);
std::unique_ptr<RowOptimizer> NewLion(const OptimizerSettings& settings);
// The kinds of Adam.
std::unique_ptr<RowOptimizer> NewAdam(const OptimizerSettings& settings, Optimizer::Kind kind,
                                      Optimizer::StepCount count);
// ADAM with Optimizer::catch_up. Requires: beta1 below the root of beta2.
std::unique_ptr<RowOptimizer> NewCatchUpAdam(const OptimizerSettings& settings);
std::unique_ptr<RowOptimizer> NewMuon(const OptimizerSettings& settings,
                                      absl::Span<const MatrixPlace> matrices);
// `optimizer` with Optimizer::error_feedback.
std::unique_ptr<RowOptimizer> NewErrorFeedback(std::unique_ptr<RowOptimizer> optimizer, int delay);
// Stands for an optimizer that a program applies itself. It has a name and `slots` slots for each
// row. Apply is never called.
std::unique_ptr<RowOptimizer> NewProgramOptimizer(int slots);

}  // namespace tandem::optim

#endif  // TANDEM_OPTIM_KINDS_H_
