// One shard: a deterministic state machine over the key ranges that it owns. Frames go in and out.
// There is no socket, thread, clock or file inside (server_shell.h owns those), so the same code
// runs in production and in the simulator.
//
// The shard handles these inputs:
//   PULL   answers ROWS, now or when the policy allows it; until then sends WAITING every second
//   PUSH   admits each slice exactly once and in the worker's order; answers ACK when all slices
//          are held or applied, with WRONG_VIEW for slices of ranges that it does not own
//   STORE  reads and writes rows of KEY_VALUE tables at once (store_answer.h); answers STORED
//   views  sends each range that moved away to its new owner, with everything it holds, until the
//          new owner confirms; installs ranges that move in
// Without being asked, it sends REFRESH to workers that keep rows (ESSP) when those have changed.
//
// Thread safety: none needed; one thread.
#ifndef TANDEM_SERVER_SHARD_CORE_H_
#define TANDEM_SERVER_SHARD_CORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/buffer.h"
#include "job/job.h"
#include "policies/policy.h"
#include "proto/activity.h"
#include "proto/frame.h"
#include "proto/outgoing.h"
#include "proto/range_map.h"
#include "server/range.h"
#include "server/refresh_frames.h"
#include "server/turn_order.h"
#include "server/wait_log.h"
#include "server/waiting_frames.h"

namespace tandem::server {

struct ShardEffects {
  std::vector<Outgoing> out;
  bool urgent = false;                // `out` holds more than acknowledgements
  std::vector<UpdateRecord> records;  // if the job records staleness
  std::vector<OrderEntry> order;      // if the job records the order of updates
  absl::Status failure;               // not OK: the shard cannot continue
  std::vector<std::string> log;       // one line each: refused frames, moved ranges

  // Acknowledgements may wait until no more frames have come in. Sending each one at once would
  // delay the pushes behind it.
  bool MustSend() const { return urgent || out.size() >= 16; }
  void ClearOut() {
    out.clear();
    urgent = false;
  }
  void Clear() {
    ClearOut();
    records.clear();
    order.clear();
    log.clear();
  }
};

// Logs lines about frames from other processes, but only the first kMost lines. Otherwise those
// processes could fill the log.
class PeerLog {
 public:
  static constexpr int kMost = 100;
  void Add(std::string line, ShardEffects* effects);

 private:
  int lines_ = 0;
};

class ShardCore {
 public:
  // `plan` and `buffers` outlive the core. `incarnation` marks frames of this process.
  static absl::StatusOr<std::unique_ptr<ShardCore>> New(
      const job::ResolvedJob& plan, EndpointId self, uint64_t incarnation, BufferSource& buffers,
      std::unique_ptr<TurnOrder> turns = std::make_unique<ArrivalOrder>());
  ~ShardCore();

  void OnView(absl::Time now, std::shared_ptr<const RangeMap> view, ShardEffects* effects);
  void OnFrame(absl::Time now, const ParsedFrame& frame, ShardEffects* effects);
  // Call at least every 100 ms.
  void OnTick(absl::Time now, ShardEffects* effects);

  // Applies the updates that policies still hold back. Called at a barrier before the last
  // evaluation: all workers wait there, so no push can arrive while the last updates become
  // visible.
  void FinishDelayed(ShardEffects* effects);

  // Ranges owned now, for saving, loading and tests. Pointers are valid until the next call.
  std::vector<Range*> OwnedRanges();
  const Range* FindRange(uint32_t range) const;  // null: not here
  // True if the range belongs to the first copy of its table. Only that copy is saved.
  bool IsFirstCopy(uint32_t range) const { return map_->range(range).copy == 0; }
  // True if the shard has exactly the ranges that its view gives to it, and none is being sent
  // away. Then a checkpoint may be written. (A newer view, not received yet, may still take ranges
  // away.)
  bool Settled() const;
  uint32_t view() const { return map_ == nullptr ? 0 : map_->view(); }
  size_t held_bytes() const;
  // The read that has waited longest, and whom it waits for. The text is empty if none waits.
  Activity Waiting(absl::Time now) const;

  ShardReport Report() const;
  const std::vector<std::unique_ptr<TableContext>>& tables() const { return tables_; }

