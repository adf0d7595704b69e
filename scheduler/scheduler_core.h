// The scheduler of one job as a deterministic state machine: membership, views, the range map,
// barriers, saving, and the end, good or bad. Events in, effects out; no socket, thread or clock
// (scheduler_shell.h has those), so the same code runs in production, in the simulator and in the
// golden traces of tests/testdata/scheduler.
//
// Phases: registering -> starting (View 1 is out) -> running -> stopping -> finished
//                                any of these -> failing -> failed
//
// What nodes must know:
//   Register  is repeated until a View arrives. A node finds its index in the View by its
//             incarnation. After a lost connection it registers again with the same incarnation and
//             gets the View, START and commands that wait for it once more.
//   View n    is acknowledged by CommandDone{id: n}. START follows when all have acknowledged view 1.
//   Command   to a server, other than START and STOP, is answered by CommandDone with its id (ids
//             are above 2^32, so they never look like views). REPORT: a ShardReport of each shard
//             first.
//   READER    is told what the job is, then views, START and the end. Nothing is asked of it, and
//             nobody waits for it.
//   Beat      may come on a connection of its own: any frame whose header names a member's
//             incarnation is that member's. It is answered on the connection it came by.
//   Barriers  are among workers, all unless `parties` says otherwise; a name is used once. What is
//             done between the last entry and the release is the entries' action:
//               NONE            nothing
//               SAVE            SAVE to all servers, with the entries' path
//               FINISH_DELAYED  FINISH_DELAYED to all servers
//               LAST_SAVE       saves that were asked for are finished; no more are begun
//               PAUSE_SAVES     the same, but only until the next SAVE barrier is released
//               END             the same, then REPORT to all servers; after the release STOP to all
//                               nodes, which then close their connections
//             A Progress sent before the entry is counted.
//   SAVE      to a worker (only on a request from outside) asks the workers to agree on a step and
//             save there. Each answers when it is done, so that one save follows the other: requests
//             that come meanwhile wait, those for the same folder as one. What cannot be written of
//             such a save is no failure of the job: all are told that there is none. A job that has
//             a folder for saves asks for them by itself (save_schedule.h).
//   An end    that is asked for is a save after which the workers take no step, then REPORT and STOP.
// A node's Failure ends the job. If it blames a peer or the network (UNAVAILABLE,
// DEADLINE_EXCEEDED, ABORTED) it is held for a moment, so that a process that has died is named and
// not its victim.
#ifndef TANDEM_SCHEDULER_SCHEDULER_CORE_H_
#define TANDEM_SCHEDULER_SCHEDULER_CORE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "job/job.h"
#include "proto/wire.pb.h"
#include "scheduler/barriers.h"
#include "scheduler/commands.h"
#include "scheduler/effects.h"
#include "scheduler/failure_judge.h"
#include "scheduler/job_saves.h"
#include "scheduler/life_watch.h"
#include "scheduler/membership.h"
#include "scheduler/overdue_watch.h"
#include "scheduler/readers.h"
#include "scheduler/reports.h"
#include "scheduler/stall_watch.h"
#include "scheduler/times.h"

namespace tandem::scheduler {

struct SchedulerEvent {
  enum class Kind {
    kControl,    // `control` came by `connection`
    kLost,       // the connection broke: `why`
    kClosed,     // the peer closed it in an orderly way
    kGarbage,    // bytes that are not a frame, or a frame that is not ours: `why`
    kTick,       // at least every 100 ms
    kSave,       // from outside: save to `text`
    kEnd,        // from outside: save, then end; asked for again: end because of `text`
    kAbort,      // from outside: end the job because of `text`
    kMoveRange,  // from outside: `range` to `server`, `shard`
  };
  Kind kind = Kind::kTick;
  uint64_t connection = 0;   // opaque
  uint64_t incarnation = 0;  // from the frame's header
  Control control;
  absl::Status why;
  std::string text;
  uint32_t range = 0;
  int server = 0, shard = 0;
};

// What a job begins with and leaves behind; for the views, so that all nodes do the same.
struct ModelPaths {
  std::string init_from;                 // a save; empty: first values
  std::vector<std::string> only_tables;  // of it, these tables alone; none: all of it
  std::string save_to;                   // the folder of models; empty: no save
  // The run goes on from init_from, a save of its own.
  bool resume = false;
  uint64_t run = 0;     // its number; 0: a new run, with a number of its own
  int64_t attempt = 0;  // how often it has gone on
  int64_t step = 0;     // init_from has the steps before it
  RunRecord before;     // what it had done
};

class SchedulerCore {
 public:
  struct Options {
    SchedulerTimes times;
    std::string coordinator;  // of collectives, host:port; for the views
    uint64_t run = 0;         // for the views; names this run among all
    ModelPaths models = {};
  };

