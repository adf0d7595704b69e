#include "cli/run_command.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/owned_fd.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "cli/children.h"
#include "cli/deal_roles.h"
#include "cli/describe_run.h"
#include "cli/event_pipe.h"
#include "cli/job_hosts.h"
#include "cli/log_tail.h"
#include "cli/numbers.h"
#include "cli/output_folder.h"
#include "cli/progress_view.h"
#include "cli/restarts.h"
#include "cli/resume_point.h"
#include "cli/role_commands.h"
#include "cli/script.h"
#include "cli/service_manager.h"
#include "cli/supervisor.h"
#include "data/batch_source.h"
#include "data/files.h"
#include "data/id_check.h"
#include "data/row_data.h"
#include "data/statistics.h"
#include "node/job_token.h"
#include "node/network_check.h"
#include "node/role_flags.h"
#include "node/transport_choice.h"
#include "scheduler/may_replace.h"
#include "scheduler/summary.h"
#include "server/checkpoint_directory.h"
#include "server/range_file.h"
#include "tools/doctor/doctor.h"
#include "tools/doctor/doctor_gather.h"
#include "worker/dense/tune_group.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kBadRowsFile[] = "bad_rows.txt";
constexpr char kAnyLoopbackPort[] = "127.0.0.1:0", kNoHttp[] = "none";

// Checks that the folder has room for a page.
absl::Status TryToWrite(const std::string& folder) {
  constexpr size_t kPage = 4096;
  const std::string path = folder + "/room";
  const absl::Status written = WriteFileAtomically(path, std::string(kPage, 'x'));
  std::error_code ignored;
  fs::remove(path, ignored);
  return written;
}

// Whether standard output is a terminal that understands escape sequences.
bool CanRewriteALine() {
  const char* const terminal = getenv("TERM");
  return isatty(STDOUT_FILENO) != 0 && absl::string_view(terminal ? terminal : "") != "dumb";
}

// Changes a message about data to the flags of the called command: the job file of `tandem predict`
// does not name its rows.
std::string InFlagsOf(const RunFlags& flags, absl::string_view text) {
  if (!flags.scores) return std::string(text);
  return absl::StrReplaceAll(text, {{"data.test", "--data"},
                                    {"; hint: check the path in the job file", ""},
                                    {"; hint: remove it from the job", ""}});
}

// Describes the model that a run with train.keep_best keeps.
std::string DescribeBest(const nlohmann::json& best, bool saved) {
  return absl::StrFormat(
      "%s epoch %d, step %s: validation %s %.4f%s", saved ? "kept the model of" : "best at",
      best.value("epoch", int64_t{0}), WithCommas(best.value("step", int64_t{0})),
      best.value("metric", "") == "auc" ? "AUC" : best.value("metric", ""),
      best.value("value", 0.0),
      best.value("stopped_early", false) ? "; none better came, so it ended" : "");
}

// The roles of the job that this process starts.
DealtRoles RolesHere(const RunFlags& flags, const job::ResolvedJob& plan) {
  return DealRoles(plan.server_processes(), plan.workers(), /*rank=*/0, flags.ranks);
}

class Run {
 public:
  // `kept`: keeps the checkpoint that the job begins with while a process may still load it.
  // `script_hash`: of the script that runs as each worker, if any. `warnings`: warnings about the
  // data, which have been printed.
  Run(const RunFlags& flags, job::ResolvedJob plan, OwnedFd kept, std::string script_hash,
      std::vector<std::string> warnings)
      : flags_(flags),
        plan_(std::move(plan)),
        warnings_(std::move(warnings)),
        kept_(std::move(kept)),
        checkpoints_(!PathsOf(flags.start, flags.out, plan_).checkpoint_folder.empty()),
        script_hash_(std::move(script_hash)),
        live_(flags.lines == stdout && CanRewriteALine()),
        view_(flags.lines, live_),
        start_(flags.start),
        restarts_(plan_.job.cluster().max_restarts()) {
    attempt_.emplace(HowToStop());
  }

  // Checks that the programs to start exist.
  absl::Status CheckPrograms() const {
    for (const char* name : {"tandem-scheduler", "tandem-server", "tandem-worker"}) {
      if (!flags_.python.empty() && name == std::string("tandem-worker")) continue;
      TANDEM_RETURN_IF_ERROR(CheckProgram(name));
    }
    return absl::OkStatus();
  }