 private:
  // A range on its way to its new owner. If that one loses the range in a newer view before it
  // arrives, it receives the range all the same and forwards it. So there is never a second copy on
  // another way.
  struct OutgoingMove {
    EndpointId to;
    Buffer image;
    uint32_t view = 0;  // number of the view that caused the move
    absl::Time next_send;
  };
  struct Traffic {  // bytes
    uint64_t pull = 0, rows = 0, push = 0, ack = 0, refresh = 0, control = 0;
  };
  struct IncomingRange {
    RangeImage image;
    uint32_t view = 0;
  };

  ShardCore(const job::ResolvedJob& plan, EndpointId self, uint64_t incarnation,
            BufferSource& buffers, std::unique_ptr<TurnOrder> turns);
  absl::Status Init();

  void OnPull(absl::Time now, const ParsedFrame& frame, ShardEffects* effects);
  void OnPush(absl::Time now, const ParsedFrame& frame, ShardEffects* effects);
  void OnControl(absl::Time now, const ParsedFrame& frame, ShardEffects* effects);
  void OnRangeData(absl::Time now, const ParsedFrame& frame, const RangeData& data,
                   ShardEffects* effects);

  bool CutSlices(const ParsedFrame& frame, std::vector<Slice>* slices, std::string* why) const;
  void CheckOwners(std::vector<Slice>* slices) const;
  bool MayServe(const ParsedFrame& frame, const std::vector<Slice>& slices) const;
  bool AnswerRead(absl::Time now, const ParsedFrame& frame, std::vector<Slice>* slices,
                  ShardEffects* effects);
  size_t RowFloats(const ParsedFrame& frame, const Slice& slice) const;
  bool ServeWaitingReads(absl::Time now, int freed_by, ShardEffects* effects);
  bool FindAwaited(absl::Time now, const WaitingFrame& waits, SliceEntry* notice) const;
  void NotifyWaiting(absl::Time now, ShardEffects* effects);
  bool AdmitSlices(absl::Time now, const ParsedFrame& frame, std::vector<Slice>* slices,
                   ShardEffects* effects);
  void AdmitSlice(absl::Time now, const ParsedFrame& frame, Slice* slice, ShardEffects* effects);
  void RetryEarly(absl::Time now, ShardEffects* effects);
  void GoOn(absl::Time now, int freed_by, ShardEffects* effects);
  void Acknowledge(const ParsedFrame& frame, absl::Span<const Slice> slices, ShardEffects* effects);
  void InstallRange(uint32_t id, const RangeImage* image, uint32_t view, ShardEffects* effects);
  void MoveAway(absl::Time now, uint32_t id, ShardEffects* effects);
  void SendMove(absl::Time now, uint32_t id, OutgoingMove* move, ShardEffects* effects);
  int64_t MinClock(uint32_t group) const;
  FrameHeader AnswerHeader(const ParsedFrame& frame, FrameKind kind) const;

  const job::ResolvedJob& plan_;
  const EndpointId self_;
  const uint64_t incarnation_;
  BufferSource& buffers_;
  std::vector<std::unique_ptr<policies::UpdatePolicy>> policies_;  // by group
  std::vector<std::unique_ptr<optim::RowOptimizer>> optimizers_;   // by table
  std::vector<std::unique_ptr<TableContext>> tables_;              // by table
  FoldScratch scratch_;
  std::vector<UpdateRecord> records_;
  std::vector<OrderEntry> order_;
  const std::unique_ptr<TurnOrder> turns_;

  std::shared_ptr<const RangeMap> map_;
  std::vector<std::unique_ptr<Range>> owned_;  // by range id; null if not owned
  WaitingFrames waiting_reads_;
  // Pushes that a range may not admit yet, because an earlier step of the same worker has not come
  // or because of the order of turns.
  WaitingFrames early_;
  WaitLog waits_;
  bool delayed_finished_ = false;                // applies to ranges that arrive later, too
  std::map<uint32_t, OutgoingMove> moves_;       // ranges on their way out
  std::map<uint32_t, IncomingRange> arrivals_;   // arrived before the view that announces them
  std::map<uint32_t, uint32_t> newest_arrival_;  // by range: the view of the last move accepted
  std::vector<Slice> slices_;                    // scratch
  std::vector<SliceEntry> entries_;              // scratch
  RefreshRows refresh_rows_;                     // scratch
  Traffic bytes_;
  PeerLog peer_log_;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SHARD_CORE_H_
