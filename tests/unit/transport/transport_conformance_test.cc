// What transport/transport.h promises, shown for every transport. A new transport joins by a
// TransportWorld (how to make endpoints, strangers and victims of it) and a line at the end of the
// suite.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"
#include "tests/unit/transport/multi_world.h"
#include "tests/unit/transport/shm_world.h"
#ifdef TANDEM_HAVE_RDMA
#include "tests/unit/rdma/rdma_world.h"
#endif
#include "tests/unit/transport/transport_world.h"
#include "transport/in_process.h"
#include "transport/proof.h"
#include "transport/transport.h"
#include "transport/zmq_transport.h"

namespace tandem {
namespace {

using Kind = transport::TransportEvent::Kind;

// Long enough for the slowest build on the busiest machine; nothing passes by waiting for it.
constexpr absl::Duration kPatience = absl::Seconds(200);
constexpr absl::Duration kDeathIsSeenWithin = absl::Seconds(3);

// ---- in process ----

class InProcessVictim final : public Victim {
 public:
  InProcessVictim(const transport::InProcessNetwork& network,
                  std::unique_ptr<transport::Transport> transport, const std::string& connect_to)
      : network_(network), transport_(std::move(transport)) {
    thread_ = std::thread([this, connect_to] { Run(connect_to); });
  }
  ~InProcessVictim() override {
    stop_ = true;
    transport_->Wake();
    thread_.join();
  }
  std::string address() const override { return transport_->address(); }
  void Kill() override { TANDEM_CHECK_OK(network_.Kill(transport_->address())); }

 private:
  void Run(const std::string& connect_to) {
    if (!connect_to.empty()) {
      FrameHeader hello;
      hello.kind = FrameKind::kAck;
      auto peer = transport_->Connect(connect_to);
      TANDEM_CHECK_OK(peer.status());
      TANDEM_CHECK_OK(
          transport_->Send(*peer, EncodeDataFrame(*transport_, hello, {}, Buffer(), Buffer())));
    }
    for (std::vector<transport::TransportEvent> events; !stop_; events.clear()) {
      transport_->Poll(absl::InfiniteDuration(), &events);
      for (transport::TransportEvent& event : events) {
        if (event.kind != Kind::kFrame) continue;
        transport_->Send(event.peer, std::move(event.frame.frame)).IgnoreError();
      }
    }
  }

  const transport::InProcessNetwork network_;
  const std::unique_ptr<transport::Transport> transport_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class InProcessWorld final : public TransportWorld {
 public:
  std::unique_ptr<transport::Transport> New(const EndpointOptions& options) override {
    auto made = network_.NewTransport({.address = options.address,
                                       .send_queue_frames = options.send_queue_frames,
                                       .connect_deadline = options.connect_deadline});
    TANDEM_CHECK_OK(made.status());
    return *std::move(made);
  }
  std::string FreeAddress() override { return "inproc:not-yet"; }
  void SendRaw(const std::string& address, const Parts& parts) override {
    Frame frame;
    // A Frame cannot hold more parts than it may have; its count can say so.
    frame.parts = static_cast<int>(parts.size());
    for (size_t i = 0; i < parts.size() && i < size_t{kMaxFrameParts}; ++i) {
      frame.part[i] = CopyToBuffer(heap_, parts[i]);
    }
    TANDEM_CHECK_OK(network_.Inject(address, std::move(frame)));
  }
  std::unique_ptr<Victim> NewVictim(const std::string& address,
                                    const std::string& connect_to) override {
    return std::make_unique<InProcessVictim>(network_, New({.address = address}), connect_to);
  }

 private:
  transport::InProcessNetwork network_;
  HeapBufferSource heap_;
};

// ---- ZeroMQ ----

class ZmqWorld final : public TransportWorld {
 public:
  enum class Keys { kNone, kProven, kEncrypted };
  explicit ZmqWorld(bool ipc, Keys keys = Keys::kNone)
      : context_(std::make_shared<transport::ZmqContext>(1)), encrypted_(keys == Keys::kEncrypted) {
    if (keys != Keys::kNone) {
      const std::string token = transport::JobKeys::NewToken();
      keys_ = std::make_shared<transport::JobKeys>(*transport::JobKeys::FromToken(token));
      setenv("TANDEM_TOKEN", token.c_str(), 1);  // for victims
      if (!encrypted_) setenv("TANDEM_NOT_ENCRYPTED", "1", 1);
    }
    if (!ipc) return;
    std::string directory = ::testing::TempDir() + "tandem-ipc-XXXXXX";
    TANDEM_CHECK(mkdtemp(directory.data()) != nullptr);
    ipc_directory_ = directory;
  }
  ~ZmqWorld() override {
    unsetenv("TANDEM_TOKEN");
    unsetenv("TANDEM_NOT_ENCRYPTED");
    for (std::thread& thread : proofs_) thread.join();
    for (void* const socket : strangers_) zmq_close(socket);
    if (!ipc_directory_.empty()) std::filesystem::remove_all(ipc_directory_);
  }

