#include "job/job_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "job/data_check.h"
#include "job/job.h"
#include "job/refuse.h"
#include "job/step_time_check.h"
#include "job/user_module.h"
#include "policies/kinds.h"

namespace tandem::job {
namespace {

// Limits. A larger number is probably a typing error.
constexpr int64_t kMaxServers = 1024;
constexpr int64_t kMaxShardsPerServer = 255;  // an endpoint's name has one byte for the shard
constexpr int64_t kMaxRangesPerShard = 4096;
constexpr int64_t kMaxRangesPerTable = 1 << 16;
constexpr int64_t kMaxTables = 1024;
constexpr int64_t kMaxDim = 1 << 16;
// Floats of a row of a KEY_VALUE table in addition to its dim.
constexpr int64_t kMaxExtraFloats = 1 << 18;
constexpr int64_t kMaxBatch = 1 << 24;
constexpr int64_t kMaxIdsPerField = 1 << 20;
constexpr int64_t kMaxBucketBytes = int64_t{1} << 30;
constexpr int64_t kMaxCodecRank = 1024;
constexpr int64_t kMaxDepth = 1024;
constexpr int64_t kMaxBound = 1 << 20;
constexpr int64_t kMaxSwitchStep = int64_t{1} << 40;
constexpr int64_t kMaxBatches = 1 << 16;
constexpr int64_t kMaxLocalSteps = 1 << 20;
constexpr int64_t kMaxQuorumBound = 1 << 20;

absl::Status CheckCluster(const Job& job, int64_t most_workers) {
  const Cluster& cluster = job.cluster();
  TANDEM_RETURN_IF_ERROR(Between("cluster.workers", cluster.workers(), 1, most_workers));
  TANDEM_RETURN_IF_ERROR(Between("cluster.servers", cluster.servers(), 0, kMaxServers));
  TANDEM_RETURN_IF_ERROR(
      Between("cluster.shards_per_server", cluster.shards_per_server(), 1, kMaxShardsPerServer));
  TANDEM_RETURN_IF_ERROR(
      Between("cluster.ranges_per_shard", cluster.ranges_per_shard(), 1, kMaxRangesPerShard));
  TANDEM_RETURN_IF_ERROR(
      Between("cluster.threads_per_worker", cluster.threads_per_worker(), 1, 1024));
  if (!Cluster::Transport_IsValid(cluster.transport())) {
    return Refuse("cluster.transport", "unknown");
  }
  int64_t holders = cluster.servers();
  for (const Table& table : job.table()) {  // workers share the rows of these tables
    if (table.placement() == Table::SERVERS) continue;
    holders = std::max<int64_t>(holders, cluster.workers());
  }
  const int64_t ranges = holders * cluster.shards_per_server() * cluster.ranges_per_shard();
  if (ranges > kMaxRangesPerTable) {
    return Refuse("cluster.ranges_per_shard",
                  "servers (or workers) x shards_per_server x ranges_per_shard is ", ranges,
                  " ranges a table, at most ", kMaxRangesPerTable);
  }
  return absl::OkStatus();
}

// The kinds that take the field, as "SSP, ASP and STALENESS_AWARE". `before_last` stands before the
// last one.
std::string KindsWith(policies::PolicyKnob knob, absl::string_view before_last = " and ") {
  std::vector<std::string> names;
  for (const policies::PolicyKind& row : policies::PolicyKinds()) {
    if ((row.knobs & knob) != 0) names.push_back(Policy::Kind_Name(row.kind));
  }
  const std::string last = names.back();
  names.pop_back();
  return names.empty() ? last : absl::StrCat(absl::StrJoin(names, ", "), before_last, last);
}

// One field of a policy, with the value that the job gives it.
struct KnobSetting {
  policies::PolicyKnob knob;
  const char* field;
  bool is_set;
  int64_t value, least, most;
  const char* what;  // for the message to a job whose policy needs the field and lacks it
};

absl::Status CheckKnob(const std::string& path, const policies::PolicyKind& row,
                       const KnobSetting& set) {
  const std::string kind = Policy::Kind_Name(row.kind);
  const std::string field = absl::StrCat(path, ".", set.field);
  if ((row.knobs & set.knob) == 0) {
    if (!set.is_set) return absl::OkStatus();
    const std::string one_of = KindsWith(set.knob, " or ");
    return Refuse(field, "only for ", KindsWith(set.knob), ", and the policy is ", kind,
                  "; say kind: ", one_of, absl::StrContains(one_of, " ") ? "," : "",
                  " or drop the ", set.field);
  }
  if (!set.is_set) return Refuse(path, kind, " without ", set.what);
  return Between(field, set.value, set.least, set.most);
}

// Checks the two fields of COSINE_GATE. The table in CheckPolicy does not have them because
// age_decay is no integer.
absl::Status CheckAges(const std::string& path, const policies::PolicyKind& row,
                       const Policy& policy) {
  const KnobSetting settings[] = {
      {policies::kKnobAgeDecay, "age_decay", policy.has_age_decay(), 0, 0, 0,
       "an age_decay; say by which share a gradient fades with each update that comes before it, "
       "such as age_decay: 0.05, or 0"},
      {policies::kKnobAgeCutoff, "age_cutoff", policy.has_age_cutoff(), policy.age_cutoff(), 1,
       kMaxBound,
       "an age_cutoff; say how many updates later a gradient counts nothing, such as "
       "age_cutoff: 64"},
  };
  for (const KnobSetting& setting : settings) {
    TANDEM_RETURN_IF_ERROR(CheckKnob(path, row, setting));
  }
  return NotNegative(path + ".age_decay", policy.age_decay());
}

// Checks the two fields of DC_ASGD. The table in CheckPolicy takes integers only.
absl::Status CheckCompensation(const std::string& path, const policies::PolicyKind& row,
                               const Policy& policy) {
  const KnobSetting settings[] = {
      {policies::kKnobCompensation, "compensation", policy.has_compensation(), 0, 0, 0,
       "a compensation; say lambda of the paper, which weighs the change of a row since it was "
       "read, such as compensation: 0.04"},
      // mean_square_decay is optional, so it counts as set for DC_ASGD. Without it the compensation
      // is constant.
      {policies::kKnobCompensation, "mean_square_decay",
       (row.knobs & policies::kKnobCompensation) != 0 || policy.has_mean_square_decay(), 0, 0, 0,
       ""},
  };
  for (const KnobSetting& setting : settings) {
    TANDEM_RETURN_IF_ERROR(CheckKnob(path, row, setting));
  }
  TANDEM_RETURN_IF_ERROR(NotNegative(path + ".compensation", policy.compensation()));
  return BelowOne(path + ".mean_square_decay", policy.mean_square_decay());
}

// Checks one policy of the job. A user sees only the first refusal, so causes are checked before
// their effects. The kind comes first, since its row says which fields it takes. Then come fields
// that the kind does not take or lacks, and the range of each field: constructing the policy needs
// valid fields, and so does its name in later messages. Contradictions with other fields of the job
// come last.
absl::Status CheckPolicy(const std::string& path, const Policy& policy, const Job& job) {
  const absl::Span<const policies::PolicyKind> kinds = policies::PolicyKinds();
  const auto row = std::find_if(kinds.begin(), kinds.end(), [&](const policies::PolicyKind& r) {
    return r.kind == policy.kind();
  });
  if (row == kinds.end()) {
    return Refuse(path + ".kind", policy.kind(), " is not a policy");
  }
  if ((row->knobs & policies::kKnobCacheRows) == 0 && policy.cache_rows() != 0) {
    return Refuse(path + ".cache_rows", "only for ", KindsWith(policies::kKnobCacheRows),
                  ", and the policy is ", Policy::Kind_Name(policy.kind()));
  }
  TANDEM_RETURN_IF_ERROR(NotNegative(path + ".cache_rows", policy.cache_rows()));
  const KnobSetting settings[] = {
      {policies::kKnobBound, "bound", policy.has_bound(), policy.bound(), 0, kMaxBound,
       "a bound; say how many steps a worker may be ahead of the slowest one, such as bound: 4"},
      {policies::kKnobDelay, "delay", policy.has_delay(), policy.delay(), 0, kMaxDepth,
       "a delay; say how many steps lie between a gradient and its update, such as delay: 2"},
      {policies::kKnobBackups, "backups", policy.has_backups(), policy.backups(), 0,
       job.cluster().workers() - 1,
       "backups; say how many of a step's updates are not waited for, such as backups: 1"},
      {policies::kKnobBatches, "batches", policy.has_batches(), policy.batches(), 1, kMaxBatches,
       "batches; say how many updates make one step, such as batches: 4"},
      {policies::kKnobTokenGap, "token_gap", policy.has_token_gap(), policy.token_gap(), 0,
       kMaxBound, "a token_gap"},
      {policies::kKnobUpperBound, "upper_bound", policy.has_upper_bound(), policy.upper_bound(),
       policy.bound(), kMaxBound,
       "an upper_bound; say how many steps a worker may be ahead at most, such as upper_bound: 8"},
      {policies::kKnobSwitchStep, "switch_step", policy.has_switch_step(), policy.switch_step(), 0,
       kMaxSwitchStep,
       "a switch_step; say how many steps are taken together before nobody waits any more, such as "
       "switch_step: 1000"},
  };
  for (const KnobSetting& setting : settings) {
    TANDEM_RETURN_IF_ERROR(CheckKnob(path, *row, setting));
  }
  TANDEM_RETURN_IF_ERROR(CheckCompensation(path, *row, policy));
  TANDEM_RETURN_IF_ERROR(CheckAges(path, *row, policy));
  const std::string name = PolicyName(policy);
  if ((row->knobs & policies::kKnobBound) != 0 && job.train().prefetch_steps() > policy.bound()) {
    return Refuse(
        path + ".bound", name, " with train.prefetch_steps ", job.train().prefetch_steps(),
        "; a worker cannot read further ahead than its bound: raise bound or lower prefetch_steps");
  }
  if ((row->knobs & policies::kKnobAsyncScale) == 0 &&
      policy.async_scale() == Policy::INVERSE_WORKERS) {
    return Refuse(path + ".async_scale", "INVERSE_WORKERS is for ",
                  KindsWith(policies::kKnobAsyncScale), "; ", name,
                  " already takes a mean of several updates");
  }
  TANDEM_ASSIGN_OR_RETURN(const auto made,
                          policies::NewUpdatePolicy(policy, job.cluster().workers()));
  if (made->properties().skips && job.staleness().record_order()) {
    return Refuse(
        path, name,
        " skips steps depending on when answers arrive, which the recorded order of updates "
        "does not contain, so it cannot be replayed; use another policy, or drop "
        "staleness.record_order");
  }
  if (made->properties().keeps_rows && job.staleness().record_order()) {
    return Refuse(
        path, name,
        " reads rows of several versions at the same time, which the recorded order of updates "
        "does not contain, so it cannot be replayed; use SSP, or drop staleness.record_order");
  }
  if (!made->properties().order_free && job.reproducible() && job.cluster().workers() > 1) {
    return Refuse(path, name,
                  " depends on the order in which updates arrive, so the job cannot be "
                  "reproducible; use BSP or FIXED_DELAY, or drop reproducible");
  }
  return absl::OkStatus();
}

// Refuses settings of one kind of optimizer that are given to another kind.
absl::Status CheckOptimizerOwnFields(const std::string& path, const Optimizer& optimizer) {
  const Optimizer::Kind kind = optimizer.kind();
  const std::string name = Optimizer::Kind_Name(kind);
  const bool adagrad = kind == Optimizer::ADAGRAD || kind == Optimizer::ROWWISE_ADAGRAD;
  const bool adam = kind == Optimizer::ADAM;
  const auto only_for = [&](absl::string_view field, absl::string_view kinds) {
    return Refuse(absl::StrCat(path, ".", field), "only for ", kinds, ", and the optimizer is ",
                  name);
  };
  if (optimizer.momentum() != 0 && kind != Optimizer::MOMENTUM)
    return only_for("momentum", "MOMENTUM");
  if (optimizer.beta1() != 0 && !adam) return only_for("beta1", "ADAM");
  if (optimizer.beta2() != 0 && !adam) return only_for("beta2", "ADAM");
  if (optimizer.epsilon() != 0 && !adam && !adagrad) {
    return only_for("epsilon", "ADAM, ADAGRAD and ROWWISE_ADAGRAD");
  }
  if (optimizer.initial_accumulator() != 0 && !adagrad) {
    return only_for("initial_accumulator", "ADAGRAD and ROWWISE_ADAGRAD");
  }
  return absl::OkStatus();
}

// Refuses all settings of kind PROGRAM. The program makes its own optimizer, so nothing would obey
// these settings.
absl::Status CheckProgramOptimizer(const std::string& path, const Optimizer& optimizer) {
  Optimizer rest = optimizer;
  rest.clear_kind();
  if (rest.ByteSizeLong() == 0) return absl::OkStatus();
  return Refuse(path, "settings beside kind PROGRAM; the program makes its optimizer, and sets it");
}

absl::Status CheckOptimizer(const std::string& path, const Optimizer& optimizer) {
  if (!Optimizer::Kind_IsValid(optimizer.kind())) {
    return Refuse(path + ".kind", optimizer.kind(), " is not an optimizer");
  }
  if (optimizer.kind() == Optimizer::PROGRAM) return CheckProgramOptimizer(path, optimizer);
  TANDEM_RETURN_IF_ERROR(CheckOptimizerOwnFields(path, optimizer));
  TANDEM_RETURN_IF_ERROR(Positive(path + ".learning_rate", optimizer.learning_rate(),
                                  "; it has no default, such as 0.01"));
  TANDEM_RETURN_IF_ERROR(BelowOne(path + ".momentum", optimizer.momentum()));
  TANDEM_RETURN_IF_ERROR(BelowOne(path + ".beta1", optimizer.beta1()));
  TANDEM_RETURN_IF_ERROR(BelowOne(path + ".beta2", optimizer.beta2()));
  TANDEM_RETURN_IF_ERROR(NotNegative(path + ".epsilon", optimizer.epsilon()));
  TANDEM_RETURN_IF_ERROR(
      NotNegative(path + ".initial_accumulator", optimizer.initial_accumulator()));
  TANDEM_RETURN_IF_ERROR(NotNegative(path + ".weight_decay", optimizer.weight_decay()));
  return NotNegative(path + ".clip_norm", optimizer.clip_norm());
}

absl::Status CheckInitializer(const std::string& path, const Initializer& initializer) {
  const double scale = initializer.scale();
  switch (initializer.kind()) {
    case Initializer::ZERO:
      if (scale == 0) return absl::OkStatus();
      return Refuse(path + ".scale", scale, ", but ZERO has no scale");
    case Initializer::UNIFORM:
      return Positive(path + ".scale", scale, "");
    case Initializer::NORMAL:
      return Positive(path + ".scale", scale, "; NORMAL needs its deviation, such as 0.01");
    case Initializer::CONSTANT:
      if (std::isfinite(scale)) return absl::OkStatus();
      return Refuse(path + ".scale", scale, ", must be a finite number");
    default:
      return Refuse(path + ".kind", initializer.kind(), " is not an initializer");
  }
}

// Checks the name of a table. Names go into file names, logs and `--set` paths, so few characters
// are allowed.
absl::Status CheckTableName(const std::string& path, const std::string& name) {
  if (name.empty()) return Refuse(path + ".name", "not set; every table has a name");
  if (name == kDenseTableName) {
    return Refuse(path + ".name",
                  "\"dense\" is the table of dense parameters on servers; choose another name");
  }
  if (name.size() > 100) return Refuse(path + ".name", "longer than 100 characters");
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '_' && c != '-') {
      return Refuse(path + ".name", Quoted(name), ", must be letters, digits, _ and -");
    }
  }
  return absl::OkStatus();
}

