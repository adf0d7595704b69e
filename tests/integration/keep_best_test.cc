// train.keep_best: what a run leaves behind is the model of its best evaluation on validation rows.
// It ends when no better one comes in time, goes on after kill -9 as if nothing had been, and what
// it says of the model is what the model does.
#include <signal.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "data/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "tests/integration/kill_and_resume.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Steps that are too long: after two epochs or so it learns the training rows by heart.
const Settings kOverfits = {"data.validation.last_fraction=0.25",
                            "train.epochs=12",
                            "train.keep_best={metric: LOGLOSS patience: 3}",
                            "checkpoint.every_steps=25",
                            "table[0].optimizer.learning_rate=0.2",
                            "table[1].optimizer.learning_rate=0.2"};

class KeepBestTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    job_ = std::make_unique<SmallJob>(/*train_rows=*/2400, /*test_rows=*/301);
    whole_ = RunJob(job_->Arguments("whole", kOverfits));
  }
  static void TearDownTestSuite() { job_.reset(); }
  void SetUp() override { ASSERT_TRUE(whole_.ok()) << whole_.DebugString(); }

  static RunArguments Resume(const std::string& name, const Settings& set) {
    return Resumed(job_->Arguments(name, set));
  }
  // All but the times at which they were made.
  static nlohmann::json Evaluations(const RunResult& run) {
    nlohmann::json all = run.summary["evaluations"];
    for (nlohmann::json& evaluation : all) evaluation.erase("time");
    return all;
  }
  static server::Manifest Latest(const std::string& name) {
    const auto saved = server::CheckpointReader::Open(job_->File(name + "/model"));
    EXPECT_TRUE(saved.ok()) << saved.status();
    return saved.ok() ? saved->manifest() : server::Manifest();
  }

  static std::unique_ptr<SmallJob> job_;
  static RunResult whole_;
};
std::unique_ptr<SmallJob> KeepBestTest::job_;
RunResult KeepBestTest::whole_;

TEST_F(KeepBestTest, TheModelIsThatOfTheBestEvaluation) {
  const nlohmann::json best = whole_.summary["best"];
  std::vector<nlohmann::json> validation, test;
  for (const nlohmann::json& evaluation : whole_.summary["evaluations"]) {
    (evaluation["data"] == "validation" ? validation : test).push_back(evaluation);
  }
  ASSERT_GE(validation.size(), 4u) << whole_.DebugString();
  double smallest = INFINITY;
  size_t improved = 0;
  for (const nlohmann::json& evaluation : validation) {
    if (!(evaluation["logloss"] < smallest)) continue;
    smallest = evaluation["logloss"];
    EXPECT_TRUE(evaluation.value("best", false)) << evaluation;
    ASSERT_LT(improved, test.size());
    EXPECT_EQ(test[improved++]["epoch"], evaluation["epoch"]) << "a test evaluation for each best";
  }
  EXPECT_EQ(improved, test.size()) << "... and for no other";
  EXPECT_EQ(best["value"], smallest);
  EXPECT_EQ(best["epoch"], test.back()["epoch"]);
  EXPECT_EQ(best["metric"], "logloss");
  EXPECT_EQ(whole_.summary["eval"]["logloss"], test.back()["logloss"]);

  // It had three more evaluations to become better, and then ended.
  EXPECT_TRUE(best["stopped_early"].get<bool>()) << whole_.DebugString();
  EXPECT_EQ(validation.back()["epoch"], best["epoch"].get<int>() + 3);
  EXPECT_LT(validation.back()["epoch"], 12);
  EXPECT_THAT(whole_.output, HasSubstr("kept the model of epoch"));

  const server::Manifest latest = Latest("whole");
  EXPECT_TRUE(latest.best);
  EXPECT_EQ(latest.step, best["step"]);
}

