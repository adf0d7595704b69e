#include "cli/agent_command.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/damaged_checkpoint.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "cli/console/output_folder.h"
#include "cli/launch/agent_link.h"
#include "cli/launch/agent_network.h"
#include "cli/launch/deal_roles.h"
#include "cli/launch/launcher_watch.h"
#include "cli/launch/local_roles.h"
#include "cli/launch/resume_point.h"
#include "cli/launch/role_commands.h"
#include "cli/launch/service_manager.h"
#include "cli/launch/supervisor.h"
#include "cli/run_command.h"
#include "job/resume_check.h"
#include "node/job_token.h"
#include "node/launch_environment.h"
#include "node/network_check.h"
#include "node/role_flags.h"
#include "node/role_options.h"
#include "scheduler/scheduler_core.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kProgram[] = "tandem agent";
constexpr absl::Duration kTurn = absl::Milliseconds(20);
constexpr absl::Duration kWelcomeWithin = absl::Seconds(5);
// When an agent says that it still waits for the scheduler.
constexpr absl::Duration kSayFirst = absl::Seconds(5), kSayAgain = absl::Minutes(1);
// Rank 0 reads the data before it starts the scheduler, and its pod may have to load an image.
// Ranks that a launcher has started wait so many times limits.startup_timeout_seconds.
constexpr int kPatienceOfLaunched = 10;

// A file with the job in a temporary folder of this process. The destructor removes both.
class JobFile {
 public:
  absl::Status Write(const std::string& text) {
    if (!folder_.empty()) return WriteFileAtomically(path(), text);
    TANDEM_ASSIGN_OR_RETURN(folder_, MakeTemporaryFolder("tandem-agent"));
    return WriteFileAtomically(path(), text);
  }
  ~JobFile() {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }
  std::string path() const { return folder_ + "/job.textproto"; }

 private:
  std::string folder_;
};

// Returns the folder where the ranks of a launch find the token of the job: `out`, else a private
// folder that all ranks on this host know. Empty: there is none. `make`: makes the private folder.
//
// Another user can make a folder of that name in /tmp first. Then the ranks use the folder of
// XDG_RUNTIME_DIR. PERMISSION_DENIED: no such folder is private. NOT_FOUND: rank 0 has made none.
absl::StatusOr<std::string> TokenFolder(const node::Launch& launch, const std::string& out,
                                        bool make) {
  if (!out.empty() || !launch.one_host || launch.size == 1 || launch.id.empty()) return out;
  const char* const runtime = getenv("XDG_RUNTIME_DIR");
  absl::Status refused;  // why the first one is not used
  std::error_code error;
  for (const fs::path& parent :
       {fs::temp_directory_path(error), fs::path(runtime == nullptr ? "" : runtime)}) {
    if (parent.empty()) continue;
    const std::string folder =
        (parent / absl::StrCat("tandem-", geteuid(), "-", node::PortOfLaunch(launch.id))).string();
    absl::Status usable;
    if (make && mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      usable = absl::PermissionDeniedError(absl::StrCat(folder, ": ", strerror(errno)));
    }
    usable.Update(CheckPrivateFolder(folder));
    if (usable.ok()) return folder;
    refused.Update(usable);
  }
  if (!refused.ok()) return refused;
  return absl::PermissionDeniedError("neither TMPDIR nor XDG_RUNTIME_DIR names a folder");
}

// How well a job is protected from other users and hosts; more is better.
int Protection(const Job& job) {
  const Security::Encrypt encrypt = job.security().encrypt();
  return encrypt == Security::NONE ? 0 : encrypt == Security::ALL ? 2 : 1;
}

