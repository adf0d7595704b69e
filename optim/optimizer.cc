#include "optim/optimizer.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "optim/kinds.h"

namespace tandem::optim {
namespace {

absl::Status OutOfRange(absl::string_view name, double value, absl::string_view want) {
  return absl::InvalidArgumentError(absl::StrCat("optimizer: ", name, " is ", value, ", ", want));
}

// The value must be above zero in float, too. A rate that rounds to 0 would train nothing without
// an error.
absl::Status CheckPositive(absl::string_view name, double value) {
  const float rounded = static_cast<float>(value);
  if (rounded > 0 && std::isfinite(rounded)) return absl::OkStatus();
  return OutOfRange(name, value, "must be above 0 and finite in 32 bits");
}

absl::Status CheckNotNegative(absl::string_view name, double value) {
  if (value >= 0 && std::isfinite(static_cast<float>(value))) return absl::OkStatus();
  return OutOfRange(name, value, "must be 0 or above and finite in 32 bits");
}

absl::Status CheckFraction(absl::string_view name, double value) {
  if (value >= 0 && static_cast<float>(value) < 1) return absl::OkStatus();
  return OutOfRange(name, value, "must be at least 0 and below 1 in 32 bits");
}

double OrDefault(double value, double otherwise) { return value == 0 ? otherwise : value; }

absl::StatusOr<OptimizerSettings> Check(const Optimizer& config) {
  const double momentum = OrDefault(config.momentum(), 0.9);
  const double beta1 = OrDefault(config.beta1(), 0.9);
  const double beta2 = OrDefault(config.beta2(), 0.999);
  const double epsilon = OrDefault(config.epsilon(), 1e-8);
  TANDEM_RETURN_IF_ERROR(CheckPositive("learning_rate", config.learning_rate()));
  TANDEM_RETURN_IF_ERROR(CheckFraction("momentum", momentum));
  TANDEM_RETURN_IF_ERROR(CheckFraction("beta1", beta1));
  TANDEM_RETURN_IF_ERROR(CheckFraction("beta2", beta2));
  TANDEM_RETURN_IF_ERROR(CheckPositive("epsilon", epsilon));
  TANDEM_RETURN_IF_ERROR(CheckNotNegative("initial_accumulator", config.initial_accumulator()));
  TANDEM_RETURN_IF_ERROR(CheckNotNegative("weight_decay", config.weight_decay()));
  TANDEM_RETURN_IF_ERROR(CheckNotNegative("clip_norm", config.clip_norm()));
  OptimizerSettings settings;
  settings.learning_rate = static_cast<float>(config.learning_rate());
  settings.momentum = static_cast<float>(momentum);
  settings.beta1 = beta1;
  settings.beta2 = beta2;
  settings.epsilon = static_cast<float>(epsilon);
  settings.initial_accumulator = static_cast<float>(config.initial_accumulator());
  settings.gradient.clip_norm = static_cast<float>(config.clip_norm());
  settings.gradient.weight_decay = static_cast<float>(config.weight_decay());
  return settings;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowOptimizer>> NewRowOptimizer(const Optimizer& config,
                                                              int program_slots) {
  if (config.kind() == Optimizer::PROGRAM) return NewProgramOptimizer(program_slots);
  TANDEM_ASSIGN_OR_RETURN(const OptimizerSettings settings, Check(config));
  switch (config.kind()) {
    case Optimizer::OPTIMIZER_UNSPECIFIED:
    case Optimizer::SGD:
      return NewSgd(settings);
    case Optimizer::MOMENTUM:
      return NewMomentum(settings);
    case Optimizer::ADAGRAD:
      return NewAdagrad(settings);
    case Optimizer::ROWWISE_ADAGRAD:
      return NewRowwiseAdagrad(settings);
    case Optimizer::ADAM:
      return NewAdam(settings, config.step_count());
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer: kind ", static_cast<int>(config.kind()), " is unknown"));
  }
}

}  // namespace tandem::optim
