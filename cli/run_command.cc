#include "cli/run_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "cli/children.h"
#include "cli/progress_view.h"
#include "data/batch_source.h"
#include "node/role_flags.h"
#include "policies/policy.h"
#include "server/save_directory.h"
#include "worker/tune_group.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// How long the scheduler may take to name the culprit after a process has died, and how long
// everybody may take to leave.
constexpr absl::Duration kNamingGrace = absl::Seconds(6);
constexpr absl::Duration kStopGrace = absl::Seconds(3);

std::string ProgramFolder() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path().string();
}

// Lines of JSON from the scheduler's pipe.
class EventPipe {
 public:
  ~EventPipe() {
    if (read_fd_ >= 0) close(read_fd_);
    CloseWriter();
  }
  absl::Status Open() {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return absl::ResourceExhaustedError("no pipe");
    read_fd_ = fds[0];
    write_fd_ = fds[1];
    fcntl(read_fd_, F_SETFL, O_NONBLOCK);
    return absl::OkStatus();
  }
  int write_fd() const { return write_fd_; }
  void CloseWriter() {
    if (write_fd_ >= 0) close(write_fd_);
    write_fd_ = -1;
  }
  // Waits up to `timeout` for events.
  std::vector<nlohmann::json> Read(absl::Duration timeout) {
    pollfd wait = {read_fd_, POLLIN, 0};
    poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
    if ((wait.revents & POLLHUP) != 0 && (wait.revents & POLLIN) == 0) absl::SleepFor(timeout);
    char bytes[65536];
    for (ssize_t n; (n = read(read_fd_, bytes, sizeof bytes)) > 0;) {
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
  int read_fd_ = -1, write_fd_ = -1;
  std::string text_;
};

class Run {
 public:
  Run(const RunFlags& flags, JobPlan plan)
      : flags_(flags),
        plan_(std::move(plan)),
        live_(isatty(STDOUT_FILENO) != 0),
        view_(stdout, live_) {}

  // That there is something to start.
  absl::Status CheckPrograms() const {
    for (const char* name : {"tandem-scheduler", "tandem-server", "tandem-worker"}) {
      if (access(Program(name).c_str(), X_OK) == 0) continue;
      return absl::NotFoundError(absl::StrCat(Program(name),
                                              " is missing, expected it beside this program; hint: "
                                              "ninja -C build ",
                                              name,
                                              ", which needs TANDEM_TORCH=ON for tandem-worker"));
    }
    return absl::OkStatus();
  }

  // Makes the output folder and the job file that all processes read.
  absl::Status Prepare() {
    std::error_code error;
    fs::create_directories(flags_.out + "/logs", error);
    if (error) {
      return absl::PermissionDeniedError(
          absl::StrCat("--out ", flags_.out, ": cannot be made: ", error.message()));
    }
    for (const char* stale : {"summary.json", "metrics.jsonl"}) {
      fs::remove(absl::StrCat(flags_.out, "/", stale), error);
    }
    fs::remove_all(flags_.out + "/collectives", error);
    std::ofstream file(JobPath(), std::ios::trunc);
    file << ResolvedText(plan_);
    file.close();
    if (!file) return absl::PermissionDeniedError(absl::StrCat(JobPath(), ": cannot be written"));
    return absl::OkStatus();
  }

  int Execute() {
    stop_ = StopSignal();
    Announce();
    if (const absl::Status started = StartScheduler(); !started.ok()) {
      return Finish("tandem run", started);
    }
    while (!over_) Turn();
    return Close();
  }

 private:
  std::string JobPath() const { return flags_.out + "/job.textproto"; }

  void Announce() {
    std::vector<std::string> parts;
    for (const TablePlan& table : plan_.tables) {
      if (table.dense) continue;
      parts.push_back(absl::StrCat("table ", table.name, " ",
                                   PolicyName(plan_.groups[table.group].policy),
                                   table.frozen ? " (frozen)" : ""));
    }
    const bool on_servers = plan_.dense_table >= 0;
    parts.push_back(on_servers
                        ? absl::StrCat("dense on servers ",
                                       PolicyName(plan_.groups[plan_.tables.back().group].policy))
                        : absl::StrCat("dense by allreduce ",
                                       Dense::Algorithm_Name(plan_.job.dense().algorithm())));
    view_.Line(absl::StrCat(plan_.job.name(), ": ", plan_.workers(), " workers, ", plan_.servers(),
                            " servers, seed ", plan_.job.seed(), "; ", absl::StrJoin(parts, ", ")));
    NoteHybrid(on_servers);
  }

  // What asynchrony means in this job, in words (the clock gap of a hybrid would mislead).
  void NoteHybrid(bool dense_on_servers) {
    bool asynchronous = false;
    for (const GroupPlan& group : plan_.groups) {
      const auto kind = group.policy.kind();
      if (kind != Policy::ASP && kind != Policy::SSP) continue;
      asynchronous = true;
      view_.Line(absl::StrCat(PolicyName(group.policy), ": each worker's update counts ",
                              group.policy.async_scale() == Policy::INVERSE_WORKERS
                                  ? "1/workers (async_scale: INVERSE_WORKERS)"
                                  : "in full (async_scale: ONE)"));
    }
    if (asynchronous && !dense_on_servers) {
      view_.Line(absl::StrCat("hybrid: the allreduce keeps workers within one step of each other; ",
                              "nobody waits for table updates, and rows are read ",
                              plan_.job.train().depth(),
                              plan_.job.train().depth() == 1 ? " step ahead" : " steps ahead"));
    }
  }

  absl::Status StartScheduler() {
    TANDEM_RETURN_IF_ERROR(pipe_.Open());
    const absl::Status started = children_.Start("scheduler",
                                                 {Program("tandem-scheduler"), "--job", JobPath(),
                                                  "--out", flags_.out, "--progress-fd", "3"},
                                                 LogOf("scheduler"), pipe_.write_fd(), {});
    pipe_.CloseWriter();
    return started;
  }

  std::string Program(const char* name) const { return absl::StrCat(ProgramFolder(), "/", name); }
  std::string LogOf(absl::string_view name) const {
    return absl::StrCat(flags_.out, "/logs/", absl::StrJoin(absl::StrSplit(name, ' '), "-"),
                        ".log");
  }

  absl::Status StartNodes(const std::string& address) {
    std::vector<std::string> common = {"--job", JobPath(), "--scheduler", address};
    if (!flags_.init_from.empty()) {
      common.insert(common.end(), {"--init-from", flags_.init_from});
    }
    for (int s = 0; s < plan_.servers(); ++s) {
      std::vector<std::string> argv = {Program("tandem-server"), "--index", absl::StrCat(s),
                                       "--out", flags_.out};
      argv.insert(argv.end(), common.begin(), common.end());
      const std::string name = absl::StrCat("server ", s);
      TANDEM_RETURN_IF_ERROR(children_.Start(name, argv, LogOf(name), -1, {}));
    }
    const std::string threads = absl::StrCat(plan_.job.cluster().threads_per_worker());
    for (int w = 0; w < plan_.workers(); ++w) {
      std::vector<std::string> argv = {Program("tandem-worker"), "--index", absl::StrCat(w),
                                       "--dump-collectives", flags_.out + "/collectives"};
      if (flags_.save) argv.insert(argv.end(), {"--save", flags_.out + "/model"});
      if (flags_.trace_steps > 0) {
        argv.insert(argv.end(), {"--trace", absl::StrCat(flags_.out, "/trace-", w, ".json"),
                                 "--trace-steps", absl::StrCat(flags_.trace_steps)});
      }
      argv.insert(argv.end(), common.begin(), common.end());
      const std::string name = absl::StrCat("worker ", w);
      TANDEM_RETURN_IF_ERROR(
          children_.Start(name, argv, LogOf(name), -1, {{"OMP_NUM_THREADS", threads}}));
    }
    return absl::OkStatus();
  }

  void Turn() {
    for (const nlohmann::json& event : pipe_.Read(absl::Milliseconds(100))) OnEvent(event);
    const absl::Time now = absl::Now();
    for (const Children::Exit& exit : children_.Reap()) OnExit(exit, now);
    if (stop_->load() && !stopping_) {
      stopping_ = true;
      if (failure_.empty()) failure_ = "stopped by a signal";
      view_.Line("stopping");
      children_.SignalOne("scheduler", SIGTERM);
      give_up_ = now + kStopGrace;
    }
    if (now >= give_up_ || !children_.running()) over_ = true;
  }

  void OnEvent(const nlohmann::json& event) {
    const std::string kind = event.value("event", "");
    if (kind == "address") {
      if (const absl::Status started = StartNodes(event.value("address", "")); !started.ok()) {
        failure_ = std::string(started.message());
        over_ = true;
      }
    } else if (kind == "failed") {
      OnFailed(event.value("node", ""), event.value("reason", ""));
    } else if (kind == "finished") {
      finished_ = true;
      give_up_ = std::min(give_up_, absl::Now() + kNamingGrace);
    } else {
      view_.Show(event, absl::Now());
    }
  }

  void OnFailed(const std::string& node, const std::string& reason) {
    // A scheduler that was told to stop knows less than the exit that made us stop it.
    const bool our_doing = node == "scheduler" && first_exit_.has_value();
    if (!stopping_ && !our_doing) failure_ = absl::StrCat(node, ": ", reason);
    // What ended the process says more than that its connections broke.
    if (first_exit_.has_value() && first_exit_->signal != 0 && first_exit_->name == node) {
      failure_ = absl::StrCat(first_exit_->DebugString(), "; the scheduler saw: ", reason);
    }
    give_up_ = std::min(give_up_, absl::Now() + kStopGrace);
  }

  // A process that ends before the job does: the scheduler will name the cause; if it cannot, this
  // process is the cause.
  void OnExit(const Children::Exit& exit, absl::Time now) {
    if (exit.code == 0 && exit.signal == 0) return;
    if (!first_exit_.has_value()) first_exit_ = exit;
    if (finished_) return;
    // Without a scheduler nothing more will be said, but the others can leave by themselves if it
    // has told them why.
    const bool mute = exit.name == "scheduler" && failure_.empty();
    give_up_ = std::min(give_up_, mute ? now : now + kNamingGrace);
  }

  std::string LastLine(const std::string& log) const {
    std::ifstream file(log);
    std::string line, last;
    while (std::getline(file, line)) {
      if (!line.empty()) last = line;
    }
    return last;
  }

  int Close() {
    for (const Children::Exit& exit : children_.StopAll(kStopGrace)) OnExit(exit, absl::Now());
    for (const nlohmann::json& event : pipe_.Read(absl::ZeroDuration())) OnEvent(event);
    if (failure_.empty() && !finished_) failure_ = WhyItEnded();
    if (failure_.empty()) return PrintSummary();
    view_.Clear();
    return Finish("tandem run", absl::AbortedError(absl::StrCat("failed: ", failure_, "; logs in ",
                                                                flags_.out, "/logs")));
  }

  std::string WhyItEnded() const {
    if (!first_exit_.has_value()) return "the job ended without a word";
    const std::string exit = first_exit_->DebugString();
    const std::string last = first_exit_->signal == 0 ? LastLine(first_exit_->log) : "";
    return last.empty() ? exit : absl::StrCat(exit, ": ", last);
  }

  int PrintSummary() {
    std::ifstream file(flags_.out + "/summary.json");
    const auto summary = nlohmann::json::parse(file, nullptr, false);
    if (!summary.is_object()) {
      return Finish("tandem run", absl::DataLossError(absl::StrCat(
                                      "failed: ", flags_.out, "/summary.json was not written")));
    }
    const std::string result =
        ProgressView::FormatEvaluation(summary.value("eval", nlohmann::json::object()));
    view_.Line(absl::StrFormat(
        "done: %s samples in %.1f s, %s samples/s%s%s",
        WithCommas(summary.value("samples", int64_t{0})), summary.value("seconds", 0.0),
        WithCommas(static_cast<int64_t>(summary.value("samples_per_second", 0.0))),
        result.empty() ? "" : "; test: ", result));
    view_.Line(absl::StrCat("wrote ", flags_.out, "/summary.json"));
    return kExitOk;
  }

  const RunFlags& flags_;
  const JobPlan plan_;
  const bool live_;
  ProgressView view_;
  EventPipe pipe_;
  Children children_;
  const std::atomic<bool>* stop_ = nullptr;
  bool over_ = false, stopping_ = false, finished_ = false;
  absl::Time give_up_ = absl::InfiniteFuture();
  std::string failure_;
  std::optional<Children::Exit> first_exit_;  // of those that did not end well
};

absl::Status CheckFlags(const RunFlags& flags) {
  if (flags.init_from.empty()) return absl::OkStatus();
  return ResolveSave(flags.init_from).status();
}

}  // namespace

int RunCommand(const RunFlags& flags) {
  RoleFlags role;
  role.job = flags.job;
  role.set = flags.set;
  const absl::StatusOr<JobPlan> plan = PlanOf(role);
  absl::Status ready = plan.status();
  if (ready.ok()) ready = CheckFlags(flags);
  if (ready.ok()) ready = CheckDenseDevice(*plan);
  if (ready.ok()) ready = CheckDenseChoices(*plan);
  if (ready.ok()) ready = CheckData(*plan);
  if (!ready.ok()) {
    Finish("tandem run", ready);
    return kExitBadInput;
  }
  Run run(flags, *plan);
  if (const absl::Status there = run.CheckPrograms(); !there.ok()) {
    return Finish("tandem run", there);
  }
  if (const absl::Status prepared = run.Prepare(); !prepared.ok()) {
    Finish("tandem run", prepared);
    return kExitBadInput;
  }
  return run.Execute();
}

}  // namespace tandem
