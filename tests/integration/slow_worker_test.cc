// Workers that are slow on purpose: who is felt where under which policy, and that a sleep is
// neither a stall nor in the way of an end. By counts and by who waited for whom, never by the
// clock.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr int kWorkers = 3, kSlow = 1;

class SlowWorkerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { job_ = std::make_unique<SmallJob>(/*train_rows=*/3000, 100); }
  static void TearDownTestSuite() { job_.reset(); }

  static RunArguments Arguments(const Settings& set) {
    Settings all = {"reproducible=false", "dense.synchroniser=SERVERS",
                    "model={mlp { hidden: 8 }}"};
    all.insert(all.end(), set.begin(), set.end());
    RunArguments arguments =
        job_->Arguments(::testing::UnitTest::GetInstance()->current_test_info()->name(), all);
    arguments.checkpoint = false;
    return arguments;
  }

  static std::unique_ptr<SmallJob> job_;
};
std::unique_ptr<SmallJob> SlowWorkerTest::job_;

const char kOneIsSlow[] = "fault_injection.slow_workers=[{worker: 1 mean_seconds: 0.03}]";

// All must come through their share of the data, but the slow one is the one that is waited for:
// each step waits for its update alone, and it waits for nobody for as long.
TEST_F(SlowWorkerTest, BspWaitsForTheSlowWorker) {
  const RunResult run = RunJob(Arguments({"policy={kind: BSP}", kOneIsSlow, "train.max_steps=25"}));
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_THAT(
      run.output,
      HasSubstr("slow on purpose (fault_injection.slow_workers): worker 1 CONSTANT 0.03 s"));
  const nlohmann::json& workers = run.summary["by_worker"];
  for (int rank = 0; rank < kWorkers; ++rank) {
    SCOPED_TRACE(rank);
    const auto waited = workers[static_cast<size_t>(rank)]["waited_for"].get<std::vector<double>>();
    double others = 0;
    for (int by = 0; by < kWorkers; ++by)
      others += by == kSlow ? 0 : waited[static_cast<size_t>(by)];
    if (rank == kSlow) continue;
    EXPECT_GT(waited[kSlow], others) << run.summary["by_worker"].dump();
    EXPECT_EQ(workers[static_cast<size_t>(rank)]["slept_seconds"], 0);
  }
  // 25 steps of at least 30 ms, of which it computed for a part.
  const double slept = workers[kSlow]["slept_seconds"];
  EXPECT_GT(slept, 0);
  EXPECT_LE(slept, run.summary["seconds"].get<double>());
}

// The slow worker computes in vain. The other workers are slowed down a little, too: otherwise they
// would end so soon that the slow worker is late for a step or two only.
TEST_F(SlowWorkerTest, BackupWorkersDropWhatTheSlowWorkerComputed) {
  const RunResult run = RunJob(Arguments({"policy={kind: BACKUP_WORKERS backups: 1}",
                                          "fault_injection.slow_workers=[{worker: 0 mean_seconds: "
                                          "0.02}, {worker: 1 mean_seconds: 0.1}, "
                                          "{worker: 2 mean_seconds: 0.02}]"}));
  ASSERT_TRUE(run.ok()) << run.DebugString();
  const nlohmann::json& workers = run.summary["by_worker"];
  for (int rank : {0, 2}) {
    EXPECT_GT(workers[kSlow]["dropped"], workers[static_cast<size_t>(rank)]["dropped"])
        << workers.dump();
  }
}

// The same steps sleep as long again, also by a trace file, and a trace says where they slept.
TEST_F(SlowWorkerTest, TracesOfStepsDriveTracesOfTheRun) {
  const std::string file = job_->File("steps.txt");
  WriteTextFile(file, "0.02\n0\n0.03\n");
  RunArguments arguments =
      Arguments({absl::StrCat("fault_injection.slow_workers=[{worker: 1 trace: '", file, "'}]"),
                 "train.max_steps=6"});
  arguments.flags = {"--trace", "6"};
  const RunResult run = RunJob(arguments);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  // Worker 1 of 3 begins at line 1: 0, 0.03, 0.02, 0, 0.03, 0.02.
  const std::string trace = ReadTextFile(arguments.out + "/trace-1.json");
  for (const int step : {1, 2, 4, 5}) {
    EXPECT_THAT(trace, HasSubstr(absl::StrCat("\"sleep on purpose ", step, "\"")));
  }
  for (const int step : {0, 3}) {
    EXPECT_THAT(trace, ::testing::Not(HasSubstr(absl::StrCat("\"sleep on purpose ", step, "\""))));
  }
  EXPECT_THAT(ReadTextFile(arguments.out + "/trace-0.json"), ::testing::Not(HasSubstr("sleep")));
}

// When each slice of this kind ended, by step, in microseconds of the host's clock.
std::map<int, double> EndsOf(const std::string& trace, const std::string& kind) {
  std::map<int, double> ends;
  const nlohmann::json all = nlohmann::json::parse(ReadTextFile(trace));
  for (const auto& event : all["traceEvents"]) {
    const std::string name = event["name"];
    if (event["ph"] != "X" || !absl::StartsWith(name, kind + " ")) continue;
    ends[std::stoi(name.substr(kind.size()))] =
        event["ts"].get<double>() + event["dur"].get<double>();
  }
  return ends;
}

// Replicas: no step of the others ends before the slow worker has slept in it. Its gradient would
// go in buckets, as soon as each is computed; they do not go ahead of the sleep.
TEST_F(SlowWorkerTest, AnAllreduceTakesTheSlowWorkersTime) {
  RunArguments arguments = Arguments(
      {"dense.synchroniser=ALLREDUCE", "dense.bucket_bytes=256", kOneIsSlow, "train.max_steps=10"});
  arguments.flags = {"--trace", "10"};
  const RunResult run = RunJob(arguments);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  const auto slept = EndsOf(arguments.out + "/trace-1.json", "sleep on purpose");
  const auto synchronised = EndsOf(arguments.out + "/trace-0.json", "synchronise");
  ASSERT_GT(slept.size(), 5u);
  for (const auto& [step, end] : slept) EXPECT_GE(synchronised.at(step), end) << step;
}

// Ctrl-C, in the middle of a sleep that would last for minutes.
TEST_F(SlowWorkerTest, ASleepIsNotInTheWayOfAnEnd) {
  RunArguments arguments =
      Arguments({"fault_injection.slow_workers=[{worker: 1 mean_seconds: 400}]"});
  RunningJob job(arguments);
  ASSERT_TRUE(job.driver().WaitForOutput("slow on purpose", absl::Seconds(60)));
  // Steps are shown from the first report on: then the worker sleeps, or is about to.
  ASSERT_TRUE(job.WaitForStep(0, absl::Seconds(60))) << job.driver().Output();
  job.driver().Signal(SIGINT);
  const RunResult run = job.Finish(absl::Seconds(30));
  EXPECT_FALSE(run.timed_out) << run.DebugString();
  EXPECT_EQ(run.signal, SIGINT) << run.DebugString();
  EXPECT_TRUE(job.WaitForNobody(absl::Seconds(10)));
}

}  // namespace
}  // namespace tandem
