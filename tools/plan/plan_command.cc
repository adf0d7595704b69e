#include "tools/plan/plan_command.h"

#include <cmath>
#include <cstdio>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/optional.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "data/batch_source.h"
#include "data/row_data.h"
#include "data/statistics.h"
#include "job/step_time.h"
#include "node/role_flags.h"
#include "node/role_options.h"
#include "tools/plan/advice.h"
#include "tools/plan/estimate.h"
#include "tools/plan/measure_facts.h"
#include "tools/plan/pace.h"
#include "tools/sim/command/calibration.h"

namespace tandem::plan {
namespace {

// Staleness costs quality, which only a study can measure. A smaller speedup than this is not
// worth it.
constexpr double kWorthIt = 1.2;

absl::Status CheckNumber(const char* flag, double value, bool zero) {
  if (std::isfinite(value) && (zero ? value >= 0 : value > 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", value, ", expected a number ",
                                                 zero ? "not less" : "more", " than 0"));
}

// `live`: the run of --calibrate.
absl::StatusOr<Assumed> AssumedBy(const PlanFlags& flags, const job::ResolvedJob& job,
                                  const absl::optional<sim::Calibration>& live) {
  TANDEM_RETURN_IF_ERROR(CheckNumber("--step-seconds", flags.step_seconds, false));
  TANDEM_RETURN_IF_ERROR(CheckNumber("--latency-seconds", flags.latency_seconds, true));
  TANDEM_RETURN_IF_ERROR(CheckNumber("--bytes-per-second", flags.bytes_per_second, true));
  Assumed assumed;
  assumed.latency_seconds = flags.latency_seconds;
  assumed.bytes_per_second = flags.bytes_per_second;
  if (!live.has_value()) {
    for (int rank = 0; rank < job.workers(); ++rank) {
      // If fault_injection.slow_workers draws the time of steps, it is the whole time, as in a
      // simulated run.
      const bool drawn = job::StepTimeOf(job.job, rank) >= 0;
      assumed.compute_seconds.push_back(drawn ? 0 : flags.step_seconds);
    }
    return assumed;
  }
  assumed.compute_seconds = live->compute_seconds;
  assumed.latency_seconds = live->latency_seconds.value_or(flags.latency_seconds);
  if (!live->untold.empty()) {
    std::printf("by %s, with %s: %.3g ms is assumed\n", live->folder.c_str(), live->untold.c_str(),
                1000 * assumed.latency_seconds);
  }
  assumed.dense_parameters = live->dense_parameters;
  assumed.push_bytes = live->push_bytes;
  for (const auto& [table, measured] : live->tables) {
    assumed.rows[table] = {measured.rows, measured.bytes};
  }
  return assumed;
}

std::string Whole(double number) { return WithCommas(static_cast<int64_t>(number + 0.5)); }

void PrintFacts(const Facts& facts, double compute_seconds, const std::string& name) {
  std::printf("%s: %d workers, %d rows a step of each; dense: %s parameters at most\n",
              name.c_str(), facts.workers, facts.batch, Whole(facts.dense_parameters).c_str());
  for (const TableFacts& table : facts.tables) {
    std::printf("table %s: a step touches %s rows by %s ids; %s rows of %.0f bytes in all\n",
                table.name.c_str(), Whole(table.rows_a_step).c_str(),
                Whole(table.ids_a_step).c_str(), Whole(table.rows).c_str(), table.bytes_a_row);
  }
  const std::string rate =
      facts.bytes_per_second > 0
          ? absl::StrCat(BytesText(facts.bytes_per_second), " a second each way")
          : "no limit";
  std::printf(
      "assumed: each process has a host of its own, a step computes %.3g ms on average, a frame "
      "takes %.3g ms, links: %s\n\n",
      1000 * compute_seconds, 1000 * facts.latency_seconds, rate.c_str());
}

// `speed`: whether the speed can be predicted.
void PrintRow(const Estimate& e, bool speed) {
  std::printf("%11s  %-19s  %-19s  %5.3g %5.3g %7.3g %5.3g  %8s  %8s %8s  %s\n",
              speed ? Whole(e.samples_per_second).c_str() : "-", e.strategy.tables_name().c_str(),
              e.strategy.dense_name().c_str(), 1000 * e.compute_seconds, 1000 * e.link_seconds,
              1000 * e.one_way_seconds, 1000 * e.wait_seconds, BytesText(e.bytes_a_sample).c_str(),
              BytesText(e.server_memory).c_str(), BytesText(e.worker_memory).c_str(),
              e.limit().c_str());
}

// Strategies are of the same kind if they differ only in the algorithm and the number of servers.
std::string KindOf(const Strategy& strategy) {
  return absl::StrCat(static_cast<int>(strategy.tables), " ", static_cast<int>(strategy.dense), " ",
                      strategy.bound.has_value() ? absl::StrCat(*strategy.bound) : "any");
}

void PrintTable(const std::vector<Estimate>& estimates, bool all, bool speed) {
  std::printf("%11s  %-19s  %-19s  %-25s  %8s  %-17s  %s\n", "samples/s", "tables", "dense",
              "ms: compute       one", "bytes a", "memory of each", "most of a step");
  std::printf("%11s  %-19s  %-19s  %5s %5s %7s %5s  %8s  %8s %8s  %s\n", "", "", "", "", "links",
              "way", "wait", "sample", "server", "worker", "goes to");
  std::set<std::string> seen;
  for (const Estimate& estimate : estimates) {
    if (seen.insert(KindOf(estimate.strategy)).second || all) PrintRow(estimate, speed);
  }
}

// Tells which strategies the other settings of the job allow.
class Possible {
 public:
  explicit Possible(const PlanFlags& flags) : flags_(flags) {}

