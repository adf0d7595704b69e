// What stragglers do to each policy: eight workers whose steps take times of their own, virtual
// clock, production cores. Gradients that count, a second, relative to BSP, and the staleness they
// have.
//
// What must come out is in straggler_rows.h, by a model of its own. It abandons what backup workers
// are late with; here a worker finishes what it has begun, so a second model says what that comes
// to. More seeds: TANDEM_SIM_SEEDS=N.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "data/service_trace.h"
#include "gtest/gtest.h"
#include "tests/sim/sim_job.h"
#include "tests/sim/straggler_rows.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

constexpr int kWorkers = kStragglerWorkers, kSlow = kSlowWorker;

// What a run had from its first tenth to the moment when the first worker is at its end.
struct Measured {
  double rate = 0;       // gradients a second that reach the model
  double staleness = 0;  // mean version staleness of those
  double flight = 0,
         cycle = 0;       // mean seconds from a read to its update, and from update to update
  double slow_share = 0;  // of the gradients, those of kSlow
};

SimJob EightWorkers(const std::string& policy, const std::string& slow_workers) {
  SimJob job;
  job.workers = kWorkers;
  job.servers = job.ranges_per_shard = 1;
  job.second_table = false;
  job.dense_on_servers = true;
  job.policy = policy;
  job.slow_workers = slow_workers;
  return job;
}

CheckedWorldOptions QuietWorld(const SimJob& job, int batches, uint64_t seed) {
  CheckedWorldOptions options = EvenWorld(job, batches, seed);
  options.model.full_batches = true;
  options.model.keys_per_batch = 1;
  options.model.dense = kWorkers + 1;
  options.network.delay = options.network.jitter = absl::ZeroDuration();
  options.fetch = absl::ZeroDuration();
  options.evaluate = false;
  options.explain = false;  // thousands of updates a row: judged elsewhere
  options.limit = absl::Hours(10);
  return options;
}

// The records of the table, in the steady part of a run.
std::vector<server::UpdateRecord> SteadyPart(const CheckedWorld& world, int workers,
                                             double* seconds) {
  std::map<int, int64_t> last;
  for (const server::UpdateRecord& r : world.records()) {
    last[r.worker] = std::max(last[r.worker], r.admitted_at);
  }
  EXPECT_EQ(last.size(), static_cast<size_t>(workers));
  int64_t end = last.begin()->second, begin = end;
  for (const auto& [rank, at] : last) end = std::min(end, at);
  for (const server::UpdateRecord& r : world.records()) begin = std::min(begin, r.admitted_at);
  begin += (end - begin) / 10;
  *seconds = static_cast<double>(end - begin) * 1e-6;
  std::vector<server::UpdateRecord> steady;
  for (const server::UpdateRecord& r : world.records()) {
    if (r.table == 0 && r.admitted_at > begin && r.admitted_at <= end) steady.push_back(r);
  }
  return steady;
}

Measured Measure(const SimJob& job, const CheckedWorldOptions& options) {
  SimRun run(job, options);
  EXPECT_TRUE(run.ok());
  Measured measured;
  double seconds = 0, count = 0, age = 0, slow = 0;
  std::map<int, double> of_worker;
  for (const server::UpdateRecord& r : SteadyPart(*run.world, kWorkers, &seconds)) {
    if (r.fate == server::kFateDropped) continue;
    ++count;
    measured.staleness += static_cast<double>(r.version_applied - r.version_read);
    age += static_cast<double>(r.age) * 1e-6;
    slow += r.worker == kSlow;
  }
  measured.rate = count / seconds;
  measured.staleness /= count;
  measured.flight = age / count;
  measured.cycle = kWorkers * seconds / count;
  measured.slow_share = slow / count;
  return measured;
}

