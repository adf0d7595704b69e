// The timeouts of a job that follow from one number, limits.silence_timeout_seconds: how long a
// process may be silent until it counts as dead.
//
// Their order matters. A death must be known before its consequences are, so that the job names the
// cause: whoever waits for a peer waits longer than the scheduler needs to declare that peer dead.
// silence_times_test checks the order.
#ifndef TANDEM_JOB_SILENCE_TIMES_H_
#define TANDEM_JOB_SILENCE_TIMES_H_

#include <algorithm>

#include "absl/time/time.h"
#include "job/job.h"

namespace tandem::job {

struct SilenceTimes {
  SilenceTimes() : SilenceTimes(absl::Seconds(kDefaultSeconds)) {}
  explicit SilenceTimes(absl::Duration silence) : death(silence) {}
  explicit SilenceTimes(const Job& job)
      : SilenceTimes(absl::Seconds(job.limits().silence_timeout_seconds() > 0
                                       ? job.limits().silence_timeout_seconds()
                                       : kDefaultSeconds)) {}

  static constexpr double kDefaultSeconds = 8;

  // Silence of a node until the scheduler declares it dead, and of the scheduler until a node does.
  absl::Duration death;
  // Between two heartbeats of a node.
  absl::Duration heartbeat = std::min(absl::Seconds(1), death / 8);
  // Of a client's frame, until it is sent again the first time.
  absl::Duration resend = std::min(absl::Seconds(2), death / 4);
  // After a lost connection, for the node to come back.
  absl::Duration reconnect = std::min(absl::Seconds(2), death / 4);
  // Silence of a node until the scheduler says so in a line.
  absl::Duration report = death * 3 / 8;
  // A failure that blames a peer waits so long for the death that may have caused it.
  absl::Duration blame = std::min(absl::Seconds(3), death * 3 / 8);
  // Between two messages of the rendezvous of collectives, whose members are lost after three of
  // them without an answer: not before the scheduler declares their death.
  absl::Duration beat_of_collectives = death * 3 / 8;
  // After the end of a process, for the scheduler to name the cause.
  absl::Duration naming = std::min(absl::Seconds(6), death * 3 / 4);
  // Silence of a connection until ZeroMQ closes it.
  absl::Duration connection = death * 5 / 4;
  // A worker whose peer is gone waits so long for the scheduler's word.
  absl::Duration verdict = death * 3 / 2;
  // Silence of a shard until a client's request fails.
  absl::Duration shard = death * 15 / 4;
};

}  // namespace tandem::job

#endif  // TANDEM_JOB_SILENCE_TIMES_H_