  explicit SchedulerCore(const job::JobPlan& plan) : SchedulerCore(plan, Options()) {}
  SchedulerCore(const job::JobPlan& plan, Options options);

  // Requires: `now` never goes back.
  void Step(absl::Time now, const SchedulerEvent& event, SchedulerEffects* effects);

  // True once the job has ended and everybody has left, or has had time to.
  bool done() const { return phase_ == Phase::kFinished || phase_ == Phase::kFailed; }
  // Ok unless the job failed (or is failing): then "worker 1: NaN loss at step 7" with its code.
  absl::Status result() const;

  const View& view() const { return view_; }  // number 0 before all are there
  const job::JobPlan& plan() const { return plan_; }
  // Requires: done(). Of a job that failed: as far as it is known, and empty if it never began.
  const JobReport& report() const { return report_; }

 private:
  enum class Phase { kRegistering, kStarting, kRunning, kStopping, kFinished, kFailing, kFailed };

  // Messages of nodes.
  void OnControl(const SchedulerEvent& event);
  void OnRegister(uint64_t connection, const Register& request);
  void OnReader(uint64_t connection);
  void SendToAll(const Control& control);  // readers, too
  void Refuse(uint64_t connection, const absl::Status& why);
  void Welcome(const Node& node);
  void OnMemberControl(Node* node, const SchedulerEvent& event);
  void OnBarrierEnter(const Node& node, const BarrierEnter& enter);
  void OnCommandDone(Node* node, const CommandDone& done);
  void OnReport(const Node& node, const Control& control);
  void AcknowledgeView(Node* node, uint32_t number);

  // Connections.
  void OnLost(uint64_t connection, const std::string& why);
  void OnClosed(uint64_t connection);
  void OnGarbage(uint64_t connection, const absl::Status& why);

  // From outside, and what the job's own schedule asks for.
  void OnSaveRequest(const std::string& folder);
  void OnEndRequest(const std::string& why);
  void OnMoveRange(const SchedulerEvent& event);

  // Views, commands, barriers.
  void PublishFirstView();
  void PublishView();
  void StartJob();
  void CompleteBarrier(const std::string& name);
  void ReleaseBarrier(const std::string& name);
  void CommandServers(const Command& command, const std::string& barrier);
  void FinishCommands();
  void FinishCommand(const PendingCommand& done);
  void StopJob();

  // Time and endings.
  void OnTick();
  absl::optional<Failure> CheckTime();
  void CheckEnd();
  void Fail(const Failure& failure);
  void FailNode(const Node& node, const absl::Status& why);
  bool ended() const { return phase_ >= Phase::kFinished; }

  const job::JobPlan plan_;
  const Options options_;

  absl::Time now_;
  PauseWatch pauses_;
  SchedulerEffects* effects_ = nullptr;  // during Step
  Phase phase_ = Phase::kRegistering;
  absl::optional<absl::Time> first_step_;
  absl::Time phase_since_;
  int stranger_logs_ = 0;  // lines about strangers are bounded

  Membership members_;
  Readers readers_;
  View view_;
  Barriers barriers_;
  Commands commands_;
  uint64_t start_command_ = 0;
  JobSaves saves_;
  uint64_t last_report_ = 0;  // the command after which an end that was asked for follows
  Reports reports_;
  LifeWatch life_;
  StallWatch stalls_;
  OverdueWatch overdue_;
  FailureJudge judge_;
  JobReport report_;
  Failure failure_;  // once failing
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_SCHEDULER_CORE_H_
