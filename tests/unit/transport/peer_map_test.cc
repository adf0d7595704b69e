// Which connection a frame takes, what is parked, and what a lost connection takes with it.
#include "transport/peer_map.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/unit/transport/fake_transport.h"

namespace tandem {
namespace {

using Kind = transport::TransportEvent::Kind;

class PeerMapTest : public testing::Test {
 protected:
  using Sent = std::vector<std::pair<transport::PeerId, int64_t>>;

  Frame FrameOf(EndpointId sender, int64_t step) {
    FrameHeader header;
    header.kind = FrameKind::kSegment;
    header.sender = sender;
    header.step = step;
    return EncodeDataFrame(transport_, header, {}, Buffer(), Buffer());
  }
  absl::Status Send(int64_t step) {
    return peers_.Send({shard_, FrameOf(EndpointId::Worker(0), step)});
  }
  EndpointId Tell(Kind kind, transport::PeerId peer) {
    transport::TransportEvent event;
    event.kind = kind;
    event.peer = peer;
    return peers_.OnEvent(event);
  }
  void Hear(EndpointId from, transport::PeerId peer) {
    transport::TransportEvent event;
    event.peer = peer;
    event.frame = *DecodeFrame(FrameOf(from, 0));
    EXPECT_EQ(peers_.OnEvent(event), EndpointId());
  }

