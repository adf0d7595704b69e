// The state of one operation of an engine: where its schedule stands, which messages have arrived,
// and the sent ones that a peer may still ask for. Internal to engine.cc; reused for later
// operations, so that its vectors keep their memory.
#ifndef TANDEM_COLLECTIVES_OPERATION_H_
#define TANDEM_COLLECTIVES_OPERATION_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "collectives/legacy/schedule.h"
#include "proto/frame.h"

namespace tandem {
inline namespace legacy {

// Numbers the messages between this rank and each peer, and gives each a slot: 0, 1, ... grouped by
// peer.
class MessageTable {
 public:
  void Reset(int ranks) { base_.assign(static_cast<size_t>(ranks) + 1, 0); }
  void Count(int peer) { ++base_[peer + 1]; }  // pass 1: each message once
  void Seal();
  int Assign(int peer) { return next_[peer]++; }  // pass 2: the same messages again, in order

  int size() const { return base_.back(); }
  int size(int peer) const { return base_[peer + 1] - base_[peer]; }
  // -1 if there is no such message; `message` may be anything.
  int Slot(int peer, int64_t message) const {
    return message >= 0 && message < size(peer) ? base_[peer] + static_cast<int>(message) : -1;
  }
  int64_t Number(int peer, int slot) const { return slot - base_[peer]; }

 private:
  std::vector<int> base_ = {0};  // first slot by peer, and the total
  std::vector<int> next_;        // by peer
};

class CollectiveOperation {
 public:
  enum class State { kUnused, kRunning, kEnded };
  struct Incoming {
    int64_t count = 0;  // elements the schedule expects
    bool arrived = false;
    Buffer values;  // until it is applied
  };

  // Forgets the operation that was here.
  void Begin(uint64_t operation, const Schedule* its_schedule, absl::Span<float> vector);
  // Drops all buffers but those kept for peers that ask again.
  void End();
  void DropSent(int peer);
  void DropAllSent();

  // A message that has come; a second copy is ignored. INVALID_ARGUMENT: the schedule has no such
  // message, or another size.
  absl::Status Deliver(int from, int64_t message, const Buffer& values);

  const Step& CurrentStep() const { return schedule->steps[step]; }
  // Slot of the i-th op of the current step, in `incoming` or `sent` according to its kind.
  int SlotOfOp(size_t i) const { return op_slot_[step_first_op + i]; }
  absl::Span<float> At(Piece piece) const {
    return data.subspan(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.count));
  }
  void EnterNextStep();

  State state = State::kUnused;
  uint64_t number = 0;
  const Schedule* schedule = nullptr;
  absl::Span<float> data;
  absl::Time deadline_at, waiting_since, next_ask;
  absl::Duration deadline;

  size_t step = 0;           // current step
  size_t op = 0;             // next op of it to apply
  size_t step_first_op = 0;  // ops before this step
  bool step_sent = false;    // its sends have gone out

  MessageTable sends, receives;
  std::vector<Frame> sent;         // by slot of sends; no parts if not sent yet, or dropped
  std::vector<Incoming> incoming;  // by slot of receives
  Buffer aside;

 private:
  std::vector<int> op_slot_;  // by op, over all steps
};

}  // namespace legacy
}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_OPERATION_H_
