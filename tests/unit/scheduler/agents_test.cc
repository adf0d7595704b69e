// Agents: what they say about their roles ends the job at once and names the role, and an agent
// that is lost is named instead of its roles.
#include <csignal>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/scheduler_core.h"
#include "tests/unit/scheduler/scheduler_test_job.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kAgent = 77, kAgentConnection = 900;
constexpr int64_t kAgentPid = 40;

absl::Time At(double seconds) { return absl::FromUnixSeconds(1000) + absl::Seconds(seconds); }

// Server 0 (incarnation 1) and worker 0 (incarnation 11) run on host b, where an agent has started
// them.
class AgentsTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(/*folder=*/""); }

  void Start(const std::string& folder) {
    scheduler::SchedulerCore::Options options;
    options.models.checkpoint_folder = folder;
    options.run = 5;
    options.launch = "slurm 77";
    options.out = "/out";
    core_ = std::make_unique<scheduler::SchedulerCore>(TestPlan(1, 1), options);
    Control agent = RegisterMessage(Register::AGENT, 1, kAgent, 0, /*hash=*/0);
    agent.mutable_register_()->set_host("b");
    agent.mutable_register_()->set_pid(kAgentPid);
    Send(0, kAgent, agent, kAgentConnection);
    welcome_ = effects_.sends.empty() ? Control() : *effects_.sends[0].control;
    Control server = RegisterMessage(Register::SERVER, 0, 1, 1);
    Control worker = RegisterMessage(Register::WORKER, 0, 11, 1);
    for (Control* node : {&server, &worker}) {
      node->mutable_register_()->set_host("b");
      node->mutable_register_()->set_driver(kAgentPid);
    }
    worker.mutable_register_()->set_pid(41);
    Send(0, 1, server);
    Send(0, 11, worker);
    Control done;
    done.mutable_command_done()->set_id(1);
    Send(0, 1, done);
    Send(0, 11, done);
  }

  void Step(double at, const scheduler::SchedulerEvent& event) {
    effects_.Clear();
    core_->Step(At(at), event, &effects_);
  }
  void Send(double at, uint64_t node, const Control& control, uint64_t connection = 0) {
    Step(at, FromNode(connection == 0 ? node : connection, node, control));
  }
  void Lose(double at, uint64_t connection) {
    scheduler::SchedulerEvent lost;
    lost.kind = scheduler::SchedulerEvent::Kind::kLost;
    lost.connection = connection;
    lost.why = absl::UnavailableError("reset");
    Step(at, lost);
  }
  void Tick(double at) { Step(at, scheduler::SchedulerEvent()); }
  static Control ExitOfWorker(int64_t pid, int signal, int code, const std::string& text) {
    Control control;
    RoleExit* const exit = control.mutable_agent_note()->mutable_exit();
    exit->set_role(EndpointId::Worker(0).Pack());
    exit->set_pid(pid);
    exit->set_signal(signal);
    exit->set_code(code);
    exit->set_text(text);
    return control;
  }
  static Control Stops(int count) {
    Control control;
    control.mutable_agent_note()->set_stops(count);
    return control;
  }
  static Control AsksForCheckpoint() {
    Control control;
    control.mutable_agent_note()->set_checkpoint(true);
    return control;
  }
  // The user asks the scheduler itself.
  static scheduler::SchedulerEvent UserCheckpoint() {
    scheduler::SchedulerEvent event;
    event.kind = scheduler::SchedulerEvent::Kind::kCheckpoint;
    event.text = "/out/model";
    return event;
  }
  std::string Failed() const { return std::string(core_->result().message()); }
  // Whether the last step has asked the worker for its last checkpoint.
  bool AskedToHold() const {
    for (const auto& send : effects_.sends) {
      if (send.control->command().kind() == Command::CHECKPOINT && send.control->command().hold()) {
        return true;
      }
    }
    return false;
  }

  std::unique_ptr<scheduler::SchedulerCore> core_;
  scheduler::SchedulerEffects effects_;
  Control welcome_;
};

