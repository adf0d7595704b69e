#include "cli/console/describe_tables.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem::cli {

std::string DescribeTables(const job::ResolvedJob& plan) {
  std::vector<std::pair<std::string, std::vector<std::string>>> kinds;  // with names of tables
  for (const job::TablePlan& table : plan.tables) {
    if (table.dense) continue;
    const bool on_workers = table.placement != Table::SERVERS;
    const std::string kind = absl::StrCat(
        on_workers ? Table::Placement_Name(table.placement) + " " : "",
        job::PolicyName(plan.groups[table.group].policy), table.frozen ? " (frozen)" : "");
    auto found = std::find_if(kinds.begin(), kinds.end(),
                              [&kind](const auto& other) { return other.first == kind; });
    if (found == kinds.end()) found = kinds.insert(kinds.end(), {kind, {}});
    found->second.push_back(table.name);
  }
  constexpr size_t kMaxNames = 4;
  std::vector<std::string> parts;
  for (const auto& [kind, names] : kinds) {
    if (names.size() > kMaxNames) {
      parts.push_back(absl::StrCat(names.size(), " tables ", kind));
      continue;
    }
    for (const std::string& name : names) parts.push_back(absl::StrCat("table ", name, " ", kind));
  }
  const int dense = plan.dense_table;
  parts.push_back(
      dense < 0
          ? absl::StrCat("dense by ", job::DenseName(plan.job.dense()))
          : absl::StrCat("dense on servers ",
                         job::PolicyName(
                             plan.groups[plan.tables[static_cast<size_t>(dense)].group].policy)));
  return absl::StrJoin(parts, ", ");
}

}  // namespace tandem::cli
