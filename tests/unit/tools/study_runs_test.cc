// Studies: what they expand to, what is refused and in which words, and that those in configs/
// stand.
#include "tools/study/study_runs.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/source_path.h"
#include "tools/study/manifest.h"
#include "tools/study/statistics.h"

namespace tandem {
namespace {

using namespace study;  // NOLINT: all that is tested here

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kJob[] = R"(name: "small"
cluster { workers: 2 servers: 2 }
data { format: CRITEO train: "train.tsv" test: "test.tsv" }
table { name: "ids" dim: 4 }
dense { optimizer { learning_rate: 0.1 } }
model { dlrm { bottom: [8, 4] top: 8 } }
train { batch_size: 16 }
)";

constexpr char kStudy[] = R"study(question: "Which?"
job: "job.textproto"
variation { name: "BSP" set: "policy.kind=BSP" }
variation { name: "SSP(4)" set: "policy={kind: SSP bound: 4}" }
seed: [5, 6]
)study";

class StudyRunsTest : public ::testing::Test {
 protected:
  StudyRunsTest()
      : folder_(fs::path(::testing::TempDir()) /
                absl::StrCat("study_plan_", ::testing::UnitTest::GetInstance()->random_seed(), "_",
                             reinterpret_cast<uintptr_t>(this))) {
    fs::create_directories(folder_);
    Write("job.textproto", kJob);
  }
  ~StudyRunsTest() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  std::string File(const std::string& name) const { return (folder_ / name).string(); }

  StudyRuns MustParse(const std::string& text) const {
    const auto plan = ParseStudyWithJob(text, File("s.textproto"));
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *plan : StudyRuns();
  }
  // The one line with which a study is refused, its folder left out.
  std::string Refusal(const std::string& text) const {
    const auto plan = ParseStudyWithJob(text, File("s.textproto"));
    absl::Status why = plan.status();
    if (plan.ok()) {
      why = CheckAllRuns(*plan, [](const job::ResolvedJob&) { return absl::OkStatus(); });
    }
    EXPECT_FALSE(why.ok()) << "accepted:\n" << text;
    const std::string message(why.message());
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return absl::StrReplaceAll(message, {{folder_.string() + "/", ""}});
  }
  static std::vector<std::string> Names(const std::vector<RunPlan>& runs) {
    std::vector<std::string> names;
    for (const RunPlan& run : runs) names.push_back(run.name);
    return names;
  }

  const fs::path folder_;
};

TEST_F(StudyRunsTest, RunsAreDealtSeedBySeed) {
  const StudyRuns plan = MustParse(kStudy);
  EXPECT_EQ(plan.study.name(), "s");
  EXPECT_EQ(plan.baseline, "BSP");
  EXPECT_EQ(plan.metric.column, "eval.auc");
  const auto runs = RunsOf(plan, Part::kUntuned, {});
  ASSERT_TRUE(runs.ok()) << runs.status();
  EXPECT_THAT(Names(*runs), ElementsAre("BSP-seed5", "SSP-4-seed5", "BSP-seed6", "SSP-4-seed6"));
  EXPECT_THAT((*runs)[1].job_text, HasSubstr("seed: 5"));
  EXPECT_THAT((*runs)[1].job_text, HasSubstr("# SSP(4): ids"));
  EXPECT_NE((*runs)[0].job_hash, (*runs)[2].job_hash);
}

TEST_F(StudyRunsTest, ValuesAreMultiplied) {
  const StudyRuns one =
      MustParse(R"(job: "job.textproto" vary { path: "policy.kind" value: ["BSP", "ASP"] })");
  ASSERT_EQ(one.variations.size(), 2u);
  EXPECT_EQ(one.variations[1].name, "ASP");
  const StudyRuns two =
      MustParse(absl::StrCat(kStudy, "vary { path: \"cluster.workers\" value: [\"2\", \"3\"] }",
                             "vary { path: \"train.batch_size\" value: \"8\" }"));
  ASSERT_EQ(two.variations.size(), 4u);
  EXPECT_EQ(two.variations[0].name, "BSP workers=2 batch_size=8");
  EXPECT_EQ(two.variations[3].name, "SSP(4) workers=3 batch_size=8");
  const auto runs = RunsOf(two, Part::kUntuned, {});
  ASSERT_TRUE(runs.ok()) << runs.status();
  EXPECT_THAT((*runs)[3].job_text, HasSubstr("workers: 3"));
}