  // Creates the output folder, and writes the job for all processes and the list of skipped
  // rows there.
  absl::Status Prepare(const std::vector<std::string>& bad_rows) {
    launcher_.Check();  // a launcher that has gone while this rank has read the data
    const bool resumes = flags_.start.resumed.has_value();
    TANDEM_ASSIGN_OR_RETURN(OutputFolder folder,
                            OutputFolder::Claim(flags_.out, flags_.overwrite || resumes));
    folder_.emplace(std::move(folder));
    std::error_code error;
    if (!resumes) {
      // Keep the model that this run replaces until the new one is complete.
      folder_->Clear(/*keep_model=*/checkpoints_ || IsInside(flags_.start.init_from, flags_.out));
      fs::remove_all(flags_.out + "/logs", error);
    }
    fs::create_directories(flags_.out + "/logs", error);
    if (error) {
      return absl::PermissionDeniedError(
          absl::StrCat("--out ", flags_.out, ": cannot be written: ", error.message()));
    }
    if (!bad_rows.empty()) {
      std::ofstream(absl::StrCat(flags_.out, "/", kBadRowsFile))
          << absl::StrJoin(bad_rows, "\n") << "\n";
    }
    TANDEM_RETURN_IF_ERROR(node::ProvideToken(plan_.job, flags_.out));
    TANDEM_RETURN_IF_ERROR(node::PublishToken(plan_.job, flags_.out));
    // Write atomically, because a resumed run needs the job.
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(JobPath(), job::ResolvedText(plan_)));
    if (!resumes) TANDEM_RETURN_IF_ERROR(NoteTheScript());
    if (!resumes) TANDEM_RETURN_IF_ERROR(NoteTheStart());
    if (resumes) folder_->ClearForResume();
    return absl::OkStatus();
  }

  // Creates the virtual hosts for the processes, if the job uses them.
  absl::Status MakeHosts() {
    if (flags_.link_bytes_per_second == 0) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(JobHosts hosts,
                            JobHosts::Make({flags_.link_bytes_per_second, plan_.workers(),
                                            plan_.server_processes(), flags_.colocate_servers}));
    hosts_.emplace(std::move(hosts));
    return absl::OkStatus();
  }

  int Execute() {
    stops_ = node::StopSignals();
    checkpoints_asked_ = node::CheckpointSignals();
    Announce();
    RoleOptions options;
    options.job = JobPath();
    options.out = flags_.out;
    options.python = flags_.python;
    options.script_flags = flags_.script_flags;
    options.replay = flags_.replay;
    options.trace_steps = flags_.trace_steps;
    options.scores = flags_.scores;
    options.hosts = hosts_.has_value() ? &*hosts_ : nullptr;
    options.network = flags_.network;
    roles_.emplace(plan_, std::move(options));
    for (;;) {
      if (const absl::Status started = StartScheduler(); !started.ok()) {
        supervisor().OnCannotStart(std::string(started.message()));
        EndAttempt();
        return Close();
      }
      while (Turn()) {
      }
      EndAttempt();
      if (!StartAgain()) return Close();
    }
  }

 private:
  std::string JobPath() const { return flags_.out + "/job.textproto"; }

  Supervisor& supervisor() { return attempt_->supervisor; }
  const Supervisor& supervisor() const { return attempt_->supervisor; }

  absl::Status NoteTheScript() {
    if (flags_.python.empty()) return absl::OkStatus();
    return NoteScript(flags_.out, flags_.python, script_hash_);
  }

  // Notes the model for a replay. The run may be resumed later with other flags.
  absl::Status NoteTheStart() {
    if (flags_.start.init_from.empty() || !plan_.job.staleness().record_order())
      return absl::OkStatus();
    std::error_code error;
    const nlohmann::json start = {
        {"init_from", fs::absolute(flags_.start.init_from, error).string()},
        {"only_tables", flags_.start.only_tables}};
    return WriteFileAtomically(absl::StrCat(flags_.out, "/", kStartFile),
                               scheduler::PrettyPrint(start));
  }

  // Notes the script at the first checkpoint. Until then a resumed run keeps the note of the script
  // that wrote the checkpoint, because the checkpoint may not fit the new script.
  void NoteTheScriptOfACheckpoint() {
    if (std::exchange(script_noted_, true)) return;
    if (const absl::Status noted = NoteTheScript(); !noted.ok()) {
      view_.Line(absl::StrCat("warning: ", noted.message()));
    }
  }

  // A replay writes no checkpoint: its barrier would need another order than the recorded one.
  Supervisor::Options HowToStop() const {
    Supervisor::Options options;
    // With several ranks the scheduler must live a little longer: it ends the roles on other hosts.
    options.restarts =
        MayRestart() && flags_.ranks == 1 && restarts_.ForScheduler(MonotonicNow()).left > 0;
    options.checkpoints = checkpoints_ && flags_.replay.empty();
    options.ends_at_once = !flags_.replay.empty();
    options.replaces = MostReplacements() > 0;
    options.naming = job::SilenceTimes(plan_.job).naming;
    options.why_no_log = [out = flags_.out] {
      return std::string(TryToWrite(out + "/logs").message());
    };
    return options;
  }

  void Announce() {
    if (flags_.scores) return;
    for (const std::string& line : DescribeRun(plan_, flags_.start)) view_.Line(line);
  }

  absl::Status StartScheduler() {
    TANDEM_RETURN_IF_ERROR(attempt_->pipe.Open());
    Children::Command scheduler = roles_->Scheduler(start_, attempt_->pipe.write_fd());
    if (MayRestart()) {
      const scheduler::Restarts before = restarts_.ForScheduler(MonotonicNow());
      scheduler.argv.insert(scheduler.argv.end(), {"--restarts", RestartsFlag(before)});
    }
    if (const int most = MostReplacements(); most > 0) {
      scheduler.argv.insert(scheduler.argv.end(), {"--replacements", absl::StrCat(most)});
      TANDEM_RETURN_IF_ERROR(attempt_->exits.Open());
      scheduler.stdin_fd = attempt_->exits.read_fd();
    }
    AddWatchArguments(&scheduler.argv);
    const absl::Status started = attempt_->children.Start(scheduler);
    attempt_->pipe.CloseWriter();
    return started;
  }

  // A virtual host has a loopback address of its own, which nobody else reaches.
  void AddWatchArguments(std::vector<std::string>* argv) const {
    const bool serves = !flags_.watch.http.empty() || (!flags_.scores && !hosts_.has_value());
    const std::string http = flags_.watch.http.empty() ? kAnyLoopbackPort : flags_.watch.http;
    if (serves && http != kNoHttp) argv->insert(argv->end(), {"--http", http});
    if (flags_.watch.insecure) argv->push_back("--insecure");
    if (!flags_.watch.tensorboard.empty()) {
      argv->insert(argv->end(), {"--tensorboard", flags_.watch.tensorboard});
    }
  }

  absl::Status StartNodes(const std::string& address) {
    const DealtRoles dealt = RolesHere(flags_, plan_);
    for (const int server : dealt.servers) {
      TANDEM_RETURN_IF_ERROR(attempt_->children.Start(roles_->Server(server, address)));
    }
    for (const int worker : dealt.workers) {
      const Children::Command command = roles_->Worker(worker, address);
      if (!flags_.python.empty() && !flags_.scores) {
        attempt_->scripts.emplace_back(command.name, command.log);
        attempt_->scripts.back().SkipExisting();
      }
      TANDEM_RETURN_IF_ERROR(attempt_->children.Start(command));
    }
    return absl::OkStatus();
  }

  // False once the attempt is over.
  bool Turn() {
    // Look for ended processes first. Events that the scheduler sent before a process ended are
    // then in the pipe and are handled before its end.
    std::vector<Children::Exit> exits = attempt_->children.Reap();
    for (const nlohmann::json& event : attempt_->pipe.Read(absl::Milliseconds(100))) OnEvent(event);
    const absl::Time now = MonotonicNow();
    TellExits(exits);
    supervisor().OnExits(now, std::move(exits));
    StartVacant(now);
    launcher_.Check();
    for (const int stops = stops_->load(); stops_seen_ < stops; ++stops_seen_) OnStop(now);
    if (const int asked = checkpoints_asked_->load();
        supervisor().started() && checkpoint_counts_seen_ != asked) {
      checkpoint_counts_seen_ = asked;
      OnCheckpoint();
    }
    ShowScripts(/*last=*/false);
    return !supervisor().over(now) && attempt_->children.running();
  }

  // The scheduler learns of the end of a worker sooner from here than from its connections.
  void TellExits(const std::vector<Children::Exit>& exits) {
    for (const Children::Exit& exit : exits) {
      int rank = 0;
      absl::string_view name = exit.name;
      if (!absl::ConsumePrefix(&name, "worker ") || !absl::SimpleAtoi(name, &rank)) continue;
      attempt_->exits.Write({{"worker", rank}, {"pid", exit.pid}, {"text", exit.HowItEnded()}});
    }
  }

  // The scheduler waits for a new process in the place of a dead worker.
  void OnVacant(absl::Time now, const std::string& role, const std::string& why, int64_t step) {
    constexpr absl::Duration kMayEnd = absl::Seconds(1);  // the old process, by itself
    supervisor().OnVacant(role);
    attempt_->vacant[role] = now + kMayEnd;
    restarts_.BeginReplacement(now, role, why, step);
    view_.Line(
        absl::StrCat(role, ": ", why, "; a new process takes its place, and the others continue"));
  }

  // Starts the new processes, each when the old one has ended.
  void StartVacant(absl::Time now) {
    for (auto it = attempt_->vacant.begin(); it != attempt_->vacant.end();) {
      const auto& [role, kill_at] = *it;
      if (attempt_->children.IsRunning(role)) {
        if (now >= kill_at) attempt_->children.SignalOne(role, SIGKILL);
        ++it;
        continue;
      }
      int rank = 0;
      TANDEM_CHECK(absl::SimpleAtoi(absl::StripPrefix(role, "worker "), &rank));
      supervisor().OnNewProcess(role);
      const absl::Status started =
          attempt_->children.Start(roles_->Worker(rank, attempt_->address));
      if (!started.ok()) supervisor().OnCannotStart(std::string(started.message()));
      it = attempt_->vacant.erase(it);
    }
  }

  // Shows what the scripts have printed.
  void ShowScripts(bool last) {
    for (LogTail& script : attempt_->scripts) {
      for (const std::string& line : script.Read(last)) {
        view_.Line(absl::StrCat(script.name(), " | ", line));
      }
    }
  }

  void OnStop(absl::Time now) {
    const Supervisor::Stop stop = supervisor().OnStop(now);
    if (stop == Supervisor::Stop::kIgnore) return;
    NotifyServiceManager("STOPPING=1");
    if (flags_.replay.empty()) attempt_->children.SignalOne("scheduler", node::kDriverStops);
    view_.Line(stop == Supervisor::Stop::kCheckpoint
                   ? "stopping: making a checkpoint first; once more to end at once"
                   : "stopping");
  }

  // Handles SIGUSR1 once all processes run. Batch systems send it before the end of a job's time.
  void OnCheckpoint() {
    if (supervisor().stopping() || supervisor().finished() || !supervisor().failure().empty())
      return;
    if (!flags_.replay.empty()) return view_.Line("SIGUSR1: a replay writes no checkpoint");
    if (!checkpoints_) {
      return view_.Line(flags_.start.checkpoint
                            ? "SIGUSR1: a run that only evaluates writes no checkpoint"
                            : "SIGUSR1: no checkpoint is written, because of --no-checkpoint");
    }
    view_.Line("SIGUSR1: writing a checkpoint; training continues");
    attempt_->children.SignalOne("scheduler", SIGUSR1);
  }

  void OnEvent(const nlohmann::json& event) {
    const std::string kind = event.value("event", "");
    const absl::Time now = MonotonicNow();
    if (kind == "address") {
      attempt_->address = event.value("address", "");
      if (const absl::Status started = StartNodes(event.value("address", "")); !started.ok()) {
        supervisor().OnCannotStart(std::string(started.message()));
      }
    } else if (kind == "http") {
      view_.Line(absl::StrCat("watch: ", event.value("url", "")));
    } else if (kind == "started") {
      supervisor().OnStarted();
      NotifyServiceManager("READY=1");
      // A run that may restart keeps it until there is a checkpoint of this run. A run in which
      // workers may be replaced keeps it to the end.
      if (!MayRestart() && !MayReplace()) kept_ = OwnedFd();
    } else if (kind == "failed") {
      supervisor().OnFailed(now, event.value("node", ""), event.value("reason", ""),
                            event.value("comes_again", false), event.value("step", int64_t{-1}));
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
      const double seconds = event.value("seconds", 0.0);
      const auto again = event.value("steps_again", int64_t{0});
      restarts_.OnReplaced(event.value("node", ""), seconds, event.value("step", int64_t{0}),
                           again);
      view_.Line(absl::StrFormat("%s trains again after %.1f s; %s of its steps are done again",
                                 event.value("node", ""), seconds, WithCommas(again)));
    } else if (kind == "finished") {
      supervisor().OnFinished(now);
      if (event.contains("checkpointed_step")) attempt_->stopped = event;
      NoteTheScriptOfACheckpoint();
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

  void OnSaved() {
    NoteTheScriptOfACheckpoint();
    saved_ = true;
    restarts_.OnSaved();
    if (!MayReplace()) kept_ = OwnedFd();  // a new process in the place of a worker loads it
  }

  // Finds the cause before it ends the other processes.
  void EndAttempt() {
    for (const nlohmann::json& event : attempt_->pipe.Read(absl::ZeroDuration())) OnEvent(event);
    supervisor().Conclude();
    failed_at_ = MonotonicNow();
    again_ = MayRestart() && stops_->load() == 0 && !supervisor().stopping() &&
             !supervisor().failure().empty() && restarts_.Allow(failed_at_, supervisor().Failure());
    // Compiled roles write nothing that the next attempt needs. A script may, so it gets its time.
    const bool at_once = again_ && flags_.python.empty() && flags_.ranks == 1;
    attempt_->children.StopAll(at_once ? absl::ZeroDuration() : supervisor().Grace());
    ShowScripts(/*last=*/true);
  }

  // A replay follows a record, and a run that writes no checkpoint has nothing to resume from.
  bool MayRestart() const {
    return restarts_.most() > 0 && checkpoints_ && flags_.replay.empty() && !flags_.scores;
  }

  // Whether workers of this run may be replaced. A role on another host is started by another
  // process, and a script has a state of its own.
  bool MayReplace() const {
    return restarts_.most() > 0 && flags_.ranks == 1 && flags_.python.empty() &&
           flags_.replay.empty() && !flags_.scores && scheduler::MayReplaceWorkers(plan_).ok();
  }

  // How many workers of this attempt the scheduler may have replaced.
  int MostReplacements() const {
    return MayReplace() ? restarts_.ForScheduler(MonotonicNow()).left : 0;
  }

  // Prepares the next attempt of the run, if one follows.
  bool StartAgain() {
    if (!again_ || stops_->load() > 0) return false;
    const AttemptFailure failure = supervisor().Failure();
    StartFlags start = flags_.start;
    std::string out = flags_.out;
    start.resume = flags_.out;
    start.init_from.clear();
    start.only_tables.clear();
    absl::Status ready = FindResume(&start, &out);
    // Begin anew only if the run has no checkpoint. If its checkpoint cannot be read, end instead
    // of losing the work.
    const bool anew = !ready.ok() && !saved_ && !flags_.start.resumed.has_value();
    if (anew) {
      start = flags_.start;
      ready = absl::OkStatus();
    } else if (ready.ok()) {
      StartReport report = CheckStart(start, plan_);
      if (!report.refused.empty()) ready = absl::FailedPreconditionError(report.refused[0]);
      for (const std::string& line : report.said) view_.Line(line);
      start.init_from = report.checkpoint;
      kept_ = std::move(report.kept);
    }
    if (ready.ok()) ready = CheckSameScript();
    if (!ready.ok()) {
      view_.Line(absl::StrCat("no new attempt: ", ready.message()));
      return false;
    }
    folder_->ClearForResume();  // the other files are replaced, or appended to
    start_ = std::move(start);
    const int64_t from = start_.resumed.has_value() ? start_.resumed->step : 0;
    restarts_.Begin(failed_at_, failure, from, std::max<int64_t>(0, attempt_->step - from));
    view_.Line(absl::StrCat(failure.text, "; restart ", restarts_.count(), ", ",
                            anew ? "from the beginning: there is no checkpoint yet"
                                 : absl::StrCat("from step ", WithCommas(from))));
    attempt_.emplace(HowToStop());
    return true;
  }

  // The checkpoint may not fit a script that was edited while the run trained.
  absl::Status CheckSameScript() const {
    if (flags_.python.empty() || ScriptHash(flags_.python) == script_hash_) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(flags_.python, " has changed since the run began"));
  }

  int Close() {
    failure_ = supervisor().failure();
    if (!failure_.empty()) {
      if (!restarts_.why_not().empty()) {
        absl::StrAppend(&failure_, "; ", restarts_.why_not());
      }
      failure_ += HowToResumeAfterAFailure();
    } else if (attempt_->stopped.is_object()) {
      failure_ = HowItStopped();
    }
    if (failure_.empty()) {
      return PrintSummary();
    }
    view_.Clear();
    ShowLog();
    const absl::Status failed = absl::AbortedError(
        absl::StrCat("failed: ", InFlagsOf(flags_, failure_), "; logs in ", flags_.out, "/logs"));
    // A signal may have come between two attempts.
    const bool stopped = supervisor().stopping() || (again_ && stops_->load() > 0);
    const int code = stopped ? SignalExit() : node::kExitFailed;
    // All roles have ended. The files of a checkpoint that failed may fill the disk.
    if (flags_.ranks == 1) server::RemoveIncompleteCheckpoints(flags_.out + "/model");
    // Ignore a failure to write the summary, because the line below says more.
    (void)CompleteSummary(code);
    node::Finish(flags_.program, failed);
    return code;
  }

  static int SignalExit() { return node::kExitBySignal + node::StopSignalNumber(); }

  // Adds the values to the summary that only this process knows, also if the scheduler has died.
  absl::StatusOr<nlohmann::json> CompleteSummary(int code) {
    const std::string path = flags_.out + "/summary.json";
    std::ifstream file(path);
    auto summary = nlohmann::json::parse(file, nullptr, false);
    if (!summary.is_object() && failure_.empty()) {
      return absl::DataLossError(absl::StrCat("failed: ", path, " was not written"));
    }
    if (!summary.is_object()) {
      summary = {{"job", plan_.job.name()},
                 {"seed", plan_.job.seed()},
                 {"failed", {{"node", supervisor().FailedRole()}}}};
    }
    if (summary.contains("failed")) {
      nlohmann::json& failed = summary["failed"];
      // The scheduler may have named a process that was ended because of another one.
      if (const std::string role = supervisor().FailedRole();
          !role.empty() && failed["node"] != role) {
        failed = {{"node", role}};
      }
      failed["reason"] = failure_;
    }
    std::vector<std::string> warnings = warnings_;
    for (const auto& line : summary.value("warnings", nlohmann::json::array())) {
      warnings.push_back(line.get<std::string>());
    }
    if (!warnings.empty()) summary["warnings"] = warnings;
    summary["command"] = flags_.command;
    summary["exit"] = code;
    if (restarts_.count() > 0) summary["restarts"] = restarts_.Summary();
    if (hosts_.has_value()) summary["network"] = hosts_->Summary();
    if (!flags_.replay.empty()) summary["replay_of"] = flags_.replay;
    if (!flags_.python.empty()) {
      summary["script"] = {{"file", flags_.python}, {"sha256", script_hash_}};
    }
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(path, scheduler::PrettyPrint(summary)));
    return summary;
  }

  // How a run ended at a signal or `tandem stop`: after a checkpoint, or after a failed one.
  std::string HowItStopped() const {
    const auto step = attempt_->stopped.value("checkpointed_step", int64_t{-1});
    const std::string failure = attempt_->stopped.value("failure", "");
    return absl::StrCat(
        supervisor().stopping() ? "stopped by a signal" : attempt_->stopped.value("why", ""), ", ",
        failure.empty() ? absl::StrCat("checkpoint at step ", WithCommas(step))
                        : absl::StrCat("no checkpoint: ", failure),
        step < 0 ? "" : HowToResume());
  }

  // Empty if the run has no checkpoint.
  std::string HowToResumeAfterAFailure() const {
    if ((!supervisor().started() && restarts_.count() == 0) || !flags_.replay.empty()) return "";
    return FindResumePoint(flags_.out).ok() ? HowToResume() : "";
  }

  std::string HowToResume() const {
    std::string script, script_flags;
    if (!flags_.python.empty()) script = absl::StrCat(" --python ", ForShell(flags_.python));
    for (const std::string& flag : flags_.script_flags) {
      absl::StrAppend(&script_flags, script_flags.empty() ? " -- " : " ", ForShell(flag));
    }
    // A launcher has started this process: only the user knows how.
    if (flags_.ranks > 1) {
      return absl::StrCat("; continue with: the same command and --resume ", ForShell(flags_.out));
    }
    return absl::StrCat("; continue with: tandem run ", ForShell(flags_.job), SetFlags(), script,
                        " --resume ", ForShell(flags_.out), script_flags);
  }

  std::string SetFlags() const {
    std::string text;
    for (const std::string& set : flags_.set) absl::StrAppend(&text, " --set ", ForShell(set));
    return text;
  }

  void ShowLog() {
    const std::optional<Children::Exit>& exit = supervisor().first_exit();
    if (!exit.has_value() || exit->lines.empty()) return;
    const bool shown =
        std::any_of(attempt_->scripts.begin(), attempt_->scripts.end(),
                    [&exit](const LogTail& script) { return script.name() == exit->name; });
    if (shown) return;
    view_.Line(absl::StrCat("the end of ", exit->log, ":"));
    for (const std::string& line : exit->lines) view_.Line(absl::StrCat("  ", line));
  }

  int PrintSummary() {
    const absl::StatusOr<nlohmann::json> completed =
        CompleteSummary(supervisor().stopping() ? SignalExit() : node::kExitOk);
    if (!completed.ok()) return node::Finish(flags_.program, completed.status());
    if (flags_.scores) return supervisor().stopping() ? SignalExit() : node::kExitOk;
    const nlohmann::json& summary = *completed;
    const auto eval = summary.value("eval", nlohmann::json::object());
    const std::string result = ProgressView::FormatEvaluation(eval);
    const std::string seconds = absl::StrFormat("%.1f s", summary.value("seconds", 0.0));
    const std::string trained = absl::StrCat(
        WithCommas(summary.value("samples", int64_t{0})), " samples in ", seconds, ", ",
        WithCommas(static_cast<int64_t>(summary.value("samples_per_second", 0.0))), " samples/s");
    view_.Line(absl::StrCat(
        "done: ",
        plan_.job.train().evaluate_only() ? absl::StrCat("evaluated in ", seconds) : trained,
        result.empty() ? "" : absl::StrCat("; ", eval.value("data", "test"), ": "), result));
    if (summary.contains("best")) view_.Line(DescribeBest(summary["best"], checkpoints_));
    view_.Line(absl::StrCat("wrote ", flags_.out, "/summary.json"));
    return supervisor().stopping() ? SignalExit() : node::kExitOk;
  }

  const RunFlags& flags_;
  const job::ResolvedJob plan_;
  const std::vector<std::string> warnings_;
  OwnedFd kept_;
  const bool checkpoints_;
  const std::string script_hash_;  // at the start of the run
  bool script_noted_ = false;      // true after the first checkpoint
  const bool live_;
  ProgressView view_;
  StartFlags start_;                    // of the next attempt
  std::optional<OutputFolder> folder_;  // held until the children have ended
  std::optional<JobHosts> hosts_;       // nullopt: all processes are on this host
  LauncherWatch launcher_ = flags_.launcher;
  std::optional<RoleCommands> roles_;  // once the folder is there
  Restarts restarts_;
  // The processes of one attempt, and what is known of them.
  struct Attempt {
    explicit Attempt(Supervisor::Options options) : supervisor(std::move(options)) {}
    EventPipe pipe;
    EventPipe exits;  // to the scheduler
    Children children;
    std::string address;  // of the scheduler
    // Roles whose places are vacant, and when their old processes are killed.
    std::map<std::string, absl::Time> vacant;
    std::vector<LogTail> scripts;  // of --python
    Supervisor supervisor;
    int64_t step = 0;        // of the worker that is furthest ahead
    nlohmann::json stopped;  // the scheduler's event for a requested end
  };
  std::optional<Attempt> attempt_;
  const std::atomic<int>* stops_ = nullptr;
  int stops_seen_ = 0;
  absl::Time failed_at_;
  bool again_ = false;  // a new attempt follows
  bool saved_ = false;  // this process has seen a checkpoint of the run
  const std::atomic<int>* checkpoints_asked_ = nullptr;
  int checkpoint_counts_seen_ = 0;
  std::string failure_;  // for people, once the run is over; empty: it has ended well
};

