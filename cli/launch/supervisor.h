// Supervisor decides when a job ends and which failure to report. This process may have started all
// roles of the job or only some. Supervisor is a state machine: the caller passes in exits of
// processes, messages of the scheduler, signals and the time. Supervisor starts no process and
// reads no clock.
//
// Not here: how roles are started (role_commands.h) and watched (children.h).
// Thread safety: one thread.
#ifndef TANDEM_CLI_LAUNCH_SUPERVISOR_H_
#define TANDEM_CLI_LAUNCH_SUPERVISOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/launch/children.h"
#include "cli/launch/restarts.h"
#include "job/silence_times.h"

namespace tandem::cli {

class Supervisor {
 public:
  struct Options {
    bool checkpoints = false;   // at the first stop signal the scheduler writes a checkpoint
    bool ends_at_once = false;  // after a stop signal, do not wait for the scheduler (a replay)
    bool restarts = false;      // a new attempt may follow: after a kill, do not wait for a cause
    // A new process may take the place of a dead worker. The scheduler decides, so wait for it.
    bool replaces = false;
    // Workers are scripts. Code behind their loop over epochs runs after the end of the job, for as
    // long as it takes, unless a signal has ended the job.
    bool scripts = false;
    // How long to wait for the scheduler's failure message after a process has ended.
    absl::Duration naming = job::SilenceTimes().naming;
    // Explains why a role that failed has logged nothing; empty: no reason is known.
    std::function<std::string()> why_no_log = [] { return std::string(); };
  };

  explicit Supervisor(Options options) : options_(std::move(options)) {}

  // Messages of the scheduler: all roles know the view; the job fails; the job has ended well.
  void OnStarted() { started_ = true; }
  // `comes_again`: scheduler::ComesAgain. `step`: at which a worker has failed; -1: not known.
  // `no_room`: a disk is full.
  void OnFailed(absl::Time now, const std::string& node, const std::string& reason,
                bool comes_again = false, int64_t step = -1, bool no_room = false);
  void OnFinished(absl::Time now);
  // After OnFinished: no worker of this process runs any more.
  void OnWorkersEnded(absl::Time now);
  // The job has come to its end, or a user has asked for it; "finished" or "failed" follows.
  void OnEnding() { ending_ = true; }

  // The scheduler continues without the process of this role, and waits for a new one. The end of
  // the old process is no failure, whether OnExits has had it already or not.
  void OnVacant(const std::string& role);
  // The new process of this role is about to start.
  void OnNewProcess(const std::string& role) {
    vacant_.erase(role);
    renewed_.insert(role);
  }

  // The processes in `exits` have ended since the last call.
  void OnExits(absl::Time now, std::vector<Children::Exit> exits);
  // A role could not be started.
  void OnCannotStart(const std::string& reason);

  // The caller's action at a stop signal.
  enum class Stop {
    kIgnore,      // nothing: the job already ends
    kCheckpoint,  // tell the scheduler, which makes a checkpoint and ends all roles
    kEnd,         // tell the scheduler, which ends all roles
  };
  Stop OnStop(absl::Time now);

  // True when the roles that still run must be ended.
  bool over(absl::Time now) const { return now >= give_up_; }
  // Sets failure() if no cause is known yet. Call it once, after the last event and before
  // Children::StopAll(): roles that are ended report "stopped by a signal", which is no cause.
  void Conclude();
  // The time between SIGTERM and SIGKILL.
  absl::Duration Grace() const;

  bool started() const { return started_; }
  bool finished() const { return finished_; }
  // Whether only scripts may still run.
  bool awaits_scripts() const { return finished_ && options_.scripts; }
  bool stopping() const { return stopping_; }
  // The cause of the failure; empty: there is none so far.
  const std::string& failure() const { return failure_; }
  // Why a script failed after the job had ended well; empty: no script did.
  const std::string& script_failure() const { return script_failure_; }
  // The same with everything that decides about a new attempt.
  AttemptFailure Failure() const;
  // The role that ended first, if its end is or may be the cause.
  const std::optional<Children::Exit>& first_exit() const { return first_exit_; }
  // The name of the role that failed; empty if it is not known.
  std::string FailedRole() const {
    const bool exit_is_cause =
        first_exit_.has_value() && (blamed_.empty() || KnowsBetter(*first_exit_));
    return exit_is_cause ? first_exit_->name : blamed_;
  }

 private:
  void OnExit(absl::Time now, const Children::Exit& exit);
  void OnScriptExit(const Children::Exit& exit);
  bool KnowsBetter(const Children::Exit& exit) const;
  void NameTheEnded();
  std::string WhyItEnded() const;

  const Options options_;
  bool started_ = false, finished_ = false, stopping_ = false;
  absl::Time give_up_ = absl::InfiniteFuture();
  std::string failure_, script_failure_;
  std::string blamed_, blamed_for_;  // the node that the scheduler names, and why
  bool comes_again_ = false;         // ... as OnFailed says
  bool no_room_ = false;             // ... likewise
  bool ending_ = false;
  int64_t failed_step_ = -1;
  std::optional<Children::Exit> first_exit_;           // before the job ended or failed
  bool others_ended_ = false;                          // another role has ended after that one
  std::set<std::string> vacant_;                       // roles whose new processes are to start
  std::set<std::string> renewed_;                      // ... whose new processes have started
  std::map<std::string, Children::Exit> quiet_exits_;  // with status 0; perhaps the end of the job
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_SUPERVISOR_H_
