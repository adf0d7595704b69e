// A study as a user runs it: whole, killed in the middle and gone on with, and refused.
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kStudy[] = R"(
question: "Does asynchrony matter?"
job: "job.textproto"
set: "reproducible=false"
variation { name: "BSP" set: "policy.kind=BSP" }
variation { name: "ASP" set: "policy.kind=ASP" }
seed: [1, 2]
)";

class CompareTest : public ::testing::Test {
 protected:
  CompareTest() : job_(/*train_rows=*/3000, /*test_rows=*/500) {
    WriteTextFile(job_.File("study.textproto"), kStudy);
  }
  std::string Out() const { return job_.File("out"); }
  std::vector<std::string> Command(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> argv = {ProgramPath("tandem"), "compare", job_.File("study.textproto"),
                                     "--out", Out()};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  std::vector<std::string> Rows() const {
    return absl::StrSplit(ReadTextFile(Out() + "/runs.csv"), '\n', absl::SkipEmpty());
  }
  // When a run's summary was written.
  fs::file_time_type Written(const std::string& run) const {
    return fs::last_write_time(absl::StrCat(Out(), "/runs/", run, "/summary.json"));
  }

  static bool WaitForFile(const std::string& path) {
    for (int i = 0; i < 6000 && !fs::exists(path); ++i) absl::SleepFor(absl::Milliseconds(10));
    return fs::exists(path);
  }

  const SmallJob job_;
};

TEST_F(CompareTest, GoesOnAfterKill9AndReports) {
  {
    ChildProcess killed(Command(), job_.File("killed.txt"), {});
    ASSERT_TRUE(killed.WaitForOutput("[1/4]", kRunLimit)) << killed.Output();
    ASSERT_TRUE(WaitForFile(Out() + "/runs/ASP-seed1/run.log")) << killed.Output();
    killed.Signal(SIGKILL);
    ASSERT_TRUE(killed.WaitFor(absl::Seconds(10)));
  }
  const std::string left =
      Out() + "/runs/ASP-seed1/left";  // stands for all that a killed run leaves
  WriteTextFile(left, "");
  const fs::file_time_type first = Written("BSP-seed1");
  const RunResult gone_on = RunProgram(Command());
  ASSERT_TRUE(gone_on.ok()) << gone_on.DebugString();
  EXPECT_FALSE(fs::exists(left)) << "a run that was cut off is run from fresh";
  EXPECT_EQ(Written("BSP-seed1"), first) << "a complete run was run again";
  EXPECT_THAT(gone_on.output, HasSubstr("[4/4] ASP seed 2: AUC 0."));
  EXPECT_THAT(gone_on.output, Not(HasSubstr("BSP seed 1")));
  EXPECT_THAT(gone_on.output, HasSubstr("4 runs complete"));
  EXPECT_EQ(Rows().size(), 5u);
  const auto manifest = nlohmann::json::parse(ReadTextFile(Out() + "/manifest.json"));
  EXPECT_EQ(manifest["runs"].size(), 4u);
  EXPECT_EQ(manifest["surroundings"]["data"].size(), 2u);
  const std::string page = ReadTextFile(Out() + "/report.html");
  EXPECT_THAT(page, HasSubstr("Does asynchrony matter?"));
  EXPECT_THAT(page, HasSubstr("BSP reaches AUC"));
  // Asked again, it has nothing to run; and the report can be had without the study.
  fs::remove(Out() + "/report.html");
  const RunResult again = RunProgram({ProgramPath("tandem"), "compare", "--report-only", Out()});
  ASSERT_TRUE(again.ok()) << again.DebugString();
  EXPECT_EQ(ReadTextFile(Out() + "/report.html"), page);
  // Another study is not mixed with this one.
  WriteTextFile(job_.File("study.textproto"), absl::StrCat(kStudy, "set: \"train.batch_size=32\""));
  const RunResult other = RunProgram(Command());
  EXPECT_EQ(other.exit_code, 2) << other.DebugString();
  EXPECT_THAT(other.output, HasSubstr("is of another job"));
}

// The same study twice gives the same figures, but for what it took here.
TEST_F(CompareTest, ASimulatedStudyHasTheSameFiguresEachTime) {
  WriteTextFile(
      job_.File("study.textproto"),
      absl::StrCat(kStudy, "set: \"cluster.workers=6\"\nsimulate { step_seconds: 0.02 }"));
  const RunResult first = RunProgram(Command());
  ASSERT_TRUE(first.ok()) << first.DebugString();
  const std::string page = ReadTextFile(Out() + "/report.html");
  EXPECT_THAT(page, HasSubstr("a virtual clock: a step takes 0.02 s"));
  const auto summary_of = [this](const std::string& run) {
    return nlohmann::json::parse(ReadTextFile(absl::StrCat(Out(), "/runs/", run, "/summary.json")));
  };
  const nlohmann::json bsp = summary_of("BSP-seed1");
  EXPECT_EQ(bsp["workers"], 6);
  EXPECT_EQ(bsp["simulated"]["step_seconds"], 0.02);
  // 21 steps of 20 ms, and as long again as 500 test rows take, which is no time.
  EXPECT_NEAR(bsp["seconds"].get<double>(), 0.44, 0.1);
  const RunResult again = RunProgram(Command({"--overwrite"}));
  ASSERT_TRUE(again.ok()) << again.DebugString();
  EXPECT_EQ(summary_of("BSP-seed1")["eval"], bsp["eval"]);
  EXPECT_EQ(summary_of("BSP-seed1")["seconds"], bsp["seconds"]);

  // Live runs are others: those of the simulation do not count for them.
  WriteTextFile(job_.File("study.textproto"), absl::StrCat(kStudy, "set: \"cluster.workers=6\""));
  const RunResult live = RunProgram(Command());
  EXPECT_EQ(live.exit_code, 2) << live.DebugString();
}

// Each live run has its twin beside it, and a run without one is not complete.
TEST_F(CompareTest, LiveRunsHaveTwins) {
  WriteTextFile(job_.File("study.textproto"), absl::StrCat(kStudy, "twin: true"));
  const RunResult first = RunProgram(Command());
  ASSERT_TRUE(first.ok()) << first.DebugString();
  EXPECT_THAT(first.output, HasSubstr("4 runs complete"));
  EXPECT_THAT(Rows()[0], HasSubstr("twin.ratio"));
  EXPECT_THAT(ReadTextFile(Out() + "/report.html"), HasSubstr("Twins, simulated with the times"));
  const std::string lost = Out() + "/runs/ASP-seed2/twin/summary.json";
  fs::remove(lost);
  const RunResult again = RunProgram(Command());
  ASSERT_TRUE(again.ok()) << again.DebugString();
  EXPECT_THAT(again.output, HasSubstr("[4/4] ASP seed 2: "));
  EXPECT_THAT(again.output, Not(HasSubstr("ASP seed 1: ")));
  EXPECT_TRUE(fs::exists(lost));

  WriteTextFile(job_.File("study.textproto"), absl::StrCat(kStudy, "twin: true simulate {}"));
  const RunResult both = RunProgram(Command());
  EXPECT_EQ(both.exit_code, 2) << both.DebugString();
  EXPECT_THAT(both.output, HasSubstr("runs of `simulate` are no live ones"));
}

// A study runs the jobs that it has resolved, whatever becomes of the job's file on the way.
TEST_F(CompareTest, WhatRunsIsWhatTheManifestSays) {
  ChildProcess study(Command(), job_.File("changed.txt"), {});
  ASSERT_TRUE(study.WaitForOutput("[1/4]", kRunLimit)) << study.Output();
  WriteTextFile(job_.File("job.textproto"),
                absl::StrReplaceAll(ReadTextFile(job_.File("job.textproto")),
                                    {{"batch_size: 24", "batch_size: 12"}}));
  ASSERT_TRUE(study.WaitFor(kRunLimit)) << study.Output();
  const auto manifest = nlohmann::json::parse(ReadTextFile(Out() + "/manifest.json"));
  ASSERT_EQ(manifest["runs"].size(), 4u);
  for (const auto& run : manifest["runs"]) {
    const std::string job = ReadTextFile(
        absl::StrCat(Out(), "/runs/", run["name"].get<std::string>(), "/job.textproto"));
    // A run has chosen the deal of its rows by the size of its files.
    EXPECT_THAT(job, HasSubstr("  deal: ROWS\n"));
    EXPECT_EQ(absl::StrReplaceAll(job, {{"  deal: ROWS\n", ""}}), run["job"].get<std::string>());
  }
}

TEST_F(CompareTest, OverwritesNothingButAStudy) {
  fs::create_directories(Out() + "/runs");
  WriteTextFile(Out() + "/manifest.json", "{\"name\": \"a web page\"}");
  WriteTextFile(Out() + "/runs/mine", "");
  const RunResult refused = RunProgram(Command({"--overwrite"}));
  EXPECT_EQ(refused.exit_code, 2) << refused.DebugString();
  EXPECT_THAT(refused.output, HasSubstr("not the manifest of a study"));
  EXPECT_TRUE(fs::exists(Out() + "/runs/mine"));
}

TEST_F(CompareTest, CtrlCEndsInOrder) {
  ChildProcess study(Command(), job_.File("stopped.txt"), {});
  ASSERT_TRUE(study.WaitForOutput("4 runs", kRunLimit)) << study.Output();
  study.Signal(SIGINT);
  ASSERT_TRUE(study.WaitFor(absl::Seconds(60))) << study.Output();
  EXPECT_EQ(study.term_signal(), SIGINT);
  EXPECT_THAT(study.Output(), HasSubstr("to continue: tandem compare "));
  EXPECT_FALSE(fs::exists(Out() + "/report.html"));
}

TEST_F(CompareTest, AnImpossibleJobRefusesAllAtOnce) {
  WriteTextFile(job_.File("study.textproto"),
                absl::StrCat(kStudy, "variation { name: \"SSP\" set: \"policy.kind=SSP\" }"));
  const RunResult refused = RunProgram(Command());
  EXPECT_EQ(refused.exit_code, 2) << refused.DebugString();
  EXPECT_THAT(refused.output, HasSubstr("study.textproto:8:1: variation \"SSP\": "));
  EXPECT_FALSE(fs::exists(Out()));
  WriteTextFile(job_.File("study.textproto"),
                absl::StrCat(kStudy, "set: \"data.train=", job_.File("none.tsv"), "\""));
  const RunResult no_data = RunProgram(Command());
  EXPECT_EQ(no_data.exit_code, 2) << no_data.DebugString();
  EXPECT_THAT(no_data.output, HasSubstr("none.tsv"));
  EXPECT_FALSE(fs::exists(Out()));
  // A run of one worker does not tell the size of such a model, and the estimate needs it.
  WriteTextFile(
      job_.File("study.textproto"),
      absl::StrCat(kStudy, "set: \"cluster.workers=1\" network { bytes_per_second: 1e7 } ",
                   "variation { name: \"module\" set: 'model={script {file: \"ranker.pt\"}}' }"));
  const RunResult no_model = RunProgram(Command({"--check"}));
  EXPECT_EQ(no_model.exit_code, 2) << no_model.DebugString();
  EXPECT_THAT(no_model.output, HasSubstr("variation \"module\": model.script: "));
  EXPECT_FALSE(fs::exists(Out()));
  WriteTextFile(job_.File("study.textproto"),
                absl::StrCat(kStudy, "simulate { step_seconds: 1000 }"));
  const RunResult slow = RunProgram(Command());
  EXPECT_EQ(slow.exit_code, 2) << slow.DebugString();
  EXPECT_THAT(slow.output, HasSubstr("must be less than the job's limits.stall_timeout_seconds"));
  WriteTextFile(job_.File("study.textproto"),
                absl::StrCat("job: \"", SourcePath("tests/testdata/program.textproto"),
                             "\" target { metric: \"samples_per_second\" }"));
  const RunResult program = RunProgram(Command());
  EXPECT_EQ(program.exit_code, 2) << program.DebugString();
  EXPECT_THAT(program.output, HasSubstr("the study names no script; add python: \"train.py\""));
  EXPECT_FALSE(fs::exists(Out()));
}

TEST_F(CompareTest, ADivergedRunIsSaid) {
  WriteTextFile(job_.File("study.textproto"),
                absl::StrCat(kStudy,
                             "variation { name: \"wild\" set: \"policy.kind=BSP\" set: "
                             "\"dense.optimizer={kind: SGD learning_rate: 1000}\" }"));
  const RunResult result = RunProgram(Command());
  ASSERT_TRUE(result.ok()) << result.DebugString();
  EXPECT_THAT(result.output, HasSubstr("wild seed 1: diverged: "));
  EXPECT_THAT(result.output, HasSubstr("4 runs complete, 2 diverged"));
  EXPECT_THAT(ReadTextFile(Out() + "/report.html"), HasSubstr("wild: 2 of 2 runs diverged"));
}

constexpr char kScript[] = R"(import torch
import tandem
job = tandem.init()
torch.manual_seed(job.seed)
rows, model = tandem.EmbeddingBagCollection(), torch.nn.Linear(16, 1)
optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), .1), model)
loader = tandem.DataLoader([torch.arange(8).reshape(4, 2) + i for i in range(20)])
for _ in job.epochs():
    for ids in loader:
        optimizer.zero_grad()
        loss = (model(rows(ids).values()) - 1).square().mean()
        loss.backward()
        optimizer.step(loss=loss)
)";

