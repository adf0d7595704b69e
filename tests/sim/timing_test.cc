// The times of a job without its arithmetic are those of the job with it: update by update, under
// every policy, beside a simulated cluster whose shards, workers and frames are those that run in
// production. And they are what theory says, for a few workers and for ten thousand.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "data/service_trace.h"
#include "gtest/gtest.h"
#include "job/timing_plan.h"
#include "tests/sim/sim_job.h"
#include "tests/sim/straggler_rows.h"
#include "tests/test_seed.h"
#include "tests/unit/data/data_fixture.h"
#include "tools/plan/estimate.h"
#include "tools/plan/pace.h"
#include "tools/sim/timing.h"

namespace tandem {
namespace {

// No two steps end at the same moment, or who comes first would be a matter of taste.
constexpr char kSpread[] =
    "slow_workers { distribution: LOGNORMAL mean_seconds: 0.01 sigma: 0.1 slow_share: 0.05 "
    "slow_factor: 5 } ";
constexpr absl::Duration kLatency = absl::Microseconds(100);

// Of one update: all that a record says of it that does not depend on when the run began.
struct Seen {
  int64_t version_read = 0, version_applied = 0;
  int fate = 0, clock_gap = 0, in_flight = 0;
  uint64_t samples = 0;
  friend bool operator==(const Seen&, const Seen&) = default;
};
std::ostream& operator<<(std::ostream& out, const Seen& s) {
  return out << "read " << s.version_read << " applied " << s.version_applied << " fate " << s.fate
             << " gap " << s.clock_gap << " in flight " << s.in_flight << " samples " << s.samples;
}
using Updates = std::map<std::pair<int, int64_t>, Seen>;  // by worker and step

struct Outcome {
  Updates updates;
  scheduler::JobReport report;
};

// Rows of one range, on a network that only delays.
Outcome WithRows(const SimJob& job, int steps) {
  CheckedWorldOptions options = EvenWorld(job, steps, TestSeed());
  options.service_seed = TestSeed();
  options.model.full_batches = true;
  options.model.keys_per_batch = 1;
  options.model.dense = job.workers + 1;
  options.network.delay = kLatency;
  options.network.jitter = absl::ZeroDuration();
  options.control_jitter = false;  // all begin at the same moment
  options.view_delay = options.fetch = absl::ZeroDuration();
  options.frame_bytes = 1 << 20;
  options.evaluate = options.explain = false;
  options.limit = absl::Hours(10);
  SimRun run(job, options);
  Outcome outcome;
  if (!run.ok()) return outcome;
  for (const server::UpdateRecord& r : run.world->records()) {
    if (r.table != 0) continue;
    outcome.updates[{r.worker, r.step}] = {r.version_read, r.version_applied, r.fate,
                                           r.clock_gap,    r.in_flight,       r.samples};
  }
  outcome.report = run.world->report();
  return outcome;
}

sim::TimingOptions TimesOf(int64_t steps) {
  sim::TimingOptions options;
  options.service_seed = TestSeed();
  options.steps = steps;
  options.latency = kLatency;
  return options;
}

// Runs it to its end.
std::unique_ptr<sim::Timing> Timed(const job::ResolvedJob& plan,
                                   const sim::TimingOptions& options) {
  absl::StatusOr<std::unique_ptr<sim::Timing>> timing = sim::Timing::New(plan, options);
  EXPECT_TRUE(timing.ok()) << timing.status();
  if (!timing.ok()) return nullptr;
  const absl::Status run = (*timing)->Run();
  EXPECT_TRUE(run.ok()) << run;
  return *std::move(timing);
}

Outcome WithoutRows(const SimJob& job, int steps) {
  const job::ResolvedJob plan = job.Plan();
  Outcome outcome;
  sim::TimingOptions options = TimesOf(steps);
  options.on_update = [&](uint32_t group, const sim::TimedFate& fate) {
    if (group != plan.tables[0].group) return;
    const sim::TimedUpdate& u = fate.update;
    outcome.updates[{u.rank, u.step}] = {u.read.version, fate.version_applied, fate.fate,
                                         u.clock_gap,    u.in_flight,          u.samples};
  };
  const std::unique_ptr<sim::Timing> timing = Timed(plan, options);
  if (timing != nullptr) outcome.report = timing->Report();
  return outcome;
}

SimJob OneRange(const std::string& policy, const std::string& slow_workers, int workers = 5) {
  SimJob job;
  job.workers = workers;
  job.servers = job.ranges_per_shard = 1;
  job.second_table = false;
  job.dense_on_servers = true;
  job.policy = policy;
  job.slow_workers = slow_workers;
  return job;
}

void ExpectSameMeasure(const Distribution& a, const Distribution& b, const std::string& what) {
  EXPECT_EQ(a.count(), b.count()) << what;
  EXPECT_EQ(a.sum(), b.sum()) << what;
  EXPECT_EQ(a.max(), b.max()) << what;
  EXPECT_EQ(a.first_bucket(), b.first_bucket()) << what;
  EXPECT_EQ(std::vector<uint64_t>(a.bucket().begin(), a.bucket().end()),
            std::vector<uint64_t>(b.bucket().begin(), b.bucket().end()))
      << what;
}

void ExpectSame(const SimJob& job, int steps) {
  SCOPED_TRACE(absl::StrCat(job.Text()));
  const Outcome with = WithRows(job, steps), without = WithoutRows(job, steps);
  const size_t all = static_cast<size_t>(job.workers * steps);
  if (job.max_steps == 0) {
    EXPECT_EQ(with.updates.size(), all);
  } else {  // a worker that came too late leaves steps out
    EXPECT_LT(with.updates.size(), all);
    EXPECT_GT(with.updates.size(), all / 2);
  }
  ASSERT_EQ(with.updates.size(), without.updates.size());
  for (const auto& [update, seen] : with.updates) {
    ASSERT_EQ(without.updates.at(update), seen)
        << "worker " << update.first << " step " << update.second;
  }
  const TableReport& a = with.report.tables[0];
  const TableReport& b = without.report.tables[0];
  EXPECT_EQ(a.sent(), b.sent());
  EXPECT_EQ(a.applied(), b.applied());
  EXPECT_EQ(a.merged(), b.merged());
  EXPECT_EQ(a.dropped(), b.dropped());
  EXPECT_EQ(a.samples().sent(), b.samples().sent());
  EXPECT_NEAR(a.samples().applied(), b.samples().applied(), 1e-6);
  ASSERT_EQ(a.worker_size(), b.worker_size());
  for (int rank = 0; rank < a.worker_size(); ++rank) {
    EXPECT_EQ(a.worker(rank).samples().sent(), b.worker(rank).samples().sent());
    EXPECT_NEAR(a.worker(rank).samples().applied(), b.worker(rank).samples().applied(), 1e-6);
  }
  ExpectSameMeasure(a.version_staleness(), b.version_staleness(), "version staleness");
  ExpectSameMeasure(a.clock_gap(), b.clock_gap(), "clock gap");
  ExpectSameMeasure(a.in_flight_depth(), b.in_flight_depth(), "in flight");
  EXPECT_EQ(with.report.samples_of, without.report.samples_of);
  EXPECT_EQ(with.report.trained_steps, without.report.trained_steps);
  EXPECT_EQ(with.report.max_step, without.report.max_step);
  EXPECT_NEAR(without.report.seconds / with.report.seconds, 1, 0.02)
      << "its end meets a few times more";
  for (size_t rank = 0; rank < with.report.waiting.size(); ++rank) {
    EXPECT_NEAR(with.report.times_of[rank].computed, without.report.times_of[rank].computed, 1e-6);
    for (size_t by = 0; by < with.report.waiting.size(); ++by) {
      EXPECT_NEAR(with.report.waiting[rank][by], without.report.waiting[rank][by], 1e-3)
          << rank << " waited for " << by;
    }
  }
}

// A trace of such step times.
std::string WholeMicroseconds(const TempDir& folder, const std::string& slow_workers) {
  const job::ResolvedJob plan = OneRange("kind: BSP", slow_workers).Plan();
  const job::StepTimes times = *data::OpenStepTimes(plan, TestSeed(), 0);
  std::string text;
  for (int64_t step = 0; step < 5 * 300; ++step) {
    absl::StrAppendFormat(&text, "%.6f\n", absl::ToDoubleSeconds(times.Of(step)));
  }
  return absl::StrCat("slow_workers { distribution: TRACE trace: \"", folder.Write("trace", text),
                      "\" } ");
}

std::vector<std::string> EveryPolicy() {
  return {"kind: BSP",
          "kind: FIXED_DELAY delay: 3",
          "kind: SSP bound: 2",
          "kind: ASP",
          "kind: STALENESS_AWARE",
          "kind: DC_ASGD compensation: 0.1",
          "kind: BACKUP_WORKERS backups: 2",
          "kind: K_BATCH_ASYNC batches: 3",
          "kind: GBA token_gap: 1",
          "kind: DSSP bound: 2 upper_bound: 6",
          "kind: SYNC_SWITCH switch_step: 40",
          "kind: COSINE_GATE age_decay: 0.1 age_cutoff: 5",
          "kind: RINGMASTER max_delay: 4",
          "kind: RINGLEADER",
          "kind: RENNALA batches: 2",
          "kind: DELAY_ADAPTIVE full_rate_delay: 2"};
}

TEST(TimingTest, EveryUpdateIsAsOnACluster) {
  const TempDir folder;
  for (const std::string& policy : EveryPolicy()) {
    for (std::string times : {kExponential, kSpread}) {
      // This one goes by microseconds, and where they begin is the clock's: whole ones are the same
      // on both.
      if (policy.find("DSSP") != std::string::npos) times = WholeMicroseconds(folder, times);
      for (const int depth : {0, 1}) {
        SimJob job = OneRange(policy, times);
        job.depth = depth;
        // Those of it that come late are steps, too: what ends the job is then their number, not
        // the data.
        if (policy.find("BACKUP") != std::string::npos) job.max_steps = 120;
        ExpectSame(job, 120);
      }
    }
  }
}

TEST(TimingTest, EveryUpdateIsAsOnAClusterWithAReplicatedDensePart) {
  for (const std::string& policy : EveryPolicy()) {
    if (policy.find("BACKUP") != std::string::npos) continue;  // refused beside an allreduce
    SimJob job = OneRange(policy, kLognormal);
    job.dense_on_servers = false;
    job.depth = 1;
    ExpectSame(job, 80);
  }
}

TEST(TimingTest, EveryUpdateIsAsOnAClusterWhereWorkersMeetNowAndThen) {
  for (const char* policy : {"kind: ASP", "kind: BSP"}) {
    SimJob job = OneRange(policy, kExponential);
    job.dense_on_servers = false;
    job.dense = "synchroniser: LOCAL_SGD local_steps { sync_every: 4 }";
    ExpectSame(job, 60);
  }
}

// Sums and sync rounds that do not wait for all. Gradients and calls take a few messages more on a
// cluster.
TEST(TimingTest, SumsByQuorumAreAsOnACluster) {
  constexpr int kSteps = 400;
  const std::string rounds =
      "synchroniser: LOCAL_SGD quorum_bound: 2 local_steps { sync_every: 4 quorum: 3 ";
  for (const std::string& dense :
       {std::string("synchroniser: ALLREDUCE quorum: SOLO quorum_bound: 4 "),
        std::string("synchroniser: ALLREDUCE quorum: MAJORITY quorum_bound: 4 "), rounds + "} ",
        rounds + "grace_seconds: 0.01 } "}) {
    SimJob job = OneRange("kind: ASP", kExponential, 6);
    job.dense_on_servers = false;
    job.dense = dense;
    const Outcome with = WithRows(job, kSteps), without = WithoutRows(job, kSteps);
    EXPECT_EQ(with.updates.size(), without.updates.size()) << dense;
    EXPECT_EQ(with.report.samples_of, without.report.samples_of) << dense;
    EXPECT_NEAR(without.report.seconds / with.report.seconds, 1, 0.02) << dense;
    // The pace of a plan, with the same steps.
    const job::ResolvedJob resolved = job.Plan();
    plan::Facts facts;
    facts.workers = job.workers;
    for (int rank = 0; rank < job.workers; ++rank) {
      const job::StepTimes times = *data::OpenStepTimes(resolved, TestSeed(), rank);
      std::vector<double>& steps = facts.step_seconds.emplace_back();
      for (int k = 0; k < kSteps; ++k) steps.push_back(absl::ToDoubleSeconds(times.Of(k)));
    }
    const plan::Strategy strategy = plan::StrategyOf(resolved, /*colocate_servers=*/false);
    ASSERT_TRUE(strategy.quorum.has_value()) << dense;
    const plan::Pace pace =
        plan::PaceOf(facts, {strategy.bound, strategy.every, strategy.quorum}, 0);
    const double simulated = kSteps * job.workers / with.report.seconds;
    EXPECT_NEAR(pace.steps_per_second, simulated, 0.1 * simulated) << dense;
    EXPECT_GT(pace.sums, 0) << dense;
    EXPECT_LT(pace.sums * strategy.every, 1.0001) << dense;
  }
}

// Steps that come too late are left out, and rank 0 hears of them.
TEST(TimingTest, ASumByQuorumKnowsOfStepsThatAreLeftOut) {
  SimJob job = OneRange("kind: BACKUP_WORKERS backups: 2", kExponential, 6);
  job.dense_on_servers = false;
  job.dense = "synchroniser: ALLREDUCE quorum: MAJORITY quorum_bound: 4 ";
  job.max_steps = 300;
  const Outcome with = WithRows(job, 300), without = WithoutRows(job, 300);
  EXPECT_LT(without.report.samples, 6 * 300 * 4);
  EXPECT_NEAR(1.0 * without.report.samples / with.report.samples, 1, 0.05);
  EXPECT_NEAR(without.report.seconds / with.report.seconds, 1, 0.05);
}

// Tables with policies of their own, one of them frozen.
TEST(TimingTest, EachGroupHasItsPolicy) {
  SimJob job = OneRange("kind: ASP", kExponential);
  job.second_table = true;
  job.second_policy = "kind: BSP";
  job.depth = 1;
  ExpectSame(job, 80);
  job.second_frozen = true;
  const Outcome frozen = WithoutRows(job, 80);
  EXPECT_EQ(frozen.report.tables[1].dropped(), 5u * 80);
  EXPECT_EQ(frozen.report.tables[1].version_staleness().count(), 0u);
}

TEST(TimingTest, ASeedIsARun) {
  const SimJob job = OneRange("kind: SSP bound: 1", kExponential);
  const Outcome first = WithoutRows(job, 200), again = WithoutRows(job, 200);
  EXPECT_EQ(first.updates, again.updates);
  EXPECT_EQ(first.report.seconds, again.report.seconds);
}

// Pushes wait for acknowledgements only where these take longer than the steps.
TEST(TimingTest, FewPushesUnderWayHoldAWorkerUp) {
  SimJob job = OneRange("kind: ASP", "slow_workers { mean_seconds: 0.001 } ", 1);
  job.depth = 8;
  for (const int most : {1, 4}) {
    job.max_inflight_pushes = most;
    sim::TimingOptions options = TimesOf(1000);
    options.latency = absl::Milliseconds(4);  // 8 ms from a push to its acknowledgement
    const job::ResolvedJob plan = job.Plan();
    const double seconds = Timed(plan, options)->Report().seconds;
    EXPECT_NEAR(seconds, 9.0 / most, 0.05) << most;  // and 1 ms of computing
  }
}

// All that a step moves goes through the link of its worker, and through those of the servers.
TEST(TimingTest, LinksAreShared) {
  SimJob job = OneRange("kind: ASP", "slow_workers { mean_seconds: 0.001 } ", 8);
  sim::TimingOptions options = TimesOf(200);
  options.latency = absl::ZeroDuration();
  options.bytes_per_second = 1e9;
  options.step_bytes = 1e6;  // 1 ms through a link
  for (const int servers : {1, 2, 8}) {
    job.servers = servers;
    const job::ResolvedJob plan = job.Plan();
    const double seconds = Timed(plan, options)->Report().seconds;
    // Rows, 1 ms, the step, 1 ms, gradients, 1 ms; or the servers' links, 8 ms a round over their
    // number.
    EXPECT_NEAR(seconds, 200 * std::max(0.003, 0.008 / servers), 0.02) << servers;
  }
  job.dense_on_servers = false;
  options.step_bytes = 0;
  options.dense_bytes = 1e6;
  const job::ResolvedJob plan = job.Plan();
  EXPECT_NEAR(Timed(plan, options)->Report().seconds, 201 * 0.00175 + 0.2, 0.01);
}

// In so much time each has taken the steps that it could: who is slow ends nobody's run.
TEST(TimingTest, ALimitEndsTheRunWhereverItsWorkersAre) {
  const SimJob job = OneRange("kind: ASP",
                              "slow_workers { mean_seconds: 0.01 } "
                              "slow_workers { worker: 1 mean_seconds: 0.04 } ",
                              2);
  sim::TimingOptions options = TimesOf(1'000'000);
  options.latency = absl::ZeroDuration();
  options.limit = absl::Milliseconds(1005);
  const job::ResolvedJob plan = job.Plan();
  const auto timing = Timed(plan, options);
  const scheduler::JobReport report = timing->Report();
  EXPECT_EQ(report.samples_of,
            (std::vector<int64_t>{100 * report.samples / 125, 25 * report.samples / 125}));
  EXPECT_DOUBLE_EQ(report.seconds, 1.005);
  EXPECT_DOUBLE_EQ(report.times_of[1].computed, 1) << "of the steps that are over";
}

// The share of a worker's data that counts, where worker 0 is four times as slow as the others.
TEST(TimingTest, SlowWorkersPayWithTheirDataWhereGradientsAreDroppedOrDamped) {
  const auto shares = [](const std::string& policy) {
    const std::string alike = "distribution: LOGNORMAL sigma: 0.1 mean_seconds: ";
    const std::string times = absl::StrCat("slow_workers { ", alike, "0.01 } ",
                                           "slow_workers { worker: 0 ", alike, "0.04 } ");
    const job::ResolvedJob plan = OneRange(policy, times, 4).Plan();
    sim::TimingOptions options = TimesOf(1'000'000);
    options.limit = absl::Seconds(20);
    const TableReport table = Timed(plan, options)->Report().tables[0];
    double sent = 0, applied = 0;
    std::vector<double> out;
    for (const WorkerUpdates& worker : table.worker()) {
      out.push_back(worker.samples().applied() / static_cast<double>(worker.samples().sent()));
      sent += static_cast<double>(worker.samples().sent());
      applied += worker.samples().applied();
    }
    EXPECT_GT(sent, 5000);
    EXPECT_EQ(sent, static_cast<double>(table.samples().sent()));
    EXPECT_NEAR(applied, table.samples().applied(), 1e-6);
    return out;
  };
  const std::vector<double> whole(4, 1.0);
  for (const char* const policy : {"kind: BSP", "kind: FIXED_DELAY delay: 3", "kind: SSP bound: 2",
                                   "kind: ASP async_scale: INVERSE_WORKERS",
                                   "kind: K_BATCH_ASYNC batches: 3", "kind: RINGLEADER"}) {
    EXPECT_EQ(shares(policy), whole) << policy;
  }
  const std::vector<double> backups = shares("kind: BACKUP_WORKERS backups: 1");
  EXPECT_LT(backups[0], 0.1);
  EXPECT_GT(backups[1], 0.9);
  // While worker 0 takes a step, the others bring twelve updates. Their own delays are 3 or so.
  const std::vector<double> ringmaster = shares("kind: RINGMASTER max_delay: 8");
  EXPECT_LT(ringmaster[0], 0.1);
  EXPECT_GT(ringmaster[1], 0.9);
  const std::vector<double> adaptive = shares("kind: DELAY_ADAPTIVE");
  EXPECT_NEAR(adaptive[0], 4.0 / 12, 0.06);
  EXPECT_GT(adaptive[1], 0.9);
}

TEST(TimingTest, TablesOnWorkersAreRefused) {
  SimJob job = OneRange("kind: BSP", "");
  job.placement = "SHARDED";
  job.dense_on_servers = false;
  const job::ResolvedJob plan = job.Plan();
  const auto timing = sim::Timing::New(plan, TimesOf(10));
  EXPECT_EQ(timing.status().code(), absl::StatusCode::kInvalidArgument);
}

// What a worker keeps it does not read, and what that is depends on rows.
TEST(TimingTest, RowsThatWorkersKeepAreRefused) {
  const job::ResolvedJob plan = OneRange("kind: ESSP bound: 2", "").Plan();
  const auto timing = sim::Timing::New(plan, TimesOf(10));
  EXPECT_EQ(timing.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(timing.status().message().find("policy.kind: ESSP"), 0u) << timing.status();
}

// ---- what theory says -------------------------------------------------------------------------

struct Steady {
  double rate = 0;  // gradients a second that reach the model
  double staleness = 0;
};

// From the first tenth to the moment when the first worker is at its end.
Steady Measure(const std::string& policy, const std::string& slow_workers, int64_t steps) {
  const job::ResolvedJob plan = OneRange(policy, slow_workers, kStragglerWorkers).Plan();
  std::vector<std::pair<int64_t, int64_t>> counted;  // when, and how stale
  std::vector<int64_t> last(kStragglerWorkers);
  sim::TimingOptions options = TimesOf(steps);
  options.latency = absl::ZeroDuration();
  options.on_update = [&](uint32_t, const sim::TimedFate& fate) {
    last[static_cast<size_t>(fate.update.rank)] = fate.now_us;
    if (fate.fate == server::kFateDropped) return;
    counted.push_back({fate.now_us, fate.version_applied - fate.update.read.version});
  };
  EXPECT_NE(Timed(plan, options), nullptr);
  const int64_t end = *std::min_element(last.begin(), last.end()), begin = end / 10;
  double updates = 0, staleness = 0;
  for (const auto& [at, stale] : counted) {
    if (at <= begin || at > end) continue;
    ++updates;
    staleness += static_cast<double>(stale);
  }
  return {updates / static_cast<double>(end - begin) * 1e6, staleness / updates};
}

TEST(TimingTest, StragglersDoToEachPolicyWhatAModelSays) {
  constexpr int64_t kSteps = 3000;
  for (const StragglerRow& row : StragglerRows()) {
    const double bsp = Measure("kind: BSP", row.slow_workers, kSteps).rate;
    const auto expect = [&](const std::string& policy, double want) {
      const Steady steady = Measure(policy, row.slow_workers, kSteps);
      EXPECT_NEAR(steady.rate / bsp, want, 0.1 * want) << row.name << ", " << policy;
      return steady;
    };
    expect("kind: SSP bound: 1", row.ssp1);
    expect("kind: SSP bound: 4", row.ssp4);
    expect("kind: SSP bound: 16", row.ssp16);
    EXPECT_NEAR(expect("kind: ASP", row.asp).staleness, kStragglerWorkers - 1, 0.1);
    EXPECT_NEAR(expect("kind: GBA batches: 8 token_gap: 1000", row.gba).staleness, 7.0 / 8, 0.02);
  }
}

// ---- ten thousand workers ---------------------------------------------------------------------

job::ResolvedJob ManyWorkers(const std::string& policy, int workers) {
  SimJob job = OneRange(policy, kLognormal);
  job.workers = 5;
  Job parsed = *job::ParseJob(job.Text(), "many", {});
  parsed.mutable_cluster()->set_workers(workers);
  absl::StatusOr<job::ResolvedJob> plan = job::ResolveForTiming(parsed);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

TEST(TimingTest, TenThousandWorkersUnderEveryPolicy) {
  constexpr int kWorkers = 10000, kSteps = 10;
  for (const std::string& policy : EveryPolicy()) {
    SCOPED_TRACE(policy);
    const job::ResolvedJob plan = ManyWorkers(policy, kWorkers);
    const std::unique_ptr<sim::Timing> timing = Timed(plan, TimesOf(kSteps));
    ASSERT_NE(timing, nullptr);
    const scheduler::JobReport report = timing->Report();
    const TableReport& table = report.tables[0];
    EXPECT_EQ(table.sent(), table.applied() + table.merged() + table.dropped());
    EXPECT_EQ(table.sent(), static_cast<uint64_t>(report.samples / 4));
    EXPECT_EQ(table.worker_size(), kWorkers);
    const policies::Properties& properties = plan.groups[0].properties;
    EXPECT_LE(table.clock_gap().max(), std::min<int64_t>(properties.clock_bound, kSteps) + 0.0);
    EXPECT_LE(timing->event_count(), 6u * kWorkers * (kSteps + 2)) << "a step has a few events";
    EXPECT_TRUE(report.waiting.empty()) << "not a hundred million pairs";
  }
}

// Under ASP on a network without delay each worker reads when its own update has come: so between
// the two all updates are counted once, and its staleness adds up to the updates of others before
// its last one.
TEST(TimingTest, StalenessAddsUpToTheUpdatesOfOthers) {
  constexpr int kWorkers = 10000, kSteps = 30;
  const job::ResolvedJob plan = ManyWorkers("kind: ASP", kWorkers);
  std::vector<int64_t> sum(kWorkers), last(kWorkers);
  double steady = 0, count = 0;
  sim::TimingOptions options = TimesOf(kSteps);
  options.latency = absl::ZeroDuration();
  options.on_update = [&](uint32_t, const sim::TimedFate& fate) {
    const size_t rank = static_cast<size_t>(fate.update.rank);
    const int64_t stale = fate.version_applied - fate.update.read.version;
    sum[rank] += stale;
    last[rank] = fate.version_applied;
    if (fate.update.step < 5 || fate.update.step >= 15) return;
    steady += static_cast<double>(stale);
    ++count;
  };
  ASSERT_NE(Timed(plan, options), nullptr);
  for (size_t rank = 0; rank < kWorkers; ++rank) ASSERT_EQ(sum[rank], last[rank] - (kSteps - 1));
  EXPECT_NEAR(steady / count, kWorkers - 1, 0.01 * kWorkers);
}

}  // namespace
}  // namespace tandem
