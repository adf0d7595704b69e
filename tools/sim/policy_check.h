// Checks that a policy keeps the promises of its Properties. Random schedules of a few workers
// drive one range, with the order of updates of a server (policies/order/update_order.h). The
// command `tandem policy check` uses it for plug-ins.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_POLICY_CHECK_H_
#define TANDEM_TOOLS_SIM_POLICY_CHECK_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "policies/policy.h"

namespace tandem::sim {

struct PolicyCheckReport {
  int64_t schedules = 0, updates = 0;
  int64_t dropped = 0;  // updates that came too late
};

// `make(workers)` makes the policy. Numbers of workers that it refuses are left out. Schedule i has
// the seed `seed` + i. FAILED_PRECONDITION: the promise that was broken, with the function, the
// worker, the step and the seed of the schedule. Else the error of `make`, if it refuses all.
absl::StatusOr<PolicyCheckReport> CheckPolicyPromises(
    const std::function<absl::StatusOr<std::unique_ptr<policies::UpdatePolicy>>(int workers)>& make,
    int64_t schedules, uint64_t seed);

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_POLICY_CHECK_H_
