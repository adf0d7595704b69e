// tandem predict: scores in the order of the rows for any number of workers, exactly those that an
// evaluation sums up, with or without labels; what it cannot score is refused in a line.
#include <cmath>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "data/metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kTestRows = 501;  // three workers have 167 each, two 251 and 250

// Rows that missed steps at the checkpoint have the weights that the evaluation read.
const char kCatchUp[] = "table[0].optimizer={kind: ADAM learning_rate: 0.01 catch_up: true}";

class PredictTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    job_ = std::make_unique<SmallJob>(/*train_rows=*/3 * 24 * 30, kTestRows);
    trained_ = RunJob(job_->Arguments("trained", {"train.max_steps=30", kCatchUp}));
  }
  static void TearDownTestSuite() { job_.reset(); }
  void SetUp() override { ASSERT_TRUE(trained_.ok()) << trained_.DebugString(); }

  static RunResult Tandem(std::vector<std::string> argv) {
    argv.insert(argv.begin(), ProgramPath("tandem"));
    return RunProgram(argv);
  }
  static RunResult Predict(const std::string& data, const std::string& out,
                           const std::vector<std::string>& set,
                           const std::string& checkpoint = "trained/model") {
    std::vector<std::string> argv = {ProgramPath("tandem"),
                                     "predict",
                                     job_->File("job.textproto"),
                                     "--init-from",
                                     job_->File(checkpoint),
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
    std::vector<std::string> set = {absl::StrCat("cluster.workers=", workers)};
    if (workers != 1) set.emplace_back(kCatchUp);  // else the job has another optimizer
    const RunResult run = Predict(job_->File("test.tsv"), out, set);
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
  EXPECT_THAT(other.output, Not(HasSubstr("--only-tables")));
  EXPECT_FALSE(std::filesystem::exists(job_->File("a")));

  std::filesystem::copy_file(job_->File("test.tsv"), job_->File("mine.tsv"));
  std::filesystem::create_symlink("mine.tsv", job_->File("link"));
  const std::string checkpoint =
      "trained/model/" + ReadTextFile(job_->File("trained/model/LATEST"));
  for (const std::string& out :
       {std::string("mine.tsv"), std::string("link"), std::string("job.textproto"),
        std::string("trained/model/LATEST"),
        absl::StrCat(absl::StripAsciiWhitespace(checkpoint), "/MANIFEST")}) {
    const RunResult itself = Predict(job_->File("mine.tsv"), job_->File(out), {});
    EXPECT_EQ(itself.exit_code, 2) << itself.DebugString();
    EXPECT_THAT(itself.output, HasSubstr("which is read; hint: name another file"));
  }
  EXPECT_EQ(ReadTextFile(job_->File("mine.tsv")), ReadTextFile(job_->File("test.tsv")));
}

// Nor need there be the files of the job, nor a row for each worker.
TEST_F(PredictTest, RowsNeedNoLabel) {
  const std::string labelled = job_->File("labelled"), bare = job_->File("bare");
  ASSERT_TRUE(Predict(job_->File("test.tsv"), labelled, {}).ok());
  std::string rows, some;
  for (const absl::string_view row :
       absl::StrSplit(ReadTextFile(job_->File("test.tsv")), '\n', absl::SkipEmpty())) {
    absl::StrAppend(&rows, row.substr(row.find('\t') + 1), "\n");
    absl::StrAppend(&some, some.size() < 1000 ? row.substr(row.find('\t')) : row, "\n");
  }
  WriteTextFile(job_->File("bare.tsv"), rows);
  const std::vector<std::string> set = {
      "data.train=[\"/nowhere/train\"]", "data.validation={files: \"/nowhere/validation\"}",
      "train.keep_best={patience: 1}", "limits.held_bytes_per_shard=1"};
  const RunResult run = Predict(job_->File("bare.tsv"), bare, set, "trained");
  ASSERT_TRUE(run.ok()) << run.DebugString();
  // A busy machine may first say that it waits for workers.
  EXPECT_THAT(run.output, EndsWith(absl::StrCat("no AUC and no logloss: the rows have no labels\n",
                                                "wrote ", kTestRows, " scores to ", bare, "\n")));
  EXPECT_THAT(run.output, Not(HasSubstr("warning")));
  EXPECT_EQ(ReadTextFile(bare), ReadTextFile(labelled));

  WriteTextFile(job_->File("some.tsv"), some);
  const RunResult mixed = Predict(job_->File("some.tsv"), bare, {});
  ASSERT_TRUE(mixed.ok()) << mixed.DebugString();
  EXPECT_THAT(mixed.output,
              ContainsRegex("no AUC and no logloss: [0-9]+ of 501 rows have no label"));
  EXPECT_EQ(ReadTextFile(bare), ReadTextFile(labelled));

  // Alone on the standard output, where it is asked for.
  WriteTextFile(job_->File("one.tsv"), rows.substr(0, rows.find('\n') + 1));
  const RunResult one = RunProgram(
      {"/bin/sh", "-c",
       absl::StrCat(ProgramPath("tandem"), " predict ", job_->File("job.textproto"),
                    " --init-from ", job_->File("trained"), " --data ", job_->File("one.tsv"),
                    " --out /dev/stdout 2> ", job_->File("said"))});
  ASSERT_TRUE(one.ok()) << one.DebugString();
  double score = 0;
  ASSERT_TRUE(absl::SimpleAtod(one.output, &score)) << one.output;
  EXPECT_NEAR(score, Scores(labelled)[0], 1e-5);
  EXPECT_THAT(ReadTextFile(job_->File("said")), HasSubstr("wrote 1 scores to /dev/stdout\n"));
}

// Ids in another spelling are other ids, and get the initial values of rows.
TEST_F(PredictTest, WarnsOfIdsThatTheModelHasNeverSeen) {
  std::string rows;
  for (const absl::string_view row :
       absl::StrSplit(ReadTextFile(job_->File("test.tsv")), '\n', absl::SkipEmpty())) {
    std::vector<std::string> cells = absl::StrSplit(row, '\t');
    cells.back() += ".0";
    absl::StrAppend(&rows, absl::StrJoin(cells, "\t"), "\n");
  }
  WriteTextFile(job_->File("respelled.tsv"), rows);
  const RunResult run = Predict(job_->File("respelled.tsv"), job_->File("respelled"), {});
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_THAT(run.output, ContainsRegex("warning: --data: column 'C26': 100 % of its [0-9]+ values "
                                        "that were looked at have no row in the model, such as "
                                        "'[0-9a-f]+.0'; hint: are ids written alike"));
  EXPECT_EQ(run.output.find("warning"), run.output.rfind("warning")) << run.output;
  const RunResult known = Predict(job_->File("test.tsv"), job_->File("known"), {});
  EXPECT_THAT(known.output, Not(HasSubstr("warning")));
}

// A descriptor that is open for reading alone is found out after the rows are scored.
TEST_F(PredictTest, ScoresThatCannotBeWrittenAreKept) {
  WriteTextFile(job_->File("unwritable"), "");
  const RunResult run = RunProgram(
      {"/bin/sh", "-c",
       absl::StrCat(ProgramPath("tandem"), " predict ", job_->File("job.textproto"),
                    " --init-from ", job_->File("trained"), " --data ", job_->File("test.tsv"),
                    " --out /dev/fd/3 3< ", job_->File("unwritable"))});
  EXPECT_EQ(run.exit_code, 1) << run.DebugString();
  const std::vector<std::string> said = absl::StrSplit(run.output, "the scores are kept in ");
  ASSERT_EQ(said.size(), 2u) << run.output;
  const std::string kept(absl::StripSuffix(said[1], "\n"));
  EXPECT_EQ(Scores(kept).size(), static_cast<size_t>(kTestRows));
  std::filesystem::remove_all(std::filesystem::path(kept).parent_path());
}

TEST_F(PredictTest, ColumnsStandInFrontOfTheScores) {
  const std::string job = job_->File("offers.textproto");
  WriteTextFile(job, absl::StrCat(R"(
cluster { workers: 2 servers: 1 }
data {
  format: DELIMITED train: ")",
                                  SourcePath("configs/data/example_train.csv"), R"("
  columns { delimiter: "," header: true label: "taken" positive: "yes" missing: ["?", "NA"]
            numeric: ["age", "visits", "minutes"] categorical: ["city", "device", "offer"] } }
table { name: "ids" dim: 4 }
dense { optimizer { kind: ADAM learning_rate: 0.01 } }
model { mlp { hidden: [8] } }
train { batch_size: 64 })"));
  ASSERT_TRUE(Tandem({"run", job, "--out", job_->File("offers")}).ok());
  WriteTextFile(job_->File("new.csv"),
                "minutes,id,city,device,offer,age,visits\n1.5,17,\"Rome, IT\",phone,offer2,30,1\n");
  const auto predict = [&](const char* columns) {
    return Tandem({"predict", job, "--init-from", job_->File("offers"), "--data",
                   job_->File("new.csv"), "--columns", columns, "--out", job_->File("table")});
  };
  const RunResult run = predict("id,city");
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_THAT(ReadTextFile(job_->File("table")),
              MatchesRegex("id,city,score\n17,\"Rome, IT\",0\\.[0-9]+\n"));
  const RunResult none = predict("id,town");
  EXPECT_EQ(none.exit_code, 2) << none.DebugString();
  EXPECT_THAT(none.output, HasSubstr("the header has no column 'town' (--columns)"));

  // The model has learned from its training rows that "no" counts as 0.
  const auto row = [](const char* label) { return absl::StrCat("30,1,1.5,a,b,c,", label, "\n"); };
  WriteTextFile(job_->File("new.csv"), absl::StrCat("age,visits,minutes,city,device,offer,taken\n",
                                                    row("yes"), row("maybe"), row("no")));
  const RunResult maybe = predict("city");
  EXPECT_EQ(maybe.exit_code, 2) << maybe.DebugString();
  EXPECT_THAT(maybe.output, ContainsRegex("new.csv:3: .* is 'maybe', expected .*'no'"));
}

TEST_F(PredictTest, PairsOfUserAndItemHaveScores) {
  const std::string job = job_->File("pairs.textproto");
  std::string ratings;
  for (int i = 0; i < 200; ++i) absl::StrAppend(&ratings, i % 20, "\t", i * 7 % 31, "\t5\n");
  WriteTextFile(job_->File("ratings"), ratings);
  WriteTextFile(job, absl::StrCat(R"(
cluster { workers: 2 servers: 1 }
data { format: NCF train: ")",
                                  job_->File("ratings"), R"(" }
table { name: "user" dim: 4 field: "user" optimizer { kind: ADAGRAD learning_rate: 0.5 } }
table { name: "item" dim: 4 field: "item" optimizer { kind: ADAGRAD learning_rate: 0.5 } }
dense { optimizer { kind: ADAM learning_rate: 0.1 } }
model { gmf {} }
train { batch_size: 32 epochs: 2 })"));
  ASSERT_TRUE(Tandem({"run", job, "--out", job_->File("pairs")}).ok());
  const auto scores = [&](const std::string& pairs) {
    WriteTextFile(job_->File("some"), pairs);
    const RunResult run =
        Tandem({"predict", job, "--init-from", job_->File("pairs"), "--data", job_->File("some"),
                "--out", job_->File("scores"), "--columns", "user,item"});
    EXPECT_TRUE(run.ok()) << run.DebugString();
    EXPECT_THAT(run.output, HasSubstr("no AUC and no logloss: the rows have no labels"));
    std::vector<std::string> lines = absl::StrSplit(ReadTextFile(job_->File("scores")), '\n');
    return lines;
  };
  const std::vector<std::string> there = scores("3,21\n0,7\n5,4\n");
  ASSERT_EQ(there.size(), 5u);
  EXPECT_EQ(there[0], "user,item,score");
  EXPECT_THAT(there[1], StartsWith("3,21,0."));
  const std::vector<std::string> back = scores("5\t4\t1\n0\t7\t1\n3\t21\t1\n");
  EXPECT_EQ(absl::StrReplaceAll(back[3], {{"\t", ","}}), there[1]);
  EXPECT_EQ(absl::StrReplaceAll(back[1], {{"\t", ","}}), there[3]);
  EXPECT_NE(there[1].substr(5), there[3].substr(4)) << "they say nothing";
}

}  // namespace
}  // namespace tandem