// Checks a KEY_VALUE table. Programs write its rows, so it has no fields that serve training.
absl::Status CheckStoreTable(const std::string& path, const Table& table, const Job& job) {
  const auto refuse = [&](absl::string_view field, absl::string_view why) {
    return Refuse(absl::StrCat(path, ".", field), "not for a KEY_VALUE table: ", why,
                  "; leave it out");
  };
  if (!table.field().empty()) return refuse("field", "the model of the job does not read it");
  if (table.has_initializer()) return refuse("initializer", "a row is there once it is written");
  if (table.has_optimizer()) return refuse("optimizer", "programs write what their own has made");
  if (table.frozen()) return refuse("frozen", "no gradient ever comes");
  if (table.ids_per_field() != 0) return refuse("ids_per_field", "no sample has ids of it");
  if (table.placement() != Table::PLACEMENT_UNSPECIFIED && table.placement() != Table::SERVERS) {
    return Refuse(path + ".placement", Table::Placement_Name(table.placement()),
                  ", but the rows of a KEY_VALUE table are on servers; leave it out");
  }
  if (job.staleness().record_order()) {
    return Refuse("staleness.record_order",
                  "records what orders training, and writes of programs are no part of it; drop "
                  "it, or the KEY_VALUE tables");
  }
  TANDEM_RETURN_IF_ERROR(Between(path + ".extra_floats", table.extra_floats(), 0, kMaxExtraFloats));
  TANDEM_RETURN_IF_ERROR(CheckPolicy(path + ".policy", table.policy(), job));
  return Between(path + ".expected_rows", table.expected_rows(), 1, int64_t{1} << 50);
}

