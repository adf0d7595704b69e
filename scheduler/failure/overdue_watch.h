// Watches for things that take too long: registration, acknowledgements of the first view,
// barriers, commands. Logs them after SchedulerTimes::wait_report, then every minute, and ends the
// job when a timeout of the job passes.
#ifndef TANDEM_SCHEDULER_FAILURE_OVERDUE_WATCH_H_
#define TANDEM_SCHEDULER_FAILURE_OVERDUE_WATCH_H_

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "proto/wire.pb.h"
#include "scheduler/state/barriers.h"
#include "scheduler/state/commands.h"
#include "scheduler/state/effects.h"
#include "scheduler/state/membership.h"
#include "scheduler/state/times.h"

namespace tandem::scheduler {

class OverdueWatch {
 public:
  // All pointers outlive the watch.
  OverdueWatch(const SchedulerTimes& times, const JobLimits& limits, Membership* members,
               Barriers* barriers, Commands* commands)
      : times_(times),
        limits_(limits),
        members_(*members),
        barriers_(*barriers),
        commands_(*commands) {}

  // Each returns the failure that ends the job if a timeout has passed. `since`: when the wait
  // began.
  absl::optional<Failure> CheckRegistration(absl::Time now, absl::Time since,
                                            SchedulerEffects* effects);
  absl::optional<Failure> CheckAcknowledgements(absl::Time now, absl::Time since,
                                                SchedulerEffects* effects);
  absl::optional<Failure> CheckCommands(absl::Time now, SchedulerEffects* effects);
  // Only logs long waits, since StallWatch finds workers that make no progress.
  void CheckBarriers(absl::Time now, SchedulerEffects* effects);

 private:
  bool ReportDue(absl::Time now, absl::Time since, absl::Time* next_report) const;
  bool InBackground(const PendingCommand& pending) const;

  const SchedulerTimes times_;
  const JobLimits limits_;
  Membership& members_;
  Barriers& barriers_;
  Commands& commands_;
  absl::Time next_registration_, next_acknowledgement_;  // when to log again who is missing
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_FAILURE_OVERDUE_WATCH_H_
