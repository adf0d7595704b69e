// Python scripts as workers, run as a user would: the tutorial as it stands in docs/PYTHON.md,
// training against one PyTorch process, and every way in which a script can go wrong. Skipped where
// there is no interpreter with PyTorch and numpy.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/base/casts.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "data/cells.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "optim/initializer.h"
#include "optim/row_rounding.h"
#include "tests/integration/run_job.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLimit = absl::Seconds(200);  // importing torch 2 alone takes seconds

constexpr char kJob[] = R"(
seed: 5
cluster { workers: 2 servers: 2 }
data { format: PROGRAM }
table {
  name: "ids" dim: 8 field: "city" field: "offer" ids_per_field: 2
  optimizer { kind: ADAGRAD learning_rate: 0.1 }
}
dense { optimizer { kind: PROGRAM } }
model { program {} }
train { batch_size: 64 epochs: 2 prefetch_steps: 1 }
limits { report_interval_seconds: 0.2 }
)";

class PythonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (PythonInterpreter().empty()) GTEST_SKIP() << "no python3 with torch and numpy here";
    WriteTextFile(folder_.File("job.textproto"), kJob);
  }

  RunArguments Arguments(const std::string& script, const std::vector<std::string>& set = {}) {
    RunArguments arguments;
    arguments.job = folder_.File("job.textproto");
    arguments.set = set;
    arguments.out = folder_.File(absl::StrCat("out", runs_++));
    arguments.flags = {"--python", script};
    arguments.environment = {{"TANDEM_PYTHON", PythonInterpreter()}};
    return arguments;
  }
  // Runs a script outside of a job, in the test's folder.
  RunResult Python(const std::vector<std::string>& command) {
    return RunPython(command, folder_.path());
  }
  RunResult Tandem(std::vector<std::string> command) {
    command.insert(command.begin(), {"/usr/bin/env", "TANDEM_PYTHON=" + PythonInterpreter()});
    return RunProgram(command);
  }

  TemporaryFolder folder_;
  int runs_ = 0;
};

TEST_F(PythonTest, HashesAsTheReadersDoAndKnowsTheFormsOfIds) {
  const RunResult run = Python({SourcePath("tests/python/plain.py")});
  EXPECT_TRUE(run.ok()) << run.DebugString();
  const data::FieldHash hash("city");
  EXPECT_THAT(run.output, HasSubstr(absl::StrCat(static_cast<int64_t>(hash.Key("Rome")), " ",
                                                 static_cast<int64_t>(hash.missing()), " ",
                                                 static_cast<int64_t>(hash.Key("7")), " ",
                                                 static_cast<int64_t>(hash.Key(uint64_t{7})))));
  if (!HasFailure() && absl::StrContains(run.output, "skipped, as pandas is not there")) {
    GTEST_SKIP() << "no pandas here, for ids of its columns; the other checks have passed";
  }
}

TEST_F(PythonTest, TablesOfArrowAreReadWithoutArrow) {
  const RunResult run = Python({SourcePath("tests/python/tables.py")});
  EXPECT_TRUE(run.ok()) << run.DebugString();
  if (!HasFailure() && absl::StrContains(run.output, "skipped, as")) {
    GTEST_SKIP() << "tables made by hand have passed; not tried, because they are missing here: "
                 << run.output;
  }
}

// Two workers with batches of different sizes, one with half the data, are one process on the
// joined batches: with the script's optimizer, and with the job's in both places.
TEST_F(PythonTest, TrainsAsOneProcessOnTheJoinedBatches) {
  const std::string script = SourcePath("tests/python/joined.py");
  const std::vector<std::string> common = {
      "table[0]={name: 'items' dim: 4 field: 'a' field: 'b' initializer {kind: CONSTANT scale: "
      "0.1} "
      "optimizer {kind: SGD learning_rate: 0.1}}",
      "table[0].name=items", "train.epochs=2", "train.batch_size=12"};
  for (const char* const dense :
       {"dense={optimizer {kind: PROGRAM}}", "dense={optimizer {kind: SGD learning_rate: 0.1}}",
        "dense={synchroniser: SERVERS optimizer {kind: SGD learning_rate: 0.1}}"}) {
    std::vector<std::string> set = common;
    set.push_back(dense);
    // "apart": with parameters as if they were on a GPU; "clip": with shortened gradients.
    for (const absl::string_view way : {"", "apart", "clip"}) {
      if (way == "apart" && absl::StrContains(dense, "SERVERS")) continue;  // as with ALLREDUCE
      if (way == "clip" && !absl::StrContains(dense, "PROGRAM")) continue;
      SCOPED_TRACE(absl::StrCat(dense, ", ", way));
      RunArguments arguments = Arguments(script, set);
      arguments.flags.insert(arguments.flags.begin(), {"--trace", "3"});
      if (!way.empty()) arguments.flags.insert(arguments.flags.end(), {"--", std::string(way)});
      const RunResult run = RunJob(arguments, kLimit);
      ASSERT_TRUE(run.ok()) << run.DebugString();
      for (const char* const rank : {"0", "1"}) {
        const auto trace = ReadWholeFile(absl::StrCat(arguments.out, "/trace-", rank, ".json"));
        ASSERT_TRUE(trace.ok()) << trace.status();
        EXPECT_THAT(*trace, AllOf(HasSubstr("compute 2"), Not(HasSubstr("compute 3"))));
      }
      EXPECT_EQ(run.summary["samples"], 2 * (50 * 12 + 25 * 5));
      EXPECT_EQ(run.summary["script"]["file"], script);
      EXPECT_THAT(RunProgram({"/usr/bin/sha256sum", script}).output,
                  HasSubstr(run.summary["script"]["sha256"].get<std::string>() + "  "));
      const RunResult compared =
          Python({script, arguments.out, way == "clip" ? "clip" : "unclipped"});
      EXPECT_TRUE(compared.ok()) << compared.DebugString();
    }
  }
  // The job's optimizer knows the layers that there were, and a new one is noticed at the end of
  // the epoch.
  std::vector<std::string> set = common;
  set.insert(set.end(), {"train.epochs=1", "dense={optimizer {kind: SGD learning_rate: 0.1}}"});
  RunArguments arguments = Arguments(script, set);
  arguments.flags.insert(arguments.flags.end(), {"--", "new"});
  const RunResult changed = RunJob(arguments, kLimit);
  EXPECT_EQ(changed.exit_code, 1) << changed.DebugString();
  EXPECT_THAT(changed.output, HasSubstr("Misuse: a parameter of shape (1, 7) is trained that was "
                                        "frozen or not there when DistributedOptimizer was made"));
}

