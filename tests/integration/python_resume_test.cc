// Python jobs that were killed go on: module, buffers, optimizer, schedule, loader and random
// numbers stand where they stood, so a reproducible job ends with the bits of one that was not
// disturbed. Skipped where there is no interpreter with PyTorch and numpy. The moments of the kills
// follow from --seed.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/kill_and_resume.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/run_job.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

using Settings = std::vector<std::string>;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLimit = absl::Seconds(100);

constexpr char kJob[] = R"(
seed: 5
reproducible: true
cluster { workers: 2 servers: 2 }
data { format: PROGRAM }
table { name: "ids" dim: 8 field: "a" field: "b" optimizer { kind: ADAGRAD learning_rate: 0.1 } }
dense { optimizer { kind: PROGRAM } }
model { program {} }
train { batch_size: 64 epochs: 5 prefetch_steps: 1 }
evaluation { every_epochs: 1 }
checkpoint { every_steps: 7 }
limits { report_interval_seconds: 0.1 }
)";

class PythonResumeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (PythonInterpreter().empty()) GTEST_SKIP() << "no python3 with torch and numpy here";
    WriteTextFile(folder_.File("job.textproto"), kJob);
  }

  std::string Out(const std::string& name) { return folder_.File(name); }
  // `way`: of tests/python/resumed.py. The run's own folder has what the script leaves.
  RunArguments Arguments(const std::string& name, const Settings& set, const std::string& way = "",
                         std::string script = "") {
    RunArguments arguments;
    arguments.job = folder_.File("job.textproto");
    arguments.set = set;
    arguments.out = Out(name);
    if (script.empty()) script = SourcePath("tests/python/resumed.py");
    arguments.flags = {"--python", script, "--", arguments.out};
    if (!way.empty()) arguments.flags.push_back(way);
    arguments.environment = {{"TANDEM_PYTHON", PythonInterpreter()}};
    return arguments;
  }
  // Trains until the first checkpoint behind `step`, and kills all of it `pause` later.
  void TrainAndKill(const RunArguments& arguments, const std::string& name, int64_t step,
                    absl::Duration pause) {
    RunningJob job(arguments);
    ASSERT_TRUE(WaitForCheckpointAfter(&job, Out(name), step)) << job.driver().Output();
    absl::SleepFor(pause);
    KillAll(&job);
  }
  ModelBits Model(const std::string& name) {
    absl::StatusOr<ModelBits> model = ReadCheckpoint(Out(name) + "/model");
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : ModelBits();
  }

  TemporaryFolder folder_;
};

TEST_F(PythonResumeTest, KilledRunsEndWithTheBitsOfOneThatWasNot) {
  const RunResult undisturbed = RunJob(Arguments("whole", {}), kLimit);
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.DebugString();
  Random random(TestSeed());
  // 16 steps an epoch: in the middle of one, and around the end of one, wherever checkpoints are
  // then.
  TrainAndKill(Arguments("broken", {}), "broken", 0, absl::Milliseconds(200) * random.NextDouble());
  for (const int servers : {1, 3}) {
    const int64_t saved = CheckpointStep(Out("broken"));
    TrainAndKill(Resumed(Arguments("broken", {absl::StrCat("cluster.servers=", servers)})),
                 "broken", saved + 7 * static_cast<int64_t>(random.Uniform(2)),
                 absl::Milliseconds(300) * random.NextDouble());
  }
  // Told to end, it checkpoints first, and the script hears of it behind its loop. The system tells
  // a script of its limit of CPU time again and again, and `tandem run` nothing.
  {
    const int64_t saved = CheckpointStep(Out("broken"));
    RunningJob job(Resumed(Arguments("broken", {})));
    ASSERT_TRUE(WaitForCheckpointAfter(&job, Out("broken"), saved)) << job.driver().Output();
    const pid_t script = job.Roles()["worker-1"];
    ASSERT_GT(script, 0);
    kill(script, SIGXCPU);
    EXPECT_TRUE(job.driver().WaitForOutput("making a checkpoint first", kLimit))
        << job.driver().Output();
    kill(script, SIGXCPU);
    const RunResult ended = job.Finish(kLimit);
    EXPECT_EQ(ended.signal, SIGXCPU) << ended.DebugString();
    EXPECT_THAT(ReadTextFile(Out("broken") + "/end-0"), HasSubstr("stopped True\n"));
    EXPECT_GT(CheckpointStep(Out("broken")), saved) << ended.DebugString();
  }
  const RunResult last = RunJob(Resumed(Arguments("broken", {})), kLimit);
  ASSERT_TRUE(last.ok()) << last.DebugString() << "--seed=" << TestSeed();
  EXPECT_EQ(Difference(Model("whole"), Model("broken")), "") << "--seed=" << TestSeed();
  for (const char* const end : {"/end-0", "/end-1"}) {
    EXPECT_EQ(ReadTextFile(Out("whole") + end), ReadTextFile(Out("broken") + end));
  }
  EXPECT_EQ(last.summary["eval"].dump(), undisturbed.summary["eval"].dump());
  EXPECT_EQ(last.summary["samples"], undisturbed.summary["samples"]);
  EXPECT_EQ(last.summary["resumed"], 4);
  EXPECT_THAT(ReadTextFile(Out("broken") + "/end-0"), HasSubstr("stopped False\n"));
}

