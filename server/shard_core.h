// One shard: a deterministic state machine over the key ranges it owns. Frames in, frames out; no
// socket, thread, clock or file inside (server_shell.h owns those), so the same code serves in
// production and in the simulator.
//
// What it does with a frame:
//   PULL   answers ROWS, now or when the policy allows it; meanwhile WAITING every second
//   PUSH   admits each slice exactly once and in the worker's order; answers ACK when all are held
//          or applied, or WRONG_VIEW for slices of ranges it does not own
//   (what workers keep of rows that have been read is sent anew when it has changed: REFRESH)
//   STORE  reads and writes rows of STORE tables at once (store_answer.h); answers STORED
//   views  sends ranges that moved away to their new owner, with everything they hold, until the
//          new owner has confirmed; installs ranges that move in
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
#include "server/replay.h"
#include "server/wait_log.h"

namespace tandem::server {

struct ShardEffects {
  std::vector<Outgoing> out;
  bool urgent = false;                // `out` holds more than acknowledgements
  std::vector<UpdateRecord> records;  // if the job records staleness
  std::vector<OrderEntry> order;      // if it records the order of updates
  absl::Status failure;               // the shard cannot go on
  std::vector<std::string> log;       // one line each: refused frames, moved ranges

  // Acknowledgements may wait until no more frames have come in: sending each of them would hold
  // up the pushes behind it.
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

// Lines about what other processes send, who choose how much that is: the first kMost of them.
class PeerLog {
 public:
  static constexpr int kMost = 100;
  void Add(std::string line, ShardEffects* effects);

 private:
  int lines_ = 0;
};

class ShardCore {
 public:
  // `plan` and `buffers` outlive the core. `incarnation` marks frames of this process. `replay`: the
  // order of a recorded run, that this one is to take; or null.
  static absl::StatusOr<std::unique_ptr<ShardCore>> New(const job::JobPlan& plan, EndpointId self,
                                                        uint64_t incarnation, BufferSource& buffers,
                                                        std::unique_ptr<Replay> replay = nullptr);
  ~ShardCore();

  void OnView(absl::Time now, std::shared_ptr<const RangeMap> view, ShardEffects* effects);
  void OnFrame(absl::Time now, const ParsedFrame& frame, ShardEffects* effects);
  // Call at least every 100 ms.
  void OnTick(absl::Time now, ShardEffects* effects);

  // Applies what fixed-delay policies still hold back; at a barrier, before the last evaluation.
  void FinishDelayed(ShardEffects* effects);

  // Ranges owned now, for saving, loading and tests. Pointers are valid until the next call.
  std::vector<Range*> OwnedRanges();
  const Range* FindRange(uint32_t range) const;  // null: not here
  // Whether the range is one of the copy that is saved, where a table has several.
  bool IsFirstCopy(uint32_t range) const { return map_->range(range).copy == 0; }
  // True if exactly the ranges that this view gives to the shard are here, and none is on its way
  // out: a save may be written. (A view that has not come yet may still take some away.)
  bool Settled() const;
  uint32_t view() const { return map_ == nullptr ? 0 : map_->view(); }
  size_t held_bytes() const;
  // The read that waits longest, and whom it waits for; no text if none waits.
  Activity Waiting(absl::Time now) const;

  ShardReport Report() const;
  const std::vector<std::unique_ptr<TableContext>>& tables() const { return tables_; }

 private:
  struct Slice {
    SliceEntry entry;
    size_t key_offset = 0;    // bytes in the keys part
    size_t value_offset = 0;  // bytes in the values part
    bool settled = false;
  };
  // A read that may not be answered yet; or a push with slices that came before an earlier step of the
  // same worker, or, in a replay, before what stands before it in the recorded order.
  struct Parked {
    ParsedFrame frame;
    std::vector<Slice> slices;
    absl::Time since;
    absl::Time next_notice;
  };
  // On its way to the owner that caused the move. Should that one lose the range meanwhile, it
  // forwards what it gets: there is never a second copy on a second way.
  struct OutgoingMove {
    EndpointId to;
    Buffer image;
    uint32_t view = 0;  // the one that caused the move
    absl::Time next_send;
  };
  struct Traffic {  // bytes
    uint64_t pull = 0, rows = 0, push = 0, ack = 0, refresh = 0, control = 0;
  };
  struct IncomingRange {
    RangeImage image;
    uint32_t view = 0;
  };