// A token that rank 0 publishes for the ranks of a launch without --out. The destructor removes it.
class LaunchToken {
 public:
  // Gives the job a token. UNAUTHENTICATED: the other ranks could not know it.
  absl::Status Publish(const Job& job, const node::Launch& launch, const std::string& out) {
    if (launch.size == 1 || !out.empty()) return absl::OkStatus();
    if (job.security().encrypt() == Security::NONE) return absl::OkStatus();
    const absl::StatusOr<std::string> folder = TokenFolder(launch, out, /*make=*/true);
    if (!folder.ok() || folder->empty()) {
      TANDEM_ASSIGN_OR_RETURN(const auto keys, node::FindKeys(""));
      if (keys != nullptr) return absl::OkStatus();
      return absl::UnauthenticatedError(
          absl::StrCat("the other ranks do not know the token of the job",
                       folder.ok() ? "" : absl::StrCat(": ", folder.status().message()),
                       "; hint: --out on a folder that all hosts share, or export ",
                       node::kTokenVariable, "=$(openssl rand -hex 32) everywhere"));
    }
    folder_ = *folder;
    TANDEM_RETURN_IF_ERROR(node::ProvideToken(job, ""));
    return node::PublishToken(job, folder_);
  }
  ~LaunchToken() {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }

 private:
  std::string folder_;
};

// The agent of a rank other than 0.
class Follower {
 public:
  // `plan`: what this rank's job file says. The scheduler's job counts once it is known, but it may
  // not be less protected.
  Follower(const AgentFlags& flags, const node::Launch& launch, LauncherWatch watch,
           const job::ResolvedJob& plan)
      : flags_(flags), launch_(launch), watch_(watch), own_job_(plan.job), plan_(plan) {
    NewAttempt();
  }

  // `patience`: how long rank 0 may take to start a scheduler. It counts for each attempt, because
  // rank 0 reads a checkpoint before it starts the next one.
  int Execute(absl::Duration patience) {
    stops_ = node::StopSignals();
    checkpoints_ = node::CheckpointSignals();
    const absl::Status found = FindScheduler(patience, /*again=*/false);
    const bool idle =
        DealRoles(plan_.server_processes(), plan_.workers(), launch_.rank, launch_.size).empty();
    if (!found.ok() && idle && stops_seen_ == 0) {  // the job may have ended before
      Say("no role is left for this rank, and it has not found the scheduler");
      return node::kExitOk;
    }
    if (!found.ok()) {
      Say(absl::StrCat("failed: ", found.message()));
      return ExitCode(/*failed=*/true);
    }
    for (;;) {
      if (const absl::Status started = StartRoles(); !started.ok()) {
        TellOfStart(started);
        supervisor_->OnCannotStart(std::string(started.message()));
      }
      while (!over()) Turn();
      EndAttempt();
      if (!JoinNextAttempt(patience)) return Close();
    }
  }

 private:
  Supervisor::Options HowToStop() const {
    Supervisor::Options options;
    options.checkpoints = true;
    options.scripts = !flags_.run.python.empty();
    options.naming = job::SilenceTimes(plan_.job).naming;
    return options;
  }

  void NewAttempt() {
    supervisor_.emplace(HowToStop());
    roles_.emplace();
  }

  // Lines of several ranks come together on one terminal.
  void Say(const std::string& text) const {
    std::fprintf(stderr, "%s: rank %d: %s\n", kProgram, launch_.rank, text.c_str());
  }

  int ExitCode(bool failed) const {
    if (stops_seen_ > 0 && node::StopSignalNumber() > 0) {
      return node::kExitBySignal + node::StopSignalNumber();
    }
    return failed ? node::kExitFailed : node::kExitOk;
  }

