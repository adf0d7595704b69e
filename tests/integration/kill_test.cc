// Processes of a running job die, stop or are told to stop. However it happens, the run ends soon,
// says who it was, and leaves no process behind.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rdma/rdma_transport.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_disk.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kStart = absl::Seconds(90);     // a loaded machine may be slow
constexpr absl::Duration kNaming = absl::Seconds(10);    // the promise: from a death to the end
constexpr absl::Duration kReported = absl::Seconds(20);  // until a line that must come has come
constexpr absl::Duration kGone = absl::Seconds(5);
constexpr absl::Duration kAtOnce = absl::Seconds(6);  // five times what it takes

std::vector<std::string> ExampleData() {
  return {"data.train=" + SourcePath("configs/data/example_train.csv"),
          "data.test=" + SourcePath("configs/data/example_test.csv")};
}

// A job that goes on for ever, and is small.
class KillTest : public ::testing::Test {
 protected:
  RunArguments Endless() const {
    RunArguments arguments;
    arguments.job = SourcePath("configs/delimited.textproto");
    arguments.set = ExampleData();
    arguments.set.push_back("train.epochs=1000000");
    arguments.set.push_back(
        absl::StrCat("limits.startup_timeout_seconds=", absl::ToInt64Seconds(patience_ * kStart)));
    arguments.out = folder_.File("out");
    arguments.checkpoint = false;  // so that a signal ends it at once
    return arguments;
  }

  // The last line: "tandem run: failed: ...".
  static std::string LastLine(const std::string& output) {
    const std::vector<std::string> lines = absl::StrSplit(output, '\n', absl::SkipEmpty());
    return lines.empty() ? "" : lines.back();
  }

  // Waits for the end of a run that must fail, and looks for what is left.
  // `signal`: that the driver was sent, and so dies of; 0: none.
  RunResult ExpectFailure(RunningJob* job, const std::vector<std::string>& words, int signal = 0) {
    RunResult result = job->Finish(patience_ * kNaming);
    EXPECT_FALSE(result.timed_out) << result.DebugString();
    EXPECT_EQ(result.signal, signal) << result.DebugString();
    EXPECT_EQ(result.exit_code, signal == 0 ? 1 : -1) << result.DebugString();
    EXPECT_TRUE(absl::StartsWith(LastLine(result.output), "tandem run: failed: ")) << result.output;
    for (const std::string& word : words) EXPECT_THAT(LastLine(result.output), HasSubstr(word));
    EXPECT_TRUE(job->WaitForNobody(patience_ * kGone)) << "left: " << job->Roles().size();
    EXPECT_TRUE(result.summary.is_object() && result.summary.contains("failed"))
        << "a summary says that it failed: " << result.DebugString();
    EXPECT_EQ(result.summary["exit"], signal == 0 ? 1 : 128 + signal) << result.DebugString();
    return result;
  }

  // All roles train: returns false, with a failure of the test, if they do not.
  bool Trains(RunningJob* job) {
    const bool steps = job->WaitForStep(20, patience_ * kStart);
    EXPECT_TRUE(steps) << job->driver().Output();
    return steps && job->Roles().size() == 5;
  }

  // The processor of a guest is an emulated one, many times slower than those the limits are for.
  const int patience_ = std::getenv("TANDEM_GUEST_SHARED") == nullptr ? 1 : 10;
  TemporaryFolder folder_;
};

// ---- kill -9 ----------------------------------------------------------------------------------

// Who dies, and what the roles reach each other by.
struct Victim {
  std::string role, transport;
  std::string synchroniser = "SERVERS";  // of the table
};

class KillRoleTest : public KillTest, public ::testing::WithParamInterface<Victim> {
 protected:
  void SetUp() override {
    if (GetParam().transport != "RDMA") return;
    const auto context = rdma::RdmaContext::New();
    if (!context.ok()) GTEST_SKIP() << context.status().message();
  }
};

