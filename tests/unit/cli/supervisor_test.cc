// Tests which cause Supervisor reports, and when it ends a job, for exits of roles, messages of the
// scheduler and signals.
#include "cli/launch/supervisor.h"

#include <csignal>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using cli::Children;
using cli::Supervisor;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const absl::Time kNow = absl::FromUnixSeconds(1000);

Children::Exit Killed(const std::string& name) {
  Children::Exit exit;
  exit.name = name;
  exit.pid = 7;
  exit.signal = SIGKILL;
  return exit;
}

Children::Exit Exited(const std::string& name, int code, const std::string& line = "") {
  Children::Exit exit;
  exit.name = name;
  exit.pid = 8;
  exit.code = code;
  if (!line.empty()) exit.lines = {line};
  return exit;
}

class SupervisorTest : public ::testing::Test {
 protected:
  Supervisor supervisor_{{/*checkpoints=*/true}};
};

TEST_F(SupervisorTest, AKilledRoleIsTheCauseEvenIfTheSchedulerNamesItsVictim) {
  supervisor_.OnStarted();
  supervisor_.OnExits(kNow, {Exited("worker 0", 1, "no peer"), Killed("worker 1")});
  EXPECT_FALSE(supervisor_.over(kNow)) << "the scheduler has a moment to name the cause";
  supervisor_.OnFailed(kNow, "worker 0", "no answer");
  EXPECT_THAT(supervisor_.failure(), StartsWith("worker 1 (pid 7) was ended by signal 9"));
  EXPECT_THAT(supervisor_.failure(), HasSubstr("the scheduler saw: worker 0: no answer"));
  EXPECT_TRUE(supervisor_.over(kNow + absl::Seconds(5)));
}

TEST_F(SupervisorTest, ThatIsSoAlsoIfTheSchedulerSpeaksFirst) {
  supervisor_.OnStarted();
  supervisor_.OnFailed(kNow, "worker 1", "connection lost (reset)");
  supervisor_.OnExits(kNow, {Killed("worker 1")});
  EXPECT_THAT(supervisor_.failure(), StartsWith("worker 1 (pid 7) was ended by signal 9"));
  EXPECT_EQ(supervisor_.FailedRole(), "worker 1");
}

// The scheduler has heard of the signal from the agent of the role.
TEST_F(SupervisorTest, WhatBothKnowIsSaidOnce) {
  supervisor_.OnStarted();
  supervisor_.OnExits(kNow, {Killed("worker 1")});
  supervisor_.OnFailed(kNow, "worker 1", "was ended by signal 9 (Killed) on host b");
  EXPECT_EQ(supervisor_.failure(), "worker 1: was ended by signal 9 (Killed) on host b");
}

class ReplacingTest : public ::testing::Test {
 protected:
  ReplacingTest()
      : supervisor_([] {
          Supervisor::Options options;
          options.checkpoints = options.restarts = options.replaces = true;
          return options;
        }()) {
    supervisor_.OnStarted();
  }
  Supervisor supervisor_;
};

TEST_F(ReplacingTest, TheSchedulerMayGoOnWithoutADeadWorker) {
  supervisor_.OnExits(kNow, {Killed("worker 1")});
  EXPECT_FALSE(supervisor_.over(kNow)) << "the scheduler decides";
  supervisor_.OnVacant("worker 1");
  supervisor_.OnNewProcess("worker 1");
  EXPECT_FALSE(supervisor_.over(kNow + absl::Hours(1)));
  supervisor_.OnExits(kNow, {Killed("worker 1")});
  EXPECT_FALSE(supervisor_.over(kNow)) << "the new process has died, too";
  supervisor_.OnFailed(kNow, "worker 1", "was ended by signal 9 (Killed)");
  EXPECT_TRUE(supervisor_.over(kNow + absl::Seconds(5)));
  EXPECT_THAT(supervisor_.failure(), HasSubstr("signal 9"));
}

// Its end may be reported after the scheduler has said that its place is vacant. A process that was
// only silent is ended when another one takes its place.
TEST_F(ReplacingTest, TheEndOfTheOldProcessIsNoFailure) {
  supervisor_.OnVacant("worker 1");
  supervisor_.OnExits(kNow, {Killed("worker 1")});
  EXPECT_FALSE(supervisor_.over(kNow + absl::Hours(1)));
  supervisor_.OnNewProcess("worker 1");
  supervisor_.OnExits(kNow, {Killed("worker 1")});
  EXPECT_TRUE(supervisor_.over(kNow + absl::Hours(1)));
}

TEST_F(ReplacingTest, TheEndOfAnotherRoleIsNotForgotten) {
  supervisor_.OnExits(kNow, {Exited("worker 1", 1), Exited("server 0", 1)});
  supervisor_.OnVacant("worker 1");
  EXPECT_TRUE(supervisor_.over(kNow + absl::Hours(1)));
}

TEST_F(ReplacingTest, ADeadServerEndsTheAttemptAtOnce) {
  supervisor_.OnExits(kNow, {Killed("server 1")});
  EXPECT_TRUE(supervisor_.over(kNow));
}

