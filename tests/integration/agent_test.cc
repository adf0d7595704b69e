// tandem agent: agents of several ranks on this host run one job together. The job has the bits of
// `tandem run`, and however it ends, somebody is named and no process is left.
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/owned_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/kill_and_resume.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kStart = absl::Seconds(90);  // a loaded machine may be slow
constexpr absl::Duration kEnd = absl::Seconds(60);

using Variables = std::map<std::string, std::string>;

Variables PlaceOf(int rank, int ranks) {
  return {{"TANDEM_RANK", absl::StrCat(rank)},
          {"TANDEM_WORLD_SIZE", absl::StrCat(ranks)},
          {"TANDEM_LOCAL_SIZE", absl::StrCat(ranks)}};
}

std::string FileText(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error) ? ReadTextFile(path) : "";
}

// The processes of Tandem whose command line has this text, by number.
std::map<pid_t, std::string> ProcessesWith(const std::string& text) {
  std::map<pid_t, std::string> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    std::FILE* const file = std::fopen((entry.path() / "cmdline").c_str(), "rb");
    if (file == nullptr) continue;
    char bytes[8192];
    std::string line(bytes, std::fread(bytes, 1, sizeof bytes, file));
    std::fclose(file);
    for (char& c : line) c = c == '\0' ? ' ' : c;
    if (absl::StrContains(line, text) && absl::StrContains(line, "/tandem")) found[pid] = line;
  }
  return found;
}

// The agents of a launch, all on this host. `of_last`: further flags of the last one.
class Agents {
 public:
  Agents(const SmallJob& job, const std::string& name, int ranks,
         const std::vector<std::string>& flags, const std::vector<std::string>& of_last = {})
      : out_(job.File(name)) {
    fs::create_directories(job.File(name + "-agents"));
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<std::string> argv = {ProgramPath("tandem"), "agent", job.File("job.textproto"),
                                       "--out", out_};
      argv.insert(argv.end(), flags.begin(), flags.end());
      if (rank + 1 == ranks) argv.insert(argv.end(), of_last.begin(), of_last.end());
      agents_.push_back(std::make_unique<ChildProcess>(
          argv, job.File(absl::StrCat(name, "-agents/", rank, ".txt")), PlaceOf(rank, ranks)));
    }
  }

  ChildProcess& agent(int rank) { return *agents_[static_cast<size_t>(rank)]; }
  const std::string& out() const { return out_; }

  // False if one of them has not ended in time.
  bool WaitForAll() {
    const absl::Time until = MonotonicNow() + kEnd;
    bool all = true;
    for (const auto& agent : agents_) all = agent->WaitFor(until - MonotonicNow()) && all;
    return all;
  }
  std::string Output() const {
    std::string text;
    for (size_t i = 0; i < agents_.size(); ++i) {
      absl::StrAppend(&text, "---- agent ", i, " (exit ", agents_[i]->exit_code(), ")\n",
                      agents_[i]->Output());
    }
    return text;
  }

  // The number of the role's process, once it runs.
  pid_t WaitForRole(const std::string& program, int index) const {
    const absl::Time until = MonotonicNow() + kStart;
    const std::string words = absl::StrCat(program, " --index ", index, " ");
    while (MonotonicNow() < until) {
      for (const auto& [pid, line] : ProcessesWith(out_)) {
        if (absl::StrContains(line, words)) return pid;
      }
      absl::SleepFor(absl::Milliseconds(50));
    }
    return 0;
  }
  // True once the job has trained for a moment.
  bool WaitForTraining() const { return WaitForText("metrics.jsonl", "\"progress\""); }
  bool WaitForText(const std::string& file, const std::string& text) const {
    const absl::Time until = MonotonicNow() + kStart;
    while (MonotonicNow() < until) {
      if (absl::StrContains(FileText(out_ + "/" + file), text)) return true;
      absl::SleepFor(absl::Milliseconds(50));
    }
    return false;
  }
  // True once no process of the job is left, the agents included.
  bool WaitForNobody(absl::Duration limit) const {
    const absl::Time until = MonotonicNow() + limit;
    while (!ProcessesWith(out_).empty()) {
      if (MonotonicNow() >= until) return false;
      absl::SleepFor(absl::Milliseconds(50));
    }
    return true;
  }

 private:
  const std::string out_;
  std::vector<std::unique_ptr<ChildProcess>> agents_;
};

