// The end of ZeroMQ transports: goodbyes that are answered are all that it waits for. And where
// they listen and connect: names, IPv6.
#include <dlfcn.h>
#include <netdb.h>
#include <zmq.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "gtest/gtest.h"
#include "transport/tcp_address.h"
#include "transport/zmq_transport.h"

namespace {

// A name server in which a host can move: kMoving means `moved_to` to the program's getaddrinfo.
constexpr char kMoving[] = "moving.invalid";
const char* moved_to = "127.0.0.1";
int look_ups = 0;

}  // namespace

// Takes the place of the C library's function in this program.
int getaddrinfo(const char* host, const char* service, const addrinfo* hints,
                addrinfo** found) {  // NOLINT
  static const auto real =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool moving = host != nullptr && std::strcmp(host, kMoving) == 0;
  look_ups += moving ? 1 : 0;
  return real(moving ? moved_to : host, service, hints, found);
}

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

TEST(TcpAddressTest, SplitsAndJoins) {
  const transport::TcpAddress v6 = transport::SplitTcpAddress("tcp://[::1]:7000");
  EXPECT_EQ(v6.host, "::1");
  EXPECT_EQ(v6.port, "7000");
  EXPECT_TRUE(v6.IsIpv6());
  EXPECT_FALSE(v6.AllHosts());
  EXPECT_EQ(v6.ToString(), "tcp://[::1]:7000");
  EXPECT_EQ(transport::SplitTcpAddress("tcp://host:*").ToString(), "tcp://host:*");
  EXPECT_TRUE(transport::SplitTcpAddress("tcp://[::]:*").AllHosts());
  EXPECT_FALSE(transport::SplitTcpAddress("ipc:///tmp/x").valid());
  EXPECT_EQ(transport::HostInAddress("fe80::1"), "[fe80::1]");
  EXPECT_EQ(transport::HostInAddress("[::1]"), "[::1]");
}

TEST(TcpAddressTest, OnlyANumberOfAnEndpointIsSplitOff) {
  const std::string number(32, 'a');
  const std::string inside = "ipc:///tmp/#" + number + "/x";
  for (const std::string& address :
       {std::string("tcp://host:7000"), inside, std::string("tcp://host:7000#1f2e"),
        std::string("tcp://host:7000#"), std::string("ipc:///a#b")}) {
    const auto [before, after] = transport::SplitEndpointNumber(address);
    EXPECT_EQ(before, address);
    EXPECT_EQ(after, "");
    const auto split = transport::SplitEndpointNumber(absl::StrCat(address, "#", number));
    EXPECT_EQ(split.first, address);
    EXPECT_EQ(split.second, number);
  }
  EXPECT_EQ(transport::SplitTcpAddress("tcp://host:7000#" + number).port, "7000");
  EXPECT_EQ(transport::SplitTcpAddress("tcp://host:7000#1f2e").port, "7000#1f2e");
}

