// The scheduler's timeouts, and the text form of durations.
#ifndef TANDEM_SCHEDULER_STATE_TIMES_H_
#define TANDEM_SCHEDULER_STATE_TIMES_H_

#include <string>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "job/job.h"
#include "job/silence_times.h"

namespace tandem::scheduler {

struct SchedulerTimes {
  SchedulerTimes() : SchedulerTimes(job::SilenceTimes()) {}
  explicit SchedulerTimes(const job::SilenceTimes& silence)
      : silence_report(silence.report),
        silence_death(silence.death),
        reconnect_grace(silence.reconnect),
        blame_delay(silence.blame) {}

  absl::Duration silence_report;                        // no message from a node: report it
  absl::Duration silence_death;                         // no message from a node: it is dead
  absl::Duration reconnect_grace;                       // connection lost: wait for it to return
  absl::Duration blame_delay;                           // hold a failure that blames a peer
  absl::Duration stall_after = absl::Seconds(10);       // no progress: report a stall
  absl::Duration wait_report = absl::Seconds(5);        // long waits (OverdueWatch): log them
  absl::Duration close_bound = absl::Seconds(5);        // for nodes to leave at the end
  absl::Duration shard_reports = absl::ZeroDuration();  // ask shards for live staleness; 0 = never
};

// Timeouts that the job sets, or their defaults.
struct JobLimits {
  explicit JobLimits(const Job& job)
      : stall(SecondsOr(job.limits().stall_timeout_seconds(), 600)),
        start(SecondsOr(job.limits().startup_timeout_seconds(), 60)),
        report(SecondsOr(job.limits().report_interval_seconds(), 1)) {}

  absl::Duration stall, start, report;

 private:
  static absl::Duration SecondsOr(double seconds, double otherwise) {
    return absl::Seconds(seconds > 0 ? seconds : otherwise);
  }
};

// "12.3 s".
inline std::string InSeconds(absl::Duration duration) {
  return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(duration));
}

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_STATE_TIMES_H_