TEST_F(PythonResumeTest, StepsOfSeveralBatchesAndAScaleGoOnWithTheSameBits) {
  const RunResult undisturbed = RunJob(Arguments("whole", {}, "together"), kLimit);
  ASSERT_TRUE(undisturbed.ok()) << undisturbed.DebugString();
  TrainAndKill(Arguments("broken", {}, "together"), "broken", 0, absl::ZeroDuration());
  const RunResult last = RunJob(Resumed(Arguments("broken", {}, "together")), kLimit);
  ASSERT_TRUE(last.ok()) << last.DebugString();
  EXPECT_EQ(Difference(Model("whole"), Model("broken")), "");
  for (const char* const end : {"/end-0", "/end-1"}) {
    EXPECT_EQ(ReadTextFile(Out("whole") + end), ReadTextFile(Out("broken") + end));
  }
  EXPECT_EQ(last.summary["samples"], undisturbed.summary["samples"]);
}

const Settings kOverfits = {"train.epochs=20", "train.keep_best={metric: LOGLOSS patience: 2}",
                            "train.batch_size=20"};

// What a script learns by heart after a few epochs: the best of these is kept, and the loop over
// epochs ends on all workers when no better one comes in time.
// Rows of a table with __arrow_c_stream__ train as the same rows in batches of a list, also if the
// run resumes in the middle of an epoch.
TEST_F(PythonResumeTest, TablesTrainAsListsAndResumeInTheMiddleOfAnEpoch) {
  const Settings set = {
      "cluster.workers=1", "train.batch_size=10", "train.epochs=3",
      // An epoch has 12 steps, so checkpoints after 16 or 32, and a few later, are inside of one.
      "checkpoint.every_steps=16",
      "table[0]={name: 'ids' dim: 4 field: 'city' field: 'user' field: 'tags' ids_per_field: 3 "
      "optimizer {kind: ADAGRAD learning_rate: 0.1}}"};
  const std::string script = SourcePath("tests/python/table_job.py");
  const auto run = [&](const std::string& way) {
    return RunJob(Arguments(way, set, way, script), kLimit);
  };
  for (const char* const way : {"list", "table", "function", "dies"}) {
    RunResult result = run(way);
    if (way == std::string("dies")) {
      EXPECT_FALSE(result.ok());
      result = RunJob(Resumed(Arguments(way, set, way, script)), kLimit);
    }
    ASSERT_TRUE(result.ok()) << result.DebugString();
    EXPECT_EQ(Difference(Model("list"), Model(way)), "") << way;
  }
  EXPECT_EQ(ReadTextFile(Out("list") + "/batches"), "33");
  int left = 0;
  ASSERT_TRUE(absl::SimpleAtoi(ReadTextFile(Out("dies") + "/batches"), &left));
  EXPECT_LT(left, 33) << "the second process has begun with the first batch";
  EXPECT_NE(left % 11, 0) << "at the beginning of an epoch";
  const RunResult once = run("once");
  EXPECT_EQ(once.exit_code, 1) << once.DebugString();
  EXPECT_THAT(once.output, HasSubstr("it is an iterator (main.Once), which can be read once"));
}

