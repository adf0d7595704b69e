// The settings of an optimizer that only some kinds have, with their defaults. Jobs are filled and
// checked by this table, and NewRowOptimizer fills what a caller left out.
#ifndef TANDEM_OPTIM_OWN_SETTINGS_H_
#define TANDEM_OPTIM_OWN_SETTINGS_H_

#include <string>

#include "absl/types/span.h"
#include "proto/job.pb.h"

namespace tandem::optim {

// One field of the message Optimizer.
struct OwnSetting {
  struct Owner {
    Optimizer::Kind kind;
    double default_value;
  };

  const char* name;
  double (Optimizer::*get)() const;
  void (Optimizer::*set)(double);
  absl::Span<const Owner> owners;  // the kinds that have the setting

  const Owner* OwnerOf(Optimizer::Kind kind) const;  // null: the kind lacks the setting
  std::string OwnerNames() const;                    // such as "MOMENTUM and MUON"
};

absl::Span<const OwnSetting> OwnSettings();

// The kinds of Adam, which may count steps by table or by row (`step_count`).
absl::Span<const Optimizer::Kind> KindsOfAdam();
bool IsKindOfAdam(Optimizer::Kind kind);
std::string Names(absl::Span<const Optimizer::Kind> kinds);  // such as "ADAM, AMSGRAD and ADAMW"

// Sets each setting of the kind that is 0, and so not set, to its default.
void FillOwnSettings(Optimizer* optimizer);

}  // namespace tandem::optim

#endif  // TANDEM_OPTIM_OWN_SETTINGS_H_
