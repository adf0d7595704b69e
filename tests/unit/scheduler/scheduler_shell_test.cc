// The scheduler over a transport, with a hand-played server and worker: events, files, and each way
// to end. Every wait is bounded by a minute; nothing depends on how fast things go.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "scheduler/scheduler_shell.h"
#include "tests/unit/scheduler/scheduler_test_job.h"
#include "transport/in_process.h"
#include "transport/zmq_transport.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Minutes(1);

// Makes the endpoints of a test: in one process, or over ZeroMQ.
struct Network {
  std::function<absl::StatusOr<std::unique_ptr<transport::Transport>>()> make;
};

Network InProcess() {
  auto network = std::make_shared<transport::InProcessNetwork>();
  return {[network] { return network->NewTransport({}); }};
}

Network Zmq() {
  auto context = std::make_shared<transport::ZmqContext>(1);
  return {[context] {
    transport::ZmqOptions options;
    options.context = context;
    return transport::NewZmqTransport(options);
  }};
}

// A node played by the test.
class Node {
 public:
  // `all`: the nodes of the test; whoever waits keeps all of them going.
  Node(const Network& network, const std::string& scheduler, uint64_t incarnation,
       std::vector<Node*>* all)
      : incarnation_(incarnation), transport_(*network.make()), all_(all) {
    peer_ = *transport_->Connect(scheduler);
    all_->push_back(this);
  }

  void Send(const Control& control) {
    FrameHeader header;
    header.incarnation = incarnation_;
    EXPECT_TRUE(transport_->Send(peer_, EncodeControlFrame(*transport_, header, control)).ok());
  }

  // The next control message that `wanted` accepts; the others are skipped.
  Control Await(const std::function<bool(const Control&)>& wanted) {
    const absl::Time deadline = MonotonicNow() + kPatience;
    while (MonotonicNow() < deadline) {
      while (next_ < events_.size()) {
        const transport::TransportEvent& event = events_[next_++];
        if (event.kind != transport::TransportEvent::Kind::kFrame) continue;
        const absl::StatusOr<Control> control = event.frame.ParseControl();
        if (control.ok() && wanted(*control)) return *control;
      }
      for (Node* node : *all_) node->Pump();
    }
    ADD_FAILURE() << "nothing came";
    return Control();
  }
  void Pump() {
    if (transport_ != nullptr) transport_->Poll(absl::Milliseconds(5), &events_);
  }
  // Where the frame of the first view is in memory; null: none has come.
  const uint8_t* ViewBytes() const {
    for (const transport::TransportEvent& event : events_) {
      if (event.kind != transport::TransportEvent::Kind::kFrame) continue;
      if (event.frame.ParseControl()->has_view()) return event.frame.frame.part[0].data();
    }
    return nullptr;
  }
  Control AwaitView() {
    return Await([](const Control& c) { return c.has_view(); });
  }
  Control AwaitCommand(Command::Kind kind) {
    return Await([&](const Control& c) { return c.command().kind() == kind; });
  }
  void Done(uint64_t id) {
    Control control;
    control.mutable_command_done()->set_id(id);
    Send(control);
  }
  void Leave() { transport_->Close(peer_); }
  void Vanish() { transport_.reset(); }
  transport::Transport& transport() { return *transport_; }
  transport::PeerId peer() const { return peer_; }

 private:
  const uint64_t incarnation_;
  std::unique_ptr<transport::Transport> transport_;
  std::vector<Node*>* const all_;
  transport::PeerId peer_ = 0;
  std::vector<transport::TransportEvent> events_;
  size_t next_ = 0;
};

class ShellTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    network_ = GetParam() ? Zmq() : InProcess();
    out_ = absl::StrCat(testing::TempDir(), "/scheduler_shell_test.", getpid());
    std::filesystem::remove_all(out_);
    events_ = std::tmpfile();
    ASSERT_NE(events_, nullptr);
    options_.plan = TestPlan(1, 1);
    options_.plan.job.mutable_limits()->set_report_interval_seconds(0.2);
    options_.out_dir = out_;
    options_.progress = events_;
    options_.abort = &abort_;
    options_.times.close_bound = absl::Seconds(1);
    options_.times.silence_report = options_.times.silence_death = absl::Hours(1);
    options_.times.stall_after = absl::Hours(1);  // these nodes do not beat
    auto transport = network_.make();
    ASSERT_TRUE(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
    address_ = transport_->address();
    thread_ = std::thread([this] {
      result_ = scheduler::ServeJob(options_, *transport_, "test");
      ended_ = true;
    });
  }
  void TearDown() override {
    abort_ = true;
    if (thread_.joinable()) thread_.join();
    std::fclose(events_);
    std::filesystem::remove_all(out_);
  }
  absl::Status Join() {
    while (!ended_) {
      for (Node* node : nodes_) node->Pump();
    }
    thread_.join();
    return result_;
  }

  // Registers both nodes and brings them to START.
  void Start() {
    server_ = std::make_unique<Node>(network_, address_, 1, &nodes_);
    worker_ = std::make_unique<Node>(network_, address_, 2, &nodes_);
    server_->Send(RegisterMessage(Register::SERVER, 0, 1, 1));
    worker_->Send(RegisterMessage(Register::WORKER, 0, 2, 1));
    for (Node* node : {server_.get(), worker_.get()}) {
      node->Done(node->AwaitView().view().number());
    }
    server_->AwaitCommand(Command::START);
    worker_->AwaitCommand(Command::START);
  }

  std::string Events() {
    std::rewind(events_);
    std::string text(1 << 20, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), events_));
    return text;
  }
  std::string FileText(const std::string& name) {
    std::stringstream text;
    text << std::ifstream(out_ + "/" + name).rdbuf();
    return text.str();
  }

  Network network_;
  std::string out_, address_;
  std::FILE* events_ = nullptr;
  std::atomic<bool> abort_{false};
  scheduler::SchedulerOptions options_;
  std::unique_ptr<transport::Transport> transport_;
  std::thread thread_;
  absl::Status result_;
  std::atomic<bool> ended_{false};
  std::vector<Node*> nodes_;
  std::unique_ptr<Node> server_, worker_;
};