  // Tries the places where the scheduler may be until the right one answers. `again`: this agent
  // has joined an attempt of the run before.
  absl::Status FindScheduler(absl::Duration patience, bool again) {
    const absl::Time begin = MonotonicNow();
    absl::Time say = begin + kSayFirst;
    for (;;) {
      const std::vector<Candidate> candidates =
          Candidates(launch_, flags_.scheduler, flags_.run.out);
      for (const Candidate& candidate : candidates) {
        if (!node::AnswersAsZmq(candidate.address)) continue;
        TANDEM_ASSIGN_OR_RETURN(const bool right, Join(candidate));
        if (right) return absl::OkStatus();
      }
      watch_.Check();
      if (stops_->load() > 0) {
        stops_seen_ = 1;
        return absl::CancelledError("stopped by a signal before the scheduler was found");
      }
      // Rank 0 completes the summary at the end of the run. An attempt removes an earlier one.
      if (again && ReadSummary(out_).contains("exit")) {
        return absl::CancelledError("the run has ended");
      }
      const absl::Time now = MonotonicNow();
      if (now - begin >= patience) {
        return absl::UnavailableError(
            absl::StrCat("no scheduler of this launch ", Places(candidates), " for ",
                         absl::ToInt64Seconds(patience), " s", why_not_,
                         "; hint: --scheduler tcp://HOST_OF_RANK_0:PORT"));
      }
      if (now >= say) {
        Say(absl::StrCat("waits for the scheduler ", Places(candidates), why_not_));
        say = now + kSayAgain;
      }
      absl::SleepFor(absl::Milliseconds(100));
    }
  }

  std::string Places(const std::vector<Candidate>& candidates) const {
    std::vector<std::string> places;
    for (const Candidate& candidate : candidates) places.push_back(candidate.address);
    if (flags_.scheduler.empty() && !flags_.run.out.empty()) {
      places.push_back(absl::StrCat("the address in ", flags_.run.out, "/address"));
    }
    if (places.empty()) return "(no address is known)";
    return absl::StrCat("at ", absl::StrJoin(places, " or "));
  }

  // Takes the token of the job. Without it this agent would start the job of anybody who listens at
  // the address where rank 0 should be.
  absl::Status LoadKeys() {
    role_ = node::RoleFlags();
    const absl::StatusOr<std::string> folder = TokenFolder(launch_, flags_.run.out, /*make=*/false);
    role_.out = folder.value_or("");
    TANDEM_RETURN_IF_ERROR(node::LoadKeys(own_job_, &role_));
    if (role_.keys != nullptr || Protection(own_job_) == 0 || flags_.run.watch.insecure) {
      return absl::OkStatus();
    }
    if (!folder.ok() && !absl::IsNotFound(folder.status())) return folder.status();
    if (folder.ok() && folder->empty()) {
      return absl::NotFoundError(
          absl::StrCat("this rank has no token of the job, expected ", node::kTokenVariable));
    }
    return absl::NotFoundError(absl::StrCat(
        "rank 0 has not written the token of the job yet",
        flags_.run.out.empty()
            ? ""
            : absl::StrCat(", or this host does not share --out ", flags_.run.out,
                           "; hint for that: set ", node::kTokenVariable, " everywhere")));
  }

  // UNAUTHENTICATED: the scheduler's job is less protected than this rank's.
  absl::Status CheckProtection(const std::string& address, const Job& theirs) const {
    if (Protection(theirs) >= Protection(own_job_) || flags_.run.watch.insecure) {
      return absl::OkStatus();
    }
    return absl::UnauthenticatedError(
        absl::StrCat("the job of the scheduler at ", address,
                     " has security.encrypt: ", Security::Encrypt_Name(theirs.security().encrypt()),
                     ", this rank's has ", Security::Encrypt_Name(own_job_.security().encrypt()),
                     "; hint: the same job on all ranks"));
  }

  // FAILED_PRECONDITION: this rank was given another job than rank 0.
  absl::Status CheckSameJob(const Job& theirs) const {
    node::RoleFlags own;
    own.job = flags_.run.job;
    own.set = flags_.run.set;
    TANDEM_ASSIGN_OR_RETURN(const job::ResolvedJob plan, node::PlanOf(own, /*resumed=*/&theirs));
    const std::vector<std::string> lines = job::AllDifferences(theirs, plan.job);
    if (lines.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(flags_.run.job, ": another job than that of rank 0: ", lines[0],
                     lines.size() == 1 ? "" : absl::StrCat(", and ", lines.size() - 1, " more"),
                     "; hint: the same job file and --set on all ranks"));
  }

