// A schedule set as text: who talks to whom, step by step.
#ifndef TANDEM_COLLECTIVES_DRAW_H_
#define TANDEM_COLLECTIVES_DRAW_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/legacy/schedule.h"

namespace tandem {
inline namespace legacy {

// One line a message, under the sender's step: "0 --[0, 2)-> 1" is a copy, "0 ==[0, 2)+> 1" is
// added at the receiver. Errors as of Replay: only schedules that finish are drawn.
absl::StatusOr<std::string> DrawSchedules(absl::Span<const Schedule> schedules);

}  // namespace legacy
}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_DRAW_H_
