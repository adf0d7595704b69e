#include "cli/launch/attempts.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/launch/deal_roles.h"
#include "cli/launch/script.h"
#include "cli/launch/service_manager.h"
#include "job/silence_times.h"
#include "node/role_flags.h"
#include "scheduler/failure/may_replace.h"

namespace tandem::cli {
namespace {

constexpr char kAnyLoopbackPort[] = "127.0.0.1:0";

// Checks that the folder has room for a page.
absl::Status TryToWrite(const std::string& folder) {
  constexpr size_t kPage = 4096;
  const std::string path = folder + "/room";
  const absl::Status written = WriteFileAtomically(path, std::string(kPage, 'x'));
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  return written;
}

}  // namespace

Attempts::Attempts(const RunFlags& flags, const job::ResolvedJob& plan, std::string script_hash,
                   OwnedFd kept, ProgressView* view)
    : flags_(flags),
      plan_(plan),
      checkpoints_(!PathsOf(flags.start, flags.out, plan).checkpoint_folder.empty()),
      script_hash_(std::move(script_hash)),
      view_(*view),
      kept_(std::move(kept)),
      start_(flags.start),
      launcher_(flags.launcher),
      restarts_(plan.job.cluster().max_restarts()) {
  attempt_.emplace(HowToStop());
}

void Attempts::Execute(const OutputFolder* folder, RoleOptions roles) {
  folder_ = folder;
  stops_ = node::StopSignals();
  checkpoints_asked_ = node::CheckpointSignals();
  commands_.emplace(plan_, std::move(roles));
  for (;;) {
    const absl::Status started = StartScheduler();
    if (!started.ok()) supervisor().OnCannotStart(std::string(started.message()));
    while (started.ok() && Turn()) {
    }
    EndAttempt();
    if (!started.ok() || !StartAgain()) return;
  }
}

std::string Attempts::Failure() const {
  const std::string& failure = attempt_->supervisor.failure();
  if (attempt_->stopped) return "";
  if (failure.empty()) return attempt_->supervisor.script_failure();
  if (restarts_.why_not().empty()) return failure;
  return absl::StrCat(failure, "; ", restarts_.why_not());
}

const Children::Exit* Attempts::FirstExitToShow() const {
  const std::optional<Children::Exit>& exit = attempt_->supervisor.first_exit();
  return exit.has_value() && !attempt_->roles.Shows(exit->name) ? &*exit : nullptr;
}

// A signal may have come between two attempts.
bool Attempts::stopped_by_signal() const {
  return attempt_->supervisor.stopping() || (again_ && stops_->load() > 0);
}

// ---- what the run may do ----------------------------------------------------------------------

// Whether the run may continue after a failure. A replay may not, because it follows a record. A
// prediction may not, because it leaves no model.
bool Attempts::MayContinue() const {
  return restarts_.most() > 0 && flags_.replay.empty() && !flags_.scores;
}

// A run that writes no checkpoint has nothing to resume from.
bool Attempts::MayRestart() const { return MayContinue() && checkpoints_; }

// Whether workers of this run may be replaced. A role on another host is started by another
// process, and a script has a state of its own.
bool Attempts::MayReplace() const {
  return MayContinue() && flags_.ranks == 1 && flags_.python.empty() &&
         scheduler::MayReplaceWorkers(plan_).ok();
}

// How many workers of this attempt the scheduler may have replaced.
int Attempts::MaxReplacements() const {
  return MayReplace() ? restarts_.ForScheduler(MonotonicNow()).left : 0;
}

// A replay writes no checkpoint: its barrier would need another order than the recorded one.
Supervisor::Options Attempts::HowToStop() const {
  Supervisor::Options options;
  // With several ranks the scheduler must live a little longer: it ends the roles on other hosts.
  options.restarts =
      MayRestart() && flags_.ranks == 1 && restarts_.ForScheduler(MonotonicNow()).left > 0;
  options.checkpoints = checkpoints_ && flags_.replay.empty();
  options.ends_at_once = !flags_.replay.empty();
  options.replaces = MaxReplacements() > 0;
  options.scripts = !flags_.python.empty() && !flags_.scores;
  options.naming = job::SilenceTimes(plan_.job).naming;
  options.why_no_log = [out = flags_.out] {
    return std::string(TryToWrite(out + "/logs").message());
  };
  return options;
}

// ---- the attempt ------------------------------------------------------------------------------

absl::Status Attempts::StartScheduler() {
  TANDEM_RETURN_IF_ERROR(attempt_->pipe.Open());
  Children::Command scheduler = commands_->Scheduler(start_, attempt_->pipe.write_fd());
  if (MayRestart()) {
    const scheduler::Restarts before = restarts_.ForScheduler(MonotonicNow());
    scheduler.argv.insert(scheduler.argv.end(), {"--restarts", RestartsFlag(before)});
  }
  if (const int most = MaxReplacements(); most > 0) {
    scheduler.argv.insert(scheduler.argv.end(), {"--replacements", absl::StrCat(most)});
    TANDEM_RETURN_IF_ERROR(attempt_->exits.Open());
    scheduler.stdin_fd = attempt_->exits.read_fd();
  }
  if (flags_.agents_by_hand) {
    scheduler.argv.insert(scheduler.argv.end(), {"--driver", absl::StrCat(getpid())});
  }
  AddWatchArguments(&scheduler.argv);
  const absl::Status started = children().Start(scheduler);
  attempt_->pipe.CloseWriter();
  return started;
}

// A virtual host has a loopback address of its own, which nobody else reaches.
void Attempts::AddWatchArguments(std::vector<std::string>* argv) const {
  const bool apart = flags_.link_bytes_per_second != 0;
  const bool serves = !flags_.watch.http.empty() || (!flags_.scores && !apart);
  const std::string http = flags_.watch.http.empty() ? kAnyLoopbackPort : flags_.watch.http;
  if (serves && http != kNoHttp) argv->insert(argv->end(), {"--http", http});
  if (flags_.watch.insecure) argv->push_back("--insecure");
  if (!flags_.watch.tensorboard.empty()) {
    argv->insert(argv->end(), {"--tensorboard", flags_.watch.tensorboard});
  }
}

// Handles the events since the last call. False once the attempt is over.
bool Attempts::Turn() {
  // Look for ended processes first. Events that the scheduler sent before a process ended are
  // then in the pipe and are handled before its end.
  std::vector<Children::Exit> exits = children().Reap();
  for (const nlohmann::json& event : attempt_->pipe.Read(absl::Milliseconds(100))) OnEvent(event);
  const absl::Time now = MonotonicNow();
  TellExits(exits);
  supervisor().OnExits(now, std::move(exits));
  StartVacant(now);
  launcher_.Check();
  for (const int stops = stops_->load(); stops_seen_ < stops; ++stops_seen_) OnStop(now);
  if (const int asked = checkpoints_asked_->load();
      supervisor().started() && checkpoints_seen_ != asked) {
    checkpoints_seen_ = asked;
    OnCheckpointSignal();
  }
  ShowScripts(/*last=*/false);
  if (supervisor().awaits_scripts()) AwaitScripts(now);
  return !supervisor().over(now) && children().running();
}

// Scripts may have work left after the end of the job. A line says so once if it takes long.
void Attempts::AwaitScripts(absl::Time now) {
  constexpr absl::Duration kPatience = absl::Seconds(6);
  const std::vector<std::string> workers = children().Running("worker ");
  if (workers.empty()) return supervisor().OnWorkersEnded(now);
  attempt_->finished = std::min(attempt_->finished, now);
  if (attempt_->waits_for_scripts || now < attempt_->finished + kPatience) return;
  attempt_->waits_for_scripts = true;
  view_.Line(absl::StrCat("the job has ended; the code after the loop over epochs still runs in ",
                          absl::StrJoin(workers, ", "), "; to end it, press Ctrl-C"));
}

// The scheduler learns of the end of a worker sooner from here than from its connections.
void Attempts::TellExits(const std::vector<Children::Exit>& exits) {
  for (const Children::Exit& exit : exits) {
    int rank = 0;
    absl::string_view name = exit.name;
    if (!absl::ConsumePrefix(&name, "worker ") || !absl::SimpleAtoi(name, &rank)) continue;
    attempt_->exits.Write({{"worker", rank}, {"pid", exit.pid}, {"text", exit.HowItEnded()}});
  }
}

// The scheduler waits for a new process in the place of a dead worker.
void Attempts::OnVacant(absl::Time now, const std::string& role, const std::string& why,
                        int64_t step) {
  constexpr absl::Duration kMayEnd = absl::Seconds(1);  // for the old process to end by itself
  supervisor().OnVacant(role);
  attempt_->vacant[role] = now + kMayEnd;
  restarts_.BeginReplacement(now, role, why, step);
  view_.Line(
      absl::StrCat(role, ": ", why, "; a new process takes its place, and the others continue"));
}

// Starts the new processes, each when the old one has ended.
void Attempts::StartVacant(absl::Time now) {
  for (auto it = attempt_->vacant.begin(); it != attempt_->vacant.end();) {
    const auto& [role, kill_at] = *it;
    if (children().IsRunning(role)) {
      if (now >= kill_at) children().SignalOne(role, SIGKILL);
      ++it;
      continue;
    }
    int rank = 0;
    TANDEM_CHECK(absl::SimpleAtoi(absl::StripPrefix(role, "worker "), &rank));
    supervisor().OnNewProcess(role);
    const absl::Status started = children().Start(commands_->Worker(rank, attempt_->address));
    if (!started.ok()) supervisor().OnCannotStart(std::string(started.message()));
    it = attempt_->vacant.erase(it);
  }
}

void Attempts::ShowScripts(bool last) {
  for (const std::string& line : attempt_->roles.ReadScripts(last)) view_.Line(line);
}

void Attempts::OnStop(absl::Time now) {
  const Supervisor::Stop stop = supervisor().OnStop(now);
  if (stop == Supervisor::Stop::kIgnore) return;
  NotifyServiceManager("STOPPING=1");
  if (flags_.replay.empty()) children().SignalOne("scheduler", node::kDriverStops);
  view_.Line(stop == Supervisor::Stop::kCheckpoint
                 ? "stopping: making a checkpoint first; once more to end at once"
                 : "stopping");
}

// Handles SIGUSR1 once all processes run. Batch systems send it before the end of a job's time.
void Attempts::OnCheckpointSignal() {
  if (supervisor().stopping() || supervisor().finished() || !supervisor().failure().empty()) return;
  if (!flags_.replay.empty()) return view_.Line("SIGUSR1: a replay writes no checkpoint");
  if (!checkpoints_) {
    return view_.Line(flags_.start.checkpoint
                          ? "SIGUSR1: a run that only evaluates writes no checkpoint"
                          : "SIGUSR1: no checkpoint is written, because of --no-checkpoint");
  }
  view_.Line("SIGUSR1: writing a checkpoint; training continues");
  children().SignalOne("scheduler", SIGUSR1);
}

void Attempts::OnEvent(const nlohmann::json& event) {
  const std::string kind = event.value("event", "");
  const absl::Time now = MonotonicNow();
  if (kind == "address") {
    OnAddress(event.value("address", ""));
  } else if (kind == "http") {
    view_.Line(absl::StrCat("watch: ", event.value("url", "")));
  } else if (kind == "started") {
    supervisor().OnStarted();
    restarts_.OnStarted(now, event.value("seconds", 0.0), event.value("since", ""));
    NotifyServiceManager("READY=1");
    // A run that may restart keeps the checkpoint that it began with until it has written its own.
    // A run in which workers may be replaced keeps it to the end.
    if (!MayRestart() && !MayReplace()) kept_ = OwnedFd();
  } else if (kind == "failed") {
    supervisor().OnFailed(now, event.value("node", ""), event.value("reason", ""),
                          event.value("comes_again", false), event.value("step", int64_t{-1}),
                          event.value("no_room", false));
    attempt_->damaged_checkpoint = event.value("damaged_checkpoint", "");
    attempt_->damage = event.value("reason", "");
  } else if (kind == "stopped") {  // `tandem stop --now`
    supervisor().OnFailed(now, "scheduler", event.value("why", ""), /*comes_again=*/true);
    attempt_->stopped = true;
    attempt_->requested_end = event;
  } else if (kind == "ending") {
    supervisor().OnEnding();
  } else if (kind == "recovered") {
    const double seconds = event.value("seconds", 0.0);
    view_.Line(absl::StrFormat("all workers train again after %.1f s; %s steps are done again",
                               seconds, WithCommas(restarts_.OnRecovered(seconds))));
  } else if (kind == "vacant") {
    OnVacant(now, event.value("node", ""), event.value("reason", ""),
             event.value("step", int64_t{-1}));
  } else if (kind == "replaced") {
    OnReplaced(event);
  } else if (kind == "finished") {
    supervisor().OnFinished(now);
    if (event.contains("checkpointed_step")) attempt_->requested_end = event;
    NoteTheScript();
  } else {
    if (kind == "saved") OnSaved();
    if (kind == "progress") {
      attempt_->step = std::max(attempt_->step, event.value("max_step", int64_t{0}));
    }
    if (flags_.scores && kind == "evaluation")
      return;  // `tandem predict` prints it with the scores
    view_.Show(event, now);
  }
}

void Attempts::OnAddress(const std::string& address) {
  attempt_->address = address;
  const DealtRoles dealt =
      DealRoles(plan_.server_processes(), plan_.workers(), /*rank=*/0, flags_.ranks);
  const absl::Status started = attempt_->roles.Start(
      dealt, *commands_, address, /*shows_scripts=*/!flags_.python.empty() && !flags_.scores);
  if (!started.ok()) supervisor().OnCannotStart(std::string(started.message()));
}

void Attempts::OnReplaced(const nlohmann::json& event) {
  const std::string role = event.value("node", "");
  const double seconds = event.value("seconds", 0.0);
  const auto again = event.value("steps_again", int64_t{0});
  restarts_.OnReplaced(role, seconds, event.value("step", int64_t{0}), again);
  view_.Line(absl::StrFormat("%s trains again after %.1f s; %s of its steps are done again", role,
                             seconds, WithCommas(again)));
}

void Attempts::OnSaved() {
  NoteTheScript();
  saved_ = true;
  restarts_.OnSaved();
  if (!MayReplace()) kept_ = OwnedFd();  // a new process in the place of a worker loads it
}

// Notes the script at the first checkpoint. Until then a resumed run keeps the note of the script
// that wrote the checkpoint, because the checkpoint may not fit the new script.
void Attempts::NoteTheScript() {
  if (std::exchange(script_noted_, true) || flags_.python.empty()) return;
  const absl::Status noted = NoteScript(flags_.out, flags_.python, script_hash_);
  if (!noted.ok()) view_.Line(absl::StrCat("warning: ", noted.message()));
}

// ---- the end of an attempt, and the next attempt ----------------------------------------------

// Finds the cause before it ends the other processes.
void Attempts::EndAttempt() {
  for (const nlohmann::json& event : attempt_->pipe.Read(absl::ZeroDuration())) OnEvent(event);
  supervisor().Conclude();
  failed_at_ = MonotonicNow();
  again_ = stops_->load() == 0 && !supervisor().stopping() && !supervisor().failure().empty();
  passes_over_ = again_ && PassesOver();
  again_ = passes_over_ ||
           (again_ && MayRestart() && restarts_.Allow(failed_at_, supervisor().Failure()));
  // Compiled roles write nothing that the next attempt needs. A script may, so it gets its time.
  const bool at_once = again_ && flags_.python.empty() && flags_.ranks == 1;
  children().StopAll(at_once ? absl::ZeroDuration() : supervisor().Grace());
  ShowScripts(/*last=*/true);
}

// Whether the attempt has failed because its checkpoint is damaged, and another attempt may resume
// from an older one. Such an attempt has cost nothing, so it is no restart. Each checkpoint is
// passed over once, so this comes to an end.
bool Attempts::PassesOver() {
  if (attempt_->damaged_checkpoint.empty() || !start_.resumed.has_value()) return false;
  return search_.damaged.emplace(attempt_->damaged_checkpoint, attempt_->damage).second;
}

// Prepares the next attempt of the run, if one follows.
bool Attempts::StartAgain() {
  if (!again_ || stops_->load() > 0) return false;
  const AttemptFailure failure = supervisor().Failure();
  StartFlags start = flags_.start;
  const absl::StatusOr<bool> resumes = FindNextStart(&start);
  const absl::Status ready = resumes.ok() ? CheckSameScript() : resumes.status();
  if (!ready.ok()) {
    view_.Line(absl::StrCat("no new attempt: ", ready.message()));
    return false;
  }
  folder_->ClearForResume();  // the other files are replaced, or appended to
  start_ = std::move(start);
  const int64_t from = start_.resumed.has_value() ? start_.resumed->step : 0;
  if (passes_over_) {
    restarts_.OnPassedOver(from);
    view_.Line(absl::StrCat("resuming from step ", WithCommas(from)));
  } else {
    restarts_.Begin(failed_at_, failure, from, std::max<int64_t>(0, attempt_->step - from));
    view_.Line(absl::StrCat(failure.text, "; restart ", restarts_.count(), ", ",
                            *resumes ? absl::StrCat("from step ", WithCommas(from))
                                     : "from the beginning: there is no checkpoint yet"));
  }
  attempt_.emplace(HowToStop());
  return true;
}

// Changes `start` from the flags of the run to those of its next attempt. Returns whether this
// attempt resumes from a checkpoint. Without any checkpoint the run begins anew. If its checkpoints
// cannot be read, returns the error: the run ends instead of losing the work.
absl::StatusOr<bool> Attempts::FindNextStart(StartFlags* start) {
  StartFlags next = *start;
  std::string out = flags_.out;
  next.resume = out;
  next.search = search_;
  next.init_from.clear();
  next.only_tables.clear();
  if (const absl::Status found = FindResume(&next, &out); !found.ok()) {
    if (saved_ || flags_.start.resumed.has_value()) return found;
    TANDEM_ASSIGN_OR_RETURN(const bool is_there, HasCheckpoint(flags_.out));
    if (is_there) return found;
    return false;
  }
  StartReport report = CheckStart(next, plan_);
  for (const std::string& line : report.said) view_.Line(line);
  if (!report.refused.empty()) return absl::FailedPreconditionError(report.refused[0]);
  next.init_from = report.checkpoint;
  kept_ = std::move(report.kept);
  *start = std::move(next);
  return true;
}

// The checkpoint may not fit a script that was edited while the run trained.
absl::Status Attempts::CheckSameScript() const {
  if (flags_.python.empty() || ScriptHash(flags_.python) == script_hash_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(flags_.python, " has changed since the run began"));
}

}  // namespace tandem::cli
