// What nodes report of their work, and when it is passed on to whoever watches.
#ifndef TANDEM_SCHEDULER_REPORTS_H_
#define TANDEM_SCHEDULER_REPORTS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "job/job.h"
#include "proto/wire.pb.h"
#include "scheduler/effects.h"
#include "scheduler/job_report.h"
#include "scheduler/membership.h"
#include "scheduler/times.h"

namespace tandem::scheduler {

class Reports {
 public:
  // `before`: what the run had done when it was saved, if it goes on.
  Reports(const job::JobPlan& plan, const SchedulerTimes& times, const JobLimits& limits,
          const RunRecord& before)
      : shard_reports_(times.shard_reports),
        interval_(limits.report),
        book_(plan, before),
        heard_(static_cast<size_t>(plan.workers()), absl::InfinitePast()) {}

  // The job starts.
  void Start(absl::Time now);
  // A Progress, ShardReport, Paths, Collectives or ProgramNote of a member. INVALID_ARGUMENT if it
  // is not one of this job, or not for this node to say.
  absl::Status Add(absl::Time now, const Node& node, const Control& control,
                   SchedulerEffects* effects);

  // On each tick of a running job: what has happened, once an interval. Workers report at the same
  // moments; a report that is late is waited for, but not for long.
  void Tick(absl::Time now, SchedulerEffects* effects);
  // The job is over: what has happened since the last interval, if anything was trained in it.
  void End(absl::Time now, SchedulerEffects* effects);
  // True when the shards are to be asked for live staleness; the next time is later.
  bool AskShards(absl::Time now, bool servers_are_busy);

  JobReport Total(absl::Time now) const { return book_.Total(now); }
  RunRecord Record(absl::Time now) const { return book_.Record(now); }

 private:
  absl::Status AddNote(const Node& node, const ProgramNote& note, SchedulerEffects* effects);
  absl::Status AddProgress(absl::Time now, const Node& node, const Progress& progress,
                           SchedulerEffects* effects);
  void SayInterval(absl::Time now, SchedulerEffects* effects);
  absl::Status AddShardReport(const Node& node, const ShardReport& report);
  void AddPaths(const Node& node, const Paths& paths, SchedulerEffects* effects);
  absl::Status AddCollectives(const Node& node, const Collectives& collectives,
                              SchedulerEffects* effects);

  const absl::Duration shard_reports_, interval_;
  JobBook book_;
  std::vector<absl::Time> heard_;  // when each rank last reported
  int64_t evaluation_ = 0;         // the last one heard of
  bool names_dropped_ = false;     // and warned of
  absl::Time next_progress_, next_shard_reports_;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_REPORTS_H_
