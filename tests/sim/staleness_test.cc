// Staleness is measured, not assumed: what the records say is what an observer of the shards
// counts, and what the theory says must come out.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/sim/sim_job.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

double Staleness(const server::UpdateRecord& r) {
  return static_cast<double>(r.version_applied - r.version_read);
}

// Counts version staleness anew from what an observer saw: admissions and reads of one range, in
// order. Knows the policies only as the literature words them.
class Recount {
 public:
  Recount(const CheckedWorld& world, int workers, bool synchronous, int64_t delay)
      : world_(world), workers_(workers), synchronous_(synchronous), delay_(delay) {}

  void Range(uint32_t range, const std::vector<RangeEvent>& events) {
    range_ = range;
    version_ = 0;
    read_at_.clear();
    queue_.clear();
    admitted_.assign(static_cast<size_t>(workers_), 0);
    for (const RangeEvent& event : events) {
      if (event.read) {
        read_at_.try_emplace({event.rank, event.step},
                             version_);  // of an answer sent twice, the first
        continue;
      }
      for (int64_t step = event.first; step <= event.step; ++step) Admit(event.rank, step);
    }
    while (!queue_.empty()) ApplyOldest();  // before the last evaluation
  }

  server::Measure result;

 private:
  void Admit(int rank, int64_t step) {
    if (!synchronous_) {
      Consume(rank, step);
      ++version_;
      return;
    }
    admitted_[static_cast<size_t>(rank)] = step + 1;
    while (*std::min_element(admitted_.begin(), admitted_.end()) > version_) {
      queue_.push_back(version_);
      if (static_cast<int64_t>(queue_.size()) > delay_) ApplyOldest();
      ++version_;
    }
  }
  void ApplyOldest() {
    for (int rank = 0; rank < workers_; ++rank) Consume(rank, queue_.front());
    queue_.erase(queue_.begin());
  }
  void Consume(int rank, int64_t step) {
    if (world_.RangesOf(rank, step).count(range_) == 0) return;
    result.Add(static_cast<double>(version_ - read_at_.at({rank, step})));
  }

  const CheckedWorld& world_;
  const int workers_;
  const bool synchronous_;
  const int64_t delay_;
  uint32_t range_ = 0;
  int64_t version_ = 0;
  std::vector<int64_t> admitted_, queue_;
  std::map<std::pair<int, int64_t>, int64_t> read_at_;
};

void ExpectRecount(SimJob job, bool synchronous, int64_t delay, uint64_t seed) {
  job.slow_workers = kExponential;
  SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", job.Text()));
  CheckedWorldOptions options = EvenWorld(job, 40, seed);
  options.model.batches[0] = 25;
  options.log_events = true;
  options.network.reorder = true;  // late and out of order, but nothing is answered twice
  options.network.jitter = absl::Milliseconds(3);
  options.moves_per_second = 20;
  SimRun run(job, options);
  ASSERT_TRUE(run.ok());
  EXPECT_GT(run.world->moves(), 0);
  Recount recount(*run.world, job.workers, synchronous, delay);
  for (const auto& [range, events] : run.world->events()) recount.Range(range, events);
  server::Measure summary, recorded;
  for (const job::TablePlan& table : run.plan.tables) {
    const server::Measure m = run.world->Stats(table.id).version_staleness;
    summary.count += m.count;
    summary.sum += m.sum;
    summary.max = std::max(summary.max, m.max);
  }
  for (const server::UpdateRecord& record : run.world->records()) recorded.Add(Staleness(record));
  EXPECT_GT(summary.count, 500u);
  for (const server::Measure& other : {recount.result, recorded}) {
    EXPECT_EQ(summary.count, other.count);
    EXPECT_EQ(summary.sum, other.sum);
    EXPECT_EQ(summary.max, other.max);
  }
  // And what the scheduler writes into the summary is the same again.
  uint64_t count = 0;
  double sum = 0;
  for (const TableReport& table : run.world->report().tables) {
    count += table.version_staleness().count();
    sum += table.version_staleness().sum();
    EXPECT_EQ(table.sent(), table.applied() + table.merged() + table.dropped());
    EXPECT_EQ(table.sent(), run.world->report().updates_sent.at(table.table()));
  }
  EXPECT_EQ(count, summary.count);
  EXPECT_EQ(sum, summary.sum);
}