constexpr char kNetworkStudy[] = R"(job: "job.textproto"
variation { name: "apart" }
variation { name: "beside" colocate_servers: true }
seed: 5
)";

// The same job over other links, or placed otherwise, is another run.
TEST_F(StudyRunsTest, ANetworkIsPartOfARun) {
  const auto runs_of = [&](const std::string& text) {
    const auto runs = RunsOf(MustParse(text), Part::kUntuned, {});
    EXPECT_TRUE(runs.ok()) << runs.status();
    return *runs;
  };
  const auto runs = runs_of(absl::StrCat(kNetworkStudy, "network { bytes_per_second: 1e7 }"));
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_FALSE(runs[0].colocate_servers);
  EXPECT_TRUE(runs[1].colocate_servers);
  EXPECT_NE(runs[0].job_hash, runs[1].job_hash);
  const auto slower = runs_of(absl::StrCat(kNetworkStudy, "network { bytes_per_second: 1e6 }"));
  EXPECT_NE(runs[0].job_hash, slower[0].job_hash);
  // What the model alone is told does not make it another one.
  const auto modelled = runs_of(
      absl::StrCat(kNetworkStudy, "network { bytes_per_second: 1e7 latency_seconds: 0.5 }"));
  EXPECT_EQ(runs[0].job_hash, modelled[0].job_hash);
}

TEST_F(StudyRunsTest, ANetworkThatCannotBeIsRefused) {
  EXPECT_THAT(Refusal(kNetworkStudy), HasSubstr("colocate_servers: true, but all is on one"));
  const auto with = [](absl::string_view more) {
    return absl::StrCat(kNetworkStudy, "network { bytes_per_second: 1e7 }", more);
  };
  EXPECT_THAT(Refusal(absl::StrCat(kNetworkStudy, "network { }")),
              HasSubstr("network: bytes_per_second is not set"));
  EXPECT_THAT(Refusal(absl::StrCat(kNetworkStudy, "network { bytes_per_second: -1 }")),
              HasSubstr("network.bytes_per_second: -1, must be a finite number"));
  EXPECT_THAT(Refusal(with("twin: true")), HasSubstr("leave `simulate` and `twin` out"));
  EXPECT_THAT(Refusal(with("set: \"cluster.transport=SHM\"")),
              HasSubstr("variation \"apart\": cluster.transport: SHM, but each process"));
  EXPECT_THAT(Refusal(with("set: \"cluster.servers=9\"")),
              HasSubstr("variation \"beside\": colocate_servers: 9 servers beside"));
}

constexpr char kProgramJob[] = R"(name: "small"
cluster { workers: 2 servers: 2 }
data { format: PROGRAM }
table { name: "ids" dim: 4 field: "city" optimizer { kind: ADAGRAD learning_rate: 0.05 } }
dense { optimizer { kind: PROGRAM } }
model { program {} }
train { batch_size: 16 }
)";

