// The part of World that judges: reads as they are used, and everything at the end.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "sim/world.h"

namespace tandem {
void World::Fail(const std::string& what) {
  if (!failure_.ok()) return;
  failure_ = absl::InternalError(absl::StrCat("seed ", options_.seed, " at ",
                                              absl::FormatDuration(elapsed()), ": ", what, "\n",
                                              WhoWaits()));
}

std::string World::WhoWaits() const {
  std::string out;
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    const TrainerCore& core = *workers_[rank]->core;
    absl::StrAppend(
        &out, "  worker ", rank, " epoch ", core.epoch(), " step ", core.step(), ": ",
        core.finished() ? "finished" : core.Doing(now_, WaitingForSum(static_cast<int>(rank))).text,
        "\n");
  }
  for (size_t index = 0; index < servers_.size(); ++index) {
    for (size_t s = 0; s < servers_[index]->shards.size(); ++s) {
      const ShardCore& core = *servers_[index]->shards[s];
      absl::StrAppend(&out, "  server ", index, " shard ", s, " view ", core.view(), ": ",
                      core.Settled() ? "" : "ranges on their way; ", core.Waiting(now_).text, "\n");
    }
  }
  return out;
}

// What became of an update, as the shard says; and how much of it the rows have taken, as its policy
// says for an update of these numbers.
void World::Settle(const UpdateRecord& record) {
  if (!options_.explain) return;
  RangeProgress progress;
  progress.version = record.version_applied;
  progress.workers.resize(static_cast<size_t>(plan_.workers()));
  Update update;
  update.rank = record.worker;
  update.step = record.step;
  update.samples = record.samples;
  update.version_read = record.version_read;
  update.admitted_at = record.admitted_at;
  double share = 0;
  if (record.fate != kFateDropped) {
    share = policies_[plan_.tables[record.table].group]->OnApply(progress, update).factor /
            static_cast<double>(record.divided_by);
  }
  const absl::Status settled = ledger_.Settle(record.range, record.worker, record.step, share);
  if (!settled.ok()) Fail(std::string(settled.message()));
}

// ---- reads ------------------------------------------------------------------------------------

void World::CheckRead(int rank, int64_t step, uint32_t table, uint64_t key,
                      absl::Span<const float> row) {
  if (!options_.explain) return;
  const auto taken = ledger_.Explain(table, key, row);
  if (!taken.ok()) {
    return Fail(absl::StrCat("worker ", rank, " step ", step,
                             " reads what nobody can explain: ", taken.status().message()));
  }
  if (plan_.tables[table].frozen) {
    const double seen = *std::max_element(taken->begin(), taken->end());
    if (seen > Ledger::kTolerance) Fail(absl::StrCat("frozen table ", table, " has changed"));
    return;
  }
  CheckBounds(rank, step, table, key, *taken);
}

void World::CheckDenseRead(int rank, int64_t step, absl::Span<const float> row) {
  if (!options_.explain) return;
  const uint32_t table = DenseTable();
  const auto taken = ledger_.Explain(table, ToyModel::kDenseKey, row);
  if (!taken.ok()) {
    return Fail(absl::StrCat("worker ", rank, " step ", step, " has dense parameters that nobody ",
                             "can explain: ", taken.status().message()));
  }
  if (DenseOnServers()) {
    CheckBounds(rank, step, table, ToyModel::kDenseKey, *taken);
  } else {
    CheckExact(rank, step, table, ToyModel::kDenseKey, *taken);
  }
}

void World::CheckExact(int reader, int64_t step, uint32_t table, uint64_t key,
                       const std::vector<double>& taken) {
  for (int rank = 0; rank < plan_.workers(); ++rank) {
    const double want = ledger_.WeightBefore(table, key, rank, step);
    if (std::abs(taken[static_cast<size_t>(rank)] - want) <= Ledger::kTolerance) continue;
    return Fail(absl::StrCat("worker ", reader, " reads table ", table, " key ", key, " with ",
                             taken[static_cast<size_t>(rank)], " of worker ", rank,
                             ", want exactly the ", want, " of steps below ", step));
  }
}

void World::CheckBounds(int reader, int64_t step, uint32_t table, uint64_t key,
                        const std::vector<double>& taken) {
  const Properties& policy = plan_.groups[plan_.tables[table].group].properties;
  if (policy.lockstep) return CheckExact(reader, step - policy.read_bound, table, key, taken);
  for (int rank = 0; rank < plan_.workers(); ++rank) {
    int64_t since = 0;  // updates at steps below this must be there
    if (policy.read_bound < kUnbounded) since = step - policy.read_bound;
    if (rank == reader) since = std::max(since, step - plan_.job.train().depth());
    const double least = ledger_.WeightBefore(table, key, rank, since);
    if (taken[static_cast<size_t>(rank)] >= least - Ledger::kTolerance) continue;
    return Fail(absl::StrCat("worker ", reader, " step ", step, " reads table ", table, " key ",
                             key, " with ", taken[static_cast<size_t>(rank)], " of worker ", rank,
                             ", want at least ", least, ": that of steps below ", since));
  }
}

// At an evaluation all pushes are in; what a fixed delay holds back is not, except at the last one.
void World::CheckEvaluated(int rank, uint32_t table, uint64_t key, absl::Span<const float> row) {
  if (!options_.explain) return;
  const auto taken = ledger_.Explain(table, key, row);
  if (!taken.ok()) {
    return Fail(absl::StrCat("evaluation at worker ", rank, ": ", taken.status().message()));
  }
  const bool on_servers = table < plan_.tables.size();
  if (on_servers && plan_.tables[table].frozen) return;
  int64_t delay = 0;
  if (on_servers && !delayed_finished_) {
    delay = plan_.groups[plan_.tables[table].group].properties.delay;
  }
  const int64_t all = std::numeric_limits<int64_t>::max();
  CheckExact(rank, delay == 0 ? all : workers_[rank]->core->step() - delay, table, key, *taken);
}

