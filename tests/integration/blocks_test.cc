// Jobs whose rows are dealt in blocks (data.deal: BLOCKS): each row is trained on once, workers
// have as many steps as with ROWS, and together they read the file about once instead of once each.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/bytes_read.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr int kWorkers = 8;
constexpr int64_t kRows = 40'000;

class BlocksTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { job_ = std::make_unique<SmallJob>(kRows, 100); }
  static void TearDownTestSuite() { job_.reset(); }

  static RunResult Run(const std::string& name, const Settings& set) {
    const Settings all = Join({absl::StrCat("cluster.workers=", kWorkers), "train.batch_size=100",
                               "data.shuffle_buffer=0", "evaluation.every_epochs=100"},
                              set);
    RunResult run = RunJob(job_->Arguments(name, all));
    EXPECT_TRUE(run.ok()) << run.DebugString();
    return run;
  }

  static std::unique_ptr<SmallJob> job_;
};
std::unique_ptr<SmallJob> BlocksTest::job_;

TEST_F(BlocksTest, EachRowIsTrainedOnceAndStepsAreThoseOfRows) {
  constexpr int64_t kSteps = kRows / kWorkers / 100;  // of each worker, with ROWS
  for (const Settings& policy :
       {Settings{"policy={kind: BSP}"},
        Settings{"policy={kind: SSP bound: 2}", "reproducible=false", "dense.synchroniser=SERVERS"},
        Settings{"policy={kind: ASP}", "reproducible=false"}}) {
    SCOPED_TRACE(policy[0]);
    const RunResult run = Run("blocks", Join(policy, {"data.deal=BLOCKS", "train.epochs=2"}));
    EXPECT_EQ(run.summary["deal"], "BLOCKS");
    EXPECT_EQ(run.summary["samples"], 2 * kRows);
    EXPECT_GE(run.summary["steps"], 2 * kSteps);
    EXPECT_LE(run.summary["steps"], 2 * (kSteps + kSteps / 20 + 1));
    for (const nlohmann::json& worker : run.summary["by_worker"]) {
      EXPECT_NEAR(worker["share"].get<double>() * kWorkers, 1, 0.05);
    }
    std::filesystem::remove_all(job_->File("blocks"));
  }
}

TEST_F(BlocksTest, WorkersTogetherReadTheFileOnce) {
  if (BytesRead() < 0) GTEST_SKIP() << "/proc/self/io does not count";
  const auto size = static_cast<double>(ReadTextFile(job_->File("train.tsv")).size());
  const auto read = [&](const std::string& deal) {
    const int64_t before = BytesRead();
    const RunResult run = Run("reads-" + deal, {"data.deal=" + deal, "train.epochs=3"});
    EXPECT_EQ(run.summary["deal"], deal);
    EXPECT_EQ(run.summary["samples"], 3 * kRows);
    return static_cast<double>(BytesRead() - before) / size;
  };
  // Both also read for the check before the start, for their programs and logs.
  const double rows = read("ROWS"), blocks = read("BLOCKS");
  EXPECT_GE(rows, 3 * kWorkers);
  EXPECT_LE(blocks, rows - 3 * (kWorkers - 1.1));
}

// A job that asks for blocks that the files do not allow is refused before a process starts.
TEST_F(BlocksTest, TooFewCompressedFilesAreRefused) {
  const std::string packed = job_->File("one.tsv.gz");
  ASSERT_EQ(std::system(absl::StrCat("gzip -c ", job_->File("train.tsv"), " > ", packed).c_str()),
            0);
  RunArguments arguments =
      job_->Arguments("refused", {"data.train=[\"" + packed + "\"]", "data.deal=BLOCKS"});
  const RunResult refused = RunJob(arguments);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("data.deal: BLOCKS leaves a worker without a block"));
  EXPECT_THAT(refused.output, HasSubstr("1 compressed file for 3 workers"));
}

}  // namespace
}  // namespace tandem
