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
#include "server/memory_budget.h"
#include "server/server_core.h"
#include "server/shard_checkpoint.h"
#include "server/shard_core.h"
#include "tools/sim/checkpoint_check.h"
#include "tools/sim/data_frames.h"
#include "tools/sim/sim_context.h"
#include "tools/sim/sim_scheduler.h"

namespace tandem::sim {

// An event of a range, in the order of events; see SimServers::events.
struct RangeEvent {
  bool read = false;  // true: a pull was answered; false: steps [first, step] were admitted
  int rank = 0;
  int64_t first = 0, step = 0;
};

class SimServers {
 public:
  // References must outlive this.
  SimServers(SimContext& context, SimScheduler& scheduler, DataFrames& frames,
             CheckpointCheck& checkpoints)
      : context_(context), scheduler_(scheduler), frames_(frames), checkpoints_(checkpoints) {}
  absl::Status Init();
  void StartClocks();

  void OnControl(int index, const Control& control);
  void OnFrame(EndpointId to, const ParsedFrame& frame);

  // Whether every shard knows the view of this number and has its ranges.
  bool Settled(uint64_t view) const;
  // A line for each shard with what it waits for.
  std::string WhoWaits() const;

  // The ranges of the first view; null before it. Later ranges move, but are not split.
  const std::shared_ptr<const RangeMap>& ranges() const { return ranges_; }
  // The row as a server would send it for an evaluation. Fails unless exactly one shard owns the
  // row, and if copies of it differ.
  std::vector<float> Row(uint32_t table, uint64_t key);
  server::UpdateStats Stats(uint32_t table) const;  // merged over all shards
  int64_t RowCount(uint32_t table) const;           // in all ranges of all shards
  server::RowCounts Counts(uint32_t table) const;   // merged over all shards
  // The version of the range that has this row; -1: no shard owns it.
  int64_t Version(uint32_t table, uint64_t key) const;
  const std::vector<server::UpdateRecord>& records() const { return records_; }
  const std::map<uint32_t, std::vector<server::OrderEntry>>& order() const { return order_; }
  // The largest number of steps of one worker that a range with a holding policy had admitted but
  // not closed yet.
  int64_t most_open_steps() const { return most_open_steps_; }
  // With log_events: the events of each range, by id, in order.
  const std::map<uint32_t, std::vector<RangeEvent>>& events() const { return events_; }

 private:
  template <typename Sum>
  Sum SumOf(uint32_t table, Sum server::TableStats::*part) const;

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

  Shard& shard(EndpointId id) {
    return servers_[static_cast<size_t>(id.index)].shards[static_cast<size_t>(id.shard)];
  }
  std::vector<float> RowIn(uint32_t range, uint32_t table, uint64_t key);
  std::unique_ptr<server::MemoryBudget> NewBudget() const;
  void StartClocksOf(int index);
  void AfterServer(int index);
  void DoTasks(EndpointId id);
  void DoTask(EndpointId id, const server::ShardTask& task);
  absl::Status InstallView(EndpointId id, const server::ShardTask& task);
  void ContinueCheckpoint(EndpointId id, const server::ShardTask& mark);
  void AfterShard(EndpointId id);
  void CountOpenSteps(EndpointId id, const ParsedFrame& push);
  void CheckSums(EndpointId id);
  void CheckShares(EndpointId id);
  void CheckMemory(int index);
  void TellMemoryFull(int index);
  void LogAdmitted(EndpointId id);
  void LogReads();

  SimContext& context_;
  SimScheduler& scheduler_;
  DataFrames& frames_;
  CheckpointCheck& checkpoints_;
  bool has_lru_ = false;  // some table has LRU
  std::vector<Server> servers_;
  server::ShardEffects shard_effects_;
  server::ServerEffects server_effects_;
  std::shared_ptr<const RangeMap> ranges_;
  std::vector<server::UpdateRecord> records_;
  std::map<uint32_t, std::vector<server::OrderEntry>> order_;
  int64_t most_open_steps_ = 0;
  std::map<uint32_t, std::vector<RangeEvent>> events_;
  std::map<uint32_t, std::vector<int64_t>> admitted_;  // [range][rank], with log_events
  policies::RangeProgress plain_progress_;             // scratch
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_SIM_SERVERS_H_
