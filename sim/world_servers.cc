// The servers of a simulated world: the core that runs in a server process, and shards that hear of
// its tasks and do them when they do.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/world.h"

namespace tandem {
namespace {

constexpr size_t kRowsPerSlice = 5;  // of a save, so that frames come in between

}  // namespace

void World::OnServerControl(int index, const Control& control) {
  if (control.has_view() && first_map_ == nullptr) {
    absl::StatusOr<std::shared_ptr<const RangeMap>> map =
        RangeMap::FromView(control.view(), plan_.sizes());
    if (map.ok()) first_map_ = *std::move(map);
    if (judge_ != nullptr) judge_->set_ranges(first_map_);
  }
  servers_[index]->core->OnControl(control, &server_effects_);
  AfterServer(index);
}

void World::AfterServer(int index) {
  const ServerCore& core = *servers_[index]->core;
  if (!core.failure().ok()) Fail(absl::StrCat("server ", index, ": ", core.failure().ToString()));
  for (const Control& control : server_effects_.to_scheduler) {
    ToScheduler(EndpointId::Shard(index, 0), control);
  }
  std::vector<ShardTask> tasks;
  tasks.swap(server_effects_.tasks);
  server_effects_.Clear();
  // Each shard hears of a task when it does, but of all in order.
  for (const ShardTask& task : tasks) {
    for (int s = 0; s < plan_.shards_per_server(); ++s) {
      const EndpointId id = EndpointId::Shard(index, s);
      absl::Time& heard = servers_[id.index]->heard[id.shard];
      heard = std::max(heard, now_ + options_.view_delay * random_.NextDouble());
      At(heard, [this, id, task] {
        servers_[id.index]->tasks[id.shard].push_back(task);
        DoTasks(id);
      });
    }
  }
}

// In order; those behind a save wait for its end.
void World::DoTasks(EndpointId id) {
  Server& server = *servers_[id.index];
  while (server.saves[id.shard] == nullptr && !server.tasks[id.shard].empty()) {
    const ShardTask task = std::move(server.tasks[id.shard].front());
    server.tasks[id.shard].pop_front();
    if (task.kind == ShardTask::Kind::kSave) {
      server.saves[id.shard] = std::make_unique<ShardSave>(&shard(id));
      GoOnSaving(id, task);
      continue;
    }
    ShardReport report;
    const bool reports = task.kind == ShardTask::Kind::kReport;
    if (task.kind == ShardTask::Kind::kView) {
      trace_.Line(now_, absl::StrCat(id.DebugString(), " learns view ", task.map->view()));
      shard(id).OnView(now_, task.map, &shard_effects_);
      AfterShard(id);
    } else if (task.kind == ShardTask::Kind::kFinishDelayed) {
      if (judge_ != nullptr) judge_->OnDelayedFinished();
      shard(id).FinishDelayed(&shard_effects_);
      AfterShard(id);
    } else if (reports) {
      report = shard(id).Report();
    }
    server.core->OnShardDone(task.id, absl::OkStatus(), reports ? &report : nullptr,
                             &server_effects_);
    AfterServer(id.index);
  }
}

// A slice at a time; files are on the disk at once.
void World::GoOnSaving(EndpointId id, const ShardTask& task) {
  std::unique_ptr<ShardSave>& save = servers_[id.index]->saves[id.shard];
  absl::StatusOr<std::optional<ShardSave::File>> file = save->Step(kRowsPerSlice);
  if (!file.ok()) return Fail(file.status().ToString());
  if (file->has_value()) {
    const std::string bytes = (*file)->encoder.Finish();
    absl::StatusOr<RangeImage> image =
        DecodeRange({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    if (!image.ok()) return Fail(image.status().ToString());
    if (!saved_[task.path].emplace((*file)->name, *std::move(image)).second) {
      Fail(absl::StrCat((*file)->name, " is saved twice"));
    }
  }
  if (save->done()) {
    save.reset();
    servers_[id.index]->core->OnShardDone(task.id, absl::OkStatus(), nullptr, &server_effects_);
    AfterServer(id.index);
    return DoTasks(id);
  }
  After(options_.fetch * random_.NextDouble(), [this, id, task] { GoOnSaving(id, task); });
}

}  // namespace tandem
