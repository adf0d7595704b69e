// Tests that a run whose processes are killed resumes by itself from the newest checkpoint, and
// ends with the bits of a run that was never disturbed. A failure that would come again ends the
// run.
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

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
using ::testing::Not;

constexpr int64_t kRows = 3 * 66 * 24 + 1;
constexpr int kSteps = 120;

// Steps take their time, so that none of the runs is through before it is disturbed.
Settings Set(int checkpoint_every, int restarts) {
  return {absl::StrCat("train.max_steps=", kSteps),
          "train.epochs=1000",
          absl::StrCat("checkpoint.every_steps=", checkpoint_every),
          absl::StrCat("cluster.max_restarts=", restarts),
          "limits.report_interval_seconds=0.1",
          "fault_injection.slow_workers={mean_seconds: 0.02}"};
}

class RestartTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    job_ = std::make_unique<SmallJob>(kRows, 100);
    const RunResult whole = RunJob(job_->Arguments("whole", Set(20, 0)));
    ASSERT_TRUE(whole.ok()) << whole.DebugString();
    measured_ = whole.Measured();
  }
  static void TearDownTestSuite() { job_.reset(); }

  static std::string Out(const std::string& name) { return job_->File(name); }

  static void Kill(RunningJob* job, const std::string& role) {
    const pid_t pid = job->WaitForRole(role, absl::Seconds(60));
    ASSERT_NE(pid, 0) << role << "\n" << job->driver().Output();
    kill(pid, SIGKILL);
  }

  static void ExpectTheWholeRun(const std::string& name, const RunResult& run, size_t restarts) {
    ASSERT_TRUE(run.ok()) << run.DebugString();
    const absl::StatusOr<ModelBits> whole = ReadCheckpoint(job_->File("whole/model"));
    const absl::StatusOr<ModelBits> model = ReadCheckpoint(job_->File(name + "/model"));
    ASSERT_TRUE(whole.ok() && model.ok()) << whole.status() << model.status();
    EXPECT_EQ(Difference(*whole, *model), "");
    EXPECT_EQ(run.Measured(), measured_);
    EXPECT_EQ(run.summary["steps"], kSteps);
    EXPECT_EQ(run.summary["restarts"].size(), restarts) << run.summary.dump();
    ExpectOneClock(name, run.summary);
  }

  // The seconds of the run go on over a restart, and begin with the first attempt.
  static void ExpectOneClock(const std::string& name, const nlohmann::json& summary) {
    std::ifstream file(Out(name) + "/metrics.jsonl");
    double last = 0;
    for (std::string text; std::getline(file, text);) {
      const nlohmann::json line = nlohmann::json::parse(text);
      if (line["event"] == "started") {
        EXPECT_EQ(line["since"], summary["started"]);
      }
      if (line["event"] != "started" && line["event"] != "progress") continue;
      EXPECT_GE(line["seconds"], last) << line;
      last = line["seconds"].get<double>();
    }
    EXPECT_GT(last, 0);
    EXPECT_GE(summary["seconds"], last);
  }

  static std::unique_ptr<SmallJob> job_;
  static std::string measured_;
};

std::unique_ptr<SmallJob> RestartTest::job_;
std::string RestartTest::measured_;

class KilledRoleTest : public RestartTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(KilledRoleTest, TheRunGoesOnFromTheCheckpoint) {
  const std::string role = GetParam();
  const std::string name = "killed-" + role;
  RunningJob job(job_->Arguments(name, Set(20, 3)));
  ASSERT_TRUE(WaitForCheckpointAfter(&job, Out(name), 0)) << job.driver().Output();
  const int64_t saved = CheckpointStep(Out(name));
  ASSERT_TRUE(job.WaitForStep(saved + 3, kRunLimit));
  Kill(&job, role);
  const RunResult run = job.Finish(kRunLimit);
  ExpectTheWholeRun(name, run, 1);
  EXPECT_TRUE(job.WaitForNobody(absl::Seconds(20)));
  const nlohmann::json& restart = run.summary["restarts"][0];
  EXPECT_THAT(restart["why"].get<std::string>(), HasSubstr("signal 9"));
  EXPECT_GE(restart["step"], saved);
  EXPECT_GE(restart["steps_again"], 0);
  EXPECT_GT(restart["seconds"], 0.0);
  EXPECT_THAT(run.output, HasSubstr("; restart 1, from step "));
  EXPECT_THAT(run.output, HasSubstr("all workers train again after "));
  EXPECT_EQ(run.summary["resumed"], 1);
}

INSTANTIATE_TEST_SUITE_P(Roles, KilledRoleTest,
                         ::testing::Values("worker-0", "worker-1", "server-1", "scheduler"),
                         [](const auto& role) {
                           std::string name = role.param;
                           name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
                           return name;
                         });

