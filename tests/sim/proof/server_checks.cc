#include "tests/sim/proof/server_checks.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/rows/row_limiter.h"

namespace tandem {

ServerChecks::ServerChecks(sim::SimContext& context, const sim::SimServers& servers)
    : context_(context),
      servers_(servers),
      has_lru_(
          std::any_of(context.plan.tables.begin(), context.plan.tables.end(),
                      [](const auto& table) { return table.eviction.kind() == Eviction::LRU; })) {}

// Looks at the worker of the push, in the ranges of the push: no other has more open steps now.
void ServerChecks::CountOpenSteps(EndpointId id, const ParsedFrame& push) {
  const policies::Properties& policy = context_.plan.groups[push.header.group].properties;
  if (!policy.holds || policy.batch > 0) return;
  for (uint32_t i = 0; i < push.entry_count; ++i) {
    const server::Range* const range = core(id).ranges().Find(push.Entry(i).range);
    if (range == nullptr) continue;
    const policies::RangeProgress& progress = range->progress();
    max_open_steps_ = std::max(
        max_open_steps_, progress.workers[push.header.sender.index].admitted - progress.version);
  }
}

// Counts the running sums of a shard again, range by range and worker by worker, and compares. Also
// compares the waiting reads of the shard with the decisions of their policies.
void ServerChecks::CheckSums(EndpointId id) {
  const server::ShardCore& core = this->core(id);
  size_t held_bytes = 0;
  std::vector<int64_t> clocks(context_.plan.groups.size(), policies::kInfiniteClock);
  bool same = true;
  for (const server::Range* const range : core.ranges().Owned()) {
    const uint32_t group = range->table().plan->group;
    const policies::RangeProgress& kept = range->progress();
    policies::RangeProgress& plain = plain_progress_;  // without `clocks`: looks at each worker
    plain.workers = kept.workers;
    const int64_t switch_step = context_.plan.groups[group].properties.switch_step;
    same = same && kept.clocks != nullptr && kept.MinClock() == plain.MinClock() &&
           kept.MinApplied() == plain.MinApplied() && kept.MinAdmitted() == plain.MinAdmitted() &&
           kept.MinAdmittedLive() == plain.MinAdmittedLive() && kept.Live() == plain.Live() &&
           kept.Slowest() == plain.Slowest() && kept.Admitted() == plain.Admitted() &&
           kept.AdmittedBeyond(switch_step) == plain.AdmittedBeyond(switch_step);
    clocks[group] = std::min(clocks[group], plain.MinClock());
    held_bytes += range->held_bytes();
  }
  for (uint32_t group = 0; group < clocks.size(); ++group) {
    same = same && core.ranges().MinClock(group) == clocks[group];
  }
  if (!same || core.ranges().held_bytes() != held_bytes) {
    context_.Fail(absl::StrCat(id.DebugString(), ": its totals differ from its ranges"));
  }
  if (!core.WaitingReadsMustWait()) {
    context_.Fail(absl::StrCat(id.DebugString(), ": a read waits that may be answered"));
  }
}

// Checks that a range under LRU has at most its share of the rows, and as many candidates.
void ServerChecks::CheckShares(EndpointId id) {
  if (!has_lru_) return;
  for (const server::Range* const range : core(id).ranges().Owned()) {
    const job::TablePlan& plan = *range->table().plan;
    const int64_t rows = range->store().size();
    if (plan.eviction.kind() != Eviction::LRU) continue;
    const uint64_t width = range->end() - range->begin();  // 0: all positions
    const double share = width == 0 ? 1.0 : std::ldexp(static_cast<double>(width), -64);
    const auto most =
        static_cast<int64_t>(std::ceil(share * static_cast<double>(plan.eviction.max_rows())));
    const int64_t candidates = range->store().candidates();
    if (rows <= most && candidates <= most) continue;
    context_.Fail(absl::StrCat("range ", range->id(), " of table ", plan.name, " has ", rows,
                               " rows and ", candidates, " candidates; its share of max_rows is ",
                               most));
  }
}

// Adds up the memory of the ranges and checkpoints of a server, and compares the sums with its
// budget. Checks that rows take at most row_bytes until the server reports that its memory is full.
void ServerChecks::CheckMemory(int index) {
  const sim::SimServers::Server& server = servers_.all()[static_cast<size_t>(index)];
  if (server.budget == nullptr) return;
  size_t stores = 0, arenas = 0, held = 0, copies = 0;
  bool copying = false;
  for (const sim::SimServers::Shard& shard : server.shards) {
    for (const server::Range* const range : shard.core->ranges().Owned()) {
      stores += range->store().Memory().arena;
      held += range->held_bytes();
    }
    arenas += shard.core->arena().resident();
    if (shard.checkpoint == nullptr) continue;
    copying = true;
    copies += shard.checkpoint->copied_bytes();
  }
  const size_t used = server.budget->used(), limit = server.budget->limit();
  const size_t most = server.memory_full.empty() ? context_.options.row_bytes : limit;
  const size_t sum = arenas + held + copies;  // copies take whole blocks
  const bool adds_up = copying ? sum <= used : sum == used;
  if (stores <= arenas && arenas <= most && adds_up && used <= limit) return;
  context_.Fail(absl::StrCat("server ", index, ": stores have ", stores, " bytes, arenas ", arenas,
                             " of ", most, ", held updates ", held, " and copies ", copies,
                             "; the budget counts ", used, " of ", limit));
}

// Progress comes before the pulls that it allowed.
void ServerChecks::Log(EndpointId id, const server::ShardEffects& effects) {
  LogAdmitted(id);
  LogReads(effects);
}

void ServerChecks::LogAdmitted(EndpointId id) {
  for (const server::Range* range : core(id).ranges().Owned()) {
    std::vector<int64_t>& known = admitted_[range->id()];
    known.resize(static_cast<size_t>(context_.plan.workers()));
    for (size_t rank = 0; rank < known.size(); ++rank) {
      const int64_t admitted = range->progress().workers[rank].admitted;
      if (admitted == known[rank]) continue;
      events_[range->id()].push_back({false, static_cast<int>(rank), known[rank], admitted - 1});
      known[rank] = admitted;
    }
  }
}

void ServerChecks::LogReads(const server::ShardEffects& effects) {
  for (const Outgoing& out : effects.out) {
    const absl::StatusOr<ParsedFrame> frame = DecodeFrame(out.frame);
    if (!frame.ok() || frame->header.kind != FrameKind::kRows) continue;
    if ((frame->header.flags & kFlagEvaluate) != 0) continue;
    for (uint32_t i = 0; i < frame->entry_count; ++i) {
      const SliceEntry e = frame->Entry(i);
      if (e.status != SliceStatus::kOk) continue;
      events_[e.range].push_back({true, out.to.index, frame->header.step, frame->header.step});
    }
  }
}

// ---- contents ---------------------------------------------------------------------------------

std::vector<float> ServerChecks::Row(uint32_t table, uint64_t key) {
  std::vector<float> row;
  const size_t dim = static_cast<size_t>(context_.plan.tables[table].dim);
  const uint32_t first =
      servers_.ranges()->Find(table, Position(context_.plan.tables[table].salt, key));
  for (uint32_t copy = 0; copy < servers_.ranges()->Copies(table); ++copy) {
    const std::vector<float> other =
        RowIn(first + copy * servers_.ranges()->RangeCount(table), table, key);
    if (copy > 0 && other != row) {
      context_.Fail(
          absl::StrCat("table ", table, " key ", key, ": copy ", copy, " is another row"));
    }
    row = other;
  }
  row.resize(dim);
  return row;
}

// The row in one range.
std::vector<float> ServerChecks::RowIn(uint32_t id, uint32_t table, uint64_t key) {
  std::vector<float> row;
  const size_t dim = static_cast<size_t>(context_.plan.tables[table].dim);
  for (const sim::SimServers::Server& server : servers_.all()) {
    for (const sim::SimServers::Shard& shard : server.shards) {
      for (server::Range* range : shard.core->ranges().Owned()) {
        if (range->id() != id) continue;
        if (!row.empty()) context_.Fail(absl::StrCat("range ", id, " has two owners"));
        row.resize(dim);
        range->store().Pull({&key, 1}, absl::MakeSpan(row));
      }
    }
  }
  if (row.empty()) context_.Fail(absl::StrCat("range ", id, " has no owner"));
  row.resize(dim);
  return row;
}

template <typename Sum>
Sum ServerChecks::SumOf(uint32_t table, Sum server::TableStats::*part) const {
  Sum sum;
  for (const sim::SimServers::Server& server : servers_.all()) {
    for (const sim::SimServers::Shard& shard : server.shards) {
      sum.Merge(shard.core->tables()[table]->stats.*part);
    }
  }
  return sum;
}

server::UpdateStats ServerChecks::Stats(uint32_t table) const {
  return SumOf(table, &server::TableStats::total);
}

server::RowCounts ServerChecks::Counts(uint32_t table) const {
  return SumOf(table, &server::TableStats::rows);
}

int64_t ServerChecks::Version(uint32_t table, uint64_t key) const {
  const uint32_t id =
      servers_.ranges()->Find(table, Position(context_.plan.tables[table].salt, key));
  for (const sim::SimServers::Server& server : servers_.all()) {
    for (const sim::SimServers::Shard& shard : server.shards) {
      const server::Range* const range = shard.core->ranges().Find(id);
      if (range != nullptr) return range->progress().version;
    }
  }
  return -1;
}

int64_t ServerChecks::RowCount(uint32_t table) const {
  int64_t rows = 0;
  for (const sim::SimServers::Server& server : servers_.all()) {
    for (const sim::SimServers::Shard& shard : server.shards) {
      for (const server::Range* const range : shard.core->ranges().Owned()) {
        if (range->table().plan->id == table) rows += range->store().size();
      }
    }
  }
  return rows;
}

}  // namespace tandem
