// The scheduler of one job as a deterministic state machine: membership, views, the range map,
// barriers, checkpoints, and the end of the job, good or bad. Events go in, effects come out. There
// is no socket, thread or clock inside (scheduler_shell.h has those), so the same code runs in
// production, in the simulator and in the golden traces of tests/testdata/scheduler.
//
// Phases: registering -> starting (View 1 is out) -> running -> stopping -> finished
//                                any of these -> failing -> failed
//
// The protocol, as nodes see it:
//   Register  A node repeats it until a View arrives, and finds its index in the View by its
//             incarnation. After a lost connection it registers again with the same incarnation.
//             The scheduler then sends the View, START and the commands that wait for the node
//             again.
//   View n    Each node acknowledges it with CommandDone{id: n}. START follows when all nodes have
//             acknowledged view 1.
//   Command   A server answers every command except START and STOP by CommandDone with its id. Ids
//             are above 2^32, so they differ from view numbers. Before it answers REPORT, MARK or
//             FORGET_WORKER, the server sends a ShardReport of each shard.
//   READER    A reader is told the job, then views, START and the end. It answers nothing, and
//             nobody waits for it.
//   AGENT     An agent is a reader that has started nodes (agents.h). It tells how they end, and
//             may ask for a checkpoint or for the end of the job.
//   User      A user's tool sends a UserRequest from a connection that registers nothing, and gets
//             one UserAnswer. It is no member: nobody waits for it. The shell answers STATUS.
//   Beat      A heartbeat may come on a connection of its own: any frame whose header names a
//             member's incarnation is from that member. The answer goes to the same connection.
//   Barriers  Barriers are among workers: all of them, unless `parties` says otherwise. A name is
//             used once. Between the last entry and the release, the scheduler performs the action
//             of the entries. All parties wait in the barrier meanwhile, with nothing in flight, so
//             the action sees one state of the whole job. At the CHECKPOINT barrier of a requested
//             checkpoint training continues instead. The actions:
//               NONE               nothing
//               MARK               sends MARK to all servers, and names the checkpoint's folder in
//                                  the release
//               LAST_CHECKPOINT    waits until requested checkpoints are done, and begins no more;
//                                  then as MARK
//               PAUSE_CHECKPOINTS  the same, but only until the next COMMITTED barrier is released
//               CHECKPOINT         sends CHECKPOINT to all servers, with the entries' path
//               COMMITTED          nothing; until its release, the checkpoint may be tried again
//               FINISH_DELAYED     waits as LAST_CHECKPOINT, then sends FINISH_DELAYED to all
//                                  servers, which apply the updates that policies hold back
//               END                waits as LAST_CHECKPOINT, then sends REPORT to all servers;
//                                  after the release sends STOP to all nodes, which then leave
//             A Progress sent before the entry is counted before the action.
//   CHECKPOINT  To a worker, this command means: write a checkpoint with the others. Users,
//             programs and the job's schedule (checkpoint_schedule.h) ask for it. Each worker
//             answers when it is done, so there is one checkpoint at a time; requests that come
//             meanwhile wait, and those for the same folder become one. If such a checkpoint cannot
//             be written, the job does not fail: all workers are told that there is none.
//   End       A requested end is a checkpoint after which the workers take no step, then REPORT and
//             STOP.
//   MemoryFull  A server has begun to use the memory that it keeps free. The job ends as
//             after a requested end, but fails, whether or not the checkpoint could be written.
//   Replacement  A worker that dies in the middle of an epoch does not end every job: another
//             process may take its place (replacements.h).
// A node's Failure ends the job, unless the node is a worker that can be replaced. A Failure that
// blames a peer or the network (UNAVAILABLE, DEADLINE_EXCEEDED, ABORTED) is held for a moment, so
// that a process that has died is named and not its victim. docs/ARCHITECTURE.md lists who detects
// which failure.
//
// A checkpoint takes two phases, so that it is of one moment and whole or not there:
//   1. The mark. Each worker stops pushing and enters the MARK barrier when its pushes are
//      acknowledged. Then the servers mark: their ranges at this moment are the checkpoint. The run
//      record is of this moment, too. After the release the workers push again.
//   2. The files. Servers and workers write them while training continues. A worker enters the
//      CHECKPOINT barrier when its files are on the disk. It waits there only for the last
//      checkpoint, for that of the best model, and in jobs with a dense quorum. After the last
//      entry the scheduler sends CHECKPOINT to the servers, which answer when their files are on
//      the disk. The release has the run record, and rank 0 commits
//      (server/checkpoint/checkpoint_directory.h).
// If the checkpoint may fail, an error in phase 2 is in the release, so that all workers agree that
// there is no checkpoint. Otherwise the error ends the job. If the job depends on the checkpoint,
// the workers meet in a COMMITTED barrier when rank 0 has committed. Up to there an error that is
// only a full disk makes all workers try again (room_wait.h).
#ifndef TANDEM_SCHEDULER_SCHEDULER_CORE_H_
#define TANDEM_SCHEDULER_SCHEDULER_CORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "job/job.h"
#include "nlohmann/json.hpp"
#include "proto/wire.pb.h"
#include "scheduler/agents.h"
#include "scheduler/failure/failure_judge.h"
#include "scheduler/failure/liveness_monitor.h"
#include "scheduler/failure/overdue_watch.h"
#include "scheduler/failure/stall_watch.h"
#include "scheduler/job_checkpoints.h"
#include "scheduler/replacements.h"
#include "scheduler/reports.h"
#include "scheduler/state/barriers.h"
#include "scheduler/state/commands.h"
#include "scheduler/state/effects.h"
#include "scheduler/state/membership.h"
#include "scheduler/state/phase.h"
#include "scheduler/state/readers.h"
#include "scheduler/state/times.h"
#include "scheduler/status.h"

