// tandem cache: jobs that read its rows, or parse with several readers, end with the bits of a job
// that reads the text, also if a run changes between the two. What does not fit is refused before a
// process starts.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class CacheJobTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { job_ = std::make_unique<SmallJob>(4000, 100); }
  static void TearDownTestSuite() { job_.reset(); }

  static RunResult Cache(const std::vector<std::string>& flags) {
    std::vector<std::string> argv = {ProgramPath("tandem"), "cache", job_->File("job.textproto")};
    argv.insert(argv.end(), flags.begin(), flags.end());
    return RunProgram(argv);
  }
  static std::string CachedIn(const std::string& folder) {
    return absl::StrCat("data.cache=\"", job_->File(folder), "\"");
  }

  static ModelBits Train(const std::string& out, const Settings& set,
                         const std::string& resume = "") {
    RunArguments arguments = job_->Arguments(out, Join({"data.shuffle_buffer=0"}, set));
    if (!resume.empty()) arguments.flags = {"--resume", job_->File(resume)};
    return TrainModel(arguments);
  }

  static std::unique_ptr<SmallJob> job_;
};
std::unique_ptr<SmallJob> CacheJobTest::job_;

TEST_F(CacheJobTest, TheBitsAreThoseOfTheText) {
  const RunResult made = Cache({"--out", job_->File("rows")});
  ASSERT_TRUE(made.ok()) << made.DebugString();
  EXPECT_THAT(made.output, AllOf(ContainsRegex("train.tsv: 4000 rows, [0-9]+ bytes, [0-9.]+ s\n"),
                                 HasSubstr("test.tsv: 100 rows"),
                                 HasSubstr("--set '" + CachedIn("rows") + "'")));
  EXPECT_THAT(Cache({"--set", CachedIn("rows")}).output,
              ContainsRegex("train.tsv: 4000 rows, [0-9]+ bytes, is there already\n"));
  const ModelBits text = Train("text", {"data.deal=BLOCKS"});
  ASSERT_FALSE(text.empty());
  EXPECT_EQ(Difference(text, Train("cached", {"data.deal=BLOCKS", CachedIn("rows")})), "");
  EXPECT_EQ(Difference(text, Train("three", {"data.deal=BLOCKS", "data.readers=3"})), "");

  // Half on the text, half on the cache.
  const Settings half = {"data.deal=BLOCKS", "train.max_steps=20"};
  Train("half", half);
  const ModelBits rest =
      Train("half", {"data.deal=BLOCKS", "train.max_steps=0", CachedIn("rows")}, "half");
  EXPECT_EQ(Difference(text, rest), "");
}

TEST_F(CacheJobTest, WhatDoesNotFitIsRefused) {
  ASSERT_TRUE(Cache({"--out", job_->File("few"), "--zstd", "1"}).ok());
  const auto refused = [&](const Settings& set, const std::vector<std::string>& words) {
    const RunResult run = RunJob(job_->Arguments("refused", set));
    EXPECT_EQ(run.exit_code, 2) << run.DebugString();
    EXPECT_EQ(std::count(run.output.begin(), run.output.end(), '\n'), 1) << run.output;
    for (const std::string& word : words) EXPECT_THAT(run.output, HasSubstr(word));
    EXPECT_FALSE(std::filesystem::exists(job_->File("refused") + "/logs"));
  };
  refused({CachedIn("none")}, {"train.tsv: has no cache", "hint: tandem cache JOB"});
  const std::string test = job_->File("test.tsv");
  WriteTextFile(test, ReadTextFile(test).substr(ReadTextFile(test).find('\n') + 1));
  refused({CachedIn("few")}, {"test.tsv: has changed since", "hint: tandem cache JOB"});
  ASSERT_TRUE(Cache({"--out", job_->File("few"), "--zstd", "1"}).ok());
  for (const auto& entry : std::filesystem::directory_iterator(job_->File("few"))) {
    const std::string bytes = ReadTextFile(entry.path());
    WriteTextFile(entry.path(), bytes.substr(0, bytes.size() / 2));
  }
  refused({CachedIn("few")}, {"train.tsv-", ".cache: is cut", "hint: tandem cache JOB again"});

  const auto exits = [](const RunResult& run, const std::string& words) {
    EXPECT_EQ(run.exit_code, 2) << run.DebugString();
    EXPECT_THAT(run.output, HasSubstr(words));
  };
  exits(Cache({}), "the job has no data.cache, expected a folder for the rows; hint: --out DIR");
  exits(Cache({"--out", job_->File("job.textproto") + "/x"}), "job.textproto");
  exits(Cache({"--out", job_->File("x"), "--zstd", "20"}), "--zstd");
}

}  // namespace
}  // namespace tandem