  absl::StatusOr<job::ResolvedJob> PlanOfWelcome() {
    TANDEM_RETURN_IF_ERROR(job_.Write(welcome_.job()));
    node::RoleFlags theirs;
    theirs.job = job_.path();
    return node::PlanOf(theirs);
  }

  // False: the scheduler there does not prove that it belongs to this run.
  absl::StatusOr<bool> Join(const Candidate& candidate) {
    early_.clear();
    if (const absl::Status keys = LoadKeys(); !keys.ok()) {
      why_not_ = absl::StrCat("; ", keys.message());  // rank 0 may be writing the file
      return false;
    }
    TANDEM_ASSIGN_OR_RETURN(link_, AgentLink::Open(candidate.address, launch_.rank, role_));
    const absl::Time until = MonotonicNow() + kWelcomeWithin;
    while (MonotonicNow() < until && link_->status().ok() && stops_->load() == 0) {
      for (const Control& control : link_->Poll(kTurn)) {
        if (!control.has_reader_welcome()) {
          early_.push_back(control);
          continue;
        }
        welcome_ = control.reader_welcome();
        address_ = candidate.address;
      }
      if (address_.empty()) continue;
      const std::string run = absl::StrFormat("%016x", welcome_.run());
      const bool other = (!candidate.run.empty() && candidate.run != run) ||
                         (!candidate.launch.empty() && candidate.launch != welcome_.launch());
      absl::Status protected_too;
      if (!other) {
        next_plan_ = PlanOfWelcome();
        if (next_plan_.ok()) protected_too = CheckProtection(address_, next_plan_->job);
        if (protected_too.ok()) return true;
        why_not_ = absl::StrCat("; ", protected_too.message());
      }
      address_.clear();
      break;
    }
    if (!link_->status().ok())
      why_not_ = absl::StrCat("; the last one: ", link_->status().message());
    link_.reset();
    return false;
  }

  absl::Status StartRoles() {
    TANDEM_RETURN_IF_ERROR(next_plan_.status());
    plan_ = *next_plan_;
    dealt_ = DealRoles(plan_.server_processes(), plan_.workers(), launch_.rank, launch_.size);
    // Once, since the file may change later; and only where something is computed.
    if (!std::exchange(same_job_, true) && !dealt_.empty()) {
      TANDEM_RETURN_IF_ERROR(CheckSameJob(next_plan_->job));
    }
    out_ = flags_.run.out.empty() ? welcome_.out() : flags_.run.out;
    Say(absl::StrCat(Describe(), ", scheduler at ", address_));
    if (dealt_.empty()) return absl::OkStatus();
    std::error_code error;
    fs::create_directories(out_ + "/logs", error);
    if (error) {
      return absl::PermissionDeniedError(
          absl::StrCat(out_, "/logs: cannot be written: ", error.message()));
    }
    if (role_.keys != nullptr) {
      TANDEM_RETURN_IF_ERROR(node::ProvideToken(plan_.job, role_.out));
    }
    const RoleNetwork network = NetworkOfOtherRank(address_, flags_.bind, flags_.advertise);
    TANDEM_RETURN_IF_ERROR(node::CheckBind(network.bind, network.advertise));
    RoleOptions options;
    options.job = job_.path();
    options.out = out_;
    options.python = flags_.run.python;
    options.script_flags = flags_.run.script_flags;
    options.trace_steps = flags_.run.trace_steps;
    options.network = network;
    options.workers_here = WorkersHere(plan_.server_processes(), plan_.workers(),
                                       launch_.first_here, launch_.size_here, launch_.size);
    return roles_->Start(dealt_, RoleCommands(plan_, options), address_,
                         /*shows_scripts=*/!flags_.run.python.empty());
  }

