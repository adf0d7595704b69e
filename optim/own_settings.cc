#include "optim/own_settings.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tandem::optim {
namespace {

using Owner = OwnSetting::Owner;

constexpr Optimizer::Kind kKindsOfAdam[] = {Optimizer::ADAM, Optimizer::AMSGRAD, Optimizer::ADAMW,
                                            Optimizer::ROWWISE_ADAM};

constexpr Owner kMomentum[] = {{Optimizer::MOMENTUM, 0.9}, {Optimizer::MUON, 0.95}};
constexpr Owner kBeta1[] = {{Optimizer::ADAM, 0.9},  {Optimizer::AMSGRAD, 0.9},
                            {Optimizer::ADAMW, 0.9}, {Optimizer::ROWWISE_ADAM, 0.9},
                            {Optimizer::LION, 0.9},  {Optimizer::MUON, 0.9}};
constexpr Owner kBeta2[] = {{Optimizer::ADAM, 0.999},   {Optimizer::AMSGRAD, 0.999},
                            {Optimizer::ADAMW, 0.999},  {Optimizer::ROWWISE_ADAM, 0.999},
                            {Optimizer::RMSPROP, 0.99}, {Optimizer::LION, 0.99},
                            {Optimizer::MUON, 0.999}};
constexpr Owner kEpsilon[] = {{Optimizer::ADAGRAD, 1e-8}, {Optimizer::ROWWISE_ADAGRAD, 1e-8},
                              {Optimizer::ADAM, 1e-8},    {Optimizer::AMSGRAD, 1e-8},
                              {Optimizer::ADAMW, 1e-8},   {Optimizer::ROWWISE_ADAM, 1e-8},
                              {Optimizer::RMSPROP, 1e-8}, {Optimizer::MUON, 1e-8}};
constexpr Owner kInitialAccumulator[] = {
    {Optimizer::ADAGRAD, 0}, {Optimizer::ROWWISE_ADAGRAD, 0}, {Optimizer::FTRL, 0}};
constexpr Owner kL1[] = {{Optimizer::FTRL, 0}};
constexpr Owner kL2[] = {{Optimizer::FTRL, 0}};
constexpr Owner kFtrlBeta[] = {{Optimizer::FTRL, 1}};

constexpr OwnSetting kSettings[] = {
    {"momentum", &Optimizer::momentum, &Optimizer::set_momentum, kMomentum},
    {"beta1", &Optimizer::beta1, &Optimizer::set_beta1, kBeta1},
    {"beta2", &Optimizer::beta2, &Optimizer::set_beta2, kBeta2},
    {"epsilon", &Optimizer::epsilon, &Optimizer::set_epsilon, kEpsilon},
    {"initial_accumulator", &Optimizer::initial_accumulator, &Optimizer::set_initial_accumulator,
     kInitialAccumulator},
    {"l1", &Optimizer::l1, &Optimizer::set_l1, kL1},
    {"l2", &Optimizer::l2, &Optimizer::set_l2, kL2},
    {"ftrl_beta", &Optimizer::ftrl_beta, &Optimizer::set_ftrl_beta, kFtrlBeta},
};

}  // namespace

const Owner* OwnSetting::OwnerOf(Optimizer::Kind kind) const {
  const auto at = std::find_if(owners.begin(), owners.end(),
                               [&](const Owner& owner) { return owner.kind == kind; });
  return at == owners.end() ? nullptr : &*at;
}

std::string OwnSetting::OwnerNames() const {
  std::vector<Optimizer::Kind> kinds;
  for (const Owner& owner : owners) kinds.push_back(owner.kind);
  return Names(kinds);
}

absl::Span<const OwnSetting> OwnSettings() { return kSettings; }

absl::Span<const Optimizer::Kind> KindsOfAdam() { return kKindsOfAdam; }

bool IsKindOfAdam(Optimizer::Kind kind) {
  return std::count(std::begin(kKindsOfAdam), std::end(kKindsOfAdam), kind) > 0;
}

std::string Names(absl::Span<const Optimizer::Kind> kinds) {
  std::string names;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const char* const before = i == 0 ? "" : i + 1 == kinds.size() ? " and " : ", ";
    absl::StrAppend(&names, before, Optimizer::Kind_Name(kinds[i]));
  }
  return names;
}

void FillOwnSettings(Optimizer* optimizer) {
  for (const OwnSetting& setting : kSettings) {
    const Owner* const owner = setting.OwnerOf(optimizer->kind());
    if (owner == nullptr || (optimizer->*setting.get)() != 0) continue;
    if (owner->default_value != 0) (optimizer->*setting.set)(owner->default_value);
  }
}

}  // namespace tandem::optim
