// A program outside the tree, built with nothing but find_package(Tandem), reads rows of a running
// job: to the last they are those of the model that is saved.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "optim/initializer.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

constexpr int kDim = 8;
constexpr absl::Duration kBuildLimit = absl::Seconds(300), kPatience = absl::Seconds(100);

struct Seen {
  int reads = 0;
  std::vector<float> first, last;
};

Seen Parse(const std::string& output) {
  Seen seen;
  const std::vector<std::string> words = absl::StrSplit(output, ' ', absl::SkipEmpty());
  EXPECT_GT(words.size(), size_t{1 + 2 * kDim}) << output;
  if (words.size() <= 1 + 2 * kDim) return seen;
  EXPECT_TRUE(absl::SimpleAtoi(words[0], &seen.reads)) << output;
  for (size_t i = 1; i <= 2 * kDim; ++i) {
    float value = 0;
    EXPECT_TRUE(absl::SimpleAtof(words[i], &value)) << output;
    (i <= kDim ? seen.first : seen.last).push_back(value);
  }
  EXPECT_NE(output.find("the job has ended"), std::string::npos) << output;
  return seen;
}

TEST(OutsideTest, AProgramReadsRowsOfARunningJob) {
  TemporaryFolder folder;
  const std::string build = folder.File("build");
  for (const std::vector<std::string>& step :
       {std::vector<std::string>{TANDEM_CMAKE, "-G", "Ninja", "-S", TANDEM_OUTSIDE_SOURCE, "-B",
                                 build, absl::StrCat("-DTandem_DIR=", TANDEM_BUILD)},
        std::vector<std::string>{TANDEM_CMAKE, "--build", build}}) {
    const RunResult built = RunProgram(step, kBuildLimit);
    ASSERT_TRUE(built.ok()) << built.DebugString();
  }
  const SmallJob job(/*train_rows=*/3 * 24 * 400, /*test_rows=*/500);
  const RunResult first = RunJob(job.Arguments("first", {"train.max_steps=20"}));
  ASSERT_TRUE(first.ok()) << first.DebugString();
  const auto early = ReadCheckpoint(job.File("first/model"));
  ASSERT_TRUE(early.ok()) << early.status();
  const uint64_t trained = early->at("rest").begin()->first;
  const uint64_t unknown = 12345;  // in no sample

  RunningJob run(job.Arguments("run", {"train.max_steps=1200", "train.epochs=3"}));
  ASSERT_TRUE(run.WaitForStep(1, kPatience)) << run.driver().Output();
  const std::string scheduler =
      std::string(absl::StripAsciiWhitespace(ReadTextFile(job.File("run/address"))));
  const auto reads = [&](uint64_t id, const std::string& output) {
    return std::make_unique<ChildProcess>(
        std::vector<std::string>{build + "/read_rows", scheduler, "rest", absl::StrCat(id)},
        folder.File(output),
        std::map<std::string, std::string>{{"TANDEM_TOKEN_FILE", job.File("run/token")}});
  };
  const auto of_trained = reads(trained, "trained"), of_unknown = reads(unknown, "unknown");
  const RunResult ended = run.Finish(kPatience);
  ASSERT_TRUE(ended.ok()) << ended.DebugString();
  ASSERT_TRUE(of_trained->WaitFor(kPatience) && of_unknown->WaitFor(kPatience));

  const auto model = ReadCheckpoint(job.File("run/model"));
  ASSERT_TRUE(model.ok()) << model.status();
  const Seen seen = Parse(of_trained->Output());
  EXPECT_GT(seen.reads, 10);
  std::vector<float> last = model->at("rest").at(trained);
  last.resize(kDim);  // without the optimizer's slots
  EXPECT_EQ(seen.last, last);
  EXPECT_NE(seen.first, last) << "it was trained meanwhile";
  const job::ResolvedJob plan = job.Plan({});
  std::vector<float> untouched(kDim);
  optim::InitRow(plan.tables[1].initializer, plan.tables[1].seed, unknown,
                 absl::MakeSpan(untouched));
  EXPECT_EQ(Parse(of_unknown->Output()).last, untouched);
  EXPECT_EQ(model->at("rest").count(unknown), 0u) << "a read has created a row";
}

}  // namespace
}  // namespace tandem