TEST(TcpAddressTest, NamesAndDevicesAreNumbersOnceBound) {
  EXPECT_EQ(*transport::ResolveToBind("tcp://localhost:*"), "tcp://127.0.0.1:*");
  EXPECT_EQ(*transport::ResolveToBind("tcp://lo:7000"), "tcp://127.0.0.1:7000");
  EXPECT_EQ(*transport::ResolveToBind("tcp://[::1]:*"), "tcp://[::1]:*");
  EXPECT_EQ(*transport::ResolveToBind("tcp://*:7000"), "tcp://*:7000");
  EXPECT_EQ(*transport::ResolveToBind("ipc:///tmp/x"), "ipc:///tmp/x");
  EXPECT_EQ(transport::ResolveToBind("tcp://no.such.host.invalid:1").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(transport::ResolveToConnect("tcp://localhost:7000")[0], "tcp://127.0.0.1:7000");
  const std::string unknown = "tcp://no.such.host.invalid:1";
  EXPECT_EQ(transport::ResolveToConnect(unknown), std::vector<std::string>{unknown});
}

// A program that sends first is none of ours, and its goodbye does not end the peer silently.
TEST(ZmqGoodbyeTest, AGoodbyeBeforeTheFirstFrameIsIgnored) {
  transport::ZmqOptions options;
  options.context = std::make_shared<transport::ZmqContext>(1);
  options.goodbye_wait = options.linger = absl::ZeroDuration();
  const std::unique_ptr<transport::Transport> ours = transport::NewZmqTransport(options).value();
  void* const other = zmq_socket(options.context->handle(), ZMQ_DEALER);
  ASSERT_EQ(zmq_bind(other, "tcp://127.0.0.1:*"), 0);
  std::array<char, 256> address;
  size_t size = address.size();
  ASSERT_EQ(zmq_getsockopt(other, ZMQ_LAST_ENDPOINT, address.data(), &size), 0);
  const transport::PeerId peer = ours->Connect(address.data()).value();
  FrameHeader header;
  header.kind = FrameKind::kGoodbye;
  const Frame goodbye = EncodeDataFrame(*ours, header, {}, Buffer(), Buffer());
  for (int i = 0; i < goodbye.parts; ++i) {
    const int more = i + 1 < goodbye.parts ? ZMQ_SNDMORE : 0;
    EXPECT_GE(zmq_send(other, goodbye.part[i].data(), goodbye.part[i].size(), more), 0);
  }
  absl::SleepFor(absl::Milliseconds(50));  // the goodbye is there when this side looks
  std::vector<transport::TransportEvent> events;
  ours->Poll(absl::ZeroDuration(), &events);
  EXPECT_TRUE(ours->Send(peer, SmallFrame(*ours)).ok());
  zmq_close(other);
}

bool HasIpv6() {
  transport::ZmqOptions options;
  options.context = std::make_shared<transport::ZmqContext>(1);
  options.bind = "tcp://[::1]:*";
  return transport::NewZmqTransport(options).ok();
}

// A frame to where `bind` listens, by `host` in the place of the number that it has.
void ExpectReached(const std::string& bind, const std::string& advertised) {
  transport::ZmqOptions options;
  options.context = std::make_shared<transport::ZmqContext>(1);
  options.bind = bind;
  options.advertised_host = advertised;
  options.goodbye_wait = options.linger = absl::ZeroDuration();
  const auto reader = transport::NewZmqTransport(options);
  ASSERT_TRUE(reader.ok()) << bind << ": " << reader.status();
  options.bind = "tcp://127.0.0.1:*";
  options.advertised_host = "";
  const std::unique_ptr<transport::Transport> writer = transport::NewZmqTransport(options).value();
  const auto peer = writer->Connect((*reader)->address());
  ASSERT_TRUE(peer.ok()) << peer.status();
  ASSERT_TRUE(writer->Send(*peer, SmallFrame(*writer)).ok());
  std::vector<transport::TransportEvent> events;
  const absl::Time deadline = MonotonicNow() + absl::Seconds(8);
  while (events.empty() && MonotonicNow() < deadline) {
    (*reader)->Poll(absl::Milliseconds(10), &events);
    std::vector<transport::TransportEvent> own;
    writer->Poll(absl::ZeroDuration(), &own);
  }
  ASSERT_FALSE(events.empty()) << (*reader)->address();
  EXPECT_EQ(events[0].kind, transport::TransportEvent::Kind::kFrame);
}

TEST(TcpAddressTest, TransportsAreReachedByNameAndByIpv6) {
  ExpectReached("tcp://localhost:*", "");
  ExpectReached("tcp://*:*", "localhost");
  if (!HasIpv6()) GTEST_SKIP() << "no IPv6 here";
  ExpectReached("tcp://[::1]:*", "");
  ExpectReached("tcp://[::]:*", "::1");
  // Names whose first address is another one.
  const std::vector<std::string> all = transport::ResolveToConnect("tcp://localhost:7000");
  if (all.back() == "tcp://[::1]:7000") ExpectReached("tcp://[::1]:*", "localhost");
}

// Whether a frame to `address` arrives before the peer is lost.
bool Reaches(transport::Transport* from, transport::Transport* to, const std::string& address) {
  const transport::PeerId peer = from->Connect(address).value();
  if (!from->Send(peer, SmallFrame(*from)).ok()) return false;
  const absl::Time deadline = MonotonicNow() + absl::Seconds(8);
  while (MonotonicNow() < deadline) {
    std::vector<transport::TransportEvent> events, own;
    to->Poll(absl::Milliseconds(10), &events);
    for (const transport::TransportEvent& event : events) {
      if (event.kind == transport::TransportEvent::Kind::kFrame) return true;
    }
    from->Poll(absl::ZeroDuration(), &own);
    for (const transport::TransportEvent& event : own) {
      if (event.peer == peer) return false;
    }
  }
  return false;
}

TEST(TcpAddressTest, AHostThatMovedIsFoundAgain) {
  transport::ZmqOptions options;
  options.context = std::make_shared<transport::ZmqContext>(1);
  options.bind = "tcp://127.0.0.1:*";
  options.goodbye_wait = options.linger = absl::ZeroDuration();
  options.connect_deadline = absl::Milliseconds(300);
  const std::unique_ptr<transport::Transport> writer = transport::NewZmqTransport(options).value();
  options.bind = "tcp://127.0.0.2:*";
  std::unique_ptr<transport::Transport> reader = transport::NewZmqTransport(options).value();
  const std::string port = transport::SplitTcpAddress(reader->address()).port;
  const std::string address = absl::StrCat("tcp://", kMoving, ":", port);
  moved_to = "127.0.0.1";
  look_ups = 0;
  EXPECT_FALSE(Reaches(writer.get(), reader.get(), address)) << "nobody listens at 127.0.0.1";
  moved_to = "127.0.0.2";
  EXPECT_TRUE(Reaches(writer.get(), reader.get(), address)) << "before the first connection";
  EXPECT_EQ(look_ups, 2);
  EXPECT_TRUE(Reaches(writer.get(), reader.get(), address));
  EXPECT_EQ(look_ups, 2) << "a name that was reached needs no name server";
  reader.reset();
  options.bind = absl::StrCat("tcp://127.0.0.3:", port);
  reader = transport::NewZmqTransport(options).value();
  moved_to = "127.0.0.3";
  EXPECT_FALSE(Reaches(writer.get(), reader.get(), address)) << "the place where it was";
  EXPECT_TRUE(Reaches(writer.get(), reader.get(), address)) << "after a connection";
  EXPECT_EQ(look_ups, 3);
}

}  // namespace
}  // namespace tandem
