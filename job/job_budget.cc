#include "job/job_budget.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "job/row_shape.h"
#include "optim/optimizer.h"
#include "optim/row_format.h"

namespace tandem::job {
namespace {

// Most that the scheduler gives a shard, relative to an even share.
constexpr double kLargestShare = 1.1;

// How many fields the table reads. A table without a list of fields reads all fields that no other
// table lists.
int64_t FieldsOf(const ResolvedJob& plan, const TablePlan& table) {
  if (!table.fields.empty()) return static_cast<int64_t>(table.fields.size());
  std::set<std::string> named;
  for (const TablePlan& other : plan.tables) named.insert(other.fields.begin(), other.fields.end());
  const auto fields = static_cast<int64_t>(RowShapeOf(plan.job.data()).fields.size());
  return std::max<int64_t>(fields - static_cast<int64_t>(named.size()), 1);
}

bool Reads(const ResolvedJob& plan, const TablePlan& table, const std::string& field) {
  const auto names = [&field](const TablePlan& t) {
    return std::find(t.fields.begin(), t.fields.end(), field) != t.fields.end();
  };
  if (!table.fields.empty()) return names(table);
  return std::none_of(plan.tables.begin(), plan.tables.end(), names);
}

// The most ids that one row of data has in the fields of the table.
int64_t MaxIdsOfRow(const ResolvedJob& plan, const TablePlan& table) {
  const RowShape row = RowShapeOf(plan.job.data());
  int64_t ids = FieldsOf(plan, table);
  for (size_t f = 0; f < row.fields.size(); ++f) {
    if (Reads(plan, table, row.fields[f])) ids += std::max(row.bags[f].max_ids, 1) - 1;
  }
  return ids;
}

// The weights and biases of a stack of layers with these widths, over `in` inputs.
template <typename Widths>
int64_t StackParameters(int64_t in, const Widths& widths) {
  int64_t parameters = 0;
  for (const int64_t width : widths) {
    parameters += (in + 1) * width;
    in = width;
  }
  return parameters;
}

// The same for a stack that ends with one more layer, of one output.
template <typename Widths>
int64_t StackToLogit(int64_t in, const Widths& hidden) {
  const int64_t last = hidden.empty() ? in : hidden[hidden.size() - 1];
  return StackParameters(in, hidden) + last + 1;
}

int64_t RowBytes(int dim) {
  return static_cast<int64_t>(sizeof(uint64_t)) + dim * static_cast<int64_t>(sizeof(float));
}

// The most of `rows` rows that one shard gets. Keys are hashed, so each row is on the shard with
// the same probability. Bernstein's inequality bounds the number, which exceeds the bound with a
// chance of 10^-9.
double MaxOnOneShard(double rows, int shards) {
  if (shards == 1) return rows;
  constexpr double kLogOfChance = 20.7;  // ln 10^9
  const double mean = rows * kLargestShare / shards;
  const double more =
      kLogOfChance / 3 + std::sqrt(kLogOfChance * kLogOfChance / 9 + 2 * kLogOfChance * mean);
  return std::min(rows, std::ceil(mean + more));
}

// The rows of a worker's largest push to all servers.
int64_t MaxRows(const ResolvedJob& plan, const TablePlan& table) {
  if (table.frozen) return 0;
  if (!table.dense) return MaxIdsOfBatch(plan, table);
  return (MaxDenseParameters(plan) + kDenseBlockFloats - 1) / kDenseBlockFloats;
}

// How many updates a policy may hold at the same time, plus how many reads it may remember rows
// for.
double MaxUpdates(const ResolvedJob& plan, const policies::Properties& policy) {
  const Train& train = plan.job.train();
  const double delay = static_cast<double>(policy.delay);
  const double reads =
      plan.workers() * (1.0 + train.prefetch_steps() + train.max_inflight_pushes());
  double updates = policy.rows_as_read ? reads : 0;
  if (plan.job.staleness().gradients()) {
    updates += (reads + plan.workers() * delay) * plan.job.staleness().row_share();
  }
  if (!policy.holds) return updates;
  // A sum of each worker, and as much that is not added to it yet.
  if (policy.fold_by_worker) return updates + 2.0 * plan.workers();
  if (policy.batch > 0) return updates + static_cast<double>(policy.batch) * (1 + delay);
  return updates + plan.workers() * (1.0 + train.max_inflight_pushes() + delay);
}

// Bytes of a row in the index, and the factor for unused parts of pages and buckets.
constexpr double kIndexBytes = 22, kSlack = 1.05;
constexpr double kMoving = 12 << 20;       // bytes of a range that exist twice while it grows
constexpr double kProcessGrows = 4 << 20;  // growth of a server besides rows after its first step

}  // namespace

int64_t MaxIdsOfBatch(const ResolvedJob& plan, const TablePlan& table) {
  const int64_t batch = plan.job.train().batch_size();
  if (plan.job.data().format() != Data::PROGRAM) return batch * MaxIdsOfRow(plan, table);
  return batch * FieldsOf(plan, table) * plan.job.table(static_cast<int>(table.id)).ids_per_field();
}

int64_t MaxDenseParameters(const ResolvedJob& plan) {
  const int64_t numbers = RowShapeOf(plan.job.data()).numbers;
  int64_t cells = 0, floats = 0, dim = 0;  // cells and floats of a sample; the largest row
  for (const TablePlan& table : plan.tables) {
    if (!table.of_model()) continue;
    cells += FieldsOf(plan, table);
    floats += FieldsOf(plan, table) * table.dim;
    dim = std::max<int64_t>(dim, table.dim);
  }
  const Model& model = plan.job.model();
  switch (model.kind_case()) {
    case Model::kLogisticRegression:
      return numbers + 1;
    case Model::kMlp:
      return StackToLogit(floats + numbers, model.mlp().hidden());
    case Model::kDlrm:  // inputs of the top: the bottom's output and the products of all pairs
      return StackParameters(numbers, model.dlrm().bottom()) +
             StackToLogit(dim + (cells + 1) * cells / 2, model.dlrm().top());
    case Model::kGmf:
      return dim + 1;
    case Model::kNeumf: {  // only the model knows which table plays which part: take the largest
      const auto& hidden = model.neumf().hidden();
      const int64_t last = hidden.empty() ? 2 * dim : hidden[hidden.size() - 1];
      return StackParameters(2 * dim, hidden) + dim + last + 1;
    }
    case Model::kScript:   // known when a worker has opened the file
    case Model::kProgram:  // known when the program has said what it trains
    case Model::KIND_NOT_SET:
      break;
  }
  return 0;
}

int64_t HeldBytes(const ResolvedJob& plan) {
  double bytes = 0;  // double, so that no product of bounds of the job overflows
  for (const GroupPlan& group : plan.trained_groups()) {
    const double updates = MaxUpdates(plan, group.properties);
    for (const uint32_t id : group.tables) {
      const TablePlan& table = plan.tables[id];
      const double rows = MaxOnOneShard(
          static_cast<double>(MaxRows(plan, table)),
          plan.HoldersOf(table).count * plan.shards_per_server() / plan.CopiesOf(table));
      bytes += updates * rows * static_cast<double>(RowBytes(table.dim));
    }
  }
  return static_cast<int64_t>(std::min(bytes, 0x1p62));
}

// Explains the held bytes in words: one part for each way in which a policy of the job holds
// updates or remembers reads.
std::string HeldText(const ResolvedJob& plan) {
  const Train& train = plan.job.train();
  std::set<std::string> parts;
  int64_t delay = -1;
  for (const GroupPlan& group : plan.trained_groups()) {
    const policies::Properties& policy = group.properties;
    if (policy.rows_as_read) {
      parts.insert(absl::StrCat(plan.workers(), " workers x (1 + prefetch_steps ",
                                train.prefetch_steps(), " + in flight ",
                                train.max_inflight_pushes(), ") x the rows of the largest read"));
    }
    if (plan.job.staleness().gradients()) {
      parts.insert(absl::StrCat("row_share ", plan.job.staleness().row_share(),
                                " of the rows of all reads (staleness.gradients)"));
    }
    if (policy.fold_by_worker) {
      parts.insert(absl::StrCat(plan.workers(), " workers x 2 x the largest push"));
    } else if (policy.batch > 0) {
      parts.insert(absl::StrCat("batches ", policy.batch, " x the largest push"));
    } else if (policy.holds) {
      delay = std::max(delay, policy.delay);
    }
  }
  if (delay >= 0) {
    parts.insert(absl::StrCat(plan.workers(), " workers x (1 + in flight ",
                              train.max_inflight_pushes(), " + delay ", delay,
                              ") x the largest push"));
  }
  return absl::StrJoin(parts, ", and ");
}

absl::Status CheckHeldBytes(const ResolvedJob& plan) {
  if (plan.job.train().evaluate_only()) return absl::OkStatus();  // no worker pushes
  const int64_t limit = plan.job.limits().held_bytes_per_shard(), held = HeldBytes(plan);
  if (held <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("limits.held_bytes_per_shard: ", limit, ", but the policy may hold ", held,
                   " bytes on a shard (", HeldText(plan),
                   "); raise it, add servers, or lower train.batch_size, ",
                   "train.max_inflight_pushes or what the policy holds"));
}

double FloatsOfRow(const ResolvedJob& plan, const TablePlan& table) {
  const auto optimizer = optim::NewRowOptimizer(table.optimizer, table.extra_floats);
  const int slots = optimizer.ok() ? (*optimizer)->slots_per_row(table.dim) : 0;
  const int clock = table.eviction.kind() > Eviction::NONE ? 1 : 0;
  const bool trains = !table.frozen && !table.store;
  const bool squares = trains && plan.groups[table.group].properties.mean_square_decay > 0;
  return table.dim + slots + clock + (squares ? table.dim : 0);
}

double StoredBytesOfRow(const ResolvedJob& plan, const TablePlan& table) {
  const double bytes = FloatsOfRow(plan, table) * sizeof(float);
  const auto optimizer = optim::NewRowOptimizer(table.optimizer, table.extra_floats);
  if (!optimizer.ok()) return bytes;
  const optim::RowFormat format(table.types, table.dim, **optimizer);
  const optim::RowFormat floats({}, table.dim, **optimizer);
  return bytes - static_cast<double>(floats.row_bytes() - format.row_bytes());
}

double HotBytesOfRow(const TablePlan& table) {
  if (table.types.hot_updates == 0) return 0;
  return static_cast<double>(optim::WeightBytes(table.types.hot, static_cast<size_t>(table.dim)));
}

double BytesOfRow(const ResolvedJob& plan, const TablePlan& table) {
  return (StoredBytesOfRow(plan, table) + kIndexBytes) * kSlack;
}

int64_t RowsExpected(const TablePlan& table) {
  if (table.eviction.kind() != Eviction::LRU) return table.expected_rows;
  return std::min(table.expected_rows, table.eviction.max_rows());
}

int64_t MinServerBytes(const ResolvedJob& plan) {
  if (plan.job.train().evaluate_only()) return 0;
  return static_cast<int64_t>(
      std::min(static_cast<double>(HeldBytes(plan)) * plan.shards_per_server(), 0x1p62));
}

// Bytes for copies in a checkpoint per byte of rows in memory: the largest value of all tables.
double CopyShare(const ResolvedJob& plan) {
  double most = 0;
  for (const TablePlan& table : plan.tables) {
    const double head = table.types.has_heads() ? sizeof(float) : 0;
    const double copy =
        FloatsOfRow(plan, table) * sizeof(float) + head + sizeof(uint64_t) + kSortBytes;
    most = std::max(most, copy / BytesOfRow(plan, table));
  }
  return most * kLargestShare / plan.job.cluster().ranges_per_shard();
}

double MinReserve(const ResolvedJob& plan, bool saves) {
  return saves ? kProcessGrows + static_cast<double>(kRoomToCopy) * plan.shards_per_server() : 0;
}

Reserve ReserveOf(const ResolvedJob& plan, int64_t free, bool saves) {
  if (plan.job.train().evaluate_only()) return {};
  const auto all = static_cast<double>(free);
  const double least =
      std::min(static_cast<double>(MinServerBytes(plan)), all / 8) + MinReserve(plan, saves);
  double rows = all / 16 + kMoving * plan.shards_per_server();
  const double pushes = plan.workers() * (2.0 + plan.job.train().max_inflight_pushes());
  for (const GroupPlan& group : plan.trained_groups()) {
    for (const uint32_t id : group.tables) {
      const TablePlan& table = plan.tables[id];
      if (table.dense) continue;  // all of its rows exist before the first step
      const int servers = plan.HoldersOf(table).count / plan.CopiesOf(table);
      rows += pushes * (BytesOfRow(plan, table) + HotBytesOfRow(table) * kSlack) *
              MaxOnOneShard(static_cast<double>(MaxRows(plan, table)), servers);
    }
  }
  Reserve reserve;
  reserve.least = static_cast<int64_t>(std::min(least, all));
  reserve.rows = static_cast<int64_t>(std::max(0.0, std::min(rows, all / 2 - least)));
  const double share = CopyShare(plan);
  const double rest = all - static_cast<double>(reserve.least + reserve.rows);
  if (saves) reserve.copies = static_cast<int64_t>(rest * share / (1 + share));
  return reserve;
}

// Twice the least reserve, so that rows get some memory, too.
int64_t MinFreeBytes(const ResolvedJob& plan, bool saves) {
  if (plan.job.train().evaluate_only()) return 0;
  return MinServerBytes(plan) + static_cast<int64_t>(2 * MinReserve(plan, saves));
}

}  // namespace tandem::job
