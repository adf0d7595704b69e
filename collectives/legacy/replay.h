// Plays the schedules of all ranks against each other without a network: every pair of ranks has a
// channel that keeps order and holds a bounded number of messages. Checker, cost model and drawing
// are visitors of one replay.
//
// Each rank only ever waits for a named rank, so the ranks form a Kahn network: whether they
// finish, and with what, does not depend on who runs first. One replay therefore speaks for all
// timings.
#ifndef TANDEM_COLLECTIVES_REPLAY_H_
#define TANDEM_COLLECTIVES_REPLAY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/legacy/schedule.h"

namespace tandem {
inline namespace legacy {

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
  // Rank message.from begins message.step and sends; called before any other op of that step.
  virtual void OnSend(const ReplayMessage& message) = 0;
  // `rank` does a receive or reduce of `message`, or an aside op (message is null).
  virtual void OnApply(int rank, int step, const Op& op, const ReplayMessage* message) = 0;
};

// A channel takes `max_in_flight` messages; a rank with more to send waits within its step.
// INVALID_ARGUMENT: a schedule is malformed, or not the one of its rank; a message does not fit the
// piece it is received into; a message is never received. FAILED_PRECONDITION: deadlock; the
// message says who waits for whom.
absl::Status Replay(absl::Span<const Schedule> schedules, int max_in_flight,
                    ReplayVisitor& visitor);

}  // namespace legacy
}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_REPLAY_H_
