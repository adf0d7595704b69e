#include "scheduler/status.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/endpoint.h"
#include "scheduler/observe/summary.h"

namespace tandem::scheduler {
namespace {

using nlohmann::json;

// A shorter wait is a part of most steps.
constexpr absl::Duration kWaits = absl::Seconds(1);

double SecondsOf(absl::Duration duration) { return std::max(0.0, absl::ToDoubleSeconds(duration)); }

// What one node does: "stalled" and "silent" as the scheduler has reported them.
const char* StateOf(const Node& node, bool registering, bool waits) {
  if (node.gone) return "left";
  if (node.lost_since.has_value()) return "lost";
  if (node.silence_reported) return "silent";
  if (node.stall_reported) return "stalled";
  if (registering) return "registered";
  return waits ? "waiting" : "running";
}

json NodeJson(const StatusFacts& facts, size_t i) {
  const Node& node = facts.members->nodes()[i];
  const bool registering = facts.view->number() == 0;
  json out = {{"name", node.Name()},
              {"role", node.role == Role::kServer ? "server" : "worker"},
              {"index", node.index},
              {"host", node.host},
              {"pid", node.pid},
              {"step", node.step},
              {"activity", node.activity},
              {"heard_seconds", SecondsOf(facts.now - node.heard)},
              {"moved_seconds", SecondsOf(facts.now - node.moved_at)},
              {"memory_bytes", node.resident_bytes},
              {"host_memory_bytes", node.host_memory_bytes},
              {"host_available_bytes", node.host_available_bytes}};
  const uint64_t estimate =
      node.role == Role::kServer ? facts.estimate.server : facts.estimate.worker;
  if (estimate > 0) out["memory_estimate_bytes"] = estimate;
  const int server =
      node.role == Role::kServer ? node.index : facts.plan->server_processes() + node.index;
  const std::vector<ServerMemory>& memory = facts.report.memory_of;
  if (node.index >= 0 && static_cast<size_t>(server) < memory.size() &&
      memory[static_cast<size_t>(server)].limit > 0) {
    out["memory_used_bytes"] = memory[static_cast<size_t>(server)].used;
    out["memory_limit_bytes"] = memory[static_cast<size_t>(server)].limit;
  }
  bool waits = false;
  if (i < facts.waits.size() && facts.waits[i].waits_for >= 0) {
    const absl::Duration since = facts.now - facts.waits[i].wait_since;
    waits = since >= kWaits;
    out["waits_for"] = facts.members->nodes()[static_cast<size_t>(facts.waits[i].waits_for)].Name();
    out["wait_seconds"] = SecondsOf(since);
    if (facts.waits[i].at_barrier) out["activity"] = "at a barrier";
  }
  out["state"] = StateOf(node, registering, waits);
  return out;
}

// A worker's own server is a part of the worker's process, so it has no entry.
json NodesJson(const StatusFacts& facts) {
  const size_t nodes = facts.members->nodes().size();
  std::vector<absl::Duration> holds_up(nodes, absl::ZeroDuration());  // the longest wait for each
  for (const WaitState& wait : facts.waits) {
    if (wait.waits_for < 0) continue;
    absl::Duration& longest = holds_up[static_cast<size_t>(wait.waits_for)];
    longest = std::max(longest, facts.now - wait.wait_since);
  }
  json out = json::array();
  for (size_t i = 0; i < nodes; ++i) {
    if (facts.members->nodes()[i].host_rank >= 0) continue;
    out.push_back(NodeJson(facts, i));
    out.back()["holds_up_seconds"] = SecondsOf(holds_up[i]);
  }
  return out;
}

// Name of the process that has a shard.
std::string HolderOf(const job::ResolvedJob& plan, int server) {
  const int of_worker = server - plan.server_processes();
  return of_worker < 0 ? absl::StrCat("server ", server) : absl::StrCat("worker ", of_worker);
}

json ShardsJson(const StatusFacts& facts) {
  const int per_server = facts.plan->shards_per_server();
  std::map<std::pair<uint32_t, uint32_t>, int64_t> ranges;
  for (const RangeInfo& range : facts.view->range()) ++ranges[{range.server(), range.shard()}];
  json out = json::array();
  for (int i = 0; i < static_cast<int>(facts.shards->size()); ++i) {
    const int server = i / per_server, shard = i % per_server;
    uint64_t rows = 0, bytes = 0;
    for (const TableReport& table : (*facts.shards)[static_cast<size_t>(i)].table()) {
      rows += table.rows();
      bytes += table.bytes();
    }
    out.push_back(
        {{"process", HolderOf(*facts.plan, server)},
         {"shard", shard},
         {"ranges", ranges[{static_cast<uint32_t>(server), static_cast<uint32_t>(shard)}]},
         {"rows", rows},
         {"memory_bytes", bytes}});
  }
  return out;
}

// The rows and updates of each table, and how stale its updates were.
json TablesWithStaleness(const StatusFacts& facts) {
  json out = TablesJson(*facts.plan, facts.report);
  for (const TableReport& table : facts.report.tables) {
    out[table.table()]["clock_gap"] = DistributionJson(table.clock_gap());
    out[table.table()]["version_staleness"] = DistributionJson(table.version_staleness());
    out[table.table()]["age"] = DistributionJson(table.age(), /*unit=*/1e-6);
    json gradients = GradientsJson(table);
    if (!gradients.empty()) out[table.table()]["gradients"] = std::move(gradients);
  }
  return out;
}

json WorkersWithStaleness(const StatusFacts& facts) {
  json out = WorkersJson(*facts.plan, facts.report);
  for (size_t rank = 0; rank < out.size(); ++rank) {
    out[rank].erase("waited_for");  // one number for each pair of workers
    out[rank].erase("staleness");   // histograms
    json means = json::object();
    const auto add = [&means](const std::string& name, const Distribution& d) {
      if (d.count() > 0) means[name] = d.sum() / static_cast<double>(d.count());
    };
    if (rank < facts.report.updates_of.size()) {
      add("*", facts.report.updates_of[rank].version_staleness());  // no table has this name
    }
    for (const TableReport& table : facts.report.tables) {
      if (rank >= static_cast<size_t>(table.worker_size())) continue;
      add(table.table(), table.worker(static_cast<int>(rank)).version_staleness());
    }
    out[rank]["staleness_mean"] = std::move(means);
  }
  return out;
}

// Before the first checkpoint its age is that of the job.
json CheckpointJson(const StatusFacts& facts) {
  const JobCheckpoints& checkpoints = *facts.checkpoints;
  const JobReport::Stop last = checkpoints.Last();
  json out = {{"folder", checkpoints.folder()},
              {"period_seconds", facts.plan->job.checkpoint().every_seconds()},
              {"ended", checkpoints.ended()},
              {"writing", !checkpoints.queue().empty()}};
  if (last.checkpointed_step >= 0) out["step"] = last.checkpointed_step;
  if (!last.failure.empty()) out["failure"] = last.failure;
  if (const RoomWait& room = checkpoints.room(); room.waiting()) {
    out["waits_for_room"] = {{"seconds", SecondsOf(room.waited(facts.now))}};
    if (room.missing_bytes() >= 0) out["waits_for_room"]["missing_bytes"] = room.missing_bytes();
  }
  if (facts.progress.has_value()) {
    out["age_seconds"] = SecondsOf(facts.now - checkpoints.checkpointed_at());
  }
  return out;
}

}  // namespace

json StatusJson(const StatusFacts& facts) {
  const job::ResolvedJob& plan = *facts.plan;
  const JobReport& report = facts.report;
  json out = {{"job", plan.job.name()},
              {"state", facts.state},
              {"policy", PolicyJson(plan)},
              {"epochs", plan.job.train().epochs()},
              {"samples", report.samples},
              {"steps", report.trained_steps},
              {"nodes", NodesJson(facts)},
              {"missing", facts.members->Missing()},
              {"shards", ShardsJson(facts)},
              {"tables", TablesWithStaleness(facts)},
              {"by_worker", WorkersWithStaleness(facts)},
              {"bytes", report.bytes},
              {"checkpoint", CheckpointJson(facts)},
              {"build", BuildJson()}};
  if (facts.progress.has_value()) out["progress"] = ProgressJson(*facts.progress);
  if (!report.evaluation_json.empty()) out["eval"] = EvaluationJson(report.evaluation_json);
  if (!report.reported.empty()) out["reported"] = report.reported;
  if (facts.failure.has_value()) {
    out["failed"] = {{"node", facts.failure->node()}, {"reason", facts.failure->reason()}};
  }
  return out;
}

}  // namespace tandem::scheduler
