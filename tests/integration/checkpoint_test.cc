// Checkpoints: loaded on another number of servers they evaluate to the same bits; a checkpoint
// asked for in the middle is a consistent moment of the run and does not disturb it; what is not a
// whole checkpoint of this model is refused, by name.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/checkpoint/segment_file.h"
#include "tests/integration/kill_and_resume.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/plain_loop.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

const Settings kShort = {"train.max_steps=40"};
const Settings kEvaluateOnly = {"train.evaluate_only=true"};

constexpr int64_t kEpochSteps = 400;

// All tests start from one trained model, on two servers.
class CheckpointTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    job_ = std::make_unique<SmallJob>(/*train_rows=*/3 * 24 * kEpochSteps, /*test_rows=*/500);
    trained_ = RunJob(job_->Arguments("trained", kShort));
  }
  static void TearDownTestSuite() { job_.reset(); }
  void SetUp() override { ASSERT_TRUE(trained_.ok()) << trained_.DebugString(); }

  static std::string Trained() { return job_->File("trained/model"); }

  // Loads `model` and evaluates it, without a step.
  static RunResult Load(const std::string& model, const Settings& set) {
    RunArguments arguments =
        job_->Arguments(absl::StrCat("load-", loads_++), Join(Join(kShort, kEvaluateOnly), set));
    arguments.init_from = model;
    return RunJob(arguments);
  }

  // A copy of the trained model to damage; returns the folder of its files.
  static std::string Copy(const std::string& name) {
    fs::copy(Trained(), job_->File(name), fs::copy_options::recursive);
    return server::CheckpointReader::Open(job_->File(name))->folder();
  }
  // Changes one byte of a table; returns its file.
  static std::string Damage(const std::string& checkpoint, const std::string& table) {
    for (const auto& entry : fs::directory_iterator(checkpoint)) {
      const std::string path = entry.path().string();
      if (!server::IsSegment(path)) continue;
      const auto parts = server::ReadSegmentIndex(path);
      for (const server::CheckpointFile& part : parts.value()) {
        if (part.table != table) continue;
        std::string bytes = ReadTextFile(path);
        bytes[part.offset + part.bytes / 2] ^= 1;
        WriteTextFile(path, bytes);
        return path;
      }
    }
    ADD_FAILURE() << "no part of " << table;
    return "";
  }

  // The run fails, and one line of its output says which file is at fault and what it has.
  static void ExpectRefused(const RunResult& run, const std::string& file,
                            const std::string& what) {
    EXPECT_FALSE(run.timed_out) << run.DebugString();
    EXPECT_NE(run.exit_code, 0) << run.DebugString();
    EXPECT_EQ(run.signal, 0) << run.DebugString();
    EXPECT_TRUE(run.summary.is_null() || run.summary.contains("failed")) << run.DebugString();
    int lines = 0;
    for (const absl::string_view line : absl::StrSplit(run.output, '\n')) {
      if (absl::StrContains(line, file) && absl::StrContains(line, what)) ++lines;
    }
    EXPECT_EQ(lines, 1) << "want one line with " << file << " and \"" << what << "\"\n"
                        << run.DebugString();
  }

  static std::unique_ptr<SmallJob> job_;
  static RunResult trained_;
  static int loads_;
};
std::unique_ptr<SmallJob> CheckpointTest::job_;
RunResult CheckpointTest::trained_;
int CheckpointTest::loads_ = 0;

// Checkpoint, load, no step: the evaluation is that of the run that saved, to the last bit, on any
// number of servers and wherever the dense part lives.
TEST_F(CheckpointTest, LoadsOnAnyNumberOfServers) {
  ASSERT_TRUE(trained_.summary["eval"].contains("logloss")) << trained_.DebugString();
  const std::vector<Settings> variants = {
      {"cluster.servers=1"},
      {"cluster.servers=4"},
      {"cluster.servers=2", "cluster.shards_per_server=2", "dense.synchroniser=SERVERS"}};
  for (const Settings& variant : variants) {
    SCOPED_TRACE(variant[0]);
    const std::string out = absl::StrCat("load-", loads_);
    const RunResult run = Load(Trained(), variant);
    ASSERT_TRUE(run.ok()) << run.DebugString();
    EXPECT_EQ(run.Measured(), trained_.Measured());
    EXPECT_EQ(run.summary["samples"], 0);
    EXPECT_FALSE(fs::exists(job_->File(out + "/model"))) << "there is nothing new to checkpoint";
  }
}