class AgentTest : public ::testing::Test {
 protected:
  static const SmallJob& TheJob() {
    static const SmallJob* const job = new SmallJob(1200, 300);
    return *job;
  }
  // Flags for a job that goes on until it is ended, or until something fails.
  static std::vector<std::string> Endless() {
    return {"--set", "train.epochs=1000000", "--set", "cluster.max_restarts=0"};
  }
};

// Four ranks have five roles, and the model is that of one command.
TEST_F(AgentTest, ALaunchTrainsToTheBitsOfTandemRun) {
  const RunResult run = RunJob(TheJob().Arguments("run", {}));
  ASSERT_TRUE(run.ok()) << run.DebugString();
  Agents agents(TheJob(), "launch", 4, {});
  ASSERT_TRUE(agents.WaitForAll()) << agents.Output();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(agents.agent(rank).exit_code(), 0) << agents.Output();
  }
  const absl::StatusOr<ModelBits> expected = ReadCheckpoint(TheJob().File("run/model"));
  const absl::StatusOr<ModelBits> actual = ReadCheckpoint(agents.out() + "/model");
  ASSERT_TRUE(expected.ok() && actual.ok()) << expected.status() << actual.status();
  EXPECT_EQ(Difference(*expected, *actual), "");
  EXPECT_THAT(agents.agent(0).Output(), HasSubstr("rank 0 of 4, from Tandem"));
  EXPECT_THAT(agents.agent(1).Output(), HasSubstr("rank 1: starts server 1, scheduler at"));
  EXPECT_TRUE(agents.WaitForNobody(kEnd));
}

// More ranks than roles: the last rank waits for the end.
TEST_F(AgentTest, ARankWithoutARoleWaitsForTheEnd) {
  Agents agents(TheJob(), "idle", 6, {"--set", "train.max_steps=5"});
  ASSERT_TRUE(agents.WaitForAll()) << agents.Output();
  EXPECT_EQ(agents.agent(5).exit_code(), 0) << agents.Output();
  EXPECT_THAT(agents.agent(5).Output(), HasSubstr("no role is left for this rank"));
  EXPECT_THAT(agents.agent(5).Output(), HasSubstr("the job has ended"));
}

// Otherwise the file of rank 0 alone would count, and the user of the other rank would not know.
TEST_F(AgentTest, ARankWithAnotherJobEndsTheLaunch) {
  Agents agents(TheJob(), "differs", 2, Endless(), {"--set", "table[0].expected_rows=77"});
  ASSERT_TRUE(agents.WaitForAll()) << agents.Output();
  const std::string line = "another job than that of rank 0: table[0].expected_rows: ";
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(agents.agent(rank).exit_code(), 1) << agents.Output();
    EXPECT_THAT(agents.agent(rank).Output(), HasSubstr(line));
  }
  EXPECT_THAT(agents.agent(1).Output(), Not(HasSubstr("; logs in ")));  // it has started no role
}

TEST_F(AgentTest, AKilledRoleOfAnotherRankIsNamed) {
  Agents agents(TheJob(), "role", 3, Endless());
  ASSERT_TRUE(agents.WaitForTraining()) << agents.Output();
  const pid_t worker = agents.WaitForRole("tandem-worker", 2);  // on rank 1
  ASSERT_GT(worker, 0) << agents.Output();
  kill(worker, SIGKILL);
  ASSERT_TRUE(agents.WaitForAll()) << agents.Output();
  EXPECT_EQ(agents.agent(0).exit_code(), 1);
  EXPECT_EQ(agents.agent(1).exit_code(), 1);
  EXPECT_EQ(agents.agent(2).exit_code(), 1);
  // The scheduler may see the closed connection before it hears of the signal.
  EXPECT_THAT(agents.agent(0).Output(), HasSubstr("failed: worker 2: "));
  EXPECT_THAT(agents.agent(1).Output(), HasSubstr("was ended by signal 9 (Killed)"));
  EXPECT_TRUE(agents.WaitForNobody(kEnd)) << agents.Output();
}