TEST_F(AgentsTest, AreToldTheRunTheLaunchAndTheFolder) {
  EXPECT_EQ(welcome_.reader_welcome().run(), 5u);
  EXPECT_EQ(welcome_.reader_welcome().launch(), "slurm 77");
  EXPECT_EQ(welcome_.reader_welcome().out(), "/out");
}

TEST_F(AgentsTest, AKilledRoleIsNamedAtOnce) {
  Send(1, kAgent, ExitOfWorker(41, SIGKILL, 0, "was ended by signal 9 (Killed)"), kAgentConnection);
  EXPECT_EQ(Failed(), "worker 0: was ended by signal 9 (Killed) on host b");
}

TEST_F(AgentsTest, ARoleThatEndsWellMeansNothing) {
  Send(1, kAgent, ExitOfWorker(41, 0, 0, "exited with status 0"), kAgentConnection);
  EXPECT_EQ(Failed(), "");
}

// A process that was refused, because worker 0 was there, says nothing about worker 0.
TEST_F(AgentsTest, AnotherProcessDoesNotCount) {
  Send(1, kAgent, ExitOfWorker(42, SIGKILL, 0, "was ended by signal 9"), kAgentConnection);
  EXPECT_EQ(Failed(), "");
}

TEST_F(AgentsTest, OnlyAgentsMaySayIt) {
  Send(1, 78, RegisterMessage(Register::READER, -1, 78, 0, /*hash=*/0), 901);
  Send(1, 78, ExitOfWorker(41, SIGKILL, 0, "was ended by signal 9"), 901);
  Send(1, 78, Stops(2), 901);
  EXPECT_EQ(Failed(), "");
}

TEST_F(AgentsTest, ALostAgentIsNamedInsteadOfItsRoles) {
  Lose(1, kAgentConnection);
  Lose(1, 11);
  for (double t = 1.1; t < 6 && Failed().empty(); t += 0.1) Tick(t);
  EXPECT_THAT(Failed(), HasSubstr("host b: the agent of rank 1 (pid 40) has gone"));
}

// Another launch that has the same address must not join, since its signals would end this job.
TEST_F(AgentsTest, ASecondAgentOfARankIsRefused) {
  const auto agent = [](uint64_t incarnation, int rank) {
    Control control = RegisterMessage(Register::AGENT, rank, incarnation, 0, /*hash=*/0);
    control.mutable_register_()->set_host("c");
    return control;
  };
  Send(1, 500, agent(500, 1), 901);
  ASSERT_EQ(effects_.sends.size(), 1u);
  EXPECT_THAT(effects_.sends[0].control->failure().reason(), HasSubstr("has an agent of rank 1"));
  Send(1, 500, Stops(2), 901);
  EXPECT_EQ(Failed(), "");
  Send(1, 501, agent(501, 2), 902);
  EXPECT_TRUE(effects_.sends[0].control->has_reader_welcome());
  Lose(2, kAgentConnection);
  Send(2, 500, agent(500, 1), 903);
  EXPECT_TRUE(effects_.sends[0].control->has_reader_welcome()) << "the first one has gone";
}

// Its connection alone is no failure: its roles run on.
TEST_F(AgentsTest, ALostAgentAloneIsNoFailure) {
  Lose(1, kAgentConnection);
  for (double t = 1.1; t < 6; t += 0.1) {
    Control beat;
    beat.mutable_beat()->set_progress(static_cast<uint64_t>(t * 10));
    Send(t, 1, beat);
    Send(t, 11, beat);
    Tick(t);
  }
  EXPECT_EQ(Failed(), "");
}

TEST_F(AgentsTest, WithoutCheckpointsAStopEndsTheJob) {
  Send(1, kAgent, Stops(1), kAgentConnection);
  EXPECT_THAT(Failed(), HasSubstr("stopped by a signal on host b"));
}