// Checks that the processes of the job can run on virtual hosts.
absl::Status CheckNetwork(const RunFlags& flags, const job::ResolvedJob& plan) {
  const bool limited = flags.link_bytes_per_second != 0;
  if (flags.colocate_servers && !limited) {
    return absl::InvalidArgumentError(
        "--colocate-servers: without hosts there is nothing to be beside; hint: "
        "--link-bytes-per-second 1.25e8 for links of 1 Gbit/s");
  }
  if (limited && !flags.python.empty()) {
    return absl::InvalidArgumentError(
        "--link-bytes-per-second: not with --python: a script chooses by itself where it listens");
  }
  if (flags.colocate_servers && plan.server_processes() > plan.workers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--colocate-servers: ", plan.server_processes(), " servers beside ",
                     Counted(plan.workers(), "worker"), ", expected at most as many"));
  }
  return limited ? node::CheckHostsApart(plan.job) : absl::OkStatus();
}

// Refuses a job that cannot fit on this host. Takes some milliseconds. A limit that may be too low
// becomes a line of `warnings`.
absl::Status CheckHost(const RunFlags& flags, const job::ResolvedJob& plan,
                       std::vector<std::string>* warnings) {
  if (flags.link_bytes_per_second == 0 && flags.network.bind.empty()) {
    TANDEM_RETURN_IF_ERROR(node::CheckLoopback());
  }
  const DealtRoles here = RolesHere(flags, plan);
  const doctor::JobNeeds needs = doctor::NeedsOf(plan, static_cast<int>(here.servers.size()),
                                                 static_cast<int>(here.workers.size()),
                                                 /*loads=*/!flags.start.init_from.empty());
  const std::vector<doctor::Finding> findings =
      doctor::ExamineStart(doctor::GatherLimits(), plan.job.cluster().transport(), needs);
  TANDEM_RETURN_IF_ERROR(doctor::FirstProblem(findings));
  for (const doctor::Finding& finding : findings) {
    warnings->push_back(
        absl::StrCat(finding.check, ": ", finding.found, "; hint: ", finding.advice));
  }
  return absl::OkStatus();
}

