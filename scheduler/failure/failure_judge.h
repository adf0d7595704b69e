// Decides which node has failed when a node reports that it must end the job.
//
// A reported failure that blames a peer or the network may be a consequence of another node's
// death. The judge holds it for SchedulerTimes::blame_delay. If a node turns out to be dead
// meanwhile, the job names that node and not its victim.
#ifndef TANDEM_SCHEDULER_FAILURE_FAILURE_JUDGE_H_
#define TANDEM_SCHEDULER_FAILURE_FAILURE_JUDGE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "proto/wire.pb.h"
#include "scheduler/state/effects.h"
#include "scheduler/state/membership.h"
#include "scheduler/state/times.h"

namespace tandem::scheduler {

Failure FailureOf(const std::string& node, const std::string& reason, absl::StatusCode code);
// The status code that a peer has sent. UNKNOWN if the number is no code, or OK.
absl::StatusCode CodeOf(int32_t code);
// Whether a new attempt of the job would fail in the same way, because the cause is the job, its
// data, its user, or too little memory for its rows. False for a process or a connection that has
// died, for errors that may pass (another lack of memory, a full disk), and for errors inside a
// process.
bool ComesAgain(const Failure& failure);
// The reason of a failure without its numbers, to tell whether an error has come before. Steps,
// offsets and names of files with numbers differ each time.
std::string WithoutNumbers(absl::string_view reason);
// Marks the node as gone. Returns the failure with the reason.
Failure DeathOf(Node* node, const std::string& reason);

class FailureJudge {
 public:
  // `members` outlives the judge.
  FailureJudge(const SchedulerTimes& times, Membership* members)
      : times_(times), members_(members) {}

  // A member has reported a failure. Returns the failure that ends the job if it is known at once.
  absl::optional<Failure> OnReport(absl::Time now, Node* reporter, const Failure& said,
                                   SchedulerEffects* effects);
  // Returns the failure that ends the job if one is held and either its cause is known now or it
  // has been held long enough. Called on ticks, and when a connection has broken.
  absl::optional<Failure> Check(absl::Time now);
  // True while a failure is held. Nodes that have reported one may leave meanwhile.
  bool holds() const { return held_.has_value(); }
  // Forgets the held failure, because the job has ended.
  void Drop() { held_.reset(); }

 private:
  struct Held {
    Failure failure;
    bool blames_node = false;  // failure.node() is not the reporter
    absl::Time until;
  };
  // A member that is dead or seems to be: the likely cause of the reports of others. Null if none.
  Node* LikelyDead(absl::Time now);

  const SchedulerTimes times_;
  Membership* const members_;
  absl::optional<Held> held_;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_FAILURE_FAILURE_JUDGE_H_
