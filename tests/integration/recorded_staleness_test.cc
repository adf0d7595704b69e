// The staleness of recorded runs with 4 workers: what each policy promises holds on every update,
// and the summary says exactly what a recount of the event log (DIR/*.updates) says.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/record/update_record.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

using Records = std::vector<server::UpdateRecord>;

constexpr int kWorkers = 4;
constexpr int kBatch = 64;
constexpr int64_t kLongSteps = 400;
constexpr int64_t kRows = kWorkers * kBatch * (kLongSteps + 10);

const Settings kCommon = {absl::StrCat("cluster.workers=", kWorkers),
                          absl::StrCat("train.batch_size=", kBatch),
                          "reproducible=false",
                          "model={mlp { hidden: 8 }}",
                          "staleness.record_updates=true",
                          "staleness.gradients=true",
                          "staleness.row_share=0.25",
                          "cluster.ranges_per_shard=20"};

// Three epochs of which workers see the end at different steps: 21 batches, or 20.
const Settings kUneven =
    Join(kCommon, {absl::StrCat("data.max_rows=", kWorkers* kBatch * 20 + 2), "train.epochs=3"});

// One kind of staleness, counted over.
struct Recount {
  int64_t count = 0, sum = 0, max = 0;
  void Add(int64_t value) {
    ++count;
    sum += value;
    max = std::max(max, value);
  }
};

struct Recorded {
  RunResult run;
  std::map<uint32_t, Records> ranges;  // by range, in the order in which it consumed them
  std::map<std::string, Records> tables;
  size_t updates = 0;
};

class StalenessTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { job_ = std::make_unique<SmallJob>(kRows, 200); }
  static void TearDownTestSuite() { job_.reset(); }

  // Runs the job and reads its event log; what holds for every policy is checked here.
  void Run(const Settings& set, Recorded* out) {
    RunArguments arguments =
        job_->Arguments(::testing::UnitTest::GetInstance()->current_test_info()->name(), set);
    arguments.checkpoint = false;
    out->run = RunJob(arguments);
    ASSERT_TRUE(out->run.ok()) << out->run.DebugString();
    const job::ResolvedJob plan = job_->Plan(set);
    for (const auto& entry : std::filesystem::directory_iterator(arguments.out)) {
      if (entry.path().extension() == ".updates") Read(entry.path().string(), plan, out);
    }
    ExpectSummaryIsTheRecount(*out, plan);
    for (const auto& [id, records] : out->ranges) {
      ExpectEachUpdateOnce(records);
      if (HasFailure()) FAIL() << "range " << id;
    }
  }

  static void Read(const std::string& path, const job::ResolvedJob& plan, Recorded* out) {
    const std::string bytes = ReadTextFile(path);
    server::RecordFileHead head;
    ASSERT_GE(bytes.size(), sizeof head) << path;
    std::memcpy(&head, bytes.data(), sizeof head);
    ASSERT_TRUE(head.IsOurs()) << path;
    ASSERT_EQ((bytes.size() - sizeof head) % sizeof(server::UpdateRecord), 0u) << path;
    Records records((bytes.size() - sizeof head) / sizeof(server::UpdateRecord));
    std::memcpy(records.data(), bytes.data() + sizeof head, bytes.size() - sizeof head);
    for (const server::UpdateRecord& record : records) {
      ASSERT_LT(record.table, plan.tables.size());
      ASSERT_LT(record.worker, kWorkers);
      out->ranges[record.range].push_back(record);
      out->tables[plan.tables[record.table].name].push_back(record);
    }
    out->updates += records.size();
  }

  static void ExpectSame(const Recount& recount, const nlohmann::json& summary,
                         const std::string& what) {
    SCOPED_TRACE(what);
    EXPECT_EQ(summary.value("count", int64_t{-1}), recount.count);
    if (recount.count == 0) return;
    const double mean = static_cast<double>(recount.sum) / static_cast<double>(recount.count);
    EXPECT_EQ(summary.value("mean", -1.0), mean);  // sums of integers: exact in doubles
    EXPECT_EQ(summary.value("max", -1.0), static_cast<double>(recount.max));
  }

  // Row staleness, of sums over rows; the histogram has all values.
  static void ExpectSameRows(const Records& records, const nlohmann::json& summary) {
    uint64_t rows = 0, sum = 0;
    uint32_t largest = 0;
    for (const server::UpdateRecord& r : records) {
      rows += r.rows_measured;
      sum += r.row_staleness_sum;
      largest = std::max(largest, r.row_staleness_max);
    }
    ASSERT_EQ(summary["count"], rows);
    if (rows == 0) return;
    EXPECT_EQ(summary["mean"], static_cast<double>(sum) / static_cast<double>(rows));
    EXPECT_EQ(summary["max"], static_cast<double>(largest));
    uint64_t in_buckets = 0;
    for (const auto& bucket : summary["histogram"]) in_buckets += bucket[1].get<uint64_t>();
    EXPECT_EQ(in_buckets, rows);
  }

  // What is said of single workers adds up to what is said of the table.
  static void ExpectWorkersAddUp(const nlohmann::json& staleness) {
    for (const char* kind : {"clock_gap", "version_staleness", "row_staleness", "age"}) {
      int64_t count = 0;
      std::map<double, int64_t> histogram, of_workers;
      for (const auto& bucket : staleness[kind].value("histogram", nlohmann::json::array())) {
        histogram[bucket[0].get<double>()] += bucket[1].get<int64_t>();
      }
      ASSERT_EQ(staleness["by_worker"].size(), size_t{kWorkers});
      for (const nlohmann::json& worker : staleness["by_worker"]) {
        count += worker[kind]["count"].get<int64_t>();
        for (const auto& bucket : worker[kind].value("histogram", nlohmann::json::array())) {
          of_workers[bucket[0].get<double>()] += bucket[1].get<int64_t>();
        }
      }
      EXPECT_EQ(count, staleness[kind]["count"]) << kind;
      EXPECT_EQ(of_workers, histogram) << kind;
    }
  }

  // Count, mean and maximum of each kind, by table; what was sent and what became of it.
  static void ExpectSummaryIsTheRecount(const Recorded& recorded, const job::ResolvedJob& plan) {
    const nlohmann::json& summary = recorded.run.summary;
    std::map<server::UpdateFate, int64_t> all;
    for (const job::TablePlan& table : plan.tables) {
      SCOPED_TRACE(table.name);
      ASSERT_EQ(recorded.tables.count(table.name), 1u);
      const Records& records = recorded.tables.at(table.name);
      Recount gap, version, in_flight;
      std::map<server::UpdateFate, int64_t> fates;
      for (const server::UpdateRecord& r : records) {
        gap.Add(r.clock_gap);
        if (r.fate != server::kFateDropped) version.Add(r.version_applied - r.version_read);
        in_flight.Add(r.in_flight);
        ++fates[static_cast<server::UpdateFate>(r.fate)];
        ++all[static_cast<server::UpdateFate>(r.fate)];
      }
      const nlohmann::json& staleness = summary["staleness"][table.name];
      ExpectSame(gap, staleness["clock_gap"], "clock gap");
      ExpectSame(version, staleness["version_staleness"], "version staleness");
      ExpectSame(in_flight, staleness["in_flight_depth"], "in-flight depth");
      ExpectSameRows(records, staleness["row_staleness"]);
      ExpectWorkersAddUp(staleness);
      ExpectUpdates(fates, summary["tables"][table.name]["updates"]);
    }
    SCOPED_TRACE("all tables");
    ExpectUpdates(all, summary["updates"]);
  }

  // Sent = applied + dropped: by the workers' count, by the shards', and by the log.
  static void ExpectUpdates(const std::map<server::UpdateFate, int64_t>& fates,
                            const nlohmann::json& updates) {
    const auto count = [&](server::UpdateFate fate) {
      return fates.count(fate) > 0 ? fates.at(fate) : 0;
    };
    EXPECT_EQ(updates["applied"], count(server::kFateApplied) + count(server::kFateMerged));
    EXPECT_EQ(updates["applied_merged"], count(server::kFateMerged));
    EXPECT_EQ(updates["dropped"], count(server::kFateDropped));
    EXPECT_EQ(updates["sent"], count(server::kFateApplied) + count(server::kFateMerged) +
                                   count(server::kFateDropped));
  }

  // A worker's updates of a range come in the order of its steps, none twice.
  static void ExpectEachUpdateOnce(const Records& records) {
    std::map<int, int64_t> last;
    for (const server::UpdateRecord& r : records) {
      const auto [it, first] = last.emplace(r.worker, r.step);
      if (!first) {
        ASSERT_GT(r.step, it->second) << "worker " << r.worker;
      }
      it->second = r.step;
      ASSERT_GE(r.version_read, 0);
      ASSERT_GE(r.version_applied, r.version_read);
      ASSERT_GT(r.rows, 0u);
      ASSERT_GT(r.samples, 0u);
      // No range moves, so every read that was applied is known.
      const bool dropped = r.fate == server::kFateDropped;
      ASSERT_EQ(r.rows_measured, dropped ? 0 : r.rows);
      ASSERT_EQ(r.age < 0, dropped);
      ASSERT_LT(r.age, int64_t{600} * 1'000'000);
    }
  }

  static std::unique_ptr<SmallJob> job_;
};
std::unique_ptr<SmallJob> StalenessTest::job_;