TEST_P(KillRoleTest, IsNamedWithinTenSecondsAndNobodyIsLeft) {
  const std::string& role = GetParam().role;
  RunArguments arguments = Endless();
  arguments.set.push_back("cluster.transport=" + GetParam().transport);
  if (GetParam().synchroniser != "SERVERS") {
    arguments.set.push_back("policy.kind=BSP");
    arguments.set.push_back("table[0].placement=" + GetParam().synchroniser);
  }
  RunningJob job(arguments);
  ASSERT_TRUE(Trains(&job));
  const pid_t victim = job.Roles()[role];
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  const std::string name = absl::StrReplaceAll(role, {{"-", " "}});
  const RunResult result =
      ExpectFailure(&job, {absl::StrCat("failed: ", name, " (pid ", victim, ")"), "signal 9"});
  // Everyone left has the same name for it.
  if (name == "scheduler") return;
  for (const char* other : {"scheduler", "server-0", "server-1", "worker-0", "worker-1"}) {
    if (role == other) continue;
    const std::string log = ReadTextFile(absl::StrCat(folder_.File("out/logs/"), other, ".log"));
    EXPECT_THAT(log, HasSubstr(name + ": ")) << other << "\n" << result.DebugString();
  }
}

std::string NameOf(const ::testing::TestParamInfo<Victim>& victim) {
  return absl::StrCat(absl::StrReplaceAll(victim.param.role, {{"-", "_"}}), "_",
                      victim.param.transport, "_", victim.param.synchroniser);
}
INSTANTIATE_TEST_SUITE_P(EachRole, KillRoleTest,
                         ::testing::Values(Victim{"scheduler", "SHM"}, Victim{"server-0", "SHM"},
                                           Victim{"server-1", "SHM"}, Victim{"worker-0", "SHM"},
                                           Victim{"worker-1", "SHM"}, Victim{"scheduler", "ZMQ"},
                                           Victim{"server-1", "ZMQ"}, Victim{"worker-0", "ZMQ"},
                                           Victim{"worker-0", "SHM", "SHARDED"},
                                           Victim{"worker-1", "ZMQ", "SHARDED"},
                                           Victim{"worker-1", "SHM", "REPLICATED"}),
                         NameOf);
// Run with the other tests that need a device (tests/rdma/guest_tests.sh).
INSTANTIATE_TEST_SUITE_P(Rdma, KillRoleTest,
                         ::testing::Values(Victim{"scheduler", "RDMA"}, Victim{"server-0", "RDMA"},
                                           Victim{"worker-1", "RDMA"}),
                         NameOf);

// ---- before all have registered ---------------------------------------------------------------

// Half of the victims are stopped as soon as they are there, so that they cannot have registered
// when they are killed; the others may be at any point of their first second.
class EarlyDeathTest : public KillTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(EarlyDeathTest, IsNamedAtOnce) {
  const std::string& role = GetParam();
  Random random(TestSeed());
  for (int round = 0; round < 4; ++round) {
    const bool stopped = round % 2 == 0;
    const absl::Duration moment = absl::Milliseconds(1000 * random.NextDouble());
    SCOPED_TRACE(absl::StrCat(stopped ? "stopped, then " : "", "killed after ",
                              absl::FormatDuration(moment), ", --seed=", TestSeed()));
    RunArguments arguments = Endless();
    arguments.out = folder_.File(absl::StrCat("out-", round));
    RunningJob job(arguments);
    const pid_t victim = job.WaitForRole(role, patience_ * kStart);
    ASSERT_GT(victim, 0);
    if (stopped) kill(victim, SIGSTOP);
    absl::SleepFor(moment);
    kill(victim, SIGKILL);
    const absl::Time killed = MonotonicNow();
    const std::string name = absl::StrReplaceAll(role, {{"-", " "}});
    const RunResult result =
        ExpectFailure(&job, {absl::StrCat("failed: ", name, " (pid ", victim, ")"), "signal 9"});
    if (!stopped) continue;
    EXPECT_LT(MonotonicNow() - killed, patience_ * kAtOnce) << result.DebugString();
    EXPECT_THAT(LastLine(result.output), HasSubstr("before the job had started"));
  }
}

INSTANTIATE_TEST_SUITE_P(EachRole, EarlyDeathTest,
                         ::testing::Values("scheduler", "server-0", "server-1", "worker-0",
                                           "worker-1"),
                         [](const auto& param_info) {
                           return absl::StrReplaceAll(param_info.param, {{"-", "_"}});
                         });

