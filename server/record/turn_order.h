// The order in which a shard answers reads and admits pushes. The shard asks for the turn of each
// frame, and does not know who decides it. There are two orders: the order of arrival (below), and
// the order of a recorded run (replay.h).
//
// While a frame waits for its turn at a range, the shard asks again after each push of the frame's
// worker, and when the front of the range (policies::Front) has changed. If the order was decided
// elsewhere, the shard also asks after each push and each counted read of the range.
//
// Thread safety: none needed; belongs to a shard.
#ifndef TANDEM_SERVER_RECORD_TURN_ORDER_H_
#define TANDEM_SERVER_RECORD_TURN_ORDER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/frame.h"
#include "server/record/order_file.h"
#include "server/rows/held_updates.h"

namespace tandem::server {

class TurnOrder {
 public:
  virtual ~TurnOrder() = default;

  // True if the order was decided elsewhere. The memory budget was checked there, too, and pushes
  // may arrive earlier here than there, and wait. So the shard does not check the budget.
  virtual bool DecidedElsewhere() const = 0;

  // May the range answer a training read now? `rows`: how many rows of the range are read. `depth`:
  // how many steps ahead the worker prefetches.
  virtual bool MayRead(const OrderedRange& range, const FrameHeader& read, uint32_t rows,
                       int depth) const = 0;
  // The answer that a resent read has to get again, or null.
  virtual const Frame* AnswerTo(const FrameHeader& read) const = 0;
  // A read is answered. `entries`: those of the answer. True if pushes may have waited for it.
  virtual bool OnRead(const FrameHeader& read, absl::Span<const SliceEntry> entries,
                      const Frame& answer) = 0;

  // May the range admit the push now? A push that the range has admitted before need not wait. Sets
  // update->read_number if the order knows it. The error says why the push can never be admitted:
  // the shard cannot continue.
  virtual absl::StatusOr<bool> MayAdmit(const OrderedRange& range, const FrameHeader& push,
                                        HeldUpdate* update) const = 0;
  virtual void OnAdmitted(const OrderedRange& range, const FrameHeader& push) = 0;

  // The worker that the sender of a waiting read or push waits for at the range. -1: for nobody
  // else.
  virtual int Awaited(const OrderedRange& range, const FrameHeader& waits) const = 0;
};

// Frames are taken as they arrive. The policy of the range decides when a read is answered. A push
// waits only for an earlier one of the same worker (Range::Admit), which is on its way.
class ArrivalOrder final : public TurnOrder {
 public:
  bool DecidedElsewhere() const override { return false; }
  bool MayRead(const OrderedRange& range, const FrameHeader& read, uint32_t /*rows*/,
               int depth) const override {
    return range.order.policy().MayServe(range.order.progress(), read.sender.index, read.step,
                                         depth);
  }
  const Frame* AnswerTo(const FrameHeader&) const override { return nullptr; }
  bool OnRead(const FrameHeader&, absl::Span<const SliceEntry>, const Frame&) override {
    return false;
  }
  absl::StatusOr<bool> MayAdmit(const OrderedRange&, const FrameHeader&,
                                HeldUpdate*) const override {
    return true;
  }
  void OnAdmitted(const OrderedRange&, const FrameHeader&) override {}
  int Awaited(const OrderedRange& range, const FrameHeader& waits) const override {
    return waits.kind == FrameKind::kPull ? range.order.progress().Slowest() : -1;
  }
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_RECORD_TURN_ORDER_H_
