#include "tools/sim/command/calibration.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace tandem::sim {
namespace {

using nlohmann::json;

constexpr char kLimitedLinks[] = "limited links, which do not tell what a frame takes";
constexpr double kMaxThatIsOne = 1e18;  // largest valid number of seconds, steps, rows or bytes

absl::Status Unfit(const std::string& folder, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("--calibrate ", folder, ": ", why));
}

// A number of an object; 0 if it is missing or cannot be a time or a count.
double NumberOf(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number()) return 0;
  const auto number = found->get<double>();
  return number >= 0 && number < kMaxThatIsOne ? number : 0;
}

// A copy of the member `name`; an empty object if it is missing or no object.
json ObjectOf(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_object() ? *found : json::object();
}

absl::StatusOr<json> ReadSummary(const std::string& folder) {
  const absl::StatusOr<std::string> text = ReadWholeFile(folder + "/summary.json");
  if (!text.ok()) {
    return Unfit(folder, "no summary.json; expected the --out of a tandem run that has ended");
  }
  json summary = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object() || !summary.contains("by_worker") || !summary["by_worker"].is_array()) {
    return Unfit(folder, "summary.json is not one of a run");
  }
  if (summary.contains("simulated")) {
    return Unfit(folder, "is a simulated run; expected a live one, whose steps took real time");
  }
  if (summary.contains("failed")) {
    return Unfit(folder, "its run failed; expected one that ended well");
  }
  return summary;
}

// The placement of a table's rows in its entry of a summary; "servers" if the entry has none.
std::string SynchroniserOf(const json& table) {
  const auto found = table.find("placement");
  return found != table.end() && found->is_string() ? found->get<std::string>() : "servers";
}

// Counters of all workers, or of one worker.
struct Steps {
  double steps = 0, computed = 0, samples = 0;
};

// The share of one step with `batch` rows in a total of all steps.
double OfStep(double total, const Steps& of, int batch) {
  if (of.steps < 1 || of.samples < 1) return 0;
  // The last batch of an epoch is shorter, so a slightly smaller mean still means the same batch.
  const double rows = of.samples / of.steps;
  const bool same = rows <= batch && rows > 0.8 * batch;
  return total / of.steps * (same ? 1 : batch / rows);
}
double StepSeconds(const Steps& of, int batch) { return OfStep(of.computed, of, batch); }

// Dense replicas sum a gradient of floats. Dense parameters on servers are rows of their table,
// which each step pushes as well.
void ReadSizes(const json& summary, const Steps& all, int batch, Calibration* out) {
  const json tables = ObjectOf(summary, "tables");
  const json dense = ObjectOf(tables, job::kDenseTableName);
  const double on_servers = NumberOf(dense, "rows") * job::kDenseBlockFloats;
  out->dense_parameters =
      on_servers + NumberOf(ObjectOf(summary, "collectives"), "gradient_bytes") / sizeof(float);
  const double pushed = OfStep(NumberOf(ObjectOf(summary, "bytes"), "push"), all, batch);
  out->push_bytes = std::max(0.0, pushed - on_servers * sizeof(float));
  // Each worker pushes to all copies.
  const auto copied = [](const json& table) { return SynchroniserOf(table) == "replicated"; };
  if (std::any_of(tables.begin(), tables.end(), copied)) {
    out->push_bytes /= std::max(1.0, NumberOf(summary, "workers"));
  }
}

std::string WhatDiffers(const json& summary, const job::ResolvedJob& plan) {
  const auto workers = static_cast<int64_t>(NumberOf(summary, "workers"));
  const auto servers = static_cast<int64_t>(NumberOf(summary, "servers"));
  if (workers != plan.workers()) return absl::StrCat(workers, " workers");
  if (servers != plan.server_processes()) return absl::StrCat(servers, " servers");
  const json policies = ObjectOf(summary, "policy"), tables = ObjectOf(summary, "tables");
  for (const job::TablePlan& table : plan.tables) {
    const std::string was_on = SynchroniserOf(ObjectOf(tables, table.name.c_str()));
    if (was_on != absl::AsciiStrToLower(Table::Placement_Name(table.placement)) && !table.dense) {
      return absl::StrCat(table.name, " ", was_on);
    }
    const auto was = policies.find(table.name);
    if (was == policies.end() || !was->is_string()) continue;
    if (*was != job::PolicyName(plan.groups[table.group].policy)) {
      return absl::StrCat(table.name, " ", was->get<std::string>());
    }
  }
  // Their time and the steps that they took again are in the seconds of the run.
  if (summary.contains("restarts") || summary.contains("resumed")) return "restarts";
  return "";
}

