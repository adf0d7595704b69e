// One shard: a deterministic state machine over the key ranges that it owns. Frames go in and out.
// There is no socket, thread, clock or file inside (server_shell.h owns those), so the same code
// runs in production and in the simulator.
//
// If there is no memory for a row, the shard cannot continue (ShardEffects::failure). Its owner
// then sends nothing more, because the shard could acknowledge an incomplete update.
//
// The shard handles these inputs:
//   PULL   answers ROWS, now or when the policy allows it; until then sends WAITING every second
//   PUSH   admits each slice exactly once and in the worker's order; answers ACK when all slices
//          are held or applied, with WRONG_VIEW for slices of ranges that it does not own
//   STORE  reads and writes rows of KEY_VALUE tables at once (store_answer.h); answers STORED
//   views  sends each range that moved away to its new owner, with everything it holds; installs
//          ranges that move in (shard_ranges.h)
// Without being asked, it sends REFRESH to workers that keep rows (ESSP) when those have changed.
//
// Thread safety: none needed; one thread.
#ifndef TANDEM_SERVER_SHARD_CORE_H_
#define TANDEM_SERVER_SHARD_CORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/buffer.h"
#include "job/job.h"
#include "policies/policy.h"
#include "proto/activity.h"
#include "proto/frame.h"
#include "proto/range_map.h"
#include "server/record/turn_order.h"
#include "server/refresh_frames.h"
#include "server/rows/memory_budget.h"
#include "server/rows/page_arena.h"
#include "server/shard_effects.h"
#include "server/shard_ranges.h"
#include "server/wait_log.h"
#include "server/waiting_frames.h"

namespace tandem::server {

class ShardCore {
 public:
  // `plan`, `buffers` and `budget` outlive the core. `incarnation` marks frames of this process.
  // `budget`: the memory of the process; null: no limit.
  static absl::StatusOr<std::unique_ptr<ShardCore>> New(
      const job::ResolvedJob& plan, EndpointId self, uint64_t incarnation, BufferSource& buffers,
      std::unique_ptr<TurnOrder> turns = std::make_unique<ArrivalOrder>(),
      MemoryBudget* budget = nullptr);

  void OnView(absl::Time now, std::shared_ptr<const RangeMap> view, ShardEffects* effects);
  // The ranges have got the rows of a checkpoint, after the first view. A MemoryFullError if rows
  // would end the job as soon as they grow.
  absl::Status OnLoaded();
  void OnFrame(absl::Time now, const ParsedFrame& frame, ShardEffects* effects);
  // Call at least every 100 ms.
  void OnTick(absl::Time now, ShardEffects* effects);

  // Applies the updates that policies still hold back. Called at a barrier before the last
  // evaluation: all workers wait there, so no push can arrive while the last updates become
  // visible.
  void FinishDelayed(ShardEffects* effects);

  // The process of worker `rank` in the present view has died. The shard takes no more frames of
  // this process, and drops its waiting frames. Returns a report of the number of its steps that
  // the ranges have. No late frame changes this number. Requires: ranges().Settled(), so that each
  // range is counted by one shard.
  ShardReport ForgetWorker(int rank);

  // Refuses writes to KEY_VALUE tables from now on because of `reason`; empty: takes them again.
  void RefuseWrites(const std::string& reason) { refuses_writes_ = reason; }

  const ShardRanges& ranges() const { return ranges_; }
  // The memory of the rows.
  const PageArena& arena() const { return arena_; }
  MemoryBudget* budget() const { return budget_; }
  // The read that has waited longest, and whom it waits for. The text is empty if none waits.
  Activity Waiting(absl::Time now) const;
  // For tests: false if the shard lets a read wait that it may answer.
  bool WaitingReadsMustWait() const;

  ShardReport Report() const;
  const std::vector<std::unique_ptr<TableContext>>& tables() const { return tables_; }

 private:
  struct Traffic {  // bytes
    uint64_t pull = 0, rows = 0, push = 0, ack = 0, refresh = 0, control = 0;
  };