SimJob AllOnServers(const std::string& policy, int depth) {
  SimJob job;
  job.workers = 4;
  job.policy = policy;
  job.depth = depth;
  job.dense_on_servers = true;
  return job;
}

TEST(StalenessTest, TheSummaryEqualsARecountFromTheEventLog) {
  for (uint64_t seed = TestSeed(); seed < TestSeed() + 3; ++seed) {
    ExpectRecount(AllOnServers("kind: ASP", 0), false, 0, seed);
    ExpectRecount(AllOnServers("kind: ASP", 2), false, 0, seed);
    ExpectRecount(AllOnServers("kind: SSP bound: 2", 1), false, 0, seed);
    ExpectRecount(AllOnServers("kind: BSP", 1), true, 0, seed);
    ExpectRecount(AllOnServers("kind: FIXED_DELAY delay: 3", 1), true, 3, seed);
  }
}

// One job of one range whose workers read at once after their own push has come, and the records of
// its table from the middle of the run: not the start, where all read at once, nor the end, where
// some have finished.
std::vector<server::UpdateRecord> MiddleOf(const std::string& policy, int workers,
                                           const std::string& slow_workers, int updates_per_tick) {
  SimJob job = AllOnServers(policy, 0);
  job.workers = workers;
  job.servers = 1;
  job.ranges_per_shard = 1;
  job.second_table = false;
  job.slow_workers = slow_workers;
  const int batches = 12000 / workers;
  CheckedWorldOptions options = EvenWorld(job, batches, TestSeed());
  options.model.full_batches = true;
  options.model.dense = workers + 1;
  options.network.delay = options.network.jitter = absl::ZeroDuration();
  options.fetch = absl::ZeroDuration();
  options.explain = false;  // thousands of updates a row: judged elsewhere
  SimRun run(job, options);
  EXPECT_TRUE(run.ok());
  std::vector<server::UpdateRecord> middle;
  for (const server::UpdateRecord& r : run.world->records()) {
    const int64_t updates = r.version_applied * updates_per_tick;
    if (r.table == 0 && updates > 500 && updates < workers * batches * 0.9) middle.push_back(r);
  }
  EXPECT_GT(middle.size(), 9000u);
  return middle;
}

// One gradient of each worker is always in flight, so between its read and its update every other
// worker's comes once on average, however long the steps take.
TEST(StalenessTest, AspMeanVersionStalenessIsTheNumberOfOtherWorkers) {
  for (const std::string times : {kExponential, kLognormal, kTransient}) {
    for (const int workers : {2, 4, 8}) {
      server::Measure steady;
      for (const server::UpdateRecord& r : MiddleOf("kind: ASP", workers, times, 1)) {
        steady.Add(Staleness(r));
      }
      const double mean = steady.sum / static_cast<double>(steady.count);
      EXPECT_NEAR(mean, workers - 1, 0.01 * (workers - 1)) << workers << " workers, " << times;
    }
  }
}

// Between its read and its update N - 1 others come, of which K make one version.
TEST(StalenessTest, BatchesDivideTheStalenessByTheirSize) {
  for (const auto& [kind, workers, batches] :
       {std::tuple("K_BATCH_ASYNC", 4, 2), std::tuple("K_BATCH_ASYNC", 8, 3),
        std::tuple("GBA token_gap: 1000", 4, 4), std::tuple("GBA token_gap: 1000", 8, 8)}) {
    const std::string policy = absl::StrCat("batches: ", batches, " kind: ", kind);
    server::Measure steady;
    for (const server::UpdateRecord& r : MiddleOf(policy, workers, kExponential, batches)) {
      steady.Add(Staleness(r));
      EXPECT_EQ(r.fate, server::kFateMerged);
    }
    const double want = static_cast<double>(workers - 1) / batches;
    EXPECT_NEAR(steady.sum / static_cast<double>(steady.count), want, 0.02 * want) << policy;
  }
}

