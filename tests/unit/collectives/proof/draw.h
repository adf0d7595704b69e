// Draws the schedules of all ranks as text: every message with sender and receiver, step by step.
#ifndef TANDEM_TESTS_UNIT_COLLECTIVES_PROOF_DRAW_H_
#define TANDEM_TESTS_UNIT_COLLECTIVES_PROOF_DRAW_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/schedules/schedule.h"

namespace tandem {

// One line for each message, under the sender's step. "0 --[0, 2)-> 1": the receiver copies the
// message. "0 ==[0, 2)+> 1": the receiver adds it. "0 ==[0, 2)*> 1": the receiver folds it. If the
// message goes to another place than it comes from, the place follows: "0 --in[0, 2)-> 1 [4, 6)". A
// copy within a rank: "0 [0, 2) = in[0, 2)". Errors are those of Replay: only schedules that finish
// can be drawn.
absl::StatusOr<std::string> DrawSchedules(absl::Span<const collectives::Schedule> schedules);

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_COLLECTIVES_PROOF_DRAW_H_
