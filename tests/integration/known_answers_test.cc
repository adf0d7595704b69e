// The studies whose answers are known, as they lie in configs/studies: `tandem compare` runs them,
// and what it reports is held to the formulas. More of each, on more seeds:
// tests/sim/{stability,straggler,staleness}_test.
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class KnownAnswersTest : public ::testing::Test {
 protected:
  KnownAnswersTest() : job_(/*train_rows=*/1, /*test_rows=*/1) {  // for its folder
    // Figures take longer than all runs.
    WriteTextFile(job_.File("matplotlib.py"), "raise ImportError\n");
    setenv("PYTHONPATH", job_.File("").c_str(), /*overwrite=*/1);
  }

  // Runs a shipped study, on its first seed; its runs by the name of their variation, tuned ones if
  // the study tunes. `change`: texts of the study and their replacements.
  std::map<std::string, json> RunsOf(const std::string& study,
                                     const std::map<std::string, std::string>& change = {}) {
    std::string text = absl::StrReplaceAll(
        ReadTextFile(SourcePath(absl::StrCat("configs/studies/", study, ".textproto"))),
        {{"seed: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]", "seed: 1"},
         {"seed: [1, 2, 3, 4, 5]", "seed: 1"},
         {"job: \"..", absl::StrCat("job: \"", SourcePath("configs"))}});
    for (const auto& [from, to] : change) {
      EXPECT_EQ(absl::StrReplaceAll({{from, to}}, &text), 1) << from;
    }
    WriteTextFile(job_.File("study.textproto"), text);
    const std::string out = job_.File(study);
    const RunResult result =
        RunProgram({ProgramPath("tandem"), "compare", job_.File("study.textproto"), "--out", out});
    EXPECT_TRUE(result.ok()) << result.DebugString();
    output_ = result.output;
    std::map<std::string, json> runs;
    const json results = json::parse(ReadTextFile(out + "/results.json"));
    for (const json& group : results.at("groups")) {
      runs[group.at("variation").get<std::string>()] = group.at("runs").at(0);
    }
    return runs;
  }

  const SmallJob job_;
  std::string output_;
};

// At .95 and 1.05 times the limit, delays of 1 to 16 steps, momentum 0, .5 and .9.
TEST_F(KnownAnswersTest, StepSizesBelowTheLimitConvergeAndAboveItDiverge) {
  const std::map<std::string, json> runs = RunsOf("stability");
  EXPECT_EQ(runs.size(), 30u);
  for (const auto& [name, run] : runs) {
    const bool above = absl::EndsWith(name, "above");
    EXPECT_EQ(run.at("state"), above ? "diverged" : "complete") << name << ": " << run;
    if (above) continue;
    EXPECT_LT(run.at("numbers").at("problem.excess_loss").get<double>(), 1e-3) << name;
  }
  EXPECT_THAT(output_, HasSubstr("15 runs complete, 15 diverged"));
}

TEST_F(KnownAnswersTest, UpdatesOfWorkersThatWaitForNobodyAreAsStaleAsThereAreOthers) {
  const std::map<std::string, json> runs = RunsOf("asp_staleness");
  EXPECT_EQ(runs.size(), 20u);
  for (const auto& [name, run] : runs) {
    int workers = 0;
    ASSERT_TRUE(absl::SimpleAtoi(name.substr(name.rfind('=') + 1), &workers)) << name;
    const double staleness = run.at("numbers").at("staleness.version_mean").get<double>();
    EXPECT_NEAR(staleness, workers - 1, 0.02 * (workers - 1)) << name;
  }
}

// Units of time until the tridiagonal quadratic is at 2 % of its first loss, with the best of three
// step sizes. A simulation that shares no code with this system says 4,864 under BSP, 2,476 under
// ASP, 848 under Ringmaster and 1,194 under Rennala SGD, as medians of ten seeds.
TEST_F(KnownAnswersTest, TheTridiagonalQuadraticTakesAsLongAsElsewhere) {
  const std::map<std::string, json> runs = RunsOf(
      "async_quadratic_sqrt",
      {{"value: [\"2\", \"1\", \".5\", \".25\", \".125\", \".0625\", \".03125\", \".015625\", "
        "\".0078125\", \".00390625\", \".001953125\"]",
        "value: [\"2\", \"1\", \".03125\"] seed: 2"},
       {"variation { name: \"Ringleader\"", "#"},
       {"variation { name: \"delay-adaptive(4)\"", "#"},
       {"variation { name: \"GBA(1)\"", "#"},
       {"variation { name: \"GBA(16)\"", "#"}});
  ASSERT_EQ(runs.size(), 4u);
  for (const auto& [policy, units] :
       {std::pair("BSP", 4864.0), std::pair("ASP", 2476.0), std::pair("Ringmaster(2)", 848.0),
        std::pair("Rennala(1)", 1194.0)}) {
    const json& numbers = runs.at(policy).at("numbers");
    ASSERT_TRUE(numbers.contains("to_target.seconds")) << policy << ": " << runs.at(policy);
    EXPECT_NEAR(numbers["to_target.seconds"].get<double>() / 0.01, units, 0.08 * units) << policy;
  }
  EXPECT_THAT(output_, HasSubstr("tuned: BSP takes dense.optimizer.learning_rate=2"));
  EXPECT_THAT(output_, HasSubstr("tuned: ASP takes dense.optimizer.learning_rate=.03125"));
  EXPECT_THAT(output_, HasSubstr("tuned: Ringmaster(2) takes dense.optimizer.learning_rate=1"));
}

// Gradients a second relative to BSP, each within a tenth of what a model says that knows nothing
// of this system.
TEST_F(KnownAnswersTest, StragglersCostWhatTheyMust) {
  const std::map<std::string, json> runs = RunsOf("step_times");
  EXPECT_EQ(runs.size(), 40u);
  const std::multimap<std::string, std::map<std::string, double>> want = {
      {"exponential",
       {{"SSP(1)", 1.52}, {"SSP(4)", 2.12}, {"SSP(16)", 2.50}, {"ASP", 2.73}, {"GBA", 2.73}}},
      {"lognormal",
       {{"SSP(1)", 1.44}, {"SSP(4)", 1.72}, {"SSP(16)", 1.85}, {"ASP", 1.88}, {"GBA", 1.88}}},
      {"now and then 5 times",
       {{"SSP(1)", 1.31}, {"SSP(4)", 1.75}, {"SSP(16)", 1.99}, {"ASP", 2.08}, {"GBA", 2.08}}},
      {"one 4 times slower",
       {{"SSP(1)", .99}, {"SSP(4)", 1.00}, {"SSP(16)", 1.00}, {"ASP", 3.62}, {"GBA", 3.62}}},
      {"all alike",
       {{"SSP(1)", 1.00}, {"SSP(4)", 1.00}, {"SSP(16)", 1.00}, {"ASP", 1.00}, {"GBA", 1.00}}},
      // Where nobody is slow backup workers cost their share.
      {"all alike", {{"backup(1)", .88}, {"backup(2)", .75}}},
  };
  const auto speed = [&runs](const std::string& times, const std::string& policy) {
    return runs.at(absl::StrCat(times, ", ", policy))
        .at("numbers")
        .at("counted.speed")
        .get<double>();
  };
  for (const auto& [times, cells] : want) {
    for (const auto& [policy, ratio] : cells) {
      EXPECT_NEAR(speed(times, policy) / speed(times, "BSP"), ratio, 0.1 * ratio)
          << times << ", " << policy;
    }
  }
}

}  // namespace
}  // namespace tandem
