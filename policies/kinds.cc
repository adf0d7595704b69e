#include "policies/kinds.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "policies/plugin.h"

namespace tandem::policies {
namespace {

constexpr PolicyKind kKinds[] = {
    {Policy::BSP, "", NewBsp},
    {Policy::SSP, "bound async_scale", NewSsp},
    {Policy::ASP, "async_scale", NewAsp},
    {Policy::FIXED_DELAY, "delay", NewFixedDelay},
    {Policy::BACKUP_WORKERS, "backups", NewBackupWorkers},
    {Policy::STALENESS_AWARE, "async_scale", NewStalenessAware},
    {Policy::K_BATCH_ASYNC, "batches", NewKBatchAsync},
    {Policy::GBA, "batches token_gap", NewGba},
    {Policy::DC_ASGD, "compensation mean_square_decay async_scale", NewDcAsgd},
    {Policy::DSSP, "bound upper_bound async_scale", NewDssp},
    {Policy::SYNC_SWITCH, "switch_step async_scale", NewSyncSwitch},
    {Policy::ESSP, "bound cache_rows async_scale", NewEssp},
    {Policy::KEY_VALUE, "", NewStore},
    {Policy::COSINE_GATE, "age_decay age_cutoff async_scale", NewCosineGate},
    {Policy::RINGMASTER, "max_delay async_scale", NewRingmaster},
    {Policy::RINGLEADER, "", NewRingleader},
    {Policy::DELAY_ADAPTIVE, "full_rate_delay async_scale", NewDelayAdaptive},
    {Policy::RENNALA, "batches", NewRennala},
    {Policy::ORDERED_MOMENTUM, "async_scale", NewOrderedMomentum},
    {Policy::PLUGIN, "library options", nullptr},
};

// A field that some kinds take and others refuse.
struct KindField {
  const char* name;
  const char* lacks;  // ends the message to a policy that needs the field; nullptr: none needs it
};

constexpr KindField kFields[] = {
    {"bound",
     "a bound; say how many steps a worker may be ahead of the slowest one, such as bound: 4"},
    {"delay",
     "a delay; say how many steps lie between a gradient and its update, such as delay: 2"},
    {"backups", "backups; say how many of a step's updates are not waited for, such as backups: 1"},
    {"batches", "batches; say how many updates make one step, such as batches: 4"},
    {"token_gap", "a token_gap"},
    {"compensation",
     "a compensation; say lambda of the paper, which weighs the change of a row since it was "
     "read, such as compensation: 0.04"},
    {"mean_square_decay", nullptr},
    {"upper_bound",
     "an upper_bound; say how many steps a worker may be ahead at most, such as upper_bound: 8"},
    {"switch_step",
     "a switch_step; say how many steps are taken together before nobody waits any more, such as "
     "switch_step: 1000"},
    {"age_decay",
     "an age_decay; say by which share a gradient fades with each update that comes before it, "
     "such as age_decay: 0.05, or 0"},
    {"age_cutoff",
     "an age_cutoff; say how many updates later a gradient counts nothing, such as age_cutoff: 64"},
    {"cache_rows", nullptr},
    {"max_delay", "a max_delay"},
    {"full_rate_delay", "a full_rate_delay"},
    {"library",
     "a library; say which shared library has the policy, such as library: \"libmine.so\""},
    {"options", nullptr},
};

bool Takes(const PolicyKind& kind, absl::string_view field) {
  const std::vector<absl::string_view> fields = absl::StrSplit(kind.fields, ' ');
  return std::find(fields.begin(), fields.end(), field) != fields.end();
}

// The kinds that take the field, as "SSP, ASP and STALENESS_AWARE". `before_last` stands before the
// last one.
std::string KindsWith(absl::string_view field, absl::string_view before_last) {
  std::vector<std::string> names;
  for (const PolicyKind& kind : kKinds) {
    if (Takes(kind, field)) names.push_back(Policy::Kind_Name(kind.kind));
  }
  const std::string last = names.back();
  names.pop_back();
  return names.empty() ? last : absl::StrCat(absl::StrJoin(names, ", "), before_last, last);
}

bool Has(const Policy& policy, const KindField& field) {
  return policy.GetReflection()->HasField(policy,
                                          Policy::descriptor()->FindFieldByName(field.name));
}

template <typename... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// The row of the policy's kind. Refuses a policy that lacks a field which the kind needs.
absl::StatusOr<const PolicyKind*> FindKind(const std::string& path, const Policy& policy) {
  const auto* const row = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& kind) {
    return kind.kind == policy.kind();
  });
  if (row == std::end(kKinds)) return Refuse(path, ".kind: ", policy.kind(), " is not a policy");
  for (const KindField& field : kFields) {
    if (field.lacks == nullptr || !Takes(*row, field.name) || Has(policy, field)) continue;
    return Refuse(path, ": ", Policy::Kind_Name(row->kind), " without ", field.lacks);
  }
  return row;
}

}  // namespace

absl::Span<const PolicyKind> PolicyKinds() { return kKinds; }

absl::Status CheckPolicyFields(const std::string& path, const Policy& policy) {
  TANDEM_ASSIGN_OR_RETURN(const PolicyKind* const row, FindKind(path, policy));
  const std::string& kind = Policy::Kind_Name(row->kind);
  for (const KindField& field : kFields) {
    if (Takes(*row, field.name) || !Has(policy, field)) continue;
    const std::string one_of = KindsWith(field.name, " or ");
    return Refuse(path, ".", field.name, ": only for ", KindsWith(field.name, " and "),
                  ", and the policy is ", kind, "; say kind: ", one_of,
                  absl::StrContains(one_of, " ") ? "," : "", " or drop the ", field.name);
  }
  if (policy.async_scale() != Policy::INVERSE_WORKERS || Takes(*row, "async_scale")) {
    return absl::OkStatus();
  }
  return Refuse(path, ".async_scale: INVERSE_WORKERS is for ", KindsWith("async_scale", " and "),
                "; ", kind, " already takes a mean of several updates");
}

float AsyncScale(const Policy& config, int workers) {
  return config.async_scale() == Policy::INVERSE_WORKERS ? 1.0f / static_cast<float>(workers)
                                                         : 1.0f;
}

absl::StatusOr<std::unique_ptr<UpdatePolicy>> NewUpdatePolicy(const Policy& config, int workers) {
  TANDEM_ASSIGN_OR_RETURN(const PolicyKind* const row, FindKind("policy", config));
  if (row->kind == Policy::PLUGIN) return NewPlugin(config, workers);
  return row->make(config, workers);
}

}  // namespace tandem::policies
