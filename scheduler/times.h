// How patient the scheduler is, and how it speaks of time.
#ifndef TANDEM_SCHEDULER_TIMES_H_
#define TANDEM_SCHEDULER_TIMES_H_

#include <string>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "job/job.h"

namespace tandem::scheduler {

struct SchedulerTimes {
  absl::Duration silence_report = absl::Seconds(3);  // no sign of life: say so
  absl::Duration silence_death = absl::Seconds(8);
  absl::Duration reconnect_grace = absl::Seconds(2);
  absl::Duration stall_after = absl::Seconds(10);
  absl::Duration wait_report = absl::Seconds(5);  // barriers and commands
  absl::Duration blame_delay = absl::Seconds(3);  // how long a failure that blames a peer is held
  absl::Duration close_bound = absl::Seconds(5);  // for orderly closes at the end
  absl::Duration shard_reports = absl::ZeroDuration();  // ask shards for live staleness; 0 = never
};

// What the job says; where it is silent, values that suit most.
struct JobLimits {
  explicit JobLimits(const Job& job)
      : stall(SecondsOr(job.limits().stall_limit_seconds(), 600)),
        start(SecondsOr(job.limits().start_seconds(), 60)),
        report(SecondsOr(job.limits().report_seconds(), 1)) {}

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

#endif  // TANDEM_SCHEDULER_TIMES_H_