TEST_F(KeepBestTest, ItsEvaluationAndItsScoresAreWhatTheRunSaysOfIt) {
  RunArguments evaluates = job_->Arguments("evaluates", {"train.evaluate_only=true"});
  evaluates.flags = {"--init-from", job_->File("whole/model")};
  const RunResult evaluated = RunJob(evaluates);
  ASSERT_TRUE(evaluated.ok()) << evaluated.DebugString();
  EXPECT_EQ(evaluated.summary["eval"]["auc"], whole_.summary["eval"]["auc"]);
  EXPECT_EQ(evaluated.summary["eval"]["logloss"], whole_.summary["eval"]["logloss"]);

  // `predict` takes the very job that was trained.
  const std::string scores = job_->File("scores");
  std::vector<std::string> argv = {ProgramPath("tandem"),
                                   "predict",
                                   job_->File("job.textproto"),
                                   "--init-from",
                                   job_->File("whole/model"),
                                   "--data",
                                   job_->File("test.tsv"),
                                   "--out",
                                   scores};
  for (const std::string& text : kOverfits) argv.insert(argv.end(), {"--set", text});
  const RunResult predicted = RunProgram(argv);
  ASSERT_TRUE(predicted.ok()) << predicted.DebugString();
  std::vector<float> logits, labels;
  for (const absl::string_view line :
       absl::StrSplit(ReadTextFile(scores), '\n', absl::SkipEmpty())) {
    double p = 0;
    ASSERT_TRUE(absl::SimpleAtod(line, &p));
    logits.push_back(static_cast<float>(std::log(p / (1 - p))));
  }
  for (const absl::string_view row :
       absl::StrSplit(ReadTextFile(job_->File("test.tsv")), '\n', absl::SkipEmpty())) {
    labels.push_back(row[0] == '1' ? 1.0f : 0.0f);
  }
  ASSERT_EQ(logits.size(), labels.size());
  data::ScoreSample sample;
  sample.Add(logits, labels);
  EXPECT_EQ(sample.ComputeAuc().value, whole_.summary["eval"]["auc"]);
}

TEST_F(KeepBestTest, ARunThatWasKilledKeepsTheSameModel) {
  for (int kills = 0; kills < 3; ++kills) {
    RunArguments arguments =
        kills == 0 ? job_->Arguments("killed", kOverfits) : Resume("killed", kOverfits);
    RunningJob job(arguments);
    // Each time a little later: the first checkpoint, the first best one, what follows it.
    const absl::Time deadline = MonotonicNow() + kRunLimit;
    const std::string model = job_->File("killed/model");
    while (!fs::exists(model + "/LATEST") && MonotonicNow() < deadline) {
      if (job.driver().WaitFor(absl::Milliseconds(5))) break;
    }
    absl::SleepFor(absl::Milliseconds(150 * kills));
    KillAll(&job);
    if (!fs::exists(model + "/LATEST")) fs::remove_all(job_->File("killed"));
  }
  RunResult last =
      RunJob(fs::exists(job_->File("killed/model")) ? Resume("killed", kOverfits)
                                                    : job_->Arguments("killed", kOverfits));
  if (last.exit_code != 2) {  // else it was through before it was killed
    ASSERT_TRUE(last.ok()) << last.DebugString();
  }
  EXPECT_EQ(last.summary["best"], whole_.summary["best"]) << last.DebugString();
  EXPECT_EQ(last.summary["eval"], whole_.summary["eval"]);
  EXPECT_EQ(Evaluations(last), Evaluations(whole_)) << last.DebugString();
  EXPECT_EQ(last.summary["steps"], whole_.summary["steps"]);
  const absl::StatusOr<ModelBits> kept = ReadCheckpoint(job_->File("killed/model"));
  const absl::StatusOr<ModelBits> whole = ReadCheckpoint(job_->File("whole/model"));
  ASSERT_TRUE(kept.ok() && whole.ok()) << kept.status() << whole.status();
  EXPECT_EQ(Difference(*whole, *kept), "");
}