// The version at which an update of a range without folds was applied, from the order of the log
// alone: every admitted step of a worker is one tick. A step without rows for the range leaves no
// record, so there may be a choice: at least the steps up to each worker's last record, at most
// those before its next one. Returns how many records leave no choice.
size_t ExpectTicksOfArrivals(const Records& records) {
  size_t exact = 0;
  std::vector<std::vector<int64_t>> steps(kWorkers);
  for (const server::UpdateRecord& r : records) steps[r.worker].push_back(r.step);
  std::vector<size_t> seen(kWorkers, 0);  // records so far
  int64_t last_version = -1;
  for (const server::UpdateRecord& r : records) {
    int64_t least = r.step, most = r.step;  // its own steps before it, each a tick
    bool bounded = true;
    for (int w = 0; w < kWorkers; ++w) {
      if (w == r.worker) continue;
      least += seen[w] == 0 ? 0 : steps[w][seen[w] - 1] + 1;
      bounded = bounded && seen[w] < steps[w].size();
      if (bounded) most += steps[w][seen[w]];
    }
    ++seen[r.worker];
    EXPECT_GE(r.version_applied, least);
    if (bounded) {
      EXPECT_LE(r.version_applied, most);
    }
    EXPECT_GT(r.version_applied, last_version);
    last_version = r.version_applied;
    exact += bounded && least == most ? 1 : 0;
    if (::testing::Test::HasFailure()) return exact;
  }
  return exact;
}

// What a read for step k under SSP(s) must have seen, from a log in which every step with data has
// its record: of each worker that has not come to its end, steps up to k - s; of the reader itself,
// k.
void ExpectReadsWithinBound(const Records& records, int64_t bound) {
  using Clocks = std::vector<int64_t>;
  std::vector<int64_t> versions;                       // at which each record was applied
  std::vector<Clocks> clocks = {Clocks(kWorkers, 0)};  // before each record, and after the last
  for (const server::UpdateRecord& r : records) {
    // Ticks without a record are those of workers that have said that they are at their end.
    const Clocks& now = clocks.back();
    const auto ended = std::count(now.begin(), now.end(), kLongSteps);
    const int64_t unseen = r.version_applied - static_cast<int64_t>(versions.size());
    ASSERT_GE(unseen, 0);
    ASSERT_LE(unseen, ended);
    versions.push_back(r.version_applied);
    clocks.push_back(now);
    clocks.back()[r.worker] = r.step + 1;
  }
  for (const server::UpdateRecord& r : records) {
    const auto before = std::lower_bound(versions.begin(), versions.end(), r.version_read);
    const Clocks& seen = clocks[static_cast<size_t>(before - versions.begin())];
    for (int w = 0; w < kWorkers; ++w) ASSERT_GE(seen[w], r.step - bound) << "worker " << w;
    ASSERT_EQ(seen[r.worker], r.step);
    // At most this much can come between a read and its update (depth 0).
    ASSERT_LE(r.version_applied - r.version_read, (kWorkers - 1) * (2 * bound + 1));
  }
}

// Of a range whose rows are all in every update: row staleness is the number of updates in between.
void ExpectRowsAsStaleAsTheRange(const Records& records) {
  std::vector<int64_t> versions;
  for (const server::UpdateRecord& r : records) {
    const auto read = std::lower_bound(versions.begin(), versions.end(), r.version_read);
    const uint64_t between = static_cast<uint64_t>(versions.end() - read);
    ASSERT_EQ(r.row_staleness_max, between);
    ASSERT_EQ(r.row_staleness_sum, between * r.rows);
    versions.push_back(r.version_applied);
  }
}