TEST_F(PythonTest, AdamOfATableIsTorchsSparseAdamOrItsDenseOne) {
  const std::string script = SourcePath("tests/python/sparse_adam.py");
  const std::map<std::string, std::string> kModes = {
      {"sparse", "schedule {kind: EXPONENTIAL every_samples: 8 factor: 0.99}"},
      {"dense", "catch_up: true"}};
  for (const auto& [mode, settings] : kModes) {
    RunArguments arguments = Arguments(
        script, {"cluster.workers=1", "policy={kind: BSP}",
                 absl::StrCat("table[0]={name: 'item' dim: 4 field: 'item' initializer {kind: "
                              "ZERO} optimizer {kind: ADAM learning_rate: 0.01 ",
                              settings, "}}"),
                 "train.epochs=1", "train.batch_size=8"});
    arguments.out = folder_.File(mode);
    arguments.flags.insert(arguments.flags.end(), {"--", mode});
    const RunResult run = RunJob(arguments, kLimit);
    ASSERT_TRUE(run.ok()) << run.DebugString();
    const RunResult compared = Python({script, mode, arguments.out});
    EXPECT_TRUE(compared.ok()) << compared.DebugString();
  }
}

TEST_F(PythonTest, ATiedTableOfSequencesIsTorchsEmbedding) {
  const std::string script = SourcePath("tests/python/sequences.py");
  for (const auto& [how, workers] : {std::pair{"modules", "2"}, std::pair{"collection", "1"}}) {
    RunArguments arguments = Arguments(
        script, {absl::StrCat("cluster.workers=", workers), "policy={kind: BSP}", "train.epochs=1",
                 "table[0]={name: 'item' dim: 4 field: 'seq' field: 'pos' field: 'neg' field: "
                 "'bag' field: 'all' ids_per_field: 5 initializer {kind: CONSTANT scale: 0.1} "
                 "optimizer {kind: ADAGRAD learning_rate: 0.1}}",
                 "train.batch_size=6", "evaluation.batch_size=6"});
    arguments.flags.insert(arguments.flags.end(), {"--", how, folder_.path()});
    const RunResult run = RunJob(arguments, kLimit);
    ASSERT_TRUE(run.ok()) << run.DebugString();
    const RunResult compared = Python({script, how, folder_.path(), arguments.out, workers});
    EXPECT_TRUE(compared.ok()) << compared.DebugString();
  }
}

constexpr char kStepsJob[] = R"(
seed: 5
cluster { workers: 2 servers: 2 }
data { format: PROGRAM }
table {
  name: "items" dim: 4 field: "a" field: "b" initializer { kind: CONSTANT scale: 0.1 }
  optimizer { kind: SGD learning_rate: 1 }
}
table {
  name: "tokens" dim: 4 field: "t" field: "u" ids_per_field: 4
  initializer { kind: CONSTANT scale: 0.1 } optimizer { kind: SGD learning_rate: 1 }
}
dense { optimizer { kind: PROGRAM } }
policy { kind: BSP }
model { program {} }
train { batch_size: 36 epochs: 2 prefetch_steps: 1 }
)";

// What tests/python/steps.py does with gradients, against plain PyTorch in one process.
class PythonStepsTest : public PythonTest {
 protected:
  void SetUp() override {
    PythonTest::SetUp();
    WriteTextFile(folder_.File("job.textproto"), kStepsJob);
  }
  RunResult Train(const std::string& way, std::vector<std::string> set, int workers = 2) {
    set.push_back(absl::StrCat("cluster.workers=", workers));
    RunArguments arguments = Arguments(script_, set);
    arguments.flags.insert(arguments.flags.end(), {"--", "train", way});
    const RunResult run = RunJob(arguments, kLimit);
    EXPECT_TRUE(run.ok()) << way << "\n" << run.DebugString();
    out_ = arguments.out;
    return run;
  }
  void ExpectSameAsPlain(const std::string& way, const std::vector<std::string>& set,
                         int workers = 2) {
    Train(way, set, workers);
    const RunResult compared = Python({script_, "compare", out_, absl::StrCat(workers), way});
    EXPECT_TRUE(compared.ok()) << way << "\n" << compared.DebugString();
    std::cout << way << ", " << workers << " workers: " << compared.output;
  }
  bool HasScaler() {
    return Python({"-c", "import torch, sys; sys.exit(not hasattr(torch.amp, 'GradScaler'))"}).ok();
  }

  const std::string script_ = SourcePath("tests/python/steps.py");
  const std::vector<std::string> of_job_ = {
      "dense={synchroniser: SERVERS optimizer {kind: SGD learning_rate: 0.1}}"};
  std::string out_;
};

TEST_F(PythonStepsTest, AccumulatesBatchesAndShortensGradients) {
  ExpectSameAsPlain("accumulate", {});
  ExpectSameAsPlain("clip+job", of_job_);
  ExpectSameAsPlain("accumulate+clip", {}, 1);
  const RunResult run = Train("accumulate+clip", {"policy={kind: SSP bound: 1}"});
  EXPECT_EQ(run.summary["steps"], 2 * 7);
  EXPECT_EQ(run.summary["samples"], 2 * (20 * 12 + 10 * 5));
  EXPECT_FALSE(run.summary.contains("skipped_steps"));
}