// A role of rank 1, and then the scheduler, which rank 0 starts again at another port.
TEST_F(AgentTest, AKilledRoleIsFollowedByANewAttemptOfAllRanks) {
  const std::vector<std::string> set = {"train.epochs=1000", "train.max_steps=150",
                                        "checkpoint.every_steps=20",
                                        "fault_injection.slow_workers={mean_seconds: 0.02}"};
  const RunResult whole = RunJob(TheJob().Arguments("undisturbed", set));
  ASSERT_TRUE(whole.ok()) << whole.DebugString();
  std::vector<std::string> flags;
  for (const std::string& one : set) flags.insert(flags.end(), {"--set", one});
  Agents agents(TheJob(), "again", 3, flags);
  ASSERT_TRUE(agents.WaitForText("metrics.jsonl", "\"saved\"")) << agents.Output();
  const pid_t worker = agents.WaitForRole("tandem-worker", 2);  // on rank 1
  ASSERT_GT(worker, 0) << agents.Output();
  kill(worker, SIGKILL);
  ASSERT_TRUE(agents.agent(0).WaitForOutput("all workers train again", kStart)) << agents.Output();
  for (const auto& [pid, line] : ProcessesWith(agents.out())) {
    if (absl::StrContains(line, "/tandem-scheduler ")) kill(pid, SIGKILL);
  }
  ASSERT_TRUE(agents.WaitForAll()) << agents.Output();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(agents.agent(rank).exit_code(), 0) << agents.Output();
  }
  EXPECT_THAT(agents.agent(0).Output(), HasSubstr("restart 2, from step "));
  EXPECT_THAT(agents.agent(1).Output(), HasSubstr("waits for a new attempt"));
  const absl::StatusOr<ModelBits> expected = ReadCheckpoint(TheJob().File("undisturbed/model"));
  const absl::StatusOr<ModelBits> actual = ReadCheckpoint(agents.out() + "/model");
  ASSERT_TRUE(expected.ok() && actual.ok()) << expected.status() << actual.status();
  EXPECT_EQ(Difference(*expected, *actual), "");
  EXPECT_TRUE(agents.WaitForNobody(kEnd)) << agents.Output();
}

// The first attempt cannot load the newest checkpoint. No rank has trained before. Without an older
// checkpoint all ranks end.
TEST_F(AgentTest, AllRanksResumeFromAnOlderCheckpointOrEnd) {
  const std::string out = TheJob().File("older");
  const RunResult run = RunJob(TheJob().Arguments("older", {"train.max_steps=5"}));
  ASSERT_TRUE(run.ok()) << run.DebugString();
  const RunResult more = RunJob(Resumed(TheJob().Arguments("older", {"train.max_steps=8"})));
  ASSERT_TRUE(more.ok()) << more.DebugString();
  for (const bool older : {true, false}) {
    std::string file;
    for (const auto& entry : fs::directory_iterator(out + "/model")) {
      const bool newest =
          absl::StrContains(FileText(out + "/model/LATEST"), entry.path().filename().string());
      if (entry.is_directory() && (newest || !older)) file = DamageRanges(entry.path().string());
    }
    Agents agents(TheJob(), "older", 3,
                  {"--resume-any", "--set", older ? "train.max_steps=12" : "train.max_steps=16"});
    ASSERT_TRUE(agents.WaitForAll()) << agents.Output();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(agents.agent(rank).exit_code(), older ? 0 : 1) << agents.Output();
    }
    EXPECT_THAT(agents.agent(0).Output(),
                HasSubstr(older ? "passed over: " + file : "no new attempt"));
    EXPECT_THAT(agents.agent(1).Output(), HasSubstr("waits for a new attempt"));
  }
}

