// The ranges of a shard: those that it owns, and those on their way to it or away from it. A range
// moves in three phases:
//   1. the old owner encodes the range, removes it and sends the bytes;
//   2. the new owner installs the range and confirms;
//   3. the old owner stops sending.
// Frames may be lost and may arrive in any order. So the old owner resends until the new owner
// confirms, the range may arrive before the view that announces it, and a late copy must not be
// installed a second time.
//
// Thread safety: none needed; belongs to a shard.
#ifndef TANDEM_SERVER_SHARD_RANGES_H_
#define TANDEM_SERVER_SHARD_RANGES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "proto/frame.h"
#include "proto/range_map.h"
#include "server/range.h"
#include "server/range_totals.h"
#include "server/shard_effects.h"

namespace tandem::server {

class ShardRanges {
 public:
  // `tables` (by id), `buffers` and `log` outlive this object. `incarnation` marks frames of this
  // process.
  ShardRanges(EndpointId self, uint64_t incarnation,
              const std::vector<std::unique_ptr<TableContext>>& tables, BufferSource& buffers,
              PeerLog& log)
      : self_(self), incarnation_(incarnation), tables_(tables), buffers_(buffers), log_(log) {}

  // Brings the owned ranges in line with a newer view. False: the view is not newer.
  bool OnView(absl::Time now, std::shared_ptr<const RangeMap> view, ShardEffects* effects);
  // Takes over a range that moves, and confirms it. False: the frame is ignored.
  bool OnRangeData(absl::Time now, const ParsedFrame& frame, const RangeData& data,
                   ShardEffects* effects);
  // The new owner has confirmed a move; `id` is from its message.
  void OnConfirmed(uint64_t id);
  // Resends what has not been confirmed.
  void OnTick(absl::Time now, ShardEffects* effects);
  // Applies the updates that policies still hold back, also in ranges that arrive later.
  void FinishDelayed();

  // Null before the first view.
  const RangeMap* map() const { return map_.get(); }
  uint32_t view() const { return map_ == nullptr ? 0 : map_->view(); }
  // By id; null if not owned. Pointers are valid until the next call that changes ranges.
  absl::Span<const std::unique_ptr<Range>> by_id() const { return owned_; }
  Range* Find(uint32_t id) const { return id < owned_.size() ? owned_[id].get() : nullptr; }
  std::vector<Range*> Owned() const;
  // True if the range belongs to the first copy of its table. Only that copy is saved.
  bool IsFirstCopy(uint32_t id) const { return map_->range(id).copy == 0; }
  // True if the shard has exactly the ranges that its view gives to it, and none is being sent
  // away. Then a checkpoint may be written. (A newer view, not received yet, may still take ranges
  // away.)
  bool Settled() const;
  size_t held_bytes() const { return totals_.held_bytes(); }
  // The smallest clock of the owned ranges of a group.
  int64_t MinClock(uint32_t group) const { return totals_.MinClock(group); }
  RangeTotals& totals() { return totals_; }
  // The header of a frame that the shard sends, with the view that it knows.
  FrameHeader NewHeader() const;

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
  struct IncomingRange {
    RangeImage image;
    uint32_t view = 0;
  };

  void Install(uint32_t id, const RangeImage* image, uint32_t view, ShardEffects* effects);
  void MoveAway(absl::Time now, uint32_t id, ShardEffects* effects);
  void SendMove(absl::Time now, uint32_t id, OutgoingMove* move, ShardEffects* effects);

  const EndpointId self_;
  const uint64_t incarnation_;
  const std::vector<std::unique_ptr<TableContext>>& tables_;
  BufferSource& buffers_;
  PeerLog& log_;
  FoldScratch scratch_;
  RangeTotals totals_;  // of owned_
  std::shared_ptr<const RangeMap> map_;
  std::vector<std::unique_ptr<Range>> owned_;    // by id
  bool delayed_finished_ = false;                // applies to ranges that arrive later, too
  std::map<uint32_t, OutgoingMove> moves_;       // ranges on their way out
  std::map<uint32_t, IncomingRange> arrivals_;   // arrived before the view that announces them
  std::map<uint32_t, uint32_t> newest_arrival_;  // by range: the view of the last move accepted
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SHARD_RANGES_H_
