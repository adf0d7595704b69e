#include "job/job.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "job/field_check.h"
#include "job/job_budget.h"
#include "job/job_check.h"
#include "job/timing_plan.h"
#include "policies/policy.h"
#include "proto/serialize.h"
#include "xxhash.h"

namespace tandem::job {
namespace {

using google::protobuf::util::MessageDifferencer;

// The expected rows of the dense table, which determine how it is cut into ranges. The real number
// of blocks is small, and known only after a worker has built the model.
constexpr int64_t kExpectedDenseBlocks = 1024;

// The hash of a job. Serialize gives the same bytes for the same job on every machine, so nodes can
// compare hashes.
uint64_t HashOfJob(const Job& job) {
  const std::string bytes = Serialize(job);
  return XXH3_64bits(bytes.data(), bytes.size());
}

// Adds `table` to the group of `policy` and creates the group if there is none yet. Returns the id
// of the group.
uint32_t JoinGroup(const Policy& policy, uint32_t table, ResolvedJob* plan) {
  for (GroupPlan& group : plan->groups) {
    if (!MessageDifferencer::Equals(group.policy, policy)) continue;
    group.tables.push_back(table);
    return group.id;
  }
  GroupPlan group;
  group.id = static_cast<uint32_t>(plan->groups.size());
  group.policy = policy;
  group.tables = {table};
  plan->groups.push_back(group);
  return group.id;
}

// A plan with the fields that follow from the job's seed and the table's name and position alone.
TablePlan NumberedTable(absl::string_view name, const ResolvedJob& plan) {
  TablePlan table;
  table.name = std::string(name);
  table.id = static_cast<uint32_t>(plan.tables.size());
  table.salt = HashCombine(plan.job.seed(), HashName(name));
  table.seed = HashCombine(table.salt, HashName("initial values"));
  return table;
}

void PlanTable(const Table& config, ResolvedJob* plan) {
  TablePlan table = NumberedTable(config.name(), *plan);
  table.dim = config.dim();
  table.frozen = config.frozen();
  table.placement = config.placement();
  table.types = {config.row_dtype(), config.state_dtype(), config.hot_rows().dtype(),
                 config.hot_rows().min_updates()};
  if (table.placement != Table::SERVERS) plan->workers_serve = true;
  table.expected_rows = config.expected_rows();
  table.fields.assign(config.field().begin(), config.field().end());
  table.initializer = config.initializer();
  table.optimizer = config.optimizer();
  table.admission = config.admission();
  // An evaluation reads all rows of a checkpoint. No update comes, so it needs no candidates.
  if (plan->job.train().evaluate_only()) {
    table.admission.set_kind(Admission::NONE);
  } else {
    table.eviction = config.eviction();
  }
  if (table.eviction.kind() == Eviction::LRU) {
    table.expected_rows = std::min(table.expected_rows, table.eviction.max_rows());
  }
  table.store = config.policy().kind() == Policy::KEY_VALUE;
  if (table.store) {
    table.extra_floats = config.extra_floats();
    table.optimizer.set_kind(Optimizer::PROGRAM);
  } else {
    table.group = JoinGroup(config.policy(), table.id, plan);
  }
  plan->tables.push_back(table);
}

void PlanDenseTable(const Dense& config, ResolvedJob* plan) {
  TablePlan table = NumberedTable(kDenseTableName, *plan);
  table.dim = kDenseBlockFloats;
  table.dense = true;
  table.expected_rows = kExpectedDenseBlocks;
  table.initializer.set_kind(Initializer::ZERO);
  table.optimizer = config.optimizer();
  table.group = JoinGroup(config.policy(), table.id, plan);
  plan->dense_table = static_cast<int>(table.id);
  plan->tables.push_back(table);
}

bool IsLockstep(const ResolvedJob& plan) {
  if (plan.dense_table < 0 && !SumsByQuorum(plan.job)) return true;  // replicas
  return std::any_of(plan.groups.begin(), plan.groups.end(),
                     [](const GroupPlan& group) { return group.properties.lockstep; });
}

// Refuses a dense quorum where it cannot work. If a table keeps all workers at one step, a dense
// sum that does not wait for all workers gains nothing. Sync rounds of local SGD come after a fixed
// number of own steps. A worker that skips steps would therefore fall behind in sync rounds until
// the others wait for it, while it waits for their steps.
absl::Status CheckQuorum(const ResolvedJob& plan) {
  if (!SumsByQuorum(plan.job)) return absl::OkStatus();
  const bool sync_rounds = plan.job.dense().synchroniser() == Dense::LOCAL_SGD;
  for (const GroupPlan& group : plan.groups) {
    const std::string table = absl::StrCat("table ", plan.tables[group.tables[0]].name, " under ",
                                           PolicyName(group.policy));
    if (group.properties.lockstep || group.properties.switch_step > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          QuorumText(plan.job), " does not wait for all workers, but ", table,
          " does, in every step; give tables SSP, ASP or another policy that does not"));
    }
    if (group.properties.skips && sync_rounds) {
      return absl::InvalidArgumentError(absl::StrCat(
          QuorumText(plan.job), ": in ", table,
          " a worker that is late skips steps, and so sync rounds; give tables SSP, ASP or another "
          "policy under which each worker takes all its steps"));
    }
  }
  return absl::OkStatus();
}

