// The reports of nodes about their work: collects them (JobBook) and passes them on as notices,
// once in each reporting interval.
#ifndef TANDEM_SCHEDULER_REPORTS_H_
#define TANDEM_SCHEDULER_REPORTS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "job/job.h"
#include "nlohmann/json.hpp"
#include "proto/wire.pb.h"
#include "scheduler/observe/job_report.h"
#include "scheduler/observe/speed_meter.h"
#include "scheduler/state/effects.h"
#include "scheduler/state/membership.h"
#include "scheduler/state/times.h"

namespace tandem::scheduler {

class Reports {
 public:
  // `before`: counts of the run up to the checkpoint that it resumes from; else empty.
  Reports(const job::ResolvedJob& plan, const SchedulerTimes& times, const JobLimits& limits,
          const RunRecord& before)
      : shard_reports_(times.shard_reports),
        interval_(limits.report),
        book_(plan, before),
        speed_(plan.workers(), limits.report),
        heard_(static_cast<size_t>(plan.workers()), absl::InfinitePast()) {}

  // Training starts; see JobBook::Start.
  void Start(absl::Time now, absl::optional<absl::Time> since = absl::nullopt);
  // Adds a Progress, ShardReport, Paths, Collectives, ProgramNote or WorkerNote of a member.
  // INVALID_ARGUMENT if it does not fit this job, or this node may not send it.
  absl::Status Add(absl::Time now, const Node& node, const Control& control,
                   SchedulerEffects* effects);

  // The workers leave a barrier. Its name tells whether an evaluation begins or ends. The values
  // that their programs reported there are noted.
  void OnRelease(const BarrierRelease& release, SchedulerEffects* effects);

  // Call it on each tick of a running job. Once an interval, sends a notice with the progress.
  // Workers report at the same moments; a late report is waited for, up to half an interval. The
  // first notice waits longer, until all workers have reported: without them it would say that the
  // job is at step 0.
  void Tick(absl::Time now, SchedulerEffects* effects);
  // The job is over: sends a last notice if rows were trained since the last interval.
  void End(absl::Time now, SchedulerEffects* effects);
  // True when it is time to ask the shards for live staleness. The next time is an interval later.
  bool AskShards(absl::Time now, bool servers_are_busy);

  // For a worker that has died, and its replacement.
  JobBook& book() { return book_; }
  JobReport Total(absl::Time now) const { return book_.Total(now); }
  const std::vector<ShardReport>& shards() const { return book_.shards(); }
  // The last interval; nullopt before the first.
  const absl::optional<JobProgress>& last() const { return last_; }
  RunRecord Record(absl::Time now) const { return book_.Record(now); }

 private:
  absl::Status AddNote(const Node& node, const ProgramNote& note, SchedulerEffects* effects);
  void SayReported(const std::string& who, int64_t step,
                   const std::map<std::string, double>& values, nlohmann::json said,
                   SchedulerEffects* effects);
  void SayDropped(const std::string& first, int64_t step, SchedulerEffects* effects);
  absl::Status AddProgress(absl::Time now, const Node& node, const Progress& progress,
                           SchedulerEffects* effects);
  void SayInterval(absl::Time now, SchedulerEffects* effects);
  absl::Status AddShardReport(const Node& node, const ShardReport& report);
  absl::Status AddText(const Node& node, const WorkerNote& note, SchedulerEffects* effects);
  void AddPaths(const Node& node, const Paths& paths, SchedulerEffects* effects);
  absl::Status AddCollectives(const Node& node, const Collectives& collectives,
                              SchedulerEffects* effects);

  const absl::Duration shard_reports_, interval_;
  JobBook book_;
  SpeedMeter speed_;
  bool evaluating_ = false;         // all workers are in an evaluation
  std::vector<absl::Time> heard_;   // when each rank last reported
  int64_t evaluation_ = 0;          // number of the last evaluation that was passed on
  bool warned_not_finite_ = false;  // a program has reported a value that is not finite
  bool names_dropped_ = false;      // names of programs were dropped, with a warning
  absl::Time next_progress_, next_shard_reports_, first_by_;
  absl::optional<JobProgress> last_;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_REPORTS_H_
