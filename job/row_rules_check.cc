#include "job/row_rules_check.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "job/refuse.h"

namespace tandem::job {
namespace {

// Refuses a field of another kind, and a kind without its field. `set`: the field is not 0.
absl::Status CheckOwnField(const std::string& path, bool set, bool own, absl::string_view kinds,
                           const std::string& kind, absl::string_view example) {
  if (set == own) return absl::OkStatus();
  return set ? Refuse(path, "only for ", kinds, ", and the kind is ", kind)
             : Refuse(path, "not set; ", kinds, " needs it, such as ", example);
}

absl::Status CheckAdmission(const std::string& path, const Admission& admission, bool evicts) {
  const std::string kind = Admission::Kind_Name(admission.kind());
  const bool count = admission.kind() == Admission::COUNT;
  TANDEM_RETURN_IF_ERROR(CheckOwnField(path + ".threshold", admission.threshold() != 0, count,
                                       "COUNT", kind, "threshold: 2"));
  TANDEM_RETURN_IF_ERROR(CheckOwnField(path + ".probability", admission.probability() != 0,
                                       admission.kind() == Admission::PROBABILITY, "PROBABILITY",
                                       kind, "probability: 0.1"));
  if (admission.within_versions() != 0 && !count) {
    return Refuse(path + ".within_versions", "only for COUNT, and the kind is ", kind);
  }
  if (admission.unadmitted() == Admission::ZERO && admission.kind() == Admission::NONE && !evicts) {
    return Refuse(path + ".unadmitted",
                  "ZERO is for ids that stay without a row, but the table has no kind of "
                  "admission or eviction; set one, or leave out unadmitted");
  }
  return absl::OkStatus();
}

absl::Status CheckEviction(const std::string& path, const Eviction& eviction, const Job& job) {
  const std::string kind = Eviction::Kind_Name(eviction.kind());
  TANDEM_RETURN_IF_ERROR(CheckOwnField(path + ".versions", eviction.versions() != 0,
                                       eviction.kind() == Eviction::AGE, "AGE", kind,
                                       "versions: 10000"));
  TANDEM_RETURN_IF_ERROR(CheckOwnField(path + ".max_rows", eviction.max_rows() != 0,
                                       eviction.kind() == Eviction::LRU, "LRU", kind,
                                       "max_rows: 1000000"));
  const bool budget = eviction.kind() == Eviction::AT_BUDGET;
  if (job.reproducible() && (budget || eviction.kind() == Eviction::LRU)) {
    return Refuse(path + ".kind", kind,
                  " chooses among the rows of a key range, and ranges depend on the number of "
                  "servers, so the job cannot be reproducible; use AGE, or drop reproducible");
  }
  if (budget && job.staleness().record_order()) {
    return Refuse(path + ".kind", kind,
                  " depends on the memory of a server, which the recorded order of updates does "
                  "not contain, so the run could not be replayed; use LRU or AGE, or drop "
                  "staleness.record_order");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRowRules(const std::string& path, const Table& table, const Job& job) {
  const bool admits = table.admission().kind() > Admission::NONE;
  const bool evicts = table.eviction().kind() > Eviction::NONE;
  TANDEM_RETURN_IF_ERROR(CheckAdmission(path + ".admission", table.admission(), evicts));
  TANDEM_RETURN_IF_ERROR(CheckEviction(path + ".eviction", table.eviction(), job));
  if (!admits && !evicts) return absl::OkStatus();
  const std::string rule = absl::StrCat(path, admits ? ".admission" : ".eviction");
  if (table.frozen()) {
    return Refuse(rule,
                  "not for a frozen table, whose gradients are dropped; leave out frozen or this "
                  "rule");
  }
  if (table.placement() != Table::SERVERS) {
    return Refuse(rule, "only for rows on servers, and the placement is ",
                  Table::Placement_Name(table.placement()), "; say SERVERS, or leave it out");
  }
  if (table.policy().mean_square_decay() > 0) {
    return Refuse(rule,
                  "not under DC_ASGD with mean_square_decay, which keeps a mean square for each "
                  "row outside the table; drop mean_square_decay, or leave it out");
  }
  return absl::OkStatus();
}

std::vector<std::string> WarnOfRowRules(const ResolvedJob& plan) {
  constexpr int64_t kFewRows = 50;  // rows of a range; fewer are all in its eviction sample
  std::vector<std::string> lines;
  for (const TablePlan& table : plan.tables) {
    const int64_t rows = table.eviction.max_rows();
    const int64_t ranges = int64_t{plan.HoldersOf(table).count} * plan.shards_per_server() *
                           plan.job.cluster().ranges_per_shard();
    if (table.eviction.kind() != Eviction::LRU || rows >= kFewRows * ranges) continue;
    lines.push_back(
        absl::StrCat("table ", table.name, ": eviction.max_rows is ", rows, ", so each of its ",
                     ranges, " key ranges may hold fewer than ", kFewRows,
                     " rows; some ranges have more ids than others, and evict rows "
                     "that are in use; hint: set max_rows to ",
                     kFewRows * ranges, " or more, or use fewer cluster.ranges_per_shard"));
  }
  return lines;
}

}  // namespace tandem::job
