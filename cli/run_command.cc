#include "cli/run_command.h"

#include <fcntl.h>
#include <poll.h>
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
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/owned_fd.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "cli/children.h"
#include "cli/job_hosts.h"
#include "cli/output_folder.h"
#include "cli/progress_view.h"
#include "cli/resume_point.h"
#include "cli/script.h"
#include "data/batch_source.h"
#include "data/id_check.h"
#include "data/statistics.h"
#include "job/step_time.h"
#include "node/job_token.h"
#include "node/network_check.h"
#include "node/role_flags.h"
#include "node/transport_choice.h"
#include "policies/policy.h"
#include "scheduler/summary.h"
#include "server/checkpoint_directory.h"
#include "server/range_file.h"
#include "tools/doctor/doctor.h"
#include "tools/doctor/doctor_gather.h"
#include "worker/dense/tune_group.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

// kNamingGrace: the time for the scheduler to name the failure after a process has died in a
// running job. kStopGrace, kEarlyStopGrace: the time for all processes to end, in training and
// before it.
constexpr absl::Duration kNamingGrace = absl::Seconds(6);
constexpr absl::Duration kStopGrace = absl::Seconds(3);
constexpr absl::Duration kEarlyStopGrace = absl::Milliseconds(300);
constexpr size_t kLogLines = 5;  // printed from the log of a process that has died

// Reads events, lines of JSON, from the scheduler's pipe.
class EventPipe {
 public:
  absl::Status Open() {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return absl::ResourceExhaustedError("no pipe");
    read_end_ = OwnedFd(fds[0]);
    write_end_ = OwnedFd(fds[1]);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    return absl::OkStatus();
  }
  int write_fd() const { return write_end_.get(); }
  void CloseWriter() { write_end_ = OwnedFd(); }
  // Waits up to `timeout` for events.
  std::vector<nlohmann::json> Read(absl::Duration timeout) {
    pollfd wait = {read_end_.get(), POLLIN, 0};
    poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
    if ((wait.revents & POLLHUP) != 0 && (wait.revents & POLLIN) == 0) absl::SleepFor(timeout);
    char bytes[65536];
    for (ssize_t n; (n = read(read_end_.get(), bytes, sizeof bytes)) > 0;) {
      text_.append(bytes, static_cast<size_t>(n));
    }
    std::vector<nlohmann::json> events;
    for (size_t end; (end = text_.find('\n')) != std::string::npos; text_.erase(0, end + 1)) {
      auto event = nlohmann::json::parse(text_.substr(0, end), nullptr, false);
      if (event.is_object()) events.push_back(std::move(event));
    }
    return events;
  }

 private:
  OwnedFd read_end_, write_end_;
  std::string text_;
};

constexpr char kBadRowsFile[] = "bad_rows.txt";

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