// Checks where the rows of a table live. Workers that hold rows exchange them in steps that all
// workers take together, so BSP is required there.
absl::Status CheckTableSynchroniser(const std::string& path, const Table& table, const Job& job) {
  if (!Table::Placement_IsValid(table.placement())) {
    return Refuse(path + ".placement", table.placement(), " is not a placement");
  }
  if (table.placement() == Table::SERVERS) return absl::OkStatus();
  const std::string name = Table::Placement_Name(table.placement());
  if (table.policy().kind() != Policy::BSP) {
    return Refuse(
        path + ".placement", name, ", and the policy is ", PolicyName(table.policy()),
        "; workers that hold the rows take every step together: say policy { kind: BSP }, "
        "or synchroniser: SERVERS");
  }
  if (job.data().format() == Data::PROGRAM &&
      (job.staleness().record_updates() || job.staleness().record_order())) {
    return Refuse(path + ".placement", name,
                  ": rows on workers that are programs are not recorded; leave out staleness, or "
                  "say SERVERS");
  }
  if (table.placement() == Table::REPLICATED && table.frozen()) {
    return Refuse(path + ".placement", name,
                  ", and the table is frozen: the copy that is saved would lack rows that other "
                  "workers have read; use SHARDED");
  }
  if (table.placement() == Table::REPLICATED && job.staleness().record_order()) {
    return Refuse(path + ".placement", name,
                  ": a read is of one copy and an update goes to all, so no order says what was "
                  "read; use SHARDED, or drop staleness.record_order");
  }
  const Dense& dense = job.dense();
  if (!dense.has_local_steps()) return absl::OkStatus();
  return Refuse(path + ".placement", name, ", and dense.synchroniser is ",
                Dense::Synchroniser_Name(dense.synchroniser()),
                ", under which workers step by themselves; use ALLREDUCE there, or SERVERS here");
}

absl::Status CheckTable(const std::string& path, const Table& table, const Job& job) {
  TANDEM_RETURN_IF_ERROR(CheckTableName(path, table.name()));
  TANDEM_RETURN_IF_ERROR(Between(path + ".dim", table.dim(), 1, kMaxDim));
  if (!Table::Kind_IsValid(table.kind())) {
    return Refuse(path + ".kind", table.kind(), " is not a kind of table");
  }
  const bool key_value = table.kind() == Table::KEY_VALUE;
  if (key_value != (table.policy().kind() == Policy::KEY_VALUE)) {
    return key_value ? Refuse(path + ".policy", PolicyName(table.policy()),
                              ", but programs write the rows of a KEY_VALUE table, and no policy "
                              "orders them; leave it out")
                     : Refuse(path + ".policy.kind",
                              "KEY_VALUE is the policy of tables that programs write; set ", path,
                              ".kind: KEY_VALUE instead of a policy");
  }
  if (key_value) return CheckStoreTable(path, table, job);
  if (table.extra_floats() != 0) {
    return Refuse(path + ".extra_floats",
                  "only for kind KEY_VALUE; the slots of an optimizer of the job are made by it");
  }
  TANDEM_RETURN_IF_ERROR(CheckInitializer(path + ".initializer", table.initializer()));
  if (table.optimizer().kind() == Optimizer::PROGRAM) {
    return Refuse(path + ".optimizer",
                  "PROGRAM is for dense parameters, and rows are updated on servers; say "
                  "optimizer { kind: ADAGRAD learning_rate: 0.05 }, or another one");
  }
  if (table.ids_per_field() != 0 && job.data().format() != Data::PROGRAM) {
    return Refuse(path + ".ids_per_field", "only for data.format PROGRAM");
  }
  if (job.data().format() == Data::PROGRAM) {
    TANDEM_RETURN_IF_ERROR(
        Between(path + ".ids_per_field", table.ids_per_field(), 1, kMaxIdsPerField));
  }
  TANDEM_RETURN_IF_ERROR(CheckOptimizer(path + ".optimizer", table.optimizer()));
  TANDEM_RETURN_IF_ERROR(CheckPolicy(path + ".policy", table.policy(), job));
  TANDEM_RETURN_IF_ERROR(CheckTableSynchroniser(path, table, job));
  return Between(path + ".expected_rows", table.expected_rows(), 1, int64_t{1} << 50);
}

