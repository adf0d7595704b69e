#include "job/catch_up_check.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "job/job.h"
#include "job/refuse.h"
#include "optim/schedule.h"
#include "policies/policy.h"

namespace tandem::job {
namespace {

absl::Status CheckSettings(const std::string& path, const Optimizer& optimizer) {
  if (optimizer.weight_decay() != 0) {
    return Refuse(path,
                  "not with weight_decay, which only rows in a step get; leave one of them out");
  }
  if (optimizer.beta1() * optimizer.beta1() >= optimizer.beta2()) {
    return Refuse(path, "beta1 is ", optimizer.beta1(), " and beta2 ", optimizer.beta2(),
                  ", so missed steps would grow; beta1 must be below the root of beta2");
  }
  const auto schedule = optim::Schedule::New(optimizer.schedule());
  if (schedule.ok() && *schedule == nullptr) return absl::OkStatus();
  return Refuse(path,
                "not with a schedule, because no row knows the rates of the steps that it missed; "
                "leave one of them out (a table without a kind of its own has the schedule of "
                "dense.optimizer)");
}

}  // namespace

absl::Status CheckCatchUp(const std::string& path, const Table& table, const Job& job) {
  if (!table.optimizer().catch_up()) return absl::OkStatus();
  const std::string field = path + ".optimizer.catch_up";
  TANDEM_RETURN_IF_ERROR(CheckSettings(field, table.optimizer()));
  if (table.frozen()) {
    return Refuse(field, "not for a frozen table, whose rows never move; leave one of them out");
  }
  const bool admits = table.admission().kind() > Admission::NONE;
  if (admits || table.eviction().kind() > Eviction::NONE) {
    return Refuse(field, "not with ", admits ? "admission" : "eviction",
                  ", because a row that begins ", admits ? "late" : "anew",
                  " has lost gradients of a dense Adam; leave one of them out");
  }
  TANDEM_ASSIGN_OR_RETURN(const auto policy,
                          policies::NewUpdatePolicy(table.policy(), job.cluster().workers()));
  if (policy->properties().lockstep) return absl::OkStatus();
  return Refuse(field, "not with policy ", PolicyName(table.policy()),
                ", under which workers do not take each step together; say BSP or FIXED_DELAY");
}

}  // namespace tandem::job