namespace tandem::scheduler {

// Why a job has ended on request of `tandem stop` or of its script: the reason of the Failure to
// nodes, and of JobReport::Stop. Such a job has not failed.
inline constexpr char kStoppedByTool[] = "stopped by tandem stop";
inline constexpr char kEndedByScript[] = "ended by the script";
inline bool IsRequestedEnd(absl::string_view why) {
  return why == kStoppedByTool || why == kEndedByScript;
}

struct SchedulerEvent {
  enum class Kind {
    kControl,     // `control` came on `connection`
    kLost,        // the connection broke: `why`
    kClosed,      // the peer closed the connection in an orderly way
    kGarbage,     // bytes that are not a frame, or a frame that is not ours: `why`
    kTick,        // at least every 100 ms
    kCheckpoint,  // the user: write a checkpoint to `text`
    kEnd,         // the user: write a checkpoint, then end; the second time: end because of `text`
    kAbort,       // the user: end the job because of `text`
    kMoveRange,   // the user: move `range` to `server`, `shard`
    // The program that has started the job: the process `pid` of worker `rank` has ended, as `text`
    // says.
    kExited,
  };
  Kind kind = Kind::kTick;
  uint64_t connection = 0;   // opaque
  uint64_t incarnation = 0;  // from the frame's header
  Control control;
  absl::Status why;
  std::string text;
  uint32_t range = 0;
  int server = 0, shard = 0;
  int rank = 0;
  int64_t pid = 0;
};

// The checkpoint that a job begins with, and the folder for its own checkpoints. Views carry them,
// so that all nodes do the same.
struct ModelPaths {
  std::string init_from;                 // a checkpoint; empty: initial values
  std::vector<std::string> only_tables;  // load these tables only; empty: the whole checkpoint
  std::string checkpoint_folder;         // model folder; empty: no checkpoints
  // The run resumes from init_from, a checkpoint of its own. The next four fields are of that run.
  bool resume = false;
  uint64_t run = 0;     // number of the run; 0: a new run, which gets a number of its own
  int64_t attempt = 0;  // how often the run has been resumed
  int64_t step = 0;     // init_from has all steps before this one
  RunRecord before;     // counts of the run up to the checkpoint
};

class SchedulerCore {
 public:
  struct Options {
    SchedulerTimes times;
    std::string coordinator;  // rendezvous of collectives, host:port; for the views
    uint64_t run = 0;         // for the views; no other run has this number
    ModelPaths models = {};
    std::string launch = {};       // for agents: names the launch that has started the scheduler
    std::string out = {};          // for agents: the folder of the run
    MemoryEstimate estimate = {};  // for the status
    uint64_t incarnation = 0;      // of the scheduler's process; 0: not known
    int restarts_left = 0;         // new attempts that may follow this one
    // If restarts_left is 0: from this time on another attempt may follow.
    absl::Time restarts_from = absl::InfiniteFuture();
    // The moment from which the seconds of the run count; nullopt: this attempt is the first one of
    // `tandem run`.
    absl::optional<absl::Time> trains_since = absl::nullopt;
    // How many workers may be replaced within kRestartsCountFor. 0: nobody starts new processes.
    int replacements = 0;
    bool by_hand = false;  // a person has started the roles, so only a person can resume the run
  };

