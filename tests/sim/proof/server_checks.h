// ServerChecks looks at the servers of a simulated world from outside. After an event it counts the
// running sums of a shard again, range by range and worker by worker, and compares. It also
// compares the memory budget of a server with the memory that its ranges and checkpoints use. Tests
// read rows and counts at any time.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TESTS_SIM_PROOF_SERVER_CHECKS_H_
#define TANDEM_TESTS_SIM_PROOF_SERVER_CHECKS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "policies/policy.h"
#include "proto/frame.h"
#include "server/shard_core.h"
#include "tools/sim/sim_context.h"
#include "tools/sim/sim_servers.h"

namespace tandem {

// An event of a range, in the order of events; see ServerChecks::events.
struct RangeEvent {
  bool read = false;  // true: a pull was answered; false: steps [first, step] were admitted
  int rank = 0;
  int64_t first = 0, step = 0;
};

class ServerChecks {
 public:
  // References must outlive this.
  ServerChecks(sim::SimContext& context, const sim::SimServers& servers);

  // After a push: its worker may have more open steps.
  void CountOpenSteps(EndpointId id, const ParsedFrame& push);
  // After an event of a shard.
  void CheckSums(EndpointId id);
  void CheckShares(EndpointId id);
  void Log(EndpointId id, const server::ShardEffects& effects);
  // After an event that can bring rows to this server.
  void CheckMemory(int index);

  // The row as a server would send it for an evaluation. Fails unless exactly one shard owns the
  // row, and if copies of it differ.
  std::vector<float> Row(uint32_t table, uint64_t key);
  server::UpdateStats Stats(uint32_t table) const;  // merged over all shards
  int64_t RowCount(uint32_t table) const;           // in all ranges of all shards
  server::RowCounts Counts(uint32_t table) const;   // merged over all shards
  // The version of the range that has this row; -1: no shard owns it.
  int64_t Version(uint32_t table, uint64_t key) const;
  // The largest number of steps of one worker that a range with a holding policy had admitted but
  // not closed yet.
  int64_t max_open_steps() const { return max_open_steps_; }
  // The events of each range, by id, in order, if Log was called after each event of a shard.
  const std::map<uint32_t, std::vector<RangeEvent>>& events() const { return events_; }

 private:
  const server::ShardCore& core(EndpointId id) const {
    return *servers_.all()[static_cast<size_t>(id.index)]
                .shards[static_cast<size_t>(id.shard)]
                .core;
  }
  std::vector<float> RowIn(uint32_t range, uint32_t table, uint64_t key);
  template <typename Sum>
  Sum SumOf(uint32_t table, Sum server::TableStats::*part) const;
  void LogAdmitted(EndpointId id);
  void LogReads(const server::ShardEffects& effects);

  sim::SimContext& context_;
  const sim::SimServers& servers_;
  const bool has_lru_;  // some table has LRU
  int64_t max_open_steps_ = 0;
  std::map<uint32_t, std::vector<RangeEvent>> events_;
  std::map<uint32_t, std::vector<int64_t>> admitted_;  // [range][rank]
  policies::RangeProgress plain_progress_;             // scratch
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_PROOF_SERVER_CHECKS_H_