// A run of another script is another run; where the script lies is said from the study's folder.
TEST_F(StudyRunsTest, AScriptIsPartOfARun) {
  Write("job.textproto", kProgramJob);
  const std::string text = absl::StrCat(kStudy, "python: \"train.py\"");
  EXPECT_THAT(Refusal(text), StartsWith("s.textproto: python: train.py: "));
  Write("train.py", "import tandem\n");
  const StudyRuns plan = MustParse(text);
  EXPECT_EQ(plan.script, File("train.py"));
  const auto runs = RunsOf(plan, Part::kUntuned, {});
  ASSERT_TRUE(runs.ok()) << runs.status();
  EXPECT_EQ((*SurroundingsOf(plan, {}))["data"][0]["file"], File("train.py"));
  Write("train.py", "import tandem  # and more\n");
  const auto changed = RunsOf(MustParse(text), Part::kUntuned, {});
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_NE((*runs)[0].job_hash, (*changed)[0].job_hash);
  EXPECT_THAT(Refusal(absl::StrCat(text, " simulate {}")),
              HasSubstr("python: a script runs live, and cannot be simulated"));
  EXPECT_THAT(Refusal(absl::StrCat(text, " twin: true")),
              HasSubstr("leave `simulate` and `twin` out"));
  EXPECT_THAT(Refusal(absl::StrCat(text, " network { bytes_per_second: 1e7 }")),
              HasSubstr("leave `network` out"));
  const std::string tune =
      " tune { path: \"table[0].optimizer.learning_rate\" value: [\"0.1\", \"0.2\"] ";
  EXPECT_THAT(Refusal(absl::StrCat(text, tune, "}")),
              HasSubstr("tune.choose_by: VALIDATION, but a script says itself"));
  MustParse(absl::StrCat(text, tune, "choose_by: TRAINING_LOSS }"));
}

TEST_F(StudyRunsTest, AStudyWithoutVariationsIsTheJob) {
  const StudyRuns plan = MustParse(R"(job: "job.textproto" seed: 1)");
  const auto runs = RunsOf(plan, Part::kUntuned, {});
  ASSERT_TRUE(runs.ok()) << runs.status();
  EXPECT_THAT(Names(*runs), ElementsAre("job-seed1"));
}

TEST_F(StudyRunsTest, MistakesArePointedAt) {
  EXPECT_EQ(Refusal("job: \"job.textproto\"\nvariaton { name: \"a\" }"),
            "s.textproto:2:1: no field named \"variaton\" in tandem.study.Study; did you mean "
            "\"variation\"?");
  EXPECT_THAT(Refusal("seed: 1"), HasSubstr("job: not set"));
  EXPECT_THAT(Refusal("job: \"job.textproto\"\nset: \"batch\""),
              StartsWith("s.textproto:2:1: set[0]: \"batch\", expected \"path=value\""));
  EXPECT_THAT(Refusal("job: \"job.textproto\" seed: [1, 1]"),
              HasSubstr("seed[1]: 1 is there twice"));
  EXPECT_THAT(Refusal(absl::StrCat(kStudy, "baseline: \"ASP\"")),
              HasSubstr("baseline: \"ASP\" is no variation; there are \"BSP\", \"SSP(4)\""));
  EXPECT_THAT(Refusal(absl::StrCat(kStudy, "target { metric: \"f1\" }")),
              HasSubstr("target.metric: \"f1\", expected one of auc"));
  const auto entropy = MetricOf("normalised_entropy");
  ASSERT_TRUE(entropy.ok()) << entropy.status();
  EXPECT_FALSE(entropy->higher_is_better);
  EXPECT_THAT(Refusal(absl::StrCat(kStudy, "variation { name: \"BSP!\" }")),
              HasSubstr("would have the same folder, BSP"));
  EXPECT_THAT(Refusal(absl::StrCat(kStudy, "budget { seconds: -1 }")), HasSubstr("budget.seconds"));
  // The study's own seeds would win, without a word.
  const char* const seed = "seed is not for a variation";
  EXPECT_THAT(Refusal(absl::StrCat(kStudy, "set: \"seed=7\"")), HasSubstr(seed));
  EXPECT_THAT(Refusal(absl::StrCat(kStudy, "variation { name: \"a\" set: \"seed=7\" }")),
              HasSubstr(seed));
  EXPECT_THAT(Refusal(absl::StrCat(kStudy, "vary { path: \"seed\" value: \"7\" }")),
              HasSubstr(seed));
  EXPECT_THAT(Refusal(absl::StrCat(kStudy, "tune { path: \"seed\" value: \"7\" value: \"8\" }")),
              HasSubstr(seed));
}

