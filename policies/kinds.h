// The table of update policies, one row for each kind. The row says which fields of Policy the kind
// takes and how to construct the policy.
#ifndef TANDEM_POLICIES_KINDS_H_
#define TANDEM_POLICIES_KINDS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "policies/policy.h"

namespace tandem::policies {

struct PolicyKind {
  Policy::Kind kind;
  absl::string_view fields;  // of Policy that not all kinds take, separated by spaces
  // Constructs the policy. The caller has checked the fields. Null: NewPlugin does.
  std::unique_ptr<UpdatePolicy> (*make)(const Policy& config, int workers);
};

absl::Span<const PolicyKind> PolicyKinds();

// Refuses fields that the kind of the policy lacks or does not take, as "path.bound: why".
absl::Status CheckPolicyFields(const std::string& path, const Policy& policy);

// One file for each constructor; the header comment of that file describes the policy.
std::unique_ptr<UpdatePolicy> NewBsp(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewFixedDelay(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewAsp(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewSsp(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewBackupWorkers(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewStalenessAware(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewKBatchAsync(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewGba(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewDcAsgd(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewDssp(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewSyncSwitch(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewEssp(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewCosineGate(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewRingmaster(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewRingleader(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewDelayAdaptive(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewRennala(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewOrderedMomentum(const Policy& config, int workers);
std::unique_ptr<UpdatePolicy> NewStore(const Policy& config, int workers);

// The factor for each update that is applied by itself: 1 or 1/workers (Policy.async_scale).
float AsyncScale(const Policy& config, int workers);

}  // namespace tandem::policies

#endif  // TANDEM_POLICIES_KINDS_H_