// A launcher signals all agents, that of rank 0 included, which is the user of the scheduler.
TEST_F(AgentsTest, StopsOfAllAgentsAreOneRequest) {
  Start("/out/model");
  Send(1, kAgent, Stops(1), kAgentConnection);
  EXPECT_TRUE(AskedToHold());
  Send(1.1, kAgent, Stops(1), kAgentConnection);
  scheduler::SchedulerEvent user;
  user.kind = scheduler::SchedulerEvent::Kind::kEnd;
  user.text = "interrupted";
  Step(1.2, user);
  EXPECT_EQ(Failed(), "");
  Step(3, user);
  EXPECT_THAT(Failed(), HasSubstr("interrupted")) << "the second request of the user";
}

// Much later it is a request of its own.
TEST_F(AgentsTest, ALateStopOfTheUserIsASecondRequest) {
  Start("/out/model");
  Send(1, kAgent, Stops(1), kAgentConnection);
  scheduler::SchedulerEvent user;
  user.kind = scheduler::SchedulerEvent::Kind::kEnd;
  user.text = "interrupted";
  Step(7, user);
  EXPECT_THAT(Failed(), HasSubstr("interrupted"));
}

// The same is true of a signal that asks for a checkpoint, but a later one is a request of its own.
TEST_F(AgentsTest, CheckpointSignalsOfAllAgentsAreOneRequest) {
  Start("/out/model");
  const Control checkpoint = AsksForCheckpoint();
  const scheduler::SchedulerEvent user = UserCheckpoint();
  Step(1, user);
  EXPECT_FALSE(effects_.sends.empty()) << "the workers are asked";
  Send(1.1, kAgent, checkpoint, kAgentConnection);
  EXPECT_THAT(effects_.logs, IsEmpty());
  Send(3, kAgent, checkpoint, kAgentConnection);
  EXPECT_THAT(effects_.logs, ElementsAre(HasSubstr("a checkpoint is in progress")));
  Step(3.1, user);
  EXPECT_THAT(effects_.logs, IsEmpty());
  Step(5, user);
  EXPECT_THAT(effects_.logs, ElementsAre(HasSubstr("answers this request, too")));
}

TEST_F(AgentsTest, ALauncherMayTakeSecondsToSignalAllRanks) {
  Start("/out/model");
  const Control checkpoint = AsksForCheckpoint();
  const scheduler::SchedulerEvent user = UserCheckpoint();
  Send(1, kAgent, checkpoint, kAgentConnection);
  EXPECT_FALSE(effects_.sends.empty()) << "the workers are asked";
  Step(4, user);
  EXPECT_THAT(effects_.logs, IsEmpty());
  Step(4.5, user);
  EXPECT_THAT(effects_.logs, ElementsAre(HasSubstr("a checkpoint is in progress")))
      << "the second request of the user";
}

// A host that is cut off is silent, and no connection is lost for a while.
TEST_F(AgentsTest, TheHostOfASilentRoleIsNamed) {
  for (double t = 1; t < 20 && Failed().empty(); t += 0.1) {
    Control beat;
    beat.mutable_beat()->set_progress(static_cast<uint64_t>(t * 10));
    Send(t, 1, beat);
    Tick(t);
  }
  EXPECT_THAT(Failed(), HasSubstr("worker 0: no sign of life for 8"));
  EXPECT_THAT(Failed(), HasSubstr("; on host b"));
}

TEST_F(AgentsTest, ASecondStopEndsAtOnce) {
  Start("/out/model");
  Send(1, kAgent, Stops(1), kAgentConnection);
  Send(3, kAgent, Stops(2), kAgentConnection);
  EXPECT_THAT(Failed(), HasSubstr("stopped by a signal on host b"));
}

}  // namespace
}  // namespace tandem
