// The servers of a simulated world. Each has the core of a server process (server/server_core.h),
// and shards, which execute the core's tasks after a random delay.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_SIM_SERVERS_H_
#define TANDEM_TOOLS_SIM_SIM_SERVERS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/range_map.h"
#include "server/rows/memory_budget.h"
#include "server/server_core.h"
#include "server/shard_checkpoint.h"
#include "server/shard_core.h"
#include "tools/sim/data_frames.h"
#include "tools/sim/sim_checkpoints.h"
#include "tools/sim/sim_context.h"
#include "tools/sim/sim_scheduler.h"

namespace tandem::sim {

class SimServers {
 public:
  struct Shard {
    std::unique_ptr<server::ShardCore> core;
    absl::Time heard;                                     // the time at which the last task arrives
    std::deque<server::ShardTask> tasks;                  // arrived, but not done
    std::unique_ptr<server::ShardCheckpoint> checkpoint;  // the current checkpoint; or null
    uint64_t written = 0;  // the task that waits for its files; 0: none
    absl::Status result;   // the last checkpoint's
  };
  struct Server {
    std::unique_ptr<server::ServerCore> core;
    std::unique_ptr<server::MemoryBudget> budget;  // null: none; outlives the shards
    std::vector<Shard> shards;
    std::string memory_full;  // ShardEffects::memory_full of the first shard that reported it
    uint64_t beats = 0;
  };

  // References must outlive this.
  SimServers(SimContext& context, SimScheduler& scheduler, DataFrames& frames,
             SimCheckpoints& checkpoints)
      : context_(context), scheduler_(scheduler), frames_(frames), checkpoints_(checkpoints) {}
  absl::Status Init();
  void StartClocks();

  void OnControl(int index, const Control& control);
  void OnFrame(EndpointId to, const ParsedFrame& frame);

  // The scheduler has ended with this view. Servers that were away for longer than the scheduler
  // waited have not got the view, and get it when no earlier message can arrive any more.
  void TellLastView(const View& view);
  // Whether every shard knows the view of this number and has its ranges.
  bool Settled(uint64_t view) const;
  // A line for each shard with what it waits for.
  std::string WhoWaits() const;

  // The ranges of the first view; null before it. Later ranges move, but are not split.
  const std::shared_ptr<const RangeMap>& ranges() const { return ranges_; }
  const std::vector<Server>& all() const { return servers_; }
  const std::vector<server::UpdateRecord>& records() const { return records_; }
  const std::map<uint32_t, std::vector<server::OrderEntry>>& order() const { return order_; }

 private:
  Shard& shard(EndpointId id) {
    return servers_[static_cast<size_t>(id.index)].shards[static_cast<size_t>(id.shard)];
  }
  std::unique_ptr<server::MemoryBudget> NewBudget() const;
  void StartClocksOf(int index);
  void AfterServer(int index);
  void DoTasks(EndpointId id);
  void DoTask(EndpointId id, const server::ShardTask& task);
  absl::Status InstallView(EndpointId id, const server::ShardTask& task);
  void ContinueCheckpoint(EndpointId id, const server::ShardTask& mark);
  void AfterShard(EndpointId id);
  void TellMemoryFull(int index);

  SimContext& context_;
  SimScheduler& scheduler_;
  DataFrames& frames_;
  SimCheckpoints& checkpoints_;
  std::vector<Server> servers_;
  server::ShardEffects shard_effects_;
  server::ServerEffects server_effects_;
  std::shared_ptr<const RangeMap> ranges_;
  std::vector<server::UpdateRecord> records_;
  std::map<uint32_t, std::vector<server::OrderEntry>> order_;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_SIM_SERVERS_H_
