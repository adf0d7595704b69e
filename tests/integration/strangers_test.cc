// Programs without the token of a job, or with another one, try all its ports while it starts and
// while it trains (stranger.py). They get nothing and change nothing.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/collectives.pb.h"
#include "proto/frame.h"
#include "proto/wire.pb.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/run_job.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

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
    EXPECT_THAT(worker->Output(), HasSubstr("tandem-worker: scheduler: " + address + why + "hint"));
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

}  // namespace
}  // namespace tandem
