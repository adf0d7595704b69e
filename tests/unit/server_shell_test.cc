// A server process with a scheduler played by the test. Every wait is bounded by a minute; nothing
// depends on how fast things go.
#include "base/clock.h"
#include "server/server_shell.h"

#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/scheduler_test_job.h"
#include "transport/in_process.h"

namespace tandem {
namespace {

constexpr uint64_t kIncarnation = 77;

class ServerShellTest : public ::testing::Test {
 protected:
  void SetUp() override {
    scheduler_ = *network_->NewTransport({});
    options_.plan = TestPlan(1, 1, /*shards_per_server=*/2);
    options_.scheduler = scheduler_->address();
    options_.index = 0;
    options_.incarnation = kIncarnation;
    options_.make_transport = [this](EndpointId) { return network_->NewTransport({}); };
    server_ = std::thread([this] { result_ = RunServer(options_); });
  }
  void TearDown() override {
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
        const TransportEvent& event = events_[next_++];
        if (event.kind != TransportEvent::Kind::kFrame) continue;
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

  std::shared_ptr<InProcessNetwork> network_ = std::make_shared<InProcessNetwork>();
  std::unique_ptr<Transport> scheduler_;
  ServerOptions options_;
  std::thread server_;
  absl::Status result_;
  PeerId main_ = 0;
  std::vector<TransportEvent> events_;
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

}  // namespace
}  // namespace tandem