TEST_F(AgentTest, AKilledAgentTakesItsRolesAlongAndItsHostIsNamed) {
  Agents agents(TheJob(), "agent", 3, Endless());
  ASSERT_TRUE(agents.WaitForTraining()) << agents.Output();
  const pid_t worker = agents.WaitForRole("tandem-worker", 2);
  ASSERT_GT(worker, 0) << agents.Output();
  agents.agent(1).Signal(SIGKILL);
  const absl::Time until = MonotonicNow() + absl::Seconds(10);  // five times the promise
  while (kill(worker, 0) == 0 && MonotonicNow() < until) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_NE(kill(worker, 0), 0) << "the roles of the agent still run";
  ASSERT_TRUE(agents.WaitForAll()) << agents.Output();
  EXPECT_THAT(agents.agent(0).Output(), HasSubstr("failed: host "));
  EXPECT_THAT(agents.agent(0).Output(), HasSubstr("the agent of rank 1"));
  EXPECT_TRUE(agents.WaitForNobody(kEnd)) << agents.Output();
}

// Launchers that lose rank 0 end the other ranks. Without such a launcher they notice it.
TEST_F(AgentTest, WithoutRankZeroTheOtherRanksEnd) {
  Agents agents(TheJob(), "first", 6, Endless());  // the last one without a role
  ASSERT_TRUE(agents.WaitForTraining()) << agents.Output();
  agents.agent(0).Signal(SIGKILL);
  ASSERT_TRUE(agents.WaitForAll()) << agents.Output();
  for (const int rank : {1, 5}) {
    EXPECT_EQ(agents.agent(rank).exit_code(), 1);
    EXPECT_THAT(agents.agent(rank).Output(), HasSubstr("failed: scheduler: "));
  }
  EXPECT_THAT(agents.agent(1).Output(), HasSubstr("; logs in "));
  EXPECT_THAT(agents.agent(5).Output(), Not(HasSubstr("; logs in ")));
  EXPECT_TRUE(agents.WaitForNobody(kEnd)) << agents.Output();
}

// No launcher ends agents that were started by hand. Without rank 0 no new attempt begins, so they
// must end by themselves.
TEST_F(AgentTest, AgentsStartedByHandEndWithoutRankZero) {
  Agents agents(TheJob(), "by-hand", 2,
                {"--set", "train.epochs=1000000", "--set", "limits.startup_timeout_seconds=600"});
  ASSERT_TRUE(agents.WaitForTraining()) << agents.Output();
  agents.agent(0).Signal(SIGKILL);
  ASSERT_TRUE(agents.WaitForAll()) << agents.Output();
  EXPECT_EQ(agents.agent(1).exit_code(), 1);
  EXPECT_THAT(agents.agent(1).Output(),
              HasSubstr("failed: scheduler: the process that started the scheduler (pid "));
  EXPECT_THAT(agents.agent(1).Output(), Not(HasSubstr("waits for a new attempt")));
  EXPECT_TRUE(agents.WaitForNobody(kEnd)) << agents.Output();
}

// Any agent may get the signals.
TEST_F(AgentTest, SignalsToOneAgentMakeACheckpointAndEndTheJob) {
  Agents agents(TheJob(), "signals", 3, Endless());
  ASSERT_TRUE(agents.WaitForTraining()) << agents.Output();
  agents.agent(1).Signal(SIGUSR1);
  EXPECT_TRUE(agents.WaitForText("metrics.jsonl", "\"saved\"")) << agents.Output();
  agents.agent(2).Signal(SIGTERM);
  ASSERT_TRUE(agents.WaitForAll()) << agents.Output();
  EXPECT_EQ(agents.agent(2).term_signal(), SIGTERM) << agents.Output();
  EXPECT_THAT(agents.agent(0).Output(), HasSubstr("stopped by a signal on host "));
  EXPECT_THAT(agents.agent(0).Output(), HasSubstr(", checkpoint at step"));
  EXPECT_TRUE(agents.WaitForNobody(kEnd)) << agents.Output();
}