// A step that overflows on one worker counts for the other one alone. One that overflows on both is
// no step of an optimizer, and not the end of the epoch.
TEST_F(PythonStepsTest, SkipsStepsThatOverflow) {
  if (!HasScaler()) GTEST_SKIP() << "GradScaler for the processor needs PyTorch 2.3";
  constexpr int kSamples = 2 * (20 * 12 + 10 * 5), kSkipped = 2 * 12 + 3 * 5;
  ExpectSameAsPlain("scaler", {});
  ExpectSameAsPlain("scaler+job", of_job_);
  ExpectSameAsPlain("scaler+job", {"dense={optimizer {kind: SGD learning_rate: 0.1}}"}, 1);
  for (const char* const policy : {"BSP", "ASP", "GBA batches: 2", "BACKUP_WORKERS backups: 1"}) {
    const RunResult run =
        Train("scaler+job", {of_job_[0], absl::StrCat("policy={kind: ", policy, "}")});
    EXPECT_EQ(run.summary["skipped_steps"], 5) << policy;
    EXPECT_EQ(run.summary["by_worker"][1]["skipped_steps"], 3) << policy;
    EXPECT_EQ(run.summary["samples"], kSamples - kSkipped) << policy;
    EXPECT_EQ(run.summary["updates"]["sent"], run.summary["updates"]["arrived"]) << policy;
  }
}

TEST_F(PythonStepsTest, ACompiledModuleTrainsLikeAnEagerOne) {
  if (!Python({"-c", "import torch, sys; sys.exit(not hasattr(torch, 'compiler'))"}).ok()) {
    GTEST_SKIP() << "torch.compile needs PyTorch 2.1";
  }
  ExpectSameAsPlain("compile", {}, 1);
}

TEST_F(PythonTest, WrongCallsAreRefusedInOneLineAndTheJobGoesOn) {
  const RunArguments arguments = Arguments(SourcePath("tests/python/wrong.py"));
  const RunResult run = RunJob(arguments, kLimit);
  EXPECT_TRUE(run.ok()) << run.DebugString();
  EXPECT_THAT(run.logs + ReadTextFile(arguments.out + "/logs/worker-0.log"),
              HasSubstr("all refused"));
}

TEST_F(PythonTest, WrongCallsOfTheCInterfaceAreErrorsToo) {
  const RunArguments arguments =
      Arguments(SourcePath("tests/python/abi.py"), {"cluster.workers=1"});
  const RunResult run = RunJob(arguments, kLimit);
  EXPECT_TRUE(run.ok()) << run.DebugString();
  EXPECT_THAT(run.logs + ReadTextFile(arguments.out + "/logs/worker-0.log"),
              HasSubstr("all refused"));
  EXPECT_EQ(run.summary["samples"], 2 * 2 * 6);
}

// The first worker that ends the job is named with the line of the script, and nobody is left
// behind.
TEST_F(PythonTest, EveryWayToLeaveEndsTheJobByName) {
  const std::map<std::string, std::string> endings = {
      {"exception", ": ValueError: no such city (wrong.py:"},
      {"surrogate", ": ValueError: no city ? here (wrong.py:"},
      {"second",
       "Misuse: a second loop over a tandem.DataLoader in epoch 0; its batches are used up"},
      {"early", ": wrong.py ended at step 3, before the job had; iterate to the end"},
      {"break",
       "Misuse: the loop over the batches of epoch 0 has ended before the epoch (at step 3)"},
      {"no_step", "Misuse: step 3: the loop goes on to the next batch without optimizer.step()"},
      {"no_backward",
       "Misuse: optimizer.step() without gradients: call loss.backward() first (wrong"},
      {"range", "Misuse: optimizer.step() outside of `for epoch in job.epochs()`"},
      {"once",
       "Error: epoch 1: the loader gave no batch: it is a generator, which can be read once"},
      {"os_exit", ") exited with status 3; the scheduler saw: connection lost"},
      {"os_exit_0", ") exited with status 0; the scheduler saw: connection lost"},
      {"unscored", "Error: the loop over job.evaluate() of epoch 1 has scored nothing"},
  };
  for (const auto& [way, ending] : endings) {
    SCOPED_TRACE(way);
    RunArguments arguments = Arguments(SourcePath("tests/python/wrong.py"));
    if (way == "unscored") arguments.set = {"cluster.workers=1"};
    arguments.flags.insert(arguments.flags.end(), {"--", way});
    RunningJob job(arguments);
    const RunResult run = job.Finish(kLimit);
    EXPECT_EQ(run.exit_code, 1) << run.DebugString();
    EXPECT_THAT(run.output, HasSubstr("failed: worker "));
    EXPECT_THAT(run.output, HasSubstr(ending));
    EXPECT_TRUE(job.WaitForNobody(absl::Seconds(10)));
  }
}

// Code behind the loop over epochs runs for as long as it takes. A failure there fails the run.
TEST_F(PythonTest, TheEndOfAScriptIsPartOfTheRun) {
  RunArguments arguments =
      Arguments(SourcePath("tests/python/leaves.py"), {"train.batch_size=40", "train.epochs=1"});
  const std::string file = folder_.File("written");
  arguments.flags.insert(arguments.flags.end(), {"--", "after", file});
  const RunResult run = RunJob(arguments, kLimit);
  EXPECT_EQ(run.exit_code, 1) << run.DebugString();
  EXPECT_THAT(run.output, HasSubstr("still runs in worker 0; to end it, press Ctrl-C"));
  EXPECT_THAT(run.output, ContainsRegex("failed: worker 1 \\(pid [0-9]+\\) exited with status 1 "
                                        "after the end of the job: "
                                        "RuntimeError: no room"));
  EXPECT_EQ(ReadTextFile(file), "done");
  EXPECT_EQ(run.summary["samples"], 2 * 10 * 4);
}