// The true clock gap, seen from outside: no worker that still has data is further behind than an
// policy's bound allows.
void World::CheckGap(int rank, int64_t step) {
  int64_t bound = kUnbounded;
  for (const GroupPlan& group : plan_.groups) {
    bound = std::min(bound, group.properties.clock_bound);
  }
  for (int other = 0; other < plan_.workers(); ++other) {
    const Worker& worker = *workers_[other];
    const int64_t clock = worker.clock;
    const bool has_data = worker.epoch == workers_[rank]->epoch &&
                          clock - worker.epoch_first_step < model_.options().batches[other];
    if (has_data && step - clock > bound) {
      Fail(absl::StrCat("worker ", rank, " starts step ", step, " while worker ", other,
                        " has pushed ", clock, ", bound ", bound));
    }
  }
}

// ---- the end ----------------------------------------------------------------------------------

void World::CheckEnd() {
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    if (!workers_[rank]->core->finished()) Fail(absl::StrCat("worker ", rank, " has not finished"));
  }
  CheckFinalRows();
  CheckCounts();
  const int want_evaluations = !options_.evaluate ? 0
                               : plan_.job.evaluation().every_epochs() == 1
                                   ? static_cast<int>(workers_[0]->core->epoch()) + 1
                                   : 1;
  if (evaluations_ != want_evaluations) {
    Fail(absl::StrCat(evaluations_, " evaluations, want ", want_evaluations));
  }
}

void World::CheckFinalRows() {
  for (const auto& [table, key] : ledger_.Rows()) {
    if (table == DenseTable()) continue;
    CheckEvaluated(0, table, key, Row(table, key));
  }
  for (int rank = 0; rank < plan_.workers(); ++rank) {
    if (DenseOnServers()) {
      if (rank > 0) continue;
      CheckEvaluated(0, DenseTable(), ToyModel::kDenseKey, DenseValues(0));
    } else {
      CheckEvaluated(rank, DenseTable(), ToyModel::kDenseKey, DenseValues(rank));
      if (DenseValues(rank) != DenseValues(0)) {
        Fail(absl::StrCat("dense parameters of workers 0 and ", rank, " differ"));
      }
    }
  }
}

void World::CheckCounts() {
  for (const TablePlan& table : plan_.tables) {
    const TableStats stats = Stats(table.id);
    uint64_t sent = 0;
    for (const auto& worker : workers_) sent += worker->core->client().updates_sent()[table.id];
    const uint64_t ended = stats.applied + stats.merged + stats.dropped;
    if (sent == computed_[table.id] && stats.arrived == sent && ended == sent &&
        stats.version_staleness.count == sent) {
      continue;
    }
    Fail(absl::StrCat("table ", table.name, ": computed ", computed_[table.id], ", sent ", sent,
                      ", arrived ", stats.arrived, ", applied ", stats.applied, " + merged ",
                      stats.merged, " + dropped ", stats.dropped, ", measured ",
                      stats.version_staleness.count));
  }
}

std::vector<float> World::Row(uint32_t table, uint64_t key) {
  std::vector<float> row;
  const uint32_t id = first_map_->Find(table, Position(plan_.tables[table].salt, key));
  for (const auto& server : servers_) {
    for (const auto& core : server->shards) {
      for (Range* range : core->OwnedRanges()) {
        if (range->id() != id) continue;
        if (!row.empty()) Fail(absl::StrCat("range ", id, " has two owners"));
        row.resize(static_cast<size_t>(plan_.tables[table].dim));
        range->store().Peek({&key, 1}, absl::MakeSpan(row));
      }
    }
  }
  if (row.empty()) Fail(absl::StrCat("range ", id, " has no owner"));
  row.resize(static_cast<size_t>(plan_.tables[table].dim));
  return row;
}

std::vector<float> World::DenseValues(int rank) {
  const size_t count = static_cast<size_t>(model_.options().dense);
  if (!DenseOnServers()) {
    const absl::Span<const float> values = workers_[rank]->dense->values();
    return {values.begin(), values.end()};
  }
  std::vector<float> values;
  for (const uint64_t block : workers_[rank]->dense->block_keys()) {
    const std::vector<float> row = Row(DenseTable(), block);
    values.insert(values.end(), row.begin(), row.end());
  }
  values.resize(count);
  return values;
}

TableStats World::Stats(uint32_t table) const {
  TableStats total;
  const auto merge = [](const Measure& from, Measure* into) {
    into->count += from.count;
    into->sum += from.sum;
    into->max = std::max(into->max, from.max);
  };
  for (const auto& server : servers_) {
    for (const auto& core : server->shards) {
      const TableStats& stats = core->tables()[table]->stats;
      total.arrived += stats.arrived;
      total.applied += stats.applied;
      total.merged += stats.merged;
      total.dropped += stats.dropped;
      merge(stats.clock_gap, &total.clock_gap);
      merge(stats.version_staleness, &total.version_staleness);
      merge(stats.in_flight, &total.in_flight);
    }
  }
  return total;
}

int64_t World::steps(int rank) const { return workers_[rank]->core->step(); }

uint64_t World::frames_resent() const {
  uint64_t total = 0;
  for (const auto& worker : workers_) total += worker->core->client().counters().frames_resent;
  return total;
}

}  // namespace tandem