  transport::ZmqOptions Options() const {
    transport::ZmqOptions options;
    options.context = context_;
    options.keys = keys_;
    options.encrypted = encrypted_;
    options.bind = Any();
    options.linger = kPatience;
    // Tests drive both ends from one thread, so nobody answers. Encryption makes connecting slower.
    options.goodbye_wait = absl::Milliseconds(encrypted_ ? 400 : 50);
    return options;
  }
  std::unique_ptr<transport::Transport> New(const EndpointOptions& want) override {
    transport::ZmqOptions options = Options();
    if (!want.address.empty()) options.bind = want.address;
    options.send_queue_frames = want.send_queue_frames;
    options.connect_deadline = want.connect_deadline;
    auto made = transport::NewZmqTransport(options);
    TANDEM_CHECK_OK(made.status());
    return *std::move(made);
  }
  std::string FreeAddress() override {  // free again by then
    return New({.address = ipc_directory_.empty() ? TcpAddressForLater() : ""})->address();
  }
  void SendRaw(const std::string& address, const Parts& parts) override {
    // An address may end with the number of its endpoint.
    const std::string number = address.substr(std::min(address.find('#') + 1, address.size()));
    void* const dealer = NewStranger(number);
    TANDEM_CHECK(zmq_connect(dealer, address.substr(0, address.find('#')).c_str()) == 0);
    const auto send = [dealer, parts] {
      for (size_t i = 0; i < parts.size(); ++i) {
        const int flags = i + 1 < parts.size() ? ZMQ_SNDMORE : 0;
        TANDEM_CHECK(zmq_send(dealer, parts[i].data(), parts[i].size(), flags) >= 0);
      }
    };
    if (keys_ == nullptr || encrypted_) return send();
    // The other end answers when the test polls it.
    proofs_.emplace_back([dealer, send, number, keys = keys_] {
      transport::Proof proof(transport::Proof::Side::kConnects, keys, number);
      const std::string hello = proof.Hello();
      TANDEM_CHECK(zmq_send(dealer, hello.data(), hello.size(), 0) > 0);
      std::array<char, transport::Proof::kMaxBytes> challenge;
      TANDEM_CHECK(zmq_recv(dealer, challenge.data(), challenge.size(), 0) ==
                   static_cast<int>(challenge.size()));
      const std::string answer = *proof.Take({challenge.data(), challenge.size()});
      TANDEM_CHECK(zmq_send(dealer, answer.data(), answer.size(), 0) > 0);
      send();
    });
  }
  std::unique_ptr<Victim> NewVictim(const std::string& address,
                                    const std::string& connect_to) override {
    return std::make_unique<ChildVictim>(address.empty() ? Any() : address, connect_to);
  }
  void* NewStranger(const std::string& endpoint = "") {
    strangers_.push_back(zmq_socket(context_->handle(), ZMQ_DEALER));
    const int none = 0;
    zmq_setsockopt(strangers_.back(), ZMQ_LINGER, &none, sizeof none);
    if (keys_ != nullptr) SetKeys(strangers_.back(), *keys_, encrypted_, endpoint);
    return strangers_.back();
  }
  static void SetKeys(void* dealer, const transport::JobKeys& keys, bool encrypted,
                      const std::string& endpoint) {
    if (!encrypted) {
      const std::string password = keys.PasswordOf(endpoint);
      TANDEM_CHECK(zmq_setsockopt(dealer, ZMQ_PLAIN_USERNAME, "tandem", 6) == 0);
      TANDEM_CHECK(zmq_setsockopt(dealer, ZMQ_PLAIN_PASSWORD, password.data(), password.size()) ==
                   0);
      return;
    }
    const auto set = [dealer](int option, const std::string& key) {
      TANDEM_CHECK(zmq_setsockopt(dealer, option, key.c_str(), key.size() + 1) == 0);
    };
    set(ZMQ_CURVE_SERVERKEY, keys.curve_public());
    set(ZMQ_CURVE_PUBLICKEY, keys.curve_public());
    set(ZMQ_CURVE_SECRETKEY, keys.curve_secret());
  }

 private:
  std::string Any() const {
    if (ipc_directory_.empty()) return "tcp://127.0.0.1:*";
    return absl::StrCat("ipc://", ipc_directory_, "/", context_->NextNumber());
  }
  std::string ipc_directory_;
  std::shared_ptr<const transport::JobKeys> keys_;
  const std::shared_ptr<transport::ZmqContext> context_;
  const bool encrypted_;
  std::vector<std::thread> proofs_;  // of strangers
  std::vector<void*> strangers_;
};

// ---- vocabulary ----

// An endpoint and everything that happened at it.
struct Node {
  std::unique_ptr<transport::Transport> transport;
  std::vector<transport::TransportEvent> events;