// A script that has enough ends its run well, with a last checkpoint, also if the other worker goes
// on. The run can be resumed.
TEST_F(PythonTest, AScriptMayEndItsJob) {
  const std::string script = SourcePath("tests/python/leaves.py");
  for (const char* const way : {"break", "close"}) {
    SCOPED_TRACE(way);
    RunArguments arguments = Arguments(script, {"train.epochs=1000", "train.max_steps=60"});
    arguments.flags.insert(arguments.flags.end(), {"--", way});
    const RunResult run = RunJob(arguments, kLimit);
    EXPECT_TRUE(run.ok()) << run.DebugString();
    EXPECT_THAT(run.output, HasSubstr("ended by the script, checkpoint at step "));
    EXPECT_GE(run.summary["stopped"]["checkpointed_step"], 10) << run.summary;
    EXPECT_TRUE(std::filesystem::exists(arguments.out + "/model/LATEST"));
    for (const char* const rank : {"0", "1"}) {
      EXPECT_THAT(ReadTextFile(absl::StrCat(arguments.out, "/logs/worker-", rank, ".log")),
                  HasSubstr("left in epoch "));
    }
    arguments.flags = {"--python", script, "--resume", arguments.out, "--", "whole"};
    const RunResult resumed = RunJob(arguments, kLimit);
    ASSERT_TRUE(resumed.ok()) << resumed.DebugString();
    EXPECT_EQ(resumed.summary["resumed"], 1);
    EXPECT_FALSE(resumed.summary.contains("stopped")) << resumed.summary;
  }
  RunArguments arguments = Arguments(script, {"train.epochs=1000", "cluster.max_restarts=0"});
  arguments.flags.insert(arguments.flags.end(), {"--", "status"});
  const RunResult run = RunJob(arguments, kLimit);
  EXPECT_EQ(run.exit_code, 1) << run.DebugString();
  EXPECT_THAT(run.output, HasSubstr("leaves.py ended at step "));
}

// Either worker may raise first: the same error at the same step is the same one.
TEST_F(PythonTest, AnExceptionIsTriedAgainOnce) {
  RunArguments arguments = Arguments(SourcePath("tests/python/wrong.py"));
  arguments.set = {"cluster.max_restarts=5"};
  arguments.flags.insert(arguments.flags.end(), {"--", "exception"});
  RunningJob job(arguments);
  const RunResult run = job.Finish(kLimit);
  EXPECT_EQ(run.exit_code, 1) << run.DebugString();
  EXPECT_THAT(run.output, HasSubstr("restart 1, from the beginning"));
  EXPECT_THAT(run.output, Not(HasSubstr("restart 2")));
  EXPECT_THAT(run.output, HasSubstr("the same error at step "));
  EXPECT_TRUE(job.WaitForNobody(absl::Seconds(10)));
}

// A fault of the script comes again in each attempt.
TEST_F(PythonTest, AFaultOfTheScriptIsNotTriedAgain) {
  RunArguments arguments = Arguments(SourcePath("tests/python/wrong.py"));
  arguments.set = {"cluster.max_restarts=5"};
  arguments.flags.insert(arguments.flags.end(), {"--", "fault"});
  const RunResult run = RunJob(arguments, kLimit);
  EXPECT_EQ(run.exit_code, 1) << run.DebugString();
  EXPECT_THAT(run.output, HasSubstr("TypeError: object of type 'int' has no len() (wrong.py:"));
  EXPECT_THAT(run.output, Not(HasSubstr("restart 1")));
}

// Without a loss that the script says there is none in the summary, and a metric of its own needs
// no scores.
TEST_F(PythonTest, AScriptMayEvaluateByAMetricOfItsOwn) {
  RunArguments arguments = Arguments(SourcePath("tests/python/wrong.py"));
  arguments.flags.insert(arguments.flags.end(), {"--", "own_metric"});
  const RunResult run = RunJob(arguments, kLimit);
  EXPECT_TRUE(run.ok()) << run.DebugString();
  EXPECT_EQ(run.summary["reported"]["mine"], .5) << run.summary;
  EXPECT_EQ(run.summary["eval"], nlohmann::json::object());
  EXPECT_FALSE(run.summary.contains("training_loss"));
  EXPECT_THAT(
      ReadTextFile(arguments.out + "/logs/worker-0.log"),
      HasSubstr("job.evaluate(): no batches after epoch 0: the job evaluates after its last "
                "epoch"));
}

TEST_F(PythonTest, ScoresThatLookLikeProbabilitiesAreDoubted) {
  RunArguments arguments = Arguments(SourcePath("tests/python/wrong.py"), {"cluster.workers=1"});
  arguments.flags.insert(arguments.flags.end(), {"--", "probabilities"});
  const RunResult run = RunJob(arguments, kLimit);
  EXPECT_TRUE(run.ok()) << run.DebugString();
  EXPECT_THAT(ReadTextFile(arguments.out + "/logs/worker-0.log"),
              HasSubstr("if they are probabilities, pass torch.logit(p)"));
}

// "PID COUNT", as tests/python/forked.py leaves them.
std::pair<pid_t, int> WordOf(const std::string& path) {
  const std::vector<std::string> words = absl::StrSplit(ReadTextFile(path), ' ');
  int pid = 0, count = -1;
  EXPECT_TRUE(words.size() == 2 && absl::SimpleAtoi(words[0], &pid) &&
              absl::SimpleAtoi(words[1], &count))
      << path;
  return {pid, count};
}

// Whether the process runs; one that nobody has waited for yet does not.
bool Runs(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/cmdline"));
  return file.get() != EOF;
}

// Processes that a loader has forked hold none of the job's connections, so the death of their
// parent is seen at once, as that of a worker without any.
TEST_F(PythonTest, AKilledWorkerWithForkedLoadersIsNamed) {
  RunArguments arguments = Arguments(SourcePath("tests/python/forked.py"), {"train.epochs=100"});
  arguments.flags.insert(arguments.flags.end(), {"--", folder_.path()});
  RunningJob job(arguments);
  const pid_t worker = job.WaitForRole("worker-1", absl::Seconds(30));
  ASSERT_GT(worker, 0);
  ASSERT_TRUE(job.WaitForStep(8, absl::Seconds(180))) << job.driver().Output();
  std::vector<pid_t> left;
  for (const char* const name :
       {"child-0-0", "child-0-1", "child-1-0", "child-1-1", "parent-0", "parent-1"}) {
    const auto [pid, sockets] = WordOf(folder_.File(name));
    EXPECT_EQ(sockets, 0) << name;
    left.push_back(pid);
  }
  kill(worker, SIGKILL);
  const absl::Time killed = MonotonicNow();
  const RunResult run = job.Finish(absl::Seconds(30));
  EXPECT_LT(MonotonicNow() - killed, absl::Seconds(10));
  EXPECT_EQ(run.exit_code, 1) << run.DebugString();
  EXPECT_THAT(run.output, HasSubstr("worker 1"));
  EXPECT_THAT(run.output, HasSubstr("signal 9"));
  EXPECT_TRUE(job.WaitForNobody(absl::Seconds(10)));
  // torch's loaders look every five seconds whether their parent is there.
  const absl::Time patience = MonotonicNow() + absl::Seconds(30);
  for (const pid_t pid : left) {
    while (Runs(pid) && MonotonicNow() < patience) absl::SleepFor(absl::Milliseconds(50));
    EXPECT_FALSE(Runs(pid)) << pid << " is left";
  }
}

