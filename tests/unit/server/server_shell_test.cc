// A server process with a scheduler played by the test. Every wait is bounded by a minute; nothing
// depends on how fast things go.
#include "server/server_shell.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "server/checkpoint_directory.h"
#include "tests/unit/server/core_fixture.h"
#include "transport/in_process.h"

namespace tandem {
namespace {

constexpr uint64_t kIncarnation = 77;

// Throws in the middle of a poll, once it is told to.
class BreakingTransport : public transport::Transport {
 public:
  BreakingTransport(std::unique_ptr<transport::Transport> inner, std::atomic<bool>* breaks)
      : inner_(std::move(inner)), breaks_(*breaks) {}
  Buffer Alloc(size_t bytes) override { return inner_->Alloc(bytes); }
  const std::string& address() const override { return inner_->address(); }
  absl::StatusOr<transport::PeerId> Connect(const std::string& address) override {
    return inner_->Connect(address);
  }
  absl::Status Send(transport::PeerId peer, Frame frame) override {
    return inner_->Send(peer, std::move(frame));
  }
  void Close(transport::PeerId peer) override { inner_->Close(peer); }
  void Poll(absl::Duration timeout, std::vector<transport::TransportEvent>* events) override {
    if (breaks_.exchange(false)) throw std::runtime_error("the poll is broken");
    inner_->Poll(timeout, events);
  }
  void Wake() override { inner_->Wake(); }
  transport::TransportCounters counters() const override { return inner_->counters(); }

 private:
  const std::unique_ptr<transport::Transport> inner_;
  std::atomic<bool>& breaks_;
};

class ServerShellTest : public ::testing::Test {
 protected:
  void SetUp() override {
    scheduler_ = *network_->NewTransport({});
    options_.plan = CorePlan("kind: BSP", 1, 1);
    options_.plan.job.mutable_cluster()->set_shards_per_server(2);
    options_.member.scheduler = scheduler_->address();
    options_.member.index = 0;
    options_.member.incarnation = kIncarnation;
    options_.member.make_transport =
        [this, first = true](
            EndpointId) mutable -> absl::StatusOr<std::unique_ptr<transport::Transport>> {
      TANDEM_ASSIGN_OR_RETURN(auto made, network_->NewTransport({}));
      if (!std::exchange(first, false)) return made;
      return std::make_unique<BreakingTransport>(std::move(made), &breaks_);
    };
    server_ = std::thread([this] { result_ = server::RunServer(options_); });
  }
  void TearDown() override {
    if (!server_.joinable()) return;  // it has failed, as the test wants it
    Control stop;
    stop.mutable_command()->set_kind(Command::STOP);
    Send(stop);
    server_.join();
    EXPECT_TRUE(result_.ok()) << result_;
  }

  void Send(const Control& control) {
    FrameHeader header;
    header.sender = EndpointId::Scheduler();
    EXPECT_TRUE(scheduler_->Send(main_, EncodeControlFrame(*scheduler_, header, control)).ok());
  }

  // The next control message that has what is wanted; `main_` is where registrations come from.
  template <typename Wanted>
  Control Await(Wanted wanted) {
    const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
    while (MonotonicNow() < deadline) {
      while (next_ < events_.size()) {
        const transport::TransportEvent& event = events_[next_++];
        if (event.kind != transport::TransportEvent::Kind::kFrame) continue;
        const absl::StatusOr<Control> control = event.frame.ParseControl();
        if (!control.ok()) continue;
        if (control->has_register_()) main_ = event.peer;
        if (wanted(*control)) return *control;
      }
      scheduler_->Poll(absl::Milliseconds(10), &events_);
    }
    ADD_FAILURE() << "nothing came";
    return Control();
  }