TEST_F(PythonResumeTest, TheModelOfTheBestEpochIsKept) {
  const std::string script = SourcePath("tests/python/best.py");
  const RunResult whole = RunJob(Arguments("whole", kOverfits, "", script), kLimit);
  ASSERT_TRUE(whole.ok()) << whole.DebugString();
  const nlohmann::json best = whole.summary["best"];
  std::vector<nlohmann::json> validation, test;
  for (const nlohmann::json& evaluation : whole.summary["evaluations"]) {
    (evaluation["data"] == "validation" ? validation : test).push_back(evaluation);
  }
  double smallest = INFINITY;
  size_t improved = 0;
  for (const nlohmann::json& evaluation : validation) {
    EXPECT_EQ(evaluation["samples"], 200);
    if (!(evaluation["logloss"] < smallest)) continue;
    smallest = evaluation["logloss"];
    ASSERT_LT(improved, test.size());
    EXPECT_EQ(test[improved]["data"], "test");
    EXPECT_EQ(test[improved++]["epoch"], evaluation["epoch"]) << "tests of each best model";
  }
  EXPECT_EQ(improved, test.size()) << "... and of no other";
  EXPECT_EQ(best["value"], smallest);
  EXPECT_TRUE(best["stopped_early"].get<bool>()) << whole.DebugString();
  EXPECT_EQ(validation.back()["epoch"], best["epoch"].get<int>() + 2);
  EXPECT_LT(validation.back()["epoch"], 20);
  test.back().erase("time");
  EXPECT_EQ(whole.summary["eval"], test.back());
  EXPECT_THAT(whole.output, HasSubstr("kept the model of epoch"));

  // It scores as that epoch did, worker 0's buffers and rows that nobody has trained included.
  RunArguments evaluates = Arguments("evaluates", {"train.evaluate_only=true"}, "", script);
  evaluates.flags.insert(evaluates.flags.begin(), {"--init-from", Out("whole") + "/model"});
  const RunResult evaluated = RunJob(evaluates, kLimit);
  ASSERT_TRUE(evaluated.ok()) << evaluated.DebugString();
  EXPECT_EQ(evaluated.summary["eval"]["logloss"], whole.summary["eval"]["logloss"]);
  EXPECT_EQ(ReadTextFile(Out("evaluates") + "/logits"), ReadTextFile(Out("whole") + "/logits"));

  // Killed in the middle, it ends with the same model.
  Random random(TestSeed());
  TrainAndKill(Arguments("broken", kOverfits, "", script), "broken", 0,
               absl::Milliseconds(300) * random.NextDouble());
  const RunResult last = RunJob(Resumed(Arguments("broken", kOverfits, "", script)), kLimit);
  ASSERT_TRUE(last.ok()) << last.DebugString() << "--seed=" << TestSeed();
  EXPECT_EQ(last.summary["best"], best);
  EXPECT_EQ(last.summary["eval"]["logloss"], whole.summary["eval"]["logloss"]);
  EXPECT_EQ(Difference(Model("whole"), Model("broken")), "") << "--seed=" << TestSeed();
}

// A number of the script decides, reduced over workers with parts of different sizes, and each
// worker knows the results. Worker 0 also gets all records of the job.
TEST_F(PythonResumeTest, AMetricOfTheScriptDecides) {
  const std::string script = SourcePath("tests/python/best.py");
  const Settings judged = {
      "train.epochs=20", "train.batch_size=20",
      "train.keep_best={metric: REPORTED name: \"own\" smaller_is_better: true patience: 2}"};
  const RunResult whole = RunJob(Arguments("whole", judged, "own", script), kLimit);
  ASSERT_TRUE(whole.ok()) << whole.DebugString();
  const nlohmann::json best = whole.summary["best"];
  EXPECT_EQ(best["metric"], "own");
  double smallest = INFINITY;
  int64_t last = 0;
  for (const nlohmann::json& evaluation : whole.summary["evaluations"]) {
    if (evaluation["data"] != "validation") continue;
    const double own = evaluation["reported"]["own"];
    EXPECT_EQ(evaluation["reported"]["rows"], 200);
    EXPECT_EQ(evaluation.contains("best"), own < smallest);
    smallest = std::min(smallest, own);
    last = evaluation["epoch"];
  }
  EXPECT_EQ(best["value"], smallest);
  EXPECT_EQ(last, best["epoch"].get<int>() + 2) << whole.DebugString();
  EXPECT_EQ(whole.summary["reported"]["rows"], 200);
  const std::string known = ReadTextFile(Out("whole") + "/own-0");
  EXPECT_EQ(known, ReadTextFile(Out("whole") + "/own-1"));
  const nlohmann::json first = nlohmann::json::parse(known)[0];
  EXPECT_EQ(first[2]["reported"]["own"], first[0]["own"]);
  EXPECT_THAT(known, HasSubstr(absl::StrCat("\"auc\": ", whole.summary["eval"]["auc"].dump())));

  const nlohmann::json records = nlohmann::json::parse(ReadTextFile(Out("whole") + "/records"));
  std::vector<nlohmann::json> lines, given(records.begin(), records.end());
  for (const absl::string_view line :
       absl::StrSplit(ReadTextFile(Out("whole") + "/metrics.jsonl"), '\n', absl::SkipEmpty())) {
    lines.push_back(nlohmann::json::parse(line));
  }
  ASSERT_EQ(lines.back()["event"], "finished");
  lines.pop_back();
  ASSERT_EQ(given.back()["event"], "summary");
  const std::set<std::string> of_launcher = {"command", "ended", "exit", "script"};
  for (const auto& [name, value] : whole.summary.items()) {
    if (of_launcher.count(name) == 0) {
      EXPECT_EQ(given.back()[name], value) << name;
    }
  }
  given.pop_back();
  EXPECT_EQ(given, lines);
  const RunResult logged = RunPython({SourcePath("tests/python/loggers.py"),
                                      SourcePath("docs/PYTHON.md"), Out("whole") + "/records"});
  EXPECT_TRUE(logged.ok()) << logged.DebugString();

  Random random(TestSeed());
  TrainAndKill(Arguments("broken", judged, "own", script), "broken", 0,
               absl::Milliseconds(300) * random.NextDouble());
  const RunResult ended = RunJob(Resumed(Arguments("broken", judged, "own", script)), kLimit);
  ASSERT_TRUE(ended.ok()) << ended.DebugString() << "--seed=" << TestSeed();
  EXPECT_EQ(ended.summary["best"], best);
  EXPECT_EQ(Difference(Model("whole"), Model("broken")), "") << "--seed=" << TestSeed();

  const RunResult missing = RunJob(Arguments("missing", judged, "own unreported", script), kLimit);
  EXPECT_EQ(missing.exit_code, 1) << missing.DebugString();
  EXPECT_THAT(missing.output, HasSubstr("the script has not reported own after epoch 0"));
}