// Backup workers as a model: in each step the first N - b count. Gradients that count, a second; of
// those who are late it abandons the work, or lets them finish it before they join the open step.
double BackupRate(const std::string& slow_workers, int backups, bool abandon, uint64_t seed) {
  constexpr int kSteps = 6000;
  const job::ResolvedJob plan = EightWorkers("kind: BSP", slow_workers).Plan();
  std::vector<job::StepTimes> times;
  for (int rank = 0; rank < kWorkers; ++rank) {
    times.push_back(*data::OpenStepTimes(plan, seed, rank));
  }
  std::vector<double> free_at(kWorkers, 0);  // when each is through with what it has begun
  std::vector<int64_t> begun(kWorkers, 0);
  double open = 0;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<double> done;
    for (int rank = 0; rank < kWorkers; ++rank) {
      const size_t r = static_cast<size_t>(rank);
      const double takes =
          slow_workers.empty() ? 0.01 : absl::ToDoubleSeconds(times[r].Of(begun[r]));
      done.push_back(std::max(open, abandon ? open : free_at[r]) + takes);
    }
    std::vector<double> order = done;
    std::sort(order.begin(), order.end());
    const double closes = order[static_cast<size_t>(kWorkers - backups - 1)];
    for (size_t r = 0; r < kWorkers; ++r) {
      const bool has_begun = abandon || std::max(open, free_at[r]) < closes;
      if (!has_begun) continue;  // still at an earlier step
      ++begun[r];
      free_at[r] = done[r];
    }
    open = closes;
  }
  return (kWorkers - backups) * kSteps / open;
}

// Within a tenth of what it shall be, in each cell.
class StragglerTest : public ::testing::TestWithParam<size_t> {
 protected:
  const StragglerRow row_ = StragglerRows()[GetParam()];

  Measured Mean(const std::string& policy) const {
    constexpr int kBatches = 900;
    const uint64_t seeds = SeedCount(1);
    Measured mean;
    for (uint64_t seed = TestSeed(); seed < TestSeed() + seeds; ++seed) {
      const SimJob job = EightWorkers(policy, row_.slow_workers);
      const Measured one = Measure(job, QuietWorld(job, kBatches, seed));
      const double share = 1 / static_cast<double>(seeds);
      mean.rate += share * one.rate;
      mean.staleness += share * one.staleness;
      mean.slow_share += share * one.slow_share;
    }
    return mean;
  }
  static void ExpectAbout(double is, double want, const std::string& what) {
    EXPECT_NEAR(is, want, 0.1 * want) << what;
  }
};

TEST_P(StragglerTest, GradientsPerSecondBesideBsp) {
  const Measured bsp = Mean("kind: BSP");
  EXPECT_EQ(bsp.staleness, 0);
  std::printf("%-13s", row_.name);
  const auto cell = [&](const char* name, const std::string& policy, double want) {
    const Measured is = Mean(policy);
    std::printf(" %s %.2f [%.2f]", name, is.rate / bsp.rate, is.staleness);
    ExpectAbout(is.rate / bsp.rate, want, policy);
    return is;
  };
  cell("SSP(1)", "kind: SSP bound: 1", row_.ssp1);
  cell("SSP(4)", "kind: SSP bound: 4", row_.ssp4);
  cell("SSP(16)", "kind: SSP bound: 16", row_.ssp16);
  const Measured asp = cell("ASP", "kind: ASP", row_.asp);
  const Measured gba = cell("GBA", "kind: GBA batches: 8 token_gap: 1000", row_.gba);
  EXPECT_NEAR(asp.staleness, kWorkers - 1, 0.02 * (kWorkers - 1));
  EXPECT_NEAR(gba.staleness, 7.0 / 8, 0.02 * 7 / 8);
  if (row_.name == std::string("one 4 x slow")) {
    EXPECT_NEAR(asp.slow_share, 0.035, 0.002);  // 1/4 of what each of the others computes: 1 of 29
    EXPECT_NEAR(bsp.slow_share, 0.125, 1e-3);
  }
  std::printf("\n");
}

TEST_P(StragglerTest, BackupWorkersFinishWhatTheyHaveBegun) {
  const double bsp = Mean("kind: BSP").rate;
  std::printf("%-13s", row_.name);
  for (const int backups : {1, 2}) {
    const double abandoned = BackupRate(row_.slow_workers, backups, true, TestSeed()) /
                             BackupRate(row_.slow_workers, 0, true, TestSeed());
    const double finished = BackupRate(row_.slow_workers, backups, false, TestSeed()) /
                            BackupRate(row_.slow_workers, 0, false, TestSeed());
    const double is = Mean(absl::StrCat("kind: BACKUP_WORKERS backups: ", backups)).rate / bsp;
    std::printf("  backup %d: %.2f, finishing %.2f, abandoning %.2f", backups, is, finished,
                abandoned);
    ExpectAbout(abandoned, backups == 1 ? row_.backup1 : row_.backup2, "abandoned");
    ExpectAbout(is, finished, absl::StrCat(backups, " backups"));
    EXPECT_LE(is, 1.05 * abandoned);
  }
  std::printf("\n");
}

