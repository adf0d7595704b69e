// Replaces workers that have died, one after the other, while the other processes of the job
// continue:
//   1. The place of the worker becomes vacant. The program that has started the worker starts a new
//      process (SchedulerNotice::kVacant). All servers forget the dead process, and answer how many
//      of its steps they have. From then on no frame of this process changes a range, so the
//      answers stay true.
//   2. The new process registers. When the servers have answered, too, the next view has the new
//      process, and the place where it begins (WorkerStart).
//   3. The new process and all servers know this view: START.
//   4. The new process has trained all steps that some range lacked: SchedulerNotice::kReplaced.
//      Checkpoints that became due meanwhile are asked for now.
// may_replace.h says after which deaths. The new process trains the steps that some range lacks.
// Each range takes each step of the worker once, from one of the two processes.
//
// The core sends views and START. This class is the state in between.
//
// Thread safety: none needed; part of the scheduler core.
#ifndef TANDEM_SCHEDULER_REPLACEMENTS_H_
#define TANDEM_SCHEDULER_REPLACEMENTS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "job/job.h"
#include "proto/wire.pb.h"
#include "scheduler/job_checkpoints.h"
#include "scheduler/reports.h"
#include "scheduler/state/barriers.h"
#include "scheduler/state/commands.h"
#include "scheduler/state/effects.h"
#include "scheduler/state/membership.h"
#include "scheduler/state/times.h"

namespace tandem::scheduler {

class Replacements {
 public:
  // The parts of the core; all of them outlive this object.
  struct Parts {
    Membership* members = nullptr;
    Commands* commands = nullptr;
    const Barriers* barriers = nullptr;
    JobCheckpoints* checkpoints = nullptr;
    Reports* reports = nullptr;
  };
  // `most`: how many workers may be replaced within kRestartsCountFor; 0: nobody would start a new
  // process. `plan` outlives this object.
  Replacements(const job::ResolvedJob& plan, int most, Parts parts)
      : plan_(plan), most_(most), limits_(plan.job), parts_(parts) {}

  // `cause` would end the job. If it is the death of a worker that may be replaced, makes the place
  // vacant and returns its rank. Otherwise returns -1; the log says why. `running`: the job trains,
  // and nobody has asked for its end.
  int Begin(absl::Time now, bool running, const Failure& cause, SchedulerEffects* effects);

  // Whether a worker is being replaced: from Begin to START.
  bool vacant() const { return vacancy_.has_value(); }
  // Whether this is the new process before its START.
  bool Awaits(const Node& node) const {
    return vacant() && node.role == Role::kWorker && node.index == vacancy_->rank;
  }
  // `cause` would end the job. If a new process has failed before its START, or later by an error
  // that would come again (ComesAgain), returns the failure that ends the job instead: that of the
  // dead process, after which all roles may start again.
  absl::optional<Failure> OnFailure(const Failure& cause) const;
  // The same if the new process has ended before it has registered. `pid`: a process that the
  // program has started for worker `rank`. `how`: its end.
  absl::optional<Failure> OnExited(int rank, int64_t pid, const std::string& how) const;
  // An answer of a shard to FORGET_WORKER.
  void OnForgotten(const ShardReport& report);
  // All servers have answered. Returns the failure that ends the job if no place is known where a
  // new process could begin.
  absl::optional<Failure> OnServersAnswered();
  // If the new process and the servers have come, puts the process into the view, which then must
  // be published.
  bool AddToView(View* view);
  // Returns the new process once it and all servers have acknowledged that view. The process may
  // start, and no place is vacant any more. Null: not yet.
  Node* TakeStarted(absl::Time now);
  // A worker has reported.
  void OnProgress(absl::Time now, const Node& node, const Progress& progress,
                  SchedulerEffects* effects);

  // Call it on each tick. Returns the failure that ends the job if no new process has come in time,
  // or if it or a server has not acknowledged its view in time.
  absl::optional<Failure> Check(absl::Time now);
  // The scheduler was paused for this long.
  void Forgive(absl::Duration pause);

 private:
  struct Vacancy {
    int rank = 0;
    Failure cause;
    absl::Time since;
    std::set<std::pair<uint32_t, uint32_t>> forgotten;  // shards that have answered
    int64_t least = 0, most = 0;        // steps of the dead process that ranges have admitted
    absl::optional<WorkerStart> start;  // once all servers have answered
    uint32_t view = 0;                  // the view with the new process; 0: not published yet
  };
  // A new process that has started, and has not caught up with the dead one yet.
  struct Started {
    Failure cause;     // the death
    absl::Time since;  // of the death
    int64_t first_step = 0, first_new_step = 0;
  };
  Node* DeadWorker(const Failure& cause);
  absl::Status MayBegin(absl::Time now, bool running, const Failure& cause, const Node& dead);
  void AskServers(absl::Time now, SchedulerEffects* effects);
  std::vector<std::string> NotReady() const;

  const job::ResolvedJob& plan_;
  const int most_;
  const JobLimits limits_;
  const Parts parts_;
  std::deque<absl::Time> begun_;       // replacements that still count
  std::map<int, std::string> errors_;  // the last error that each rank has reported
  absl::optional<Vacancy> vacancy_;
  std::map<int, Started> started_;  // by rank
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_REPLACEMENTS_H_