TEST_F(PythonResumeTest, WhatKeepsABestModelNeedsItsRows) {
  const std::string script = SourcePath("tests/python/best.py");
  const Settings few = {"train.keep_best={}", "train.epochs=2"};
  const RunResult none = RunJob(Arguments("none", few, "no validation", script), kLimit);
  EXPECT_EQ(none.exit_code, 1) << none.DebugString();
  EXPECT_THAT(none.output,
              HasSubstr("epoch 0 is over, and the job keeps its best model (train.keep_best)"));
  const RunResult order = RunJob(Arguments("order", few, "tests first", script), kLimit);
  EXPECT_EQ(order.exit_code, 1) << order.DebugString();
  EXPECT_THAT(order.output, HasSubstr("judges by validation rows before it scores test rows"));
  // Without test rows the evaluation that counts is the one that it was judged by.
  const RunResult alone = RunJob(Arguments("alone", few, "no tests", script), kLimit);
  ASSERT_TRUE(alone.ok()) << alone.DebugString();
  EXPECT_EQ(alone.summary["eval"]["data"], "validation");
  EXPECT_EQ(alone.summary["eval"]["auc"], alone.summary["best"]["value"]);
  EXPECT_EQ(alone.summary["evaluations"].size(), 2u);
}

// Under policies that promise no bits it goes on, too, and keeps what they do promise.
TEST_F(PythonResumeTest, AsynchronousJobsGoOn) {
  for (const char* const policy : {"{kind: ASP}", "{kind: SSP bound: 2}"}) {
    SCOPED_TRACE(policy);
    const std::string name = absl::StrContains(policy, "SSP") ? "ssp" : "asp";
    const Settings asynchronous = {"reproducible=false", absl::StrCat("policy=", policy),
                                   "train.epochs=3",
                                   "dense={synchroniser: SERVERS optimizer {kind: SGD "
                                   "learning_rate: 0.01}}"};
    TrainAndKill(Arguments(name, asynchronous), name, 0, absl::Milliseconds(50));
    const RunResult run = RunJob(Resumed(Arguments(name, asynchronous)), kLimit);
    ASSERT_TRUE(run.ok()) << run.DebugString();
    EXPECT_EQ(run.summary["samples"], 3 * (310 + 9 * 20));
    EXPECT_EQ(run.summary["resumed"], 1);
    EXPECT_EQ(run.summary["updates"]["applied"], run.summary["updates"]["sent"]);
    if (name == "asp") continue;
    for (const char* const table : {"ids", "dense"}) {
      const nlohmann::json& gap = run.summary["staleness"][table]["clock_gap"];
      EXPECT_GT(gap["count"], 0) << table;
      EXPECT_LE(gap["max"], 2) << table;
    }
  }
}

