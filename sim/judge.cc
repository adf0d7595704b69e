#include "sim/judge.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/hash.h"

namespace tandem {
namespace {

bool IsSynchronous(const Policy& policy) {
  return policy.kind() == Policy::BSP || policy.kind() == Policy::FIXED_DELAY;
}

}  // namespace

Judge::Judge(const JobPlan& plan, const ToyModel& model, Options options)
    : plan_(plan),
      model_(model),
      options_(std::move(options)),
      ledger_(model),
      workers_(static_cast<size_t>(plan.workers())),
      computed_(plan.tables.size(), 0) {}

// ---- what it is told --------------------------------------------------------------------------

void Judge::OnEpoch(int rank, int64_t epoch, int64_t first_step) {
  WorkerState& worker = workers_[static_cast<size_t>(rank)];
  worker.epoch = epoch;
  worker.epoch_first_step = first_step;
}

void Judge::OnPush(int rank, int64_t step) {
  int64_t& clock = workers_[static_cast<size_t>(rank)].clock;
  clock = std::max(clock, step + 1);
}

void Judge::OnUpdates(int rank, int64_t step, uint32_t table, absl::Span<const uint64_t> keys) {
  std::set<uint32_t> ranges;
  for (const uint64_t key : keys) {
    if (table != DenseTable()) ledger_.Record(table, key, rank, step);
    ranges.insert(map_->Find(table, Position(plan_.tables[table].salt, key)));
  }
  computed_[table] += ranges.size();
  if (options_.keep_ranges) ranges_of_[{rank, step}].insert(ranges.begin(), ranges.end());
}

void Judge::OnDenseUpdate(int rank, int64_t step, absl::Span<const uint64_t> blocks) {
  ledger_.Record(DenseTable(), ToyModel::kDenseKey, rank, step);
  if (DenseOnServers()) OnUpdates(rank, step, DenseTable(), blocks);
}

uint32_t Judge::DenseTable() const {
  return DenseOnServers() ? static_cast<uint32_t>(plan_.dense_table) : ~uint32_t{0};
}

std::set<uint32_t> Judge::RangesOf(int rank, int64_t step) const {
  const auto it = ranges_of_.find({rank, step});
  return it == ranges_of_.end() ? std::set<uint32_t>() : it->second;
}

// ---- reads ------------------------------------------------------------------------------------

void Judge::CheckRead(int rank, int64_t step, uint32_t table, uint64_t key,
                      absl::Span<const float> row) {
  if (!options_.explain) return;
  const auto counts = ledger_.Explain(table, key, row);
  if (!counts.ok()) {
    return options_.fail(
        absl::StrCat("worker ", rank, " step ", step,
                     " reads what nobody can explain: ", counts.status().message()));
  }
  if (plan_.tables[table].frozen) {
    const int64_t seen = *std::max_element(counts->begin(), counts->end());
    if (seen > 0) options_.fail(absl::StrCat("frozen table ", table, " has changed"));
    return;
  }
  CheckBounds(rank, step, table, key, PolicyOf(table), *counts);
}

void Judge::CheckDenseRead(int rank, int64_t step, absl::Span<const float> row) {
  if (!options_.explain) return;
  const uint32_t table = DenseTable();
  const auto counts = ledger_.Explain(table, ToyModel::kDenseKey, row);
  if (!counts.ok()) {
    return options_.fail(absl::StrCat("worker ", rank, " step ", step,
                                      " has dense parameters that nobody ",
                                      "can explain: ", counts.status().message()));
  }
  if (DenseOnServers()) {
    CheckBounds(rank, step, table, ToyModel::kDenseKey, PolicyOf(table), *counts);
  } else {
    CheckExact(rank, step, table, ToyModel::kDenseKey, *counts);
  }
}

void Judge::CheckExact(int reader, int64_t step, uint32_t table, uint64_t key,
                       const std::vector<int64_t>& counts) {
  for (int rank = 0; rank < plan_.workers(); ++rank) {
    const int64_t want = ledger_.CountBefore(table, key, rank, step);
    if (counts[static_cast<size_t>(rank)] == want) continue;
    return options_.fail(absl::StrCat("worker ", reader, " reads table ", table, " key ", key,
                                      " with ", counts[static_cast<size_t>(rank)],
                                      " updates of worker ", rank, ", want exactly the ", want,
                                      " below step ", step));
  }
}

void Judge::CheckBounds(int reader, int64_t step, uint32_t table, uint64_t key,
                        const Policy& policy, const std::vector<int64_t>& counts) {
  if (IsSynchronous(policy)) {
    const int64_t delay = policy.kind() == Policy::FIXED_DELAY ? policy.delay() : 0;
    return CheckExact(reader, step - delay, table, key, counts);
  }
  for (int rank = 0; rank < plan_.workers(); ++rank) {
    int64_t since = 0;  // updates at steps below this must be there
    if (policy.kind() == Policy::SSP) since = step - policy.bound();
    if (rank == reader) since = std::max(since, step - plan_.job.train().depth());
    const int64_t least = ledger_.CountBefore(table, key, rank, since);
    if (counts[static_cast<size_t>(rank)] >= least) continue;
    return options_.fail(absl::StrCat("worker ", reader, " step ", step, " reads table ", table,
                                      " key ", key, " with ", counts[static_cast<size_t>(rank)],
                                      " updates of worker ", rank, ", want at least ", least,
                                      ": those below step ", since));
  }
}

// At an evaluation all pushes are in; what a fixed delay holds back is not, except at the last one.
void Judge::CheckEvaluated(int rank, uint32_t table, uint64_t key, absl::Span<const float> row) {
  if (!options_.explain) return;
  const auto counts = ledger_.Explain(table, key, row);
  if (!counts.ok()) {
    return options_.fail(
        absl::StrCat("evaluation at worker ", rank, ": ", counts.status().message()));
  }
  const bool on_servers = table < plan_.tables.size();
  if (on_servers && plan_.tables[table].frozen) return;
  int64_t delay = 0;
  if (on_servers && !delayed_finished_) {
    const Policy& policy = PolicyOf(table);
    if (policy.kind() == Policy::FIXED_DELAY) delay = policy.delay();
  }
  const int64_t all = std::numeric_limits<int64_t>::max();
  CheckExact(rank, delay == 0 ? all : options_.step_of(rank) - delay, table, key, *counts);
}

void Judge::CheckGap(int rank, int64_t step) {
  int64_t bound = std::numeric_limits<int64_t>::max();
  for (const GroupPlan& group : plan_.groups) {
    if (group.policy.kind() == Policy::SSP) {
      bound = std::min<int64_t>(bound, group.policy.bound());
    }
  }
  for (size_t other = 0; other < workers_.size(); ++other) {
    const WorkerState& worker = workers_[other];
    const bool has_data = worker.epoch == workers_[static_cast<size_t>(rank)].epoch &&
                          worker.clock - worker.epoch_first_step < model_.options().batches[other];
    if (has_data && step - worker.clock > bound) {
      options_.fail(absl::StrCat("worker ", rank, " starts step ", step, " while worker ", other,
                                 " has pushed ", worker.clock, ", bound ", bound));
    }
  }
}

}  // namespace tandem
