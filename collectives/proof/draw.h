// A schedule set as text: who talks to whom, step by step.
#ifndef TANDEM_COLLECTIVES_PROOF_DRAW_H_
#define TANDEM_COLLECTIVES_PROOF_DRAW_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/schedules/schedule.h"

namespace tandem::collectives {

// One line a message, under the sender's step: "0 --[0, 2)-> 1" is a copy, "0 ==[0, 2)+> 1" is
// added at the receiver, "0 ==[0, 2)*> 1" folded there. If it goes elsewhere than where it comes
// from, the place follows: "0 --in[0, 2)-> 1 [4, 6)". Copies within a rank: "0 [0, 2) = in[0, 2)".
// Errors as of Replay: only schedules that finish are drawn.
absl::StatusOr<std::string> DrawSchedules(absl::Span<const Schedule> schedules);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_PROOF_DRAW_H_
