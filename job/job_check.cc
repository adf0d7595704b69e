#include "job/job_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "job/catch_up_check.h"
#include "job/data_check.h"
#include "job/job.h"
#include "job/refuse.h"
#include "job/row_rules_check.h"
#include "job/row_shape.h"
#include "job/schedule_check.h"
#include "job/step_time_check.h"
#include "job/user_module.h"
#include "optim/own_settings.h"
#include "optim/row_dtype.h"
#include "policies/kinds.h"

namespace tandem::job {
namespace {

constexpr int64_t kMaxRangesPerTable = 1 << 16;
// A range takes up to 33 bytes in a view, and a view with all of them fits one control message
// (kMaxControlBytes).
constexpr int64_t kMaxRanges = 1 << 19;
constexpr int kMaxTables = 1024;

absl::Status CheckCluster(const Job& job, int64_t max_workers) {
  const Cluster& cluster = job.cluster();
  TANDEM_RETURN_IF_ERROR(Between("cluster.workers", cluster.workers(), 1, max_workers));
  int64_t holders = cluster.servers();  // of the table with the most
  int64_t all = job.dense().synchroniser() == Dense::SERVERS ? cluster.servers() : 0;
  for (const Table& table : job.table()) {  // workers share the rows of some tables
    const int of_table =
        table.placement() == Table::SERVERS ? cluster.servers() : cluster.workers();
    holders = std::max<int64_t>(holders, of_table);
    all += of_table;
  }
  const int64_t of_holder = int64_t{cluster.shards_per_server()} * cluster.ranges_per_shard();
  const int64_t ranges = holders * of_holder;
  if (ranges > kMaxRangesPerTable) {
    return Refuse("cluster.ranges_per_shard",
                  "servers (or workers) x shards_per_server x ranges_per_shard is ", ranges,
                  " ranges a table, at most ", kMaxRangesPerTable);
  }
  if (all * of_holder > kMaxRanges) {
    return Refuse("cluster.ranges_per_shard",
                  "the sum over all tables of servers (or workers) x shards_per_server x "
                  "ranges_per_shard is ",
                  all * of_holder, " ranges, at most ", kMaxRanges);
  }
  return absl::OkStatus();
}

constexpr absl::string_view kDensePolicy = "dense.policy";

// Checks one policy of the job. A user sees only the first refusal, so causes are checked before
// their effects: the fields of the policy come first, since its name in later messages contains
// them, and contradictions with other fields of the job come last.
absl::Status CheckPolicy(const std::string& path, const Policy& policy, const Job& job) {
  TANDEM_RETURN_IF_ERROR(policies::CheckPolicyFields(path, policy));
  TANDEM_RETURN_IF_ERROR(
      Between(path + ".backups", policy.backups(), 0, job.cluster().workers() - 1));
  if (policy.has_upper_bound() && policy.upper_bound() < policy.bound()) {
    return Refuse(path + ".upper_bound", policy.upper_bound(), ", must be at least the bound, ",
                  policy.bound());
  }
  if (policy.kind() == Policy::ORDERED_MOMENTUM && path != kDensePolicy) {
    return Refuse(
        path + ".kind",
        "ORDERED_MOMENTUM needs updates that have every row, so it is for dense parameters on "
        "servers; say another policy here, and dense { synchroniser: SERVERS optimizer { kind: "
        "MOMENTUM learning_rate: 0.01 } policy { kind: ORDERED_MOMENTUM } }");
  }
  const std::string name = PolicyName(policy);
  if (policy.has_bound() && job.train().prefetch_steps() > policy.bound()) {
    return Refuse(
        path + ".bound", name, " with train.prefetch_steps ", job.train().prefetch_steps(),
        "; a worker cannot read further ahead than its bound: raise bound or lower prefetch_steps");
  }
  if (policy.kind() == Policy::PLUGIN && job.security().encrypt() == Security::NONE) {
    return Refuse(path + ".kind",
                  "PLUGIN runs a library in each process, so strangers must be kept out; drop "
                  "security { encrypt: NONE }");
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

// Refuses settings of some kinds of optimizers that are given to another kind.
absl::Status CheckOptimizerOwnFields(const std::string& path, const Optimizer& optimizer) {
  const Optimizer::Kind kind = optimizer.kind();
  const auto only_for = [&](absl::string_view field, absl::string_view kinds) {
    return Refuse(absl::StrCat(path, ".", field), "only for ", kinds, ", and the optimizer is ",
                  Optimizer::Kind_Name(kind));
  };
  for (const optim::OwnSetting& setting : optim::OwnSettings()) {
    if ((optimizer.*setting.get)() == 0 || setting.OwnerOf(kind) != nullptr) continue;
    return only_for(setting.name, setting.OwnerNames());
  }
  if (optimizer.step_count() != Optimizer::STEP_COUNT_UNSPECIFIED && !optim::IsKindOfAdam(kind)) {
    return only_for("step_count", optim::Names(optim::KindsOfAdam()));
  }
  if (!optimizer.catch_up()) return absl::OkStatus();
  if (kind != Optimizer::ADAM) return only_for("catch_up", "ADAM");
  if (optimizer.step_count() == Optimizer::TABLE) return absl::OkStatus();
  return Refuse(path + ".catch_up",
                "only with step_count TABLE: a row that counts its own steps missed none");
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
  if (optimizer.kind() == Optimizer::PROGRAM) return CheckProgramOptimizer(path, optimizer);
  TANDEM_RETURN_IF_ERROR(CheckOptimizerOwnFields(path, optimizer));
  if (optimizer.learning_rate() != 0) return absl::OkStatus();
  return Refuse(path + ".learning_rate", "not set; it has no default, such as 0.01");
}

absl::Status CheckInitializer(const std::string& path, const Initializer& initializer) {
  const double scale = initializer.scale();
  if (initializer.kind() == Initializer::ZERO && scale != 0) {
    return Refuse(path + ".scale", scale, ", but ZERO has no scale");
  }
  if (initializer.kind() == Initializer::NORMAL && scale == 0) {
    return Refuse(path + ".scale", "not set; NORMAL needs its deviation, such as 0.01");
  }
  if (initializer.kind() == Initializer::CONSTANT || scale >= 0) return absl::OkStatus();
  return Refuse(path + ".scale", scale, ", must be above 0");
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
  if (table.has_admission()) return refuse("admission", "programs insert its rows");
  if (table.has_eviction()) return refuse("eviction", "programs erase its rows");
  if (table.ids_per_field() != 0) return refuse("ids_per_field", "no sample has ids of it");
  if (table.row_dtype() > Table::F32 || table.state_dtype() > Table::F32) {
    return refuse(table.row_dtype() > Table::F32 ? "row_dtype" : "state_dtype",
                  "programs read the floats that they have written");
  }
  if (table.has_hot_rows()) return refuse("hot_rows", "no optimizer updates its rows");
  if (table.placement() != Table::PLACEMENT_UNSPECIFIED && table.placement() != Table::SERVERS) {
    return Refuse(path + ".placement", Table::Placement_Name(table.placement()),
                  ", but the rows of a KEY_VALUE table are on servers; leave it out");
  }
  if (job.staleness().record_order()) {
    return Refuse("staleness.record_order",
                  "records what orders training, and writes of programs are no part of it; drop "
                  "it, or the KEY_VALUE tables");
  }
  return CheckPolicy(path + ".policy", table.policy(), job);
}

// Checks where the rows of a table live. Workers that hold rows exchange them in steps that all
// workers take together, so BSP is required there.
absl::Status CheckTableSynchroniser(const std::string& path, const Table& table, const Job& job) {
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

absl::Status CheckTypes(const std::string& path, const Table& table) {
  // No number that NORMAL draws from 53 bits is 8.6 deviations away from 0.
  const bool normal = table.initializer().kind() == Initializer::NORMAL;
  const double largest = std::abs(table.initializer().scale()) * (normal ? 8.6 : 1);
  const Table::Dtype type = table.row_dtype(), hot = table.hot_rows().dtype();
  const bool f16 = type == Table::F16 || hot == Table::F16;
  const double most = f16                   ? optim::kMaxF16
                      : type == Table::INT8 ? optim::kMaxInt8
                                            : std::numeric_limits<double>::infinity();
  if (largest > most) {
    return Refuse(absl::StrCat(path, ".initializer.scale"), table.initializer().scale(), ", but ",
                  f16 ? "F16" : "INT8", " has no number above ", most, "; say ",
                  hot == Table::F16 ? "hot_rows.dtype: F32"
                  : f16             ? "row_dtype: BF16"
                                    : "row_dtype: F32");
  }
  if (table.state_dtype() == Table::F16 || table.state_dtype() == Table::INT8) {
    return Refuse(path + ".state_dtype", Table::Dtype_Name(table.state_dtype()),
                  table.state_dtype() == Table::F16
                      ? ", whose smallest number is 6e-8, and squares of gradients are smaller"
                      : ", whose numbers share one scale in a row, and squares of gradients "
                        "differ too much for that",
                  "; say BF16, or leave it out");
  }
  if (!table.has_hot_rows()) return absl::OkStatus();
  if (table.hot_rows().min_updates() == 0) {
    return Refuse(path + ".hot_rows.min_updates",
                  "not set; say after how many updates a row is hot, such as min_updates: 100");
  }
  if (optim::ElementBytes(hot) <= optim::ElementBytes(type)) {
    return Refuse(path + ".hot_rows.dtype", Table::Dtype_Name(hot), ", but row_dtype is ",
                  Table::Dtype_Name(type), ", which is not smaller; say ",
                  hot == Table::INT8 ? "dtype: F32" : "row_dtype: INT8", ", or leave out hot_rows");
  }
  return absl::OkStatus();
}

absl::Status CheckTable(const std::string& path, const Table& table, const Job& job) {
  TANDEM_RETURN_IF_ERROR(CheckTableName(path, table.name()));
  if (table.dim() == 0) {
    return Refuse(path + ".dim", "not set; say how many floats a row has, such as dim: 16");
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
  TANDEM_RETURN_IF_ERROR(CheckRowRules(path, table, job));
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
  if (table.optimizer().kind() == Optimizer::MUON) {
    return Refuse(path + ".optimizer",
                  "MUON is for the matrices of dense parameters, and a table has rows; say "
                  "optimizer { kind: ADAMW learning_rate: 0.001 }, or another one");
  }
  if (table.optimizer().error_feedback() != 0) {
    return Refuse(path + ".optimizer.error_feedback", "only for dense.optimizer; leave it out");
  }
  TANDEM_RETURN_IF_ERROR(CheckTypes(path, table));
  if (table.ids_per_field() != 0 && job.data().format() != Data::PROGRAM) {
    return Refuse(path + ".ids_per_field", "only for data.format PROGRAM");
  }
  TANDEM_RETURN_IF_ERROR(CheckOptimizer(path + ".optimizer", table.optimizer()));
  TANDEM_RETURN_IF_ERROR(CheckSchedule(path + ".optimizer", table.optimizer(), job));
  TANDEM_RETURN_IF_ERROR(CheckPolicy(path + ".policy", table.policy(), job));
  TANDEM_RETURN_IF_ERROR(CheckCatchUp(path, table, job));
  return CheckTableSynchroniser(path, table, job);
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
                    "; a field has one table; hint: give the second table fields of "
                    "its own, with the same ids");
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
  if (job.table_size() > kMaxTables) {
    return Refuse("table", job.table_size(), " tables, at most ", kMaxTables);
  }
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
  if (codec.fraction() != 0 && codec.kind() != Codec::TOP_K) {
    return Refuse("dense.codec.fraction", "only for TOP_K");
  }
  if (codec.rank() != 0 && codec.kind() != Codec::POWER_SGD) {
    return Refuse("dense.codec.rank", "only for POWER_SGD");
  }
  if (codec.kind() == Codec::TOP_K && codec.fraction() == 0) {
    return Refuse("dense.codec.fraction", "not set; the share that TOP_K keeps, such as 0.01");
  }
  if (codec.kind() == Codec::POWER_SGD && codec.rank() == 0) {
    return Refuse("dense.codec.rank", "not set; the rank of POWER_SGD's matrices, such as 4");
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
                  "itself before the next sync round, such as sync_every: 8");
  }
  const auto only_for = [&](absl::string_view field, absl::string_view kind) {
    return Refuse(absl::StrCat("dense.local_steps.", field), "only for ", kind,
                  ", and the synchroniser is ", Dense::Synchroniser_Name(dense.synchroniser()));
  };
  if (dense.synchroniser() == Dense::EASGD) {
    if (local.warmup_steps() != 0) return only_for("warmup_steps", "LOCAL_SGD");
    if (local.outer_learning_rate() != 0) return only_for("outer_learning_rate", "LOCAL_SGD");
    if (local.outer_momentum() != 0) return only_for("outer_momentum", "LOCAL_SGD");
    if (local.outer_optimizer() != LocalSteps::OUTER_OPTIMIZER_UNSPECIFIED) {
      return only_for("outer_optimizer", "LOCAL_SGD");
    }
    if (local.elasticity() * job.cluster().workers() > 1) {
      return Refuse("dense.local_steps.elasticity", local.elasticity(), " x ",
                    job.cluster().workers(), " workers is ",
                    local.elasticity() * job.cluster().workers(),
                    ", must be at most 1: otherwise each step moves the centre past the workers");
    }
  } else if (local.elasticity() != 0) {
    return only_for("elasticity", "EASGD");
  }
  if (local.outer_optimizer() != LocalSteps::OUTER_OPTIMIZER_UNSPECIFIED &&
      local.outer_momentum() == 0) {
    return Refuse("dense.local_steps.outer_optimizer",
                  LocalSteps::OuterOptimizer_Name(local.outer_optimizer()),
                  " is a momentum; say outer_momentum, such as outer_momentum: 0.9");
  }
  if (local.momentum_rounds() != 0 && local.outer_optimizer() != LocalSteps::DELAYED_NESTEROV) {
    return Refuse("dense.local_steps.momentum_rounds",
                  "only for outer_optimizer DELAYED_NESTEROV; leave it out");
  }
  if (local.has_heloco() && local.outer_optimizer() != LocalSteps::HELOCO) {
    return Refuse("dense.local_steps.heloco", "only for outer_optimizer HELOCO; leave it out");
  }
  TANDEM_RETURN_IF_ERROR(CheckSyncRoundQuorum(job));
  return CheckNoGradientSums(dense);
}

// Checks dense.quorum and refuses fields that need sums in which all workers take part together.
absl::Status CheckQuorum(const Job& job) {
  const Dense& dense = job.dense();
  if (dense.quorum() != Dense::QUORUM_UNSPECIFIED && dense.synchroniser() != Dense::ALLREDUCE) {
    return Refuse("dense.quorum", Dense::Quorum_Name(dense.quorum()),
                  " is of sums of gradients, and the synchroniser is ",
                  Dense::Synchroniser_Name(dense.synchroniser()), "; leave it out");
  }
  if (dense.quorum() <= Dense::ALL) {
    if (dense.quorum_bound() == 0 || dense.local_steps().quorum() > 0) return absl::OkStatus();
    return Refuse("dense.quorum_bound",
                  "only with dense.quorum SOLO or MAJORITY, or local_steps.quorum; leave it out");
  }
  const std::string& quorum = Dense::Quorum_Name(dense.quorum());
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

// Refuses MUON where a worker does not step whole matrices in its own memory, with the mean
// gradient of all workers.
absl::Status CheckMuon(const Dense& dense) {
  if (dense.optimizer().kind() != Optimizer::MUON) return absl::OkStatus();
  const std::string with =
      dense.synchroniser() != Dense::ALLREDUCE
          ? absl::StrCat("synchroniser ", Dense::Synchroniser_Name(dense.synchroniser()))
      : dense.sharded_optimizer()     ? "a sharded optimizer"
      : dense.quorum() > Dense::ALL   ? absl::StrCat("quorum ", Dense::Quorum_Name(dense.quorum()))
      : dense.device() == Dense::CUDA ? "device CUDA"
                                      : "";
  if (with.empty()) return absl::OkStatus();
  return Refuse("dense.optimizer.kind", "MUON not with ", with,
                ": it steps whole matrices on the processor of each worker, with the sum of all "
                "gradients; use ALLREDUCE without it, or ADAMW");
}

// Refuses error feedback if the delay of updates is not fixed and known.
absl::Status CheckErrorFeedback(const Dense& dense) {
  const int delay = dense.optimizer().error_feedback();
  if (delay == 0) return absl::OkStatus();
  const std::string path = "dense.optimizer.error_feedback";
  if (dense.synchroniser() != Dense::SERVERS) {
    return Refuse(path, "only for synchroniser SERVERS, and it is ",
                  Dense::Synchroniser_Name(dense.synchroniser()), "; leave it out");
  }
  if (dense.policy().kind() != Policy::FIXED_DELAY) {
    return Refuse(path, "only for dense.policy FIXED_DELAY, and it is ",
                  Policy::Kind_Name(dense.policy().kind()), "; leave it out");
  }
  if (dense.optimizer().kind() == Optimizer::FTRL) {
    return Refuse(path, "not with FTRL, whose weights follow from its state alone; leave it out");
  }
  if (dense.policy().delay() == delay) return absl::OkStatus();
  return Refuse(path, delay, ", but the delay of dense.policy is ", dense.policy().delay(),
                dense.policy().delay() == 0 ? "; leave it out" : "; make them the same");
}

// Refuses settings that only rows of tables can obey.
absl::Status CheckDenseOptimizer(const Dense& dense) {
  const Optimizer& optimizer = dense.optimizer();
  const std::string path = "dense.optimizer";
  const auto only_for_tables = [&](absl::string_view field, absl::string_view value) {
    return Refuse(absl::StrCat(path, ".", field),
                  "only for tables, since dense parameters are in each step; write table { "
                  "optimizer { ",
                  field, ": ", value, " } }, which inherits the rest");
  };
  if (optimizer.step_count() != Optimizer::STEP_COUNT_UNSPECIFIED) {
    return only_for_tables("step_count", Optimizer::StepCount_Name(optimizer.step_count()));
  }
  if (optimizer.catch_up()) return only_for_tables("catch_up", "true");
  if (optimizer.kind() == Optimizer::ROWWISE_ADAM) {
    return Refuse(path + ".kind",
                  "ROWWISE_ADAM has one second moment for a row, and parameters of several layers "
                  "share a block; use ADAM here, and write table { optimizer { kind: ROWWISE_ADAM "
                  "learning_rate: 0.01 } }");
  }
  TANDEM_RETURN_IF_ERROR(CheckMuon(dense));
  TANDEM_RETURN_IF_ERROR(CheckErrorFeedback(dense));
  return CheckOptimizer(path, optimizer);
}

// Checks `dense`. A user sees only the first refusal, so fields that do not belong to the
// synchroniser come first: those of LOCAL_SGD, EASGD and the quorum exclude many others. The checks
// up to the branch for SERVERS hold for every synchroniser. The rest is about replicas: whether the
// job can be reproducible with the values, and which of them exclude each other.
absl::Status CheckDense(const Job& job) {
  const Dense& dense = job.dense();
  TANDEM_RETURN_IF_ERROR(CheckLocalSteps(job));
  TANDEM_RETURN_IF_ERROR(CheckQuorum(job));
  TANDEM_RETURN_IF_ERROR(CheckDenseOptimizer(dense));
  TANDEM_RETURN_IF_ERROR(CheckSchedule("dense.optimizer", dense.optimizer(), job));
  if (dense.optimizer().has_schedule() && dense.quorum() > Dense::ALL) {
    return Refuse("dense.optimizer.schedule", "not with quorum ",
                  Dense::Quorum_Name(dense.quorum()),
                  ": a sum of gradients of several steps has no place in the schedule; give the "
                  "tables schedules of their own, or drop the quorum");
  }
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
    TANDEM_RETURN_IF_ERROR(CheckPolicy(std::string(kDensePolicy), dense.policy(), job));
    if (dense.policy().kind() == Policy::ORDERED_MOMENTUM &&
        dense.optimizer().kind() != Optimizer::MOMENTUM) {
      return Refuse("dense.optimizer.kind",
                    "policy ORDERED_MOMENTUM orders the momentum of MOMENTUM only, and the "
                    "optimizer is ",
                    Optimizer::Kind_Name(dense.optimizer().kind()),
                    "; say kind: MOMENTUM, or another dense.policy, such as ASP");
    }
    return absl::OkStatus();
  }
  if (dense.has_policy()) {
    return Refuse("dense.policy", "only for synchroniser SERVERS; ",
                  StepsByThemselves(dense)
                      ? "workers that step by themselves wait for nobody between sync rounds"
                      : "ALLREDUCE always takes every step together");
  }
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

bool HasNumbers(const Data& data) {
  return data.format() == Data::CRITEO || (HasColumns(data) && !data.columns().numeric().empty());
}

// Checks DLRM. Its dot products need vectors of one length.
absl::Status CheckDlrm(const Job& job) {
  const Dlrm& dlrm = job.model().dlrm();
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
    case Model::kMlp:
      return absl::OkStatus();
    case Model::kScript:
      return CheckScript(job);
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

// Checks keep_best. The rows that choose the model must not be test rows, since the test result of
// the chosen model would then be too good.
absl::Status CheckKeepBest(const Job& job) {
  if (!job.train().has_keep_best()) return absl::OkStatus();
  const KeepBest& keep = job.train().keep_best();
  const bool reported = keep.metric() == KeepBest::REPORTED;
  if (reported && !job.model().has_program()) {
    return Refuse("train.keep_best.metric", "REPORTED", " needs a script that reports the number");
  }
  if (reported == keep.name().empty()) {
    return Refuse("train.keep_best.name", keep.name().empty() ? "is not set" : keep.name(),
                  reported ? "; say which number of the script decides, as in name: \"ndcg\""
                           : " needs metric: REPORTED");
  }
  if (keep.smaller_is_better() && !reported) {
    return Refuse("train.keep_best.smaller_is_better",
                  "needs metric: REPORTED; which values of the others are better is known");
  }
  if (job.data().has_validation() || job.data().format() == Data::PROGRAM) return absl::OkStatus();
  return Refuse("train.keep_best", "needs rows to judge by that are no test rows",
                "; name them, as in data { validation { last_fraction: 0.1 } }");
}

absl::Status CheckEvaluation(const Job& job) {
  const Evaluation& evaluation = job.evaluation();
  if (RanksItems(job)) return absl::OkStatus();
  // 10 was the default for all formats in earlier versions. Job files of such runs contain it, and
  // those runs can be resumed.
  if (evaluation.top_k() == 0 || evaluation.top_k() == 10) return absl::OkStatus();
  return Refuse("evaluation.top_k", evaluation.top_k(),
                "; only for data.format NCF, whose test rows are ranked; leave it out");
}

// CheckSecurity refuses fields that name connections without encryption beside
// security.encrypt: ALL.
absl::Status CheckSecurity(const Job& job) {
  if (job.security().encrypt() != Security::ALL) return absl::OkStatus();
  constexpr char kPlain[] = " cannot be encrypted, but security.encrypt is ALL; expected ";
  if (job.cluster().transport() == Cluster::RDMA) {
    return Refuse("cluster.transport", absl::StrCat("RDMA", kPlain, "AUTO, ZMQ or SHM"));
  }
  const Dense::Link link = job.dense().link();
  if (link == Dense::RDMA || link == Dense::TCP) {
    return Refuse("dense.link", absl::StrCat(Dense::Link_Name(link), kPlain, "ANY, ZMQ or SHM"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckJob(const Job& job, int64_t max_workers) {
  if (job.name().size() > 200) return Refuse("name", "longer than 200 characters");
  TANDEM_RETURN_IF_ERROR(CheckCluster(job, max_workers));
  TANDEM_RETURN_IF_ERROR(CheckDataSpec(job.data()));
  if (job.train().batch_size() == 0) {
    return Refuse("train.batch_size", "not set; the rows of a step on each worker, such as 1024");
  }
  if (job.policy().kind() == Policy::KEY_VALUE) {
    return Refuse("policy.kind",
                  "KEY_VALUE trains nothing; set it on single tables: table { kind: KEY_VALUE }");
  }
  if (job.staleness().row_share() != 0 && !job.staleness().gradients()) {
    return Refuse("staleness.row_share", job.staleness().row_share(),
                  ", but gradients are not measured; say gradients: true, or remove it");
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
  TANDEM_RETURN_IF_ERROR(CheckSecurity(job));
  return CheckStepTimes(job);
}

}  // namespace tandem::job