// The job without its KEY_VALUE tables, which the model does not see.
Job TrainedPart(const Job& job) {
  Job part = job;
  while (!part.table().empty() && part.table().rbegin()->policy().kind() == Policy::KEY_VALUE) {
    part.mutable_table()->RemoveLast();
  }
  return part;
}

// Checks that each field is read through exactly one table, and that at most one table takes all
// remaining fields. NeuMF is an exception: its two halves have embeddings of their own, so a field
// may have two tables.
absl::Status CheckFields(const Job& job) {
  std::map<std::string, std::string> owner;
  std::string catch_all;
  for (int t = 0; t < job.table_size(); ++t) {
    const Table& table = job.table(t);
    if (table.field().empty() && !catch_all.empty()) {
      return Refuse(absl::StrCat("table[", t, "]"), "tables ", Quoted(catch_all), " and ",
                    Quoted(table.name()),
                    " both take all remaining fields; list the fields of one of them");
    }
    if (table.field().empty()) catch_all = table.name();
    for (int f = 0; f < table.field_size(); ++f) {
      const auto [it, first] = owner.try_emplace(table.field(f), table.name());
      if (first) continue;
      if (job.model().has_neumf() && it->second != table.name()) {
        it->second = table.name();
        continue;
      }
      return Refuse(absl::StrCat("table[", t, "].field[", f, "]"), "field ", Quoted(table.field(f)),
                    " is claimed by table ", Quoted(it->second), " and by ", Quoted(table.name()),
                    "; a field has one table");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTables(const Job& job) {
  if (job.table().empty()) {
    return Refuse("table",
                  "no tables; a job needs at least one, and ids that it reads (of DELIMITED data a "
                  "column in data.columns.categorical)");
  }
  TANDEM_RETURN_IF_ERROR(Between("table", job.table_size(), 1, kMaxTables));
  std::set<std::string> names;
  for (int t = 0; t < job.table_size(); ++t) {
    const std::string path = absl::StrCat("table[", t, "]");
    TANDEM_RETURN_IF_ERROR(CheckTable(path, job.table(t), job));
    if (!names.insert(job.table(t).name()).second) {
      return Refuse(path + ".name", Quoted(job.table(t).name()), " is the name of two tables");
    }
    if (t > 0 && job.table(t - 1).policy().kind() == Policy::KEY_VALUE &&
        job.table(t).policy().kind() != Policy::KEY_VALUE) {
      return Refuse(path, Quoted(job.table(t).name()), " stands behind the KEY_VALUE table ",
                    Quoted(job.table(t - 1).name()),
                    "; name the tables of the model first, and KEY_VALUE tables last");
    }
  }
  if (job.table(0).policy().kind() == Policy::KEY_VALUE) {
    return Refuse(
        "table[0]", Quoted(job.table(0).name()),
        " is a KEY_VALUE table, and the model needs a table of its own; put one before it");
  }
  return CheckFields(TrainedPart(job));
}

// Checks that the job has servers if something lives on them.
absl::Status CheckServers(const Job& job) {
  if (job.cluster().servers() > 0) return absl::OkStatus();
  if (job.cluster().pin_servers()) {
    return Refuse("cluster.pin_servers", "true, but the job has no servers; leave it out");
  }
  constexpr absl::string_view kNone = "0, or not set, but ";
  for (const Table& table : job.table()) {
    if (table.placement() != Table::SERVERS) continue;
    if (table.policy().kind() == Policy::KEY_VALUE) {
      return Refuse("cluster.servers", kNone, "the KEY_VALUE table ", Quoted(table.name()),
                    " is on servers; say servers: 1");
    }
    return Refuse("cluster.servers", kNone, "table ", Quoted(table.name()),
                  " is on servers; say servers: 1, or give the table placement: SHARDED");
  }
  if (job.dense().synchroniser() != Dense::SERVERS) return absl::OkStatus();
  return Refuse("cluster.servers", kNone, "dense.synchroniser is SERVERS; say servers: 1, or ",
                "ALLREDUCE");
}

absl::Status CheckCodec(const Job& job) {
  const Dense& dense = job.dense();
  const Codec& codec = dense.codec();
  if (!Codec::Kind_IsValid(codec.kind())) return Refuse("dense.codec.kind", "unknown");
  if (codec.fraction() != 0 && codec.kind() != Codec::TOP_K) {
    return Refuse("dense.codec.fraction", "only for TOP_K");
  }
  if (codec.rank() != 0 && codec.kind() != Codec::POWER_SGD) {
    return Refuse("dense.codec.rank", "only for POWER_SGD");
  }
  if (codec.kind() == Codec::TOP_K && !(codec.fraction() > 0 && codec.fraction() <= 1)) {
    return Refuse("dense.codec.fraction", codec.fraction(),
                  "; TOP_K keeps a fraction above 0 and at most 1, such as 0.01");
  }
  if (codec.kind() == Codec::POWER_SGD) {
    TANDEM_RETURN_IF_ERROR(Between("dense.codec.rank", codec.rank(), 1, kMaxCodecRank));
  }
  const bool codes = codec.kind() > Codec::NONE;
  if (codec.has_error_feedback() && !codes) {
    return Refuse(
        "dense.codec.error_feedback", codec.error_feedback() ? "true" : "false",
        ", but dense.codec.kind is not set, and whole gradients leave nothing out; set a kind, "
        "such as TOP_K, or leave it out");
  }
  if (codes && job.reproducible()) {
    return Refuse("dense.codec", Codec::Kind_Name(codec.kind()),
                  " changes gradients that servers would get whole, so the job cannot be "
                  "reproducible; leave it out");
  }
  if (codes && dense.wire_dtype() != Dense::F32) {
    return Refuse("dense.wire_dtype", Dense::WireDtype_Name(dense.wire_dtype()),
                  "; a codec needs F32");
  }
  if (codes && dense.bucket_bytes() > 0) {
    return Refuse("dense.bucket_bytes", "a codec takes the whole gradient; leave buckets out");
  }
  if (dense.sharded_optimizer() &&
      (codes || dense.bucket_bytes() > 0 || dense.wire_dtype() != Dense::F32)) {
    return Refuse("dense.sharded_optimizer",
                  "not with a codec, buckets or a 16-bit wire; leave these out");
  }
  return absl::OkStatus();
}

// Refuses settings that tune a choice which the job does not leave open.
absl::Status CheckChoices(const Job& job) {
  const Dense& dense = job.dense();
  if (!dense.algorithm_rules().empty() && dense.algorithm() != Dense::AUTO) {
    return Refuse("dense.algorithm_rules", Quoted(dense.algorithm_rules()),
                  "; only with dense.algorithm AUTO");
  }
  if (!dense.calibration().empty() && job.reproducible()) {
    return Refuse("dense.calibration", Quoted(dense.calibration()),
                  "; in a reproducible job nothing depends on measurements; leave it out");
  }
  const bool buckets = dense.synchroniser() == Dense::ALLREDUCE && dense.bucket_bytes() == 0 &&
                       !job.staleness().record_order() && dense.codec().kind() <= Codec::NONE &&
                       !dense.sharded_optimizer() && !SumsByQuorum(job);
  if (!dense.calibration().empty() && dense.algorithm() != Dense::AUTO && !buckets) {
    return Refuse(
        "dense.calibration", Quoted(dense.calibration()), "; the algorithm is ",
        Dense::Algorithm_Name(dense.algorithm()),
        " and there are no buckets to choose, so nothing depends on what links cost; leave "
        "it out");
  }
  return absl::OkStatus();
}

// Refuses fields that a GPU cannot obey. Gradients on a device are summed there, whole and at once,
// and by the only algorithm that exists for them.
absl::Status CheckDevice(const Dense& dense) {
  if (dense.device() != Dense::CUDA) return absl::OkStatus();
  constexpr absl::string_view kOneWay =
      "; with dense.device CUDA gradients are summed on the GPUs, in one way; leave it out";
  if (dense.algorithm() != Dense::AUTO) {
    return Refuse("dense.algorithm", Dense::Algorithm_Name(dense.algorithm()), kOneWay);
  }
  if (!dense.algorithm_rules().empty())
    return Refuse("dense.algorithm_rules", Quoted(dense.algorithm_rules()), kOneWay);
  if (!dense.calibration().empty()) {
    return Refuse("dense.calibration", Quoted(dense.calibration()), kOneWay);
  }
  if (dense.codec().kind() > Codec::NONE || dense.sharded_optimizer() || dense.bucket_bytes() > 0 ||
      dense.wire_dtype() != Dense::F32) {
    return Refuse("dense.device",
                  "CUDA not with a codec, a sharded optimizer, buckets or a 16-bit wire; leave "
                  "these out");
  }
  return absl::OkStatus();
}

bool AddsInRankOrder(const Dense& dense) {
  return dense.algorithm() == Dense::DIRECT || dense.algorithm() == Dense::ONE_SHOT ||
         dense.algorithm() == Dense::NAIVE;
}

// Refuses dense settings under which the result depends on more than the recorded order of updates,
// so that a replay would give other bits.
absl::Status CheckOrder(const Dense& dense) {
  if (dense.device() == Dense::CUDA) {
    return Refuse("dense.device",
                  "CUDA: models on a GPU may add in another order each time, so the run could not "
                  "be replayed; use CPU, or drop staleness.record_order");
  }
  if (dense.synchroniser() == Dense::SERVERS || AddsInRankOrder(dense)) return absl::OkStatus();
  return Refuse(
      "dense.algorithm", Dense::Algorithm_Name(dense.algorithm()),
      " does not add in rank order, so the run could not be replayed; use DIRECT, or drop "
      "staleness.record_order");
}

bool StepsByThemselves(const Dense& dense) {
  return dense.synchroniser() == Dense::LOCAL_SGD || dense.synchroniser() == Dense::EASGD;
}

// Refuses fields that only serve workers which sum gradients in each step. Workers under LOCAL_SGD
// and EASGD exchange whole models instead.
absl::Status CheckNoGradientSums(const Dense& dense) {
  const std::string why =
      absl::StrCat("; between workers under ", Dense::Synchroniser_Name(dense.synchroniser()),
                   " whole models travel, as they are; leave it out");
  if (dense.wire_dtype() != Dense::F32) {
    return Refuse("dense.wire_dtype", Dense::WireDtype_Name(dense.wire_dtype()), why);
  }
  if (dense.bucket_bytes() != 0) return Refuse("dense.bucket_bytes", dense.bucket_bytes(), why);
  if (dense.codec().kind() > Codec::NONE) {
    return Refuse("dense.codec", Codec::Kind_Name(dense.codec().kind()), why);
  }
  if (dense.sharded_optimizer()) {
    return Refuse("dense.sharded_optimizer", "true, but each worker takes optimizer steps of its ",
                  "own under ", Dense::Synchroniser_Name(dense.synchroniser()), "; leave it out");
  }
  if (dense.device() == Dense::CUDA) {
    return Refuse("dense.device", "CUDA needs gradients that are summed on the GPUs, and under ",
                  Dense::Synchroniser_Name(dense.synchroniser()),
                  " there is no sum of gradients; use CPU, or ALLREDUCE");
  }
  if (dense.optimizer().kind() != Optimizer::PROGRAM) return absl::OkStatus();
  return Refuse("dense.optimizer.kind", "PROGRAM steps with the mean gradient of all workers, ",
                "and under ", Dense::Synchroniser_Name(dense.synchroniser()),
                " each has its own; use ALLREDUCE, or an optimizer of the job such as ADAM");
}

// Refuses a quorum in a reproducible or recorded job. `without` tells how to write the job without
// its quorum.
absl::Status CheckRepeatsNothing(absl::string_view field, absl::string_view value,
                                 absl::string_view without, const Job& job) {
  if (!job.reproducible() && !job.staleness().record_order()) return absl::OkStatus();
  return Refuse(field, value, ": which gradients are in a sum depends on time, so the ",
                "job cannot be reproducible or replayed; ", without, ", or drop reproducible and ",
                "staleness.record_order");
}

// Checks the quorum of LOCAL_SGD, whose sync rounds then do not wait for all workers.
absl::Status CheckSyncRoundQuorum(const Job& job) {
  const LocalSteps& local = job.dense().local_steps();
  const std::string field = "dense.local_steps.quorum";
  if (local.quorum() == 0) {
    if (local.grace_seconds() == 0) return absl::OkStatus();
    return Refuse("dense.local_steps.grace_seconds", local.grace_seconds(),
                  " is how long a sync round waits after its quorum has come, and there is no "
                  "quorum; set it, or leave this out");
  }
  if (job.dense().synchroniser() != Dense::LOCAL_SGD) {
    return Refuse(field, "only for LOCAL_SGD, and the synchroniser is ",
                  Dense::Synchroniser_Name(job.dense().synchroniser()));
  }
  if (local.quorum() < 1 || local.quorum() > job.cluster().workers()) {
    return Refuse(field, local.quorum(), ", must be 1 to the number of workers, ",
                  job.cluster().workers(), "; leave it out to wait for all");
  }
  TANDEM_RETURN_IF_ERROR(NotNegative("dense.local_steps.grace_seconds", local.grace_seconds()));
  if (local.warmup_steps() != 0) {
    return Refuse(field, local.quorum(),
                  " not with warmup_steps: in the steps before it workers wait ",
                  "for each other; leave one of them out");
  }
  if (HasOwnModule(job.model()) || job.data().format() == Data::PROGRAM) {
    return Refuse(field, local.quorum(), " is for models of ours: the loop of a program does not ",
                  "hear when the others have no data left; leave it out");
  }
  return CheckRepeatsNothing(field, absl::StrCat(local.quorum()), "leave it out", job);
}

absl::Status CheckLocalSteps(const Job& job) {
  const Dense& dense = job.dense();
  const LocalSteps& local = dense.local_steps();
  if (!StepsByThemselves(dense)) {
    if (!dense.has_local_steps()) return absl::OkStatus();
    return Refuse("dense.local_steps", "only for LOCAL_SGD and EASGD, and the synchroniser is ",
                  Dense::Synchroniser_Name(dense.synchroniser()));
  }
  if (local.sync_every() == 0) {
    return Refuse("dense.local_steps.sync_every",
                  "not set; say how many steps each worker takes by ",
                  "itself before all meet, such as sync_every: 8");
  }
  TANDEM_RETURN_IF_ERROR(
      Between("dense.local_steps.sync_every", local.sync_every(), 1, kMaxLocalSteps));
  const auto only_for = [&](absl::string_view field, absl::string_view kind) {
    return Refuse(absl::StrCat("dense.local_steps.", field), "only for ", kind,
                  ", and the synchroniser is ", Dense::Synchroniser_Name(dense.synchroniser()));
  };
  if (dense.synchroniser() == Dense::EASGD) {
    if (local.warmup_steps() != 0) return only_for("warmup_steps", "LOCAL_SGD");
    if (local.outer_learning_rate() != 0) return only_for("outer_learning_rate", "LOCAL_SGD");
    if (local.outer_momentum() != 0) return only_for("outer_momentum", "LOCAL_SGD");
    TANDEM_RETURN_IF_ERROR(Positive("dense.local_steps.elasticity", local.elasticity(), ""));
    if (local.elasticity() * job.cluster().workers() > 1) {
      return Refuse("dense.local_steps.elasticity", local.elasticity(), " x ",
                    job.cluster().workers(), " workers is ",
                    local.elasticity() * job.cluster().workers(),
                    ", must be at most 1: otherwise each step moves the centre past the workers");
    }
  } else {
    if (local.elasticity() != 0) return only_for("elasticity", "EASGD");
    TANDEM_RETURN_IF_ERROR(NotNegative("dense.local_steps.warmup_steps", local.warmup_steps()));
    TANDEM_RETURN_IF_ERROR(
        Positive("dense.local_steps.outer_learning_rate", local.outer_learning_rate(), ""));
    TANDEM_RETURN_IF_ERROR(BelowOne("dense.local_steps.outer_momentum", local.outer_momentum()));
  }
  TANDEM_RETURN_IF_ERROR(CheckSyncRoundQuorum(job));
  return CheckNoGradientSums(dense);
}

// Checks dense.quorum and refuses fields that need sums in which all workers take part together.
absl::Status CheckQuorum(const Job& job) {
  const Dense& dense = job.dense();
  if (!Dense::Quorum_IsValid(dense.quorum())) return Refuse("dense.quorum", "unknown");
  const bool meets = dense.local_steps().quorum() > 0;
  if (meets) {
    TANDEM_RETURN_IF_ERROR(Between("dense.quorum_bound", dense.quorum_bound(), 1, kMaxQuorumBound));
  }
  if (dense.quorum() != Dense::QUORUM_UNSPECIFIED && dense.synchroniser() != Dense::ALLREDUCE) {
    return Refuse("dense.quorum", Dense::Quorum_Name(dense.quorum()),
                  " is of sums of gradients, and the synchroniser is ",
                  Dense::Synchroniser_Name(dense.synchroniser()), "; leave it out");
  }
  if (dense.quorum() <= Dense::ALL) {
    if (dense.quorum_bound() == 0 || meets) return absl::OkStatus();
    return Refuse("dense.quorum_bound",
                  "only with dense.quorum SOLO or MAJORITY, or local_steps.quorum; leave it out");
  }
  const std::string& quorum = Dense::Quorum_Name(dense.quorum());
  TANDEM_RETURN_IF_ERROR(Between("dense.quorum_bound", dense.quorum_bound(), 1, kMaxQuorumBound));
  const absl::string_view with = dense.codec().kind() > Codec::NONE ? "a codec"
                                 : dense.bucket_bytes() > 0         ? "buckets"
                                 : dense.sharded_optimizer()        ? "a sharded optimizer"
                                 : dense.wire_dtype() != Dense::F32 ? "a 16-bit wire"
                                 : dense.device() == Dense::CUDA    ? "device CUDA"
                                                                    : "";
  if (!with.empty()) {
    return Refuse("dense.quorum", quorum, " not with ", with, "; leave that out, or say ALL");
  }
  if (HasOwnModule(job.model()) || job.data().format() == Data::PROGRAM ||
      dense.optimizer().kind() == Optimizer::PROGRAM) {
    return Refuse("dense.quorum", quorum, " steps the model while workers compute, and a module ",
                  "of one's own has one copy of its parameters; say ALL");
  }
  return CheckRepeatsNothing("dense.quorum", quorum, "say ALL", job);
}

// Checks `dense`. A user sees only the first refusal, so a field that does not belong to the
// synchroniser is refused before its value is judged. LOCAL_SGD, EASGD and the quorum come first,
// since their fields exclude many others. The checks up to the branch for SERVERS hold for every
// synchroniser. The rest is about replicas: whether the values are valid, whether the job can be
// reproducible with them, and which of them exclude each other.
absl::Status CheckDense(const Job& job) {
  const Dense& dense = job.dense();
  if (!Dense::Synchroniser_IsValid(dense.synchroniser())) {
    return Refuse("dense.synchroniser", "unknown");
  }
  TANDEM_RETURN_IF_ERROR(CheckLocalSteps(job));
  TANDEM_RETURN_IF_ERROR(CheckQuorum(job));
  TANDEM_RETURN_IF_ERROR(CheckOptimizer("dense.optimizer", dense.optimizer()));
  if (!Dense::Device_IsValid(dense.device())) return Refuse("dense.device", "unknown");
  if (job.staleness().record_order()) TANDEM_RETURN_IF_ERROR(CheckOrder(dense));
  if (dense.device() == Dense::CUDA && job.reproducible()) {
    return Refuse("dense.device",
                  "CUDA: models on a GPU may add in another order each time, so the job cannot be "
                  "reproducible; use CPU");
  }
  if (dense.synchroniser() == Dense::SERVERS) {
    constexpr absl::string_view kOnly = "only for ALLREDUCE, and the synchroniser is SERVERS";
    if (dense.algorithm() != Dense::ALGORITHM_UNSPECIFIED) return Refuse("dense.algorithm", kOnly);
    if (dense.wire_dtype() != Dense::WIRE_DTYPE_UNSPECIFIED)
      return Refuse("dense.wire_dtype", kOnly);
    if (dense.bucket_bytes() != 0) return Refuse("dense.bucket_bytes", kOnly);
    if (dense.link() != Dense::LINK_UNSPECIFIED) return Refuse("dense.link", kOnly);
    if (dense.has_codec()) return Refuse("dense.codec", kOnly);
    if (dense.sharded_optimizer()) return Refuse("dense.sharded_optimizer", kOnly);
    if (!dense.algorithm_rules().empty()) return Refuse("dense.algorithm_rules", kOnly);
    if (!dense.calibration().empty()) return Refuse("dense.calibration", kOnly);
    if (dense.policy().kind() == Policy::KEY_VALUE) {
      return Refuse("dense.policy.kind",
                    "KEY_VALUE is for tables that programs write; say BSP, or another one");
    }
    return CheckPolicy("dense.policy", dense.policy(), job);
  }
  if (!Dense::Algorithm_IsValid(dense.algorithm())) return Refuse("dense.algorithm", "unknown");
  if (dense.has_policy()) {
    return Refuse("dense.policy", "only for synchroniser SERVERS; ",
                  StepsByThemselves(dense)
                      ? "workers that step by themselves wait for nobody between sync rounds"
                      : "ALLREDUCE always takes every step together");
  }
  if (!Dense::WireDtype_IsValid(dense.wire_dtype()) || !Dense::Link_IsValid(dense.link())) {
    return Refuse("dense", "unknown wire or link");
  }
  TANDEM_RETURN_IF_ERROR(Between("dense.bucket_bytes", dense.bucket_bytes(), -1, kMaxBucketBytes));
  if (job.reproducible() && !AddsInRankOrder(dense)) {
    return Refuse("dense.algorithm", Dense::Algorithm_Name(dense.algorithm()),
                  " does not add in rank order, so the job cannot be reproducible; use DIRECT");
  }
  if (job.reproducible() && dense.wire_dtype() != Dense::F32) {
    return Refuse("dense.wire_dtype", Dense::WireDtype_Name(dense.wire_dtype()),
                  " rounds gradients that servers would get whole, so the job cannot be "
                  "reproducible; use F32");
  }
  TANDEM_RETURN_IF_ERROR(CheckChoices(job));
  TANDEM_RETURN_IF_ERROR(CheckDevice(dense));
  return CheckCodec(job);
}

template <typename Widths>
absl::Status CheckWidths(const std::string& path, const Widths& widths) {
  for (int i = 0; i < widths.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(Between(absl::StrCat(path, "[", i, "]"), widths[i], 1, kMaxDim));
  }
  return absl::OkStatus();
}

bool HasNumbers(const Data& data) {
  return data.format() == Data::CRITEO ||
         (data.format() == Data::DELIMITED && !data.columns().numeric().empty());
}

// Checks DLRM. Its dot products need vectors of one length.
absl::Status CheckDlrm(const Job& job) {
  const Dlrm& dlrm = job.model().dlrm();
  TANDEM_RETURN_IF_ERROR(CheckWidths("model.dlrm.bottom", dlrm.bottom()));
  TANDEM_RETURN_IF_ERROR(CheckWidths("model.dlrm.top", dlrm.top()));
  if (dlrm.bottom().empty()) {
    return Refuse("model.dlrm.bottom",
                  "not set; widths such as bottom: [64, 16], the last one dim");
  }
  if (!HasNumbers(job.data())) {
    return Refuse("model.dlrm",
                  "the data have no numeric columns, and its bottom MLP reads nothing else; name "
                  "some in data.columns.numeric, or use mlp");
  }
  const int width = dlrm.bottom(dlrm.bottom_size() - 1);
  for (int t = 0; t < job.table_size(); ++t) {
    if (job.table(t).dim() == width) continue;
    return Refuse("model.dlrm.bottom", "the last width is ", width, " and table ",
                  Quoted(job.table(t).name()), " has dim ", job.table(t).dim(),
                  "; DLRM multiplies them, so they must be equal");
  }
  return absl::OkStatus();
}

absl::Status CheckLogisticRegression(const Job& job) {
  for (int t = 0; t < job.table_size(); ++t) {
    if (job.table(t).dim() == 1) continue;
    return Refuse(absl::StrCat("table[", t, "].dim"), job.table(t).dim(),
                  ", but a row of logistic_regression is one weight; set dim to 1");
  }
  return absl::OkStatus();
}

absl::Status CheckGmf(const Job& job) {
  if (job.table_size() != 2) {
    return Refuse("model.gmf",
                  "needs two tables, of field \"user\" and of field \"item\", and has ",
                  job.table_size());
  }
  if (job.table(0).dim() == job.table(1).dim()) return absl::OkStatus();
  return Refuse("table[1].dim", job.table(1).dim(), ", but table[0].dim is ", job.table(0).dim(),
                "; GMF multiplies them, so they must be equal");
}

absl::Status CheckNeuMf(const Job& job) {
  TANDEM_RETURN_IF_ERROR(CheckWidths("model.neumf.hidden", job.model().neumf().hidden()));
  if (job.model().neumf().hidden().empty()) {
    return Refuse("model.neumf.hidden", "not set; widths such as hidden: [32, 16, 8]");
  }
  if (job.table_size() == 4) return absl::OkStatus();
  return Refuse("model.neumf",
                "needs four tables, user_gmf, item_gmf, user_mlp and item_mlp, and has ",
                job.table_size());
}

// Refuses initial values of which all are zero. If products or hidden units see only zeros, no
// gradient comes back, and the model never leaves its initial values.
absl::Status CheckInitialValues(const Job& job) {
  const auto zero = [](const Table& table) {
    const Initializer& initializer = table.initializer();
    return initializer.kind() == Initializer::ZERO ||
           (initializer.kind() == Initializer::CONSTANT && initializer.scale() == 0);
  };
  if (!std::all_of(job.table().begin(), job.table().end(), zero)) return absl::OkStatus();
  const bool numbers = HasNumbers(job.data());
  const bool stays = job.model().has_gmf() || job.model().has_neumf() ||
                     (!job.model().mlp().hidden().empty() && !numbers);
  if (!stays) return absl::OkStatus();
  return Refuse("table[0].initializer",
                "every table begins with zeros, from which this model cannot learn; leave it out, "
                "or say kind: NORMAL scale: 0.01");
}

// Checks what a program brings. Batches and the module go together: a program brings both or
// neither. With both it may also bring the optimizer.
absl::Status CheckProgram(const Job& job) {
  const bool data = job.data().format() == Data::PROGRAM, model = job.model().has_program();
  if (data && !model && job.model().kind_case() != Model::KIND_NOT_SET) {
    return Refuse("model",
                  "this one reads rows of files, and data.format is PROGRAM; say "
                  "model { program {} }");
  }
  if (model && !data) {
    return Refuse("data.format", Data::Format_Name(job.data().format()),
                  ", but the model is a program's, which brings its batches; say format: PROGRAM");
  }
  const Dense& dense = job.dense();
  if (model && dense.device() == Dense::CUDA) {
    return Refuse("dense.device", "CUDA is for compiled models; a program moves its module itself");
  }
  if (dense.optimizer().kind() != Optimizer::PROGRAM) return absl::OkStatus();
  if (!model) {
    return Refuse("dense.optimizer.kind",
                  "PROGRAM is the optimizer of a program, and the model is none's; say "
                  "model { program {} }, or another kind");
  }
  if (dense.synchroniser() == Dense::SERVERS) {
    return Refuse("dense.optimizer.kind",
                  "PROGRAM steps on copies of the parameters, and the synchroniser is SERVERS; use "
                  "ALLREDUCE, or an optimizer of the job such as ADAM");
  }
  if (!dense.sharded_optimizer()) return absl::OkStatus();
  return Refuse("dense.sharded_optimizer",
                "cuts the slots of the job's optimizer, and this is PROGRAM; leave it out");
}

// Checks the fields of a script model. The worker that opens the file checks its contents.
absl::Status CheckScript(const Job& job) {
  if (job.model().script().file().empty()) {
    return Refuse("model.script.file",
                  "not set; a module as torch.jit.save writes it, such as \"ranker.pt\"");
  }
  if (job.dense().device() != Dense::CUDA) return absl::OkStatus();
  return Refuse("dense.device",
                "CUDA is for compiled models; a module from a file computes on the "
                "processor, so leave it out");
}

absl::Status CheckModel(const Job& job) {
  TANDEM_RETURN_IF_ERROR(CheckProgram(job));
  TANDEM_RETURN_IF_ERROR(CheckInitialValues(job));
  switch (job.model().kind_case()) {
    case Model::KIND_NOT_SET:
      return Refuse(
          "model",
          "not set; one of logistic_regression, mlp, dlrm, gmf, neumf, program, script, such as "
          "dlrm {}");
    case Model::kProgram:
      return absl::OkStatus();
    case Model::kScript:
      return CheckScript(job);
    case Model::kMlp:
      return CheckWidths("model.mlp.hidden", job.model().mlp().hidden());
    case Model::kLogisticRegression:
      return CheckLogisticRegression(job);
    case Model::kDlrm:
      return CheckDlrm(job);
    case Model::kGmf:
      return CheckGmf(job);
    case Model::kNeumf:
      return CheckNeuMf(job);
  }
  return absl::OkStatus();
}

absl::Status CheckTrain(const Train& train) {
  TANDEM_RETURN_IF_ERROR(Between("train.batch_size", train.batch_size(), 1, kMaxBatch));
  if (train.epochs() < 1) {
    return Refuse("train.epochs", train.epochs(),
                  ", must be at least 1; evaluate_only: true takes no step");
  }
  TANDEM_RETURN_IF_ERROR(NotNegative("train.max_steps", train.max_steps()));
  TANDEM_RETURN_IF_ERROR(
      NotNegative("train.keep_best.patience", int64_t{train.keep_best().patience()}));
  TANDEM_RETURN_IF_ERROR(Between("train.prefetch_steps", train.prefetch_steps(), 0, kMaxDepth));
  return Between("train.max_inflight_pushes", train.max_inflight_pushes(), 1, 1024);
}

// Checks keep_best. The rows that choose the model must not be test rows, since the test result of
// the chosen model would then be too good.
absl::Status CheckKeepBest(const Job& job) {
  if (!job.train().has_keep_best()) return absl::OkStatus();
  if (job.data().has_validation() || job.data().format() == Data::PROGRAM) return absl::OkStatus();
  return Refuse("train.keep_best", "needs rows to judge by that are no test rows",
                "; name them, as in data { validation { last_fraction: 0.1 } }");
}

absl::Status CheckEvaluation(const Job& job) {
  const Evaluation& evaluation = job.evaluation();
  TANDEM_RETURN_IF_ERROR(
      NotNegative("evaluation.every_epochs", int64_t{evaluation.every_epochs()}));
  TANDEM_RETURN_IF_ERROR(Between("evaluation.batch_size", evaluation.batch_size(), 1, kMaxBatch));
  if (RanksItems(job)) return Between("evaluation.top_k", evaluation.top_k(), 1, 1 << 20);
  // 10 was the default for all formats in earlier versions. Job files of such runs contain it, and
  // those runs can be resumed.
  if (evaluation.top_k() == 0 || evaluation.top_k() == 10) return absl::OkStatus();
  return Refuse("evaluation.top_k", evaluation.top_k(),
                "; only for data.format NCF, whose test rows are ranked; leave it out");
}

absl::Status CheckLimits(const Limits& limits) {
  TANDEM_RETURN_IF_ERROR(
      Positive("limits.report_interval_seconds", limits.report_interval_seconds(), ""));
  TANDEM_RETURN_IF_ERROR(
      Positive("limits.stall_timeout_seconds", limits.stall_timeout_seconds(), ""));
  TANDEM_RETURN_IF_ERROR(
      Positive("limits.startup_timeout_seconds", limits.startup_timeout_seconds(), ""));
  return Between("limits.held_bytes_per_shard", limits.held_bytes_per_shard(), 1, int64_t{1} << 50);
}

absl::Status CheckCheckpoint(const Checkpoint& checkpoint) {
  TANDEM_RETURN_IF_ERROR(NotNegative("checkpoint.every_seconds", checkpoint.every_seconds()));
  TANDEM_RETURN_IF_ERROR(NotNegative("checkpoint.every_steps", checkpoint.every_steps()));
  return Between("checkpoint.keep", checkpoint.keep(), 1, 1000);
}

}  // namespace

absl::Status CheckJob(const Job& job, int64_t most_workers) {
  if (job.name().size() > 200) return Refuse("name", "longer than 200 characters");
  TANDEM_RETURN_IF_ERROR(CheckCluster(job, most_workers));
  TANDEM_RETURN_IF_ERROR(CheckDataSpec(job.data()));
  TANDEM_RETURN_IF_ERROR(CheckTrain(job.train()));
  if (job.policy().kind() == Policy::KEY_VALUE) {
    return Refuse("policy.kind",
                  "KEY_VALUE trains nothing; set it on single tables: table { kind: KEY_VALUE }");
  }
  TANDEM_RETURN_IF_ERROR(CheckPolicy("policy", job.policy(), job));
  // Dense before tables: tables inherit the dense optimizer, and the message should name the field
  // that the user wrote, not the table that inherits it.
  TANDEM_RETURN_IF_ERROR(CheckDense(job));
  TANDEM_RETURN_IF_ERROR(CheckTables(job));
  TANDEM_RETURN_IF_ERROR(CheckServers(job));
  TANDEM_RETURN_IF_ERROR(CheckModel(TrainedPart(job)));
  TANDEM_RETURN_IF_ERROR(CheckKeepBest(job));
  TANDEM_RETURN_IF_ERROR(CheckEvaluation(job));
  TANDEM_RETURN_IF_ERROR(CheckCheckpoint(job.checkpoint()));
  TANDEM_RETURN_IF_ERROR(CheckLimits(job.limits()));
  return CheckStepTimes(job);
}

}  // namespace tandem::job
