#include "cli/run_model.h"

#include <algorithm>

#include "base/status_macros.h"
#include "cli/calibration.h"
#include "data/batch_source.h"
#include "data/statistics.h"
#include "node/role_flags.h"
#include "plan/estimate.h"
#include "plan/measure_facts.h"

namespace tandem::cli {
namespace {

constexpr int kMostWorkers = 1024;

// With as many workers as `workers`: one server stays one, of several there are as many more.
plan::Way WithWorkers(const plan::Way& way, int before, int workers) {
  plan::Way out = way;
  if (way.servers > 1) out.servers = std::max(1, way.servers * workers / before);
  return out;
}

double StepSeconds(const plan::Facts& facts, const plan::Way& way) {
  const double speed = plan::EstimateWay(facts, way).samples_per_second;
  return speed > 0 ? facts.workers * facts.batch / speed : 0;
}

}  // namespace

absl::StatusOr<nlohmann::json> ModelOfRun(const std::string& folder, const std::string& job,
                                          const study::Network& network,
                                          bool servers_beside_workers) {
  node::RoleFlags role;
  role.job = job;
  TANDEM_ASSIGN_OR_RETURN(job::JobPlan plan, node::PlanOf(role));
  plan.job.mutable_data()->clear_statistics();
  TANDEM_RETURN_IF_ERROR(data::FillFromData("", &plan));
  TANDEM_ASSIGN_OR_RETURN(const Calibration live, ReadCalibration(folder, plan));
  plan::Assumed assumed;
  assumed.compute_seconds = live.compute_seconds;
  assumed.latency_seconds = network.latency_seconds();
  assumed.bytes_per_second = network.bytes_per_second();
  TANDEM_ASSIGN_OR_RETURN(const plan::Facts facts, plan::MeasureFacts(plan, assumed));
  const plan::Way way = plan::WayOf(plan, servers_beside_workers);
  const double rows = static_cast<double>(facts.workers) * facts.batch;
  const double seconds = StepSeconds(facts, way);
  const plan::Estimate estimate = plan::EstimateWay(facts, way);
  nlohmann::json out = {{"step_rows", rows},
                        {"step_seconds", seconds},
                        {"speed", rows / std::max(seconds, 1e-9)},
                        {"compute_seconds", estimate.compute_seconds},
                        {"link_seconds", estimate.link_seconds},
                        {"wait_seconds", estimate.wait_seconds}};
  if (network.full_size() > 0) {
    plan::Facts full = facts;
    full.dense_parameters *= network.full_size();
    full.bytes_per_second *= network.full_size();
    out["full_step_seconds"] = StepSeconds(full, way);
  }
  nlohmann::json curve = nlohmann::json::array();
  for (int workers = 2; workers <= kMostWorkers; workers *= 2) {
    const plan::Facts more = plan::WithWorkers(facts, workers);
    const plan::Way at = WithWorkers(way, facts.workers, workers);
    const double step = StepSeconds(more, at);
    curve.push_back({{"workers", workers},
                     {"servers", at.uses_servers() ? at.servers : 0},
                     {"step_seconds", step},
                     {"speed", workers * facts.batch / std::max(step, 1e-9)}});
  }
  out["by_workers"] = curve;
  return out;
}

}  // namespace tandem::cli
