// Asynchronous jobs of real processes, run again in their recorded order: the same bits; with one
// thing changed; and what is refused.
#include <signal.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_compare.h"
#include "server/record/order_file.h"
#include "tests/integration/kill_and_resume.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

const Settings kRecorded = {"reproducible=false",
                            "staleness.record_order=true",
                            "train.epochs=2",
                            "dense.synchroniser=SERVERS",
                            "train.prefetch_steps=1",
                            "table[1].optimizer={kind: ADAM learning_rate: 0.01 schedule {kind: "
                            "COSINE restart_samples: 900 end_factor: 0.1}}"};

const char kByRow[] = "table[1].optimizer.step_count=ROW";

class ReplayJobTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { job_ = std::make_unique<SmallJob>(2500, 100); }
  static void TearDownTestSuite() { job_.reset(); }

  static RunResult Run(const std::string& name, const Settings& set) {
    RunResult result = RunJob(job_->Arguments(name, set));
    EXPECT_TRUE(result.ok()) << result.DebugString();
    return result;
  }
  static RunResult Replay(const std::string& recorded, const std::string& name,
                          const Settings& set = {}, const std::vector<std::string>& flags = {}) {
    std::vector<std::string> argv = {ProgramPath("tandem"), "replay", job_->File(recorded), "--out",
                                     job_->File(name)};
    argv.insert(argv.end(), flags.begin(), flags.end());
    for (const std::string& text : set) argv.insert(argv.end(), {"--set", text});
    return RunProgram(argv);
  }
  static size_t FilesThatDiffer(const std::string& a, const std::string& b) {
    const auto left = server::CheckpointReader::Open(job_->File(a) + "/model");
    const auto right = server::CheckpointReader::Open(job_->File(b) + "/model");
    EXPECT_TRUE(left.ok() && right.ok()) << left.status() << right.status();
    const auto compared = server::CompareModels(*left, *right);
    EXPECT_TRUE(compared.ok()) << compared.status();
    return compared->differences.size();
  }

  static std::unique_ptr<SmallJob> job_;
};
std::unique_ptr<SmallJob> ReplayJobTest::job_;

// Two runs by chance differ; so the replay's bits are its own doing.
TEST_F(ReplayJobTest, AsynchronousRunsHaveTheirBitsAgain) {
  int number = 0;
  for (const Settings& kind :
       {Settings{"policy={kind: ASP}"}, Settings{"policy={kind: SSP bound: 3}"},
        Settings{"policy={kind: ASP}", "dense.synchroniser=ALLREDUCE"},
        Settings{"policy={kind: ASP}", kByRow}}) {
    const std::string name = absl::StrCat("run", number++);
    Run(name, Join(kRecorded, kind));
    if (kind.back() == kByRow) {  // jobs of earlier versions do not say so
      const std::string job = job_->File(name + "/job.textproto");
      WriteTextFile(job, absl::StrReplaceAll(ReadTextFile(job), {{"step_count: ROW", ""}}));
    }
    const RunResult again = Replay(name, name + "-again");
    EXPECT_TRUE(again.ok()) << again.DebugString();
    EXPECT_THAT(again.output, HasSubstr("replayed: the same bits, in "));
    EXPECT_EQ(FilesThatDiffer(name, name + "-again"), 0u) << kind[0];
  }
  Run("free", Join(kRecorded, {"policy={kind: ASP}"}));
  EXPECT_GT(FilesThatDiffer("run0", "free"), 0u);
}

// A run that begins with a model begins with it again.
TEST_F(ReplayJobTest, ARunThatBeganWithAModelDoesSoAgain) {
  Run("before", Join(kRecorded, {"train.epochs=1"}));
  RunArguments arguments = job_->Arguments("behind", Join(kRecorded, {"policy={kind: ASP}"}));
  arguments.init_from = job_->File("before/model");
  const RunResult behind = RunJob(arguments);
  ASSERT_TRUE(behind.ok()) << behind.DebugString();
  const RunResult again = Replay("behind", "behind-again");
  EXPECT_TRUE(again.ok()) << again.DebugString();
  EXPECT_THAT(again.output, HasSubstr("replayed: the same bits, in "));
}

TEST_F(ReplayJobTest, OneThingMayChangeUnderTheSameOrder) {
  Run("change", Join(kRecorded, {"policy={kind: ASP}"}));
  const RunResult changed =
      Replay("change", "changed",
             {"table[0].optimizer.learning_rate=0.01", "dense.optimizer.learning_rate=0.001"});
  EXPECT_TRUE(changed.ok()) << changed.DebugString();
  EXPECT_THAT(changed.output, HasSubstr("changed: table[0].optimizer.learning_rate: 0.05 -> 0.01"));
  EXPECT_THAT(changed.output, HasSubstr("replayed with changes in the recorded order: "));
  EXPECT_GT(FilesThatDiffer("change", "changed"), 0u);
  // The changed run has the same order, so it can be run again as well.
  const RunResult again = Replay("changed", "changed-again");
  EXPECT_TRUE(again.ok()) << again.DebugString();
  EXPECT_THAT(again.output, HasSubstr("replayed: the same bits, in "));

  for (const auto& [set, why] : std::vector<std::pair<std::string, std::string>>{
           {"train.batch_size=12", "train.batch_size: 24 -> 12"},
           {"cluster.servers=1", "cluster.servers: 2 -> 1"},
           {"policy={kind: SSP bound: 2}", "kind: ASP -> SSP"},
           {"train.epochs=3", "train.epochs: 2 -> 3"}}) {
    const RunResult refused = Replay("change", "refused", {set});
    EXPECT_EQ(refused.exit_code, 2) << refused.DebugString();
    EXPECT_THAT(refused.output, HasSubstr(why));
    EXPECT_THAT(refused.output, HasSubstr("docs/REPLAY.md"));
    EXPECT_FALSE(fs::exists(job_->File("refused")));
  }
}

