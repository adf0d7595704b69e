// Plays the schedules of all ranks against each other without a network. Checker, cost model and
// drawing are visitors of one replay.
//
// What is modelled: sends queue up in order, one queue a pair of ranks, and wait for nothing. A
// channel takes messages from the head of its queue while it holds fewer than `channel`; what it
// has taken is gone from its sender. An op that writes where a queued message still lies waits
// until that has gone. Receipts wait for their messages. (A real link moves a message bit by bit,
// and so frees the begin of a piece earlier: whatever finishes here finishes there, if the link
// holds `channel` messages.)
//
// Each rank only ever waits for a named rank, and what it waits for does not go away, so the ranks
// form a Kahn network: whether they finish, and with what, does not depend on who runs first. One
// replay therefore speaks for all timings.
#ifndef TANDEM_COLLECTIVES_PROOF_REPLAY_H_
#define TANDEM_COLLECTIVES_PROOF_REPLAY_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/schedules/schedule.h"

namespace tandem::collectives {

struct ReplayOptions {
  // Messages a channel holds. 0: a message has gone only when it has been received.
  int channel = 1;
  // Input and output are the same memory; element i of rank r's input is element
  // i + in_place_offset[r] of its output.
  bool in_place = false;
  std::vector<int64_t> in_place_offset;
};

struct ReplayMessage {
  int64_t id = 0;  // 0, 1, ... in the order the replay sends them
  int from = 0, to = 0;
  int64_t number = 0;  // among those from `from` to `to`
  int step = 0;        // of the sender
  Piece piece;
};

class ReplayVisitor {
 public:
  virtual ~ReplayVisitor() = default;
  // Rank message.from queues the message: its piece is read now.
  virtual void OnSend(const ReplayMessage& message) = 0;
  // `rank` does an op other than a send, with the messages it takes: none, one, or, for a fold, one
  // of each other rank in the order of the fold.
  virtual void OnApply(int rank, int step, const Op& op,
                       absl::Span<const ReplayMessage* const> messages) = 0;
};

// INVALID_ARGUMENT: a schedule is malformed, or not the one of its rank; a message does not fit the
// piece it is received into; a message is never received. FAILED_PRECONDITION: deadlock; the
// message says who waits for whom.
absl::Status Replay(absl::Span<const Schedule> schedules, const ReplayOptions& options,
                    ReplayVisitor& visitor);

// Where a piece lies in the memory of a rank.
struct Extent {
  Region region = Region::kOutput;
  int64_t begin = 0, end = 0;
  bool Overlaps(const Extent& other) const {
    return region == other.region && begin < other.end && other.begin < end;
  }
};
// In place, input lies in the output, possibly before its first or after its last element.
Extent ExtentOf(const Piece& piece, int rank, const ReplayOptions& options);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_PROOF_REPLAY_H_
