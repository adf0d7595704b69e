// Who is to blame when a node says that it must end the job.
//
// A failure that blames a peer or the network may be the echo of somebody else's death. It is held
// for a moment, so that a process that has died is named and not its victim.
#ifndef TANDEM_SCHEDULER_FAILURE_JUDGE_H_
#define TANDEM_SCHEDULER_FAILURE_JUDGE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "proto/wire.pb.h"
#include "scheduler/effects.h"
#include "scheduler/membership.h"
#include "scheduler/times.h"

namespace tandem::scheduler {

Failure FailureOf(const std::string& node, const std::string& reason, absl::StatusCode code);
// The code that a peer has sent; UNKNOWN if it is none, or OK.
absl::StatusCode CodeOf(int32_t code);
// Marks the node as gone and says why.
Failure DeathOf(Node* node, const std::string& reason);

class FailureJudge {
 public:
  // `members` outlive the judge.
  FailureJudge(const SchedulerTimes& times, Membership* members)
      : times_(times), members_(members) {}

  // A member's word. The failure that ends the job, if that is known at once.
  absl::optional<Failure> OnReport(absl::Time now, Node* reporter, const Failure& said,
                                   SchedulerEffects* effects);
  // The failure that ends the job, if one is held and its cause is known now, or it has been held
  // for long enough. To be asked on ticks, and when a connection has broken.
  absl::optional<Failure> Check(absl::Time now);
  // Whether a failure is held: whoever reported one may leave.
  bool holds() const { return held_.has_value(); }
  // Forgets what is held: the job has ended.
  void Drop() { held_.reset(); }

 private:
  struct Held {
    Failure failure;
    absl::Time until;
  };
  // A member that is gone, or seems to be: the likely reason why others complain.
  Node* LikelyDead(absl::Time now);

  const SchedulerTimes times_;
  Membership* const members_;
  absl::optional<Held> held_;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_FAILURE_JUDGE_H_
