// Random rules by which rows of simulated tables come and go (docs/JOB.md).
#ifndef TANDEM_TESTS_SIM_ROW_RULES_H_
#define TANDEM_TESTS_SIM_ROW_RULES_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/random.h"
#include "server/row_limits.h"
#include "tests/sim/sim_job.h"
#include "tools/sim/world.h"

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

// A few rows, so that eviction AT_BUDGET has something to do.
inline int64_t RandomBudgetRows(uint64_t seed) {
  Random random(HashCombine(seed, 32));
  return 1 + static_cast<int64_t>(random.Uniform(8));
}

// The counts of all tables with rules.
inline server::RowCounts RowCountsOf(const job::ResolvedJob& plan, const sim::World& world) {
  server::RowCounts total;
  for (const job::TablePlan& table : plan.tables) {
    if (table.has_row_rules()) total.Merge(world.servers().Counts(table.id));
  }
  return total;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_ROW_RULES_H_