// Whether the command was "tandem run JOB ...", with any folder in front of the program.
bool IsOfTandemRun(const json& summary) {
  const auto command = summary.find("command");
  if (command == summary.end() || !command->is_string()) return false;
  const std::vector<std::string> words =
      absl::StrSplit(command->get<std::string>(), ' ', absl::SkipEmpty());
  return words.size() > 1 && words[1] == "run";
}

}  // namespace

double TrainingSpeed(const json& summary) {
  const double trained = NumberOf(summary, "seconds") - NumberOf(summary, "paused_seconds") -
                         NumberOf(summary, "start_seconds");
  return trained > 0 ? NumberOf(summary, "samples") / trained : 0;
}

absl::StatusOr<Calibration> ReadCalibration(const std::string& folder,
                                            const job::ResolvedJob& plan) {
  TANDEM_ASSIGN_OR_RETURN(const json summary, ReadSummary(folder));
  Calibration out;
  out.folder = folder;
  Steps all;
  std::vector<Steps> each;
  double shortest = std::numeric_limits<double>::infinity();
  for (const json& worker : summary["by_worker"]) {
    if (!worker.is_object()) return Unfit(folder, "summary.json is not one of a run");
    const Steps one = {NumberOf(worker, "steps"), NumberOf(worker, "computed_seconds"),
                       NumberOf(worker, "samples")};
    each.push_back(one);
    all.steps += one.steps;
    all.computed += one.computed;
    all.samples += one.samples;
    const double read = NumberOf(worker, "shortest_read_seconds");
    if (read > 0) shortest = std::min(shortest, read);
  }
  if (all.steps < 1 || all.samples < 1 || all.computed <= 0) {
    return Unfit(folder, "says nothing of how long steps computed; expected a run that trained");
  }
  const int batch = plan.job.train().batch_size();
  const bool one_to_one = each.size() == static_cast<size_t>(plan.workers());
  for (int rank = 0; rank < plan.workers(); ++rank) {
    const double own = one_to_one ? StepSeconds(each[static_cast<size_t>(rank)], batch) : 0;
    out.compute_seconds.push_back(own > 0 ? own : StepSeconds(all, batch));
  }
  const json tables = ObjectOf(summary, "tables");
  bool alone = !tables.empty();  // each worker reads its own copies, so no frame shows the latency
  for (const auto& [name, table] : tables.items()) {
    if (!table.is_object()) continue;
    const bool copies = SynchroniserOf(table) == "replicated";
    alone = alone && copies;
    out.tables[name] = {
        NumberOf(table, "rows"),
        NumberOf(table, "memory_bytes") / (copies ? std::max<size_t>(1, each.size()) : 1)};
  }
  if (summary.contains("network")) out.untold = kLimitedLinks;
  if (!alone && out.untold.empty() && shortest < std::numeric_limits<double>::infinity()) {
    out.latency_seconds = shortest / 2;
  }
  ReadSizes(summary, all, plan.job.train().batch_size(), &out);
  out.samples_per_second = TrainingSpeed(summary);
  // same_job is set before `untold` is added: an unknown latency does not make it another job.
  out.differs = WhatDiffers(summary, plan);
  out.same_job = out.differs.empty();
  out.one_host = IsOfTandemRun(summary) && !summary.contains("network");
  const bool both = !out.differs.empty() && !out.untold.empty();
  absl::StrAppend(&out.differs, both ? " and " : "", out.untold);
  return out;
}

}  // namespace tandem::sim