// The servers find that the newest checkpoint is damaged when they load it. That is no restart: the
// job allows one.
TEST_F(RestartTest, ADamagedCheckpointIsPassedOver) {
  RunningJob job(job_->Arguments("damaged", Set(20, 1)));
  ASSERT_TRUE(WaitForCheckpointAfter(&job, Out("damaged"), 0)) << job.driver().Output();
  const int64_t older = CheckpointStep(Out("damaged"));
  ASSERT_TRUE(WaitForCheckpointAfter(&job, Out("damaged"), older)) << job.driver().Output();
  const absl::StatusOr<cli::ResumePoint> newest = cli::FindResumePoint(Out("damaged"), {});
  ASSERT_TRUE(newest.ok()) << newest.status();
  const std::string file = DamageRanges(newest->checkpoint);
  Kill(&job, "server-1");
  const RunResult run = job.Finish(kRunLimit);
  ExpectTheWholeRun("damaged", run, 1);
  EXPECT_THAT(run.output, HasSubstr(absl::StrCat("restart 1, from step ", newest->step)));
  EXPECT_THAT(run.output, HasSubstr("passed over: " + file));
  const int64_t step = run.summary["restarts"][0]["step"];
  EXPECT_LT(step, newest->step);
  EXPECT_THAT(run.output, HasSubstr(absl::StrCat("resuming from step ", step)));
  EXPECT_GE(run.summary["restarts"][0]["steps_again"], newest->step - step);
}

// Workers that do not take steps together, with the dense part on servers: another process takes
// the place of a killed worker, and the others continue.
struct Replaced {
  const char* name;
  const char* policy;
  const char* role;
  const char* deal;
};

class ReplacedWorkerTest : public RestartTest, public ::testing::WithParamInterface<Replaced> {};

TEST_P(ReplacedWorkerTest, TheOthersGoOn) {
  const Replaced& param = GetParam();
  const Settings set =
      Join(Set(100'000, 3), {absl::StrCat("policy={", param.policy, "}"), "reproducible=false",
                             "dense.synchroniser=SERVERS", absl::StrCat("data.deal=", param.deal)});
  const RunResult undisturbed = RunJob(job_->Arguments(absl::StrCat(param.name, "-whole"), set));
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.DebugString();

  RunningJob job(job_->Arguments(param.name, set));
  ASSERT_TRUE(job.WaitForStep(8, kRunLimit)) << job.driver().Output();
  Kill(&job, param.role);
  const RunResult run = job.Finish(kRunLimit);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_TRUE(job.WaitForNobody(absl::Seconds(20)));
  EXPECT_THAT(run.output, HasSubstr("a new process takes its place, and the others continue"));
  EXPECT_THAT(run.output, HasSubstr("trains again after "));
  EXPECT_THAT(run.output, Not(HasSubstr("; restart 1")));
  EXPECT_FALSE(run.summary.contains("resumed")) << "there is one attempt";
  ASSERT_EQ(run.summary["restarts"].size(), 1u) << run.summary.dump();
  const nlohmann::json& restart = run.summary["restarts"][0];
  EXPECT_THAT(restart["why"].get<std::string>(), HasSubstr("signal 9"));
  EXPECT_THAT(restart["replaced"].get<std::string>(), ::testing::StartsWith("worker "));
  EXPECT_GT(restart["seconds"], 0.0);
  // Each row is trained on once, and each update arrives once.
  EXPECT_EQ(run.summary["samples"], undisturbed.summary["samples"]);
  const nlohmann::json& updates = run.summary["updates"];
  EXPECT_EQ(updates["sent"], undisturbed.summary["updates"]["sent"]) << updates;
  EXPECT_EQ(updates["arrived"], updates["sent"]) << updates;
  EXPECT_EQ(updates["applied"].get<int64_t>() + updates["dropped"].get<int64_t>(),
            updates["sent"].get<int64_t>())
      << updates;
}

INSTANTIATE_TEST_SUITE_P(Policies, ReplacedWorkerTest,
                         ::testing::Values(Replaced{"asp", "kind: ASP", "worker-1", "BLOCKS"},
                                           Replaced{"ssp", "kind: SSP bound: 2", "worker-0",
                                                    "ROWS"}),
                         [](const auto& replaced) { return std::string(replaced.param.name); });