TEST_F(PythonTest, CtrlCEndsAllOfIt) {
  const std::string script = folder_.File("wait.py");
  WriteTextFile(script, "import time, tandem\njob = tandem.init()\ntime.sleep(600)\n");
  RunningJob job(Arguments(script));
  ASSERT_GT(job.WaitForRole("worker-1", absl::Seconds(30)), 0);
  job.driver().Signal(SIGINT);
  const RunResult run = job.Finish(absl::Seconds(30));
  EXPECT_EQ(run.signal, SIGINT) << run.DebugString();
  EXPECT_TRUE(job.WaitForNobody(absl::Seconds(10)));
}

// Both workers write rows of their own beside the training; what they left is there when the run
// goes on, and when another one begins with its checkpoint.
TEST_F(PythonTest, RowsOfAStoreAreCheckpointedAndReadAgain) {
  const std::string table = "table { name: \"cache\" dim: 3 extra_floats: 2 kind: KEY_VALUE }\n";
  WriteTextFile(folder_.File("job.textproto"), absl::StrCat(kJob, table));
  // Names of files and folders need not be UTF-8.
  const std::string script = folder_.File("st\xf6re.py");
  std::filesystem::copy_file(SourcePath("tests/python/store.py"), script);
  RunArguments arguments = Arguments(script);
  arguments.out = folder_.File("caf\xe9");
  RunResult run = RunJob(arguments, kLimit);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_EQ(run.summary["policy"]["cache"], "KEY_VALUE");
  EXPECT_EQ(run.summary["tables"]["cache"]["rows"], 3333);
  const std::string checkpoint = arguments.out + "/model";
  const RunResult loaded = Python({SourcePath("tests/python/store_checkpoint.py"), checkpoint});
  EXPECT_TRUE(loaded.ok()) << loaded.DebugString();
  // The run itself goes on, on other servers; then another one begins with its checkpoint.
  arguments.set = {"train.epochs=3", "cluster.servers=3"};
  arguments.flags = {"--python", script, "--resume", arguments.out, "--", "again"};
  run = RunJob(arguments, kLimit);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_EQ(run.summary["resumed"], 1);
  EXPECT_EQ(run.summary["tables"]["cache"]["rows"], 3333);
  arguments = Arguments(script);
  arguments.flags.insert(arguments.flags.end(), {"--init-from", checkpoint, "--", "again"});
  run = RunJob(arguments, kLimit);
  EXPECT_TRUE(run.ok()) << run.DebugString();
}

// As in a notebook: the process starts what it needs, and nothing is left however it ends.
TEST_F(PythonTest, AJobOfOneProcessStartsItsOwnCluster) {
  const RunResult run =
      Python({SourcePath("tests/python/alone.py"), folder_.File("job.textproto"), folder_.path()});
  EXPECT_TRUE(run.ok()) << run.DebugString();
}

TEST_F(PythonTest, CellsOfANotebookGoOn) {
  const RunResult run = Python({SourcePath("tests/python/notebook.py"), folder_.path()});
  EXPECT_TRUE(run.ok()) << run.DebugString();
}

TEST_F(PythonTest, RefusesBeforeAnythingStarts) {
  for (const std::string module : {"tandem", "torch"}) {
    TemporaryFolder folder;
    const std::string hides = folder.File(module + ".py");
    WriteTextFile(hides, "import tandem\n");
    const RunResult hidden = RunJob(Arguments(hides));
    EXPECT_EQ(hidden.exit_code, 2) << hidden.DebugString();
    EXPECT_THAT(hidden.output, HasSubstr(hides + " hides the module " + module));
  }
  const std::string broken = folder_.File("broken.py");
  WriteTextFile(broken, "import tandem\nfor epoch in job.epochs()\n");
  const RunResult unread = RunJob(Arguments(broken));
  EXPECT_EQ(unread.exit_code, 2) << unread.DebugString();
  EXPECT_THAT(unread.output, HasSubstr(broken + ":2: SyntaxError: "));
  RunArguments none = Arguments("");
  none.flags = {};
  EXPECT_THAT(RunJob(none).output, HasSubstr("say which: --python SCRIPT"));
  RunArguments other = Arguments(SourcePath("tests/python/wrong.py"));
  other.environment["TANDEM_PYTHON"] = folder_.File("nothing");
  const RunResult run = RunJob(other);
  EXPECT_EQ(run.exit_code, 2) << run.DebugString();
  EXPECT_THAT(run.output, HasSubstr("not found"));
  other.environment["TANDEM_PYTHON"] = "/bin/true";
  EXPECT_THAT(RunJob(other).output, HasSubstr("--python: /bin/true: exit status 0, and no output"));
  other.environment = {{"TANDEM_PYTHON", PythonInterpreter()},
                       {"TANDEM_LIBRARY", folder_.File("nothing")}};
  EXPECT_THAT(RunJob(other).output, HasSubstr("hint: build it (ninja -C build tandem_capi)"));
}

TEST_F(PythonTest, WorkersMeetAtBarriers) {
  RunArguments arguments = Arguments(SourcePath("tests/python/barrier.py"), {"cluster.workers=3"});
  arguments.flags.insert(arguments.flags.end(), {"--", folder_.path()});
  const RunResult run = RunJob(arguments, kLimit);
  EXPECT_TRUE(run.ok()) << run.DebugString();
  for (const char* const log : {"0", "1", "2"}) {
    EXPECT_THAT(ReadTextFile(absl::StrCat(arguments.out, "/logs/worker-", log, ".log")),
                HasSubstr("all met"));
  }
  // Who waits for one that never comes hears why.
  RunArguments late = Arguments(SourcePath("tests/python/barrier.py"));
  TemporaryFolder empty;
  late.flags.insert(late.flags.end(), {"--", empty.path(), "late"});
  const RunResult failed = RunJob(late, kLimit);
  EXPECT_EQ(failed.exit_code, 1) << failed.DebugString();
  EXPECT_THAT(failed.output, HasSubstr("worker 1: ValueError: no such city (barrier.py:"));
}