TEST_F(StudyRunsTest, AnImpossibleJobIsRefusedByItsVariation) {
  EXPECT_THAT(
      Refusal(absl::StrReplaceAll(kStudy, {{"bound: 4", "bound: -4"}})),
      StartsWith("s.textproto:4:1: variation \"SSP(4)\": --set policy={kind: SSP bound: -4}"));
  EXPECT_THAT(Refusal(absl::StrReplaceAll(kStudy, {{"policy.kind=BSP", "policy.kind=BPS"}})),
              HasSubstr("did you mean BSP?"));
  EXPECT_THAT(Refusal(absl::StrReplaceAll(kStudy, {{"job.textproto", "none.textproto"}})),
              HasSubstr("none.textproto: cannot open the job file"));
}

TEST_F(StudyRunsTest, WhatThisMachineCannotStartIsRefused) {
  const StudyRuns plan = MustParse(kStudy);
  int asked = 0;
  const absl::Status refused = CheckAllRuns(plan, [&asked](const job::ResolvedJob&) {
    ++asked;
    return absl::NotFoundError("data.train: no such file");
  });
  EXPECT_THAT(std::string(refused.message()), HasSubstr("variation \"BSP\": data.train: no such"));
  EXPECT_EQ(asked, 1);
  asked = 0;
  // Both variations read the same data in the same cluster.
  EXPECT_TRUE(CheckAllRuns(plan, [&asked](const job::ResolvedJob&) {
                return ++asked, absl::OkStatus();
              }).ok());
  EXPECT_EQ(asked, 1);
}

TEST_F(StudyRunsTest, AMetricNeedsRowsToMeasureItOn) {
  Write("job.textproto", absl::StrReplaceAll(kJob, {{"test: \"test.tsv\"", ""}}));
  EXPECT_THAT(Refusal(kStudy), HasSubstr("the job has no rows to evaluate on"));
  const StudyRuns plan = MustParse(absl::StrCat(kStudy, "target { metric: \"loss\" }"));
  EXPECT_TRUE(RunsOf(plan, Part::kUntuned, {}).ok());
}

constexpr char kTune[] =
    "tune { path: \"dense.optimizer.learning_rate\" value: [\"0.1\", \"0.2\"] }";

TEST_F(StudyRunsTest, TuningNeedsRowsOfItsOwn) {
  EXPECT_THAT(Refusal(absl::StrCat(kStudy, kTune)),
              HasSubstr("the job has no validation rows to choose a value by"));
  Write("job.textproto",
        absl::StrReplaceAll(kJob, {{"test: \"test.tsv\"",
                                    "test_fraction: 0.1 validation { last_fraction: 0.1 }"}}));
  EXPECT_THAT(Refusal(absl::StrCat(kStudy, kTune)), HasSubstr("data.test_fraction"));
  Write("job.textproto",
        absl::StrReplaceAll(kJob, {{"test: \"test.tsv\"", "validation { last_fraction: 0.1 }"}}));
  EXPECT_THAT(Refusal(absl::StrCat(kStudy, kTune)), HasSubstr("the job has no test rows"));
  EXPECT_THAT(
      Refusal(absl::StrReplaceAll(absl::StrCat(kStudy, kTune), {{"tune {", "tune { seed: 6 "}})),
      HasSubstr("tune.seed[0]: 6 is there twice, or reported too"));
}

TEST_F(StudyRunsTest, TuningRunsSeeNoTestRowsAndNoReportedSeed) {
  Write("job.textproto",
        absl::StrReplaceAll(kJob, {{"test: \"test.tsv\"",
                                    "test: \"test.tsv\" validation { last_fraction: 0.1 }"}}));
  const StudyRuns plan = MustParse(absl::StrCat(kStudy, kTune));
  const auto tuning = RunsOf(plan, Part::kTuning, {});
  ASSERT_TRUE(tuning.ok()) << tuning.status();
  ASSERT_EQ(tuning->size(), 8u);  // 2 variations, 2 values, seeds 7 and 8
  EXPECT_EQ((*tuning)[0].name, "BSP-tuning-0.1-seed7");
  for (const RunPlan& run : *tuning) {
    EXPECT_EQ(run.job_text.find("test.tsv"), std::string::npos) << run.job_text;
    EXPECT_THAT(run.job_text, HasSubstr("last_fraction"));
    EXPECT_GT(run.seed, 6u);
  }
  const auto tuned = RunsOf(plan, Part::kTuned, {{"SSP(4)", "0.2"}});
  ASSERT_TRUE(tuned.ok()) << tuned.status();
  EXPECT_THAT(Names(*tuned), ElementsAre("SSP-4-tuned-0.2-seed5", "SSP-4-tuned-0.2-seed6"));
  EXPECT_THAT((*tuned)[0].job_text, HasSubstr("test.tsv"));
  EXPECT_THAT((*tuned)[0].job_text, HasSubstr("learning_rate: 0.2"));
}