// Training goes on from a checkpoint, weights and slots: the bits of the plain loop from the same
// start.
TEST_F(CheckpointTest, TrainingGoesOnFromACheckpoint) {
  const absl::StatusOr<ModelBits> start = ReadCheckpoint(Trained());
  ASSERT_TRUE(start.ok()) << start.status();
  const absl::StatusOr<PlainLoopResult> plain = RunPlainLoop(job_->Plan(kShort), *start);
  ASSERT_TRUE(plain.ok()) << plain.status();
  for (const std::string dense : {"ALLREDUCE", "SERVERS"}) {
    SCOPED_TRACE(dense);
    RunArguments arguments = job_->Arguments(
        "goes-on-" + dense, Join(kShort, {"cluster.servers=3", "dense.synchroniser=" + dense}));
    arguments.init_from = Trained();
    const RunResult run = RunJob(arguments);
    ASSERT_TRUE(run.ok()) << run.DebugString();
    const absl::StatusOr<ModelBits> model = ReadCheckpoint(arguments.out + "/model");
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(Difference(plain->model, *model), "");
  }
}

// ---- a checkpoint in the middle
// ---------------------------------------------------------------------

// Asks for a checkpoint once the run trains: SIGUSR1 to the scheduler.
void RequestCheckpoint(RunningJob* job) {
  const pid_t scheduler = job->WaitForRole("scheduler", kRunLimit);
  ASSERT_GT(scheduler, 0);
  ASSERT_TRUE(job->WaitForStep(5, kRunLimit));
  kill(scheduler, SIGUSR1);
}

// True once there is a complete checkpoint; false if the run ends or the limit passes without.
bool WaitForCheckpoint(RunningJob* job, const std::string& checkpoint) {
  const absl::Time deadline = MonotonicNow() + kRunLimit;
  while (!server::CheckpointReader::Open(checkpoint).ok() && MonotonicNow() < deadline) {
    if (job->driver().WaitFor(absl::Milliseconds(10))) break;
  }
  return server::CheckpointReader::Open(checkpoint).ok();
}

Settings Steps(int64_t steps) {
  return {absl::StrCat("train.max_steps=", steps), "train.epochs=1000"};
}

// Steps that trained before step number `step`: the end of each epoch has a number of its own.
int64_t StepsBefore(int64_t step) { return step - step / (kEpochSteps + 1); }

// The model of the plain loop after `steps` steps.
ModelBits PlainModel(const SmallJob& job, int64_t steps) {
  absl::StatusOr<PlainLoopResult> plain = RunPlainLoop(job.Plan(Steps(steps)), {});
  EXPECT_TRUE(plain.ok()) << plain.status();
  return plain.ok() ? std::move(plain->model) : ModelBits();
}

// The run itself does not notice. Should it be over before it hears of the wish, a longer one is
// tried.
TEST_F(CheckpointTest, ACheckpointInTheMiddleDoesNotChangeTheRun) {
  bool saved = false;
  for (int64_t steps = 800; !saved && steps <= 16 * 800; steps *= 4) {
    RunningJob job(job_->Arguments(absl::StrCat("disturbed-", steps), Steps(steps)));
    RequestCheckpoint(&job);
    const RunResult run = job.Finish(kRunLimit);
    ASSERT_TRUE(run.ok()) << run.DebugString();
    saved = !absl::StrContains(run.logs, "checkpoint request ignored");
    const absl::StatusOr<ModelBits> model =
        ReadCheckpoint(job_->File(absl::StrCat("disturbed-", steps, "/model")));
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(Difference(PlainModel(*job_, steps), *model), "");
  }
  EXPECT_TRUE(saved);
}

// How many checkpoints that were asked for the scheduler has seen finished.
size_t CheckpointsDone(const RunArguments& arguments) {
  const std::string log = ReadTextFile(arguments.out + "/logs/scheduler.log");
  return std::vector<std::string>(absl::StrSplit(log, " checkpoint written to ")).size() - 1;
}

// Requests that come while a checkpoint is under way follow it, and the job trains on after them.
TEST_F(CheckpointTest, CheckpointsThatAreAskedForAtOnceFollowEachOther) {
  RunArguments arguments = job_->Arguments("many-checkpoints", Steps(1'000'000));
  RunningJob job(arguments);
  RequestCheckpoint(&job);
  const pid_t scheduler = job.Roles()["scheduler"];
  ASSERT_GT(scheduler, 0);
  for (int i = 0; i < 30; ++i) {
    kill(scheduler, SIGUSR1);
    absl::SleepFor(absl::Milliseconds(10));
  }
  const absl::Time deadline = MonotonicNow() + kRunLimit;
  while (CheckpointsDone(arguments) < 2 && MonotonicNow() < deadline) {
    if (job.driver().WaitFor(absl::Milliseconds(20))) break;
  }
  EXPECT_GE(CheckpointsDone(arguments), 2u) << job.driver().Output();
  EXPECT_TRUE(server::CheckpointReader::Open(arguments.out + "/model").ok());
  int64_t step = 100;  // beyond where it is now
  while (job.WaitForStep(step, absl::ZeroDuration())) step *= 2;
  EXPECT_TRUE(job.WaitForStep(step, kRunLimit)) << job.driver().Output();
  job.driver().Signal(SIGTERM);
  job.Finish(kRunLimit);
}

