// Replay: plays the schedules of all ranks against each other without a network. The checker
// and the drawing are visitors of a replay.
//
// The model: every ordered pair of ranks has a queue. A send appends to its queue and waits for
// nothing. A channel takes messages from the head of its queue while it holds fewer than `channel`
// messages; a message in the channel has left its sender. An op that writes where a queued message
// still lies waits until the message has left. Receipts wait for their messages. (A real link moves
// a message piece by piece, and so frees the begin of the message earlier. A schedule that finishes
// here also finishes there, if the link holds `channel` messages.)
//
// Each rank only waits for events of a named rank, and such an event is never undone, so the ranks
// form a Kahn network: whether they finish, and with which result, does not depend on who runs
// first. Therefore one replay is valid for all timings.
#ifndef TANDEM_TESTS_UNIT_COLLECTIVES_PROOF_REPLAY_H_
#define TANDEM_TESTS_UNIT_COLLECTIVES_PROOF_REPLAY_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/schedules/schedule.h"

namespace tandem {

struct ReplayOptions {
  // The number of messages that a channel holds. 0: a message leaves only when it is received.
  int channel = 1;
  // Input and output are the same memory: element i of rank r's input is element i +
  // in_place_offset[r] of its output.
  bool in_place = false;
  std::vector<int64_t> in_place_offset;
};

struct ReplayMessage {
  int64_t id = 0;  // 0, 1, ... in the order of the replay
  int from = 0, to = 0;
  int64_t number = 0;  // among the messages from `from` to `to`
  int step = 0;        // step of the sender
  collectives::Piece piece;
};

class ReplayVisitor {
 public:
  virtual ~ReplayVisitor() = default;
  // Rank message.from queues the message. The content of its piece counts now.
  virtual void OnSend(const ReplayMessage& message) = 0;
  // `rank` runs an op other than a send, with the messages that the op takes: none, one, or, for a
  // fold, one of each other rank in the order of the fold.
  virtual void OnApply(int rank, int step, const collectives::Op& op,
                       absl::Span<const ReplayMessage* const> messages) = 0;
};

// INVALID_ARGUMENT: a schedule is malformed or belongs to another rank; a message does not fit the
// piece of its receipt; a message is never received. FAILED_PRECONDITION: deadlock; the text says
// who waits for whom.
absl::Status Replay(absl::Span<const collectives::Schedule> schedules, const ReplayOptions& options,
                    ReplayVisitor& visitor);

// Where a piece lies in the memory of a rank.
struct Extent {
  collectives::Region region = collectives::Region::kOutput;
  int64_t begin = 0, end = 0;
  bool Overlaps(const Extent& other) const {
    return region == other.region && begin < other.end && other.begin < end;
  }
};
// In place, the input lies in the output. Its pieces may begin before the first element of the
// output or end after its last.
Extent ExtentOf(const collectives::Piece& piece, int rank, const ReplayOptions& options);

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_COLLECTIVES_PROOF_REPLAY_H_