TEST_F(StudyRunsTest, EveryValueHasAFolderOfItsOwn) {
  const StudyRuns plan = MustParse(absl::StrCat(
      kStudy, "tune { path: \"train.batch_size\" value: [\"8\", \" 8\", \"8 \"] seed: 9 ",
      "choose_by: TRAINING_LOSS }"));
  const auto runs = RunsOf(plan, Part::kTuning, {});
  ASSERT_TRUE(runs.ok()) << runs.status();
  EXPECT_EQ((*runs)[0].name, "BSP-tuning-8-seed9");
  const std::vector<std::string> names = Names(*runs);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), 6u);
  EXPECT_THAT(
      Refusal(absl::StrCat(kStudy, "tune { path: \"train.batch_size\" value: [\"8\", \"8\"] }")),
      HasSubstr("tune.value[1]: 8 is there twice"));
}

// A time to a loss is known of problems that end at one, and its best value may be chosen by it.
TEST_F(StudyRunsTest, ATimeToTheTargetIsOfAProblemThatEndsThere) {
  const auto with = [](const std::string& more) {
    return absl::StrCat(kStudy, "target { metric: \"seconds_to_target\" } ", more);
  };
  const std::string problem = "simulate { problem { kind: TRIDIAGONAL until: 0.02 } } ";
  const std::string tune =
      "tune { path: \"dense.optimizer.learning_rate\" value: [\"1\", \"2\"] seed: 9 choose_by: ";
  const StudyRuns plan = MustParse(with(absl::StrCat(problem, tune, "METRIC }")));
  EXPECT_EQ(plan.metric.column, "to_target.seconds");
  EXPECT_FALSE(plan.metric.higher_is_better);
  EXPECT_THAT(Refusal(with("simulate { problem { kind: TRIDIAGONAL } }")),
              HasSubstr("target.metric: seconds_to_target exists only for problems that end"));
  EXPECT_THAT(Refusal(with("")), HasSubstr("exists only for problems that end at a loss; hint:"));
  EXPECT_THAT(Refusal(with(absl::StrCat(problem, tune, "VALIDATION }"))),
              HasSubstr("hint: choose_by: TRAINING_LOSS or METRIC"));
  EXPECT_THAT(Refusal(absl::StrCat(kStudy, tune, "METRIC }")),
              HasSubstr("tune.choose_by: METRIC, but test rows are for the result alone"));
}

TEST_F(StudyRunsTest, TheMetricIsOneThatTheJobHas) {
  EXPECT_THAT(Refusal(absl::StrCat(kStudy, "target { metric: \"hr_at_10\" }")),
              HasSubstr("the job's rows are not ranked"));
  const std::string job = SourcePath("configs/ncf_mlp8.textproto");
  EXPECT_THAT(Refusal(absl::StrCat("job: \"", job, "\" target { metric: \"ndcg_at_5\" }")),
              HasSubstr("evaluation.top_k is 10"));
}

// Of what is known at the end alone the report would say that no run had reached it.
TEST_F(StudyRunsTest, AValueToReachIsOfAMetricThatIsMeasuredOnTheWay) {
  const auto with = [](const char* metric) {
    return absl::StrCat(kStudy, "simulate { problem { kind: QUADRATIC } } target { metric: \"",
                        metric, "\" value: 0.5 }");
  };
  EXPECT_EQ(MustParse(with("loss")).study.target().value(), 0.5);
  EXPECT_THAT(
      Refusal(with("excess_loss")),
      HasSubstr(
          "target.value: 0.5: a run cannot report when it is reached, because excess_loss is"));
  EXPECT_THAT(Refusal(with("seconds")), HasSubstr("because seconds is known only at its end"));
}