// The other workers notice the change only at the end of their pass.
TEST_F(RestartTest, ANewProcessRefusesChangedFiles) {
  const SmallJob own(8 * kRows, 100);
  RunningJob job(own.Arguments(
      "changed", {"train.epochs=1000", "checkpoint.every_steps=100000", "policy={kind: ASP}",
                  "cluster.max_restarts=3", "reproducible=false", "dense.synchroniser=SERVERS",
                  "fault_injection.slow_workers={mean_seconds: 0.05}"}));
  ASSERT_TRUE(job.WaitForStep(8, kRunLimit)) << job.driver().Output();
  job.driver().Signal(SIGUSR1);
  ASSERT_TRUE(WaitForCheckpointAfter(&job, own.File("changed"), 0)) << job.driver().Output();
  std::ofstream(own.File("train.tsv"), std::ios::app) << "\n";
  Kill(&job, "worker-1");
  const RunResult run = job.Finish(kRunLimit);
  EXPECT_EQ(run.exit_code, 1) << run.DebugString();
  EXPECT_THAT(run.output, HasSubstr("a new process takes its place"));
  EXPECT_THAT(run.output, Not(HasSubstr("trains again after ")));
  EXPECT_THAT(run.output, HasSubstr("its new process failed: data.train: the files have changed"));
  EXPECT_THAT(run.output, HasSubstr("no new attempt: --resume "));
  EXPECT_THAT(run.output, HasSubstr("data.train: file 0 was train.tsv of "));
  EXPECT_TRUE(job.WaitForNobody(absl::Seconds(20)));
}

TEST_F(RestartTest, OneRoleAfterTheOtherAlsoWhileTheNextAttemptStarts) {
  RunningJob job(job_->Arguments("three", Set(10, 10)));
  ASSERT_TRUE(WaitForCheckpointAfter(&job, Out("three"), 0)) << job.driver().Output();
  Kill(&job, "worker-2");
  ASSERT_TRUE(job.driver().WaitForOutput("restart 1,", absl::Seconds(60)));
  Kill(&job, "server-0");  // perhaps before it has loaded anything
  ASSERT_TRUE(job.driver().WaitForOutput("restart 2,", absl::Seconds(60))) << job.driver().Output();
  ASSERT_TRUE(job.driver().WaitForOutput("train again", absl::Seconds(60)));
  Kill(&job, "scheduler");
  ExpectTheWholeRun("three", job.Finish(kRunLimit), 3);
}

TEST_F(RestartTest, WithoutACheckpointItBeginsAgain) {
  RunningJob job(job_->Arguments("anew", Set(100'000, 3)));
  ASSERT_TRUE(job.WaitForStep(5, kRunLimit));
  Kill(&job, "worker-1");
  const RunResult run = job.Finish(kRunLimit);
  ExpectTheWholeRun("anew", run, 1);
  EXPECT_THAT(run.output, HasSubstr("from the beginning: there is no checkpoint yet"));
  EXPECT_GE(run.summary["restarts"][0]["steps_again"], 5);
  EXPECT_THAT(ReadTextFile(Out("anew/logs/worker-1.log")), HasSubstr("asks the scheduler"));
}

TEST_F(RestartTest, TooManyEndTheRunWithWhatToDo) {
  RunningJob job(job_->Arguments("often", Set(10, 1)));
  ASSERT_TRUE(WaitForCheckpointAfter(&job, Out("often"), 0)) << job.driver().Output();
  Kill(&job, "worker-1");
  ASSERT_TRUE(job.driver().WaitForOutput("train again", absl::Seconds(60)))
      << job.driver().Output();
  Kill(&job, "worker-1");
  const RunResult run = job.Finish(absl::Seconds(60));
  EXPECT_EQ(run.exit_code, 1) << run.DebugString();
  EXPECT_THAT(run.output, HasSubstr("restarted 1 times within an hour, as often as "
                                    "cluster.max_restarts allows; continue with: tandem run"));
  EXPECT_EQ(run.summary["restarts"].size(), 1u);
  EXPECT_THAT(run.summary["failed"]["reason"].get<std::string>(), HasSubstr("signal 9"));
  EXPECT_TRUE(job.WaitForNobody(absl::Seconds(20)));
}

TEST_F(RestartTest, ALossThatIsNotFiniteIsNotTriedAgain) {
  Settings set = Set(10, 3);
  set.push_back("dense.optimizer.learning_rate=1e30");
  const RunResult run = RunJob(job_->Arguments("wild", set));
  EXPECT_EQ(run.exit_code, 1) << run.DebugString();
  EXPECT_THAT(run.output, Not(HasSubstr("restart 1")));
  EXPECT_FALSE(run.summary.contains("restarts"));
}

// A signal after a restart is for the attempt that runs then.
TEST_F(RestartTest, ASignalStillMakesACheckpoint) {
  Settings set = Set(20, 3);
  set.push_back("train.max_steps=100000");
  RunningJob job(job_->Arguments("stopped", set));
  ASSERT_TRUE(job.WaitForStep(3, kRunLimit));
  Kill(&job, "server-0");
  ASSERT_TRUE(job.driver().WaitForOutput("train again", absl::Seconds(60)));
  job.driver().Signal(SIGTERM);
  const RunResult run = job.Finish(absl::Seconds(60));
  EXPECT_EQ(run.signal, SIGTERM) << run.DebugString();
  EXPECT_THAT(run.output, HasSubstr("checkpoint at step "));
  EXPECT_TRUE(run.summary.contains("stopped"));
  EXPECT_EQ(run.summary["restarts"].size(), 1u);
}

}  // namespace
}  // namespace tandem
