// Random rules by which rows of simulated tables come and go (docs/JOB.md).
#ifndef TANDEM_TESTS_SIM_ROW_RULES_H_
#define TANDEM_TESTS_SIM_ROW_RULES_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/random.h"
#include "server/rows/page_arena.h"
#include "server/rows/row_limits.h"
#include "tests/sim/proof/checked_world.h"
#include "tests/sim/sim_job.h"

namespace tandem {

// Rules of a table with 16 ids, in a job of some dozen steps; sometimes none.
inline std::string RandomRowRules(bool at_budget, Random* random) {
  std::string admission, eviction;
  switch (random->Uniform(4)) {
    case 0:
      break;
    case 1:
      admission = absl::StrCat("kind: PROBABILITY probability: ", 0.1 + 0.8 * random->NextDouble());
      break;
    default:
      admission = absl::StrCat("kind: COUNT threshold: ", 2 + random->Uniform(2));
      if (random->Bernoulli(0.5)) {
        absl::StrAppend(&admission, " within_versions: ", random->Uniform(20));
      }
  }
  const uint64_t kind = random->Uniform(at_budget ? 6 : 5);
  if (kind == 1 || kind == 2) {
    const uint64_t most = random->Bernoulli(0.7) ? 8 : 40;
    eviction = absl::StrCat("kind: AGE versions: ", 1 + random->Uniform(most));
  } else if (kind == 3 || kind == 4) {
    eviction = absl::StrCat("kind: LRU max_rows: ", 1 + random->Uniform(24));
  } else if (kind == 5) {
    eviction = "kind: AT_BUDGET";
  }
  if (admission.empty() && eviction.empty()) return "";
  if (random->Bernoulli(0.5)) absl::StrAppend(&admission, " unadmitted: ZERO");
  return absl::StrCat(admission.empty() ? "" : absl::StrCat(" admission { ", admission, " }"),
                      eviction.empty() ? "" : absl::StrCat(" eviction { ", eviction, " }"), " ");
}

// Gives the tables such rules, unless the job does not allow any. Call it when the rest of the job
// is known. The rest of the job and its world do not depend on the rules.
inline void AddRowRules(uint64_t seed, bool at_budget, SimJob* job) {
  if (!job->placement.empty()) return;
  Random random(HashCombine(seed, 31));
  const auto may_have = [](const std::string& policy) {
    return policy.find("mean_square_decay") == std::string::npos;
  };
  if (may_have(job->policy)) job->row_rules = RandomRowRules(at_budget, &random);
  const std::string& second = job->second_policy.empty() ? job->policy : job->second_policy;
  if (job->second_table && !job->second_frozen && may_have(second)) {
    job->second_row_rules = RandomRowRules(at_budget, &random);
  }
}

// Makes rows of some tables catch up, where the job allows it, and gives the job ADAM then.
inline void AddCatchUp(Random* random, SimJob* job) {
  const auto may_have = [](const std::string& policy, const std::string& rules) {
    const bool together =
        absl::StrContains(policy, "kind: BSP") || absl::StrContains(policy, "FIXED_DELAY");
    return together && !absl::StrContains(rules, "admission") &&
           !absl::StrContains(rules, "eviction");
  };
  const std::string& second = job->second_policy.empty() ? job->policy : job->second_policy;
  job->catch_up = may_have(job->policy, job->row_rules) && random->Bernoulli(0.7);
  job->second_catch_up = job->second_table && !job->second_frozen &&
                         may_have(second, job->second_row_rules) && random->Bernoulli(0.7);
  if (job->catch_up || job->second_catch_up) job->optimizer = "kind: ADAM learning_rate: 0.02";
}

// Gives most tables types smaller than F32, and the job an optimizer with state. Values then do not
// say which updates made them, so CheckedWorldOptions::explain must be false. Call it after
// AddRowRules.
inline void AddTypes(uint64_t seed, SimJob* job) {
  Random random(HashCombine(seed, 41));
  const auto type = [&random] {
    const char* const kTypes[] = {" row_dtype: BF16 ",
                                  " row_dtype: F16 ",
                                  " state_dtype: BF16 ",
                                  " row_dtype: BF16 state_dtype: BF16 ",
                                  " row_dtype: INT8 ",
                                  " row_dtype: INT8 state_dtype: BF16 ",
                                  " row_dtype: INT8 hot_rows { min_updates: 3 } ",
                                  " row_dtype: INT8 hot_rows { min_updates: 20 dtype: F16 } ",
                                  " row_dtype: BF16 hot_rows { min_updates: 2 } ",
                                  ""};
    return kTypes[random.Uniform(std::size(kTypes))];
  };
  job->row_rules += type();
  if (job->second_table) job->second_row_rules += type();
  if (absl::StrContains(job->dense_policy, "ORDERED_MOMENTUM")) return;  // which needs MOMENTUM
  job->optimizer =
      random.Bernoulli(0.5) ? "kind: ADAGRAD learning_rate: 0.3" : "kind: ADAM learning_rate: 0.02";
  AddCatchUp(&random, job);
}

// The most pages that the rows of a range take in these small worlds: one each for rows, hot rows,
// clocks and index. A range of dense parameters has a longer index and longer rows. Only one such
// range has rows, because the toy model has one block of dense parameters.
inline constexpr uint64_t kPagesOfRange = 4, kPagesOfDense = 7;

// If a table has eviction AT_BUDGET, gives each server a budget with fewer pages for rows than its
// ranges usually take. Then most servers fill up when some of their ranges have their first rows.
// From then on a table with AT_BUDGET evicts a row for each new one or refuses the new one, because
// MayGrow is false even if a page has room. Other tables always get the pages that they need. Call
// it after AddRowRules. `later`: the same job with other servers and ranges, of further attempts.
inline void AddBudget(uint64_t seed, const SimJob& job, CheckedWorldOptions* options,
                      const std::vector<SimJob>& later = {}) {
  const bool first = absl::StrContains(job.row_rules, "AT_BUDGET");
  const bool second = job.second_table && absl::StrContains(job.second_row_rules, "AT_BUDGET");
  if (!first && !second) return;
  const auto ranges_of = [](const SimJob& one) {
    return one.shards_per_server * one.ranges_per_shard;
  };
  int max_on_server = ranges_of(job), most = max_on_server * job.servers;  // of a table
  for (const SimJob& one : later) {
    max_on_server = std::max(max_on_server, ranges_of(one));
    most = std::max(most, ranges_of(one) * one.servers);
  }
  const auto on_server = static_cast<uint64_t>(max_on_server);
  const auto ranges = static_cast<uint64_t>(most);
  uint64_t slack = kPagesOfRange;
  if (job.second_table && first != second) slack += kPagesOfRange * ranges;
  if (job.dense_on_servers) slack += kPagesOfDense;
  Random random(HashCombine(seed, 32));
  uint64_t pages = 1 + random.Uniform(2 * on_server * (job.second_table ? 2 : 1));
  if (job.dense_on_servers && random.Bernoulli(0.5)) pages += kPagesOfDense;
  options->row_slack = slack * server::PageArena::kPage;
  options->row_bytes = options->row_slack + pages * server::PageArena::kPage;
}

// The counts of all tables with rules.
inline server::RowCounts RowCountsOf(const job::ResolvedJob& plan, const CheckedWorld& world) {
  server::RowCounts total;
  for (const job::TablePlan& table : plan.tables) {
    if (table.has_row_rules()) total.Merge(world.server_checks().Counts(table.id));
  }
  return total;
}

// Whether rows were evicted or refused because a server had no memory for more.
inline bool WasAtBudget(const job::ResolvedJob& plan, const CheckedWorld& world) {
  return std::any_of(plan.tables.begin(), plan.tables.end(), [&world](const job::TablePlan& table) {
    if (table.eviction.kind() != Eviction::AT_BUDGET) return false;
    const server::RowCounts counts = world.server_checks().Counts(table.id);
    return counts.evicted > 0 || (counts.refused > 0 && table.admission.kind() <= Admission::NONE);
  });
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_ROW_RULES_H_
