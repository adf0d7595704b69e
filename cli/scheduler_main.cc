// tandem-scheduler: membership, views, barriers and the record of one job.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/exhaustion.h"
#include "base/file.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/console/output_folder.h"
#include "cli/console/progress_view.h"
#include "cli/launch/restarts.h"
#include "cli/launch/resume_point.h"
#include "cli/launch/start_flags.h"
#include "node/job_token.h"
#include "node/network_check.h"
#include "node/role_options.h"
#include "scheduler/observe/watch_pages.h"
#include "scheduler/scheduler_shell.h"
#include "tools/doctor/doctor.h"

namespace {

// Prints an event as `tandem run` would, and handles the events that it does not print.
void ShowEvent(const nlohmann::json& event, tandem::cli::ProgressView* view) {
  const std::string kind = event.value("event", "");
  if (kind == "address") {
    view->Line(
        absl::StrCat("waits for servers and workers: --scheduler ", event.value("address", "")));
  } else if (kind == "http") {
    view->Line(absl::StrCat("watch: ", event.value("url", "")));
  } else if (kind == "started") {
    view->Line("all are there: training begins");
  } else if (kind == "finished") {
    view->Line("finished");
  } else {
    view->Show(event, tandem::MonotonicNow());
  }
}

// Flags of the program that starts this one.
struct DriverFlags {
  std::string launch, restarts, resume_from;
  int replacements = 0;
  pid_t pid = 0;
};

void AddDriverFlags(CLI::App* app, DriverFlags* flags) {
  app->add_option("--launch", flags->launch,
                  "The launch that starts this scheduler, for its agents")
      ->group("");
  app->add_option("--restarts", flags->restarts, "What tandem run knows of the attempts before")
      ->group("");
  app->add_option(
         "--resume-from", flags->resume_from,
         "The checkpoint of --resume: the name of its folder. The starting program resumes "
         "from another one if servers report that it is damaged")
      ->group("");
  app->add_option("--replacements", flags->replacements,
                  "How many dead workers the starting program may replace; it writes to standard "
                  "input how workers end")
      ->group("");
  app->add_option("--driver", flags->pid,
                  "The process that starts this scheduler; if it dies, the scheduler tells all "
                  "agents, and ends")
      ->group("");
}

// Makes reads of standard input return at once. Returns its descriptor.
int InputWithoutWaiting() {
  fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
  return STDIN_FILENO;
}

// Copies the flags of the starting program to `options`. With --driver the kernel no longer ends
// this process together with that program. The scheduler notices the end of the program itself.
void TakeDriver(const DriverFlags& flags, tandem::scheduler::SchedulerOptions* options) {
  options->launch = flags.launch;
  options->replacements = flags.replacements;
  if (flags.replacements > 0) options->driver_fd = InputWithoutWaiting();
  options->driver = flags.pid;
  if (flags.pid != 0) prctl(PR_SET_PDEATHSIG, 0);
}

// The memory that one server or one worker of the job is expected to need.
uint64_t NeededBytes(const tandem::job::ResolvedJob& plan, int servers, int workers,
                     const tandem::cli::StartFlags& start) {
  const bool loads = !start.init_from.empty();
  const tandem::doctor::JobNeeds needs = tandem::doctor::NeedsOf(plan, servers, workers, loads);
  return needs.table_bytes + needs.held_bytes + needs.process_bytes;
}

// Claims the folder of the run, removes what an earlier run has left there, and writes the token
// and the job for the other processes. If `tandem run` has prepared the folder, only claims it.
absl::Status PrepareFolder(const tandem::job::ResolvedJob& plan,
                           const tandem::cli::StartFlags& start, const std::string& out,
                           bool overwrite, std::optional<tandem::cli::OutputFolder>* folder) {
  using tandem::cli::OutputFolder;
  const bool resumes = start.resumed.has_value();
  TANDEM_ASSIGN_OR_RETURN(OutputFolder claimed, OutputFolder::Claim(out, overwrite || resumes));
  folder->emplace(std::move(claimed));
  if ((*folder)->shared()) return absl::OkStatus();
  if (resumes) {
    (*folder)->ClearForResume();
  } else {
    const bool checkpoints = !tandem::cli::PathsOf(start, out, plan).checkpoint_folder.empty();
    (*folder)->Clear(checkpoints || tandem::cli::IsInside(start.init_from, out));
  }
  return (*folder)->WriteInRoom([&]() -> absl::Status {
    TANDEM_RETURN_IF_ERROR(tandem::node::PublishToken(plan.job, out));
    return tandem::WriteFileAtomically(out + "/job.textproto", tandem::job::ResolvedText(plan));
  });
}

// Adds the command that continues a run which has ended with a checkpoint.
absl::Status WithHowToResume(const absl::Status& ended, absl::string_view program,
                             const tandem::node::RoleFlags& flags) {
  if (flags.out.empty() || !tandem::cli::HasResumePoint(flags.out)) return ended;
  return absl::Status(ended.code(), absl::StrCat(ended.message(), "; continue with: ", program,
                                                 " --job ", tandem::ForShell(flags.job),
                                                 " --resume ", tandem::ForShell(flags.out)));
}

}  // namespace