  // Roles could not be started. The scheduler hears of it as of a role that has ended.
  void TellOfStart(const absl::Status& why) {
    if (dealt_.empty()) return link_->SendStop(/*at_once=*/true);
    Children::Exit exit;
    exit.name = dealt_.servers.empty() ? absl::StrCat("worker ", dealt_.workers[0])
                                       : absl::StrCat("server ", dealt_.servers[0]);
    exit.code = node::kExitFailed;
    exit.lines = {absl::StrCat("not started: ", why.message())};
    link_->SendExit(exit);
  }

  // "server 0, worker 1".
  std::string Describe() const {
    std::vector<std::string> names;
    for (const int server : dealt_.servers) names.push_back(absl::StrCat("server ", server));
    for (const int worker : dealt_.workers) names.push_back(absl::StrCat("worker ", worker));
    return names.empty() ? "no role is left for this rank; it waits for the end of the job"
                         : absl::StrCat("starts ", absl::StrJoin(names, ", "));
  }

  bool over() const {
    return supervisor_->over(MonotonicNow()) || (ended() && !roles_->children().running());
  }
  // The scheduler has said how the job ended, or has gone.
  bool ended() const { return supervisor_->finished() || !supervisor_->failure().empty(); }

  void Turn() {
    std::vector<Children::Exit> exits = roles_->children().Reap();
    for (const Children::Exit& exit : exits) {
      if (!ended()) link_->SendExit(exit);
    }
    for (const Control& control : std::exchange(early_, {})) OnControl(control);
    for (const Control& control : link_->Poll(kTurn)) OnControl(control);
    const absl::Time now = MonotonicNow();
    if (!link_->status().ok() && !ended()) {
      const std::pair<std::string, std::string> parts =
          absl::StrSplit(link_->status().message(), absl::MaxSplits(": ", 1));
      stopped_ = scheduler::IsRequestedEnd(parts.second);
      supervisor_->OnFailed(now, parts.first, parts.second);
    }
    supervisor_->OnExits(now, std::move(exits));
    if (supervisor_->awaits_scripts() && roles_->children().Running("worker ").empty()) {
      supervisor_->OnWorkersEnded(now);
    }
    ShowScripts(/*last=*/false);
    watch_.Check();
    for (const int stops = stops_->load(); stops_seen_ < stops;) OnStop(now, ++stops_seen_);
    if (const int asked = checkpoints_->load(); asked != checkpoints_seen_) {
      checkpoints_seen_ = asked;
      if (supervisor_->started() && !ended()) link_->SendCheckpoint();
    }
  }

