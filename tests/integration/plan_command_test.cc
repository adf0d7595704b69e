// tandem plan: what it prints of jobs that are not like most, and what it refuses.
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class PlanCommandTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { job_ = std::make_unique<SmallJob>(400, 50); }
  static void TearDownTestSuite() { job_.reset(); }

  static RunResult Plan(const std::vector<std::string>& set,
                        const std::vector<std::string>& flags = {}) {
    std::vector<std::string> argv = {ProgramPath("tandem"), "plan", job_->File("job.textproto"),
                                     "--set", "reproducible=false"};
    for (const std::string& text : set) argv.insert(argv.end(), {"--set", text});
    argv.insert(argv.end(), flags.begin(), flags.end());
    return RunProgram(argv);
  }

  static std::unique_ptr<SmallJob> job_;
};
std::unique_ptr<SmallJob> PlanCommandTest::job_;

// Whatever synchroniser the dense part has, it is set beside all others.
TEST_F(PlanCommandTest, EveryJobIsSetBesideAllStrategies) {
  const std::vector<std::string> kept = {"dense.synchroniser=SERVERS", "dense.wire_dtype=BF16",
                                         "dense.codec={kind: SIGN}",
                                         "dense.sharded_optimizer=true"};
  for (const std::string& field : kept) {
    const RunResult plan = Plan({field}, {"--bytes-per-second", "1e7"});
    ASSERT_TRUE(plan.ok()) << plan.DebugString();
    EXPECT_THAT(plan.output,
                AllOf(HasSubstr("allreduce, "), HasSubstr("sharded "), HasSubstr("SSP(4)"),
                      HasSubstr("\ncurrent job:\n"), ContainsRegex("\nRecommended:( no change|\n)"),
                      Not(HasSubstr("left out"))))
        << field;
  }
}

// A frozen table has no rows, wherever it is.
TEST_F(PlanCommandTest, AFrozenTableTakesNoMemory) {
  const RunResult trained = Plan({}), frozen = Plan({"table[0].frozen=true"});
  ASSERT_TRUE(trained.ok()) << trained.DebugString();
  ASSERT_TRUE(frozen.ok()) << frozen.DebugString();
  EXPECT_THAT(trained.output, Not(HasSubstr("; 0 rows of ")));
  EXPECT_THAT(frozen.output, AllOf(HasSubstr("; 0 rows of "), HasSubstr("; 20,000 rows of ")));
}

// No candidate has sync rounds. The current job is listed below them, with what it gains by these.
TEST_F(PlanCommandTest, AJobWithSyncRoundsIsSetBesideAllStrategies) {
  const RunResult plan =
      Plan({"dense.synchroniser=LOCAL_SGD", "dense.local_steps={sync_every: 100}",
            "policy.kind=ASP", "model.dlrm={bottom: [900, 8] top: [900, 16]}"},
           {"--bytes-per-second", "1e7"});
  ASSERT_TRUE(plan.ok()) << plan.DebugString();
  EXPECT_THAT(plan.output,
              AllOf(HasSubstr("2 servers, ASP       ring, every 100 "),
                    HasSubstr("\nRecommended: no change. "), Not(HasSubstr("left out"))));
  EXPECT_THAT(plan.output, HasSubstr("because it has settings that no candidate has"));
}

// A job that is faster than the recommended candidate only because it does not wait has no setting
// that the candidates lack.
TEST_F(PlanCommandTest, AJobThatDoesNotWaitLeavesNothingOut) {
  const RunResult plan = Plan({"policy.kind=ASP", "train.prefetch_steps=1"},
                              {"--bytes-per-second", "1e7", "--step-seconds", "0.055"});
  ASSERT_TRUE(plan.ok()) << plan.DebugString();
  EXPECT_THAT(plan.output, AllOf(HasSubstr("\nRecommended: no change. "), Not(HasSubstr("because")),
                                 Not(HasSubstr("settings that no candidate has"))));
}

// No candidate has a quorum either. The job's gain where steps are uneven is listed below them.
TEST_F(PlanCommandTest, AQuorumIsSetBesideAllStrategies) {
  const std::string uneven = "fault_injection.slow_workers=[{mean_seconds: 0.02 slow_share: 0.1}]";
  const auto expect_beside = [&](const std::vector<std::string>& set, const std::string& name) {
    std::vector<std::string> all = {"policy.kind=ASP", "cluster.workers=4", uneven};
    all.insert(all.end(), set.begin(), set.end());
    const RunResult plan = Plan(all, {"--bytes-per-second", "1e8"});
    ASSERT_TRUE(plan.ok()) << plan.DebugString();
    EXPECT_THAT(plan.output, AllOf(HasSubstr("ASP       ring, " + name + " "),
                                   HasSubstr("\nRecommended:\n"), Not(HasSubstr("left out"))));
  };
  expect_beside({"dense.quorum=SOLO"}, "SOLO");
  expect_beside({"dense.synchroniser=LOCAL_SGD", "dense.local_steps={sync_every: 4 quorum: 2}"},
                "every 4 of 2");
}

