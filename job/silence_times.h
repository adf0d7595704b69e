// The timeouts of a job that follow from one number, limits.silence_timeout_seconds: how long a
// process may be silent until it counts as dead.
//
// Their order matters. The scheduler must declare a process dead before other processes give up
// because of that death. Otherwise the job names a victim instead of the cause. Every wait for a
// silent peer is therefore longer than `death`. silence_times_test checks the order.
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

  // The scheduler declares a node dead after this silence. A node that has no connection to the
  // scheduler for this time ends.
  absl::Duration death;
  // A node sends a heartbeat this often.
  absl::Duration heartbeat = std::min(absl::Seconds(1), death / 8);
  // A client resends a frame for the first time after this time without an answer.
  absl::Duration resend = std::min(absl::Seconds(2), death / 4);
  // The scheduler waits this long for a node that has lost its connection. Then the node is dead.
  absl::Duration reconnect = std::min(absl::Seconds(2), death / 4);
  // The scheduler logs the silence of a node after this time.
  absl::Duration report = death * 3 / 8;
  // The scheduler holds a failure that blames a peer this long. A death may be its cause.
  absl::Duration blame = std::min(absl::Seconds(3), death * 3 / 8);
  // The members of a rendezvous of collectives send heartbeats this often. Three silent intervals
  // mean that a member is lost, so that three of them are longer than `death`.
  absl::Duration beat_of_collectives = death * 3 / 8;
  // After the end of a process, `tandem run` waits this long for the scheduler to name the cause.
  absl::Duration naming = std::min(absl::Seconds(6), death * 3 / 4);
  // ZeroMQ closes a silent connection after this time.
  absl::Duration connection = death * 5 / 4;
  // A worker that has lost another worker waits this long for the scheduler to name the cause.
  absl::Duration verdict = death * 3 / 2;
  // A client's request fails after this silence of its shard.
  absl::Duration shard = death * 15 / 4;
};

}  // namespace tandem::job

#endif  // TANDEM_JOB_SILENCE_TIMES_H_