// Numbers that scripts report are in metrics.jsonl, a line each time, and the last of each name in
// summary.json; a checkpoint that they ask for is one of all workers.
TEST_F(PythonTest, ScriptsReportAndAskForCheckpoints) {
  const RunArguments arguments = Arguments(SourcePath("tests/python/notes.py"));
  const RunResult run = RunJob(arguments, kLimit);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  for (const char* const log : {"0", "1"}) {
    EXPECT_THAT(ReadTextFile(absl::StrCat(arguments.out, "/logs/worker-", log, ".log")),
                HasSubstr("all said"));
  }
  const nlohmann::json want = {{"both", 10},   {"only/0", 0.5}, {"only/1", 0.5},
                               {"epochs", 2},  {"many", 1999},  {"undefined", nullptr},
                               {"mean", 10.8}, {"a", 21},       {"b", -21},
                               {"least", 10},  {"most", 10}};
  EXPECT_THAT(run.output, HasSubstr(": the script has reported undefined=nan at step 9; values "
                                    "that are not finite are null in metrics.jsonl"));
  EXPECT_EQ(run.summary["reported"], want);
  EXPECT_EQ(run.summary["start_seconds"], 0) << "they join before the seconds of training begin";
  std::set<std::string> keys;
  std::vector<nlohmann::json> both;
  int many = 0;
  std::vector<int64_t> saved;
  for (const absl::string_view line :
       absl::StrSplit(ReadTextFile(arguments.out + "/metrics.jsonl"), '\n', absl::SkipEmpty())) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (json["event"] == "saved") saved.push_back(json["step"]);
    if (json["event"] != "reported") continue;
    for (const auto& [key, value] : json.items()) keys.insert(key);
    if (json["values"].contains("both")) both.push_back(json);
    many += json["values"].contains("many") ? 1 : 0;
  }
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0]["step"], 4);
  EXPECT_EQ(both[0]["values"].size(), 2u);
  EXPECT_EQ(many, 2 * 2000) << "each once, and none is lost";
  ASSERT_GE(saved.size(), 1u);
  EXPECT_LE(saved.size(), 2u) << "the second may have been asked for while the first was made";
  EXPECT_GT(saved[0], 2);
  // The page has these keys and no others.
  const std::string page = ReadTextFile(SourcePath("docs/RESULTS.md"));
  const size_t begin = page.find("**`reported`**"), end = page.find("**`saved`**");
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos && begin < end);
  const std::string part = page.substr(begin, end - begin);
  EXPECT_EQ(std::count(part.begin(), part.end(), '\n') - 5, static_cast<int64_t>(keys.size() - 2));
  for (const std::string& key : keys) {
    if (key == "event" || key == "time") continue;
    EXPECT_THAT(part, HasSubstr(absl::StrCat("\n| `", key, "` | "))) << key;
  }
}

// Batches of ever other sizes; tests/python/steady.py says how to see more of it by hand.
TEST_F(PythonTest, MemoryStaysAsItIs) {
  RunArguments arguments =
      Arguments(SourcePath("tests/python/steady.py"), {"cluster.workers=1", "train.epochs=1"});
  arguments.flags.insert(arguments.flags.end(), {"--", "memory", "2000"});
  const RunResult run = RunJob(arguments, kLimit);
  EXPECT_TRUE(run.ok()) << run.DebugString();
  EXPECT_THAT(ReadTextFile(arguments.out + "/logs/worker-0.log"), HasSubstr("memory has grown by"));
}

// While step() waits for a slow worker, Python's other threads run.
TEST_F(PythonTest, AnotherThreadRunsWhileAStepWaits) {
  RunArguments arguments = Arguments(SourcePath("tests/python/steady.py"), {"train.epochs=1"});
  arguments.flags.insert(arguments.flags.end(), {"--", "thread"});
  const RunResult run = RunJob(arguments, kLimit);
  EXPECT_TRUE(run.ok()) << run.DebugString();
  EXPECT_THAT(ReadTextFile(arguments.out + "/logs/worker-0.log"),
              HasSubstr("of its free speed in "));
}

// ---- out again ----

constexpr char kCheckpointJob[] = R"(
seed: 5
cluster { workers: 2 servers: 2 }
data { format: PROGRAM }
table {
  name: "places" dim: 8 field: "city" field: "offer"
  row_dtype: INT8 hot_rows { min_updates: 27 dtype: F16 }
  optimizer { kind: ADAGRAD learning_rate: 0.1 }
}
table {
  name: "words" dim: 5 field: "word" ids_per_field: 4
  initializer { kind: NORMAL scale: 0.3 } optimizer { kind: ADAM learning_rate: 0.01 }
  eviction { kind: AGE versions: 1000 }
}
table {
  name: "tags" dim: 3 field: "tag" ids_per_field: 2 row_dtype: BF16 state_dtype: BF16
  initializer { kind: UNIFORM scale: 0.7 }
  optimizer { kind: ADAM learning_rate: 0.1 catch_up: true }
}
dense { optimizer { kind: PROGRAM } }
model { program {} }
train { batch_size: 40 epochs: 2 prefetch_steps: 1 }
evaluation { batch_size: 100 }
)";