// The checkpoint of the best model is the only one. It cannot be read when a server dies.
TEST_F(KeepBestTest, ADamagedBestModelIsNotLost) {
  RunningJob job(job_->Arguments(
      "damaged", Join(kOverfits, {"checkpoint.every_steps=1000000000", "cluster.max_restarts=3",
                                  "fault_injection.slow_workers={mean_seconds: 0.02}"})));
  const std::string latest = job_->File("damaged/model/LATEST");
  const absl::Time deadline = MonotonicNow() + kRunLimit;
  while (!fs::exists(latest) && MonotonicNow() < deadline) {
    ASSERT_FALSE(job.driver().WaitFor(absl::Milliseconds(5))) << job.driver().Output();
  }
  const auto saved = server::CheckpointReader::Open(job_->File("damaged/model"));
  ASSERT_TRUE(saved.ok() && saved->manifest().best) << saved.status();
  const server::CheckpointFile& part = saved->manifest().files[0];
  const std::string file = saved->PathOf(part);
  std::string bytes = ReadTextFile(file);
  char& damaged = bytes[part.offset + part.bytes / 2];
  damaged = static_cast<char>(damaged ^ 1);
  std::ofstream(file) << bytes;
  kill(job.WaitForRole("server-0", absl::Seconds(60)), SIGKILL);
  const RunResult run = job.Finish(kRunLimit);
  EXPECT_EQ(run.exit_code, 1) << run.DebugString();
  EXPECT_THAT(run.output, HasSubstr("no new attempt: "));
  EXPECT_THAT(run.output, HasSubstr(file));
  EXPECT_TRUE(fs::exists(file)) << run.DebugString();
}

// More patience is a reason to go on; the model stays unless a better one comes.
TEST_F(KeepBestTest, APatientRunGoesOn) {
  const RunResult first = RunJob(job_->Arguments("patient", kOverfits));
  ASSERT_TRUE(first.ok()) << first.DebugString();
  const RunResult again = RunJob(Resume("patient", kOverfits));
  EXPECT_EQ(again.exit_code, 2) << again.DebugString();
  EXPECT_THAT(again.output, HasSubstr("train.keep_best.patience"));
  const Settings patient = Join(kOverfits, {"train.keep_best.patience=4"});
  const RunResult on = RunJob(Resume("patient", patient));
  ASSERT_TRUE(on.ok()) << on.DebugString();
  EXPECT_EQ(on.summary["best"]["epoch"], whole_.summary["best"]["epoch"]) << on.DebugString();
  EXPECT_EQ(on.summary["evaluations"].size(), whole_.summary["evaluations"].size() + 1);
  EXPECT_GT(on.summary["steps"], whole_.summary["steps"]);
  EXPECT_EQ(Latest("patient").step, Latest("whole").step);
}

// What a policy holds back when a model is evaluated is not in that model, but in its checkpoint.
TEST_F(KeepBestTest, OtherPoliciesKeepTheirs) {
  const std::vector<Settings> kinds = {
      {"policy={kind: ASP}", "dense.synchroniser=SERVERS", "reproducible=false", "train.epochs=5"},
      {"policy={kind: K_BATCH_ASYNC batches: 2}", "reproducible=false", "train.epochs=6"},
      {"policy={kind: FIXED_DELAY delay: 2}", "dense.synchroniser=SERVERS"},
      {"policy={kind: FIXED_DELAY delay: 2}", "dense.synchroniser=SERVERS",
       "dense.optimizer.error_feedback=2"}};
  int number = 0;
  for (const Settings& kind : kinds) {
    const std::string name = absl::StrCat("kind-", number++);
    const RunResult run = RunJob(job_->Arguments(name, Join(kOverfits, kind)));
    ASSERT_TRUE(run.ok()) << run.DebugString();
    EXPECT_TRUE(run.summary.contains("best"));
    EXPECT_EQ(Latest(name).step, run.summary["best"]["step"]) << run.DebugString();
    RunArguments evaluates =
        job_->Arguments(name + "-again", Join(kind, {"train.evaluate_only=true"}));
    evaluates.flags = {"--init-from", job_->File(name + "/model")};
    const RunResult evaluated = RunJob(evaluates);
    ASSERT_TRUE(evaluated.ok()) << evaluated.DebugString();
    EXPECT_EQ(evaluated.summary["eval"]["logloss"], run.summary["eval"]["logloss"]) << name;
  }
}

TEST_F(KeepBestTest, WithoutTestRowsTheValidationRowsAreTheResult) {
  const RunResult run =
      RunJob(job_->Arguments("no-test", Join(kOverfits, {"data.test=[]", "train.epochs=2"})));
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_EQ(run.summary["evaluations"].size(), 2u);
  EXPECT_EQ(run.summary["eval"]["data"], "validation");
  EXPECT_EQ(run.summary["eval"]["logloss"], run.summary["best"]["value"]);
  EXPECT_THAT(run.output, HasSubstr("; validation: "));
}

}  // namespace
}  // namespace tandem