  transport::Transport* operator->() const { return transport.get(); }
  void Poll(absl::Duration timeout = absl::Milliseconds(1)) { transport->Poll(timeout, &events); }
  int Count(Kind kind) const {
    int count = 0;
    for (const transport::TransportEvent& event : events) count += event.kind == kind;
    return count;
  }
  const transport::TransportEvent* First(Kind kind) const {
    for (const transport::TransportEvent& event : events) {
      if (event.kind == kind) return &event;
    }
    return nullptr;
  }
  std::vector<int64_t> Steps(transport::PeerId peer) const {
    std::vector<int64_t> steps;
    for (const transport::TransportEvent& event : events) {
      if (event.kind == Kind::kFrame && event.peer == peer) {
        steps.push_back(event.frame.header.step);
      }
    }
    return steps;
  }
};

// Polls the nodes in turn until the condition holds; false when time is up.
bool PumpUntil(std::initializer_list<Node*> nodes, const std::function<bool()>& condition,
               absl::Duration limit = kPatience) {
  const absl::Time deadline = MonotonicNow() + limit;
  while (!condition()) {
    if (MonotonicNow() > deadline) return false;
    for (Node* node : nodes) node->Poll();
  }
  return true;
}

Buffer Pattern(BufferSource& source, size_t bytes, uint64_t seed) {
  Buffer buffer = source.Alloc(bytes);
  Random random(seed);
  for (size_t at = 0; at < bytes; at += 8) {
    const uint64_t word = random.Next64();
    std::memcpy(buffer.mutable_data() + at, &word, std::min<size_t>(8, bytes - at));
  }
  return buffer;
}

bool HasPattern(const Buffer& buffer, size_t bytes, uint64_t seed) {
  HeapBufferSource heap;
  const Buffer want = Pattern(heap, bytes, seed);
  return buffer.size() == bytes &&
         (bytes == 0 || std::memcmp(buffer.data(), want.data(), bytes) == 0);
}

// SEGMENT frames may carry parts of any size.
Frame Segment(BufferSource& source, int64_t step, size_t key_bytes = 0, size_t value_bytes = 0) {
  FrameHeader header;
  header.kind = FrameKind::kSegment;
  header.step = step;
  const auto part = [&](size_t bytes, uint64_t seed) {
    return bytes == 0 ? Buffer() : Pattern(source, bytes, seed);
  };
  const auto seed = static_cast<uint64_t>(step);
  return EncodeDataFrame(source, header, {}, part(key_bytes, seed), part(value_bytes, seed + 1));
}

Parts RawParts(const Frame& frame) {
  Parts parts;
  for (int i = 0; i < frame.parts; ++i) {
    parts.emplace_back(frame.part[i].data(), frame.part[i].data() + frame.part[i].size());
  }
  return parts;
}

std::vector<int64_t> Iota(int64_t from, int64_t to) {
  std::vector<int64_t> all;
  for (int64_t i = from; i < to; ++i) all.push_back(i);
  return all;
}

enum class WorldKind { kInProcess, kZmqTcp, kZmqIpc, kZmqCurve, kZmqProof, kShm, kMulti, kRdma };

std::unique_ptr<TransportWorld> NewWorld(WorldKind kind) {
  if (kind == WorldKind::kInProcess) return std::make_unique<InProcessWorld>();
#ifdef TANDEM_HAVE_RDMA
  if (kind == WorldKind::kRdma) return std::make_unique<RdmaWorld>(rdma::RdmaOptions());
#endif
  if (kind == WorldKind::kShm) return std::make_unique<ShmWorld>();
  if (kind == WorldKind::kMulti) return std::make_unique<MultiWorld>();
  const ZmqWorld::Keys keys = kind == WorldKind::kZmqCurve   ? ZmqWorld::Keys::kEncrypted
                              : kind == WorldKind::kZmqProof ? ZmqWorld::Keys::kProven
                                                             : ZmqWorld::Keys::kNone;
  return std::make_unique<ZmqWorld>(/*ipc=*/kind == WorldKind::kZmqIpc, keys);
}

class TransportTest : public ::testing::TestWithParam<WorldKind> {
 protected:
  void SetUp() override {
    if (!world_->missing().empty()) GTEST_SKIP() << world_->missing();
  }
  Node New(const EndpointOptions& options = {}) { return {world_->New(options), {}}; }
  transport::PeerId Connect(Node& from, const std::string& address) {
    auto peer = from->Connect(address);
    EXPECT_TRUE(peer.ok()) << peer.status();
    return *peer;
  }
  // Connects a to b and has one frame pass, so that b knows a. Returns b's name for a.
  transport::PeerId Introduce(Node& a, transport::PeerId b_at_a, Node& b) {
    EXPECT_TRUE(a->Send(b_at_a, Segment(*a.transport, -1)).ok());
    EXPECT_TRUE(PumpUntil({&a, &b}, [&] { return b.First(Kind::kFrame) != nullptr; }));
    const transport::PeerId a_at_b = b.First(Kind::kFrame)->peer;
    b.events.clear();
    return a_at_b;
  }
  // Sends until the queue is full; returns how many frames were taken.
  int64_t Fill(Node& node, transport::PeerId peer, size_t bytes) {
    int64_t sent = 0;
    for (; sent < 10'000; ++sent) {
      const absl::Status status = node->Send(peer, Segment(*node.transport, sent, 0, bytes));
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
      return sent;
    }
    ADD_FAILURE() << "the queue has no bound";
    return sent;
  }

