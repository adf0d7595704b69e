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
//   Beat      may come on a connection of its own: any frame whose header names a member's
//             incarnation is that member's. It is answered on the connection it came by.
//   Barriers  are among workers, all unless `parties` says otherwise; a name is used once. What is
//             done between the last entry and the release is the entries' action:
//               NONE            nothing
//               SAVE            SAVE to all servers, with the entries' path
//               FINISH_DELAYED  FINISH_DELAYED to all servers
//               LAST_SAVE       saves that were asked for are finished; no more are begun
//               END             the same, then REPORT to all servers; after the release STOP to all
//                               nodes, which then close their connections
//             A Progress sent before the entry is counted.
//   SAVE      to a worker (only on a request from outside) asks the workers to agree on a step and
//             save there. Each answers when it is done, so that one save follows the other: requests
//             that come meanwhile wait, those for the same folder as one.
// A node's Failure ends the job. If it blames a peer or the network (UNAVAILABLE,
// DEADLINE_EXCEEDED, ABORTED) it is held for a moment, so that a process that has died is named and
// not its victim.
#ifndef TANDEM_SCHEDULER_SCHEDULER_CORE_H_
#define TANDEM_SCHEDULER_SCHEDULER_CORE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "job/job.h"
#include "proto/wire.pb.h"
#include "scheduler/barriers.h"
#include "scheduler/job_report.h"
#include "scheduler/membership.h"
#include "scheduler/stalls.h"

namespace tandem {

struct SchedulerEvent {
  enum class Kind {
    kControl,    // `control` came by `connection`
    kLost,       // the connection broke: `why`
    kClosed,     // the peer closed it in an orderly way
    kGarbage,    // bytes that are not a frame, or a frame that is not ours: `why`
    kTick,       // at least every 100 ms
    kSave,       // from outside: save to `text`
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

struct SchedulerNotice {
  enum class Kind { kStarted, kProgress, kEvaluation, kStall, kStallOver, kFailed, kFinished };
  Kind kind = Kind::kProgress;
  std::string node;                               // kStall, kStallOver, kFailed
  std::string text;                               // reason or description; kEvaluation: JSON
  absl::StatusCode code = absl::StatusCode::kOk;  // kFailed
  JobProgress progress;                           // kProgress
};

// Caller-owned and reused: Step appends.
struct SchedulerEffects {
  struct Send {
    uint64_t connection = 0;
    Control control;
  };
  std::vector<Send> sends;
  std::vector<std::string> logs;
  std::vector<std::string> warnings;  // those of `logs` that whoever started the job should see
  std::vector<SchedulerNotice> notices;

  void Clear() {
    sends.clear();
    logs.clear();
    warnings.clear();
    notices.clear();
  }
};

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

class SchedulerCore {
 public:
  struct Options {
    SchedulerTimes times;
    std::string coordinator;  // of collectives, host:port; for the views
  };

  explicit SchedulerCore(const JobPlan& plan) : SchedulerCore(plan, Options()) {}
  SchedulerCore(const JobPlan& plan, Options options);

  // Requires: `now` never goes back.
  void Step(absl::Time now, const SchedulerEvent& event, SchedulerEffects* effects);

  // True once the job has ended and everybody has left, or has had time to.
  bool done() const { return phase_ == Phase::kFinished || phase_ == Phase::kFailed; }
  // Ok unless the job failed (or is failing): then "worker 1: NaN loss at step 7" with its code.
  absl::Status result() const;

  const View& view() const { return view_; }  // number 0 before all are there
  const JobPlan& plan() const { return plan_; }
  // Requires: done() and result().ok().
  const JobReport& report() const { return report_; }

 private:
  enum class Phase { kRegistering, kStarting, kRunning, kStopping, kFinished, kFailing, kFailed };
  struct PendingCommand {
    Command command;
    std::set<int> servers, workers;        // that have not answered
    std::set<std::pair<int, int>> shards;  // REPORT: (server, shard) that have not reported
    std::string barrier;                   // released afterwards; empty = none
    absl::Time since;
    absl::Time next_report;
  };
  struct HeldFailure {
    Failure failure;
    std::string reporter;
    absl::Time until;
  };