// Processes of one host share its processors, which the model knows nothing of: where the run that
// calibrates it says that it is far off, there are no speeds, and nothing is recommended by them.
TEST_F(PlanCommandTest, NoSpeedsOfAHostWhoseProcessorsAreShared) {
  TemporaryFolder run;
  const RunResult live = RunProgram({ProgramPath("tandem"), "run", job_->File("job.textproto"),
                                     "--out", run.File("out"), "--no-checkpoint"});
  ASSERT_TRUE(live.ok()) << live.DebugString();
  auto summary = nlohmann::json::parse(ReadTextFile(run.File("out/summary.json")));
  const auto plan_by = [&](double samples_per_second) {
    summary["seconds"] = summary["samples"].get<double>() / samples_per_second;
    summary["paused_seconds"] = summary["start_seconds"] = 0;
    WriteTextFile(run.File("out/summary.json"), summary.dump());
    const RunResult plan = Plan({}, {"--calibrate", run.File("out")});
    EXPECT_TRUE(plan.ok()) << plan.DebugString();
    return plan.output;
  };
  const std::string off = plan_by(1);
  EXPECT_THAT(off, HasSubstr("no speeds: "));
  EXPECT_THAT(off, HasSubstr("had 1 samples/s on one host, where the model says "));
  EXPECT_THAT(off, AllOf(HasSubstr("\n          -  "), Not(HasSubstr("Recommended"))));
  const std::string says = off.substr(off.find("the model says ") + 15);
  const double near = std::stod(absl::StrReplaceAll(says.substr(0, says.find('.')), {{",", ""}}));
  EXPECT_THAT(plan_by(near), Not(HasSubstr("no speeds")));
}

// The rows and the model of a program: 4 steps pushed 160 rows of 4 floats with their ids, and a
// sum has 100 parameters.
TEST_F(PlanCommandTest, ARunOfAProgramTellsItsSizes) {
  TemporaryFolder folder;
  const std::string job = folder.File("program.textproto");
  const std::string summary = R"({"workers": 2, "servers": 1, "samples": 32, "seconds": 1,
    "by_worker": [{"steps": 2, "samples": 16, "computed_seconds": 0.02},
                  {"steps": 2, "samples": 16, "computed_seconds": 0.02}],
    "tables": {"t": {"rows": 50, "memory_bytes": 5000, "placement": "servers"}},
    "bytes": {"push": 3840})";
  const auto plan = [&](const std::string& model, const std::string& more) {
    WriteTextFile(job,
                  "cluster { workers: 2 servers: 1 } data { format: PROGRAM } "
                  "table { name: \"t\" dim: 4 field: \"f\" optimizer { kind: SGD learning_rate: 1 "
                  "} } policy { kind: BSP } "
                  "train { batch_size: 8 } dense { optimizer { kind: PROGRAM } } " +
                      model);
    WriteTextFile(folder.File("summary.json"), summary + more + "}");
    return RunProgram({ProgramPath("tandem"), "plan", job, "--calibrate", folder.File("")});
  };
  const RunResult known =
      plan("model { program {} }", R"(, "collectives": {"gradient_bytes": 400})");
  EXPECT_TRUE(known.ok()) << known.DebugString();
  EXPECT_THAT(known.output, AllOf(HasSubstr("dense: 100 parameters"),
                                  HasSubstr("table t: a step touches 40 rows by 40 ids; 50 rows")));
  const RunResult unknown = plan("model { program {} }", "");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.output, MatchesRegex("tandem plan: model: [^\n]* at least 2 workers with "
                                           "--calibrate\n"));
  const RunResult alone = RunProgram({ProgramPath("tandem"), "plan", job});
  EXPECT_EQ(alone.exit_code, 2);
  EXPECT_THAT(alone.output, MatchesRegex("tandem plan: data.format: [^\n]* with --calibrate\n"));
  const RunResult timed =
      RunProgram({ProgramPath("tandem"), "simulate", job, "--timing-only", "--steps", "10",
                  "--calibrate", folder.File(""), "--out", folder.File("timed")});
  EXPECT_TRUE(timed.ok()) << timed.DebugString();
  const auto simulated = nlohmann::json::parse(ReadTextFile(folder.File("timed/summary.json")));
  EXPECT_EQ(simulated["simulated"]["compute_seconds"], nlohmann::json({0.01, 0.01}));
}

TEST_F(PlanCommandTest, WhatCannotBePlannedIsSaidInOneLine) {
  const auto expect_refused = [](const RunResult& result, const std::string& why) {
    EXPECT_EQ(result.exit_code, 2) << result.DebugString();
    EXPECT_THAT(result.output, MatchesRegex("tandem plan: [^\n]*\n"));
    EXPECT_THAT(result.output, HasSubstr(why));
  };
  expect_refused(Plan({"data.train=[\"nowhere.tsv\"]"}), "nowhere.tsv");
  expect_refused(Plan({}, {"--step-seconds", "0"}), "--step-seconds 0, expected a number more");
  expect_refused(Plan({}, {"--bytes-per-second", "-1"}), "--bytes-per-second -1, expected");
  expect_refused(Plan({}, {"--latency-seconds", "nan"}), "--latency-seconds nan, expected");
  expect_refused(Plan({}, {"--calibrate", job_->File("")}), "no summary.json; expected the --out");
}

}  // namespace
}  // namespace tandem