  const std::unique_ptr<TransportWorld> world_ = NewWorld(GetParam());
};

// ---- the suite ----

TEST_P(TransportTest, FramesOfEachPeerArriveInOrderAndUnchanged) {
  Node hub = New(), a = New(), b = New();
  const transport::PeerId hub_at_a = Connect(a, hub->address()),
                          hub_at_b = Connect(b, hub->address());
  const transport::PeerId a_at_hub = Introduce(a, hub_at_a, hub),
                          b_at_hub = Introduce(b, hub_at_b, hub);
  ASSERT_NE(a_at_hub, b_at_hub);
  constexpr int64_t kFrames = 900;
  for (int64_t i = 0; i < kFrames; ++i) {
    const auto size = static_cast<size_t>(i);
    ASSERT_TRUE(a->Send(hub_at_a, Segment(*a.transport, i, size * 8, size * 40)).ok());
    ASSERT_TRUE(b->Send(hub_at_b, Segment(*b.transport, i, 0, size)).ok());
  }
  ASSERT_TRUE(PumpUntil({&a, &b, &hub}, [&] { return hub.Count(Kind::kFrame) == 2 * kFrames; }));
  EXPECT_EQ(hub.Steps(a_at_hub), Iota(0, kFrames));
  EXPECT_EQ(hub.Steps(b_at_hub), Iota(0, kFrames));
  for (const transport::TransportEvent& event : hub.events) {
    const auto i = static_cast<uint64_t>(event.frame.header.step);
    const bool from_a = event.peer == a_at_hub;
    ASSERT_TRUE(HasPattern(event.frame.keys(), from_a ? i * 8 : 0, i));
    ASSERT_TRUE(HasPattern(event.frame.values(), from_a ? i * 40 : i, i + 1));
    ASSERT_EQ(reinterpret_cast<uintptr_t>(event.frame.values().data()) % 8, 0u);
  }
  EXPECT_EQ(a->counters().frames_sent, uint64_t{kFrames} + 1);
  EXPECT_EQ(hub->counters().frames_received, 2 * uint64_t{kFrames} + 2);
  EXPECT_EQ(hub->counters().bytes_received, a->counters().bytes_sent + b->counters().bytes_sent);
}

TEST_P(TransportTest, PartsMayBeEmptyOrLarge) {
  Node a = New(), b = New({.send_queue_frames = 1});
  const transport::PeerId b_at_a = Connect(a, b->address());
  // Larger than any ring. Soft-RoCE that loses 1 % of its packets sends each byte about seven
  // times, and 16 MiB already take an emulated processor 20 s.
  const size_t kLarge = size_t{GetParam() == WorldKind::kRdma ? 16u : 64u} << 20;
  ASSERT_TRUE(a->Send(b_at_a, Segment(*a.transport, 0)).ok());
  ASSERT_TRUE(a->Send(b_at_a, Segment(*a.transport, 1, 0, 24)).ok());
  ASSERT_TRUE(a->Send(b_at_a, Segment(*a.transport, 2, 8, 0)).ok());
  ASSERT_TRUE(a->Send(b_at_a, Segment(*a.transport, 3, 8, kLarge)).ok());
  ASSERT_TRUE(PumpUntil({&a, &b}, [&] { return b.Count(Kind::kFrame) == 4; }));
  EXPECT_EQ(b.events[0].frame.frame.parts, 1);
  EXPECT_TRUE(b.events[1].frame.keys().empty());
  EXPECT_TRUE(HasPattern(b.events[1].frame.values(), 24, 2));
  EXPECT_EQ(b.events[2].frame.frame.parts, 2);
  EXPECT_TRUE(HasPattern(b.events[3].frame.values(), kLarge, 4));
}

TEST_P(TransportTest, TheBoundSideCanAnswer) {
  Node a = New(), b = New();
  const transport::PeerId b_at_a = Connect(a, b->address());
  const transport::PeerId a_at_b = Introduce(a, b_at_a, b);
  for (int64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(b->Send(a_at_b, Segment(*b.transport, i, 16, 10'000)).ok());
  }
  ASSERT_TRUE(PumpUntil({&a, &b}, [&] { return a.Count(Kind::kFrame) == 10; }));
  EXPECT_EQ(a.Steps(b_at_a), Iota(0, 10));
}

TEST_P(TransportTest, FramesSentBeforeThePeerListensArriveInOrder) {
  const std::string address = world_->FreeAddress();
  Node a = New();
  const transport::PeerId b_at_a = Connect(a, address);
  for (int64_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(a->Send(b_at_a, Segment(*a.transport, i, 0, 100)).ok());
  }
  a.Poll(absl::Milliseconds(120));  // some attempts fail first
  Node b = New({.address = address});
  ASSERT_TRUE(PumpUntil({&a, &b}, [&] { return b.Count(Kind::kFrame) == 20; }));
  EXPECT_EQ(b.Steps(b.events[0].peer), Iota(0, 20));
  EXPECT_TRUE(a.events.empty());
}

TEST_P(TransportTest, AFullQueueRefusesAndSaysWhenItHasRoomAgain) {
  Node a = New({.send_queue_frames = 4}), b = New({.send_queue_frames = 4});
  const transport::PeerId b_at_a = Connect(a, b->address());
  Introduce(a, b_at_a, b);
  const int64_t sent = Fill(a, b_at_a, 256 << 10);
  ASSERT_GE(sent, 4);
  ASSERT_TRUE(PumpUntil({&a, &b}, [&] { return a.Count(Kind::kWritable) > 0; }));
  EXPECT_EQ(a.First(Kind::kWritable)->peer, b_at_a);
  ASSERT_TRUE(a->Send(b_at_a, Segment(*a.transport, sent)).ok());
  ASSERT_TRUE(PumpUntil({&a, &b}, [&] { return b.Count(Kind::kFrame) == sent + 1; }));
  EXPECT_EQ(b.Steps(b.events[0].peer), Iota(0, sent + 1)) << "the refused frame was not sent";
  EXPECT_EQ(a.Count(Kind::kWritable), 1);
}

TEST_P(TransportTest, TheBoundSidesQueueIsBoundedPerPeer) {
  Node hub = New({.send_queue_frames = 4}), slow = New({.send_queue_frames = 4}), quick = New();
  const transport::PeerId hub_at_slow = Connect(slow, hub->address());
  const transport::PeerId hub_at_quick = Connect(quick, hub->address());
  const transport::PeerId slow_at_hub = Introduce(slow, hub_at_slow, hub);
  const transport::PeerId quick_at_hub = Introduce(quick, hub_at_quick, hub);
  const int64_t sent = Fill(hub, slow_at_hub, 256 << 10);
  ASSERT_TRUE(hub->Send(quick_at_hub, Segment(*hub.transport, 7)).ok())
      << "a slow peer is no concern of others";
  ASSERT_TRUE(PumpUntil({&hub, &quick}, [&] { return quick.Count(Kind::kFrame) == 1; }));
  ASSERT_TRUE(PumpUntil({&hub, &slow}, [&] { return hub.Count(Kind::kWritable) == 1; }));
  EXPECT_EQ(hub.First(Kind::kWritable)->peer, slow_at_hub);
  ASSERT_TRUE(PumpUntil({&hub, &slow}, [&] { return slow.Count(Kind::kFrame) == sent; }));
}

TEST_P(TransportTest, TheConnectingSideSeesAKilledPeer) {
  const auto victim = world_->NewVictim("", "");
  Node a = New();
  const transport::PeerId peer = Connect(a, victim->address());
  ASSERT_TRUE(a->Send(peer, Segment(*a.transport, 5, 8, 8)).ok());
  ASSERT_TRUE(PumpUntil({&a}, [&] { return a.Count(Kind::kFrame) == 1; }));
  victim->Kill();
  ASSERT_TRUE(PumpUntil(
      {&a}, [&] { return a.Count(Kind::kPeerLost) == 1; }, kDeathIsSeenWithin));
  EXPECT_EQ(a.First(Kind::kPeerLost)->peer, peer);
  EXPECT_FALSE(a.First(Kind::kPeerLost)->why.ok());
  EXPECT_EQ(a->Send(peer, Segment(*a.transport, 6)).code(), absl::StatusCode::kNotFound);
  a.Poll(absl::Milliseconds(50));
  EXPECT_EQ(a.events.size(), 2u) << "one event, once";
}

TEST_P(TransportTest, TheBoundSideSeesAKilledPeer) {
  Node a = New();
  const auto victim = world_->NewVictim("", a->address());
  ASSERT_TRUE(PumpUntil({&a}, [&] { return a.Count(Kind::kFrame) == 1; }));
  const transport::PeerId peer = a.events[0].peer;
  victim->Kill();
  ASSERT_TRUE(PumpUntil(
      {&a}, [&] { return a.Count(Kind::kPeerLost) == 1; }, kDeathIsSeenWithin));
  EXPECT_EQ(a.First(Kind::kPeerLost)->peer, peer);
  EXPECT_EQ(a->Send(peer, Segment(*a.transport, 6)).code(), absl::StatusCode::kNotFound);
  a.Poll(absl::Milliseconds(50));
  EXPECT_EQ(a.events.size(), 2u) << "one event, once";
}

TEST_P(TransportTest, ARestartedPeerAtTheSameAddressIsANewPeer) {
  Node a = New();
  auto victim = world_->NewVictim("", "");
  const std::string address = victim->address();
  const transport::PeerId first = Connect(a, address);
  ASSERT_TRUE(a->Send(first, Segment(*a.transport, 1)).ok());
  ASSERT_TRUE(PumpUntil({&a}, [&] { return a.Count(Kind::kFrame) == 1; }));
  victim->Kill();
  // Not known to be dead yet, so these may be taken; they must not reach the successor.
  for (int64_t i = 100; i < 110; ++i) a->Send(first, Segment(*a.transport, i)).IgnoreError();
  victim.reset();
  victim = world_->NewVictim(address, "");
  ASSERT_TRUE(PumpUntil({&a}, [&] { return a.Count(Kind::kPeerLost) == 1; }));
  a.events.clear();
  const transport::PeerId second = Connect(a, address);
  EXPECT_NE(first, second);
  ASSERT_TRUE(a->Send(second, Segment(*a.transport, 2)).ok());
  ASSERT_TRUE(PumpUntil({&a}, [&] { return a.Count(Kind::kFrame) == 1; }));
  EXPECT_EQ(a.Steps(second), std::vector<int64_t>{2});
}

TEST_P(TransportTest, CloseDeliversWhatWasQueuedAndThenSaysGoodbye) {
  Node a = New(), b = New();
  const transport::PeerId b_at_a = Connect(a, b->address());
  for (int64_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(a->Send(b_at_a, Segment(*a.transport, i, 0, 10'000)).ok());
  }
  a->Close(b_at_a);
  EXPECT_EQ(a->Send(b_at_a, Segment(*a.transport, 50)).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(PumpUntil({&a, &b}, [&] { return b.Count(Kind::kPeerClosed) == 1; }));
  EXPECT_EQ(b.Steps(b.events[0].peer), Iota(0, 50));
  EXPECT_EQ(b.events.back().kind, Kind::kPeerClosed);
  EXPECT_EQ(b->Send(b.events.back().peer, Segment(*b.transport, 0)).code(),
            absl::StatusCode::kNotFound);
  a.Poll(absl::Milliseconds(100));
  b.Poll(absl::Milliseconds(100));
  EXPECT_EQ(b.Count(Kind::kPeerLost), 0) << "an orderly end is not a loss";
  EXPECT_TRUE(a.events.empty()) << "whoever closes forgets";
}

TEST_P(TransportTest, TheBoundSideCanCloseToo) {
  Node a = New(), b = New();
  const transport::PeerId b_at_a = Connect(a, b->address());
  const transport::PeerId a_at_b = Introduce(a, b_at_a, b);
  ASSERT_TRUE(b->Send(a_at_b, Segment(*b.transport, 3)).ok());
  b->Close(a_at_b);
  ASSERT_TRUE(PumpUntil({&a, &b}, [&] { return a.Count(Kind::kPeerClosed) == 1; }));
  EXPECT_EQ(a.Steps(b_at_a), std::vector<int64_t>{3});
  b.Poll(absl::Milliseconds(100));
  EXPECT_TRUE(b.events.empty());
}

TEST_P(TransportTest, AnEndpointThatGoesSaysGoodbyeToAll) {
  Node hub = New(), a = New();
  auto b = std::make_unique<Node>(New());
  const transport::PeerId hub_at_b = Connect(*b, hub->address());
  const transport::PeerId b_at_hub = Introduce(*b, hub_at_b, hub);
  const transport::PeerId b_at_a = Connect(a, (*b)->address());
  Introduce(a, b_at_a, *b);
  for (int64_t i = 0; i < 5; ++i) {
    ASSERT_TRUE((*b)->Send(hub_at_b, Segment(*b->transport, i, 0, 1 << 20)).ok());
  }
  b.reset();
  ASSERT_TRUE(PumpUntil({&hub, &a}, [&] {
    return hub.Count(Kind::kPeerClosed) == 1 && a.Count(Kind::kPeerClosed) == 1;
  }));
  EXPECT_EQ(hub.Steps(b_at_hub), Iota(0, 5)) << "what was queued still arrives";
  EXPECT_EQ(hub.Count(Kind::kPeerLost) + a.Count(Kind::kPeerLost), 0);
}

TEST_P(TransportTest, NobodyThereIsALossAtTheDeadline) {
  Node a = New({.connect_deadline = absl::Milliseconds(300)});
  const transport::PeerId peer = Connect(a, world_->FreeAddress());
  ASSERT_TRUE(a->Send(peer, Segment(*a.transport, 0)).ok()) << "queued";
  ASSERT_TRUE(PumpUntil({&a}, [&] { return !a.events.empty(); }));
  EXPECT_EQ(a.events[0].kind, Kind::kPeerLost);
  EXPECT_EQ(a.events[0].peer, peer);
  EXPECT_EQ(a.events[0].why.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(a->Send(peer, Segment(*a.transport, 1)).code(), absl::StatusCode::kNotFound);
}

TEST_P(TransportTest, MalformedAddressesAreRefused) {
  Node a = New();
  for (const char* address : {"", "nonsense", "http://127.0.0.1:80", "tcp:/127.0.0.1:1"}) {
    EXPECT_EQ(a->Connect(address).status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
}

TEST_P(TransportTest, GarbageIsReportedAndDisturbsNobody) {
  Node hub = New(), good = New();
  const transport::PeerId hub_at_good = Connect(good, hub->address());
  const transport::PeerId good_at_hub = Introduce(good, hub_at_good, hub);
  const Parts whole = RawParts(Segment(*good.transport, 9, 64, 4096));
  std::vector<Parts> garbage = {
      {{}},                                      // nothing at all
      {{1, 2, 3}},                               // too short for a header
      {std::vector<uint8_t>(80, 0)},             // no magic
      {whole[0]},                                // says three parts, has one
      {whole[0], whole[1]},                      // last part missing
      {whole[0], whole[1], whole[2], {1}, {2}},  // five parts
      Parts(300, std::vector<uint8_t>(9, 7)),    // far too many parts
      {std::vector<uint8_t>(100'000, 0xff)},     // large and senseless
  };
  garbage.push_back(whole);
  garbage.back()[0].resize(whole[0].size() - 1);  // header cut
  garbage.push_back(whole);
  garbage.back()[0][20] ^= 4;  // a flipped bit
  Random random(TestSeed());
  for (int i = 0; i < 10; ++i) {
    std::vector<uint8_t> noise(random.Uniform(400));
    for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random.Next64());
    garbage.push_back({noise});
  }
  for (const Parts& parts : garbage) world_->SendRaw(hub->address(), parts);
  const int count = static_cast<int>(garbage.size());
  ASSERT_TRUE(PumpUntil({&hub, &good}, [&] { return hub.Count(Kind::kGarbage) == count; }));
  for (const transport::TransportEvent& event : hub.events) {
    EXPECT_EQ(event.kind, Kind::kGarbage);
    EXPECT_NE(event.peer, good_at_hub);
    EXPECT_FALSE(event.why.ok());
  }
  hub.events.clear();
  ASSERT_TRUE(good->Send(hub_at_good, Segment(*good.transport, 1)).ok());
  ASSERT_TRUE(PumpUntil({&hub, &good}, [&] { return hub.Count(Kind::kFrame) == 1; }));
  EXPECT_EQ(hub.First(Kind::kFrame)->peer, good_at_hub);
}

TEST_P(TransportTest, WakeEndsAPollOfAnotherThread) {
  Node a = New();
  std::thread waiter([&] { a.Poll(absl::InfiniteDuration()); });
  a->Wake();
  waiter.join();  // would hang for ever
  EXPECT_TRUE(a.events.empty());
  a->Wake();
  a.Poll(absl::InfiniteDuration());  // a Wake before the Poll counts as well
}

TEST_P(TransportTest, APollWithNothingToReportEndsAtItsTimeout) {
  Node a = New();
  const absl::Time start = MonotonicNow();
  a.Poll(absl::Milliseconds(30));
  EXPECT_GE(MonotonicNow() - start, absl::Milliseconds(29));
  a.Poll(absl::ZeroDuration());
  EXPECT_TRUE(a.events.empty());
}

TEST_P(TransportTest, BuffersMayOutliveTheirTransport) {
  Buffer received, small, mine;
  {
    Node a = New(), b = New();
    const transport::PeerId b_at_a = Connect(a, b->address());
    ASSERT_TRUE(a->Send(b_at_a, Segment(*a.transport, 1, 64, 1 << 20)).ok());
    ASSERT_TRUE(PumpUntil({&a, &b}, [&] { return b.Count(Kind::kFrame) == 1; }));
    received = b.events[0].frame.values();
    small = b.events[0].frame.keys();
    mine = Pattern(*a.transport, 100, 77);
  }
  EXPECT_TRUE(HasPattern(received, 1 << 20, 2));
  EXPECT_TRUE(HasPattern(small, 64, 1));
  EXPECT_TRUE(HasPattern(mine, 100, 77));
  std::thread([&] { received = Buffer(); }).join();  // on any thread
}

TEST_P(TransportTest, ReceivedBuffersCanBeSentOn) {
  Node a = New(), b = New();
  const transport::PeerId b_at_a = Connect(a, b->address());
  ASSERT_TRUE(a->Send(b_at_a, Segment(*a.transport, 1, 64, 1 << 20)).ok());
  ASSERT_TRUE(PumpUntil({&a, &b}, [&] { return b.Count(Kind::kFrame) == 1; }));
  ASSERT_TRUE(b->Send(b.events[0].peer, b.events[0].frame.frame).ok());
  b.events.clear();
  ASSERT_TRUE(PumpUntil({&a, &b}, [&] { return a.Count(Kind::kFrame) == 1; }));
  EXPECT_TRUE(HasPattern(a.events[0].frame.values(), 1 << 20, 2));
}

TEST_P(TransportTest, EndpointsOnTheirOwnThreadsSendAtOnce) {
  constexpr int64_t kFrames = 2000;
  Node hub = New({.send_queue_frames = 64});
  const std::string address = hub->address();
  const auto send_all = [&] {
    Node node = New({.send_queue_frames = 64});
    const transport::PeerId peer = Connect(node, address);
    for (int64_t i = 0; i < kFrames; ++i) {
      while (!node->Send(peer, Segment(*node.transport, i, 8, 200)).ok()) {
        node.Poll(absl::Seconds(1));  // until there is room
      }
    }
    // The answer to the last frame: the hub has all.
    ASSERT_TRUE(PumpUntil({&node}, [&] { return node.Count(Kind::kFrame) == 1; }));
  };
  std::thread one(send_all), two(send_all);
  int64_t next[2] = {0, 0};
  std::vector<transport::PeerId> peers;
  ASSERT_TRUE(PumpUntil({&hub}, [&] {
    for (const transport::TransportEvent& event : std::exchange(hub.events, {})) {
      if (event.kind != Kind::kFrame) continue;
      size_t who = 0;
      while (who < peers.size() && peers[who] != event.peer) ++who;
      if (who == peers.size()) peers.push_back(event.peer);
      EXPECT_EQ(event.frame.header.step, next[who]++);
      if (next[who] == kFrames) {
        EXPECT_TRUE(hub->Send(event.peer, Segment(*hub.transport, 0)).ok());
      }
    }
    return next[0] == kFrames && next[1] == kFrames;
  }));
  std::atomic<bool> done{false};
  std::thread poller([&] {
    while (!done) hub.Poll(absl::Milliseconds(10));
  });
  one.join();
  two.join();
  done = true;
  poller.join();
}

INSTANTIATE_TEST_SUITE_P(All, TransportTest,
                         ::testing::Values(WorldKind::kInProcess, WorldKind::kZmqTcp,
                                           WorldKind::kZmqIpc, WorldKind::kZmqCurve,
                                           WorldKind::kZmqProof, WorldKind::kShm,
                                           WorldKind::kMulti),
                         [](const auto& kind) {
                           return kind.param == WorldKind::kInProcess  ? "InProcess"
                                  : kind.param == WorldKind::kZmqTcp   ? "ZmqTcp"
                                  : kind.param == WorldKind::kZmqCurve ? "ZmqCurve"
                                  : kind.param == WorldKind::kZmqProof ? "ZmqProof"
                                  : kind.param == WorldKind::kShm      ? "Shm"
                                  : kind.param == WorldKind::kMulti    ? "Multi"
                                                                       : "ZmqIpc";
                         });

#ifdef TANDEM_HAVE_RDMA
INSTANTIATE_TEST_SUITE_P(Rdma, TransportTest, ::testing::Values(WorldKind::kRdma),
                         [](const auto&) { return "Verbs"; });
#endif

// ---- what only ZeroMQ has ----

class ZmqTransportTest : public ::testing::Test {
 protected:
  Node New(const transport::ZmqOptions& options) {
    auto made = transport::NewZmqTransport(options);
    TANDEM_CHECK_OK(made.status());
    return {*std::move(made), {}};
  }
  ZmqWorld world_{/*ipc=*/false};
};

// Sends bytes to the port of a tcp:// address and leaves the connection open; returns its socket.
int SendTcp(const std::string& address, const std::string& bytes) {
  const std::string port = std::vector<std::string>(absl::StrSplit(address, ':')).back();
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(port)));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  TANDEM_CHECK(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  TANDEM_CHECK(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
               static_cast<ssize_t>(bytes.size()));
  return fd;
}

TEST_F(ZmqTransportTest, BytesThatAreNotZmtpDisturbNobody) {
  Node hub = New(world_.Options()), good = New(world_.Options());
  const transport::PeerId hub_at_good = *good->Connect(hub->address());
  const std::string greeting("\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL", 16);  // the start of a real one
  Random random(TestSeed());
  std::string noise(10'000, '\0');
  for (char& byte : noise) byte = static_cast<char>(random.Next64());
  std::vector<int> open;
  for (const std::string& junk :
       {std::string("GET / HTTP/1.0\r\n\r\n"), std::string(), greeting,
        greeting + std::string(48, '\0') + noise, noise, std::string(500, '\0')}) {
    open.push_back(SendTcp(hub->address(), junk));
    close(SendTcp(hub->address(), junk));
  }
  for (int64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(good->Send(hub_at_good, Segment(*good.transport, i, 8, 64)).ok());
    ASSERT_TRUE(PumpUntil({&hub, &good}, [&] { return hub.Count(Kind::kFrame) > i; }));
  }
  // Some junk passes for ZMTP 1.0, which begins with a length; then it is a stranger's garbage.
  const transport::PeerId good_at_hub = hub.First(Kind::kFrame)->peer;
  EXPECT_EQ(hub.Steps(good_at_hub), Iota(0, 100));
  for (const transport::TransportEvent& event : hub.events) {
    EXPECT_EQ(event.peer == good_at_hub, event.kind == Kind::kFrame);
  }
  EXPECT_TRUE(good.events.empty());
  for (const int fd : open) close(fd);
}

TEST_F(ZmqTransportTest, APartAboveTheBoundCostsItsSenderTheConnection) {
  transport::ZmqOptions options = world_.Options();
  options.max_part_bytes = 1 << 20;
  Node hub = New(options), good = New(world_.Options()), bad = New(world_.Options());
  const transport::PeerId hub_at_good = *good->Connect(hub->address());
  const transport::PeerId hub_at_bad = *bad->Connect(hub->address());
  ASSERT_TRUE(bad->Send(hub_at_bad, Segment(*bad.transport, 1, 0, 1 << 20)).ok());
  ASSERT_TRUE(PumpUntil({&hub, &bad}, [&] { return hub.Count(Kind::kFrame) == 1; }))
      << "as much as the bound is welcome";
  const transport::PeerId bad_at_hub = hub.events[0].peer;
  ASSERT_TRUE(bad->Send(hub_at_bad, Segment(*bad.transport, 2, 0, (1 << 20) + 1)).ok());
  ASSERT_TRUE(PumpUntil({&hub, &bad}, [&] {
    return hub.Count(Kind::kPeerLost) == 1 && bad.Count(Kind::kPeerLost) == 1;
  }));
  EXPECT_EQ(hub.First(Kind::kPeerLost)->peer, bad_at_hub);
  ASSERT_TRUE(good->Send(hub_at_good, Segment(*good.transport, 3)).ok());
  ASSERT_TRUE(PumpUntil({&hub, &good}, [&] { return hub.Count(Kind::kFrame) == 2; }));
}

TEST_F(ZmqTransportTest, APeerThatChoseItsOwnRoutingIdIsGarbage) {
  Node hub = New(world_.Options()), good = New(world_.Options());
  void* const stranger = world_.NewStranger();
  TANDEM_CHECK(zmq_setsockopt(stranger, ZMQ_ROUTING_ID, "me", 2) == 0);
  TANDEM_CHECK(zmq_connect(stranger, hub->address().c_str()) == 0);
  const Frame frame = Segment(*good.transport, 1);
  TANDEM_CHECK(zmq_send(stranger, frame.part[0].data(), frame.part[0].size(), 0) > 0);
  ASSERT_TRUE(PumpUntil({&hub}, [&] { return !hub.events.empty(); }));
  EXPECT_EQ(hub.events[0].kind, Kind::kGarbage);
  EXPECT_EQ(hub.events[0].peer, 0u);
}

TEST_F(ZmqTransportTest, AHostThatFallsSilentIsLostOnBothSides) {
  transport::ZmqOptions options = world_.Options();
  options.heartbeat_interval = absl::Milliseconds(200);
  options.silence_timeout = absl::Seconds(1);
  Node a = New(options);
  ChildVictim victim("tcp://127.0.0.1:*", a->address());
  const transport::PeerId out = *a->Connect(victim.address());
  ASSERT_TRUE(a->Send(out, Segment(*a.transport, 1)).ok());
  ASSERT_TRUE(PumpUntil({&a}, [&] { return a.Count(Kind::kFrame) == 2; })) << "hello and echo";
  victim.Signal(SIGSTOP);  // its kernel still acknowledges; only ZMTP heartbeats notice
  EXPECT_TRUE(PumpUntil({&a}, [&] { return a.Count(Kind::kPeerLost) == 2; }));
}

TEST_F(ZmqTransportTest, BadOptionsAreRefused) {
  const auto code = [](const transport::ZmqOptions& options) {
    return transport::NewZmqTransport(options).status().code();
  };
  EXPECT_EQ(code(transport::ZmqOptions()), absl::StatusCode::kInvalidArgument) << "no context";
  transport::ZmqOptions options = world_.Options();
  options.send_queue_frames = 0;
  EXPECT_EQ(code(options), absl::StatusCode::kInvalidArgument);
  options = world_.Options();
  options.bind = "tcp://nonsense";
  EXPECT_EQ(code(options), absl::StatusCode::kInvalidArgument);
  options.bind = "tcp://0.0.0.0:*";
  EXPECT_EQ(code(options), absl::StatusCode::kInvalidArgument) << "where is it to be reached?";
  const Node taken = New(world_.Options());
  options.bind = taken->address();
  EXPECT_EQ(code(options), absl::StatusCode::kUnavailable);
}

TEST_F(ZmqTransportTest, TheAdvertisedHostIsWhatOthersConnectTo) {
  transport::ZmqOptions options = world_.Options();
  options.bind = "tcp://0.0.0.0:*";
  options.advertised_host = "localhost";
  Node hub = New(options), a = New(world_.Options());
  EXPECT_EQ(hub->address().rfind("tcp://localhost:", 0), 0u) << hub->address();
  const transport::PeerId peer = *a->Connect(hub->address());
  ASSERT_TRUE(a->Send(peer, Segment(*a.transport, 1)).ok());
  EXPECT_TRUE(PumpUntil({&a, &hub}, [&] { return hub.Count(Kind::kFrame) == 1; }));
}

}  // namespace
}  // namespace tandem