  absl::Status Read() {
    TANDEM_ASSIGN_OR_RETURN(const job::Overrides set, node::ParseOverrides(flags_.set));
    TANDEM_ASSIGN_OR_RETURN(job_, job::ReadJobFile(flags_.job, set));
    return absl::OkStatus();
  }

  // Whether the job can run with this strategy and so many workers.
  absl::Status Check(const Strategy& strategy, int workers) const {
    job::Overrides all = *node::ParseOverrides(flags_.set);
    for (auto& override : strategy.Overrides(job_)) all.push_back(std::move(override));
    if (workers != job_.cluster().workers()) {
      all.emplace_back("cluster.workers", absl::StrCat(workers));
    }
    TANDEM_ASSIGN_OR_RETURN(const Job job, job::ReadJobFile(flags_.job, all));
    return job::Resolve(job).status();
  }

  // The command that runs the job with this strategy.
  std::string Command(const Strategy& strategy) const {
    std::string out = absl::StrCat("  tandem run ", ForShell(flags_.job));
    for (const std::string& set : flags_.set) absl::StrAppend(&out, " --set ", ForShell(set));
    for (const auto& [path, value] : strategy.Overrides(job_)) {
      absl::StrAppend(&out, " --set ", ForShell(absl::StrCat(path, "=", value)));
    }
    if (strategy.beside && strategy.uses_servers()) {
      absl::StrAppend(&out, "  # server i on the host of worker i");
    }
    return out;
  }

