#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "optim/kinds.h"
#include "optim/own_settings.h"

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

// A setting that the kind lacks is 0.
absl::Status CheckUnlessZero(absl::string_view name, double value) {
  return value == 0 ? absl::OkStatus() : CheckPositive(name, value);
}

absl::StatusOr<OptimizerSettings> Check(Optimizer config) {
  FillOwnSettings(&config);
  TANDEM_RETURN_IF_ERROR(CheckPositive("learning_rate", config.learning_rate()));
  TANDEM_RETURN_IF_ERROR(CheckFraction("momentum", config.momentum()));
  TANDEM_RETURN_IF_ERROR(CheckFraction("beta1", config.beta1()));
  TANDEM_RETURN_IF_ERROR(CheckFraction("beta2", config.beta2()));
  TANDEM_RETURN_IF_ERROR(CheckUnlessZero("epsilon", config.epsilon()));
  TANDEM_RETURN_IF_ERROR(CheckNotNegative("initial_accumulator", config.initial_accumulator()));
  TANDEM_RETURN_IF_ERROR(CheckNotNegative("weight_decay", config.weight_decay()));
  TANDEM_RETURN_IF_ERROR(CheckNotNegative("clip_norm", config.clip_norm()));
  TANDEM_RETURN_IF_ERROR(CheckNotNegative("l1", config.l1()));
  TANDEM_RETURN_IF_ERROR(CheckNotNegative("l2", config.l2()));
  TANDEM_RETURN_IF_ERROR(CheckUnlessZero("ftrl_beta", config.ftrl_beta()));
  OptimizerSettings settings;
  settings.learning_rate = static_cast<float>(config.learning_rate());
  settings.momentum = static_cast<float>(config.momentum());
  settings.beta1 = config.beta1();
  settings.beta2 = config.beta2();
  settings.epsilon = static_cast<float>(config.epsilon());
  settings.initial_accumulator = static_cast<float>(config.initial_accumulator());
  settings.l1 = static_cast<float>(config.l1());
  settings.l2 = static_cast<float>(config.l2());
  settings.ftrl_beta = static_cast<float>(config.ftrl_beta());
  settings.gradient.clip_norm = static_cast<float>(config.clip_norm());
  const bool decoupled = config.kind() == Optimizer::ADAMW || config.kind() == Optimizer::LION ||
                         config.kind() == Optimizer::MUON;
  (decoupled ? settings.decoupled_decay : settings.gradient.weight_decay) =
      static_cast<float>(config.weight_decay());
  return settings;
}

absl::StatusOr<std::unique_ptr<RowOptimizer>> MakeCatchUp(Optimizer::Kind kind,
                                                          const OptimizerSettings& settings) {
  if (kind != Optimizer::ADAM) {
    return absl::InvalidArgumentError("optimizer: catch_up is only for kind ADAM");
  }
  // Otherwise the moves of missed steps would grow, because v would decay faster than m m.
  if (settings.beta1 * settings.beta1 >= settings.beta2) {
    return OutOfRange(
        "beta1", settings.beta1,
        absl::StrCat("must be below the root of beta2 (", settings.beta2, ") with catch_up"));
  }
  return NewCatchUpAdam(settings);
}

absl::StatusOr<std::unique_ptr<RowOptimizer>> NewWithoutErrorFeedback(
    const Optimizer& config, const OptimizerSettings& settings,
    absl::Span<const MatrixPlace> matrices) {
  if (config.catch_up()) return MakeCatchUp(config.kind(), settings);
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
    case Optimizer::FTRL:
      return NewFtrl(settings);
    case Optimizer::RMSPROP:
      return NewRmsProp(settings);
    case Optimizer::LION:
      return NewLion(settings);
    case Optimizer::ADAM:
    case Optimizer::AMSGRAD:
    case Optimizer::ADAMW:
    case Optimizer::ROWWISE_ADAM:
      return NewAdam(settings, config.kind(), config.step_count());
    case Optimizer::MUON:
      return NewMuon(settings, matrices);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer: kind ", static_cast<int>(config.kind()), " is unknown"));
  }
}

}  // namespace

void RowOptimizer::CatchUp(int dim, int64_t, const float* weights, const float* slots, float* out,
                           float* out_slots) const {
  if (out != weights) std::copy_n(weights, dim, out);
  if (out_slots == nullptr || out_slots == slots) return;
  std::copy_n(slots, slots_per_row(dim), out_slots);
}

absl::StatusOr<std::unique_ptr<RowOptimizer>> NewRowOptimizer(
    const Optimizer& config, int program_slots, absl::Span<const MatrixPlace> matrices) {
  if (config.kind() == Optimizer::PROGRAM) return NewProgramOptimizer(program_slots);
  TANDEM_ASSIGN_OR_RETURN(const OptimizerSettings settings, Check(config));
  TANDEM_ASSIGN_OR_RETURN(auto optimizer, NewWithoutErrorFeedback(config, settings, matrices));
  if (config.error_feedback() == 0) return optimizer;
  return NewErrorFeedback(std::move(optimizer), config.error_feedback());
}

}  // namespace tandem::optim