// Refuses a policy whose workers skip steps if another part of the job needs every worker in every
// step.
absl::Status CheckSkips(const ResolvedJob& plan) {
  const auto together =
      std::find_if(plan.groups.begin(), plan.groups.end(), [](const GroupPlan& other) {
        return other.properties.lockstep || other.properties.switch_step > 0;
      });
  if (!plan.lockstep && together == plan.groups.end()) return absl::OkStatus();
  for (const GroupPlan& group : plan.groups) {
    if (!group.properties.skips) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "policy: under ", PolicyName(group.policy), " a worker that is late skips steps, but ",
        together == plan.groups.end()
            ? absl::StrCat("the dense part under ", DenseName(plan.job.dense()))
            : absl::StrCat("table ", plan.tables[together->tables[0]].name, " under ",
                           PolicyName(together->policy)),
        " needs every worker in every step; put the dense part on servers (dense.synchroniser: "
        "SERVERS) and give no table BSP, FIXED_DELAY or SYNC_SWITCH"));
  }
  return absl::OkStatus();
}

// Resolve without the check of the memory budget. Values come first, so that a message names the
// field that the user wrote and not one that inherits it. All other checks expect the defaults.
// CheckJob comes before the plan because NewUpdatePolicy expects checked policies. STORE tables
// join groups last, so that the groups that are trained come first.
absl::StatusOr<ResolvedJob> ResolveFor(const Job& job, int64_t max_workers) {
  ResolvedJob plan;
  plan.job = job;
  TANDEM_RETURN_IF_ERROR(CheckFieldValues(job, ""));
  FillJobDefaults(&plan.job);
  TANDEM_RETURN_IF_ERROR(CheckJob(plan.job, max_workers));
  for (const Table& table : plan.job.table()) PlanTable(table, &plan);
  if (plan.job.dense().synchroniser() == Dense::SERVERS) PlanDenseTable(plan.job.dense(), &plan);
  for (TablePlan& table : plan.tables) {
    if (table.store) {
      table.group = JoinGroup(plan.job.table(static_cast<int>(table.id)).policy(), table.id, &plan);
    }
  }
  for (GroupPlan& group : plan.groups) {
    TANDEM_ASSIGN_OR_RETURN(const auto policy,
                            policies::NewUpdatePolicy(group.policy, plan.workers()));
    group.properties = policy->properties();
  }
  plan.lockstep = IsLockstep(plan);
  TANDEM_RETURN_IF_ERROR(CheckSkips(plan));
  TANDEM_RETURN_IF_ERROR(CheckQuorum(plan));
  plan.hash = HashOfJob(plan.job);
  return plan;
}

}  // namespace

absl::StatusOr<ResolvedJob> Resolve(const Job& job) {
  TANDEM_ASSIGN_OR_RETURN(ResolvedJob plan, ResolveFor(job, kMaxWorkers));
  TANDEM_RETURN_IF_ERROR(CheckHeldBytes(plan));
  return plan;
}

absl::StatusOr<ResolvedJob> ResolveForTiming(const Job& job) {
  return ResolveFor(job, kMaxTimedWorkers);
}

std::string PolicyName(const Policy& policy) {
  const auto made = policies::NewUpdatePolicy(policy, /*workers=*/1);
  if (made.ok()) return (*made)->name();
  return Policy::Kind_IsValid(policy.kind()) ? Policy::Kind_Name(policy.kind())
                                             : absl::StrCat(policy.kind());
}

