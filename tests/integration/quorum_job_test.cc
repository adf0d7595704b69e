// Dense sums that do not wait for all workers, in whole jobs: one worker is slow on purpose. By
// counts and bits, never by the clock.
#include <signal.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/kill_and_resume.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr int kSlow = 1;
// 34, 33 and 33 batches an epoch.
constexpr int64_t kRows = 33 * 3 * 24 + 1;

class QuorumJobTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { job_ = std::make_unique<SmallJob>(kRows, 100); }
  static void TearDownTestSuite() { job_.reset(); }

  static std::string Name() {
    return ::testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  static RunArguments Arguments(const std::string& name, const Settings& set) {
    return job_->Arguments(name, Join({"reproducible=false", "policy={kind: ASP}"}, set));
  }

  // Every gradient is in one sum, and has missed at most `bound` of them.
  static void ExpectAllSummed(const RunResult& run, int64_t bound) {
    ASSERT_TRUE(run.ok()) << run.DebugString();
    const nlohmann::json& dense = run.summary["staleness"]["dense"];
    EXPECT_LE(dense["version_staleness"]["max"], bound) << dense.dump();
    ASSERT_EQ(dense["by_worker"].size(), run.summary["by_worker"].size());
    int64_t summed = 0;
    for (size_t w = 0; w < dense["by_worker"].size(); ++w) {
      const int64_t of_worker = dense["by_worker"][w]["version_staleness"]["count"];
      EXPECT_EQ(of_worker, run.summary["by_worker"][w]["steps"]) << w << ": " << dense.dump();
      summed += of_worker;
    }
    EXPECT_EQ(dense["version_staleness"]["count"], summed);
  }

  static std::unique_ptr<SmallJob> job_;
};
std::unique_ptr<SmallJob> QuorumJobTest::job_;

const char kOneIsSlow[] = "fault_injection.slow_workers=[{worker: 1 mean_seconds: 0.02}]";

// The others leave the slow one behind, up to the bound; what it computes is summed all the same.
TEST_F(QuorumJobTest, TheSlowWorkersGradientsComeLateAndAreSummed) {
  for (const std::string quorum : {"SOLO", "MAJORITY"}) {
    SCOPED_TRACE(quorum);
    RunArguments arguments =
        Arguments(Name() + quorum, {"dense.quorum=" + quorum, "dense.quorum_bound=3", kOneIsSlow,
                                    "train.epochs=2", "policy={kind: SSP bound: 4}"});
    const RunResult run = RunJob(arguments);
    ExpectAllSummed(run, 3);
    if (HasFailure()) return;
    EXPECT_EQ(run.summary["samples"], 2 * kRows);
    EXPECT_THAT(run.summary["policy"]["dense"].get<std::string>(), HasSubstr(quorum))
        << run.summary.dump();
    const nlohmann::json& by_worker = run.summary["staleness"]["dense"]["by_worker"];
    EXPECT_GT(by_worker[kSlow]["version_staleness"]["mean"], 0) << by_worker.dump();
    for (const size_t other : {0, 2}) {
      EXPECT_LT(by_worker[other]["version_staleness"]["mean"],
                by_worker[kSlow]["version_staleness"]["mean"])
          << by_worker.dump();
    }
  }
}

// Two are a majority of two, so their sums wait for both: with rows that nobody changes the job is
// the plain allreduce to the bit, its end of data at different steps included.
TEST_F(QuorumJobTest, AMajorityOfTwoIsThePlainAllreduceToTheBit) {
  const Settings two = {"cluster.workers=2",    "dense.algorithm=DIRECT", "table[0].frozen=true",
                        "table[1].frozen=true", "train.epochs=2",         "train.batch_size=23"};
  ModelBits models[2];
  for (const int quorum : {0, 1}) {
    const RunArguments arguments =
        Arguments(absl::StrCat(Name(), quorum),
                  quorum == 0 ? two : Join(two, {"dense.quorum=MAJORITY", kOneIsSlow}));
    const RunResult run = RunJob(arguments);
    ASSERT_TRUE(run.ok()) << run.DebugString();
    if (quorum == 1) {
      ExpectAllSummed(run, 0);
    }
    absl::StatusOr<ModelBits> model = ReadCheckpoint(arguments.out + "/model");
    ASSERT_TRUE(model.ok()) << model.status();
    models[quorum]["dense"] = (*model)["dense"];
  }
  EXPECT_EQ(Difference(models[0], models[1]), "");
}

