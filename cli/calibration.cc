#include "cli/calibration.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace tandem::cli {
namespace {

using nlohmann::json;

absl::Status Unfit(const std::string& folder, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("--calibrate ", folder, ": ", why));
}

absl::StatusOr<json> ReadSummary(const std::string& folder) {
  const absl::StatusOr<std::string> text = ReadWholeFile(folder + "/summary.json");
  if (!text.ok()) {
    return Unfit(folder, "no summary.json; expected the --out of a tandem run that has ended");
  }
  json summary = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object() || !summary.value("by_worker", json()).is_array()) {
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

// A number of an object, 0 if it has none of that name.
double NumberOf(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

// Of all workers, or of one.
struct Steps {
  double steps = 0, computed = 0, samples = 0;
};

// What a step takes of a job with `batch` rows a step.
double StepSeconds(const Steps& of, int batch) {
  if (of.steps == 0 || of.samples == 0) return 0;
  // Last batches of an epoch are shorter: as many rows as a full one is the same batch.
  const double rows = of.samples / of.steps;
  const bool same = rows <= batch && rows > 0.8 * batch;
  return of.computed / of.steps * (same ? 1 : batch / rows);
}

std::string WhatDiffers(const json& summary, const job::JobPlan& plan) {
  const auto number = [&](const char* name) { return summary.value(name, int64_t{0}); };
  if (number("workers") != plan.workers()) return absl::StrCat(number("workers"), " workers");
  if (number("servers") != plan.server_processes()) return absl::StrCat(number("servers"), " servers");
  const json policies = summary.value("policy", json::object());
  for (const job::TablePlan& table : plan.tables) {
    const auto was = policies.find(table.name);
    if (was == policies.end() || !was->is_string()) continue;
    if (*was != job::PolicyName(plan.groups[table.group].policy)) {
      return absl::StrCat(table.name, " ", was->get<std::string>());
    }
  }
  return "";
}

}  // namespace

double TrainingSpeed(const json& summary) {
  const double trained = summary.value("seconds", 0.0) - summary.value("paused_seconds", 0.0);
  return trained > 0 ? summary.value("samples", 0.0) / trained : 0;
}

absl::StatusOr<Calibration> ReadCalibration(const std::string& folder, const job::JobPlan& plan) {
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
  if (all.steps == 0 || all.computed <= 0) {
    return Unfit(folder, "says nothing of how long steps computed; expected a run that trained");
  }
  const int batch = plan.job.train().batch();
  const bool one_to_one = each.size() == static_cast<size_t>(plan.workers());
  for (int rank = 0; rank < plan.workers(); ++rank) {
    const double own = one_to_one ? StepSeconds(each[static_cast<size_t>(rank)], batch) : 0;
    out.compute_seconds.push_back(own > 0 ? own : StepSeconds(all, batch));
  }
  if (shortest < std::numeric_limits<double>::infinity()) out.latency_seconds = shortest / 2;
  for (const auto& [name, table] : summary.value("tables", json::object()).items()) {
    if (table.is_object())
      out.tables[name] = {NumberOf(table, "rows"), NumberOf(table, "memory_bytes")};
  }
  out.samples_per_second = TrainingSpeed(summary);
  out.differs = WhatDiffers(summary, plan);
  return out;
}

}  // namespace tandem::cli