 private:
  const PlanFlags& flags_;
  Job job_;
};

// The current job can be faster than every candidate, because it uses features that the candidates
// lack: sync rounds, quorum sums, tables at several places.
void PrintLead(const Estimate& as_it_is, const Estimate& taken) {
  const Strategy& strategy = as_it_is.strategy;
  if (strategy.every == 1 && !strategy.quorum.has_value() && !strategy.mixed) return;
  const double lead = as_it_is.samples_per_second / taken.samples_per_second;
  if (lead < kAlike) return;
  std::printf(
      "The current job is predicted to be %.2f times as fast as that, because it has settings that "
      "no candidate has (docs/PLAN.md).\n",
      lead);
}

// `estimates`: the fastest comes first (plan::EstimateAll), so the search for the one that sends
// least may end at the first one that is too slow.
void PrintChoice(const std::vector<Estimate>& estimates, const Estimate& as_it_is,
                 const Possible& possible) {
  const Estimate& fastest = estimates.front();
  // Among strategies of about the same speed, take the one that sends least.
  const Estimate *first = nullptr, *in_step = nullptr;
  for (const Estimate& estimate : estimates) {
    if (estimate.strategy.uses_servers() && estimate.strategy.bound != 0) continue;
    if (first == nullptr) first = in_step = &estimate;
    if (estimate.samples_per_second * kAlike < first->samples_per_second) break;
    if (estimate.bytes_a_sample < in_step->bytes_a_sample) in_step = &estimate;
  }
  const double gain = first == nullptr ? 0 : fastest.samples_per_second / first->samples_per_second;
  const bool together = first != nullptr && gain < kWorthIt;
  const double over_this =
      (together ? *in_step : fastest).samples_per_second / as_it_is.samples_per_second;
  if (over_this < kAlike) {
    if (over_this * kAlike < 1) {
      std::printf(
          "\nRecommended: no change. The current job is predicted to be %.3g times as fast as the "
          "best candidate.\n",
          1 / over_this);
    } else {
      std::printf(
          "\nRecommended: no change. The best candidate is predicted to be %.2f times as fast as "
          "the current job, and the model cannot tell apart speeds within %.0f %%.\n",
          over_this, 100 * (kAlike - 1));
    }
    return PrintLead(as_it_is, together ? *in_step : fastest);
  }
  std::printf("\nRecommended:\n%s\n",
              possible.Command((together ? *in_step : fastest).strategy).c_str());
  if (together) {
    std::printf(
        "because strategies that do not wait are at most %.2f times as fast, and staleness may "
        "cost quality.\n",
        gain);
  } else if (first != nullptr) {
    std::printf(
        "because it is predicted to be %.2f times as fast as the fastest strategy with common "
        "steps, which is\n%s\n"
        "Staleness may cost quality; tandem compare measures how much.\n",
        gain, possible.Command(first->strategy).c_str());
  }
  PrintLead(as_it_is, together ? *in_step : fastest);
}

// Compares the estimate with the measured speed of the calibrating run. The model does not count
// the waits of processes that share the processors of one host. True if the difference is small.
bool CheckAgainstRun(const absl::optional<sim::Calibration>& live, const Estimate& as_it_is) {
  constexpr double kFar = 1.25;
  if (!live.has_value() || !live->one_host) return true;
  const double had = live->samples_per_second, says = as_it_is.samples_per_second;
  if (!live->same_job || had <= 0) {
    std::printf(
        "note: the processes of %s shared the processors of one host; speeds here are those of a "
        "cluster with a host for each\n",
        live->folder.c_str());
    return true;
  }
  if (says < kFar * had && had < kFar * says) return true;
  std::printf(
      "no speeds: %s had %s samples/s on one host, where the model says %s. Its processes shared "
      "processors, which the model does not count; hint: measure here with tandem compare\n",
      live->folder.c_str(), Whole(had).c_str(), Whole(says).c_str());
  return false;
}

absl::Status Plan(const PlanFlags& flags) {
  node::RoleFlags role;
  role.job = flags.job;
  role.set = flags.set;
  TANDEM_ASSIGN_OR_RETURN(job::ResolvedJob job, node::PlanOf(role));
  absl::optional<sim::Calibration> live;
  if (!flags.calibrate.empty()) {
    TANDEM_ASSIGN_OR_RETURN(live, sim::ReadCalibration(flags.calibrate, job));
  }
  TANDEM_ASSIGN_OR_RETURN(const Assumed assumed, AssumedBy(flags, job, live));
  if (job.job.data().format() != Data::PROGRAM) {
    // As in a new run, the statistics are those of the training rows, once these are checked.
    data::ClearMeasured(job.job.mutable_data());
    TANDEM_RETURN_IF_ERROR(data::CheckData(job));
    TANDEM_RETURN_IF_ERROR(data::FillFromData("", &job));
  }
  TANDEM_ASSIGN_OR_RETURN(const Facts facts, MeasureFacts(job, assumed));
  Possible possible(flags);
  TANDEM_RETURN_IF_ERROR(possible.Read());
  std::vector<Strategy> may;
  int refused = 0;
  std::string why;
  for (const Strategy& strategy : StrategiesOf(facts)) {
    if (const absl::Status status = possible.Check(strategy, facts.workers); status.ok()) {
      may.push_back(strategy);
    } else {
      ++refused;
      why = std::string(status.message());
    }
  }
  Pacer pacer(facts);
  const std::vector<Estimate> estimates = EstimateAll(facts, may, &pacer);
  const Estimate as_it_is =
      EstimateStrategy(facts, StrategyOf(job, /*colocate_servers=*/false), &pacer);
  PrintFacts(facts, as_it_is.compute_seconds, job.job.name());
  const bool speed = CheckAgainstRun(live, as_it_is);
  PrintTable(estimates, flags.all, speed);
  std::printf("current job:\n");
  PrintRow(as_it_is, speed);
  if (!estimates.empty() && speed) {
    PrintChoice(estimates, as_it_is, possible);
    const auto taken = [&possible](const Strategy& strategy, int workers) {
      return possible.Check(strategy, workers).ok();
    };
    for (const std::string& change : WhatWouldChange(facts, taken)) {
      std::printf("fastest %s\n", change.c_str());
    }
  }
  if (refused > 0) {
    std::printf("left out: %d strategies that the job refuses, for example: %s\n", refused,
                why.c_str());
  }
  for (const std::string& what : NotCounted(job)) {
    std::printf("not counted: %s\n", what.c_str());
  }
  for (const std::string& warning : Warnings(job, facts)) {
    std::printf("warning: %s\n", warning.c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void AddPlan(CLI::App* app, PlanFlags* flags) {
  CLI::App* plan = app->add_subcommand(
      "plan", "What a job would cost with other synchronisers, policies and placements");
  plan->add_option("job", flags->job, "Job file (protobuf text)")->required();
  node::AddSetFlag(plan, &flags->set);
  CLI::Option* const calibrate =
      plan->add_option("--calibrate", flags->calibrate,
                       "Folder of a live run: steps, frames and tables are as they were there")
          ->check(CLI::ExistingDirectory);
  plan->add_option("--step-seconds", flags->step_seconds,
                   "What a step computes, unless the job has fault_injection.slow_workers")
      ->capture_default_str()
      ->excludes(calibrate);
  plan->add_option("--latency-seconds", flags->latency_seconds, "From sending to receiving")
      ->capture_default_str()
      ->excludes(calibrate);
  plan->add_option("--bytes-per-second", flags->bytes_per_second,
                   "What each process can send, and receive; 0 = no limit")
      ->capture_default_str();
  plan->add_flag("--all", flags->all, "Every algorithm and number of servers, not the best alone");
}

int PlanCommand(const PlanFlags& flags) {
  const absl::Status done = Plan(flags);
  if (done.ok()) return node::kExitOk;
  node::Finish("tandem plan", done);
  return node::kExitBadInput;
}

}  // namespace tandem::plan