// Launchers signal all of their ranks: that is one request.
TEST_F(AgentTest, SignalsToAllAgentsAreOneRequest) {
  Agents agents(TheJob(), "all", 3, Endless());
  ASSERT_TRUE(agents.WaitForTraining()) << agents.Output();
  for (int rank = 2; rank >= 0; --rank) agents.agent(rank).Signal(SIGTERM);
  ASSERT_TRUE(agents.WaitForAll()) << agents.Output();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(agents.agent(rank).term_signal(), SIGTERM) << agents.Output();
  }
  EXPECT_THAT(agents.agent(0).Output(), HasSubstr("stopped by a signal, checkpoint at step"));
  EXPECT_TRUE(agents.WaitForNobody(kEnd)) << agents.Output();
}

// A service of systemd with Type=notify (configs/launch/tandem@.service), started twice.
TEST_F(AgentTest, AServiceIsReadyWhenItTrainsAndResumesWhenItStartsAgain) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = TheJob().File("notify");
  ASSERT_LT(path.size(), sizeof address.sun_path);
  path.copy(address.sun_path, path.size());
  const OwnedFd manager(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(manager.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const timeval limit = {.tv_sec = absl::ToInt64Seconds(kStart), .tv_usec = 0};
  setsockopt(manager.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  const auto next = [&manager] {
    char text[100];
    const ssize_t size = recv(manager.get(), text, sizeof text, 0);
    return std::string(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  };
  for (const bool resumes : {false, true}) {
    ChildProcess agent({ProgramPath("tandem"), "agent", TheJob().File("job.textproto"), "--out",
                        TheJob().File("service"), "--resume-any", "--set", "train.epochs=1000000"},
                       TheJob().File("service.txt"), {{"NOTIFY_SOCKET", path}});
    EXPECT_EQ(next(), "READY=1") << agent.Output();
    EXPECT_EQ(absl::StrContains(agent.Output(), "resumes at step"), resumes) << agent.Output();
    agent.Signal(SIGTERM);
    EXPECT_EQ(next(), "STOPPING=1") << agent.Output();
    ASSERT_TRUE(agent.WaitFor(kEnd)) << agent.Output();
    EXPECT_EQ(agent.term_signal(), SIGTERM) << agent.Output();
    EXPECT_THAT(agent.Output(), HasSubstr("stopped by a signal, checkpoint at step"));
  }
}

// ---- Open MPI -----------------------------------------------------------------------------------

class OpenMpiTest : public AgentTest {
 protected:
  void SetUp() override {
    std::error_code error;
    if (!fs::exists(kMpirun, error)) GTEST_SKIP() << kMpirun << " is not installed";
  }
  static std::vector<std::string> Mpirun(int ranks) {
    return {kMpirun, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
            "-np",   absl::StrCat(ranks)};
  }

  static constexpr char kMpirun[] = "/usr/bin/mpirun.openmpi";
};

// Without --out the ranks find the scheduler by the launch, and it tells them the folder.
TEST_F(OpenMpiTest, TrainsToTheBitsOfTandemRun) {
  const RunResult run = RunJob(TheJob().Arguments("mpi-run", {}));
  ASSERT_TRUE(run.ok()) << run.DebugString();
  std::vector<std::string> argv = Mpirun(3);
  argv.insert(argv.end(), {"--wdir", TheJob().File(""), ProgramPath("tandem"), "agent",
                           TheJob().File("job.textproto"), "--set", "name=mpi"});
  const RunResult launch = RunProgram(argv);
  ASSERT_TRUE(launch.ok()) << launch.DebugString();
  EXPECT_THAT(launch.output, HasSubstr("rank 2 of 3, from Open MPI"));
  std::string model;
  for (const auto& entry : fs::directory_iterator(TheJob().File("out"))) {
    model = (entry.path() / "model").string();
  }
  const absl::StatusOr<ModelBits> expected = ReadCheckpoint(TheJob().File("mpi-run/model"));
  const absl::StatusOr<ModelBits> actual = ReadCheckpoint(model);
  ASSERT_TRUE(expected.ok() && actual.ok()) << expected.status() << actual.status();
  EXPECT_EQ(Difference(*expected, *actual), "");
}

// mpirun itself is killed: its ranks lose their parent, make a checkpoint and end.
TEST_F(OpenMpiTest, AKilledMpirunLeavesNothing) {
  std::vector<std::string> argv = Mpirun(2);
  argv.insert(argv.end(), {ProgramPath("tandem"), "agent", TheJob().File("job.textproto"), "--out",
                           TheJob().File("orphans"), "--set", "train.epochs=1000000"});
  ChildProcess mpirun(argv, TheJob().File("mpirun.txt"), {});
  Agents nobody(TheJob(), "orphans", 0, {});
  ASSERT_TRUE(nobody.WaitForTraining()) << mpirun.Output();
  mpirun.Signal(SIGKILL);
  EXPECT_TRUE(nobody.WaitForNobody(kEnd));
}

// The example that docs/LAUNCH.md shows.
TEST_F(OpenMpiTest, FourCollectives) {
  if (PythonInterpreter().empty()) GTEST_SKIP() << "no Python with PyTorch and numpy";
  std::vector<std::string> argv = Mpirun(4);
  argv.insert(
      argv.end(),
      {"-x",
       absl::StrCat(
           "PYTHONPATH=", fs::path(ProgramPath("tandem")).parent_path().parent_path().string(),
           "/python"),
       "-x", "OMP_NUM_THREADS=1", PythonInterpreter(), SourcePath("examples/four_collectives.py")});
  const RunResult run = RunProgram(argv);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  for (int rank = 0; rank < 4; ++rank) {
    for (const std::string& line :
         {std::string("AllReduce [6.0]"), std::string("AllGather [0.0, 1.0, 2.0, 3.0]"),
          absl::StrCat("ReduceScatter [", 4 * rank, ".0]"), std::string("Broadcast [0.0]")}) {
      EXPECT_THAT(run.output, HasSubstr(absl::StrCat("rank ", rank, ": ", line)));
    }
  }
}

// ---- refusals -----------------------------------------------------------------------------------

class RefusedAgentTest : public AgentTest {
 protected:
  // Runs one agent that must be refused with one line. Returns its output.
  static std::string Refused(const std::vector<std::string>& flags, const Variables& variables) {
    std::vector<std::string> argv = {ProgramPath("tandem"), "agent",
                                     TheJob().File("job.textproto")};
    argv.insert(argv.end(), flags.begin(), flags.end());
    ChildProcess agent(argv, TheJob().File("refused.txt"), variables);
    EXPECT_TRUE(agent.WaitFor(kEnd)) << agent.Output();
    EXPECT_EQ(agent.exit_code(), 2) << agent.Output();
    return agent.Output();
  }
};

TEST_F(RefusedAgentTest, ARankThatIsNone) {
  EXPECT_THAT(Refused({}, {{"TANDEM_RANK", "3"}, {"TANDEM_WORLD_SIZE", "3"}}),
              HasSubstr("TANDEM_RANK=3: expected a rank below TANDEM_WORLD_SIZE=3"));
  EXPECT_THAT(Refused({}, {{"TANDEM_RANK", "x"}, {"TANDEM_WORLD_SIZE", "3"}}),
              HasSubstr("TANDEM_RANK=x: expected a number, 0 or more"));
}

TEST_F(RefusedAgentTest, ASchedulerThatNobodyCouldFind) {
  EXPECT_THAT(Refused({}, PlaceOf(0, 2)), HasSubstr("the other ranks cannot find the scheduler"));
}

TEST_F(RefusedAgentTest, APortThatIsTaken) {
  Agents agents(TheJob(), "taken", 1, Endless());
  ASSERT_TRUE(agents.WaitForTraining()) << agents.Output();
  const std::string address(absl::StripAsciiWhitespace(ReadTextFile(agents.out() + "/address")));
  EXPECT_THAT(Refused({"--scheduler", address}, PlaceOf(0, 2)),
              HasSubstr("Address already in use; hint: another port"));
  agents.agent(0).Signal(SIGKILL);
  EXPECT_TRUE(agents.WaitForNobody(kEnd));
}

}  // namespace
}  // namespace tandem