TEST_F(StudyRunsTest, TheTextOfAStudyIsTheStudy) {
  const StudyRuns plan = MustParse(absl::StrCat(kStudy, "target { value: 0.7 }"));
  const StudyRuns again = MustParse(StudyText(plan.study));
  EXPECT_EQ(StudyText(again.study), StudyText(plan.study));
  EXPECT_EQ(again.variations.size(), plan.variations.size());
}

TEST(StudyConfigsTest, EveryStudyResolves) {
  int studies = 0;
  for (const auto& entry : fs::directory_iterator(SourcePath("configs/studies"))) {
    ++studies;
    const auto plan = ReadStudyFile(entry.path().string());
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->study.name(), entry.path().stem().string());
    EXPECT_FALSE(plan->study.question().empty());
    // Where all steps take as long, all seeds are alike, and fewer of them resolve nothing.
    if (plan->study.simulate().timing_only()) {
      EXPECT_GE(static_cast<size_t>(plan->study.seed_size()), kEnoughSeeds) << entry.path();
    }
    const absl::Status fit =
        CheckAllRuns(*plan, [](const job::ResolvedJob&) { return absl::OkStatus(); });
    EXPECT_TRUE(fit.ok()) << fit;
  }
  EXPECT_GE(studies, 6);
}

// A problem of which everything is known, and times alone: no data are asked for, and only what is
// measured may be the metric.
TEST_F(StudyRunsTest, SimulationsWithoutDataAreMeasuredByWhatTheyHave) {
  const auto with = [](const std::string& simulate, const std::string& metric) {
    return absl::StrCat(kStudy, "simulate { ", simulate, " } target { metric: \"", metric, "\" }");
  };
  const std::string quadratic = "problem { kind: QUADRATIC }";
  for (const char* metric : {"loss", "excess_loss", "version_staleness", "samples_per_second"}) {
    EXPECT_TRUE(MustParse(with(quadratic, metric)).without_data());
  }
  EXPECT_THAT(
      Refusal(with(quadratic, "auc")),
      HasSubstr("target.metric auc: a problem has no rows to evaluate on; hint: take loss"));
  EXPECT_THAT(
      Refusal(with("problem {}", "loss")),
      StartsWith("s.textproto:6:12: simulate.problem: kind is not set, expected QUADRATIC"));
  EXPECT_THAT(Refusal(with("", "excess_loss")),
              HasSubstr("target.metric: excess_loss exists only for problems"));
  EXPECT_TRUE(MustParse(with("timing_only: true", "version_staleness")).without_data());
  EXPECT_THAT(Refusal(with("timing_only: true", "loss")),
              HasSubstr("target.metric loss: with simulate.timing_only nothing is trained"));
  EXPECT_THAT(
      Refusal(with("timing_only: true", "steady_samples_per_second")),
      HasSubstr("steady_samples_per_second: with simulate.timing_only a run reports nothing"));
  EXPECT_THAT(Refusal(absl::StrCat(with("timing_only: true", "seconds"), kTune)),
              HasSubstr("tune: with simulate.timing_only nothing is trained by which to choose"));
  EXPECT_THAT(Refusal(with("timing_only: true seconds: -1", "seconds")),
              HasSubstr("simulate.seconds: -1, must be a finite number, not negative"));
  // As many workers as there may be without rows.
  const std::string many = "set: \"cluster.workers=20000\" ";
  const StudyRuns plan = MustParse(many + with("timing_only: true", "seconds"));
  const absl::Status fit =
      CheckAllRuns(plan, [](const job::ResolvedJob&) { return absl::OkStatus(); });
  EXPECT_TRUE(fit.ok()) << fit;
  const auto runs = RunsOf(plan, Part::kUntuned, {});
  ASSERT_TRUE(runs.ok()) << runs.status();
  EXPECT_TRUE(SurroundingsOf(plan, *runs).ok()) << "no data are looked for";
  EXPECT_THAT(Refusal(many + with("", "seconds")), HasSubstr("cluster.workers: 20000"));
}

}  // namespace
}  // namespace tandem