// Rows that programs own go on with the run: what a worker wrote in the steps before the checkpoint
// is there.
TEST_F(PythonResumeTest, RowsOfAStoreOutliveAKill) {
  WriteTextFile(
      folder_.File("job.textproto"),
      absl::StrCat(kJob, "table { name: \"cache\" dim: 3 extra_floats: 2 kind: KEY_VALUE }\n"));
  const std::string script = SourcePath("tests/python/store_resumed.py");
  TrainAndKill(Arguments("store", {}, "", script), "store", 0, absl::Milliseconds(50));
  const RunResult run =
      RunJob(Resumed(Arguments("store", {"cluster.servers=3"}, "", script)), kLimit);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_EQ(run.summary["resumed"], 1);
  EXPECT_EQ(run.summary["tables"]["cache"]["rows"], 2 * 5 * 12 * 4);
  for (const char* const log : {"/logs/worker-0.log", "/logs/worker-1.log"}) {
    const std::string said = ReadTextFile(Out("store") + log);
    EXPECT_THAT(said, HasSubstr("began at step 0, 0 rows were there\n"));
    EXPECT_THAT(said, HasSubstr("rows were there\nall rows are there\n"));
    EXPECT_THAT(said, Not(HasSubstr("Error")));
  }
}

// Of a barrier that one worker does again and another does not.
TEST_F(PythonResumeTest, ACheckpointAroundABarrierIsNoTrap) {
  RunArguments arguments =
      Arguments("cut", {"checkpoint={}", "train.epochs=3", "evaluation.every_epochs=0"}, "",
                SourcePath("tests/python/cut.py"));
  TrainAndKill(arguments, "cut", 0, absl::ZeroDuration());
  const RunResult run = RunJob(Resumed(arguments), kLimit);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_EQ(run.summary["resumed"], 1);
  for (const char* const log : {"/logs/worker-0.log", "/logs/worker-1.log"}) {
    const std::string said = ReadTextFile(Out("cut") + log);
    EXPECT_THAT(said, HasSubstr("epoch 2: at the barrier\n"));
    EXPECT_THAT(said, HasSubstr("began behind step 2 of epoch 0\n"));
  }
}

// A run that has come to the end of its steps in the middle of an epoch, and is given more.
TEST_F(PythonResumeTest, WhatHasChangedIsSaidOrRefused) {
  const RunArguments begun = Arguments("begun", {"train.max_steps=10"}, "fast");
  const RunResult first = RunJob(begun, kLimit);
  ASSERT_TRUE(first.ok()) << first.DebugString();
  const RunResult workers = RunJob(
      Resumed(Arguments("begun", {"train.max_steps=12", "cluster.workers=3"}, "fast")), kLimit);
  EXPECT_EQ(workers.exit_code, 2) << workers.DebugString();
  EXPECT_THAT(workers.output, HasSubstr("the run has 2 workers, the job 3"));
  EXPECT_EQ(std::count(workers.output.begin(), workers.output.end(), '\n'), 1) << workers.output;

  const std::string script = folder_.File("changed.py");
  WriteTextFile(script, ReadTextFile(SourcePath("tests/python/resumed.py")) + "# changed\n");
  const RunResult other =
      RunJob(Resumed(Arguments("begun", {"train.max_steps=12"}, "other data", script)), kLimit);
  EXPECT_EQ(other.exit_code, 1) << other.DebugString();
  EXPECT_THAT(other.output, HasSubstr("of the loader has other ids than the one that the run has "
                                      "trained on: it does not repeat itself"));
  const RunResult strange =
      RunJob(Resumed(Arguments("begun", {"train.max_steps=12"}, "not repeatable")), kLimit);
  EXPECT_TRUE(strange.ok()) << strange.DebugString();
  EXPECT_THAT(strange.output, Not(HasSubstr("the script has changed"))) << "it has saved nothing";
  EXPECT_THAT(ReadTextFile(Out("begun") + "/logs/worker-0.log"),
              HasSubstr("that was declared not repeatable: its batches are others"));

  const RunResult changed =
      RunJob(Resumed(Arguments("begun", {"train.max_steps=14"}, "not repeatable", script)), kLimit);
  EXPECT_TRUE(changed.ok()) << changed.DebugString();
  EXPECT_THAT(changed.output, HasSubstr("the script has changed: "));
  EXPECT_THAT(changed.output, HasSubstr("resumed.py had SHA-256 "));
}

}  // namespace
}  // namespace tandem