  ShardCore(const job::ResolvedJob& plan, EndpointId self, uint64_t incarnation,
            BufferSource& buffers, std::unique_ptr<TurnOrder> turns, MemoryBudget* budget);
  absl::Status Init();

  void OnPull(absl::Time now, const ParsedFrame& frame, ShardEffects* effects);
  void OnPush(absl::Time now, const ParsedFrame& frame, ShardEffects* effects);
  void OnControl(absl::Time now, const ParsedFrame& frame, ShardEffects* effects);

  bool CutSlices(const ParsedFrame& frame, std::vector<Slice>* slices, std::string* why) const;
  void CheckOwners(std::vector<Slice>* slices) const;
  std::optional<uint32_t> FindBlocked(const ParsedFrame& frame,
                                      const std::vector<Slice>& slices) const;
  bool AnswerRead(absl::Time now, const ParsedFrame& frame, std::vector<Slice>* slices,
                  ShardEffects* effects);
  // Words of 4 bytes of each row of a read.
  size_t RowWords(const Slice& slice) const;
  bool ServeWaitingReads(absl::Time now, int freed_by, ShardEffects* effects);
  bool FindAwaited(absl::Time now, const WaitingFrame& waits, SliceEntry* notice) const;
  void NotifyWaiting(absl::Time now, ShardEffects* effects);
  bool AdmitSlices(absl::Time now, const ParsedFrame& frame, std::vector<Slice>* slices,
                   ShardEffects* effects);
  bool AdmitSlice(absl::Time now, const ParsedFrame& frame, Slice* slice, ShardEffects* effects);
  void RetryEarly(absl::Time now, ShardEffects* effects);
  void WakeRange(uint32_t range);
  void WakeAtChangedRanges();
  void ServeWaiting(absl::Time now, int freed_by, ShardEffects* effects);
  void Acknowledge(const ParsedFrame& frame, absl::Span<const Slice> slices, ShardEffects* effects);
  void Give(ShardEffects* effects);
  void WatchMemory(ShardEffects* effects);
  FrameHeader AnswerHeader(const ParsedFrame& frame, FrameKind kind) const;

  const job::ResolvedJob& plan_;
  const EndpointId self_;
  BufferSource& buffers_;
  MemoryBudget* const budget_;                                     // null: none
  PageArena arena_;                                                // outlives the ranges
  std::vector<std::unique_ptr<policies::UpdatePolicy>> policies_;  // by group
  std::vector<std::unique_ptr<optim::RowOptimizer>> optimizers_;   // by table
  std::vector<std::unique_ptr<TableContext>> tables_;              // by table
  std::vector<UpdateStats> workers_;                               // TableContext::over_tables
  std::vector<UpdateRecord> records_;
  std::vector<OrderEntry> order_;
  const std::unique_ptr<TurnOrder> turns_;

  PeerLog peer_log_;
  ShardRanges ranges_;
  WaitingFrames waiting_reads_;
  // Pushes that a range may not admit yet, because an earlier step of the same worker has not come
  // or because of the order of turns.
  WaitingFrames early_;
  std::set<uint64_t> forgotten_;  // incarnations of dead workers
  std::string refuses_writes_;    // to KEY_VALUE tables, because of this; empty: takes them
  WaitLog waits_;
  std::vector<Slice> slices_;        // scratch
  std::vector<SliceEntry> entries_;  // scratch
  std::vector<uint32_t> range_ids_;  // scratch: where a push waits
  std::vector<uint32_t> changed_;    // scratch: ranges
  RefreshRows refresh_rows_;         // scratch
  std::vector<float> pulled_;        // scratch
  Traffic bytes_;
  MemoryBudget::Part held_;   // bytes of held updates, in the budget
  size_t last_resident_ = 0;  // of the arena, when WatchMemory last looked
  bool grew_ = false;         // rows have grown since the server has been nearly full
  bool told_of_memory_;       // ShardEffects::memory_full has been given, or never will be
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SHARD_CORE_H_