// Exports hold the same bits, a TorchScript of the model scores as the job's evaluation did, ids
// that nobody has trained included, and what is damaged or mixed is refused by name.
TEST_F(PythonTest, ACheckpointedModelGoesOutAgain) {
  const std::string script = SourcePath("tests/python/checkpoints.py");
  RunArguments arguments = Arguments(script);
  WriteTextFile(arguments.job, kCheckpointJob);
  arguments.flags.insert(arguments.flags.end(), {"--", "train", folder_.path()});
  const RunResult run = RunJob(arguments, kLimit);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  const RunResult checked = Python({script, "check", arguments.out, folder_.path()});
  EXPECT_TRUE(checked.ok()) << checked.DebugString();

  const std::string to = folder_.File("exported");
  const std::vector<std::string> command = {
      ProgramPath("tandem"), "export",  arguments.out + "/model", "--to", to, "--format",
      "npz,safetensors",     "--serve", script + ":Ranker"};
  const RunResult exported = Tandem(command);
  EXPECT_TRUE(exported.ok()) << exported.DebugString();
  EXPECT_THAT(exported.output, HasSubstr("step 32: 3 tables with "));
  for (const char* const name : {"model.npz", "model.safetensors", "serve.pt"}) {
    EXPECT_THAT(exported.output, HasSubstr(absl::StrCat("wrote ", to, "/", name, "\n")));
    EXPECT_GT(ReadTextFile(absl::StrCat(to, "/", name)).size(), 1000u);
  }
  const std::map<std::string, std::vector<std::string>> wrong = {
      {"no checkpoint, which has a file LATEST or MANIFEST", {folder_.path(), "--to", to}},
      {"expected SCRIPT:CLASS, such as ranker.py:Ranker",
       {arguments.out + "/model", "--to", to, "--serve", "Ranker"}},
      {"has no Rnaker", {arguments.out + "/model", "--to", to, "--serve", script + ":Rnaker"}},
      {"TorchScript does not take the module: python value of type 'int' cannot be used as a value",
       {arguments.out, "--to", to + "-not", "--serve", script + ":Global"}},
      {"LookupError: no such layer (checkpoints.py:",
       {arguments.out, "--to", to + "-not", "--serve", script + ":Broken"}},
      {"--format", {arguments.out + "/model", "--to", to, "--format", "csv"}}};
  for (const auto& [text, flags] : wrong) {
    std::vector<std::string> line = {ProgramPath("tandem"), "export"};
    line.insert(line.end(), flags.begin(), flags.end());
    const RunResult refused = Tandem(line);
    EXPECT_NE(refused.exit_code, 0) << text;
    EXPECT_THAT(refused.output, HasSubstr(text));
    EXPECT_EQ(std::count(refused.output.begin(), refused.output.end(), '\n'), 1) << refused.output;
  }
  EXPECT_NE(access((to + "-not").c_str(), F_OK), 0);
  const RunResult program = Tandem({ProgramPath("tandem"), "export", arguments.out, "--to", to,
                                    "--serve", script + ":Ranker", "--inputs", "example"});
  if (program.ok()) {
    const RunResult served = Python({script, "exported", to + "/serve.pt2", folder_.path()});
    EXPECT_TRUE(served.ok()) << served.DebugString();
  } else {  // an old torch
    EXPECT_THAT(program.output,
                HasSubstr(", and this needs torch.export of 2.3; leave out --inputs"));
    EXPECT_EQ(std::count(program.output.begin(), program.output.end(), '\n'), 1) << program.output;
  }
}

// `predict` runs the script of the job, which says what the rows are: the same logits as its
// evaluation had.
TEST_F(PythonTest, PredictScoresWhatTheScriptEvaluates) {
  const std::string script = SourcePath("tests/python/best.py");
  RunArguments arguments = Arguments(script);
  arguments.flags.insert(arguments.flags.end(), {"--", folder_.path()});
  const RunResult run = RunJob(arguments, kLimit);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  const std::string trained = ReadTextFile(folder_.File("logits"));
  ASSERT_EQ(trained.size(), 210 * sizeof(float));
  std::string want;
  for (size_t i = 0; i < trained.size(); i += sizeof(float)) {
    float logit = 0;
    std::memcpy(&logit, &trained[i], sizeof logit);
    absl::StrAppendFormat(&want, "%.17g\n", 1 / (1 + std::exp(-static_cast<double>(logit))));
  }
  const RunResult served = Python({script, folder_.path(), "check", arguments.out + "/model"});
  EXPECT_TRUE(served.ok()) << served.DebugString();
  const auto predict = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> command = {
        ProgramPath("tandem"),    "predict", arguments.job,         "--init-from",
        arguments.out + "/model", "--out",   folder_.File("scores")};
    command.insert(command.end(), flags.begin(), flags.end());
    return Tandem(command);
  };
  for (const char* const way : {"", "unlabelled"}) {
    SCOPED_TRACE(way);
    const RunResult predicted = predict({"--python", script, "--", folder_.path(), way});
    ASSERT_TRUE(predicted.ok()) << predicted.DebugString();
    EXPECT_THAT(predicted.output, HasSubstr("wrote 210 scores to "));
    EXPECT_EQ(ReadTextFile(folder_.File("scores")), want);
  }
  // One worker waits for no others, whatever the policy that the job was trained by says of them.
  const RunResult backups = predict(
      {"--python", script, "--set",
       "dense={synchroniser: SERVERS optimizer {kind: ADAM learning_rate: 0.02}}", "--set",
       "policy={kind: BACKUP_WORKERS backups: 1}", "--", folder_.path(), "optimizer of the job"});
  ASSERT_TRUE(backups.ok()) << backups.DebugString();
  EXPECT_EQ(ReadTextFile(folder_.File("scores")), want);
  std::filesystem::remove(folder_.File("scores"));
  const std::map<std::string, std::vector<std::string>> wrong = {
      {"hint: --python SCRIPT", {}},
      {"it is the script that reads", {"--python", script, "--data", script}},
      {"has scored nothing", {"--python", script, "--", folder_.path(), "scores nothing"}}};
  for (const auto& [text, flags] : wrong) {
    const RunResult refused = predict(flags);
    EXPECT_EQ(refused.exit_code, text == "has scored nothing" ? 1 : 2) << refused.DebugString();
    EXPECT_THAT(refused.output, HasSubstr(text));
    EXPECT_FALSE(std::filesystem::exists(folder_.File("scores")));
    if (text != "has scored nothing") continue;
    EXPECT_THAT(refused.output, HasSubstr("data=\"validation\") has no batches here; logs in "));
    const std::string logs(
        absl::StripAsciiWhitespace(refused.output.substr(refused.output.rfind("logs in ") + 8)));
    EXPECT_TRUE(std::filesystem::exists(logs + "/worker-0.log")) << logs;
    ASSERT_THAT(logs, HasSubstr("/tandem-predict-"));
    std::filesystem::remove_all(std::filesystem::path(logs).parent_path());
  }
}