// "1 server", "2 servers".
std::string Counted(int64_t count, absl::string_view what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
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

class Run {
 public:
  // `kept`: keeps the checkpoint that the job begins with until all processes have loaded it.
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
        view_(flags.lines, live_) {}

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
    if (const absl::Status started = StartScheduler(); !started.ok()) {
      return node::Finish(flags_.program, started);
    }
    while (!over_) Turn();
    return Close();
  }

 private:
  std::string JobPath() const { return flags_.out + "/job.textproto"; }

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

  void Announce() {
    if (flags_.scores) return;
    std::vector<std::string> parts;
    for (const job::TablePlan& table : plan_.tables) {
      if (table.dense) continue;
      const bool on_workers = table.placement != Table::SERVERS;
      parts.push_back(absl::StrCat(
          "table ", table.name, " ", on_workers ? Table::Placement_Name(table.placement) + " " : "",
          job::PolicyName(plan_.groups[table.group].policy), table.frozen ? " (frozen)" : ""));
    }
    const bool on_servers = plan_.dense_table >= 0;
    parts.push_back(
        on_servers
            ? absl::StrCat(
                  "dense on servers ",
                  job::PolicyName(
                      plan_.groups[plan_.tables[static_cast<size_t>(plan_.dense_table)].group]
                          .policy))
            : absl::StrCat("dense by ", job::DenseName(plan_.job.dense())));
    view_.Line(absl::StrCat(plan_.job.name(), ": ", Counted(plan_.workers(), "worker"), ", ",
                            Counted(plan_.server_processes(), "server"), ", seed ",
                            plan_.job.seed(), "; ", absl::StrJoin(parts, ", ")));
    NoteHybrid(on_servers);
    if (plan_.job.fault_injection().slow_workers_size() > 0) {
      view_.Line(absl::StrCat("slow on purpose (fault_injection.slow_workers): ",
                              job::DescribeStepTimes(plan_.job)));
    }
    if (flags_.start.resumed.has_value()) {
      view_.Line(absl::StrCat("resumes at step ", WithCommas(flags_.start.resumed->step), ", from ",
                              flags_.start.resumed->checkpoint));
    }
  }

  // Prints what asynchrony means in this job. The clock gap of a hybrid alone would mislead.
  void NoteHybrid(bool dense_on_servers) {
    bool asynchronous = false;
    for (const job::GroupPlan& group : plan_.trained_groups()) {
      if (group.properties.holds && group.properties.switch_step == 0) continue;
      asynchronous = true;
      view_.Line(absl::StrCat(job::PolicyName(group.policy), ": each worker's update counts ",
                              group.policy.async_scale() == Policy::INVERSE_WORKERS
                                  ? "1/workers (async_scale: INVERSE_WORKERS)"
                                  : "in full (async_scale: ONE)"));
    }
    if (asynchronous && !dense_on_servers) {
      const Dense& dense = plan_.job.dense();
      const std::string apart =
          job::SumsByQuorum(plan_.job) && dense.has_local_steps()
              ? absl::StrCat("a worker is at most ",
                             Counted(static_cast<size_t>(dense.quorum_bound()), "sync round"),
                             " behind the others")
          : dense.has_local_steps()
              ? absl::StrCat("sync rounds keep workers within ",
                             Counted(static_cast<size_t>(dense.local_steps().sync_every()), "step"),
                             " of each other")
          : job::SumsByQuorum(plan_.job)
              ? absl::StrCat("a worker is at most ",
                             Counted(static_cast<size_t>(dense.quorum_bound()), "step"),
                             " behind the sums of dense gradients, and they within one step of the "
                             "first")
              : "the allreduce keeps workers within one step of each other";
      view_.Line(absl::StrCat(
          "hybrid: ", apart, "; ", "nobody waits for table updates, and rows are read ",
          plan_.job.train().prefetch_steps(),
          plan_.job.train().prefetch_steps() == 1 ? " step ahead" : " steps ahead"));
    }
  }

  absl::Status StartScheduler() {
    TANDEM_RETURN_IF_ERROR(pipe_.Open());
    std::vector<std::string> argv = {
        Program("tandem-scheduler"), "--job", JobPath(), "--out", flags_.out, "--progress-fd", "3"};
    const StartFlags& start = flags_.start;
    if (start.resumed.has_value()) {
      argv.insert(argv.end(), {"--resume", start.resume});
    } else if (!start.init_from.empty()) {
      argv.insert(argv.end(), {"--init-from", start.init_from});
    }
    for (const std::string& table : start.only_tables) {
      argv.insert(argv.end(), {"--only-tables", table});
    }
    if (!start.checkpoint) argv.push_back("--no-checkpoint");
    const absl::Status started =
        StartRole("scheduler", std::move(argv), pipe_.write_fd(), {driver_});
    pipe_.CloseWriter();
    return started;
  }

  // Starts a program of Tandem, on its virtual host if there are any.
  absl::Status StartRole(const std::string& name, std::vector<std::string> argv, int pipe_fd,
                         const std::vector<std::pair<std::string, std::string>>& environment) {
    int network = -1;
    if (hosts_.has_value()) {
      for (std::string& flag : hosts_->FlagsOf(name)) argv.push_back(std::move(flag));
      network = hosts_->NetworkOf(name);
    }
    return children_.Start(name, argv, LogOf(name), pipe_fd, environment, network);
  }

  std::string Program(const char* name) const { return absl::StrCat(ProgramFolder(), "/", name); }
  std::string LogOf(absl::string_view name) const {
    return absl::StrCat(flags_.out, "/logs/", absl::StrJoin(absl::StrSplit(name, ' '), "-"),
                        ".log");
  }

  // The absolute path of a file of the run, because a script may change its folder.
  std::string Absolute(const std::string& name) const {
    return (fs::absolute(flags_.out) / name).string();
  }

  // `name`: the role, for the name of the file.
  void AddTraceFlags(const std::string& name, std::vector<std::string>* argv) const {
    if (flags_.trace_steps == 0) return;
    argv->insert(argv->end(), {"--trace", absl::StrCat(flags_.out, "/trace-", name, ".json"),
                               "--trace-steps", absl::StrCat(flags_.trace_steps)});
  }

  absl::Status StartNodes(const std::string& address) {
    const std::vector<std::string> common = {"--job", JobPath(), "--scheduler", address};
    for (int s = 0; s < plan_.server_processes(); ++s) {
      std::vector<std::string> argv = {Program("tandem-server"), "--index", absl::StrCat(s),
                                       "--out", flags_.out};
      if (!flags_.replay.empty()) argv.insert(argv.end(), {"--replay", flags_.replay});
      AddTraceFlags(absl::StrCat("server-", s), &argv);
      argv.insert(argv.end(), common.begin(), common.end());
      TANDEM_RETURN_IF_ERROR(StartRole(absl::StrCat("server ", s), std::move(argv), -1, {driver_}));
    }
    const std::string threads = absl::StrCat(plan_.job.cluster().threads_per_worker());
    for (int w = 0; w < plan_.workers(); ++w) {
      const std::string name = absl::StrCat("worker ", w);
      if (!flags_.python.empty()) {
        auto environment = ScriptEnvironment(ProgramFolder(), plan_, JobPath(), address, w);
        environment.push_back(driver_);
        environment.emplace_back("TANDEM_DUMP_COLLECTIVES", Absolute("collectives"));
        if (flags_.trace_steps > 0) {
          environment.emplace_back("TANDEM_TRACE", Absolute(absl::StrCat("trace-", w, ".json")));
          environment.emplace_back("TANDEM_TRACE_STEPS", absl::StrCat(flags_.trace_steps));
        }
        if (flags_.scores) environment.emplace_back(kScoresVariable, ScoresFile(flags_.out, w));
        TANDEM_RETURN_IF_ERROR(children_.Start(
            name, ScriptCommand(flags_.python, flags_.script_flags), LogOf(name), -1, environment));
        continue;
      }
      std::vector<std::string> argv = {Program("tandem-worker"), "--index", absl::StrCat(w),
                                       "--dump-collectives", flags_.out + "/collectives"};
      AddTraceFlags(absl::StrCat(w), &argv);
      if (plan_.workers_serve) argv.insert(argv.end(), {"--out", flags_.out});
      if (plan_.workers_serve && !flags_.replay.empty()) {
        argv.insert(argv.end(), {"--replay", flags_.replay});
      }
      if (flags_.scores) argv.insert(argv.end(), {"--scores", ScoresFile(flags_.out, w)});
      argv.insert(argv.end(), common.begin(), common.end());
      TANDEM_RETURN_IF_ERROR(
          StartRole(name, std::move(argv), -1, {{"OMP_NUM_THREADS", threads}, driver_}));
    }
    return absl::OkStatus();
  }

  void Turn() {
    // Look for ended processes first. Events that the scheduler sent before a process ended are
    // then in the pipe and are handled before its end.
    std::vector<Children::Exit> exits = children_.Reap();
    for (const nlohmann::json& event : pipe_.Read(absl::Milliseconds(100))) OnEvent(event);
    const absl::Time now = MonotonicNow();
    // A killed process comes before processes that ended because of it.
    std::stable_partition(exits.begin(), exits.end(),
                          [](const Children::Exit& exit) { return exit.signal != 0; });
    for (const Children::Exit& exit : exits) OnExit(exit, now);
    for (const int stops = stops_->load(); stops_seen_ < stops; ++stops_seen_) OnStop(now);
    if (const int asked = checkpoints_asked_->load();
        started_ && checkpoint_counts_seen_ != asked) {
      checkpoint_counts_seen_ = asked;
      OnCheckpoint();
    }
    if (now >= give_up_ || !children_.running()) over_ = true;
  }

  // Handles Ctrl-C. The scheduler of a running job first writes a checkpoint, then ends all
  // processes. It ends them at once at the second Ctrl-C, or if the job has no checkpoints. Before
  // the job runs, do not wait.
  void OnStop(absl::Time now) {
    const bool again = stopping_;
    // A replay writes no checkpoint: its barrier would need another order than the recorded one.
    const bool checkpoints = checkpoints_ && flags_.replay.empty();
    if (again && (finished_ || !checkpoints)) return;
    stopping_ = true;
    if (flags_.replay.empty()) children_.SignalOne("scheduler", node::kDriverStops);
    if (started_ && checkpoints && !again) {
      return view_.Line("stopping: making a checkpoint first; once more to end at once");
    }
    if (failure_.empty()) failure_ = "stopped by a signal";
    view_.Line("stopping");
    give_up_ = started_ && flags_.replay.empty() ? now + kStopGrace : now;
  }

  // Handles SIGUSR1 once all processes run. Batch systems send it before the end of a job's time.
  void OnCheckpoint() {
    if (stopping_ || finished_ || !failure_.empty()) return;
    if (!flags_.replay.empty()) return view_.Line("SIGUSR1: a replay writes no checkpoint");
    if (!checkpoints_) {
      return view_.Line(flags_.start.checkpoint
                            ? "SIGUSR1: a run that only evaluates writes no checkpoint"
                            : "SIGUSR1: no checkpoint is written, because of --no-checkpoint");
    }
    view_.Line("SIGUSR1: writing a checkpoint, and training on");
    children_.SignalOne("scheduler", SIGUSR1);
  }

  void OnEvent(const nlohmann::json& event) {
    const std::string kind = event.value("event", "");
    if (kind == "address") {
      if (const absl::Status started = StartNodes(event.value("address", "")); !started.ok()) {
        failure_ = std::string(started.message());
        over_ = true;
      }
    } else if (kind == "started") {
      started_ = true;
      kept_ = OwnedFd();
    } else if (kind == "failed") {
      OnFailed(event.value("node", ""), event.value("reason", ""));
    } else if (kind == "finished") {
      finished_ = true;
      if (event.contains("checkpointed_step")) stopped_ = event;
      NoteTheScriptOfACheckpoint();
      give_up_ = std::min(give_up_, MonotonicNow() + kNamingGrace);
    } else {
      if (kind == "saved") NoteTheScriptOfACheckpoint();
      if (flags_.scores && kind == "evaluation")
        return;  // `tandem predict` prints it with the scores
      view_.Show(event, MonotonicNow());
    }
  }

  // Keeps the first cause. A process that a signal has killed is the cause, even if the scheduler
  // names another one. In all other cases the scheduler knows the cause best.
  void OnFailed(const std::string& node, const std::string& reason) {
    give_up_ = std::min(give_up_, MonotonicNow() + kStopGrace);
    if (!failure_.empty()) return;
    failure_ = absl::StrCat(node, ": ", reason);
    blamed_ = node;
    blamed_for_ = reason;
    const auto quiet = quiet_exits_.find(node);
    if (!first_exit_.has_value() && quiet != quiet_exits_.end() && KnowsBetter(quiet->second)) {
      first_exit_ = quiet->second;
    }
    if (first_exit_.has_value() && KnowsBetter(*first_exit_)) NameTheEnded();
  }

  // Whether the end of a process says more than the scheduler. A signal always does. An exit
  // status, even 0, does if the scheduler has only lost the connection.
  bool KnowsBetter(const Children::Exit& exit) const {
    const bool lost = absl::StartsWith(blamed_for_, "connection lost");
    return exit.signal != 0 || (lost && exit.name == blamed_);
  }

  void NameTheEnded() {
    failure_ = absl::StrCat(WhyItEnded(), "; the scheduler saw: ",
                            first_exit_->name == blamed_ ? blamed_for_ : failure_);
  }

  // Handles a process that ends before the job. Before the job has started, this process is the
  // cause. Later the scheduler names the cause, which may be another process. If the scheduler
  // names none, the cause is this process.
  void OnExit(const Children::Exit& exit, absl::Time now) {
    if (finished_) return;
    if (!failure_.empty()) {
      // The scheduler may see the closed connection before this process sees the end of the
      // other one.
      if (exit.name == blamed_ && KnowsBetter(exit) && !first_exit_.has_value()) {
        first_exit_ = exit;
        NameTheEnded();
      }
      return;
    }
    if (started_ && exit.code == 0 && exit.signal == 0) {  // the job may be over, too
      quiet_exits_.emplace(exit.name, exit);
      return;
    }
    if (!first_exit_.has_value()) first_exit_ = exit;
    const bool mute = exit.name == "scheduler";  // no more events will come
    give_up_ = std::min(give_up_, mute || !started_ ? now : now + kNamingGrace);
  }

  // The last lines of the log of the process that ended first.
  std::vector<std::string> LastLines() const {
    constexpr std::streamoff kMostBytes = 8192;
    std::ifstream file(first_exit_->log, std::ios::ate);
    file.seekg(std::max<std::streamoff>(0, static_cast<std::streamoff>(file.tellg()) - kMostBytes));
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) {
      if (!line.empty()) lines.push_back(line);
    }
    if (lines.size() > kLogLines) lines.erase(lines.begin(), lines.end() - kLogLines);
    return lines;
  }

  // Finds the cause before it ends the other processes. These then report "stopped by a signal",
  // which is not the cause.
  int Close() {
    for (const nlohmann::json& event : pipe_.Read(absl::ZeroDuration())) OnEvent(event);
    if (failure_.empty() && !finished_) failure_ = WhyItEnded();
    children_.StopAll(started_ ? kStopGrace : kEarlyStopGrace);
    if (!failure_.empty()) {
      failure_ += HowToGoOnAfterAFailure();
    } else if (stopped_.is_object()) {
      failure_ = HowItStopped();
    }
    if (failure_.empty()) {
      return PrintSummary();
    }
    view_.Clear();
    if (first_exit_.has_value()) ShowLog();
    const absl::Status failed = absl::AbortedError(
        absl::StrCat("failed: ", InFlagsOf(flags_, failure_), "; logs in ", flags_.out, "/logs"));
    const int code = stopping_ ? SignalExit() : node::kExitFailed;
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
      const std::string node = first_exit_.has_value() ? first_exit_->name : blamed_;
      summary = {
          {"job", plan_.job.name()}, {"seed", plan_.job.seed()}, {"failed", {{"node", node}}}};
    }
    if (summary.contains("failed")) summary["failed"]["reason"] = failure_;
    std::vector<std::string> warnings = warnings_;
    for (const auto& line : summary.value("warnings", nlohmann::json::array())) {
      warnings.push_back(line.get<std::string>());
    }
    if (!warnings.empty()) summary["warnings"] = warnings;
    summary["command"] = flags_.command;
    summary["exit"] = code;
    if (hosts_.has_value()) summary["network"] = hosts_->Summary();
    if (!flags_.replay.empty()) summary["replay_of"] = flags_.replay;
    if (!flags_.python.empty()) {
      summary["script"] = {{"file", flags_.python}, {"sha256", script_hash_}};
    }
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(path, scheduler::PrettyPrint(summary)));
    return summary;
  }

  // How a run ended at Ctrl-C: after a checkpoint, or after a failed one.
  std::string HowItStopped() const {
    const auto step = stopped_.value("checkpointed_step", int64_t{-1});
    const std::string failure = stopped_.value("failure", "");
    return absl::StrCat("stopped by a signal, ",
                        failure.empty() ? absl::StrCat("checkpoint at step ", WithCommas(step))
                                        : absl::StrCat("no checkpoint: ", failure),
                        step < 0 ? "" : HowToGoOn());
  }

  // Empty if the run has no checkpoint.
  std::string HowToGoOnAfterAFailure() const {
    if (!started_ || !flags_.replay.empty()) return "";
    return FindResumePoint(flags_.out).ok() ? HowToGoOn() : "";
  }

  std::string HowToGoOn() const {
    std::string script, script_flags;
    if (!flags_.python.empty()) script = absl::StrCat(" --python ", ForShell(flags_.python));
    for (const std::string& flag : flags_.script_flags) {
      absl::StrAppend(&script_flags, script_flags.empty() ? " -- " : " ", ForShell(flag));
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
    const std::vector<std::string> lines = LastLines();
    if (lines.empty()) return;
    view_.Line(absl::StrCat("the end of ", first_exit_->log, ":"));
    for (const std::string& line : lines) view_.Line(absl::StrCat("  ", line));
  }

  std::string WhyItEnded() const {
    if (!first_exit_.has_value()) return "the job ended without a word";
    const std::string exit =
        absl::StrCat(first_exit_->DebugString(), started_ ? "" : " before the job had started");
    const std::vector<std::string> lines = LastLines();
    if (first_exit_->signal != 0) return exit;
    if (!lines.empty()) return absl::StrCat(exit, ": ", lines.back());
    const absl::Status room = TryToWrite(flags_.out + "/logs");
    return room.ok() ? exit : absl::StrCat(exit, ", and its log is empty: ", room.message());
  }

  int PrintSummary() {
    const absl::StatusOr<nlohmann::json> completed =
        CompleteSummary(stopping_ ? SignalExit() : node::kExitOk);
    if (!completed.ok()) return node::Finish(flags_.program, completed.status());
    if (flags_.scores) return stopping_ ? SignalExit() : node::kExitOk;
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
    return stopping_ ? SignalExit() : node::kExitOk;
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
  EventPipe pipe_;
  std::optional<OutputFolder> folder_;  // held until the children have ended
  std::optional<JobHosts> hosts_;       // nullopt: all processes are on this host
  Children children_;
  const std::pair<std::string, std::string> driver_ = {node::kDriverVariable,
                                                       absl::StrCat(getpid())};
  const std::atomic<int>* stops_ = nullptr;
  int stops_seen_ = 0;
  const std::atomic<int>* checkpoints_asked_ = nullptr;
  int checkpoint_counts_seen_ = 0;
  nlohmann::json stopped_;  // the scheduler's event for a requested end
  bool started_ = false;    // all nodes have registered and know the view
  bool over_ = false, stopping_ = false, finished_ = false;
  absl::Time give_up_ = absl::InfiniteFuture();
  std::string failure_;
  std::string blamed_, blamed_for_;                    // the node that the scheduler names, and why
  std::optional<Children::Exit> first_exit_;           // before the job ended or failed
  std::map<std::string, Children::Exit> quiet_exits_;  // with status 0; perhaps the end of the job
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
  if (flags.link_bytes_per_second == 0) TANDEM_RETURN_IF_ERROR(node::CheckLoopback());
  const doctor::JobNeeds needs = doctor::NeedsOf(plan, plan.server_processes(), plan.workers());
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
// checked by both. A new model gets the ones of its training rows once these are checked.
absl::Status Adopt(const std::string& description, job::ResolvedJob* plan) {
  Data* const data = plan->job.mutable_data();
  data->clear_statistics();
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

std::string ScoresFile(const std::string& out, int rank) {
  return absl::StrCat(out, "/scores-", rank, ".f32");
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
  if (ready.ok()) ready = Adopt(start.description, &*plan);
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
