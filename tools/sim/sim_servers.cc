#include "tools/sim/sim_servers.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/no_room.h"
#include "base/status_macros.h"
#include "job/job_budget.h"
#include "scheduler/deal_ranges.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/record/replay.h"
#include "server/rows/row_copies.h"

namespace tandem::sim {
namespace {

constexpr size_t kBytesPerSlice = 200;  // small, so that frames arrive during a checkpoint

}  // namespace

absl::Status SimServers::Init() {
  const job::ResolvedJob& plan = context_.plan;
  servers_.resize(static_cast<size_t>(plan.servers()));
  for (int index = 0; index < plan.servers(); ++index) {
    Server& server = servers_[static_cast<size_t>(index)];
    const uint64_t incarnation = context_.processes.IncarnationOf(EndpointId::Shard(index, 0));
    server.core = std::make_unique<server::ServerCore>(plan, incarnation);
    server.budget = NewBudget();
    server.shards.resize(static_cast<size_t>(plan.shards_per_server()));
    for (int s = 0; s < plan.shards_per_server(); ++s) {
      const EndpointId id = EndpointId::Shard(index, s);
      shard(id).heard = context_.agenda.now();
      std::unique_ptr<server::TurnOrder> turns = std::make_unique<server::ArrivalOrder>();
      if (context_.options.replay != nullptr) {
        turns = std::make_unique<server::Replay>(*context_.options.replay);
      }
      TANDEM_ASSIGN_OR_RETURN(shard(id).core,
                              server::ShardCore::New(plan, id, incarnation, context_.buffers,
                                                     std::move(turns), server.budget.get()));
    }
  }
  return absl::OkStatus();
}

// The budget of a server; null without a limit. Ranges move, so a server may own all of them and
// hold the updates of the whole job. A checkpoint then takes two blocks of memory for each range:
// one for its rows and one for its candidates.
std::unique_ptr<server::MemoryBudget> SimServers::NewBudget() const {
  const WorldOptions& options = context_.options;
  if (options.row_bytes == 0) return nullptr;
  const job::ResolvedJob& plan = context_.plan;
  // A batch of the toy model may have more ids than one of the job, but less than twice as many.
  const size_t held =
      2 * static_cast<size_t>(job::HeldBytes(plan)) * static_cast<size_t>(plan.shards());
  const size_t copies = 2 * scheduler::DealRanges(plan).size() * server::CopyBlocks::kBytes;
  return std::make_unique<server::MemoryBudget>(options.row_bytes + held + copies, /*process=*/0,
                                                /*margin=*/copies, options.row_slack + held,
                                                /*for_copies=*/copies);
}

void SimServers::StartClocks() {
  for (int index = 0; index < context_.plan.servers(); ++index) StartClocksOf(index);
}

void SimServers::StartClocksOf(int index) {
  for (int s = 0; s < context_.plan.shards_per_server(); ++s) {
    const EndpointId id = EndpointId::Shard(index, s);
    context_.StartClock(id, [this, id] {
      shard(id).core->OnTick(context_.agenda.now(), &shard_effects_);
      AfterShard(id);
      DoTasks(id);  // one may wait for ranges on their way
    });
  }
  context_.processes.Every(EndpointId::Shard(index, 0), kSimBeat, [this, index] {
    Server& server = servers_[static_cast<size_t>(index)];
    scheduler_.Beat(EndpointId::Shard(index, 0), ++server.beats, 0,
                    server.shards[0].core->Waiting(context_.agenda.now()));
    TellMemoryFull(index);  // again: the scheduler ignores it before the job runs
  });
}

void SimServers::TellLastView(const View& view) {
  constexpr absl::Duration kLongestDelay = absl::Seconds(30);
  for (size_t server = 0; server < servers_.size(); ++server) {
    const int index = static_cast<int>(server);
    context_.processes.After(EndpointId::Shard(index, 0), kLongestDelay, [this, index, view] {
      if (servers_[static_cast<size_t>(index)].shards[0].core->ranges().view() == view.number()) {
        return;
      }
      Control control;
      *control.mutable_view() = view;
      OnControl(index, control);
    });
  }
}

bool SimServers::Settled(uint64_t view) const {
  for (const Server& server : servers_) {
    for (const Shard& shard : server.shards) {
      if (shard.core->ranges().view() != view || !shard.core->ranges().Settled()) return false;
    }
  }
  return true;
}

std::string SimServers::WhoWaits() const {
  std::string out;
  for (size_t index = 0; index < servers_.size(); ++index) {
    for (size_t s = 0; s < servers_[index].shards.size(); ++s) {
      const server::ShardCore& core = *servers_[index].shards[s].core;
      absl::StrAppend(&out, "  server ", index, " shard ", s, " view ", core.ranges().view(), ": ",
                      core.ranges().Settled() ? "" : "ranges on their way; ",
                      core.Waiting(context_.agenda.now()).text, "\n");
    }
  }
  return out;
}

// ---- a server and the tasks of its shards -----------------------------------------------------

void SimServers::OnControl(int index, const Control& control) {
  if (control.has_view() && ranges_ == nullptr) {
    absl::StatusOr<std::shared_ptr<const RangeMap>> map =
        RangeMap::FromView(control.view(), context_.plan.sizes());
    if (map.ok()) ranges_ = *std::move(map);
    context_.observer.OnRanges(ranges_);
  }
  servers_[static_cast<size_t>(index)].core->OnControl(control, &server_effects_);
  AfterServer(index);
}

void SimServers::AfterServer(int index) {
  const server::ServerCore& core = *servers_[static_cast<size_t>(index)].core;
  if (!core.failure().ok()) {
    context_.Fail(absl::StrCat("server ", index, ": ", core.failure().ToString()));
  }
  for (const Control& control : server_effects_.to_scheduler) {
    scheduler_.Send(EndpointId::Shard(index, 0), control);
  }
  std::vector<server::ShardTask> tasks;
  tasks.swap(server_effects_.tasks);
  server_effects_.Clear();
  // A task arrives at each shard at another time, but tasks arrive in order.
  for (const server::ShardTask& task : tasks) {
    for (int s = 0; s < context_.plan.shards_per_server(); ++s) {
      const EndpointId id = EndpointId::Shard(index, s);
      absl::Time& heard = shard(id).heard;
      heard = std::max(heard, context_.agenda.now() + context_.ViewDelay());
      context_.processes.At(id, heard, [this, id, task] {
        shard(id).tasks.push_back(task);
        DoTasks(id);
      });
    }
  }
}

// Does the tasks in order. Tasks after a checkpoint wait until it is marked.
void SimServers::DoTasks(EndpointId id) {
  while (!shard(id).tasks.empty() &&
         (shard(id).checkpoint == nullptr || shard(id).checkpoint->marked())) {
    const bool settles = shard(id).tasks.front().kind == server::ShardTask::Kind::kForgetWorker;
    if (settles && !shard(id).core->ranges().Settled()) return;
    const server::ShardTask task = std::move(shard(id).tasks.front());
    shard(id).tasks.pop_front();
    DoTask(id, task);
  }
}

void SimServers::DoTask(EndpointId id, const server::ShardTask& task) {
  server::ShardCore& core = *shard(id).core;
  absl::Status done;
  ShardReport report;
  switch (task.kind) {
    case server::ShardTask::Kind::kMark:
      shard(id).checkpoint = std::make_unique<server::ShardCheckpoint>(&core);
      shard(id).result = absl::OkStatus();
      return ContinueCheckpoint(id, task);
    case server::ShardTask::Kind::kCheckpoint:
      if (shard(id).checkpoint != nullptr) {
        shard(id).written = task.id;
        return;
      }
      done = shard(id).result;
      break;
    case server::ShardTask::Kind::kRefuseWrites:
      core.RefuseWrites(task.reason);
      break;
    case server::ShardTask::Kind::kView:
      context_.Log(absl::StrCat(id.DebugString(), " learns view ", task.map->view()));
      done = InstallView(id, task);
      break;
    case server::ShardTask::Kind::kFinishDelayed:
      context_.observer.OnDelayedFinished();
      core.FinishDelayed(&shard_effects_);
      AfterShard(id);
      break;
    case server::ShardTask::Kind::kReport:
      report = core.Report();
      break;
    case server::ShardTask::Kind::kForgetWorker:
      report = core.ForgetWorker(task.worker);
      break;
  }
  const bool reports = task.kind == server::ShardTask::Kind::kReport ||
                       task.kind == server::ShardTask::Kind::kForgetWorker;
  servers_[static_cast<size_t>(id.index)].core->OnShardDone(
      task.id, done, reports ? &report : nullptr, &server_effects_);
  AfterServer(id.index);
}

// The first view also loads the checkpoint, as in a live server.
absl::Status SimServers::InstallView(EndpointId id, const server::ShardTask& task) {
  server::ShardCore& core = *shard(id).core;
  const bool first = core.ranges().view() == 0;
  if (shard(id).checkpoint != nullptr) shard(id).checkpoint->BeforeView(*task.map);
  core.OnView(context_.agenda.now(), task.map, &shard_effects_);
  AfterShard(id);
  if (!first || !task.view->resume()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const server::CheckpointReader saved,
                          server::CheckpointReader::Open(task.view->init_from()));
  TANDEM_RETURN_IF_ERROR(saved.ResumeRanges(core.ranges().Owned(), context_.buffers));
  TANDEM_RETURN_IF_ERROR(core.OnLoaded());
  context_.observer.OnMemory(id.index);
  return absl::OkStatus();
}

// Marks a checkpoint, or copies one slice, then continues later. Files take no time.
void SimServers::ContinueCheckpoint(EndpointId id, const server::ShardTask& mark) {
  std::unique_ptr<server::ShardCheckpoint>& checkpoint = shard(id).checkpoint;
  if (checkpoint->marked()) {
    std::optional<server::ShardCheckpoint::File> file = checkpoint->Step(kBytesPerSlice);
    if (file.has_value()) {
      const absl::Status added =
          checkpoints_.AddRange(mark.path, file->name, std::move(*file->copy).Encode());
      if (!context_.processes.alive(id)) return;  // it has died while it wrote
      if (!added.ok() && !IsNoRoom(added)) return context_.Fail(added.ToString());
      shard(id).result = added;
    }
    context_.observer.OnMemory(id.index);
  } else if (checkpoint->MayMark()) {
    checkpoint->Mark();
    const ShardReport report = shard(id).core->Report();
    servers_[static_cast<size_t>(id.index)].core->OnShardDone(mark.id, absl::OkStatus(), &report,
                                                              &server_effects_);
    AfterServer(id.index);
    DoTasks(id);
  }
  if (checkpoint->done() || !shard(id).result.ok()) {
    checkpoint.reset();
    const uint64_t written = std::exchange(shard(id).written, 0);
    if (written == 0) return;
    servers_[static_cast<size_t>(id.index)].core->OnShardDone(written, shard(id).result, nullptr,
                                                              &server_effects_);
    return AfterServer(id.index);
  }
  context_.processes.After(id, context_.options.fetch * context_.random.NextDouble(),
                           [this, id, mark] { ContinueCheckpoint(id, mark); });
}

// ---- a shard ----------------------------------------------------------------------------------

void SimServers::OnFrame(EndpointId to, const ParsedFrame& frame) {
  shard(to).core->OnFrame(context_.agenda.now(), frame, &shard_effects_);
  if (frame.header.kind == FrameKind::kPush) context_.observer.OnPushTaken(to, frame);
  AfterShard(to);
}

void SimServers::AfterShard(EndpointId id) {
  for (const std::string& line : shard_effects_.log) {
    context_.Log(absl::StrCat(id.DebugString(), ": ", line));
    if (absl::StrContains(line, "refused") || absl::StrContains(line, "unusable")) {
      context_.Fail(line);
    }
  }
  if (!shard_effects_.failure.ok()) context_.Fail(shard_effects_.failure.ToString());
  std::string& memory_full = servers_[static_cast<size_t>(id.index)].memory_full;
  if (memory_full.empty() && !shard_effects_.memory_full.empty()) {
    memory_full = shard_effects_.memory_full;
    TellMemoryFull(id.index);
  }
  for (const server::OrderEntry& entry : shard_effects_.order) order_[entry.range].push_back(entry);
  records_.insert(records_.end(), shard_effects_.records.begin(), shard_effects_.records.end());
  context_.observer.AfterShard(id, shard_effects_);
  for (const Outgoing& out : shard_effects_.out) frames_.Send(out);
  shard_effects_.Clear();
}

void SimServers::TellMemoryFull(int index) {
  const std::string& reason = servers_[static_cast<size_t>(index)].memory_full;
  if (reason.empty()) return;
  Control control;
  control.mutable_memory_full()->set_reason(reason);
  scheduler_.Send(EndpointId::Shard(index, 0), control);
}

}  // namespace tandem::sim
