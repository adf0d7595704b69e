// The folder of a run: two runs at once never share one, a finished run is not lost by accident,
// and whoever names none gets a new one.
#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/output_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr absl::Duration kStart = absl::Seconds(60);

class OutputFolderTest : public ::testing::Test {
 protected:
  RunArguments Short(const std::string& name, const std::vector<std::string>& flags = {}) {
    RunArguments arguments = job_.Arguments(name, {"train.max_steps=3"});
    arguments.flags = flags;
    return arguments;
  }
  RunArguments Endless(const std::string& name) {
    return job_.Arguments(name, {"train.epochs=1000000"});
  }
  // Exit status 2, in one line that names the folder and `words`.
  void ExpectRefused(const RunArguments& arguments, const std::vector<std::string>& words) {
    // Elsewhere than RunJob, which writes into the folder itself.
    std::vector<std::string> argv = {ProgramPath("tandem"), "run", arguments.job, "--out",
                                     arguments.out};
    argv.insert(argv.end(), arguments.flags.begin(), arguments.flags.end());
    const RunResult refused = RunProgram(argv);
    EXPECT_EQ(refused.exit_code, 2) << refused.DebugString();
    EXPECT_EQ(std::count(refused.output.begin(), refused.output.end(), '\n'), 1) << refused.output;
    EXPECT_THAT(refused.output, HasSubstr("--out " + arguments.out));
    for (const std::string& word : words) EXPECT_THAT(refused.output, HasSubstr(word));
  }

  SmallJob job_{/*train_rows=*/400, /*test_rows=*/50};
};

TEST_F(OutputFolderTest, ASecondRunIsToldOfTheFirstAndTouchesNothing) {
  RunningJob first(Endless("one"));
  ASSERT_TRUE(first.WaitForStep(1, kStart)) << first.Finish(absl::ZeroDuration()).DebugString();
  const std::string job = ReadTextFile(job_.File("one/job.textproto"));
  const std::vector<std::string> words = {
      absl::StrCat("another run writes into it (process ", first.driver().pid(), " on "), "hint"};
  ExpectRefused(Short("one"), words);
  ExpectRefused(Short("one", {"--overwrite", "--set", "seed=99"}), words);
  // A scheduler by hand is a run like any other.
  const RunResult by_hand = RunProgram({ProgramPath("tandem-scheduler"), "--job",
                                        job_.File("one/job.textproto"), "--out", job_.File("one")});
  EXPECT_EQ(by_hand.exit_code, 2) << by_hand.DebugString();
  EXPECT_THAT(by_hand.output, HasSubstr(words[0]));
  EXPECT_EQ(ReadTextFile(job_.File("one/job.textproto")), job);
  EXPECT_FALSE(first.driver().WaitFor(absl::ZeroDuration())) << "the first one goes on";
}

TEST_F(OutputFolderTest, DeathReleasesTheFolder) {
  {
    RunningJob killed(Endless("killed"));
    ASSERT_TRUE(killed.WaitForStep(1, kStart));
    killed.driver().Signal(SIGKILL);
    ASSERT_TRUE(killed.WaitForNobody(kStart));
  }
  const RunResult next = RunJob(Short("killed"));
  EXPECT_TRUE(next.ok()) << next.DebugString();
}

// The folder that somebody stands in may have folders of the names that a run uses.
TEST_F(OutputFolderTest, WhatNoRunHasLeftIsNotTouched) {
  fs::create_directories(job_.File("sources/collectives"));
  WriteTextFile(job_.File("sources/collectives/ring.cc"), "int main() {}");
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, std::vector<std::string>{"--overwrite"}}) {
    ExpectRefused(Short("sources", flags), {"collectives that no run has left", "hint"});
  }
  EXPECT_EQ(ReadTextFile(job_.File("sources/collectives/ring.cc")), "int main() {}");
}

TEST_F(OutputFolderTest, AFinishedRunIsLostOnlyOnPurpose) {
  const RunResult first = RunJob(Short("twice"));
  ASSERT_TRUE(first.ok()) << first.DebugString();
  const std::string summary = ReadTextFile(job_.File("twice/summary.json"));
  const std::string model = ReadTextFile(job_.File("twice/model/LATEST"));
  WriteTextFile(job_.File("twice/trace-7.json"), "{}");  // of a worker that the next run has not

  ExpectRefused(Short("twice"), {"summary.json", "--overwrite"});
  EXPECT_EQ(ReadTextFile(job_.File("twice/summary.json")), summary);
  WriteTextFile(job_.File("twice/summary.json"),
                R"({"failed": {}})");  // the model is worth as much
  ExpectRefused(Short("twice"), {"model/LATEST", "--overwrite"});
  EXPECT_EQ(ReadTextFile(job_.File("twice/model/LATEST")), model);

  const RunResult second = RunJob(Short("twice", {"--overwrite", "--no-checkpoint"}));
  EXPECT_TRUE(second.ok()) << second.DebugString();
  EXPECT_FALSE(fs::exists(job_.File("twice/model"))) << "not the model of the run before";
  EXPECT_FALSE(fs::exists(job_.File("twice/trace-7.json")));
}

// --overwrite does not take away what the run itself begins with.
TEST_F(OutputFolderTest, TrainingOnInOnesOwnFolder) {
  ASSERT_TRUE(RunJob(Short("on")).ok());
  RunArguments on = Short("on", {"--overwrite"});
  on.init_from = job_.File("on/model");
  const RunResult second = RunJob(on);
  EXPECT_TRUE(second.ok()) << second.DebugString();
  EXPECT_TRUE(fs::exists(job_.File("on/model/LATEST")));
}

TEST_F(OutputFolderTest, WhoNamesNoFolderGetsANewOne) {
  const RunArguments arguments = Short("unused");
  std::vector<std::string> argv = {"/bin/sh",
                                   "-c",
                                   "cd \"$0\" && exec \"$@\"",
                                   job_.File(""),
                                   fs::absolute(ProgramPath("tandem")),
                                   "run",
                                   arguments.job,
                                   "--set",
                                   "name='a job/1'",
                                   "--set",
                                   "train.max_steps=3"};
  for (int i = 0; i < 2; ++i) {
    const RunResult run = RunProgram(argv);
    ASSERT_TRUE(run.ok()) << run.DebugString();
    EXPECT_THAT(run.output, HasSubstr("wrote out/a_job_1-2")) << "it says where";
  }
  int made = 0;
  for (const auto& entry : fs::directory_iterator(job_.File("out"))) {
    EXPECT_TRUE(fs::exists(entry.path() / "summary.json")) << entry.path();
    ++made;
  }
  EXPECT_EQ(made, 2);
}

TEST(OutputFolderNamesTest, Inside) {
  EXPECT_TRUE(cli::IsInside("/a/b/model", "/a/b"));
  EXPECT_TRUE(cli::IsInside("/a/b/../b/model", "/a/b"));
  EXPECT_FALSE(cli::IsInside("/a/bc/model", "/a/b"));
  EXPECT_FALSE(cli::IsInside("/a", "/a/b"));
}

}  // namespace
}  // namespace tandem