  void ShowScripts(bool last) {
    for (const std::string& line : roles_->ReadScripts(last)) std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

  void OnControl(const Control& control) {
    if (!control.has_command()) return;
    if (control.command().kind() == Command::START) {
      supervisor_->OnStarted();
      begun_ = true;
      NotifyServiceManager("READY=1");
    }
    if (control.command().kind() == Command::STOP) supervisor_->OnFinished(MonotonicNow());
  }

  void OnStop(absl::Time now, int count) {
    const Supervisor::Stop stop = supervisor_->OnStop(now);
    if (stop == Supervisor::Stop::kIgnore) return;
    NotifyServiceManager("STOPPING=1");
    link_->SendStop(/*at_once=*/stop == Supervisor::Stop::kEnd);
    Say(count == 1 && stop == Supervisor::Stop::kCheckpoint
            ? "stopping: asks for a checkpoint first; once more to end at once"
            : "stopping");
  }

  void EndAttempt() {
    supervisor_->Conclude();
    roles_->children().StopAll(supervisor_->Grace());
    link_->Poll(absl::ZeroDuration());
    ShowScripts(/*last=*/true);
  }

  // Rank 0 may begin a new attempt after a failure (cluster.max_restarts). Waits for its scheduler.
  // False: no attempt follows, and Close() reports how the run ended.
  bool JoinNextAttempt(absl::Duration patience) {
    if (supervisor_->failure().empty() || stops_->load() > 0) return false;
    // An attempt that cannot load its checkpoint is followed by one with an older checkpoint.
    const bool loads_another = !DamagedCheckpoint(link_->status()).empty();
    const bool restarts = plan_.job.cluster().max_restarts() > 0 && begun_;
    if (!loads_another && (!restarts || link_->last_attempt())) return false;
    Say(absl::StrCat(supervisor_->failure(), "; waits for a new attempt"));
    address_.clear();
    if (!FindScheduler(patience, /*again=*/true).ok()) return false;
    NewAttempt();
    return true;
  }

  int Close() {
    const bool failed = !supervisor_->failure().empty();
    const std::string& failure = failed ? supervisor_->failure() : supervisor_->script_failure();
    if (failure.empty()) {
      if (dealt_.empty()) Say("the job has ended");
      return ExitCode(/*failed=*/false);
    }
    if (stopped_) {
      Say(failure);
      return ExitCode(/*failed=*/false);
    }
    if (const auto& exit = supervisor_->first_exit(); exit.has_value()) {
      for (const std::string& line : exit->lines) {
        std::fprintf(stderr, "  %s\n", line.c_str());
      }
    }
    const bool has_logs = !out_.empty() && !dealt_.empty();  // a role of this rank was started
    const std::string logs = has_logs ? absl::StrCat("; logs in ", out_, "/logs") : "";
    Say(absl::StrCat("failed: ", failure, logs));
    return ExitCode(/*failed=*/true);
  }

  const AgentFlags& flags_;
  const node::Launch launch_;
  LauncherWatch watch_;
  std::optional<Supervisor> supervisor_;  // of this attempt
  const Job own_job_;                     // as this rank's job file says
  job::ResolvedJob plan_;                 // the job of the last attempt
  absl::StatusOr<job::ResolvedJob> next_plan_ = absl::UnavailableError("no scheduler yet");
  node::RoleFlags role_;  // how this agent connects to the scheduler
  std::string address_, out_;
  std::string why_not_;  // why the scheduler that answered last has not admitted this agent
  ReaderWelcome welcome_;
  JobFile job_;
  DealtRoles dealt_;
  std::unique_ptr<AgentLink> link_;
  std::vector<Control> early_;       // came before the welcome
  bool begun_ = false;               // an attempt has begun to train
  bool same_job_ = false;            // the job of this rank was compared with that of rank 0
  bool stopped_ = false;             // a user has asked for the end at once
  std::optional<LocalRoles> roles_;  // of this attempt
  const std::atomic<int>* stops_ = nullptr;
  const std::atomic<int>* checkpoints_ = nullptr;
  int stops_seen_ = 0, checkpoints_seen_ = 0;
};

// Does what --resume-any asks for. A run that resumes has a model: flags that name the model of a
// new run do not count. A checkpoint that cannot be read is an error, so that it is never replaced
// by a new run.
absl::Status CompleteStart(const AgentFlags& flags, RunFlags* run) {
  if (!flags.resume_any) return absl::OkStatus();
  if (run->out.empty()) {
    return absl::InvalidArgumentError(
        "--resume-any: needs the folder of the run; hint: add --out DIR");
  }
  const absl::StatusOr<ResumePoint> point =
      FindResumePoint(run->out, server::CheckpointSearch::WithoutRanges());
  if (absl::IsNotFound(point.status())) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(point.status());
  run->start.resume = run->out;
  run->start.init_from.clear();
  run->start.only_tables.clear();
  return absl::OkStatus();
}

}  // namespace