// The programs of a run, where one worker is a script that gives up.
TEST_F(KillTest, ARoleThatExitsBeforeItRegistersIsNamedWithItsLastWords) {
  namespace fs = std::filesystem;
  const std::string bin = folder_.File("bin");
  fs::create_directories(bin);
  fs::copy_file(ProgramPath("tandem"), bin + "/tandem");
  for (const char* role : {"tandem-scheduler", "tandem-server"}) {
    fs::create_symlink(fs::absolute(ProgramPath(role)), absl::StrCat(bin, "/", role));
  }
  WriteTextFile(
      bin + "/tandem-worker",
      absl::StrCat("#!/bin/sh\n", "case \"$*\" in *'--index 1 '*)\n",
                   "  echo 'looks for its model' >&2; echo 'no model today' >&2; exit 3;;\n",
                   "esac\n", "exec ", fs::absolute(ProgramPath("tandem-worker")).string(),
                   " \"$@\"\n"));
  fs::permissions(bin + "/tandem-worker", fs::perms::owner_all);
  const RunArguments arguments = Endless();
  std::vector<std::string> argv = {bin + "/tandem", "run", arguments.job, "--out", arguments.out};
  for (const std::string& set : arguments.set) argv.insert(argv.end(), {"--set", set});
  const RunResult result = RunProgram(argv, patience_ * kStart);
  EXPECT_EQ(result.exit_code, 1) << result.DebugString();
  EXPECT_THAT(LastLine(result.output), HasSubstr("failed: worker 1 (pid "));
  EXPECT_THAT(LastLine(result.output),
              HasSubstr("exited with status 3 before the job had started: no model today"));
  EXPECT_THAT(result.output, HasSubstr("\n  looks for its model\n")) << "the end of its log";
}

TEST_F(KillTest, DriverKilledLeavesNoChild) {
  RunningJob job(Endless());
  ASSERT_TRUE(Trains(&job));
  job.driver().Signal(SIGKILL);
  EXPECT_TRUE(job.WaitForNobody(kGone)) << job.Roles().size();
}

TEST_F(KillTest, DriverKilledWhileItStartsLeavesNoChild) {
  RunningJob job(Endless());
  ASSERT_GT(job.WaitForRole("server-0", kStart), 0);
  job.driver().Signal(SIGKILL);
  EXPECT_TRUE(job.WaitForNobody(kGone)) << job.Roles().size();
}

// A shell or a service that ignores SIGCHLD hands that on to what it starts. Such a run heard of no
// end of its processes, and had none itself.
TEST_F(KillTest, ADeathIsHeardOfWhoeverHasStartedTheRun) {
  const auto before = signal(SIGCHLD, SIG_IGN);
  RunningJob job(Endless());
  signal(SIGCHLD, before);
  ASSERT_TRUE(Trains(&job));
  const pid_t victim = job.Roles()["worker-1"];
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  ExpectFailure(&job, {absl::StrCat("failed: worker 1 (pid ", victim, ")"), "signal 9"});
}

// ---- Told to stop -----------------------------------------------------------------------------

class SignalTest : public KillTest, public ::testing::WithParamInterface<int> {};

TEST_P(SignalTest, EndsTheRunInOrder) {
  RunningJob job(Endless());
  ASSERT_TRUE(Trains(&job));
  job.driver().Signal(GetParam());
  ExpectFailure(&job, {"stopped by a signal"}, GetParam());
}

TEST_P(SignalTest, EndsARunThatHasJustBegun) {
  RunningJob job(Endless());
  ASSERT_GT(job.WaitForRole("scheduler", kStart), 0);
  job.driver().Signal(GetParam());
  ExpectFailure(&job, {"stopped by a signal"}, GetParam());
}

