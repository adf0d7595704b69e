#include "tools/plan/pace.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "job/job.h"
#include "policies/policy.h"
#include "tools/sim/timing.h"

namespace tandem::plan {
namespace {

// Least time of a run; avoids a division by zero if nothing takes time.
constexpr double kMinSeconds = 1e-9;
constexpr double kMaxTicks = 5e17;  // of a run; sim::Timing ends at 2.3e18

// A job that waits as `waits` says: one table on servers, and dense replicas if there are sums.
job::ResolvedJob JobOf(int workers, const Waits& waits, double ticks_a_second) {
  job::ResolvedJob plan;
  plan.job.mutable_cluster()->set_workers(workers);
  plan.job.mutable_cluster()->set_servers(1);
  plan.job.mutable_train()->set_batch_size(1);
  plan.job.mutable_train()->set_max_inflight_pushes(1);
  Dense& dense = *plan.job.mutable_dense();
  const bool rounds = waits.every > 1 || (waits.quorum.has_value() && waits.quorum->count > 0);
  dense.set_synchroniser(waits.every == 0 ? Dense::SERVERS
                         : rounds         ? Dense::LOCAL_SGD
                                          : Dense::ALLREDUCE);
  dense.mutable_local_steps()->set_sync_every(std::max(1, waits.every));
  if (waits.quorum.has_value()) {
    dense.set_quorum(waits.quorum->quorum);
    dense.set_quorum_bound(static_cast<int>(waits.quorum->bound));
    dense.mutable_local_steps()->set_quorum(std::min(waits.quorum->count, workers));
    dense.mutable_local_steps()->set_grace_seconds(absl::ToDoubleSeconds(waits.quorum->grace) *
                                                   ticks_a_second / sim::kTicksPerSecond);
  }
  job::GroupPlan& group = plan.groups.emplace_back();
  group.policy.set_kind(!waits.bound.has_value() ? Policy::ASP
                        : *waits.bound == 0      ? Policy::BSP
                                                 : Policy::SSP);
  if (waits.bound.value_or(0) > 0) group.policy.set_bound(*waits.bound);
  const auto policy = policies::NewUpdatePolicy(group.policy, workers);
  TANDEM_CHECK(policy.ok());
  group.properties = (*policy)->properties();
  group.tables = {0};
  plan.tables.emplace_back();
  if (waits.every == 0) plan.dense_table = 0;
  plan.lockstep = !waits.quorum.has_value() && (waits.bound == 0 || waits.every == 1);
  return plan;
}

}  // namespace

Pacer::Pacer(const Facts& facts) : facts_(facts) {
  constexpr double kGrain = 1e-3;  // of a mean step; limits the error of a pace
  double sum = 0, count = 0;
  for (const std::vector<double>& of : facts.step_seconds) {
    sum = std::accumulate(of.begin(), of.end(), sum);
    count += static_cast<double>(of.size());
  }
  if (count > 0) grain_ = kGrain * sum / count;
}

Pacer::Run Pacer::RunJob(const Waits& waits, double rest, double sum_seconds) const {
  const auto workers = static_cast<int>(facts_.step_seconds.size());
  const auto steps = static_cast<int64_t>(facts_.step_seconds[0].size());
  double longest = 0;
  for (const std::vector<double>& of : facts_.step_seconds) {
    longest = std::max(longest, *std::max_element(of.begin(), of.end()));
  }
  // The unit of time is as small as the run allows, so that rounding is negligible.
  const double most = static_cast<double>(steps) * (longest + rest + sum_seconds);
  const double unit = kMaxTicks / std::max(most, kMinSeconds);
  sim::TimingOptions options;
  options.steps = steps;
  options.latency = absl::ZeroDuration();
  options.sum_ticks = std::llround(sum_seconds * unit);
  for (const std::vector<double>& of : facts_.step_seconds) {
    std::vector<sim::Ticks>& ticks = options.step_ticks.emplace_back();
    for (const double seconds : of) ticks.push_back(std::llround((seconds + rest) * unit));
  }
  const job::ResolvedJob plan = JobOf(workers, waits, unit);
  const auto timing = sim::Timing::New(plan, options);
  TANDEM_CHECK(timing.ok() && (*timing)->Run().ok());
  Run run;
  for (const sim::Ticks end : (*timing)->ended()) {
    run.ended.push_back(static_cast<double>(end) / unit);
  }
  run.steps = static_cast<double>(steps);
  run.sums = static_cast<double>((*timing)->sums());
  return run;
}

Pace Pacer::Of(const Waits& waits, double rest, double sum_seconds) {
  if (facts_.step_seconds.empty() || facts_.step_seconds[0].empty()) return {};
  // Workers that wait for all others, or for none, take the rest of each step in addition to the
  // same run without it. With a bound this is nearly true, so rests that differ little share a run.
  const bool adds = !waits.quorum.has_value() && waits.bound.value_or(0) == 0;
  double counted = adds ? 0 : rest;
  if (!waits.quorum.has_value() && grain_ > 0) counted = std::floor(counted / grain_) * grain_;
  Run once;
  Run* run = &once;
  if (!waits.quorum.has_value()) run = &runs_[{waits.bound.value_or(-1), waits.every, counted}];
  if (run->ended.empty()) *run = RunJob(waits, counted, sum_seconds);
  // Workers that wait for each other take as many steps as the slowest, sooner or later. Workers
  // that do not wait each have a pace of their own.
  const bool alone = !waits.bound.has_value() && waits.every == 0;
  const double last = *std::max_element(run->ended.begin(), run->ended.end());
  Pace pace;
  for (const double end : run->ended) {
    const double took = (alone ? end : last) + run->steps * (rest - counted);
    pace.steps_per_second += run->steps / std::max(took, kMinSeconds);
  }
  pace.sums = run->sums / run->steps;
  return pace;
}

}  // namespace tandem::plan