// If nobody is slow, each global batch of GBA has one gradient of each worker: those of one step,
// as under BSP. No token is late.
TEST(StalenessTest, GbaIsBspInItsBatchesIfNobodyIsSlow) {
  for (const server::UpdateRecord& r : MiddleOf("kind: GBA token_gap: 0", 4, "", 4)) {
    ASSERT_EQ(r.version_applied, r.step);
    ASSERT_EQ(r.fate, server::kFateMerged);
    ASSERT_EQ(r.divided_by, 4 * r.samples);
  }
}

// A worker that is late by many steps holds tokens that are old: what it brings is dropped. With a
// wide gap all of it counts.
TEST(StalenessTest, GbaDropsWhatIsFarTooLate) {
  for (const int gap : {1, 1000}) {
    SimJob job = AllOnServers(absl::StrCat("kind: GBA token_gap: ", gap), 0);
    job.slow_workers = FourTimesAsSlow(3);
    CheckedWorldOptions options = EvenWorld(job, 200, TestSeed());
    options.model.batches = {200, 200, 200, 40};
    SimRun run(job, options);
    ASSERT_TRUE(run.ok());
    uint64_t late = 0, others = 0, of_late = 0, of_others = 0;
    for (const server::UpdateRecord& r : run.world->records()) {
      ++(r.worker == 3 ? of_late : of_others);
      if (r.fate == server::kFateDropped) ++(r.worker == 3 ? late : others);
    }
    if (gap == 1000) {
      EXPECT_EQ(late + others, 0u);
    } else {
      EXPECT_GT(late, of_late / 2);
      EXPECT_LT(others, of_others / 50);
    }
  }
}

TEST(StalenessTest, DsspRunsOnWithinItsBounds) {
  constexpr int kBound = 1, kUpper = 6, kDepth = 1;
  const auto run_with = [&](const std::string& policy, int* largest) {
    SimJob job = AllOnServers(policy, kDepth);
    job.slow_workers = kTransient;
    CheckedWorldOptions options = EvenWorld(job, 600, TestSeed());
    options.model.full_batches = true;
    options.moves_per_second = 1;
    options.explain = false;
    SimRun run(job, options);
    EXPECT_TRUE(run.ok());
    *largest = 0;
    for (const server::UpdateRecord& r : run.world->records()) {
      *largest = std::max(*largest, r.clock_gap);
      EXPECT_LE(Staleness(r), (job.workers - 1) * (2 * kUpper + 1) + kDepth);
    }
    return run.world->elapsed();
  };
  int fixed = 0, dynamic = 0, none = 0;
  const absl::Duration ssp = run_with("kind: SSP bound: 1", &fixed);
  const absl::Duration dssp =
      run_with(absl::StrCat("kind: DSSP bound: ", kBound, " upper_bound: ", kUpper), &dynamic);
  run_with("kind: DSSP bound: 1 upper_bound: 1", &none);
  EXPECT_EQ(fixed, kBound);
  EXPECT_EQ(none, kBound);
  EXPECT_GT(dynamic, kBound);
  EXPECT_LE(dynamic, kUpper);
  EXPECT_LT(dssp, ssp) << "who runs on waits less";
}

TEST(StalenessTest, SspBoundsTheGapOfEveryRecord) {
  constexpr int kBound = 3, kDepth = 2;
  SimJob job = AllOnServers(absl::StrCat("kind: SSP bound: ", kBound), kDepth);
  job.slow_workers = kTransient;
  CheckedWorldOptions options = EvenWorld(job, 2300, TestSeed());
  options.model.full_batches = true;
  options.model.universe = 40;
  options.model.keys_per_batch = 16;
  options.moves_per_second = 1;
  options.explain = false;
  SimRun run(job, options);
  ASSERT_TRUE(run.ok());
  EXPECT_GE(run.world->records().size(), 100000u);
  int largest = 0;
  for (const server::UpdateRecord& r : run.world->records()) {
    ASSERT_LE(r.clock_gap, kBound);
    ASSERT_GE(r.clock_gap, 0);
    ASSERT_LE(Staleness(r), (job.workers - 1) * (2 * kBound + 1) + kDepth);
    ASSERT_LE(r.in_flight, job.max_inflight_pushes + kDepth + 1);
    largest = std::max(largest, r.clock_gap);
  }
  EXPECT_EQ(largest, kBound);  // stragglers did push against the bound
}

