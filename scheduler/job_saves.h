// The saves of a running job: those that somebody asks for, those of its own schedule, and the one
// before an end that was asked for. Asks the workers for one at a time, and knows how it went.
//
// Pure; one thread.
#ifndef TANDEM_SCHEDULER_JOB_SAVES_H_
#define TANDEM_SCHEDULER_JOB_SAVES_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "job/job.h"
#include "proto/wire.pb.h"
#include "scheduler/barriers.h"
#include "scheduler/commands.h"
#include "scheduler/effects.h"
#include "scheduler/membership.h"
#include "scheduler/save_queue.h"
#include "scheduler/save_schedule.h"

namespace tandem::scheduler {

class JobSaves {
 public:
  // `folder`: of models; empty: the job saves nothing by itself. `saved`: the steps before it are in
  // the save that the run goes on from; -1: it begins. All pointers outlive this.
  JobSaves(const Save& save, std::string folder, int64_t saved, Membership* members,
           Commands* commands, Barriers* barriers);

  // The job starts.
  void Start(absl::Time now) { schedule_.Done(now, schedule_.step()); }
  // A worker has come so far.
  void OnStep(int64_t step) { schedule_.OnStep(step); }
  // The program of this worker has asked for so many saves since it began.
  void OnAsked(const Node& node, int64_t saves, SchedulerEffects* effects);
  // The schedule asks for one now.
  bool Due(absl::Time now) const;
  // A save is asked for, to end after it: no step is taken, and no save made, behind it.
  void SetEnding() { ending_ = true; }
  bool ending() const { return ending_; }

  // Asks all workers for the first of the queue. One that has lost its connection is asked when it is
  // back.
  void Ask(absl::Time now, SchedulerEffects* effects);
  // A node answers a command with an error. True: it is what that node could not write of a save
  // that may fail.
  bool NoteFailure(const Node& node, const CommandDone& done);
  // The servers have written, or need not.
  void OnBarrier(const Barrier& barrier);
  // The workers have saved of their own accord, and do not mind others any more. True: one has been
  // asked for meanwhile.
  bool Resume(absl::Time now);
  // The save is made, or given up: says so, and takes it from the queue.
  void Finish(absl::Time now, SchedulerEffects* effects);

  SaveQueue& queue() { return queue_; }
  // How the last one went, for an end that was asked for.
  JobReport::Stop Last() const { return {saved_step_, failure_}; }

 private:
  const std::string folder_;
  Membership& members_;
  Commands& commands_;
  Barriers& barriers_;
  SaveQueue queue_;
  SaveSchedule schedule_;
  std::string failure_;  // of the save under way, or of the last one
  int64_t step_ = 0;     // ... and what steps it has: those before this one; -1: not known yet
  int64_t saved_step_;   // of the last save that was made; -1: none
  bool ending_ = false;
  bool unable_ = false;  // workers have said that they cannot save
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_JOB_SAVES_H_