// A checkpoint keeps the statistics that standardise numeric columns, and the labels: its data are
// checked by both. A new model gets the ones of its training rows once these are checked. A run
// that is resumed deals its rows as before.
absl::Status Adopt(const StartFlags& start, const std::string& description,
                   job::ResolvedJob* plan) {
  Data* const data = plan->job.mutable_data();
  data::ClearMeasured(data);
  if (start.resumed.has_value()) {
    TANDEM_RETURN_IF_ERROR(data::AdoptDeal(start.resumed->record, data));
  }
  return description.empty() ? absl::OkStatus() : data::AdoptDescription(description, data);
}

// Warns of rows to score whose ids the model has never seen. A checkpoint that cannot be read is
// refused by the servers, who read all of it.
void CheckIdsToScore(const std::string& checkpoint, const job::ResolvedJob& plan,
                     std::vector<std::string>* warnings) {
  absl::StatusOr<data::IdCheck> ids = data::SampleIdsToScore(plan);
  if (!ids.ok() || !ids->LacksIds()) return;
  const absl::StatusOr<server::CheckpointReader> model = server::CheckpointReader::Open(checkpoint);
  if (!model.ok()) return;
  for (const server::CheckpointFile& file : model->manifest().files) {
    const bool read = std::any_of(
        plan.tables.begin(), plan.tables.end(),
        [&file](const job::TablePlan& t) { return t.of_model() && t.name == file.table; });
    if (!read) continue;
    const auto keys = server::ReadRangeFileKeys(model->PathOf(file));
    if (!keys.ok()) return;
    ids->SeeModel(*keys);
    if (!ids->LacksIds()) return;
  }
  ids->Warn(/*all=*/true, warnings);
}

}  // namespace