// From registration to the files: what `run` and its users read.
TEST_P(ShellTest, AJobThatFinishesLeavesItsSummary) {
  Start();
  Control control;
  control.mutable_progress()->set_samples(640);
  control.mutable_progress()->set_step(10);
  control.mutable_progress()->set_evaluation_json(R"({"auc":0.8})");
  worker_->Send(control);
  control.mutable_barrier_enter()->set_name("end");
  control.mutable_barrier_enter()->set_action(BarrierEnter::END);
  worker_->Send(control);
  const Control report = server_->AwaitCommand(Command::REPORT);
  control.mutable_shard_report()->add_table()->set_table("emb");
  control.mutable_shard_report()->mutable_table(0)->set_applied(10);
  server_->Send(control);
  server_->Done(report.command().id());
  for (Node* node : {server_.get(), worker_.get()}) {
    node->AwaitCommand(Command::STOP);
    node->Leave();
  }
  EXPECT_TRUE(Join().ok()) << result_;
  const auto summary = nlohmann::json::parse(FileText("summary.json"));
  EXPECT_EQ(summary["samples"], 640);
  EXPECT_EQ(summary["eval"]["auc"], 0.8);
  EXPECT_EQ(summary["updates"]["applied"], 10);
  EXPECT_EQ(summary["transport"], "test");
  EXPECT_THAT(FileText("metrics.jsonl"), HasSubstr(R"("event":"evaluation")"));
  const std::string since = summary["started"].get<std::string>();
  EXPECT_THAT(FileText("metrics.jsonl"),
              HasSubstr(absl::StrCat(R"("event":"started","seconds":0.0,"since":")", since, "\"")));
  const std::vector<std::string> lines = absl::StrSplit(Events(), '\n', absl::SkipEmpty());
  ASSERT_GE(lines.size(), 3u);
  EXPECT_EQ(nlohmann::json::parse(lines.front())["address"], address_);
  EXPECT_EQ(nlohmann::json::parse(lines.back())["event"], "finished");
}

// A view of many ranges is large, and there may be a thousand nodes.
TEST_P(ShellTest, AViewIsEncodedOnceForAllNodes) {
  if (GetParam()) GTEST_SKIP() << "ZeroMQ copies what it receives";
  Start();
  EXPECT_NE(server_->ViewBytes(), nullptr);
  EXPECT_EQ(server_->ViewBytes(), worker_->ViewBytes());
}

// A process that is gone is named to the other nodes, to the watcher and to the caller.
TEST_P(ShellTest, AKilledNodeIsNamed) {
  Start();
  const auto failed = [](const Control& c) { return c.has_failure(); };
  // A transport that goes away says goodbye, which is not allowed before the end either.
  worker_->Vanish();
  EXPECT_EQ(server_->Await(failed).failure().node(), "worker 0");
  server_->Leave();
  EXPECT_EQ(Join().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(result_.message()), HasSubstr("worker 0"));
  EXPECT_THAT(Events(), HasSubstr(R"("event":"failed","node":"worker 0")"));
  const auto summary = nlohmann::json::parse(FileText("summary.json"));
  EXPECT_EQ(summary["failed"]["node"], "worker 0");
  EXPECT_EQ(summary["failed"]["code"], "UNAVAILABLE");
}

TEST_P(ShellTest, AnInterruptEndsTheJobEverywhere) {
  Start();
  abort_ = true;
  const auto failed = [](const Control& c) { return c.has_failure(); };
  EXPECT_EQ(server_->Await(failed).failure().reason(), "interrupted");
  EXPECT_EQ(worker_->Await(failed).failure().reason(), "interrupted");
  EXPECT_EQ(Join().code(), absl::StatusCode::kCancelled);
}