  // Messages of nodes.
  void OnControl(const SchedulerEvent& event);
  void OnRegister(uint64_t connection, const Register& request);
  void Refuse(uint64_t connection, const absl::Status& why);
  void OnMemberControl(Node* node, const SchedulerEvent& event);
  void OnBeat(Node* node, uint64_t connection, const Beat& beat);
  void OnBarrierEnter(Node* node, const BarrierEnter& enter);
  void OnCommandDone(Node* node, const CommandDone& done);
  void OnProgress(Node* node, const Progress& progress);
  void OnShardReport(Node* node, const ShardReport& report);
  void OnPaths(Node* node, const Paths& paths);
  void OnCollectives(Node* node, const Collectives& collectives);
  void OnFailureReport(Node* node, const Failure& failure);
  void AcknowledgeView(Node* node, uint32_t number);

  // Connections.
  void OnLost(uint64_t connection, const std::string& why);
  void OnClosed(uint64_t connection);
  void OnGarbage(uint64_t connection, const absl::Status& why);
  void Welcome(const Node& node);

  // From outside.
  void OnSaveRequest(const std::string& path);
  void StartSave();
  void OnMoveRange(const SchedulerEvent& event);

  // Views, commands, barriers.
  void PublishFirstView();
  void PublishView();
  void StartJob();
  void CompleteBarrier(const std::string& name);
  void ReleaseBarrier(const std::string& name);
  void CommandServers(Command::Kind kind, const std::string& path, const std::string& barrier);
  void FinishCommands();
  void FinishCommand(const PendingCommand& pending);
  void StopJob();
  Command NewCommand(Command::Kind kind, const std::string& path);

  // Time.
  void OnTick();
  void ForgivePause(absl::Duration pause);
  void CheckStart();
  void CheckLife();
  void CheckWaits();
  void CheckBarriers();
  void CheckCommands();
  void CheckAcknowledgements();
  bool ReportDue(absl::Time since, absl::Time* next_report) const;
  void CheckStalls();
  std::vector<WaitState> WaitStates();
  void AddBarrierWaits(std::vector<WaitState>* states);
  void ReportStall(const StalledRoot& stalled);
  std::string DescribeStall(const StalledRoot& stalled);
  void CheckHeldFailure();
  void ReportProgress();
  void CheckEnd();

  // Endings.
  void Fail(const std::string& node, const std::string& reason, absl::StatusCode code);
  void FailNode(const Node& node, const std::string& reason, absl::StatusCode code);
  void NodeDied(Node* node, const std::string& reason);
  Node* LikelyDead();

  // Effects.
  void SendTo(const Node& node, const Control& control);
  void SendToAll(const Control& control);
  void SendFailure(uint64_t connection);
  void Log(std::string line);
  void Warn(const std::string& line);  // a log line for the user too
  void Notify(SchedulerNotice::Kind kind, std::string node, std::string text);
  bool ended() const { return phase_ >= Phase::kFinished; }
  int NodeIndex(const Node* node) const;

  const JobPlan plan_;
  const Options options_;
  const absl::Duration stall_limit_, start_limit_, report_interval_;

  absl::Time now_;
  SchedulerEffects* effects_ = nullptr;  // during Step
  Phase phase_ = Phase::kRegistering;
  absl::optional<absl::Time> first_step_;
  absl::Time phase_since_;
  absl::Time next_start_report_;  // when to log who has not registered or acknowledged
  int stranger_logs_ = 0;         // lines about strangers are bounded

  Membership members_;
  View view_;
  Barriers barriers_;
  uint64_t next_command_ = (uint64_t{1} << 32) + 1;
  uint64_t start_command_ = 0;
  std::map<uint64_t, PendingCommand> commands_;
  std::deque<std::string> saves_;  // folders of saves that were asked for: the first is under way
  bool saves_closed_ = false;      // a barrier has been completed that no save may follow
  std::string waits_for_saves_;    // the barrier that waits for them to be finished
  absl::Time next_progress_, next_shard_reports_;
  JobBook book_;
  JobReport report_;
  Failure failure_;  // once failing
  absl::optional<HeldFailure> held_;
};

}  // namespace tandem

#endif  // TANDEM_SCHEDULER_SCHEDULER_CORE_H_