// A script in the place of a compiled model. One that blows up has diverged, and is not tried
// again; an edited one is another study.
TEST_F(CompareTest, AStudyOfAScript) {
  if (PythonInterpreter().empty()) GTEST_SKIP() << "no python3 with torch and numpy here";
  setenv("TANDEM_PYTHON", PythonInterpreter().c_str(), 1);
  WriteTextFile(job_.File("train.py"), kScript);
  const auto study = [this](const std::string& job) {
    WriteTextFile(job_.File("study.textproto"),
                  absl::StrCat("job: \"", job, R"(" python: "train.py" seed: 1
                               set: "cluster.workers=1" target { metric: "loss" }
                               variation { name: "tame" }
                               variation { name: "wild"
                                           set: "table[0].optimizer.learning_rate=1e30" })"));
  };
  study("job.textproto");
  const RunResult compiled = RunProgram(Command());
  EXPECT_EQ(compiled.exit_code, 2) << compiled.DebugString();
  EXPECT_THAT(compiled.output, HasSubstr("python: the job has a model of its own"));
  study(SourcePath("tests/testdata/program.textproto"));
  const RunResult result = RunProgram(Command());
  ASSERT_TRUE(result.ok()) << result.DebugString();
  EXPECT_THAT(result.output, HasSubstr("tame seed 1: training loss 0."));
  EXPECT_THAT(result.output, HasSubstr("wild seed 1: diverged: "));
  EXPECT_THAT(result.output, HasSubstr("1 runs complete, 1 diverged"));
  EXPECT_THAT(ReadTextFile(Out() + "/report.html"), HasSubstr("train.py, "));
  WriteTextFile(job_.File("train.py"), absl::StrCat(kScript, "# and more\n"));
  const RunResult edited = RunProgram(Command());
  EXPECT_EQ(edited.exit_code, 2) << edited.DebugString();
  EXPECT_THAT(edited.output, HasSubstr("is of another job"));
}

}  // namespace
}  // namespace tandem