bool RanksItems(const Job& job) {
  return job.data().format() == Data::NCF || job.data().format() == Data::PROGRAM;
}

bool UsesPlugin(const Job& job) {
  const auto is_plugin = [](const auto& part) { return part.policy().kind() == Policy::PLUGIN; };
  return is_plugin(job) || is_plugin(job.dense()) ||
         std::any_of(job.table().begin(), job.table().end(), is_plugin);
}

bool SumsByQuorum(const Job& job) {
  const Dense& dense = job.dense();
  if (dense.synchroniser() == Dense::LOCAL_SGD) {
    return dense.local_steps().quorum() > 0 &&
           dense.local_steps().quorum() < job.cluster().workers();
  }
  return dense.synchroniser() == Dense::ALLREDUCE && dense.quorum() > Dense::ALL &&
         job.cluster().workers() > 1;
}

std::string QuorumText(const Job& job) {
  if (job.dense().synchroniser() == Dense::LOCAL_SGD) {
    return absl::StrCat("dense.local_steps.quorum: ", job.dense().local_steps().quorum());
  }
  return absl::StrCat("dense.quorum: ", Dense::Quorum_Name(job.dense().quorum()));
}

std::string DenseName(const Dense& dense) {
  const std::string kind = Dense::Synchroniser_Name(dense.synchroniser());
  if (dense.synchroniser() == Dense::SERVERS) return kind;
  if (dense.synchroniser() == Dense::ALLREDUCE) {
    const bool all = dense.quorum() <= Dense::ALL;
    return absl::StrCat(kind, "(", Dense::Algorithm_Name(dense.algorithm()),
                        all ? "" : absl::StrCat(", ", Dense::Quorum_Name(dense.quorum())), ")");
  }
  const int quorum = dense.local_steps().quorum();
  return absl::StrCat(kind, "(", dense.local_steps().sync_every(),
                      quorum == 0 ? "" : absl::StrCat(", quorum ", quorum), ")");
}

std::vector<uint64_t> EqualRanges(int count) {
  TANDEM_CHECK(count >= 1);
  std::vector<uint64_t> begins(count);
  for (int i = 0; i < count; ++i) {
    // floor(2^64 * i / count). The result is 0 only for i = 0.
    begins[i] = static_cast<uint64_t>((static_cast<unsigned __int128>(i) << 64) / count);
  }
  return begins;
}

std::string ResolvedText(const ResolvedJob& plan) {
  std::string text = "# Every default filled in.\n";
  for (const GroupPlan& group : plan.groups) {
    const std::string names =
        absl::StrJoin(group.tables, ", ", [&plan](std::string* out, uint32_t table) {
          absl::StrAppend(out, plan.tables[table].name);
        });
    absl::StrAppend(&text, "# ", PolicyName(group.policy), ": ", names, "\n");
  }
  if (plan.dense_table < 0) {
    absl::StrAppend(&text, "# dense: ", DenseName(plan.job.dense()), "\n");
  }
  std::string body;
  TANDEM_CHECK(google::protobuf::TextFormat::PrintToString(plan.job, &body));
  return absl::StrCat(text, body);
}

absl::Span<const GroupPlan> ResolvedJob::trained_groups() const {
  const bool store = !groups.empty() && groups.back().properties.store;
  return absl::MakeConstSpan(groups).first(groups.size() - (store ? 1 : 0));
}

size_t ResolvedJob::model_tables() const {
  return static_cast<size_t>(std::count_if(
      tables.begin(), tables.end(), [](const TablePlan& table) { return table.of_model(); }));
}

ResolvedJob::Holders ResolvedJob::HoldersOf(const TablePlan& table) const {
  if (table.placement == Table::SERVERS) return {0, server_processes()};
  return {server_processes(), workers()};
}

int ResolvedJob::CopiesOf(const TablePlan& table) const {
  return table.placement == Table::REPLICATED ? workers() : 1;
}

Cluster ResolvedJob::serving() const {
  Cluster cluster = job.cluster();
  cluster.set_servers(servers());
  return cluster;
}

ClusterSizes ResolvedJob::sizes() const {
  ClusterSizes sizes;
  sizes.servers = servers();
  sizes.shards_per_server = shards_per_server();
  for (const TablePlan& table : tables) {
    sizes.tables.push_back(table.name);
    sizes.copies.push_back(CopiesOf(table));
  }
  return sizes;
}

}  // namespace tandem::job