// A tool that is no member gets the status. One that asks without pause is answered now and then.
TEST_P(ShellTest, AToolThatAsksGetsTheStatus) {
  Start();
  Node tool(network_, address_, 90, &nodes_);
  Control ask;
  ask.mutable_user_request()->set_kind(UserRequest::STATUS);
  for (int i = 0; i < 50; ++i) tool.Send(ask);
  ask.mutable_user_request()->set_kind(UserRequest::CHECKPOINT);
  tool.Send(ask);
  int answers = 0;
  std::string text;
  tool.Await([&](const Control& control) {
    if (control.user_answer().code() == 0) {
      ++answers;
      text = control.user_answer().text();
    }
    return control.user_answer().code() != 0;  // this job has no folder for checkpoints
  });
  EXPECT_GE(answers, 1);
  EXPECT_LT(answers, 50);
  const auto status = nlohmann::json::parse(text);
  EXPECT_EQ(status["state"], "running");
  EXPECT_EQ(status["address"], address_);
  ASSERT_EQ(status["nodes"].size(), 3u);
  EXPECT_EQ(status["nodes"][0]["name"], "scheduler");
  EXPECT_GT(status["nodes"][0]["memory_bytes"], 0);
  ask.mutable_user_request()->set_kind(UserRequest::ABORT);
  tool.Send(ask);
  EXPECT_EQ(Join().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(result_.message()), HasSubstr("stopped by tandem stop"));
}

// A stranger that sends a data frame, or a member that does: the first is ignored, the second
// named.
TEST_P(ShellTest, FramesThatAreNotForTheSchedulerAreNoticed) {
  Start();
  Node stranger(network_, address_, 77, &nodes_);
  for (Node* node : {&stranger, worker_.get()}) {
    FrameHeader header;
    header.kind = FrameKind::kPull;
    transport::Transport& transport = node->transport();
    const Frame frame = EncodeDataFrame(transport, header, {}, Buffer(), Buffer());
    ASSERT_TRUE(transport.Send(node->peer(), frame).ok());
  }
  EXPECT_EQ(Join().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result_.message()), HasSubstr("worker 0: sent garbage"));
}

INSTANTIATE_TEST_SUITE_P(All, ShellTest, ::testing::Bool(), [](const auto& kind) {
  return kind.param ? std::string("Zmq") : std::string("InProcess");
});

TEST(RunSchedulerTest, SaysWhyItCannotListen) {
  scheduler::SchedulerOptions options;
  options.plan = TestPlan(1, 1);
  options.bind = "not an address";
  EXPECT_FALSE(scheduler::RunScheduler(options).ok());
}

TEST(RunSchedulerTest, SaysWhyItCannotWrite) {
  scheduler::SchedulerOptions options;
  options.plan = TestPlan(1, 1);
  options.out_dir = "/dev/null/x";
  EXPECT_THAT(std::string(scheduler::RunScheduler(options).message()), HasSubstr("/dev/null/x"));
}

TEST(RunSchedulerTest, EndsWhenItsDriverHasGone) {
  scheduler::SchedulerOptions options;
  options.plan = TestPlan(1, 1);
  options.driver = getpid();  // not the parent of this process
  const absl::Status status = scheduler::RunScheduler(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("the process that started the scheduler (pid "));
}

// The real thing without nodes: ends at the start deadline and says who is missing.
TEST(RunSchedulerTest, NobodyComes) {
  scheduler::SchedulerOptions options;
  options.plan = TestPlan(1, 1);
  options.plan.job.mutable_limits()->set_startup_timeout_seconds(0.2);
  const absl::Status status = scheduler::RunScheduler(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("server 0, worker 0; hint: read their logs, or raise limits.startup"));
}

// A peer announces a message that is larger than any control message. Its connection breaks before
// the scheduler has read the message.
TEST(RunSchedulerTest, RefusesAMessageThatIsTooLarge) {
  std::atomic<bool> interrupted{false};
  absl::Notification listens;
  std::string address;
  scheduler::SchedulerOptions options;
  options.plan = TestPlan(1, 1);
  options.abort = &interrupted;
  options.on_event = [&](const nlohmann::json& event) {
    if (event["event"] != "address") return;
    address = event["address"].get<std::string>();
    listens.Notify();
  };
  std::thread thread([&options] { (void)scheduler::RunScheduler(options); });
  listens.WaitForNotification();
  const auto transport = *Zmq().make();
  const transport::PeerId peer = *transport->Connect(address);
  Control control;
  control.mutable_user_answer()->set_text(std::string(2 * kMaxControlBytes, 'x'));
  EXPECT_TRUE(transport->Send(peer, EncodeControlFrame(*transport, FrameHeader(), control)).ok());
  bool lost = false;
  const absl::Time deadline = MonotonicNow() + kPatience;
  while (!lost && MonotonicNow() < deadline) {
    std::vector<transport::TransportEvent> events;
    transport->Poll(absl::Milliseconds(10), &events);
    for (const transport::TransportEvent& event : events) {
      lost = lost || event.kind == transport::TransportEvent::Kind::kPeerLost;
    }
  }
  EXPECT_TRUE(lost);
  interrupted = true;
  thread.join();
}

}  // namespace
}  // namespace tandem
