// Programs without the token of a job, or with another one, try all its ports while it starts and
// while it trains (stranger.py). They get nothing and change nothing. Nor does another user of the
// host, who prepares folders and links, and listens at ports of the job (squatter.py).
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/launch_environment.h"
#include "proto/collectives.pb.h"
#include "proto/frame.h"
#include "proto/wire.pb.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kStart = absl::Seconds(90);

std::string Hex(const Buffer& part) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(part.data()), part.size()});
}

nlohmann::json PartsOf(const Frame& frame) {
  nlohmann::json parts = nlohmann::json::array();
  for (int i = 0; i < frame.parts; ++i) parts.push_back(Hex(frame.part[i]));
  return parts;
}

Buffer Bytes(BufferSource& source, size_t size, uint8_t value) {
  Buffer bytes = source.Alloc(size);
  std::fill_n(bytes.mutable_data(), size, value);
  return bytes;
}

// Messages that a member of the job would send: registrations, a pull, a push that sets rows, an
// evaluation, a goodbye, and a join of the workers' group.
std::string Messages() {
  HeapBufferSource source;
  nlohmann::json frames = nlohmann::json::array();
  FrameHeader header;
  header.sender = EndpointId::Worker(1);
  header.incarnation = 4711;
  header.view = 1;
  for (const Register::Role role : {Register::READER, Register::WORKER, Register::SERVER}) {
    Control control;
    control.mutable_register_()->set_role(role);
    control.mutable_register_()->set_index(role == Register::READER ? -1 : 0);
    control.mutable_register_()->set_incarnation(4711);
    control.mutable_register_()->add_endpoint("tcp://127.0.0.1:1");
    frames.push_back(PartsOf(EncodeControlFrame(source, header, control)));
  }
  Control failure;
  failure.mutable_failure()->set_reason("a stranger says so");
  frames.push_back(PartsOf(EncodeControlFrame(source, header, failure)));
  SliceEntry entry;
  entry.rows = 1;
  header.kind = FrameKind::kPull;
  header.flags = kFlagEvaluate;
  frames.push_back(
      PartsOf(EncodeDataFrame(source, header, {entry}, Bytes(source, 8, 1), Buffer())));
  header.kind = FrameKind::kPush;
  header.flags = 0;
  header.samples = 1;
  entry.row_floats = 4;
  frames.push_back(PartsOf(
      EncodeDataFrame(source, header, {entry}, Bytes(source, 8, 1), Bytes(source, 16, 0x3f))));
  header = FrameHeader();
  header.kind = FrameKind::kGoodbye;
  frames.push_back(PartsOf(EncodeDataFrame(source, header, {}, Buffer(), Buffer())));
  rendezvous::ToCoordinator join;
  join.mutable_join()->set_version(1);
  join.mutable_join()->set_group("workers");
  join.mutable_join()->set_rank(0);
  join.mutable_join()->set_ranks(2);
  join.mutable_join()->set_deadline_ms(60'000);
  const nlohmann::json messages = {{"frames", frames},
                                   {"join", absl::BytesToHexString(join.SerializeAsString())}};
  return messages.dump();
}

// A job whose roles are started by hand, and the strangers.
class StrangersTest : public ::testing::Test {
 protected:
  using Environment = std::map<std::string, std::string>;

  void SetUp() override {
    WriteTextFile(folder_.File("messages.json"), Messages());
    if (!RunProgram({"/usr/bin/python3", "-c", "import zmq"}).ok()) {
      GTEST_SKIP() << "no python3 with zmq here";
    }
  }
  static std::vector<std::string> Settings(const std::string& encrypt) {
    std::vector<std::string> set = {"data.train=" + SourcePath("configs/data/example_train.csv"),
                                    "data.test=" + SourcePath("configs/data/example_test.csv"),
                                    "cluster.transport=ZMQ",
                                    "reproducible=true",
                                    "dense.algorithm=DIRECT",
                                    "train.epochs=6",
                                    "limits.startup_timeout_seconds=600"};
    set.push_back("security.encrypt=" + encrypt);
    set.push_back(encrypt == "ALL" ? "dense.link=ZMQ" : "dense.link=TCP");
    return set;
  }
  std::unique_ptr<ChildProcess> Start(const std::string& name, const std::string& encrypt,
                                      const std::vector<std::string>& flags,
                                      const Environment& environment) {
    std::vector<std::string> argv = {ProgramPath("tandem-" + name.substr(0, name.find('-'))),
                                     "--job", SourcePath("configs/delimited.textproto")};
    for (const std::string& set : Settings(encrypt)) argv.insert(argv.end(), {"--set", set});
    argv.insert(argv.end(), flags.begin(), flags.end());
    return std::make_unique<ChildProcess>(argv, folder_.File(name + ".txt"), environment);
  }
  // Where the scheduler says that it is.
  static std::string AddressOf(ChildProcess* scheduler) {
    if (!scheduler->WaitForOutput("}\n", kStart)) return "";
    const std::string output = scheduler->Output();
    const auto first = nlohmann::json::parse(output.substr(0, output.find('\n')), nullptr, false);
    return first.is_object() ? first.value("address", "") : "";
  }
  // `numbers`: how many numbers of libzmq's connections it takes.
  std::unique_ptr<ChildProcess> StartStranger(const std::vector<ChildProcess*>& victims,
                                              int numbers) {
    std::vector<std::string> argv = {
        "/usr/bin/python3", SourcePath("tests/integration/stranger.py"),
        folder_.File("messages.json"), folder_.File("stop"), absl::StrCat(numbers)};
    for (const ChildProcess* victim : victims) argv.push_back(absl::StrCat(victim->pid()));
    return std::make_unique<ChildProcess>(argv, folder_.File("stranger.txt"), Environment());
  }
  // What the stranger found, when it has been told to stop.
  nlohmann::json ReportOf(ChildProcess* stranger) {
    WriteTextFile(folder_.File("stop"), "");
    EXPECT_TRUE(stranger->WaitFor(kStart));
    const std::string output = stranger->Output();
    const auto report =
        nlohmann::json::parse(output.substr(std::min(output.find('{'), output.size())), nullptr,
                              /*allow_exceptions=*/false);
    EXPECT_TRUE(report.is_object()) << output;
    return report.is_object() ? report : nlohmann::json::object();
  }
  void TryJob(const std::string& encrypt);

  TemporaryFolder folder_;
};

void StrangersTest::TryJob(const std::string& encrypt) {
  RunArguments undisturbed;
  undisturbed.job = SourcePath("configs/delimited.textproto");
  undisturbed.set = Settings(encrypt);
  undisturbed.out = folder_.File("undisturbed");
  const RunResult expected = RunJob(undisturbed);
  ASSERT_TRUE(expected.ok()) << expected.DebugString();

  const Environment token = {{"TANDEM_TOKEN", std::string(64, '7')}};
  const std::string out = folder_.File("disturbed");
  const auto scheduler = Start("scheduler", encrypt, {"--out", out}, token);
  const std::string address = AddressOf(scheduler.get());
  ASSERT_NE(address, "") << scheduler->Output();
  const auto member = [&](const std::string& name, int index, const Environment& environment) {
    return Start(name, encrypt, {"--scheduler", address, "--index", absl::StrCat(index)},
                 environment);
  };
  std::vector<std::unique_ptr<ChildProcess>> nodes;
  nodes.push_back(member("server-0", 0, token));
  nodes.push_back(member("server-1", 1, token));
  nodes.push_back(member("worker-0", 0, token));
  for (const auto& node : nodes) ASSERT_TRUE(node->WaitForOutput("asks the scheduler", kStart));
  // The job waits for its second worker for as long as the stranger needs.
  const auto stranger =
      StartStranger({scheduler.get(), nodes[0].get(), nodes[1].get(), nodes[2].get()}, 4);
  ASSERT_TRUE(stranger->WaitForOutput("tried every port", kStart)) << stranger->Output();
  const auto other = member("worker-other", 1, {{"TANDEM_TOKEN", std::string(64, '8')}});
  // A worker of a job that encrypts all does not even start without a token.
  const auto none = Start("worker-none", "CONTROL", {"--scheduler", address, "--index", "1"}, {});
  for (const auto& [worker, why] :
       {std::pair(other.get(), " does not accept the token of this process; "),
        std::pair(none.get(), " asks for a token; ")}) {
    EXPECT_TRUE(worker->WaitFor(kStart));
    EXPECT_EQ(worker->exit_code(), 1);
    const std::string begin = "tandem-worker: scheduler: " + address;
    EXPECT_THAT(worker->Output(),  // the scheduler may close the connection before it has said why
                AnyOf(HasSubstr(begin + why + "hint"),
                      HasSubstr(begin + " closes each connection, so it asks for a token or ")));
  }
  nodes.push_back(member("worker-1", 1, token));
  EXPECT_TRUE(scheduler->WaitFor(kRunLimit)) << scheduler->Output();
  EXPECT_EQ(scheduler->exit_code(), 0) << scheduler->Output();
  for (const auto& node : nodes) {
    EXPECT_TRUE(node->WaitFor(kStart)) << node->Output();
    EXPECT_EQ(node->exit_code(), 0) << node->Output();
  }
  const nlohmann::json report = ReportOf(stranger.get());
  EXPECT_EQ(report.value("replies", nlohmann::json()), nlohmann::json::array());
  EXPECT_GE(report.value("ports", 0), 5) << report;
  EXPECT_GE(report.value("rounds", 0), 1) << report;
  EXPECT_EQ(report.value("silent", 0), 1000) << report;
  EXPECT_EQ(report.value("let_in", -1), 0) << report;
  // It reached the doors: the coordinator of the workers always asks for a proof.
  EXPECT_GE(report.value("challenges", 0), 1) << report;
  EXPECT_THAT(scheduler->Output(), HasSubstr("that were refused: "));

  const auto want = ReadCheckpoint(undisturbed.out + "/model");
  const auto have = ReadCheckpoint(out + "/model");
  ASSERT_TRUE(want.ok()) << want.status();
  ASSERT_TRUE(have.ok()) << have.status();
  EXPECT_EQ(Difference(*want, *have), "");
}

TEST_F(StrangersTest, GetNothingAndChangeNothing) { TryJob("CONTROL"); }

TEST_F(StrangersTest, GetNothingFromAJobThatEncryptsAll) { TryJob("ALL"); }

// The stranger of these tests can do harm.
TEST_F(StrangersTest, AreHeardWithoutAToken) {
  const auto scheduler = Start("scheduler", "NONE", {}, {});
  ASSERT_NE(AddressOf(scheduler.get()), "") << scheduler->Output();
  const auto stranger = StartStranger({scheduler.get()}, 0);
  ASSERT_TRUE(stranger->WaitForOutput("tried every port", kStart)) << stranger->Output();
  const nlohmann::json report = ReportOf(stranger.get());
  EXPECT_FALSE(report.value("replies", nlohmann::json::array()).empty()) << report;
  EXPECT_GE(report.value("let_in", 0), 1) << report;
}

// ---- another user of this host ----

// A program of the user `nobody`, who prepares folders and links, and listens at ports.
class OtherUserTest : public ::testing::Test {
 protected:
  static constexpr uid_t kNobody = 65534;

  static void SetUpTestSuite() {
    if (geteuid() != 0) return;
    job_ = std::make_unique<SmallJob>(1200, 300);
    const RunResult run = RunJob(job_->Arguments("undisturbed", Slow()));
    ASSERT_TRUE(run.ok()) << run.DebugString();
  }
  static void TearDownTestSuite() { job_.reset(); }

  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can act as another user of the host";
    ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
    ASSERT_EQ(mkdir(shared_.c_str(), 0777), 0);
    ASSERT_EQ(chmod(shared_.c_str(), 01777), 0);  // as /tmp
    ASSERT_EQ(mkdir(theirs_.c_str(), 0755), 0);
    ASSERT_EQ(chown(theirs_.c_str(), kNobody, kNobody), 0);
    if (!RunProgram(AsNobody({ProgramPath("tandem"), "--version"})).ok()) {
      GTEST_SKIP() << "the user nobody cannot run " << ProgramPath("tandem");
    }
  }

  // Steps take their time, so that a run is not through before it is disturbed.
  static Settings Slow() {
    return {"train.max_steps=60",        "train.epochs=1000",
            "checkpoint.every_steps=10", "cluster.max_restarts=3",
            "cluster.transport=ZMQ",     "fault_injection.slow_workers={mean_seconds: 0.02}"};
  }
  static std::vector<std::string> AsNobody(std::vector<std::string> argv) {
    argv.insert(argv.begin(),
                {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"});
    return argv;
  }
  static std::vector<std::string> Squatter(std::vector<std::string> words) {
    words.insert(words.begin(), {"/usr/bin/python3", SourcePath("tests/integration/squatter.py")});
    return words;
  }
  // Nobody does this in a shell.
  static void Prepare(const std::string& line) {
    const RunResult done = RunProgram(AsNobody({"/bin/sh", "-c", line}));
    ASSERT_TRUE(done.ok()) << done.output;
  }
  // A rank of a launch of two, in the folder `theirs`' neighbour `name`.
  std::unique_ptr<ChildProcess> Agent(int rank, const std::string& out,
                                      const std::vector<std::string>& set,
                                      std::map<std::string, std::string> environment) {
    std::vector<std::string> argv = {"/bin/sh",
                                     "-c",
                                     "cd \"$0\" && exec \"$@\"",
                                     folder_.path(),
                                     ProgramPath("tandem"),
                                     "agent",
                                     job_->File("job.textproto")};
    if (!out.empty()) argv.insert(argv.end(), {"--out", out});
    for (const std::string& one : set) argv.insert(argv.end(), {"--set", one});
    environment.insert({{"TANDEM_RANK", absl::StrCat(rank)},
                        {"TANDEM_WORLD_SIZE", "2"},
                        {"TANDEM_LOCAL_SIZE", "2"},
                        {"TANDEM_LAUNCH_ID", launch_}});
    return std::make_unique<ChildProcess>(
        argv, folder_.File(absl::StrCat("agent-", count_++, ".txt")), environment);
  }
  static void ExpectSameBits(const std::string& out) {
    const auto want = ReadCheckpoint(job_->File("undisturbed/model"));
    const auto have = ReadCheckpoint(out + "/model");
    ASSERT_TRUE(want.ok() && have.ok()) << want.status() << have.status();
    EXPECT_EQ(Difference(*want, *have), "");
  }

  static std::unique_ptr<SmallJob> job_;
  const TemporaryFolder folder_;
  const std::string shared_ = folder_.File("shared"), theirs_ = folder_.File("theirs");
  const std::string launch_ = absl::StrCat("strangers ", getpid());
  const int port_ = node::PortOfLaunch(launch_);
  int count_ = 0;
};

std::unique_ptr<SmallJob> OtherUserTest::job_;

// A rank starts before rank 0. A scheduler of another user listens at the port of the launch, and
// its job names a file that only this user can read.
TEST_F(OtherUserTest, ARankJoinsNoSchedulerOfAnotherUser) {
  const std::string evil = theirs_ + "/evil.textproto";
  WriteTextFile(evil, ReadTextFile(job_->File("job.textproto")));
  ChildProcess scheduler(
      AsNobody({ProgramPath("tandem-scheduler"), "--job", evil, "--launch", launch_, "--set",
                "security.encrypt=NONE", "--set", "limits.startup_timeout_seconds=60"}),
      folder_.File("scheduler.txt"), {});
  ASSERT_TRUE(scheduler.WaitForOutput("}\n", kStart)) << scheduler.Output();
  const std::string output = scheduler.Output();
  const std::string address =
      nlohmann::json::parse(output.substr(0, output.find('\n'))).value("address", "");
  const std::string their_port = address.substr(address.rfind(':') + 1);
  ChildProcess door(AsNobody(Squatter({"forward", absl::StrCat(port_), their_port})),
                    folder_.File("door.txt"), {});
  ASSERT_TRUE(door.WaitForOutput("listens", kStart)) << door.Output();

  const std::string out = folder_.File("out");
  const auto other = Agent(1, out, Slow(), {});
  ASSERT_TRUE(door.WaitForOutput("connection 5", kStart)) << other->Output();
  const auto first = Agent(0, out, Slow(), {});
  for (const auto* agent : {&first, &other}) {
    EXPECT_TRUE((*agent)->WaitFor(kRunLimit)) << (*agent)->Output();
    EXPECT_EQ((*agent)->exit_code(), 0) << (*agent)->Output();
  }
  EXPECT_THAT(other->Output(), Not(HasSubstr(absl::StrCat("127.0.0.1:", port_, "\n"))));
  EXPECT_THAT(scheduler.Output(), Not(HasSubstr("registered from")));
  ExpectSameBits(out);
}

// The scheduler has the token, but its job encrypts less than this rank's.
TEST_F(OtherUserTest, ARankJoinsNoJobWithLessProtection) {
  const std::map<std::string, std::string> token = {{"TANDEM_TOKEN", std::string(64, '7')}};
  ChildProcess scheduler({ProgramPath("tandem-scheduler"), "--job", job_->File("job.textproto"),
                          "--launch", launch_, "--bind", absl::StrCat("tcp://127.0.0.1:", port_)},
                         folder_.File("scheduler.txt"), token);
  ASSERT_TRUE(scheduler.WaitForOutput("}\n", kStart)) << scheduler.Output();
  const auto agent =
      Agent(1, "", {"security.encrypt=ALL", "limits.startup_timeout_seconds=1"}, token);
  EXPECT_TRUE(agent->WaitFor(kStart));
  EXPECT_EQ(agent->exit_code(), 1);
  EXPECT_THAT(agent->Output(),
              HasSubstr(absl::StrCat("the job of the scheduler at tcp://127.0.0.1:", port_,
                                     " has security.encrypt: CONTROL, this rank's has ALL")));
  EXPECT_THAT(agent->Output(), Not(HasSubstr("starts")));
}

// Ranks of one host without --out pass the token on in a folder of /tmp with a known name.
TEST_F(OtherUserTest, RanksUseNoFolderOfAnotherUser) {
  const std::string folder = absl::StrCat(shared_, "/tandem-0-", port_);
  const std::string real = theirs_ + "/real";
  Prepare(absl::StrCat("umask 0 && mkdir ", real, " && ln -s ", real, " ", folder, " && cd ", real,
                       " && echo ", std::string(64, '7'), " >token && chmod 600 token"));
  const std::map<std::string, std::string> no_other = {{"TMPDIR", shared_},
                                                       {"XDG_RUNTIME_DIR", ""}};
  const auto check_refused = [&](const std::string& why) {
    const auto first = Agent(0, "", Slow(), no_other);
    EXPECT_TRUE(first->WaitFor(kStart));
    EXPECT_EQ(first->exit_code(), 2) << first->Output();
    EXPECT_THAT(first->Output(), HasSubstr(absl::StrCat(folder, ": ", why)));
  };
  check_refused("is a link");
  Prepare(absl::StrCat("rm ", folder, " && mv ", real, " ", folder));
  check_refused("belongs to user 65534, this process to user 0");

  const std::map<std::string, std::string> other = {{"TMPDIR", shared_},
                                                    {"XDG_RUNTIME_DIR", folder_.File("own")}};
  ASSERT_EQ(mkdir(folder_.File("own").c_str(), 0700), 0);
  const auto first = Agent(0, "", Slow(), other), second = Agent(1, "", Slow(), other);
  for (const auto* agent : {&first, &second}) {
    EXPECT_TRUE((*agent)->WaitFor(kRunLimit)) << (*agent)->Output();
    EXPECT_EQ((*agent)->exit_code(), 0) << (*agent)->Output();
  }
  EXPECT_EQ(ReadTextFile(folder + "/token"), std::string(64, '7') + "\n");
  const auto runs = std::filesystem::directory_iterator(folder_.File("out"));
  ExpectSameBits(runs->path().string());
}

TEST_F(OtherUserTest, NoRunWritesIntoAFolderOrLinkOfAnotherUser) {
  Prepare(absl::StrCat("umask 0 && cd ", shared_, " && mkdir open && ln -s ", theirs_, " link"));
  for (const auto& [name, why] :
       {std::pair("open",
                  "all users may write to it, and it belongs to user 65534, this process "
                  "belongs to user 0; hint: name a folder of your own, such as "),
        std::pair("link", "it is a link of user 65534")}) {
    const std::string out = absl::StrCat(shared_, "/", name);
    const RunResult run =
        RunProgram({ProgramPath("tandem"), "run", job_->File("job.textproto"), "--out", out});
    EXPECT_EQ(run.exit_code, 2) << run.output;
    EXPECT_THAT(run.output, HasSubstr(absl::StrCat("--out ", out, ": ", why)));
    EXPECT_TRUE(std::filesystem::is_empty(out));
  }
}

// The other user knows the number of the next process.
TEST_F(OtherUserTest, PredictWritesThroughNoLinkOfAnotherUser) {
  const std::string precious = folder_.File("precious");
  WriteTextFile(precious, "content");
  constexpr char kScript[] = R"(
      setpriv --reuid=65534 --regid=65534 --clear-groups sh -c \
          'umask 0 && mkdir "$1" && ln -s "$2" "$1/job.textproto.tmp"' \
          sh "$1/tandem-predict-$$" "$2" || exit
      export TMPDIR="$1"
      shift 2
      exec "$@")";
  const RunResult run =
      RunProgram({"/bin/sh", "-c", kScript, "sh", shared_, precious, ProgramPath("tandem"),
                  "predict", job_->File("job.textproto"), "--init-from", job_->File("undisturbed"),
                  "--data", job_->File("test.tsv"), "--out", folder_.File("scores.txt")});
  EXPECT_TRUE(run.ok()) << run.DebugString();
  EXPECT_EQ(ReadTextFile(precious), "content");
}

// A server is killed, and the other user listens at its ports until the end of the job. Workers
// connect again and show their password.
TEST_F(OtherUserTest, ThePasswordHeardAtAnOldPortOpensNothing) {
  RunningJob job(job_->Arguments("squatted", Slow()));
  ASSERT_TRUE(job.WaitForStep(11, kRunLimit)) << job.driver().Output();
  const pid_t server = job.WaitForRole("server-0", kStart);
  ASSERT_GT(server, 0);
  const RunResult ports = RunProgram(Squatter({"ports", absl::StrCat(server)}));
  std::vector<std::string> words = absl::StrSplit(ports.output, ' ');
  ASSERT_FALSE(words.empty()) << ports.output;
  words.insert(words.begin(), "listen");
  ChildProcess squatter(AsNobody(Squatter(words)), folder_.File("squatter.txt"), {});
  ASSERT_TRUE(squatter.WaitForOutput("waits", kStart)) << squatter.Output();
  kill(server, SIGKILL);
  ASSERT_TRUE(job.driver().WaitForOutput("all workers train again", kRunLimit))
      << job.driver().Output();
  const std::map<std::string, pid_t> roles = job.Roles();
  int heard = 0;
  const std::vector<std::string> lines = absl::StrSplit(squatter.Output(), '\n');
  for (const std::string& line : lines) {
    const std::vector<std::string> said = absl::StrSplit(line, ' ');
    if (said[0] != "heard") continue;
    ++heard;
    std::vector<std::string> attempt = {"try", said.at(1)};
    for (const auto& [name, pid] : roles) attempt.push_back(absl::StrCat(pid));
    const RunResult tried = RunProgram(Squatter(attempt));
    const auto report = nlohmann::json::parse(tried.output, nullptr, false);
    ASSERT_TRUE(report.is_object()) << tried.output;
    EXPECT_EQ(report.value("let_in", -1), 0) << report;
    if (heard == 3) break;
  }
  std::printf("%d passwords were heard\n", heard);
  const RunResult run = job.Finish(kRunLimit);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  ExpectSameBits(job_->File("squatted"));
}

}  // namespace
}  // namespace tandem
