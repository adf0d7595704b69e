// tandem-scheduler: membership, views, barriers and the record of one job.
#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/process.h"
#include "cli/output_folder.h"
#include "cli/start_flags.h"
#include "node/network_check.h"
#include "node/role_options.h"
#include "scheduler/scheduler_shell.h"

int main(int argc, char** argv) {
  using namespace tandem;
  SetUpProcess();
  CLI::App app("The scheduler of one Tandem job. Prints its address first.", "tandem-scheduler");
  RoleFlags flags;
  StartFlags start;
  bool overwrite = false;
  int progress_fd = -1;
  AddJobFlags(&app, &flags);
  AddNetworkFlags(&app, &flags);
  AddOutFlags(&app, "Folder for summary.json and metrics.jsonl; without: no files", &flags.out,
              &overwrite);
  AddStartFlags(&app, &start);
  app.add_option("--progress-fd", progress_fd, "File descriptor for events (default: stdout)");
  int code = kExitOk;
  if (!ParseFlags(&app, argc, argv, &code)) return code;

  const auto plan = PlanOf(flags);
  const absl::Status ready = plan.ok() ? CheckAddresses(flags) : plan.status();
  if (!ready.ok()) {
    Finish("tandem-scheduler", ready);
    return kExitBadInput;
  }
  const StartReport report = CheckStart(start, *plan);
  for (const std::string& line : report.refused) {
    Finish("tandem-scheduler", absl::InvalidArgumentError(line));
  }
  if (!report.refused.empty()) return kExitBadInput;
  start.init_from = report.save;
  for (const std::string& line : report.said) std::fprintf(stderr, "%s\n", line.c_str());
  std::optional<OutputFolder> folder;
  if (!flags.out.empty()) {
    absl::StatusOr<OutputFolder> claimed = OutputFolder::Claim(flags.out, overwrite);
    if (!claimed.ok()) {
      Finish("tandem-scheduler", claimed.status());
      return kExitBadInput;
    }
    folder.emplace(*std::move(claimed));
    const bool saves = !PathsOf(start, flags.out, *plan).save_to.empty();
    if (!folder->shared()) folder->Clear(saves || IsInside(start.init_from, flags.out));
  }
  SchedulerOptions options;
  options.plan = *plan;
  options.bind = flags.bind;
  options.advertised_host = flags.advertise;
  // From the root: servers and workers, which are told of it, may have been started elsewhere.
  options.out_dir = flags.out.empty() ? "" : std::filesystem::absolute(flags.out).string();
  options.models = PathsOf(start, flags.out, *plan);
  options.incarnation = NewIncarnation();
  options.abort = StopSignal();
  options.save = SaveSignals();
  options.times.shard_reports = absl::Seconds(2);  // for the staleness of the live line
  options.progress = progress_fd < 0 ? stdout : fdopen(progress_fd, "w");
  return Finish("tandem-scheduler", RunScheduler(options));
}