// A parameter that one worker changes by itself makes replicas that are none. With two of them
// nobody knows who is right; of three one stands alone.
TEST_F(PythonTest, ReplicasThatDifferEndTheJobByName) {
  for (const auto& [workers, ending] :
       {std::pair("2", "dense parameters of workers 0, 1 differ at the end of the epoch (step "),
        {"3",
         "failed: worker 1: dense parameters of worker 1 differ from those of the others at"}}) {
    RunArguments arguments =
        Arguments(SourcePath("tests/python/best.py"),
                  {absl::StrCat("cluster.workers=", workers), "train.epochs=4"});
    arguments.flags.insert(arguments.flags.end(), {"--", folder_.path(), "apart"});
    const RunResult run = RunJob(arguments, kLimit);
    EXPECT_EQ(run.exit_code, 1) << run.DebugString();
    EXPECT_THAT(run.output, HasSubstr(ending));
    EXPECT_THAT(run.output, HasSubstr("hint: all workers must change them in the same way"));
  }
}

// Also what is changed behind a step, at a moment of each worker's own, is compared when all have
// changed it.
TEST_F(PythonTest, ReplicasChangedBetweenStepsAreComparedAtRest) {
  RunArguments arguments =
      Arguments(SourcePath("tests/python/best.py"),
                {"cluster.workers=2", "train.epochs=3", "train.prefetch_steps=1"});
  arguments.flags.insert(arguments.flags.end(), {"--", folder_.path(), "clamped"});
  const RunResult run = RunJob(arguments, kLimit);
  EXPECT_TRUE(run.ok()) << run.DebugString();
}

// The modules that serve make initial values themselves: each bit is that of the servers.
TEST_F(PythonTest, InitialValuesAreThoseOfTheServers) {
  const Table::Dtype types[] = {Table::F32, Table::BF16, Table::F16, Table::INT8};
  const uint64_t ids[] = {0, 1, 7, 12345, uint64_t{1} << 63, ~uint64_t{0}, 0x9e3779b97f4a7c15u};
  std::string lines;
  for (const uint64_t salt : {uint64_t{0}, uint64_t{42}, ~uint64_t{0} - 3, uint64_t{1} << 63}) {
    for (const char* const text :
         {"", "kind: ZERO", "kind: CONSTANT scale: -0.1", "kind: UNIFORM scale: 0.05",
          "kind: UNIFORM scale: 1e-20", "kind: NORMAL scale: 0.01"}) {
      Initializer initializer;
      ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &initializer));
      for (const int dim : {1, 8, 13}) {
        for (const uint64_t id : ids) {
          const Table::Dtype type = types[absl::c_count(lines, '\n') % 5 % 4];
          std::vector<float> row(static_cast<size_t>(dim));
          optim::InitRow(initializer, HashCombine(salt, HashName("initial values")), id,
                         absl::MakeSpan(row));
          optim::RoundToNearest(type, absl::MakeSpan(row));
          absl::StrAppend(&lines, salt, " ", dim, " ", Table::Dtype_Name(type), " ",
                          static_cast<int64_t>(id), " ");
          for (const float x : row)
            absl::StrAppendFormat(&lines, "%08x", absl::bit_cast<uint32_t>(x));
          absl::StrAppend(&lines, " ", text, "\n");
        }
      }
    }
  }
  WriteTextFile(folder_.File("rows"), lines);
  const RunResult run =
      Python({SourcePath("tests/python/checkpoints.py"), "first", folder_.File("rows")});
  EXPECT_TRUE(run.ok()) << run.DebugString();
}

// ---- the page ----

struct Snippet {
  std::string kind, name, text;  // name: of the file that the line before calls it
};

std::vector<Snippet> SnippetsOf(const std::string& page) {
  std::vector<Snippet> snippets;
  bool inside = false;
  std::string name;
  for (const absl::string_view line : absl::StrSplit(ReadTextFile(page), '\n')) {
    if (absl::StartsWith(line, "```")) {
      inside = !inside;
      if (inside) snippets.push_back({std::string(line.substr(3)), name, ""});
      name.clear();
    } else if (inside) {
      absl::StrAppend(&snippets.back().text, line, "\n");
    } else if (absl::StartsWith(line, "#")) {
      name.clear();
    } else if (absl::StartsWith(line, "`") && line.find('`', 1) != absl::string_view::npos) {
      name = std::string(line.substr(1, line.find('`', 1) - 1));
    }
  }
  return snippets;
}

// The tutorial: its job and its script train to something better than a guess, and what it does
// with the model afterwards can be done.
TEST_F(PythonTest, TheTutorialTrainsAndItsSnippetsRun) {
  std::string job, script, after;
  for (const Snippet& snippet : SnippetsOf(SourcePath("docs/PYTHON.md"))) {
    if (snippet.kind == "textproto" && snippet.name == "clicks.textproto") job = snippet.text;
    if (snippet.kind == "python" && absl::StartsWith(snippet.name, "clicks.py"))
      script = snippet.text;
    if (snippet.kind == "python" && snippet.name.empty()) after = snippet.text;
  }
  ASSERT_FALSE(job.empty() || script.empty() || after.empty());
  RunArguments arguments = Arguments(folder_.File("clicks.py"));
  arguments.job = folder_.File("clicks.textproto");
  WriteTextFile(arguments.job, job);
  WriteTextFile(folder_.File("clicks.py"), script);
  const RunResult run = RunJob(arguments, kLimit);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_GT(run.summary["eval"]["auc"], 0.8) << run.summary["eval"].dump();
  EXPECT_EQ(run.summary["eval"]["samples"], 4000);
  EXPECT_EQ(run.summary["samples"], 3 * (8000 + 11000));
  const size_t model = after.find("out/clicks/model");
  ASSERT_NE(model, std::string::npos);
  after.replace(model, 16, arguments.out + "/model");
  WriteTextFile(folder_.File("after.py"), after);
  const RunResult read = Python({folder_.File("after.py")});
  EXPECT_TRUE(read.ok()) << read.DebugString();
}

}  // namespace
}  // namespace tandem
