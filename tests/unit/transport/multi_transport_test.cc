// The choice between ways to a peer: the best that works, said with its reason; the next when one
// breaks, without losing or doubling a push; nothing else where one is forced.
#include "transport/multi_transport.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sanitized.h"
#include "tests/unit/transport/multi_world.h"
#include "tests/unit/transport/pushes_across_a_break.h"
#include "tests/unit/transport/scarce_system.h"
#include "transport/path_log.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using Kind = transport::TransportEvent::Kind;

constexpr absl::Duration kPatience = absl::Seconds(100);

// Cuts every connected Unix socket of this process: the paths through shared memory break, and the
// processes at their ends (both are this one) live on.
int CutSharedMemory() {
  int cut = 0;
  DIR* const dir = opendir("/proc/self/fd");
  TANDEM_CHECK(dir != nullptr);
  while (const dirent* const entry = readdir(dir)) {
    const int fd = std::atoi(entry->d_name);
    int type = 0;
    socklen_t size = sizeof type;
    sockaddr_un peer = {};
    socklen_t peer_size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET ||
        getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) {
      continue;
    }
    cut += shutdown(fd, SHUT_RDWR) == 0;
  }
  closedir(dir);
  return cut;
}

class MultiTransportTest : public ::testing::Test {
 protected:
  std::unique_ptr<transport::Transport> New(const std::string& forced = "") {
    transport::ZmqOptions zmq;
    zmq.context = context_;
    zmq.goodbye_wait = absl::Milliseconds(50);  // tests drive both ends from one thread
    transport::MultiOptions options = ShmAndZmq("", transport::ShmOptions(), zmq);
    options.forced = forced;
    options.on_path = [this](const transport::PathChoice& choice) { paths_.Add(choice); };
    return transport::NewMultiTransport(std::move(options));
  }
  // The choice made last.
  const transport::PathChoice& Last() {
    for (transport::PathChoice& choice : paths_.Take()) last_ = std::move(choice);
    return last_;
  }
  // Sends a frame of this step and polls both until it is there.
  bool Passes(transport::Transport& from, transport::PeerId peer, transport::Transport& to,
              int64_t step) {
    FrameHeader header;
    header.kind = FrameKind::kSegment;
    header.step = step;
    if (!from.Send(peer, EncodeDataFrame(from, header, {}, Buffer(), Buffer())).ok()) return false;
    std::vector<transport::TransportEvent> events;
    for (const absl::Time end = MonotonicNow() + kPatience; MonotonicNow() < end;) {
      from.Poll(absl::Milliseconds(1), &from_events_);
      to.Poll(absl::Milliseconds(1), &events);
      for (const transport::TransportEvent& event : events) {
        if (event.kind != Kind::kFrame || event.frame.header.step != step) continue;
        heard_on_ = event.peer;
        return true;
      }
    }
    return false;
  }