TEST_F(SupervisorTest, TheSchedulerKnowsBestWhyARoleExited) {
  supervisor_.OnStarted();
  supervisor_.OnFailed(kNow, "worker 1", "loss is NaN at step 7");
  supervisor_.OnExits(kNow, {Exited("worker 1", 1, "whatever")});
  supervisor_.Conclude();
  EXPECT_EQ(supervisor_.failure(), "worker 1: loss is NaN at step 7");
}

TEST_F(SupervisorTest, BeforeTheStartTheLastLineOfTheRoleIsTheCauseAtOnce) {
  supervisor_.OnExits(kNow, {Exited("server 0", 2, "tandem-server: no such file")});
  EXPECT_TRUE(supervisor_.over(kNow));
  supervisor_.Conclude();
  EXPECT_EQ(supervisor_.failure(),
            "server 0 (pid 8) exited with status 2 before the job had started: "
            "tandem-server: no such file");
}

Supervisor::Options Scripts() {
  Supervisor::Options options;
  options.scripts = true;
  return options;
}

TEST_F(SupervisorTest, ScriptsGoOnAfterTheJobAndTheirFailureCounts) {
  Supervisor supervisor(Scripts());
  supervisor.OnStarted();
  supervisor.OnExits(kNow, {Exited("worker 1", 1, "no room for the export")});
  supervisor.OnFinished(kNow + absl::Seconds(1));
  EXPECT_FALSE(supervisor.over(kNow + absl::Hours(1))) << "worker 0 still works";
  supervisor.OnExits(kNow, {Killed("worker 0")});
  supervisor.OnWorkersEnded(kNow);
  EXPECT_FALSE(supervisor.over(kNow + absl::Seconds(1))) << "the scheduler takes a moment";
  EXPECT_TRUE(supervisor.over(kNow + absl::Minutes(1)));
  supervisor.Conclude();
  EXPECT_EQ(supervisor.failure(), "");
  EXPECT_EQ(supervisor.script_failure(),
            "worker 1 (pid 8) exited with status 1 after the end of the job: "
            "no room for the export");
}

TEST_F(SupervisorTest, AfterASignalScriptsHaveSeconds) {
  Supervisor::Options options = Scripts();
  options.checkpoints = true;
  Supervisor supervisor(options);
  supervisor.OnStarted();
  EXPECT_EQ(supervisor.OnStop(kNow), Supervisor::Stop::kCheckpoint);
  supervisor.OnFinished(kNow);
  EXPECT_FALSE(supervisor.over(kNow + absl::Seconds(1)));
  EXPECT_TRUE(supervisor.over(kNow + absl::Minutes(1)));
}

TEST_F(SupervisorTest, ASignalEndsScriptsAfterTheJob) {
  Supervisor supervisor(Scripts());
  supervisor.OnStarted();
  supervisor.OnFinished(kNow);
  EXPECT_EQ(supervisor.OnStop(kNow), Supervisor::Stop::kIgnore);
  EXPECT_TRUE(supervisor.over(kNow));
  EXPECT_TRUE(supervisor.stopping());
  EXPECT_EQ(supervisor.failure() + supervisor.script_failure(), "");
}

TEST_F(SupervisorTest, RolesMayLeaveAtTheEnd) {
  supervisor_.OnStarted();
  supervisor_.OnExits(kNow, {Exited("worker 0", 0)});
  EXPECT_FALSE(supervisor_.over(kNow + absl::Hours(1)));
  supervisor_.OnFinished(kNow);
  supervisor_.OnExits(kNow, {Exited("worker 1", 1)});
  supervisor_.Conclude();
  EXPECT_EQ(supervisor_.failure(), "");
  EXPECT_TRUE(supervisor_.over(kNow + absl::Minutes(1))) << "a role that stays is ended";
}

TEST_F(SupervisorTest, AStopMakesACheckpointAndASecondOneEndsAtOnce) {
  supervisor_.OnStarted();
  EXPECT_EQ(supervisor_.OnStop(kNow), Supervisor::Stop::kCheckpoint);
  EXPECT_FALSE(supervisor_.over(kNow + absl::Hours(1))) << "a checkpoint may take long";
  EXPECT_EQ(supervisor_.OnStop(kNow), Supervisor::Stop::kEnd);
  EXPECT_FALSE(supervisor_.over(kNow));
  EXPECT_TRUE(supervisor_.over(kNow + absl::Minutes(1)));
  EXPECT_EQ(supervisor_.failure(), "stopped by a signal");
}

TEST_F(SupervisorTest, WithoutCheckpointsAStopEndsAndMoreAreIgnored) {
  Supervisor supervisor({/*checkpoints=*/false});
  supervisor.OnStarted();
  EXPECT_EQ(supervisor.OnStop(kNow), Supervisor::Stop::kEnd);
  EXPECT_EQ(supervisor.OnStop(kNow), Supervisor::Stop::kIgnore);
}

TEST_F(SupervisorTest, AStopBeforeTheStartDoesNotWait) {
  EXPECT_EQ(supervisor_.OnStop(kNow), Supervisor::Stop::kEnd);
  EXPECT_TRUE(supervisor_.over(kNow));
}

}  // namespace
}  // namespace tandem
