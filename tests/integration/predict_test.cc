// tandem predict: scores in the order of the rows for any number of workers, exactly those that an
// evaluation sums up; what it cannot score is refused in a line.
#include <cmath>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "data/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTestRows = 501;  // three workers have 167 each, two 251 and 250

class PredictTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    job_ = std::make_unique<SmallJob>(/*train_rows=*/3 * 24 * 30, kTestRows);
    trained_ = RunJob(job_->Arguments("trained", {"train.max_steps=30"}));
  }
  static void TearDownTestSuite() { job_.reset(); }
  void SetUp() override { ASSERT_TRUE(trained_.ok()) << trained_.DebugString(); }

  static RunResult Predict(const std::string& data, const std::string& out,
                           const std::vector<std::string>& set) {
    std::vector<std::string> argv = {ProgramPath("tandem"),
                                     "predict",
                                     job_->File("job.textproto"),
                                     "--init-from",
                                     job_->File("trained/model"),
                                     "--data",
                                     data,
                                     "--out",
                                     out};
    for (const std::string& text : set) argv.insert(argv.end(), {"--set", text});
    return RunProgram(argv);
  }
  static std::vector<double> Scores(const std::string& path) {
    std::vector<double> scores;
    for (const absl::string_view line :
         absl::StrSplit(ReadTextFile(path), '\n', absl::SkipEmpty())) {
      EXPECT_TRUE(absl::SimpleAtod(line, &scores.emplace_back())) << line;
      EXPECT_GT(scores.back(), 0);
      EXPECT_LT(scores.back(), 1);
    }
    return scores;
  }

  static std::unique_ptr<SmallJob> job_;
  static RunResult trained_;
};
std::unique_ptr<SmallJob> PredictTest::job_;
RunResult PredictTest::trained_;

TEST_F(PredictTest, ScoresAreThoseOfTheEvaluationInTheOrderOfTheRows) {
  std::vector<float> labels;
  for (const absl::string_view row :
       absl::StrSplit(ReadTextFile(job_->File("test.tsv")), '\n', absl::SkipEmpty())) {
    labels.push_back(row[0] == '1' ? 1.0f : 0.0f);
  }
  ASSERT_EQ(labels.size(), static_cast<size_t>(kTestRows));
  std::vector<double> of_three;
  for (const int workers : {3, 1, 2}) {
    SCOPED_TRACE(workers);
    const std::string out = job_->File(absl::StrCat("scores-", workers));
    const RunResult run =
        Predict(job_->File("test.tsv"), out, {absl::StrCat("cluster.workers=", workers)});
    ASSERT_TRUE(run.ok()) << run.DebugString();
    const std::vector<double> scores = Scores(out);
    ASSERT_EQ(scores.size(), labels.size());
    EXPECT_THAT(run.output, HasSubstr(absl::StrCat("wrote ", kTestRows, " scores to ", out)));
    if (workers == 3) of_three = scores;
    for (size_t i = 0; i < scores.size(); ++i) ASSERT_NEAR(scores[i], of_three[i], 1e-5) << i;
    data::ScoreSample sample;
    std::vector<float> logits;
    for (const double p : scores) logits.push_back(static_cast<float>(std::log(p / (1 - p))));
    sample.Add(logits, labels);
    if (workers == 3) {
      EXPECT_EQ(sample.ComputeAuc().value, trained_.summary["eval"]["auc"]);
    }
  }
}

TEST_F(PredictTest, WhatHasNoScoresIsRefused) {
  const RunResult missing = Predict(job_->File("nowhere.tsv"), job_->File("a"), {});
  EXPECT_EQ(missing.exit_code, 2) << missing.DebugString();
  EXPECT_THAT(missing.output, HasSubstr("nowhere.tsv"));
  const RunResult folder = Predict(job_->File("test.tsv"), job_->File("no/such/file"), {});
  EXPECT_EQ(folder.exit_code, 2) << folder.DebugString();
  EXPECT_THAT(folder.output, HasSubstr("there is no folder"));
  const RunResult other = Predict(job_->File("test.tsv"), job_->File("a"), {"model.dlrm.top=[8]"});
  EXPECT_EQ(other.exit_code, 2) << other.DebugString();
  EXPECT_THAT(other.output, HasSubstr("model is dlrm"));
  EXPECT_FALSE(std::filesystem::exists(job_->File("a")));
}

}  // namespace
}  // namespace tandem
