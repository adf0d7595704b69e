#include "tools/study/run_model.h"

#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "data/batch_source.h"
#include "data/row_data.h"
#include "data/statistics.h"
#include "node/role_flags.h"
#include "scheduler/observe/summary.h"
#include "tools/plan/advice.h"
#include "tools/plan/estimate.h"
#include "tools/plan/measure_facts.h"
#include "tools/sim/command/calibration.h"
#include "tools/study/run_record.h"

namespace tandem::study {
namespace {

using nlohmann::json;

constexpr int kMaxWorkers = 1024;

// The strategy for `workers` workers. One server stays one; more servers grow with the workers.
plan::Strategy WithWorkers(const plan::Strategy& strategy, int before, int workers) {
  plan::Strategy out = strategy;
  if (strategy.servers > 1) out.servers = std::max(1, strategy.servers * workers / before);
  return out;
}

double StepSeconds(const plan::Facts& facts, const plan::Strategy& strategy) {
  const double speed = plan::EstimateStrategy(facts, strategy).samples_per_second;
  return speed > 0 ? facts.workers * facts.batch / speed : 0;
}

// The inputs of the model other than the run. Link rate and placement belong to the run.
json AssumedOf(const study::Network& network, const std::string& build) {
  return {{"latency_seconds", network.latency_seconds()},
          {"full_size", network.full_size()},
          {"build", build}};
}

absl::StatusOr<json> ModelOfRun(const std::string& folder, const study::Network& network,
                                bool colocate_servers) {
  node::RoleFlags role;
  role.job = study::RunJobFile(folder);
  TANDEM_ASSIGN_OR_RETURN(job::ResolvedJob plan, node::PlanOf(role));
  // As in a new run, the statistics are those of the training rows.
  if (plan.job.data().format() != Data::PROGRAM) {
    data::ClearMeasured(plan.job.mutable_data());
    TANDEM_RETURN_IF_ERROR(data::FillFromData("", &plan));
  }
  TANDEM_ASSIGN_OR_RETURN(const sim::Calibration live, sim::ReadCalibration(folder, plan));
  plan::Assumed assumed;
  assumed.compute_seconds = live.compute_seconds;
  assumed.latency_seconds = network.latency_seconds();
  assumed.bytes_per_second = network.bytes_per_second();
  assumed.dense_parameters = live.dense_parameters;
  assumed.push_bytes = live.push_bytes;
  TANDEM_ASSIGN_OR_RETURN(const plan::Facts facts, plan::MeasureFacts(plan, assumed));
  const plan::Strategy strategy = plan::StrategyOf(plan, colocate_servers);
  const double rows = static_cast<double>(facts.workers) * facts.batch;
  const double seconds = StepSeconds(facts, strategy);
  const plan::Estimate estimate = plan::EstimateStrategy(facts, strategy);
  json out = {{"step_rows", rows},
              {"step_seconds", seconds},
              {"speed", rows / std::max(seconds, 1e-9)},
              {"compute_seconds", estimate.compute_seconds},
              {"link_seconds", estimate.link_seconds},
              {"wait_seconds", estimate.wait_seconds},
              {"at_once_seconds", estimate.at_once_seconds},
              {"one_way_seconds", estimate.one_way_seconds},
              {"not_counted", plan::NotCounted(plan)}};
  if (network.full_size() > 0) {
    out["full_step_seconds"] = StepSeconds(plan::WithSize(facts, network.full_size()), strategy);
  }
  json curve = json::array();
  for (int workers = 2; workers <= kMaxWorkers; workers *= 2) {
    const plan::Facts more = plan::WithWorkers(facts, workers);
    const plan::Strategy at = WithWorkers(strategy, facts.workers, workers);
    const double step = StepSeconds(more, at);
    curve.push_back({{"workers", workers},
                     {"servers", at.uses_servers() ? at.servers : 0},
                     {"step_seconds", step},
                     {"speed", workers * facts.batch / std::max(step, 1e-9)}});
  }
  out["by_workers"] = curve;
  return out;
}

}  // namespace

absl::Status WriteModelOfRun(const std::string& folder, const study::Network& network,
                             bool colocate_servers, const std::string& build) {
  const std::string path = study::ModelFile(folder);
  const json assumed = AssumedOf(network, build);
  if (const auto text = ReadWholeFile(path); text.ok()) {
    const json before = json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (before.is_object() && before.value("assumed", json()) == assumed) return absl::OkStatus();
  }
  std::error_code gone;
  std::filesystem::remove(path, gone);  // an old model with other assumptions
  TANDEM_ASSIGN_OR_RETURN(json model, ModelOfRun(folder, network, colocate_servers));
  model["assumed"] = assumed;
  return WriteFileAtomically(path, scheduler::PrettyPrint(model));
}

}  // namespace tandem::study
