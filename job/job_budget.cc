#include "job/job_budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

constexpr double kLargestShare = 1.1;  // of an even one: what the scheduler deals a shard at most

template <typename Widths>
int64_t WeightsBetween(const Widths& widths) {
  int64_t weights = 0;
  for (int i = 1; i < widths.size(); ++i) weights += int64_t{widths[i - 1]} * widths[i];
  return weights;
}

int64_t DenseWeights(const Model& model) {
  return WeightsBetween(model.mlp().hidden()) + WeightsBetween(model.dlrm().bottom()) +
         WeightsBetween(model.dlrm().top()) + WeightsBetween(model.neumf().hidden());
}

// Categorical fields of a row of the data.
int64_t FieldsOfData(const Data& data) {
  switch (data.format()) {
    case Data::CRITEO:
      return 26;
    case Data::DELIMITED:
      return data.columns().categorical_size();
    case Data::NCF:
      return 2;
    default:
      return 1;
  }
}

// A table that names no field reads all that no other one names.
int64_t FieldsOf(const JobPlan& plan, const TablePlan& table) {
  if (!table.fields.empty()) return static_cast<int64_t>(table.fields.size());
  int64_t rest = FieldsOfData(plan.job.data());
  for (const TablePlan& other : plan.tables) rest -= static_cast<int64_t>(other.fields.size());
  return std::max<int64_t>(rest, 1);
}

bool Holds(const Policy& policy) {
  return policy.kind() == Policy::BSP || policy.kind() == Policy::FIXED_DELAY;
}

}  // namespace

int64_t LargestPushBytes(const JobPlan& plan, const TablePlan& table) {
  if (table.frozen) return 0;
  const int64_t row_bytes =
      static_cast<int64_t>(sizeof(uint64_t)) + table.dim * static_cast<int64_t>(sizeof(float));
  if (table.dense) return DenseWeights(plan.job.model()) / kDenseBlockFloats * row_bytes;
  const int64_t ids = plan.job.train().batch() * FieldsOf(plan, table);
  return std::min(ids, table.expected_rows) * row_bytes;
}

int64_t HeldBytes(const JobPlan& plan) {
  double bytes = 0;  // a double: no product of bounds of the job can overflow it
  for (const GroupPlan& group : plan.groups) {
    if (!Holds(group.policy)) continue;
    const double steps = 1.0 + plan.job.train().depth() + group.policy.delay();
    for (const uint32_t id : group.tables) {
      bytes +=
          plan.workers() * steps * static_cast<double>(LargestPushBytes(plan, plan.tables[id]));
    }
  }
  if (plan.shards() > 1) bytes *= kLargestShare / plan.shards();
  return static_cast<int64_t>(std::min(bytes, 0x1p62));
}

absl::Status CheckHeldBytes(const JobPlan& plan) {
  const int64_t limit = plan.job.limits().held_bytes_per_shard(), held = HeldBytes(plan);
  if (held <= limit) return absl::OkStatus();
  int32_t delay = 0;
  for (const GroupPlan& group : plan.groups) delay = std::max(delay, group.policy.delay());
  return absl::InvalidArgumentError(
      absl::StrCat("limits.held_bytes_per_shard: ", limit, ", but the policy may hold ", held,
                   " bytes on a shard (", plan.workers(), " workers x (depth ",
                   plan.job.train().depth(), " + 1 + delay ", delay,
                   ") x the largest push); raise it, add servers, or lower train.batch, ",
                   "train.depth or the delay"));
}

}  // namespace tandem