// Nobody has begun: there is nothing to wait for, not even for a process that does not answer.
TEST_P(SignalTest, EndsARunThatCannotStartAtOnce) {
  RunningJob job(Endless());
  const pid_t worker = job.WaitForRole("worker-1", kStart);
  ASSERT_GT(worker, 0);
  kill(worker, SIGSTOP);
  absl::SleepFor(absl::Seconds(1));  // the others register and wait for it
  const absl::Time told = MonotonicNow();
  job.driver().Signal(GetParam());
  ExpectFailure(&job, {"stopped by a signal"}, GetParam());
  EXPECT_LT(MonotonicNow() - told, patience_ * kAtOnce);
}

INSTANTIATE_TEST_SUITE_P(Signals, SignalTest, ::testing::Values(SIGINT, SIGTERM),
                         [](const auto& param_info) {
                           return param_info.param == SIGINT ? "Interrupt" : "Terminate";
                         });

// The terminal is closed, a time limit of the batch system is reached, or a worker's own limit of
// CPU time, of which the system tells the worker alone.
TEST_F(KillTest, HangupAndTimeLimitsCheckpointAndEndTheRun) {
  struct Case {
    const char* to;
    int signal;
  };
  for (const Case& c : {Case{"driver", SIGHUP}, Case{"worker-0", SIGXCPU}}) {
    SCOPED_TRACE(c.to);
    RunArguments arguments = Endless();
    arguments.checkpoint = true;
    arguments.out = folder_.File(c.to);
    RunningJob job(arguments);
    ASSERT_TRUE(Trains(&job));
    const pid_t to = c.to == std::string("driver") ? job.driver().pid() : job.Roles()[c.to];
    ASSERT_GT(to, 0);
    for (int i = 0; i < 2; ++i) {  // the system repeats them, which is no request to hurry
      kill(to, c.signal);
      if (i == 1) continue;
      EXPECT_TRUE(job.driver().WaitForOutput("making a checkpoint first", kReported));
    }
    const RunResult result = job.Finish(patience_ * kNaming);
    EXPECT_EQ(result.signal, c.signal) << result.DebugString();
    EXPECT_THAT(LastLine(result.output), HasSubstr("stopped by a signal, checkpoint at step "));
    EXPECT_THAT(LastLine(result.output), HasSubstr("--resume " + arguments.out));
    EXPECT_TRUE(job.WaitForNobody(patience_ * kGone));
    EXPECT_TRUE(std::filesystem::exists(arguments.out + "/model/LATEST")) << result.DebugString();
  }
}

// Batch systems send SIGUSR1 to all processes of a job some minutes before its end. And a run under
// nohup does not notice the end of its terminal.
TEST_F(KillTest, Usr1ToAllProcessesCheckpointsAndTrainsOn) {
  RunArguments arguments = Endless();
  arguments.checkpoint = true;
  const auto before = signal(SIGHUP, SIG_IGN);
  RunningJob job(arguments);
  signal(SIGHUP, before);
  ASSERT_GT(job.WaitForRole("scheduler", kStart), 0);
  job.driver().Signal(SIGUSR1);  // heard once all are there
  for (const auto& [name, pid] : job.Roles()) kill(pid, SIGUSR1);
  ASSERT_TRUE(Trains(&job));
  job.driver().Signal(SIGHUP);
  for (const auto& [name, pid] : job.Roles()) kill(pid, SIGUSR1);
  const absl::Time deadline = MonotonicNow() + kReported;
  const std::string saved = arguments.out + "/model/LATEST";
  while (!std::filesystem::exists(saved) && MonotonicNow() < deadline) {
    if (job.driver().WaitFor(absl::Milliseconds(10))) break;
  }
  EXPECT_TRUE(std::filesystem::exists(saved)) << job.driver().Output();
  EXPECT_THAT(job.driver().Output(), HasSubstr("SIGUSR1: writing a checkpoint"));
  EXPECT_EQ(job.Roles().size(), 5u) << job.driver().Output();
  // With a checkpoint, whoever dies, the run can go on.
  kill(job.Roles()["server-0"], SIGKILL);
  ExpectFailure(&job,
                {"server 0 (pid ", "; continue with: tandem run ", "--resume " + arguments.out});
}