  const EndpointId shard_ = EndpointId::Shard(1, 2);
  FakeTransport transport_;
  transport::PeerMap peers_{transport_};
};

TEST_F(PeerMapTest, ConnectsAtTheFirstSendAndOnce) {
  EXPECT_TRUE(absl::IsNotFound(Send(1))) << "no address yet";
  EXPECT_FALSE(peers_.SetAddress(shard_, "a"));
  EXPECT_EQ(transport_.last_peer, 0u);
  EXPECT_TRUE(Send(2).ok());
  EXPECT_TRUE(Send(3).ok());
  EXPECT_EQ(transport_.connected, (std::map<transport::PeerId, std::string>{{1, "a"}}));
  EXPECT_EQ(transport_.sent, (Sent{{1, 2}, {1, 3}}));
  EXPECT_EQ(peers_.EndpointAt("a"), shard_);
  EXPECT_EQ(peers_.EndpointAt("b"), EndpointId());
}

TEST_F(PeerMapTest, AnswersWhereItWasSpokenTo) {
  Hear(shard_, 77);
  EXPECT_TRUE(Send(1).ok());
  EXPECT_EQ(transport_.sent, (Sent{{77, 1}}));
  Hear(shard_, 78);
  EXPECT_TRUE(Send(2).ok());
  EXPECT_EQ(transport_.sent.back(), (std::pair<transport::PeerId, int64_t>{78, 2}));
  EXPECT_EQ(Tell(Kind::kPeerLost, 78), EndpointId()) << "its connection to us, not ours to it";
  EXPECT_TRUE(absl::IsNotFound(Send(3)));
}

TEST_F(PeerMapTest, OurConnectionComesBeforeTheirs) {
  Hear(shard_, 77);
  peers_.SetAddress(shard_, "a");
  EXPECT_TRUE(Send(1).ok());
  EXPECT_EQ(transport_.sent, (Sent{{1, 1}}));
}

TEST_F(PeerMapTest, WhatIsRefusedIsParkedAndGoesInOrder) {
  peers_.SetAddress(shard_, "a");
  transport_.full = {1};
  for (int64_t step = 1; step <= 3; ++step) EXPECT_TRUE(Send(step).ok());
  EXPECT_TRUE(transport_.sent.empty());
  transport_.full.clear();
  EXPECT_TRUE(Send(4).ok()) << "behind those that are parked";
  EXPECT_TRUE(transport_.sent.empty());
  Tell(Kind::kWritable, 2);
  EXPECT_TRUE(transport_.sent.empty()) << "somebody else's";
  Tell(Kind::kWritable, 1);
  EXPECT_EQ(transport_.sent, (Sent{{1, 1}, {1, 2}, {1, 3}, {1, 4}}));
}

TEST_F(PeerMapTest, ParkedFramesAreBounded) {
  peers_.SetAddress(shard_, "a");
  transport_.full = {1};
  int parked = 0;
  while (parked < 100000 && Send(parked).ok()) ++parked;
  EXPECT_LT(parked, 100000);
  EXPECT_TRUE(absl::IsResourceExhausted(Send(parked)));
}

// No connection is made that could ever say that it has room.
TEST_F(PeerMapTest, WithoutAnythingLeftForAConnectionNothingIsParked) {
  peers_.SetAddress(shard_, "exhausted");
  for (int64_t step = 1; step <= 2; ++step) {
    const absl::Status sent = Send(step);
    EXPECT_TRUE(absl::IsUnavailable(sent)) << sent;
    EXPECT_EQ(sent.message(), "no descriptors");
  }
  peers_.SetAddress(shard_, "a");
  EXPECT_TRUE(Send(3).ok());
  EXPECT_EQ(transport_.sent, (Sent{{1, 3}}));
}

// Nobody would ever say that a lost peer is writable.
TEST_F(PeerMapTest, ALostPeerWithParkedFramesIsConnectedAgain) {
  for (const Kind loss : {Kind::kPeerLost, Kind::kPeerClosed}) {
    SCOPED_TRACE(loss == Kind::kPeerLost ? "lost" : "closed");
    peers_.SetAddress(shard_, "a");
    const transport::PeerId first = transport_.last_peer + 1;
    transport_.full = {first};
    transport_.sent.clear();
    EXPECT_TRUE(Send(1).ok());
    EXPECT_TRUE(Send(2).ok());
    EXPECT_EQ(Tell(loss, first), shard_);
    EXPECT_TRUE(Send(3).ok());
    EXPECT_EQ(transport_.connected[first + 1], "a");
    EXPECT_EQ(transport_.sent, (Sent{{first + 1, 3}})) << "parked ones went with the connection";
    EXPECT_EQ(Tell(loss, first), EndpointId()) << "known already";
    EXPECT_EQ(Tell(loss, first + 1), shard_);
  }
}

// The same for one that is answered on its own connection and parks.
TEST_F(PeerMapTest, AnAskerThatComesBackIsAnswered) {
  Hear(shard_, 77);
  transport_.full = {77};
  EXPECT_TRUE(Send(1).ok());
  Tell(Kind::kPeerLost, 77);
  Hear(shard_, 78);
  EXPECT_TRUE(Send(2).ok());
  EXPECT_EQ(transport_.sent, (Sent{{78, 2}}));
}

// It may speak on a new connection before the loss of the old one is seen.
TEST_F(PeerMapTest, AnAskerThatComesBackBeforeItsLossIsSeenIsAnswered) {
  Hear(shard_, 77);
  transport_.full = {77};
  EXPECT_TRUE(Send(1).ok());  // parked
  Hear(shard_, 78);
  Tell(Kind::kPeerLost, 77);
  EXPECT_TRUE(Send(2).ok());
  EXPECT_EQ(transport_.sent, (Sent{{78, 2}}));
}

// A process that has taken the place of another gets nothing that was meant for that one.
TEST_F(PeerMapTest, ANewAddressIsANewPeer) {
  peers_.SetAddress(shard_, "a");
  transport_.full = {1};
  EXPECT_TRUE(Send(1).ok());
  EXPECT_FALSE(peers_.SetAddress(shard_, "a"));
  EXPECT_TRUE(peers_.SetAddress(shard_, "b"));
  EXPECT_EQ(transport_.closed, std::vector<transport::PeerId>{1});
  EXPECT_TRUE(Send(2).ok());
  EXPECT_EQ(transport_.sent, (Sent{{2, 2}}));
  EXPECT_EQ(transport_.connected[2], "b");
}

// The transport knows of a loss before its event has been read.
TEST_F(PeerMapTest, WhatIsGoneIsSaid) {
  peers_.SetAddress(shard_, "a");
  EXPECT_TRUE(Send(1).ok());
  transport_.gone = {1};
  EXPECT_TRUE(absl::IsNotFound(Send(2)));
  Tell(Kind::kPeerLost, 1);
  EXPECT_TRUE(Send(3).ok());
  EXPECT_EQ(transport_.sent, (Sent{{1, 1}, {2, 3}}));
  peers_.SetAddress(EndpointId::Shard(0, 0), "malformed");
  EXPECT_TRUE(absl::IsInvalidArgument(
      peers_.Send({EndpointId::Shard(0, 0), FrameOf(EndpointId::Worker(0), 1)})));
}

}  // namespace
}  // namespace tandem
