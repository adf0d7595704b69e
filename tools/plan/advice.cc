#include "tools/plan/advice.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "job/job_budget.h"
#include "policies/properties.h"
#include "tools/plan/pace.h"

namespace tandem::plan {
namespace {

constexpr double kMuchSlower = 1.5;  // than the others: a permanent straggler
constexpr double kLittleGain = 1.1;

double MeanOf(const std::vector<double>& steps) {
  return steps.empty()
             ? 0
             : std::accumulate(steps.begin(), steps.end(), 0.0) / static_cast<double>(steps.size());
}

// The worker with the longest mean step, and its mean divided by the mean of the others.
struct Straggler {
  size_t rank = 0;
  double factor = 1;
};
Straggler SlowestOf(const Facts& facts) {
  Straggler out;
  double most = 0, sum = 0;
  for (size_t rank = 0; rank < facts.step_seconds.size(); ++rank) {
    const double mean = MeanOf(facts.step_seconds[rank]);
    sum += mean;
    if (mean <= most) continue;
    most = mean;
    out.rank = rank;
  }
  const double others = (sum - most) / std::max(1.0, facts.workers - 1.0);
  if (others > 0) out.factor = most / others;
  return out;
}

double InStep(const Facts& facts) { return PaceOf(facts, {}, 0).steps_per_second; }

// Steps a second if each step needs only its first `needed` workers, and the others stop at once.
double WithBackups(const Facts& facts, int backups) {
  const size_t workers = facts.step_seconds.size();
  const size_t steps = workers == 0 ? 0 : facts.step_seconds[0].size();
  const size_t needed = workers - static_cast<size_t>(backups);
  double seconds = 0;
  for (size_t k = 0; k < steps; ++k) {
    std::vector<double> took;
    for (const std::vector<double>& of : facts.step_seconds) took.push_back(of[k]);
    std::nth_element(took.begin(), took.begin() + static_cast<std::ptrdiff_t>(needed) - 1,
                     took.end());
    seconds += took[needed - 1];
  }
  return seconds > 0 ? static_cast<double>(needed * steps) / seconds : 0;
}

// On average a gradient is workers - 1 updates old. The gradient of a slow worker is older.
void WarnOfCutoff(const std::string& name, const Policy& policy, int workers,
                  std::vector<std::string>* out) {
  if (policy.kind() != Policy::COSINE_GATE || policy.age_cutoff() > workers - 1) return;
  out->push_back(absl::StrFormat(
      "%s %s: gradients are %d updates old on average, so an age_cutoff of %d drops most of them; "
      "to drop only those of stragglers, set age_cutoff to a few times the number of workers (%d)",
      name, job::PolicyName(policy), workers - 1, policy.age_cutoff(), workers));
}

// Steps a second if only computing takes time, and all policies have this bound. Workers still wait
// for each other in an allreduce, in sync rounds and because of tables on workers.
double WithBound(const job::ResolvedJob& plan, const Facts& facts, absl::optional<int> bound) {
  Facts steps = facts;
  steps.latency_seconds = steps.bytes_per_second = 0;
  Strategy strategy = StrategyOf(plan, /*colocate_servers=*/false);
  strategy.bound = bound;
  return EstimateStrategy(steps, strategy).samples_per_second / facts.batch;
}

// With a permanent straggler the other workers sooner or later always wait at the bound.
void WarnOfStraggler(const std::string& name, const Policy& policy, const job::ResolvedJob& plan,
                     const Facts& facts, std::vector<std::string>* out) {
  const bool bounded = policy.kind() == Policy::SSP || policy.kind() == Policy::ESSP ||
                       policy.kind() == Policy::DSSP;
  const Straggler slow = SlowestOf(facts);
  if (!bounded || facts.workers == 1 || slow.factor < kMuchSlower) return;
  const int bound = policy.kind() == Policy::DSSP ? policy.upper_bound() : policy.bound();
  const double in_step = InStep(facts);
  const double any = WithBound(plan, facts, absl::nullopt) / in_step;
  const double on_servers = PaceOf(facts, {.bound = absl::nullopt}, 0).steps_per_second / in_step;
  const std::string other = plan.dense_table < 0
                                ? absl::StrCat("dense ", job::DenseName(plan.job.dense()))
                                : "tables on workers";
  out->push_back(absl::StrCat(
      absl::StrFormat(
          "%s %s: worker %d takes %.1f times as long as the others, and no bound helps against "
          "that: the job takes %.2f times as many steps a second as under BSP; ",
          name, job::PolicyName(policy), slow.rank, slow.factor,
          WithBound(plan, facts, bound) / in_step),
      any < kLittleGain
          ? absl::StrFormat(
                "under ASP %.2f times as many, because workers also wait for each other at %s; "
                "under ASP with everything on servers %.2f times as many",
                any, other, on_servers)
          : absl::StrFormat("under ASP %.2f times as many", any)));
}

void WarnOfBackups(const std::string& name, const Policy& policy, const Facts& facts,
                   std::vector<std::string>* out) {
  if (policy.kind() != Policy::BACKUP_WORKERS || policy.backups() == 0) return;
  const double gain = WithBackups(facts, policy.backups()) / InStep(facts);
  if (gain >= kLittleGain) return;
  out->push_back(
      absl::StrFormat("%s %s: no worker is slow: the policy drops %d of %d updates of each step, "
                      "and applies at most %.2f times as many updates a second as BSP",
                      name, job::PolicyName(policy), policy.backups(), facts.workers, gain));
}

// The age of an update when it is applied, in updates; 0: no delay.
double DelayOf(const Policy& policy, int workers) {
  const bool scaled = policy.async_scale() == Policy::INVERSE_WORKERS;
  switch (policy.kind()) {
    case Policy::FIXED_DELAY:
      return policy.delay();
    case Policy::ASP:
    case Policy::SSP:
    case Policy::ESSP:
    case Policy::DSSP:
    case Policy::DC_ASGD:  // its compensation is not counted
    case Policy::ORDERED_MOMENTUM:
    case Policy::SYNC_SWITCH:  // after its switch
      // N - 1 on average, whatever the times of steps are. Without a scale, applied at full size.
      return scaled ? 0 : workers - 1;
    case Policy::RINGMASTER:  // older ones are dropped
      return scaled ? 0 : std::min(workers, policy.max_delay()) - 1;
    case Policy::DELAY_ADAPTIVE:  // older ones have a smaller rate
      return scaled ? 0 : std::min(workers - 1, policy.full_rate_delay());
    case Policy::K_BATCH_ASYNC:
    case Policy::GBA:  // `batches` gradients are one update
      return static_cast<double>(workers - 1) / std::max(1, policy.batches());
    default:
      return 0;
  }
}

// A delay harms parameters that every sample updates. Few samples update an embedding, so a delay
// does not harm tables.
void WarnOfDelay(const job::ResolvedJob& plan, std::vector<std::string>* out) {
  if (plan.dense_table < 0) return;
  const Policy& policy =
      plan.groups[plan.tables[static_cast<size_t>(plan.dense_table)].group].policy;
  const double delay = DelayOf(policy, plan.workers());
  if (delay < 1) return;
  const Optimizer& optimizer = plan.job.dense().optimizer();
  out->push_back(absl::StrFormat(
      "dense %s: its updates are applied %.3g updates late, so plain SGD is stable only up to %.3g "
      "of the learning rate that is stable without delay%s%s (docs/POLICIES.md); "
      "dense.synchroniser ALLREDUCE has no delay",
      job::PolicyName(policy), delay, StableShare(delay),
      optimizer.kind() == Optimizer::MOMENTUM ? ", and with momentum much less" : "",
      optimizer.error_feedback() > 0 ? ", and with error_feedback less still" : ""));
}

std::string NameOf(const Strategy& strategy) {
  return absl::StrCat("tables ", strategy.tables_name(), "; dense ", strategy.dense_name());
}

// Tables with AT_BUDGET do not count, because they evict rows instead.
void WarnOfMemory(const job::ResolvedJob& plan, const Facts& facts, std::vector<std::string>* out) {
  const auto limit = static_cast<double>(plan.job.cluster().memory_per_server());
  if (limit == 0 || plan.server_processes() == 0) return;
  double bytes = static_cast<double>(job::MinServerBytes(plan));
  for (size_t i = 0; i < facts.tables.size(); ++i) {
    const TableFacts& table = facts.tables[i];
    if (table.place != Table::SERVERS || plan.tables[i].eviction.kind() == Eviction::AT_BUDGET) {
      continue;
    }
    bytes += table.rows * table.bytes_a_row / plan.server_processes();
  }
  const auto kept = static_cast<double>(
      job::ReserveOf(plan, static_cast<int64_t>(limit), /*saves=*/true).total());
  if (bytes + kept <= limit) return;
  out->push_back(absl::StrFormat(
      "cluster.memory_per_server allows %.0f bytes, and a server needs %.0f for rows and held "
      "updates, and %.0f for a last checkpoint: the job will fill this memory and end early; "
      "hint: %s",
      limit, bytes, kept, job::kWaysToFit));
}

}  // namespace

double StableShare(double delay) {
  constexpr double kPi = 3.14159265358979323846;
  return std::sin(kPi / (2 * (2 * delay + 1)));
}

std::vector<std::string> Warnings(const job::ResolvedJob& plan, const Facts& facts) {
  std::vector<std::string> out;
  WarnOfMemory(plan, facts, &out);
  for (const job::TablePlan& table : plan.tables) {
    const Policy& policy = plan.groups[table.group].policy;
    WarnOfStraggler(table.name, policy, plan, facts, &out);
    WarnOfBackups(table.name, policy, facts, &out);
    WarnOfCutoff(table.name, policy, plan.workers(), &out);
  }
  WarnOfDelay(plan, &out);
  return out;
}

std::vector<std::string> NotCounted(const job::ResolvedJob& plan) {
  std::vector<std::string> out;
  for (const job::TablePlan& table : plan.tables) {
    if (table.store) continue;
    const job::GroupPlan& group = plan.groups[table.group];
    const std::string what = absl::StrCat(table.name, " ", job::PolicyName(group.policy), ": ");
    const policies::Properties& is = group.properties;
    if (is.switch_step > 0) {
      out.push_back(absl::StrCat(what, "the figures are for the steps after step ", is.switch_step,
                                 "; before it, all workers wait for each other as under BSP"));
    }
    if (is.skips) {
      out.push_back(absl::StrCat(
          what, "counted as ASP; in fact each step waits for all workers except the backups"));
    }
    if (is.drops) {
      out.push_back(absl::StrCat(what,
                                 "updates that come too late are dropped, so the model learns from "
                                 "fewer samples a second than the figures say"));
    }
    if (is.keeps_rows) {
      out.push_back(absl::StrCat(
          what,
          "counted as SSP, without the rows that servers send again and the pulls that these "
          "save"));
    }
    if (is.measures_steps) {
      out.push_back(absl::StrCat(what, "counted as SSP(", is.clock_bound,
                                 "), the loosest bound that the policy may choose"));
    }
  }
  const Dense& dense = plan.job.dense();
  if (plan.dense_table >= 0 || plan.workers() == 1) return out;
  const bool gathers = dense.codec().kind() == Codec::TOP_K || dense.codec().kind() == Codec::SIGN;
  // With these codecs all gradients go to all workers, whatever the algorithm.
  if (!gathers && !IsModelled(dense.algorithm())) {
    out.push_back(absl::StrCat("dense.algorithm ", Dense::Algorithm_Name(dense.algorithm()),
                               ": counted as a ring"));
  }
  if (dense.codec().kind() == Codec::POWER_SGD) {
    out.push_back("dense.codec POWER_SGD: counted as sending whole gradients, which are larger");
  }
  if (dense.bucket_bytes() > 0) {
    out.push_back(
        "dense.bucket_bytes: the allreduce overlaps the backward pass, which may make a step "
        "shorter by at most its computing time");
  }
  if (dense.local_steps().warmup_steps() > 0) {
    out.push_back(absl::StrCat("dense.local_steps: the figures are for step ",
                               dense.local_steps().warmup_steps(),
                               " and later; before it, every step has an allreduce"));
  }
  return out;
}

std::vector<std::string> WhatWouldChange(
    const Facts& facts, const std::function<bool(const Strategy&, int workers)>& may) {
  std::vector<std::string> out;
  const auto strategies_of = [&](const Facts& of) {
    std::vector<Strategy> strategies = StrategiesOf(of);
    const auto refused = [&](const Strategy& strategy) { return !may(strategy, of.workers); };
    strategies.erase(std::remove_if(strategies.begin(), strategies.end(), refused),
                     strategies.end());
    return strategies;
  };
  const std::vector<Strategy> candidates = strategies_of(facts);
  if (candidates.empty()) return out;
  Pacer at_now(facts);  // step times do not depend on links
  const Strategy best = EstimateAll(facts, candidates, &at_now).front().strategy;
  const auto changes = [&](const Facts& other, const std::string& when, Pacer* pacer) {
    const std::vector<Strategy> then = strategies_of(other);
    if (then.empty()) return false;
    const Estimate first = EstimateAll(other, then, pacer).front();
    const double before =
        may(best, other.workers) ? EstimateStrategy(other, best, pacer).samples_per_second : 0;
    if (first.samples_per_second < kAlike * before) return false;
    out.push_back(absl::StrCat(when, ": ", NameOf(first.strategy)));
    return true;
  };
  constexpr double kFastest = 1e11, kSlowest = 1e6;  // bytes a second
  const double now = facts.bytes_per_second > 0 ? facts.bytes_per_second : kFastest;
  Facts other = facts;
  for (double rate = now / 2; rate >= kSlowest; rate /= 2) {
    other.bytes_per_second = rate;
    if (changes(other, absl::StrFormat("with links of %.3g bytes a second", rate), &at_now)) break;
  }
  for (double rate = now * 2; rate <= kFastest; rate *= 2) {
    other.bytes_per_second = rate;
    if (changes(other, absl::StrFormat("with links of %.3g bytes a second", rate), &at_now)) break;
  }
  constexpr int kMaxWorkers = 256;
  for (int workers = facts.workers * 2; workers <= kMaxWorkers; workers *= 2) {
    const Facts more = WithWorkers(facts, workers);
    Pacer of_more(more);
    if (changes(more, absl::StrFormat("with %d workers", workers), &of_more)) break;
  }
  return out;
}

}  // namespace tandem::plan
