#include "tools/sim/command/timing_command.h"

#include <atomic>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/console/output_folder.h"
#include "cli/console/progress_view.h"
#include "node/role_options.h"
#include "scheduler/observe/summary.h"
#include "tools/sim/timing.h"

namespace tandem::sim {
namespace {

TimingOptions OptionsOf(const SimulateFlags& flags, const job::ResolvedJob& plan,
                        const absl::optional<Calibration>& live, const std::atomic<int>* stops) {
  TimingOptions options;
  options.service_seed = plan.job.seed();  // as live workers do
  options.steps = flags.steps;
  if (flags.seconds > 0) options.limit = absl::Seconds(flags.seconds);
  options.compute = absl::Seconds(flags.step_seconds);
  options.latency = absl::Seconds(flags.latency_seconds);
  options.bytes_per_second = flags.bytes_per_second;
  options.step_bytes = flags.step_bytes;
  options.dense_bytes = flags.dense_bytes;
  if (live.has_value()) {
    options.compute = absl::ZeroDuration();
    for (const double seconds : live->compute_seconds) {
      options.min_compute.push_back(absl::Seconds(seconds));
    }
  }
  options.stopped = [stops] { return stops->load() > 0; };
  return options;
}

std::string Announcement(const job::ResolvedJob& plan, const SimulateFlags& flags) {
  std::vector<std::string> parts;
  for (const job::TablePlan& table : plan.tables) {
    parts.push_back(
        absl::StrCat(table.name, " ", job::PolicyName(plan.groups[table.group].policy)));
  }
  if (plan.dense_table < 0) {
    parts.push_back(absl::StrCat(job::kDenseTableName, " ", job::DenseName(plan.job.dense())));
  }
  const std::string how_long = flags.seconds > 0
                                   ? absl::StrCat(", ", flags.seconds, " s")
                                   : absl::StrCat(" of ", WithCommas(flags.steps), " steps each");
  return absl::StrCat(plan.job.name(), ", timing only: ", WithCommas(plan.workers()), " workers",
                      how_long, ", seed ", plan.job.seed(), "; ", absl::StrJoin(parts, ", "));
}

struct Result {
  nlohmann::json summary;
  std::string line;
};

// The summary and its line. The summary also has the waiting time of each worker, because many
// workers have too many pairs.
Result ResultOf(const Timing& timing, const SimulateFlags& flags, const job::ResolvedJob& plan,
                const absl::optional<Calibration>& live, double host_seconds) {
  const scheduler::JobReport report = timing.Report();
  Result result;
  result.summary = scheduler::SummaryJson(plan, report, "simulated");
  nlohmann::json& simulated = result.summary["simulated"];
  simulated = {{"timing_only", true},
               {"steps", flags.steps},
               {"seconds", flags.seconds},
               {"latency_seconds", flags.latency_seconds},
               {"bytes_per_second", flags.bytes_per_second},
               {"step_bytes", flags.step_bytes},
               {"dense_bytes", flags.dense_bytes},
               {"waited_seconds", timing.waited()},
               {"awaited_seconds", timing.awaited()},
               {"host_seconds", host_seconds},
               {"events", timing.event_count()}};
  if (live.has_value()) {
    simulated["calibrated_by"] = live->folder;
    simulated["compute_seconds"] = live->compute_seconds;
    simulated["live_samples_per_second"] = live->samples_per_second;
  } else {
    simulated["step_seconds"] = flags.step_seconds;
  }
  result.line = absl::StrFormat("done: %s samples in %.4g simulated s, %s samples/s",
                                WithCommas(report.samples), report.seconds,
                                WithCommas(static_cast<int64_t>(report.samples_per_second)));
  for (const TableReport& table : report.tables) {
    const Distribution& staleness = table.version_staleness();
    if (staleness.count() == 0) continue;
    absl::StrAppendFormat(&result.line,
                          "; %s: version staleness %.4g, at most %.0f, gap at most %.0f",
                          table.table(), staleness.sum() / static_cast<double>(staleness.count()),
                          staleness.max(), table.clock_gap().max());
  }
  absl::StrAppend(&result.line, "; ", WithCommas(static_cast<int64_t>(timing.event_count())),
                  " events in ", absl::StrFormat("%.3g s here", host_seconds));
  return result;
}

absl::Status Run(const SimulateFlags& flags, const job::ResolvedJob& plan,
                 const absl::optional<Calibration>& live, cli::ProgressView* view) {
  const std::atomic<int>* const stops = node::StopSignals();
  view->Line(Announcement(plan, flags));
  if (live.has_value() && !live->untold.empty()) {
    view->Line(absl::StrFormat("by %s, with %s: %.3g ms is assumed", live->folder, live->untold,
                               1000 * flags.latency_seconds));
  }
  const absl::Time begun = MonotonicNow();
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Timing> timing,
                          Timing::New(plan, OptionsOf(flags, plan, live, stops)));
  TANDEM_RETURN_IF_ERROR(timing->Run());
  Result result =
      ResultOf(*timing, flags, plan, live, absl::ToDoubleSeconds(MonotonicNow() - begun));
  result.summary["command"] = flags.command;
  result.summary["exit"] = node::kExitOk;
  TANDEM_RETURN_IF_ERROR(
      WriteFileAtomically(flags.out + "/summary.json", scheduler::PrettyPrint(result.summary)));
  view->Line(result.line);
  view->Line(absl::StrCat("wrote ", flags.out, "/summary.json"));
  return absl::OkStatus();
}

}  // namespace

int SimulateTiming(const SimulateFlags& flags, const job::ResolvedJob& plan,
                   const absl::optional<Calibration>& live) {
  absl::StatusOr<cli::OutputFolder> folder = cli::OutputFolder::Claim(flags.out, flags.overwrite);
  absl::Status ready = folder.status();
  if (ready.ok()) {
    folder->Clear(/*keep_model=*/false);
    ready = WriteFileAtomically(flags.out + "/job.textproto", job::ResolvedText(plan));
  }
  if (!ready.ok()) {
    node::Finish("tandem simulate", ready);
    return node::kExitBadInput;
  }
  cli::ProgressView view(stdout, CanRewriteLines());
  const absl::Status run = Run(flags, plan, live, &view);
  if (absl::IsCancelled(run)) {
    node::Finish("tandem simulate", absl::AbortedError("stopped by a signal"));
    return node::kExitBySignal + node::StopSignalNumber();
  }
  if (absl::IsInvalidArgument(run)) {
    node::Finish("tandem simulate", run);
    return node::kExitBadInput;
  }
  return node::Finish("tandem simulate", run);
}

}  // namespace tandem::sim