  std::shared_ptr<transport::InProcessNetwork> network_ =
      std::make_shared<transport::InProcessNetwork>();
  std::unique_ptr<transport::Transport> scheduler_;
  server::ServerOptions options_;
  std::thread server_;
  std::atomic<bool> breaks_{false};  // the transport of the server's main thread
  absl::Status result_;
  transport::PeerId main_ = 0;
  std::vector<transport::TransportEvent> events_;
  size_t next_ = 0;
};

// Nobody reads or writes rows, for as long as an evaluation or a slow batch may last: its loops go
// round all the same, and its beats say so.
TEST_F(ServerShellTest, AServerWithNothingToDoMakesProgress) {
  Await([](const Control& c) { return c.has_register_(); });
  uint64_t last = Await([](const Control& c) { return c.has_beat(); }).beat().progress();
  for (int beat = 0; beat < 3; ++beat) {
    const uint64_t next = Await([](const Control& c) { return c.has_beat(); }).beat().progress();
    EXPECT_GT(next, last);
    last = next;
  }
}

// The scheduler tells the others, who would see a lost connection alone.
TEST_F(ServerShellTest, AnExceptionIsReported) {
  Await([](const Control& c) { return c.has_register_(); });
  breaks_ = true;
  const Control said = Await([](const Control& c) { return c.has_failure(); });
  EXPECT_EQ(said.failure().reason(), "the poll is broken");
  server_.join();
  EXPECT_EQ(result_, absl::InternalError("the poll is broken"));
}

TEST_F(ServerShellTest, AFailureThatTheSchedulerHasToldIsNotReportedBack) {
  Await([](const Control& c) { return c.has_register_(); });
  Control failed;
  failed.mutable_failure()->set_node("server 1");
  failed.mutable_failure()->set_reason("out of memory");
  failed.mutable_failure()->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  Send(failed);
  server_.join();
  EXPECT_EQ(result_, absl::ResourceExhaustedError("server 1: out of memory"));
  const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
  const auto gone = [&] {
    for (const transport::TransportEvent& event : events_) {
      if (event.peer == main_ && event.kind != transport::TransportEvent::Kind::kFrame) return true;
    }
    return false;
  };
  while (!gone() && MonotonicNow() < deadline) scheduler_->Poll(absl::Milliseconds(10), &events_);
  EXPECT_TRUE(gone());
  for (; next_ < events_.size(); ++next_) {
    if (events_[next_].kind != transport::TransportEvent::Kind::kFrame) continue;
    const absl::StatusOr<Control> control = events_[next_].frame.ParseControl();
    EXPECT_FALSE(control.ok() && control->has_failure());
  }
}

// A checkpoint that takes long, here for a file that is a pipe without a reader, does not keep a
// shard from telling a read that must wait whom it waits for: without that, readers give up.
TEST_F(ServerShellTest, ReadsThatWaitAreToldSoDuringALongCheckpoint) {
  const job::ResolvedJob& plan = options_.plan;
  const Register registered = Await([](const Control& c) { return c.has_register_(); }).register_();
  Control view;
  *view.mutable_view() = CoreViewMessage(plan, 1);
  Member* const server = view.mutable_view()->add_server();
  server->set_incarnation(kIncarnation);
  for (const std::string& endpoint : registered.endpoint()) server->add_endpoint(endpoint);
  Send(view);
  Await([](const Control& c) { return c.command_done().id() == 1; });

  const std::unique_ptr<transport::Transport> worker = *network_->NewTransport({});
  const transport::PeerId shard = *worker->Connect(registered.endpoint(0));
  const std::shared_ptr<const RangeMap> map = CoreView(plan, 1);
  FrameHeader header;
  header.kind = FrameKind::kPull;
  header.sender = EndpointId::Worker(0);
  header.view = 1;
  header.incarnation = 5;
  header.request = 1;
  header.first_step = header.step = 1;  // step 0 has not been pushed
  SliceEntry entry;
  entry.rows = 1;
  ASSERT_TRUE(
      worker
          ->Send(shard, EncodeDataFrame(*worker, header, {&entry, 1},
                                        BufferOf(*worker, KeysIn(*map, plan, 0, 1)), Buffer()))
          .ok());
  std::vector<transport::TransportEvent> events;
  const auto waiting = [&] {
    int count = 0;
    for (const transport::TransportEvent& e : events) {
      count += e.kind == transport::TransportEvent::Kind::kFrame &&
               e.frame.header.kind == FrameKind::kWaiting;
    }
    return count;
  };
  const auto await_waiting = [&](int count) {
    const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
    while (waiting() < count && MonotonicNow() < deadline) {
      worker->Poll(absl::Milliseconds(10), &events);
    }
    return waiting() >= count;
  };
  EXPECT_TRUE(await_waiting(1));

  const std::string folder = absl::StrCat(::testing::TempDir(), "/server_shell_test.", getpid());
  std::filesystem::create_directories(folder);
  server::RangeImage head;
  head.table = "a";
  head.begin = map->range(0).begin;
  head.end = map->range(0).end;
  const std::string pipe = absl::StrCat(folder, "/", server::RangeFileName(head), ".tmp");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  Control checkpoint;
  checkpoint.mutable_command()->set_kind(Command::CHECKPOINT);
  checkpoint.mutable_command()->set_id(7);
  checkpoint.mutable_command()->set_path(folder);
  Send(checkpoint);
  EXPECT_TRUE(await_waiting(waiting() + 3));
  while (next_ < events_.size()) {
    const transport::TransportEvent& event = events_[next_++];
    if (event.kind != transport::TransportEvent::Kind::kFrame) continue;
    const absl::StatusOr<Control> control = event.frame.ParseControl();
    EXPECT_FALSE(control.ok() && control->command_done().id() == 7) << "the checkpoint is not over";
  }

  const int both_ends = open(pipe.c_str(), O_RDWR);
  ASSERT_GE(both_ends, 0);
  const CommandDone done =
      Await([](const Control& c) { return c.command_done().id() == 7; }).command_done();
  EXPECT_NE(done.code(), 0) << "a pipe cannot be flushed";
  close(both_ends);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tandem
