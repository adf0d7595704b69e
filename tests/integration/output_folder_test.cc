// The folder of a run: two runs at once never share one, a finished run is not lost by accident,
// and whoever names none gets a new one.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/owned_fd.h"
#include "cli/console/output_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_disk.h"
#include "tests/integration/small_job.h"

namespace {
std::function<void()> at_lock;  // called whenever this process asks for an exclusive lock
}  // namespace

extern "C" int flock(int fd, int operation) {
  if (at_lock && (operation & LOCK_EX) != 0) at_lock();
  return static_cast<int>(syscall(SYS_flock, fd, operation));
}

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

TEST_F(OutputFolderTest, NamesNeedNotBeUtf8) {
  const std::string data = job_.File("tr\xe9.tsv");
  fs::copy_file(job_.File("train.tsv"), data);
  RunArguments arguments = Short("caf\xe9");
  arguments.set.push_back("data.train=" + data);
  RunResult run = RunJob(arguments);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_EQ(run.summary["steps"], 3) << run.summary.dump();
  // The run resumes. An error with such a name comes from the server that reports it.
  arguments.set[0] = "train.max_steps=6";
  arguments.set.push_back("staleness.record_updates=true");
  arguments.flags = {"--resume", arguments.out};
  fs::create_directory(arguments.out + "/server-1-shard-0.updates");
  run = RunJob(arguments);
  EXPECT_THAT(run.output, HasSubstr("resumes at step "));
  EXPECT_THAT(run.output, HasSubstr("caf\xef\xbf\xbd/server-1-shard-0.updates: cannot be opened"));
}

// A process that asks whether the folder is held has a shared lock for a moment.
TEST_F(OutputFolderTest, AQuestionInTheSameMomentDoesNotRefuseARun) {
  ASSERT_TRUE(cli::OutputFolder::Claim(job_.File("asked"), /*overwrite=*/false).ok());
  OwnedFd asks(open(job_.File("asked/lock").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(flock(asks.get(), LOCK_SH), 0);
  int tries = 0;
  at_lock = [&] {
    if (++tries == 3) asks = OwnedFd();
  };
  const absl::StatusOr<cli::OutputFolder> folder =
      cli::OutputFolder::Claim(job_.File("asked"), /*overwrite=*/false);
  at_lock = nullptr;
  EXPECT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(tries, 3);
  EXPECT_TRUE(cli::OutputFolder::IsHeld(job_.File("asked")));
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

// A run that was killed while it wrote a checkpoint has left the disk full. Files of the resumed
// run are written before the scheduler removes what was not completed.
TEST_F(OutputFolderTest, ARunResumesOnADiskThatAnUnfinishedCheckpointHasFilled) {
  fs::create_directory(job_.File("full"));
  const SmallDisk disk(job_.File("full"), /*kibibytes=*/4096);
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small file system needs root";
  RunArguments arguments = Short("full/out");
  const RunResult first = RunJob(arguments);
  ASSERT_TRUE(first.ok()) << first.DebugString();
  const std::string unfinished = job_.File("full/out/model/step-9.0000000000000001");
  fs::create_directory(unfinished);
  OwnedFd part(open((unfinished + "/dense.part").c_str(), O_WRONLY | O_CREAT, 0644));
  const std::string page(4096, 'x');
  while (write(part.get(), page.data(), page.size()) > 0) {
  }
  ASSERT_EQ(errno, ENOSPC);
  part = OwnedFd();  // an open file would keep its room
  // Not RunJob, which would write a job file into the full folder. `--resume` takes the one there.
  const RunResult resumed = RunProgram(
      {ProgramPath("tandem"), "run", "--resume", arguments.out, "--set", "train.max_steps=6"});
  EXPECT_TRUE(resumed.ok()) << resumed.DebugString();
  EXPECT_EQ(cli::ReadSummary(arguments.out)["steps"], 6) << resumed.DebugString();
  EXPECT_FALSE(fs::exists(unfinished));
}

TEST_F(OutputFolderTest, AModelFolderThatCannotBeWrittenIsSaidAtTheStart) {
  RunArguments arguments = Short("closed");
  ASSERT_TRUE(RunJob(arguments).ok());
  const std::string model = arguments.out + "/model";
  if (mount(model.c_str(), model.c_str(), "", MS_BIND, "") != 0) GTEST_SKIP() << "needs root";
  EXPECT_EQ(mount("", model.c_str(), "", MS_REMOUNT | MS_BIND | MS_RDONLY, ""), 0);
  const RunResult refused = RunProgram(
      {ProgramPath("tandem"), "run", "--resume", arguments.out, "--set", "train.max_steps=6"});
  EXPECT_EQ(refused.exit_code, 2) << refused.DebugString();
  EXPECT_THAT(refused.output, HasSubstr("no checkpoint can be written to " + model +
                                        ": Read-only file system; hint: "));
  umount2(model.c_str(), MNT_DETACH);
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