std::string NameOfRow(const ::testing::TestParamInfo<size_t>& row) {
  return std::vector<std::string>{"Exponential", "Lognormal", "Transient", "OneIsSlow",
                                  "NoVariance"}[row.param];
}
INSTANTIATE_TEST_SUITE_P(Rows, StragglerTest, ::testing::Values(0, 1, 2, 3, 4), NameOfRow);

// On every record, under each of the step times. Workers that are at the end of their data send
// empty steps, which are ticks as well: the last steps of the others see up to two more of each.
TEST_P(StragglerTest, SspBoundsGapAndStalenessOfEveryRecord) {
  for (const int bound : {0, 2}) {
    const int depth = std::min(bound, 1);
    SimJob job = EightWorkers(absl::StrCat("kind: SSP bound: ", bound), row_.slow_workers);
    job.depth = depth;
    constexpr int kBatches = 300;
    SimRun run(job, QuietWorld(job, kBatches, TestSeed()));
    ASSERT_TRUE(run.ok());
    EXPECT_GE(run.world->records().size(), size_t{kWorkers} * kBatches);
    const int64_t most = (kWorkers - 1) * (2 * bound + 1) + depth;
    for (const server::UpdateRecord& r : run.world->records()) {
      ASSERT_GE(r.clock_gap, 0);
      ASSERT_LE(r.clock_gap, bound);
      const int64_t at_the_end = r.step + bound < kBatches - 1 ? 0 : 2 * (kWorkers - 1);
      ASSERT_LE(r.version_applied - r.version_read, most + at_the_end) << r.step;
    }
  }
}

// Workers without memory: how many updates come between a read and its own is geometric, with the
// mean M - 1 (Mitliagkas et al. 2016), in every value of the distribution.
TEST(StragglerMemoryTest, StalenessOfWorkersWithoutMemoryIsGeometric) {
  for (const int workers : {2, 4, 8}) {
    SimJob job = EightWorkers("kind: ASP", kExponential);
    job.workers = workers;
    CheckedWorldOptions options = QuietWorld(job, 24000 / workers, TestSeed());
    SimRun run(job, options);
    ASSERT_TRUE(run.ok());
    double seconds = 0, count = 0;
    std::map<int64_t, double> seen;
    for (const server::UpdateRecord& r : SteadyPart(*run.world, workers, &seconds)) {
      ++seen[r.version_applied - r.version_read];
      ++count;
    }
    EXPECT_GT(count, 20000);
    const double p = 1.0 / workers;
    double below = 0, want_below = 0;
    for (int64_t staleness = 0; staleness <= 8 * workers; ++staleness) {
      const double want = p * std::pow(1 - p, staleness);
      EXPECT_NEAR(seen[staleness] / count, want, 0.02) << staleness;
      below += seen[staleness] / count;
      want_below += want;
      EXPECT_NEAR(below, want_below, 0.02) << workers << " workers, at most " << staleness;
    }
  }
}

// A pause between a worker's update and its next read, a share x of the time that its gradient is
// in flight: then N - 1 others' updates come in a whole cycle, of which that time is 1 / (1 + x).
TEST(StragglerPauseTest, APauseBeforeTheReadDividesTheStaleness) {
  const SimJob job = EightWorkers("kind: ASP", kExponential);
  for (const int fetch_ms : {4, 10, 30}) {
    CheckedWorldOptions options = QuietWorld(job, 1200, TestSeed());
    options.fetch = absl::Milliseconds(fetch_ms);
    const Measured asp = Measure(job, options);
    const double x = asp.cycle / asp.flight - 1;
    EXPECT_GT(x, 0.05);
    EXPECT_NEAR(asp.staleness, (kWorkers - 1) / (1 + x), 0.05 * asp.staleness)
        << "x " << x << ", fetch " << fetch_ms;
    std::printf("x %.2f: %.2f, expected %.2f\n", x, asp.staleness, (kWorkers - 1) / (1 + x));
  }
}

}  // namespace
}  // namespace tandem