// What was saved is one moment of the run: all of the steps before it and nothing of those after,
// wherever the dense part lives.
class CheckpointInTheMiddleTest : public CheckpointTest,
                                  public ::testing::WithParamInterface<std::string> {};

TEST_P(CheckpointInTheMiddleTest, IsOneMomentOfTheRun) {
  const Settings dense = {absl::StrCat("dense.synchroniser=", GetParam())};
  RunArguments arguments =
      job_->Arguments(absl::StrCat("middle-", GetParam()), Join(Steps(1'000'000), dense));
  const std::string checkpoint = arguments.out + "/model";
  RunningJob job(arguments);
  RequestCheckpoint(&job);
  const bool there = WaitForCheckpoint(&job, checkpoint);
  job.driver().Signal(SIGKILL);  // so that the checkpoint that was asked for is the only one
  const RunResult run = job.Finish(kRunLimit);
  ASSERT_TRUE(there) << run.DebugString();
  EXPECT_EQ(run.signal, SIGKILL) << run.DebugString();
  EXPECT_TRUE(job.WaitForNobody(kRunLimit));

  const int64_t step = StepsBefore(server::CheckpointReader::Open(checkpoint)->manifest().step);
  EXPECT_GE(step, 5);
  const absl::StatusOr<ModelBits> saved = ReadCheckpoint(checkpoint);
  ASSERT_TRUE(saved.ok()) << saved.status();
  // Reads of the next step may have come before the checkpoint; they create no row.
  EXPECT_EQ(Difference(PlainModel(*job_, step), *saved), "");

  const RunResult loaded = Load(checkpoint, dense);
  ASSERT_TRUE(loaded.ok()) << loaded.DebugString();
  EXPECT_TRUE(loaded.summary["eval"].contains("logloss")) << loaded.DebugString();
}

INSTANTIATE_TEST_SUITE_P(Dense, CheckpointInTheMiddleTest,
                         ::testing::Values("ALLREDUCE", "SERVERS"),
                         [](const auto& param) { return param.param; });

// A checkpoint in the middle of a job with a fixed delay, loaded and evaluated without a step: the
// queue is applied before the evaluation, as at the end of a run, and the model has the bits of a
// run that ends where the checkpoint was made. No update that was held back is lost.
class DelayedCheckpointTest : public CheckpointTest,
                              public ::testing::WithParamInterface<std::string> {};

TEST_P(DelayedCheckpointTest, WhatWasHeldBackIsApplied) {
  const Settings delayed = {absl::StrCat("dense.synchroniser=", GetParam()),
                            "policy={kind: FIXED_DELAY delay: 2}", "cluster.servers=2"};
  RunArguments arguments =
      job_->Arguments(absl::StrCat("delayed-", GetParam()), Join(Steps(1'000'000), delayed));
  const std::string checkpoint = arguments.out + "/model";
  RunningJob job(arguments);
  RequestCheckpoint(&job);
  const bool there = WaitForCheckpoint(&job, checkpoint);
  job.driver().Signal(SIGKILL);  // so that the checkpoint that was asked for is the only one
  const RunResult run = job.Finish(kRunLimit);
  ASSERT_TRUE(there) << run.DebugString();
  EXPECT_TRUE(job.WaitForNobody(kRunLimit));
  const int64_t step = StepsBefore(server::CheckpointReader::Open(checkpoint)->manifest().step);

  const RunResult whole = RunJob(
      job_->Arguments(absl::StrCat("delayed-whole-", GetParam()), Join(Steps(step), delayed)));
  ASSERT_TRUE(whole.ok()) << whole.DebugString();
  const std::string out = absl::StrCat("load-", loads_);
  const RunResult loaded = Load(checkpoint, Join(delayed, {"cluster.servers=3"}));
  ASSERT_TRUE(loaded.ok()) << loaded.DebugString();
  EXPECT_EQ(loaded.Measured(), whole.Measured());
}

INSTANTIATE_TEST_SUITE_P(Dense, DelayedCheckpointTest, ::testing::Values("ALLREDUCE", "SERVERS"),
                         [](const auto& param) { return param.param; });

// ---- what is refused --------------------------------------------------------------------------

TEST_F(CheckpointTest, ADamagedFileIsRefused) {
  const std::string file = Damage(Copy("damaged"), "rest");
  ExpectRefused(Load(job_->File("damaged"), {}), file, "checksum");
}