// Only a run that has saved nothing has nothing to compare.
TEST_F(ReplayJobTest, ADamagedModelIsNoModelWithTheSameBits) {
  Run("damaged", Join(kRecorded, {"policy={kind: ASP}", "train.epochs=1"}));
  const std::string model = job_->File("damaged/model");
  std::vector<std::string> files;  // of its checkpoint
  for (const auto& entry : fs::recursive_directory_iterator(model)) {
    if (entry.path().extension() == ".segment") files.push_back(entry.path().string());
  }
  ASSERT_FALSE(files.empty());
  const auto expect_failed = [](const std::string& why) {
    const RunResult again = Replay("damaged", "damaged-again", {}, {"--overwrite"});
    EXPECT_EQ(again.exit_code, 1) << again.DebugString();
    EXPECT_THAT(again.output, HasSubstr("tandem replay: "));
    EXPECT_THAT(again.output, HasSubstr(why));
    EXPECT_THAT(again.output, Not(HasSubstr("replayed")));
  };
  fs::resize_file(files[0], fs::file_size(files[0]) - 1);
  expect_failed(files[0]);
  fs::remove(files[0]);
  expect_failed(files[0]);
  fs::remove_all(model);
  const RunResult nothing = Replay("damaged", "damaged-again", {}, {"--overwrite"});
  EXPECT_TRUE(nothing.ok()) << nothing.DebugString();
  EXPECT_THAT(nothing.output, HasSubstr("replayed; no models to compare: " + model));
}

TEST_F(ReplayJobTest, ARunThatWasKilledIsRefusedAndSoIsOneThatWentOn) {
  const Settings set = Join(kRecorded, {"policy={kind: ASP}", "train.epochs=1000",
                                        "train.max_steps=600", "checkpoint.every_steps=40"});
  {
    RunningJob job(job_->Arguments("killed", set));
    ASSERT_TRUE(WaitForCheckpointAfter(&job, job_->File("killed"), -1)) << "too fast to be killed";
    KillAll(&job);
  }
  const RunResult killed = Replay("killed", "x");
  EXPECT_EQ(killed.exit_code, 2) << killed.DebugString();
  const RunResult resumed = RunJob(Resumed(job_->Arguments("killed", set)));
  ASSERT_TRUE(resumed.ok()) << resumed.DebugString();
  const RunResult went_on = Replay("killed", "x");
  EXPECT_EQ(went_on.exit_code, 2) << went_on.DebugString();
  EXPECT_THAT(went_on.output, HasSubstr("the run was resumed from a checkpoint"));
}

TEST_F(ReplayJobTest, WhatCannotBeReplayedIsSaidInOneLine) {
  const auto expect_refused = [](const RunResult& result, const std::string& why) {
    EXPECT_EQ(result.exit_code, 2) << result.DebugString();
    EXPECT_THAT(result.output, HasSubstr(why));
  };
  expect_refused(Replay("nowhere", "x"), "expected the folder of a run that has ended");
  Run("unrecorded", {"reproducible=false", "policy={kind: ASP}"});
  expect_refused(Replay("unrecorded", "x"), "hint: train with --set staleness.record_order=true");
  Run("recorded", Join(kRecorded, {"policy={kind: ASP}"}));
  expect_refused(Replay("recorded", "recorded/model"), "is the recorded run");
  expect_refused(RunJob(job_->Arguments(
                     "backups", Join(kRecorded, {"policy={kind: BACKUP_WORKERS backups: 1}"}))),
                 "it cannot be replayed");
  expect_refused(RunJob(job_->Arguments("ring", Join(kRecorded, {"dense.synchroniser=ALLREDUCE",
                                                                 "dense.algorithm=RING"}))),
                 "use DIRECT, or drop staleness.record_order");

  // Its order has lost its end, some bytes of it, and a file of one server.
  const std::string file = job_->File("recorded/server-1-shard-0.order");
  fs::resize_file(file, fs::file_size(file) - sizeof(server::OrderEntry));
  expect_refused(Replay("recorded", "lost"), "is a file cut short, or are some missing?");
  fs::resize_file(file, fs::file_size(file) - 1);
  expect_refused(Replay("recorded", "lost"), "ends 63 bytes into an entry of 64");
  fs::remove(file);
  expect_refused(Replay("recorded", "lost"), "is a file cut short, or are some missing?");
  EXPECT_FALSE(fs::exists(job_->File("lost")));
}

}  // namespace
}  // namespace tandem