  const std::shared_ptr<transport::ZmqContext> context_ =
      std::make_shared<transport::ZmqContext>(1);
  transport::PathLog paths_;
  transport::PathChoice last_;
  std::vector<transport::TransportEvent> from_events_;
  transport::PeerId heard_on_ = 0;  // of the receiver of the last frame: where it came from
  HeapBufferSource heap_;
  const std::vector<uint8_t> large_ = std::vector<uint8_t>(100'000);
};

TEST_F(MultiTransportTest, TheBestWayThatReachesThePeerIsTakenAndSaid) {
  const auto a = New(), b = New();
  EXPECT_TRUE(Passes(*a, *a->Connect(b->address()), *b, 1));
  EXPECT_EQ(Last().way, "shared memory");
  EXPECT_EQ(Last().why, "same host");
  EXPECT_TRUE(Passes(*a, *a->Connect(WayOf(b->address(), "tcp:")), *b, 2));
  EXPECT_EQ(Last().way, "ZeroMQ");
  EXPECT_THAT(Last().why, HasSubstr("no shared memory there"));
  const std::string tcp = WayOf(b->address(), "tcp:");
  EXPECT_TRUE(Passes(*a, *a->Connect(absl::StrCat("shm:another-boot/name ", tcp)), *b, 3));
  EXPECT_EQ(Last().way, "ZeroMQ");
  EXPECT_THAT(Last().why, HasSubstr("another host"));
  const std::string memory = WayOf(b->address(), "shm:");
  EXPECT_TRUE(Passes(*a, *a->Connect(absl::StrCat(memory, "-not ", tcp)), *b, 4));
  EXPECT_EQ(Last().way, "ZeroMQ");
  EXPECT_THAT(Last().why, HasSubstr("another network namespace"));
}

TEST_F(MultiTransportTest, AWayThatBreaksIsALossAndTheNextWayIsTakenThen) {
  const auto a = New(), b = New();
  const transport::PeerId first = *a->Connect(b->address());
  ASSERT_TRUE(Passes(*a, first, *b, 1));
  ASSERT_EQ(CutSharedMemory(), 2);
  for (const absl::Time end = MonotonicNow() + kPatience; MonotonicNow() < end;) {
    a->Poll(absl::Milliseconds(1), &from_events_);
    if (!from_events_.empty()) break;
  }
  ASSERT_EQ(from_events_.size(), 1u);
  EXPECT_EQ(from_events_[0].kind, Kind::kPeerLost);
  EXPECT_EQ(from_events_[0].peer, first);
  const transport::PeerId second = *a->Connect(b->address());
  EXPECT_NE(second, first);
  EXPECT_TRUE(Passes(*a, second, *b, 2));
  EXPECT_EQ(Last().way, "ZeroMQ");
  EXPECT_THAT(Last().why, HasSubstr("it broke"));
}

// Whichever end runs out of what shared memory is made of: it gives the path up, and says why.
TEST_F(MultiTransportTest, AFrameThatFindsNoSharedMemoryMakesTheNextWayTheWay) {
  if (kSanitized) GTEST_SKIP() << "UBSan looks at objects through a pipe";
  for (const bool answers : {false, true}) {
    SCOPED_TRACE(answers ? "the end that was connected to" : "the end that connects");
    const auto a = New(), b = New();
    const transport::PeerId first = *a->Connect(b->address());
    ASSERT_TRUE(Passes(*a, first, *b, 1));
    EXPECT_EQ(Last().way, "shared memory");
    transport::Transport& sender = answers ? *b : *a;
    {
      const NoDescriptorsLeft none;
      FrameHeader header;
      header.kind = FrameKind::kSegment;
      const absl::Status sent =
          sender.Send(answers ? heard_on_ : first,
                      EncodeDataFrame(sender, header, {}, Buffer(), CopyToBuffer(heap_, large_)));
      EXPECT_TRUE(absl::IsNotFound(sent)) << sent;
    }
    std::string why;
    std::vector<transport::TransportEvent> events;
    for (const absl::Time end = MonotonicNow() + kPatience; MonotonicNow() < end;) {
      a->Poll(absl::Milliseconds(1), &events);
      b->Poll(absl::Milliseconds(1), &events);
      for (const transport::TransportEvent& event : events) {
        EXPECT_EQ(event.kind, Kind::kPeerLost);
        if (absl::IsAborted(event.why)) why = transport::TroubleIn(event);
      }
      if (events.size() >= 2) break;  // each end's
    }
    EXPECT_EQ(events.size(), 2u);
    EXPECT_THAT(why, HasSubstr("Too many open files"));
    EXPECT_TRUE(Passes(*a, *a->Connect(b->address()), *b, 2));
    EXPECT_EQ(Last().way, "ZeroMQ");
    EXPECT_THAT(Last().why, HasSubstr(answers ? "it broke" : "no shared memory for a part of"));
  }
}

// A process ends with the reason, not in the middle of making an endpoint.
TEST_F(MultiTransportTest, AnEndpointWithoutDescriptorsIsRefusedByName) {
  if (kSanitized) GTEST_SKIP() << "UBSan looks at objects through a pipe";
  transport::ZmqOptions zmq;
  zmq.context = context_;
  const NoDescriptorsLeft none;
  for (const absl::Status& refused :
       {transport::NewZmqTransport(zmq).status(),
        transport::NewShmTransport(transport::ShmOptions()).status()}) {
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("ulimit -n"));
  }
}

TEST_F(MultiTransportTest, AForcedStrategyHasNoOtherBesideIt) {
  const auto a = New("shared memory"), b = New("shared memory");
  EXPECT_TRUE(Passes(*a, *a->Connect(b->address()), *b, 1));
  EXPECT_THAT(Last().why, HasSubstr("the job asks for it"));
  const std::string tcp = WayOf(b->address(), "tcp:");
  EXPECT_FALSE(a->Connect(absl::StrCat("shm:another-boot/name ", tcp)).ok());
  EXPECT_TRUE(Passes(*a, *a->Connect(tcp), *b, 2)) << "one that offers nothing else, the scheduler";
}

// A push whose path breaks while it is under way arrives once, by the other way.
TEST_F(MultiTransportTest, APushIsNeitherLostNorDoubledWhenItsPathBreaks) {
  ExpectEachPushAppliedOnce({
      .endpoint = [this] { return New(); },
      // The shard may close its end before it is cut.
      .break_it = [] { EXPECT_GE(CutSharedMemory(), 1); },
      .other_way = [this] { return Last().way == "ZeroMQ"; },
      .patience = kPatience,
  });
}

}  // namespace
}  // namespace tandem