TEST_F(KillTest, Usr1WritesNoCheckpointWithNoCheckpoint) {
  RunArguments arguments = Endless();
  RunningJob job(arguments);
  ASSERT_TRUE(Trains(&job));
  job.driver().Signal(SIGUSR1);
  kill(job.Roles()["scheduler"], SIGUSR1);
  EXPECT_TRUE(job.driver().WaitForOutput(
      "SIGUSR1: no checkpoint is written, because of --no-checkpoint", patience_ * kReported));
  for (int i = 0; i < 3; ++i) {  // the first reports may be of steps before the signal
    ASSERT_TRUE(job.WaitForStep(job.Step() + 1, patience_ * kReported)) << job.Step();
  }
  job.driver().Signal(SIGINT);
  ExpectFailure(&job, {"stopped by a signal"}, SIGINT);
  EXPECT_FALSE(std::filesystem::exists(arguments.out + "/model"));
}

// ---- Stopped in its tracks --------------------------------------------------------------------

class StallTest : public KillTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(StallTest, IsReportedByNameAndGoesOn) {
  RunningJob job(Endless());
  ASSERT_TRUE(Trains(&job));
  const std::string name = absl::StrReplaceAll(GetParam(), {{"-", " "}});
  const pid_t role = job.Roles()[GetParam()];
  kill(role, SIGSTOP);
  EXPECT_TRUE(
      job.driver().WaitForOutput(absl::StrCat("stall: ", name, ": no sign of life"), kReported))
      << job.driver().Output();
  kill(role, SIGCONT);
  EXPECT_TRUE(job.driver().WaitForOutput(name + " is back", kReported)) << job.driver().Output();
  EXPECT_EQ(job.Roles().size(), 5u);
  job.driver().Signal(SIGINT);
  ExpectFailure(&job, {"stopped by a signal"}, SIGINT);
}

TEST_P(StallTest, IsDeadIfItStaysSilent) {
  RunningJob job(Endless());
  ASSERT_TRUE(Trains(&job));
  kill(job.Roles()[GetParam()], SIGSTOP);
  const std::string name = absl::StrReplaceAll(GetParam(), {{"-", " "}});
  EXPECT_TRUE(job.driver().WaitFor(kReported));
  ExpectFailure(&job, {absl::StrCat("failed: ", name, ": no sign of life for")});
}

INSTANTIATE_TEST_SUITE_P(Roles, StallTest, ::testing::Values("server-0", "worker-1"),
                         [](const auto& param_info) {
                           return absl::StrReplaceAll(param_info.param, {{"-", "_"}});
                         });

// ---- Failures from within ---------------------------------------------------------------------

TEST_F(KillTest, LossThatIsNotANumber) {
  RunArguments arguments = Endless();
  arguments.set.push_back("dense.optimizer.learning_rate=1e30");
  RunningJob job(arguments);
  ASSERT_TRUE(job.driver().WaitFor(kStart));
  const RunResult result = ExpectFailure(&job, {"worker ", "the loss is ", "learning rate"});
  size_t lines = 0;
  for (const absl::string_view line : absl::StrSplit(result.output, '\n')) {
    lines += absl::StrContains(line, "the loss is ") ? 1 : 0;
  }
  EXPECT_EQ(lines, 1u) << result.output;
}

TEST_F(KillTest, FullDisk) {
  const SmallDisk disk(folder_.path(), /*kibibytes=*/256);
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small file system needs root";
  RunArguments arguments = Endless();
  arguments.checkpoint = true;
  arguments.set.back() = "train.epochs=2";
  // The wait for room is in tests/chaos/punish.py.
  arguments.set.push_back("checkpoint.wait_for_room_seconds=0");
  arguments.set.push_back("table[0].expected_rows=40");
  // Rows that do not fit: 150 ids of 512 floats and as many slots are above 300 KiB.
  arguments.set.push_back("table[0].dim=512");
  arguments.set.push_back("table[1].dim=512");
  RunningJob job(arguments);
  ASSERT_TRUE(job.driver().WaitFor(kStart));
  const RunResult result = ExpectFailure(
      &job, {"no room for a checkpoint that the job depends on: ", "No space left on device"});
  EXPECT_THAT(result.output, Not(HasSubstr("restart 1"))) << "it would train the same steps again";
}

}  // namespace
}  // namespace tandem