void AddWatchFlags(CLI::App* app, WatchFlags* flags) {
  app->add_option("--http", flags->http,
                  "HOST:PORT of the live page, or none; without: a free loopback port "
                  "(docs/OBSERVE.md)");
  app->add_flag("--insecure", flags->insecure,
                "Allow a job without a token to listen, and to serve --http, where other hosts "
                "can connect");
  app->add_option("--tensorboard", flags->tensorboard, "Folder for an event file of TensorBoard");
}

std::string ForShell(const std::string& word) {
  const bool plain = std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || absl::string_view("/._-+,:@=").find(c) != std::string::npos;
  });
  if (plain && !word.empty()) return word;
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

absl::Status CheckProgram(absl::string_view name) {
  const std::string path = absl::StrCat(ProgramFolder(), "/", name);
  std::error_code error;
  if (fs::exists(path, error)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(path, " is not built; hint: ninja -C ",
                                          fs::path(ProgramFolder()).parent_path().string(), " ",
                                          name));
}

int RunCommand(const RunFlags& given) {
  RunFlags flags = given;
  node::RoleFlags role;
  role.job = flags.job;
  role.set = flags.set;
  absl::StatusOr<job::ResolvedJob> plan = node::PlanOf(role);
  data::DataReport data;
  absl::Status ready = plan.status();
  if (ready.ok()) ready = FindResume(&flags.start, &flags.out);
  const bool resumes = flags.start.resumed.has_value();
  if (ready.ok() && flags.out.empty()) flags.out = NewFolderName(plan->job.name());
  const auto refuse = [&flags](const absl::Status& why) {  // no process is started
    node::Finish(flags.program, absl::Status(why.code(), InFlagsOf(flags, why.message())));
    return node::kExitBadInput;
  };
  if (ready.ok()) ready = OutputFolder::Check(flags.out, flags.overwrite || resumes);
  if (!ready.ok()) return refuse(ready);
  ready = CheckScript(flags.python, flags.script_flags, *plan, ProgramFolder());
  if (!ready.ok()) return refuse(ready);
  StartReport start = CheckStart(flags.start, *plan);
  for (const std::string& line : start.refused) refuse(absl::InvalidArgumentError(line));
  if (!start.refused.empty()) return node::kExitBadInput;
  flags.start.init_from = start.checkpoint;
  ready = doctor::CheckDenseDevice(*plan);
  if (ready.ok()) ready = worker::CheckDenseChoices(*plan);
  if (ready.ok()) ready = node::CheckTransport(plan->job);
  if (ready.ok()) ready = CheckNetwork(flags, *plan);
  std::vector<std::string> warnings;
  if (ready.ok()) ready = CheckHost(flags, *plan, &warnings);
  if (ready.ok()) ready = Adopt(flags.start, start.description, &*plan);
  if (ready.ok()) ready = data::CheckData(*plan, &data);
  if (ready.ok()) ready = data::FillFromData("", &*plan);
  if (!ready.ok()) return refuse(ready);
  if (flags.scores) CheckIdsToScore(start.checkpoint, *plan, &warnings);
  warnings.insert(warnings.end(), data.warnings.begin(), data.warnings.end());
  for (const std::string& text : warnings) {
    std::fprintf(stderr, "warning: %s\n", InFlagsOf(flags, text).c_str());
  }
  const std::string script_hash = flags.python.empty() ? "" : ScriptHash(flags.python);
  if (resumes && !flags.python.empty()) {
    const std::string change = ScriptChange(flags.out, flags.python, script_hash);
    if (!change.empty()) start.said.push_back(change);
  }
  for (const std::string& line : start.said) std::fprintf(flags.lines, "%s\n", line.c_str());
  Run run(flags, *plan, std::move(start.kept), script_hash, std::move(data.warnings));
  if (const absl::Status there = run.CheckPrograms(); !there.ok()) {
    return node::Finish(flags.program, there);
  }
  if (const absl::Status made = run.MakeHosts(); !made.ok()) return refuse(made);
  if (const absl::Status prepared = run.Prepare(data.bad_rows); !prepared.ok()) {
    return refuse(prepared);
  }
  return run.Execute();
}

}  // namespace tandem::cli
