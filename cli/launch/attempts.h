// Attempts runs a job on this host in one attempt or, after failures, in several. An attempt is the
// time from the start of all roles to the end of all of them. Attempts starts the roles, handles
// events of the scheduler, passes on signals, and starts a new process in the place of a dead
// worker. After a failure it decides whether a new attempt follows or the run ends.
//
// supervisor.h knows when an attempt ends and which failure it had, restarts.h how many attempts a
// run may have. Not here: what happens before the first attempt and after the last one
// (run_command.h).
// Thread safety: one thread.
#ifndef TANDEM_CLI_LAUNCH_ATTEMPTS_H_
#define TANDEM_CLI_LAUNCH_ATTEMPTS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/owned_fd.h"
#include "cli/console/output_folder.h"
#include "cli/console/progress_view.h"
#include "cli/launch/children.h"
#include "cli/launch/event_pipe.h"
#include "cli/launch/launcher_watch.h"
#include "cli/launch/local_roles.h"
#include "cli/launch/restarts.h"
#include "cli/launch/role_commands.h"
#include "cli/launch/run_flags.h"
#include "cli/launch/start_flags.h"
#include "cli/launch/supervisor.h"
#include "job/job.h"

namespace tandem::cli {

class Attempts {
 public:
  // `flags`, `plan` and `view` outlive this object. `script_hash`: of the script that is each
  // worker, if there is one. `kept`: keeps the checkpoint that the job begins with while a process
  // may still load it.
  Attempts(const RunFlags& flags, const job::ResolvedJob& plan, std::string script_hash,
           OwnedFd kept, ProgressView* view);

  // Runs all attempts. Returns when the run is over and its roles have ended. `folder`: of the run;
  // it outlives this object. `roles`: for the commands of the roles.
  void Execute(const OutputFolder* folder, RoleOptions roles);

  // Whether the run writes checkpoints to OUT/model.
  bool writes_checkpoints() const { return checkpoints_; }

  // After Execute:
  // Why the run has failed, and why no attempt follows; empty: it has ended well or as requested.
  std::string Failure() const;
  // Whether the job has ended well. A script may still have failed.
  bool job_ended() const {
    return attempt_->supervisor.finished() && attempt_->supervisor.failure().empty();
  }
  // The name of the role that failed; empty if it is not known.
  std::string FailedRole() const { return attempt_->supervisor.FailedRole(); }
  // The role that ended first, if its end is or may be the cause, and if its last lines were not
  // shown. Null: there is none.
  const Children::Exit* FirstExitToShow() const;
  // A signal has ended the run.
  bool stopped_by_signal() const;
  // The scheduler's "finished" or "stopped" event (scheduler_shell.h) after a requested end, or
  // null if nobody has requested an end.
  const nlohmann::json& requested_end() const { return attempt_->requested_end; }
  // All roles of some attempt have started.
  bool began() const { return attempt_->supervisor.started() || restarts_.count() > 0; }
  const Restarts& restarts() const { return restarts_; }

 private:
  // The processes of one attempt, and what is known of them.
  struct Attempt {
    explicit Attempt(Supervisor::Options options) : supervisor(std::move(options)) {}
    EventPipe pipe;
    EventPipe exits;  // to the scheduler
    LocalRoles roles;
    std::string address;  // of the scheduler
    // Roles whose places are vacant, and when their old processes are killed.
    std::map<std::string, absl::Time> vacant;
    Supervisor supervisor;
    int64_t step = 0;  // of the worker that is furthest ahead
    nlohmann::json requested_end;
    bool stopped = false;  // it was to end at once
    absl::Time finished = absl::InfiniteFuture();
    bool waits_for_scripts = false;  // a line has said so
    // The checkpoint that a server could not load (the name of its folder), and why.
    std::string damaged_checkpoint, damage;
  };

  Supervisor& supervisor() { return attempt_->supervisor; }
  Children& children() { return attempt_->roles.children(); }

  // These say how the run may continue after a failure.
  bool MayContinue() const;
  bool MayRestart() const;
  bool MayReplace() const;
  int MaxReplacements() const;
  Supervisor::Options HowToStop() const;

  // The attempt.
  absl::Status StartScheduler();
  void AddWatchArguments(std::vector<std::string>* argv) const;
  bool Turn();
  void TellExits(const std::vector<Children::Exit>& exits);
  void OnVacant(absl::Time now, const std::string& role, const std::string& why, int64_t step);
  void StartVacant(absl::Time now);
  void ShowScripts(bool last);
  void AwaitScripts(absl::Time now);
  void OnStop(absl::Time now);
  void OnCheckpointSignal();
  void OnEvent(const nlohmann::json& event);
  void OnAddress(const std::string& address);
  void OnReplaced(const nlohmann::json& event);
  void OnSaved();
  void NoteTheScript();

  // The end of an attempt, and the next attempt.
  void EndAttempt();
  bool PassesOver();
  bool StartAgain();
  absl::StatusOr<bool> FindNextStart(StartFlags* start);
  absl::Status CheckSameScript() const;

  const RunFlags& flags_;
  const job::ResolvedJob& plan_;
  const bool checkpoints_;
  const std::string script_hash_;  // at the start of the run
  ProgressView& view_;
  OwnedFd kept_;
  StartFlags start_;  // of the next attempt
  // Selects the checkpoint of the next attempt.
  server::CheckpointSearch search_ = server::CheckpointSearch::WithoutRanges();
  LauncherWatch launcher_;
  const OutputFolder* folder_ = nullptr;
  std::optional<RoleCommands> commands_;
  Restarts restarts_;
  std::optional<Attempt> attempt_;  // the last one
  const std::atomic<int>* stops_ = nullptr;
  int stops_seen_ = 0;
  const std::atomic<int>* checkpoints_asked_ = nullptr;
  int checkpoints_seen_ = 0;
  bool script_noted_ = false;  // true after the first checkpoint
  bool saved_ = false;         // this process has seen a checkpoint of the run
  absl::Time failed_at_;
  bool again_ = false;        // a new attempt follows
  bool passes_over_ = false;  // ... because the checkpoint of the last one is damaged
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_ATTEMPTS_H_