int main(int argc, char** argv) {
  using namespace tandem;
  SetUpProcess();
  EndInOneLine();
  CLI::App app("The scheduler of one Tandem job. Prints its address first.", "tandem-scheduler");
  node::RoleFlags flags;
  cli::StartFlags start;
  bool overwrite = false;
  bool insecure = false;
  int progress_fd = -1;
  std::string http, tensorboard;
  node::AddJobFlags(&app, &flags);
  node::AddNetworkFlags(&app, &flags);
  node::AddLogFlag(&app);
  node::AddOutFlags(&app, "Folder for summary.json and metrics.jsonl; without: no files",
                    &flags.out, &overwrite);
  cli::AddStartFlags(&app, &start);
  app.add_option("--progress-fd", progress_fd,
                 "File descriptor for events as JSON (default: stdout, if it is no terminal)");
  DriverFlags driver;
  AddDriverFlags(&app, &driver);
  app.add_option("--http", http,
                 "HOST:PORT where the status of the job is served (docs/OBSERVE.md); port 0: any")
      ->check(node::CheckHttpAddress);
  app.add_option("--tensorboard", tensorboard, "Folder for an event file of TensorBoard");
  app.add_flag("--insecure", insecure,
               "Allow a job without a token to listen where other hosts can connect");
  int code = node::kExitOk;
  if (!node::ParseFlags(&app, argc, argv, &code)) return code;

  const auto plan = node::PlanOf(flags);
  absl::Status ready = plan.ok() ? node::CheckAddresses(flags) : plan.status();
  // FindResume sets the output folder and the checkpoint that the next steps use.
  start.search.chosen = driver.resume_from;
  if (ready.ok()) ready = cli::FindResume(&start, &flags.out);
  if (ready.ok()) ready = node::LoadKeys(plan->job, &flags);
  const absl::StatusOr<scheduler::Restarts> attempts = cli::ParseRestartsFlag(driver.restarts);
  if (ready.ok()) ready = attempts.status();
  if (ready.ok() && !insecure) ready = node::CheckNotExposed(plan->job, flags);
  if (ready.ok() && !http.empty() && !insecure && flags.keys == nullptr) {
    ready = scheduler::WatchPages::CheckAddress(http);
  }
  if (!ready.ok()) {
    node::Finish("tandem-scheduler", ready);
    return node::kExitBadInput;
  }
  // Check the start before the folder is claimed and cleared: a refused job removes no results.
  cli::StartReport report = cli::CheckStart(start, *plan);
  for (const std::string& line : report.refused) {
    node::Finish("tandem-scheduler", absl::InvalidArgumentError(line));
  }
  if (!report.refused.empty()) return node::kExitBadInput;
  start.init_from = report.checkpoint;
  for (const std::string& line : report.said) std::fprintf(stderr, "%s\n", line.c_str());
  std::optional<cli::OutputFolder> folder;
  if (!flags.out.empty()) {
    const absl::Status prepared = PrepareFolder(*plan, start, flags.out, overwrite, &folder);
    if (!prepared.ok()) {
      node::Finish("tandem-scheduler", prepared);
      return node::kExitBadInput;
    }
  }
  scheduler::SchedulerOptions options;
  options.plan = *plan;
  options.bind = flags.bind;
  options.advertised_host = flags.advertise;
  options.keys = flags.keys;
  // An absolute path, because servers and workers, which get it, may run in other folders.
  options.out_dir = flags.out.empty() ? "" : std::filesystem::absolute(flags.out).string();
  options.http = http;
  options.tensorboard = tensorboard;
  options.models = cli::PathsOf(start, flags.out, *plan);
  options.estimate = {NeededBytes(*plan, 1, 0, start), NeededBytes(*plan, 0, 1, start)};
  options.restarts = *attempts;
  options.by_hand = progress_fd < 0;
  options.incarnation = node::NewIncarnation();
  options.ends = node::StopSignals();
  options.checkpoint = node::CheckpointSignals();
  options.on_started = [&report] { report.kept = OwnedFd(); };  // all nodes have loaded it
  options.times = scheduler::SchedulerTimes(job::SilenceTimes(plan->job));
  options.times.shard_reports = absl::Seconds(2);  // for the staleness of the live line
  // A terminal gets lines to read, a program gets events.
  cli::ProgressView view(stdout, CanRewriteLines());
  if (progress_fd < 0 && isatty(STDOUT_FILENO) != 0) {
    options.on_event = [&view](const nlohmann::json& event) { ShowEvent(event, &view); };
  } else {
    options.progress = progress_fd < 0 ? stdout : fdopen(progress_fd, "w");
  }
  TakeDriver(driver, &options);  // after StopSignals, which ignores SIGPIPE
  absl::Status ended = scheduler::RunScheduler(options);
  // `tandem run` prints this itself.
  if (!ended.ok() && progress_fd < 0) ended = WithHowToResume(ended, argv[0], flags);
  code = node::Finish("tandem-scheduler", ended);
  absl::string_view why = absl::string_view(ended.message()).substr(0, ended.message().find("; "));
  absl::ConsumePrefix(&why, "scheduler: ");  // of an end at once (SchedulerCore::result)
  const bool stopped = absl::IsCancelled(ended) && scheduler::IsRequestedEnd(why);
  return stopped ? node::kExitOk : code;
}