// The bits follow from who was quicker; the counts do not.
TEST_F(QuorumJobTest, AKilledRunGoesOnAndSumsEveryGradientOnce) {
  const Settings set = {"dense.quorum=SOLO", "train.epochs=3", "checkpoint.every_steps=10",
                        kOneIsSlow};
  const RunArguments arguments = Arguments(Name(), set);
  {
    RunningJob job(arguments);
    ASSERT_TRUE(job.WaitForStep(30, kRunLimit)) << job.driver().Output();
    KillAll(&job);
  }
  EXPECT_GT(CheckpointStep(arguments.out), 0);
  const RunResult run = RunJob(Resumed(arguments));
  ExpectAllSummed(run, 4);
  if (HasFailure()) return;
  EXPECT_EQ(run.summary["resumed"], 1);
  EXPECT_EQ(run.summary["samples"], 3 * kRows);
}

// ---- sync rounds of replicas (local_steps.quorum)
// ----------------------------------------------------

const Settings kSyncRounds = {
    "dense.synchroniser=LOCAL_SGD",
    "dense.local_steps={sync_every: 4 quorum: 2 outer_learning_rate: 0.7 outer_momentum: 0.5}",
    "dense.quorum_bound=2", kOneIsSlow};

// What a worker has moved is in one sync round: so many as it has been to, or has settled for.
void ExpectAllMet(const RunResult& run, int64_t bound) {
  ASSERT_TRUE(run.ok()) << run.DebugString();
  const nlohmann::json& dense = run.summary["staleness"]["dense"];
  EXPECT_LE(dense["version_staleness"]["max"], bound) << dense.dump();
  for (size_t w = 0; w < dense["by_worker"].size(); ++w) {
    const int64_t sync_rounds = dense["by_worker"][w]["version_staleness"]["count"];
    const int64_t steps = run.summary["by_worker"][w]["steps"];
    EXPECT_GE(4 * sync_rounds, steps) << w << ": " << dense.dump();
    EXPECT_LT(sync_rounds, steps) << w << ": " << dense.dump();
  }
}

TEST_F(QuorumJobTest, SyncRoundsLeaveTheSlowWorkerBehindWithinTheBound) {
  const RunResult run = RunJob(
      Arguments(Name(), Join(kSyncRounds, {"train.epochs=2", "policy={kind: SSP bound: 40}"})));
  ExpectAllMet(run, 2);
  if (HasFailure()) return;
  EXPECT_EQ(run.summary["samples"], 2 * kRows);
  EXPECT_THAT(run.summary["policy"]["dense"].get<std::string>(), HasSubstr("quorum 2"));
  const nlohmann::json& by_worker = run.summary["staleness"]["dense"]["by_worker"];
  EXPECT_GT(by_worker[kSlow]["version_staleness"]["mean"], 0) << by_worker.dump();
}

TEST_F(QuorumJobTest, AKilledRunOfSyncRoundsGoesOn) {
  const Settings set = Join(kSyncRounds, {"train.epochs=3", "checkpoint.every_steps=10",
                                          "dense.local_steps.outer_optimizer=HELOCO"});
  const RunArguments arguments = Arguments(Name(), set);
  {
    RunningJob job(arguments);
    ASSERT_TRUE(job.WaitForStep(30, kRunLimit)) << job.driver().Output();
    KillAll(&job);
  }
  const RunResult run = RunJob(Resumed(arguments));
  ExpectAllMet(run, 2);
  if (HasFailure()) return;
  EXPECT_EQ(run.summary["resumed"], 1);
  EXPECT_EQ(run.summary["samples"], 3 * kRows);
}

// It is not in a collective that a worker waits then, but it hears who is lost as ever.
TEST_F(QuorumJobTest, AWorkerThatDiesIsNamed) {
  const RunArguments arguments =
      Arguments(Name(), {"dense.quorum=MAJORITY", "train.epochs=100000",
                         "fault_injection.slow_workers=[{worker: 0 mean_seconds: 0.02}]"});
  RunningJob job(arguments);
  ASSERT_TRUE(job.WaitForStep(10, kRunLimit)) << job.driver().Output();
  kill(job.Roles()["worker-2"], SIGKILL);
  const RunResult run = job.Finish(kRunLimit);
  EXPECT_FALSE(run.timed_out);
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.output, HasSubstr("worker 2"));
}

}  // namespace
}  // namespace tandem