TEST(StalenessTest, BspHasNone) {
  const SimJob job = AllOnServers("kind: BSP", 2);
  SimRun run(job, EvenWorld(job, 50, TestSeed()));
  ASSERT_TRUE(run.ok());
  EXPECT_GT(run.world->records().size(), 500u);
  for (const server::UpdateRecord& r : run.world->records()) {
    ASSERT_EQ(Staleness(r), 0);
    ASSERT_EQ(r.version_read, r.step);
    ASSERT_EQ(r.clock_gap, 0);
  }
}

// Before the switch no update is stale and all of a step are one; behind it each counts by itself,
// and between its read and its update come those of all others.
TEST(StalenessTest, SyncSwitchIsBspAndThenAsp) {
  constexpr int64_t kSwitch = 40;
  SimJob job = AllOnServers(absl::StrCat("kind: SYNC_SWITCH switch_step: ", kSwitch), 0);
  job.servers = job.ranges_per_shard = 1;
  job.second_table = false;
  job.slow_workers = kExponential;
  CheckedWorldOptions options = EvenWorld(job, 1000, TestSeed());
  options.model.full_batches = true;
  options.network.delay = options.network.jitter = absl::ZeroDuration();
  options.fetch = absl::ZeroDuration();
  options.explain = false;
  SimRun run(job, options);
  ASSERT_TRUE(run.ok());
  server::Measure together, alone;
  for (const server::UpdateRecord& r : run.world->records()) {
    if (r.table != 0) continue;
    const bool before = r.step < kSwitch;
    ASSERT_EQ(r.fate, before ? server::kFateMerged : server::kFateApplied) << r.step;
    ASSERT_EQ(r.divided_by, (before ? 4 : 1) * r.samples) << r.step;
    ASSERT_TRUE(!before || r.version_read == r.step) << r.step;
    if (before || r.step < 800) (before ? together : alone).Add(Staleness(r));
  }
  EXPECT_EQ(together.count, 4u * kSwitch);
  EXPECT_EQ(together.sum, 0);
  EXPECT_NEAR(alone.sum / static_cast<double>(alone.count), 3, 0.15);
}

TEST(StalenessTest, FixedDelayHasExactlyThat) {
  for (const int delay : {1, 2, 5}) {
    const SimJob job = AllOnServers(absl::StrCat("kind: FIXED_DELAY delay: ", delay), 1);
    SimRun run(job, EvenWorld(job, 50, TestSeed()));
    ASSERT_TRUE(run.ok());
    for (const server::UpdateRecord& r : run.world->records()) {
      // The queue is applied at the end, when no version follows any more. 50 steps, and the one
      // without samples that ends the epoch.
      ASSERT_EQ(Staleness(r), std::min<double>(delay, 51.0 - static_cast<double>(r.step)));
    }
  }
}

// Every kind of update that does not change a row is still counted.
TEST(StalenessTest, FrozenTablesDropAndCount) {
  SimJob job = AllOnServers("kind: ASP", 0);
  job.second_frozen = true;
  SimRun run(job, EvenWorld(job, 20, TestSeed()));
  ASSERT_TRUE(run.ok());
  const server::UpdateStats frozen = run.world->Stats(1);
  EXPECT_GT(frozen.arrived, 0u);
  EXPECT_EQ(frozen.dropped, frozen.arrived);
  EXPECT_EQ(frozen.applied + frozen.merged, 0u);
}

}  // namespace
}  // namespace tandem