  ShardCore(const job::JobPlan& plan, EndpointId self, uint64_t incarnation, BufferSource& buffers,
            std::unique_ptr<Replay> replay);
  absl::Status Init();

  void OnPull(absl::Time now, const ParsedFrame& frame, ShardEffects* effects);
  void OnPush(absl::Time now, const ParsedFrame& frame, ShardEffects* effects);
  void OnControl(absl::Time now, const ParsedFrame& frame, ShardEffects* effects);
  void OnRangeData(absl::Time now, const ParsedFrame& frame, const RangeData& data,
                   ShardEffects* effects);

  bool CutSlices(const ParsedFrame& frame, std::vector<Slice>* slices, std::string* why) const;
  void CheckOwners(std::vector<Slice>* slices) const;
  bool MayServe(const ParsedFrame& frame, const std::vector<Slice>& slices) const;
  void AnswerRead(absl::Time now, const ParsedFrame& frame, std::vector<Slice>* slices,
                  ShardEffects* effects);
  size_t RowFloats(const ParsedFrame& frame, const Slice& slice) const;
  std::vector<Slice> KeepSlices(const std::vector<Slice>& slices);
  void ServeParked(absl::Time now, int freed_by, ShardEffects* effects);
  void NotifyWaiting(absl::Time now, ShardEffects* effects);
  bool AdmitSlices(absl::Time now, const ParsedFrame& frame, std::vector<Slice>* slices,
                   ShardEffects* effects);
  void AdmitSlice(absl::Time now, const ParsedFrame& frame, Slice* slice, ShardEffects* effects);
  void ParkEarly(absl::Time now, const ParsedFrame& frame, const std::vector<Slice>& slices);
  void RetryEarly(absl::Time now, ShardEffects* effects);
  void GoOn(absl::Time now, int freed_by, ShardEffects* effects);
  void Acknowledge(const ParsedFrame& frame, absl::Span<const Slice> slices, ShardEffects* effects);
  void InstallRange(uint32_t id, const RangeImage* image, uint32_t view, ShardEffects* effects);
  void MoveAway(absl::Time now, uint32_t id, ShardEffects* effects);
  void SendMove(absl::Time now, uint32_t id, OutgoingMove* move, ShardEffects* effects);
  int64_t MinClock(uint32_t group) const;
  FrameHeader AnswerHeader(const ParsedFrame& frame, FrameKind kind) const;

  const job::JobPlan& plan_;
  const EndpointId self_;
  const uint64_t incarnation_;
  BufferSource& buffers_;
  std::vector<std::unique_ptr<policies::UpdatePolicy>> policies_;  // by group
  std::vector<std::unique_ptr<optim::RowOptimizer>> optimizers_;   // by table
  std::vector<std::unique_ptr<TableContext>> tables_;              // by table
  FoldScratch scratch_;
  std::vector<UpdateRecord> records_;
  std::vector<OrderEntry> order_;
  const std::unique_ptr<Replay> replay_;  // null: the order is that of arrival

  std::shared_ptr<const RangeMap> map_;
  std::vector<std::unique_ptr<Range>> owned_;  // by range id; null if not owned
  std::vector<Parked> parked_;                 // reads
  std::vector<Parked> early_;                  // pushes
  WaitLog waits_;
  std::vector<std::vector<Slice>> spare_slices_;  // memory of what was parked
  bool delayed_finished_ = false;                 // holds for ranges that arrive later, too
  std::map<uint32_t, OutgoingMove> moves_;        // ranges on their way out
  std::map<uint32_t, IncomingRange> arrivals_;    // came before the view that says so
  std::map<uint32_t, uint32_t> newest_arrival_;   // by range: the view of the last move taken in
  std::vector<Slice> slices_;                     // scratch
  std::vector<SliceEntry> entries_;               // scratch
  RefreshRows refresh_rows_;                      // likewise
  Traffic bytes_;
  PeerLog peer_log_;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SHARD_CORE_H_