void AddAgent(CLI::App* app, AgentFlags* flags) {
  CLI::App* agent = app->add_subcommand(
      "agent", "The roles of one rank of a launch: mpirun, srun, torchrun, ... start it");
  RunFlags* const run = &flags->run;
  run->program = kProgram;
  AddJobFile(agent, "Job file (protobuf text), the same on all hosts", run);
  node::AddSetFlag(agent, &run->set);
  node::AddOutFlags(agent, "Folder of the run, shared by all hosts; without: out/NAME-TIME",
                    &run->out, &run->overwrite);
  AddStartFlags(agent, &run->start);
  AddWatchFlags(agent, &run->watch);
  node::AddLogFlag(agent);
  agent->add_flag("--resume-any", flags->resume_any,
                  "Resume the run in --out if it has a checkpoint, else begin it (for requeues)");
  agent->add_option("--trace", run->trace_steps, "Trace so many steps of each worker")
      ->check(node::CheckNotNegative);
  agent
      ->add_option("--scheduler", flags->scheduler,
                   "Where the scheduler on rank 0 listens, tcp://HOST:PORT; without: found by "
                   "--out, or by the launcher")
      ->check(node::CheckAddress);
  agent
      ->add_option("--bind", flags->bind,
                   "Where the roles of this rank listen; without: loopback if all ranks are on "
                   "this host, else its address")
      ->check(node::CheckAddress);
  agent->add_option("--advertise", flags->advertise,
                    "Host by which others reach this one, if --bind names all addresses");
  agent
      ->add_flag("--lifeline", flags->lifeline,
                 "Take the token and signals from standard input, and stop at its end")
      ->group("");  // not in --help: for tandem run --hosts
  agent->add_option("--python", run->python, "Script that is each worker (docs/PYTHON.md)")
      ->check(CLI::ExistingFile);
  agent->add_option("flags", run->script_flags, "Behind --: the flags of the --python script");
}

int AgentCommand(const AgentFlags& given) {
  AgentFlags flags = given;
  const auto refuse = [](const absl::Status& why) {
    node::Finish(kProgram, why);
    return node::kExitBadInput;
  };
  const absl::StatusOr<node::Launch> launch = node::FindLaunch(getenv, getppid());
  if (!launch.ok()) return refuse(launch.status());
  // A person may leave the terminal; a launcher that has gone cannot end its ranks any more.
  LauncherWatch watch(
      launch->family.empty() || launch->family == "Kubernetes" || launch->family == "Tandem"
          ? 0
          : getppid(),
      flags.lifeline ? STDIN_FILENO : -1);
  watch.TakeToken();
  std::fprintf(stderr, "%s: %s\n", kProgram, launch->DebugString().c_str());
  node::RoleFlags role;
  role.job = flags.run.job;
  role.set = flags.run.set;
  const absl::StatusOr<job::ResolvedJob> plan = node::PlanOf(role);
  if (!plan.ok()) return refuse(plan.status());
  const bool by_hand = launch->family == "Tandem" && !flags.lifeline;
  if (launch->rank > 0) {
    if (!flags.run.start.resume.empty()) flags.run.out = flags.run.start.resume;
    const absl::Duration timeout = absl::Seconds(plan->job.limits().startup_timeout_seconds());
    return Follower(flags, *launch, watch, *plan)
        .Execute(by_hand ? timeout : kPatienceOfLaunched * timeout);
  }
  if (const absl::Status start = CompleteStart(flags, &flags.run); !start.ok()) {
    return refuse(start);
  }
  const bool shared = !flags.run.out.empty() || !flags.run.start.resume.empty();
  absl::StatusOr<RoleNetwork> network =
      NetworkOfFirstRank(*launch, flags.scheduler, flags.bind, flags.advertise, shared);
  if (!network.ok()) return refuse(network.status());
  LaunchToken token;
  const std::string& out = flags.run.start.resume.empty() ? flags.run.out : flags.run.start.resume;
  if (const absl::Status known = token.Publish(plan->job, *launch, out); !known.ok()) {
    return refuse(known);
  }
  flags.run.ranks = launch->size;
  flags.run.ranks_here = launch->size_here;
  flags.run.agents_by_hand = by_hand && launch->size > 1;
  flags.run.network = *std::move(network);
  flags.run.launcher = watch;
  return RunCommand(flags.run);
}

}  // namespace tandem::cli
