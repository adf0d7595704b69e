// tandem-scheduler: membership, views, barriers and the record of one job.
#include <cstdio>

#include "base/process.h"
#include "node/role_options.h"
#include "scheduler/scheduler_shell.h"

int main(int argc, char** argv) {
  using namespace tandem;
  SetUpProcess();
  CLI::App app("The scheduler of one Tandem job. Prints its address first.", "tandem-scheduler");
  RoleFlags flags;
  int progress_fd = -1;
  AddJobFlags(&app, &flags);
  AddNetworkFlags(&app, &flags);
  app.add_option("--out", flags.out, "Folder for summary.json and metrics.jsonl");
  app.add_option("--progress-fd", progress_fd, "File descriptor for events (default: stdout)");
  int code = kExitOk;
  if (!ParseFlags(&app, argc, argv, &code)) return code;

  const auto plan = PlanOf(flags);
  if (!plan.ok()) {
    Finish("tandem-scheduler", plan.status());
    return kExitBadInput;
  }
  SchedulerOptions options;
  options.plan = *plan;
  options.bind = flags.bind;
  options.advertised_host = flags.advertise;
  options.out_dir = flags.out;
  options.incarnation = NewIncarnation();
  options.abort = StopSignal();
  options.save = SaveSignals();
  options.times.shard_reports = absl::Seconds(2);  // for the staleness of the live line
  options.progress = progress_fd < 0 ? stdout : fdopen(progress_fd, "w");
  return Finish("tandem-scheduler", RunScheduler(options));
}