  explicit SchedulerCore(const job::ResolvedJob& plan) : SchedulerCore(plan, Options()) {}
  SchedulerCore(const job::ResolvedJob& plan, Options options);

  // Requires: `now` never goes back.
  void Step(absl::Time now, const SchedulerEvent& event, SchedulerEffects* effects);

  // True once the job has ended and all nodes have left, or have had time to leave.
  bool done() const { return phase_ == Phase::kFinished || phase_ == Phase::kFailed; }
  // Ok unless the job failed (or is failing): then "worker 1: NaN loss at step 7" with its code.
  absl::Status result() const;

  const View& view() const { return view_; }  // number 0 before all nodes have registered
  const job::ResolvedJob& plan() const { return plan_; }
  // Requires: done(). If the job failed, the report covers the time before; it is empty if the job
  // never began.
  const JobReport& report() const { return report_; }
  // The status at the time of the last Step (status.h).
  nlohmann::json Status() const;

 private:
  // Messages of nodes.
  void OnControl(const SchedulerEvent& event);
  void OnRegister(uint64_t connection, const Register& request);
  void OnReader(uint64_t connection, const Register& request);
  void Welcome(const Node& node);
  void OnMemberControl(Node* node, const SchedulerEvent& event);
  void OnBarrierEnter(const Node& node, const BarrierEnter& enter);
  void OnCommandDone(Node* node, const CommandDone& done);
  void OnReport(const Node& node, const Control& control);
  void AcknowledgeView(Node* node, uint32_t number);

  // Connections.
  void OnLost(uint64_t connection, const std::string& why);
  void OnClosed(uint64_t connection);
  void OnExited(const SchedulerEvent& event);
  void OnGarbage(uint64_t connection, const absl::Status& why);

  // Requests of users and of the job's own schedule.
  void OnUserRequest(uint64_t connection, const UserRequest& request);
  void OnCheckpointRequest(const std::string& folder);
  void OnEndRequest(const std::string& why, bool signal);
  void OnMemoryFull(const Node& node, const std::string& reason);
  void OnMoveRange(const SchedulerEvent& event);

  // Views, commands, barriers.
  void PublishFirstView();
  void PublishView();
  void StartJob();
  void CompleteBarrier(const std::string& name);
  void ReleaseBarrier(const std::string& name);
  void CommandServers(const Command& command, const std::string& barrier);
  void FinishCommands();
  void StopJob();

  // Time and endings.
  void OnTick();
  absl::optional<Failure> CheckTime();
  void CheckEnd();
  void ReplaceOrFail(const Failure& cause);
  void Fail(const Failure& failure);

  const job::ResolvedJob plan_;
  const Options options_;

  absl::Time now_;
  PauseWatch pauses_;
  SchedulerEffects* effects_ = nullptr;  // set during Step only
  Phase phase_ = Phase::kRegistering;
  absl::optional<absl::Time> first_step_;
  absl::Time phase_since_;
  RefusalLog refusals_;

  Membership members_;
  Readers readers_;
  Agents agents_;
  View view_;
  std::shared_ptr<const Control> view_message_;  // the last published view, for all who need it
  Barriers barriers_;
  Commands commands_;
  uint64_t start_command_ = 0;
  JobCheckpoints checkpoints_;
  uint64_t last_report_ = 0;  // the REPORT after which a requested end follows; 0: none
  Reports reports_;
  LivenessMonitor life_;
  StallWatch stalls_;
  OverdueWatch overdue_;
  FailureJudge judge_;
  Replacements replacements_;
  JobReport report_;
  Failure failure_;  // set once failing
  // Rows have filled the memory of a server: with this failure the job ends after its last
  // checkpoint. Absent: there is enough memory.
  absl::optional<Failure> memory_full_;
  bool end_requested_ = false;  // by a signal, a tool or a program
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_SCHEDULER_CORE_H_
