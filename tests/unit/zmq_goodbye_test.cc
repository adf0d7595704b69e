// The end of ZeroMQ transports: goodbyes that are answered are all that it waits for.
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "gtest/gtest.h"
#include "transport/zmq_transport.h"

namespace tandem {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);  // what is never to be waited for
constexpr int kFrames = 100;

std::unique_ptr<transport::Transport> NewTransport(int index) {
  transport::ZmqOptions options;
  options.context = std::make_shared<transport::ZmqContext>(1);
  options.self = EndpointId::Worker(index);
  options.incarnation = 1;
  options.goodbye_wait = options.linger = options.ping_interval = kLong;
  return transport::NewZmqTransport(options).value();
}

Frame SmallFrame(BufferSource& source) {
  FrameHeader header;
  header.kind = FrameKind::kSegment;
  return EncodeDataFrame(source, header, {}, Buffer(), Buffer());
}

// Polls until both sides have a frame; the other one may need this one's turns for that.
void PollUntilBothHave(transport::Transport& transport, std::atomic<int>* have) {
  std::vector<transport::TransportEvent> events;
  while (*have < 2) {
    events.clear();
    transport.Poll(absl::Milliseconds(10), &events);
    for (const transport::TransportEvent& event : events)
      *have += event.kind == transport::TransportEvent::Kind::kFrame;
  }
}

// One side ends while the other reads on: all frames arrive, then the goodbye, and its answer ends
// the wait.
TEST(ZmqGoodbyeTest, EndsWhenTheOtherSideAnswers) {
  const std::unique_ptr<transport::Transport> reader = NewTransport(0);
  std::unique_ptr<transport::Transport> writer = NewTransport(1);
  const transport::PeerId peer = writer->Connect(reader->address()).value();
  for (int i = 0; i < kFrames; ++i) {
    ASSERT_TRUE(writer->Send(peer, SmallFrame(*writer)).ok());
  }
  const absl::Time start = MonotonicNow();
  std::atomic<bool> ended{false};
  std::thread ends([&] {
    writer.reset();
    ended = true;
  });
  int frames = 0;
  std::vector<transport::TransportEvent> events;
  while (!ended) {  // answers the goodbye
    events.clear();
    reader->Poll(absl::Milliseconds(10), &events);
    for (const transport::TransportEvent& event : events)
      frames += event.kind == transport::TransportEvent::Kind::kFrame;
  }
  EXPECT_EQ(frames, kFrames);
  ends.join();
  EXPECT_LT(MonotonicNow() - start, kLong / 2);
}

// Both sides of two connections end at the same time, as processes of a job do.
TEST(ZmqGoodbyeTest, EndsWhenBothEndAtOnce) {
  std::unique_ptr<transport::Transport> one = NewTransport(0), two = NewTransport(1);
  ASSERT_TRUE(one->Send(one->Connect(two->address()).value(), SmallFrame(*one)).ok());
  ASSERT_TRUE(two->Send(two->Connect(one->address()).value(), SmallFrame(*two)).ok());
  std::atomic<int> have{0};
  std::thread other([&] { PollUntilBothHave(*two, &have); });
  PollUntilBothHave(*one, &have);
  other.join();
  const absl::Time start = MonotonicNow();
  std::thread ends([&one] { one.reset(); });
  two.reset();
  ends.join();
  EXPECT_LT(MonotonicNow() - start, kLong / 2);
}

}  // namespace
}  // namespace tandem
