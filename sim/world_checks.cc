// The part of World that judges at the end.
#include <algorithm>

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
    absl::StrAppend(&out, "  worker ", rank, " epoch ", core.epoch(), " step ", core.step(), ": ",
                    core.finished()
                        ? "finished"
                        : core.Doing(now_, WaitingForOthers(static_cast<int>(rank))).text,
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
  for (int rank = 1; rank < plan_.workers() && !DenseOnServers(); ++rank) {
    if (DenseValues(rank) == DenseValues(0)) continue;
    Fail(absl::StrCat("dense parameters of workers 0 and ", rank, " differ"));
  }
  if (judge_ == nullptr) return;
  for (const auto& [table, key] : judge_->Rows()) {
    if (table != judge_->DenseTable()) judge_->CheckEvaluated(0, table, key, Row(table, key));
  }
  for (int rank = 0; rank < (DenseOnServers() ? 1 : plan_.workers()); ++rank) {
    judge_->CheckDenseEvaluated(rank, DenseValues(rank));
  }
}

void World::CheckCounts() {
  for (const TablePlan& table : plan_.tables) {
    const TableStats stats = Stats(table.id);
    uint64_t sent = 0;
    for (const auto& worker : workers_) sent += worker->core->client().updates_sent()[table.id];
    const uint64_t ended = stats.applied + stats.merged + stats.dropped;
    const uint64_t computed = judge_ == nullptr ? sent : judge_->computed(table.id);
    if (sent == computed && stats.arrived == sent && ended == sent &&
        stats.version_staleness.count == sent) {
      continue;
    }
    Fail(absl::StrCat("table ", table.name, ": computed ", computed, ", sent ", sent, ", arrived ",
                      stats.arrived, ", applied ", stats.applied, " + merged ", stats.merged,
                      " + dropped ", stats.dropped, ", measured ", stats.version_staleness.count));
  }
}

std::vector<std::pair<uint32_t, uint64_t>> World::TrainedRows() const {
  return judge_ == nullptr ? std::vector<std::pair<uint32_t, uint64_t>>() : judge_->Rows();
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
  const size_t count = static_cast<size_t>(workers_[rank]->runner->dense().count());
  if (!DenseOnServers()) {
    const absl::Span<const float> values = workers_[rank]->runner->dense().values();
    return {values.begin(), values.end()};
  }
  std::vector<float> values;
  for (const uint64_t block : workers_[rank]->runner->dense().block_keys()) {
    const std::vector<float> row = Row(static_cast<uint32_t>(plan_.dense_table), block);
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