// Two runs into one folder leave the checkpoint of the second, wherever it cut its tables.
TEST_F(CheckpointTest, ASecondRunIntoTheSameFolderLeavesAWholeCheckpoint) {
  fs::copy(job_->File("trained"), job_->File("twice"), fs::copy_options::recursive);
  const std::string first = server::CheckpointReader::Open(job_->File("twice/model"))->folder();
  RunArguments again = job_->Arguments("twice", Join(kShort, {"cluster.servers=3", "seed=2"}));
  again.flags = {"--overwrite"};
  const RunResult second = RunJob(again);
  ASSERT_TRUE(second.ok()) << second.DebugString();
  const absl::StatusOr<server::CheckpointReader> saved =
      server::CheckpointReader::Open(job_->File("twice/model"));
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_NE(saved->folder(), first);
  EXPECT_FALSE(fs::exists(first));
  EXPECT_EQ(second.summary["steps"], 40) << "max_steps, to the step";
  EXPECT_EQ(second.summary["closing_steps"], 1) << "that the workers ended the epoch with";
  EXPECT_EQ(saved->manifest().step, 41);
  const RunResult loaded = Load(job_->File("twice/model"), {"seed=2"});
  ASSERT_TRUE(loaded.ok()) << loaded.DebugString();
  EXPECT_EQ(loaded.Measured(), second.Measured());
}

// Checkpoints begun in `model` and not finished: folders without a manifest.
std::vector<std::string> UnfinishedCheckpoints(const std::string& model) {
  std::vector<std::string> folders;
  std::error_code ignored;  // a folder may go while it is looked at
  for (const auto& entry : fs::directory_iterator(model, ignored)) {
    if (!entry.is_directory(ignored)) continue;
    if (!fs::exists(entry.path() / "MANIFEST", ignored)) folders.push_back(entry.path());
  }
  return folders;
}

// Kills every process of the run as soon as it writes its checkpoint. True if the checkpoint is not
// whole.
bool KillInTheCheckpoint(const RunArguments& arguments) {
  const std::string model = arguments.out + "/model";
  RunningJob job(arguments);
  const absl::Time deadline = MonotonicNow() + kRunLimit;
  while (UnfinishedCheckpoints(model).empty() && MonotonicNow() < deadline) {
    if (job.driver().WaitFor(absl::ZeroDuration())) return false;
    absl::SleepFor(absl::Microseconds(100));
  }
  KillAll(&job);
  return !UnfinishedCheckpoints(model).empty();
}

// The second run cuts its tables as the first one did, so that its files are called the same, and
// all its processes die while they write them: what loads is the first checkpoint, every bit of it.
// A run that is through with its checkpoint before it is killed does not count.
TEST_F(CheckpointTest, ASecondRunThatDiesInItsCheckpointLeavesTheFirst) {
  const absl::StatusOr<ModelBits> first = ReadCheckpoint(Trained());
  ASSERT_TRUE(first.ok()) << first.status();
  bool killed = false;
  for (int attempt = 0; !killed && attempt < 20; ++attempt) {
    const std::string out = absl::StrCat("killed-", attempt);
    fs::copy(job_->File("trained"), job_->File(out), fs::copy_options::recursive);
    RunArguments second = job_->Arguments(out, Join(kShort, {"seed=2"}));
    second.flags = {"--overwrite"};
    killed = KillInTheCheckpoint(second);
    if (!killed) continue;
    const absl::StatusOr<ModelBits> left = ReadCheckpoint(job_->File(out + "/model"));
    ASSERT_TRUE(left.ok()) << left.status();
    EXPECT_EQ(Difference(*first, *left), "");
    const RunResult loaded = Load(job_->File(out + "/model"), {});
    ASSERT_TRUE(loaded.ok()) << loaded.DebugString();
    EXPECT_EQ(loaded.Measured(), trained_.Measured());
  }
  EXPECT_TRUE(killed);
}

// Other layers (start_test and checkpoint_check_test have the rest).
TEST_F(CheckpointTest, ACheckpointOfAnotherModelIsRefused) {
  ExpectRefused(Load(Trained(), {"model.dlrm.top=[320, 160]"}), Trained(), "top: 320");
}

// Before anything is started: no such folder, or one that is no checkpoint.
TEST_F(CheckpointTest, AFolderThatIsNoCheckpointIsRefusedAtOnce) {
  for (const std::string& folder : {job_->File("nowhere"), job_->File("trained/logs")}) {
    const RunResult run = Load(folder, {});
    EXPECT_EQ(run.exit_code, 2) << run.DebugString();
    ExpectRefused(run, folder, "");
  }
}

}  // namespace
}  // namespace tandem