// More than 10^5 updates of a job that is SSP(2) everywhere.
TEST_F(StalenessTest, SspBoundHoldsOnEveryUpdate) {
  constexpr int64_t kBound = 2;
  Recorded recorded;
  Run(Join(kCommon, {absl::StrCat("policy={kind: SSP bound: ", kBound, "}"),
                     "dense.synchroniser=SERVERS", absl::StrCat("train.max_steps=", kLongSteps)}),
      &recorded);
  if (HasFailure()) return;
  EXPECT_GE(recorded.updates, 100'000u);
  int64_t largest = 0;
  size_t complete = 0;  // ranges that every step of every worker has touched
  for (const auto& [id, records] : recorded.ranges) {
    SCOPED_TRACE(absl::StrCat("range ", id));
    for (const server::UpdateRecord& r : records) {
      ASSERT_LE(r.clock_gap, kBound);
      ASSERT_GE(r.clock_gap, 0);
      ASSERT_EQ(r.fate, server::kFateApplied);
      largest = std::max<int64_t>(largest, r.clock_gap);
    }
    ExpectTicksOfArrivals(records);
    if (records.size() == kWorkers * kLongSteps) {
      ++complete;
      ExpectReadsWithinBound(records, kBound);
    }
    if (HasFailure()) return;
  }
  const Records& dense = recorded.tables.at("dense");
  std::map<uint32_t, Records> ranges_of_dense;
  for (const server::UpdateRecord& r : dense) ranges_of_dense[r.range].push_back(r);
  for (const auto& [id, records] : ranges_of_dense) ExpectRowsAsStaleAsTheRange(records);
  EXPECT_GT(complete, 20u);  // of 82: the bound was looked for where it can be seen
  EXPECT_GT(largest, 0);     // and workers did get ahead
}

TEST_F(StalenessTest, AspCountsEveryArrival) {
  Recorded recorded;
  Run(Join(kUneven, {"policy={kind: ASP}", "dense.synchroniser=SERVERS"}), &recorded);
  if (HasFailure()) return;
  size_t exact = 0;
  for (const auto& [id, records] : recorded.ranges) {
    SCOPED_TRACE(absl::StrCat("range ", id));
    exact += ExpectTicksOfArrivals(records);
    for (const server::UpdateRecord& r : records) ASSERT_EQ(r.fate, server::kFateApplied);
  }
  EXPECT_GT(exact, 0u);  // how many depends on how far apart the workers come to their ends
  const nlohmann::json& gradients = recorded.run.summary["staleness"]["rest"]["gradients"];
  EXPECT_GT(gradients["missed_rows"], 0) << gradients;
  EXPECT_GT(gradients["distance"], 0);
  for (const nlohmann::json& cell : gradients["by_staleness"]) {
    if (cell["from"] > 0) continue;
    EXPECT_EQ(cell["missed_rows"], 0) << "nothing came between";
  }
  EXPECT_GT(recorded.run.summary["staleness"]["rest"]["version_staleness"]["max"], 0);
}

// Tables ASP with a step read ahead, dense by allreduce: workers stay within one step.
TEST_F(StalenessTest, HybridKeepsWorkersTogether) {
  Recorded recorded;
  Run(Join(kUneven, {"policy={kind: ASP}", "train.prefetch_steps=1"}), &recorded);
  if (HasFailure()) return;
  for (const auto& [id, records] : recorded.ranges) {
    SCOPED_TRACE(absl::StrCat("range ", id));
    ExpectTicksOfArrivals(records);
    for (const server::UpdateRecord& r : records) {
      ASSERT_EQ(r.fate, server::kFateApplied);
      // No worker begins a step before all have pushed the one before it, and none has more than
      // four pushes on their way; a worker reads one step ahead.
      ASSERT_LE(r.version_applied - r.version_read, (kWorkers - 1) * (2 * 4 + 3) + 1);
    }
  }
  EXPECT_EQ(recorded.tables.count("dense"), 0u);
  const nlohmann::json& dense = recorded.run.summary["staleness"]["dense"];
  EXPECT_TRUE(dense.contains("in_flight_depth"));
  EXPECT_FALSE(dense.contains("clock_gap")) << "replicas take each step together: none to measure";
}

// Backup workers: no read is stale, every step of every range is closed by three of four or by all
// that still have data, and what is dropped came after its step had closed.
TEST_F(StalenessTest, BackupWorkersDropWhatComesLate) {
  Recorded recorded;
  Run(Join(kUneven, {"dense.synchroniser=SERVERS", "policy={kind: BACKUP_WORKERS backups: 1}"}),
      &recorded);
  if (HasFailure()) return;
  size_t dropped = 0, of_all = 0;
  for (const auto& [id, records] : recorded.ranges) {
    SCOPED_TRACE(absl::StrCat("range ", id));
    for (const server::UpdateRecord& r : records) {
      ASSERT_GE(r.version_read, r.step);
      if (r.fate == server::kFateDropped) {
        ++dropped;
        ASSERT_GT(r.version_applied, r.step);
        ASSERT_EQ(r.divided_by, r.samples);
      } else {
        ASSERT_EQ(r.fate, server::kFateMerged);
        ASSERT_EQ(r.version_applied, r.step);
        ASSERT_GE(r.divided_by, r.samples);
        ASSERT_LE(r.divided_by, uint64_t{kWorkers} * kBatch);
        // A fourth is in it only if one of the others had skipped the step before, which closes
        // with it.
        if (r.divided_by > uint64_t{3} * kBatch) ++of_all;
      }
    }
  }
  EXPECT_GT(dropped, recorded.updates / 100);
  EXPECT_LT(dropped, recorded.updates / 2);
  EXPECT_LT(of_all, recorded.updates / 20);
}

}  // namespace
}  // namespace tandem
