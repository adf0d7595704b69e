// Keys that follow from a token, the proof that a process has them, and ZeroMQ endpoints that keep
// processes without them out.
#include "transport/job_keys.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sodium.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/owned_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/peer_map.h"
#include "transport/proof.h"
#include "transport/tcp_address.h"
#include "transport/zmq_transport.h"

namespace tandem {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using transport::JobKeys;
using Kind = transport::TransportEvent::Kind;

constexpr char kToken[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

// The expected keys were computed from RFC 7693 (BLAKE2b), RFC 7748 (X25519) and ZeroMQ RFC 32.
TEST(JobKeysTest, TheKeysOfATokenAreKnown) {
  const absl::StatusOr<JobKeys> keys = JobKeys::FromToken(kToken);
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->curve_secret(), "q]2=X3M::WJW80(9$G]F6T?qLUO]qUMqn7!dz}]C");
  EXPECT_EQ(keys->curve_public(), "MF*Q7?tA{8k?CTycHwb!9?&k2:jfF?*X:Z1XO0AJ");
  EXPECT_EQ(absl::BytesToHexString({reinterpret_cast<const char*>(keys->word().data()), 32}),
            "75f23af5c5c1397d29285cd9e10daa85afcb1279141a3f751258e1bd8c7178d1");
  EXPECT_EQ(keys->PasswordOf("1f2e"),
            "d2109ac4909bc8d1fc7172af8caacb2b0d5e9182e91fc00027ffbe5356ce47c4");
  EXPECT_NE(keys->PasswordOf("1f2e"), keys->PasswordOf("1f2f"));
}

TEST(JobKeysTest, ATokenMayBeInBase64AndHaveSpaceAroundIt) {
  for (const char* const text :
       {"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8",
        " 000102030405060708090A0B0C0D0E0F101112131415161718191a1b1c1d1e1f\n"}) {
    const absl::StatusOr<JobKeys> keys = JobKeys::FromToken(text);
    ASSERT_TRUE(keys.ok()) << text << ": " << keys.status();
    EXPECT_EQ(keys->curve_public(), JobKeys::FromToken(kToken)->curve_public());
  }
}

TEST(JobKeysTest, OtherTextsAreRefusedWithoutPrintingThem) {
  for (const std::string& text :
       {std::string(), std::string("swordfish"), std::string(kToken, 62),
        std::string(kToken) + "20", std::string(64, 'g'), std::string("AAEC")}) {
    const absl::Status status = JobKeys::FromToken(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(status.message(), HasSubstr("openssl rand -hex 32"));
    if (text.size() > 2) {
      EXPECT_THAT(status.message(), Not(HasSubstr(text)));
    }
  }
}

TEST(JobKeysTest, NewTokensAreValidAndDiffer) {
  const std::string one = JobKeys::NewToken(), two = JobKeys::NewToken();
  EXPECT_NE(one, two);
  EXPECT_NE(JobKeys::FromToken(one)->curve_public(), JobKeys::FromToken(two)->curve_public());
}

// ---- proofs ----

using transport::Proof;

std::shared_ptr<const JobKeys> KeysOf(const std::string& token) {
  return std::make_shared<JobKeys>(*JobKeys::FromToken(token));
}

constexpr char kMagic[] = "\x07TNDMPF1";

// BLAKE2b with the word of kToken as the key.
std::string Mac(const std::string& text) {
  const auto keys = KeysOf(kToken);
  std::string mac(32, '\0');
  TANDEM_CHECK(crypto_generichash(reinterpret_cast<uint8_t*>(mac.data()), mac.size(),
                                  reinterpret_cast<const uint8_t*>(text.data()), text.size(),
                                  keys->word().data(), keys->word().size()) == 0);
  return mac;
}

TEST(ProofTest, BothSidesProveTheToken) {
  Proof connects(Proof::Side::kConnects, KeysOf(kToken), "here");
  Proof accepts(Proof::Side::kAccepts, KeysOf(kToken), "here");
  const std::string hello = connects.Hello();
  const std::string challenge = *accepts.Take(hello);
  EXPECT_FALSE(accepts.done());
  const std::string answer = *connects.Take(challenge);
  EXPECT_TRUE(connects.done());
  EXPECT_EQ(*accepts.Take(answer), "");
  EXPECT_TRUE(accepts.done());
  const std::string numbers = hello.substr(8) + challenge.substr(8, 32);
  EXPECT_EQ(hello.size(), 40u);
  EXPECT_EQ(challenge, kMagic + numbers.substr(32) + Mac("accept" + numbers + "here"));
  EXPECT_EQ(answer, kMagic + Mac("connect" + numbers + "here"));
}

TEST(ProofTest, ARecordedProofIsOfNoUse) {
  Proof connects(Proof::Side::kConnects, KeysOf(kToken), "here");
  Proof first(Proof::Side::kAccepts, KeysOf(kToken), "here");
  Proof second(Proof::Side::kAccepts, KeysOf(kToken), "here");
  const std::string hello = connects.Hello();
  const std::string answer = *connects.Take(*first.Take(hello));
  ASSERT_TRUE(second.Take(hello).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(second.Take(answer).status()));
  EXPECT_FALSE(second.done());
}

// A stranger at the port of one process passes on what another process of the job says.
TEST(ProofTest, AProofForAnotherPlaceIsOfNoUse) {
  Proof connects(Proof::Side::kConnects, KeysOf(kToken), "here");
  Proof accepts(Proof::Side::kAccepts, KeysOf(kToken), "there");
  const absl::StatusOr<std::string> challenge = accepts.Take(connects.Hello());
  ASSERT_TRUE(challenge.ok());
  EXPECT_TRUE(absl::IsUnauthenticated(connects.Take(*challenge).status()));
  EXPECT_FALSE(connects.done());
}

TEST(ProofTest, EverythingElseIsRefused) {
  const std::string magic = kMagic, zeros(32, '\0');
  for (const std::string& bytes :
       {std::string(), std::string("hello"), magic, magic + zeros.substr(1), magic + zeros + "x",
        std::string(40, '\0'), magic + zeros + zeros}) {
    Proof accepts(Proof::Side::kAccepts, KeysOf(kToken), "here");
    EXPECT_TRUE(absl::IsUnauthenticated(accepts.Take(bytes).status())) << bytes.size();
  }
  Proof connects(Proof::Side::kConnects, KeysOf(kToken), "here");
  EXPECT_EQ(connects.Take(magic + zeros + zeros).status().message(), "has another token");
  Proof accepts(Proof::Side::kAccepts, KeysOf(kToken), "here");
  const std::string challenge = *accepts.Take(magic + zeros);
  EXPECT_FALSE(accepts.Take(challenge).ok()) << "a challenge sent back";
  EXPECT_FALSE(accepts.Take(magic + challenge.substr(40)).ok()) << "its MAC sent back";
}

// ---- endpoints ----

struct Node {
  std::unique_ptr<transport::Transport> transport;
  std::vector<transport::TransportEvent> events = {};

  const transport::TransportEvent* First(Kind kind) const {
    for (const transport::TransportEvent& event : events) {
      if (event.kind == kind) return &event;
    }
    return nullptr;
  }
};

class KeysOfEndpointsTest : public ::testing::Test {
 protected:
  static transport::ZmqOptions Options(const std::string& token, bool encrypted = true) {
    transport::ZmqOptions options;
    options.context = std::make_shared<transport::ZmqContext>(1);
    options.goodbye_wait = options.linger = absl::Milliseconds(50);
    if (!token.empty()) options.keys = KeysOf(token);
    options.encrypted = encrypted;
    return options;
  }
  static Node New(const transport::ZmqOptions& options) {
    auto made = transport::NewZmqTransport(options);
    TANDEM_CHECK_OK(made.status());
    return {*std::move(made)};
  }
  static Frame SmallFrame(BufferSource& source) {
    FrameHeader header;
    header.kind = FrameKind::kSegment;
    return EncodeDataFrame(source, header, {}, Buffer(), Buffer());
  }
  // Sends a frame from `from` to `to`, and polls both until one of them has an event.
  static void Send(Node& from, Node& to) {
    const transport::PeerId peer = *from.transport->Connect(to.transport->address());
    ASSERT_TRUE(from.transport->Send(peer, SmallFrame(*from.transport)).ok());
    const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
    while (from.events.empty() && to.First(Kind::kFrame) == nullptr && MonotonicNow() < deadline) {
      from.transport->Poll(absl::Milliseconds(5), &from.events);
      to.transport->Poll(absl::Milliseconds(5), &to.events);
    }
  }
  // The reason for which a frame from an endpoint with `one` does not reach one with `other`.
  static std::string Refusal(const std::string& one, const std::string& other) {
    Node from = New(Options(one)), to = New(Options(other));
    Send(from, to);
    EXPECT_EQ(to.First(Kind::kFrame), nullptr);
    const transport::TransportEvent* const lost = from.First(Kind::kPeerLost);
    if (lost == nullptr) return "not lost";
    EXPECT_TRUE(absl::IsUnauthenticated(lost->why)) << lost->why;
    return std::string(lost->why.message());
  }
};

TEST_F(KeysOfEndpointsTest, TheSameTokenConnects) {
  Node from = New(Options(kToken)), to = New(Options(kToken));
  Send(from, to);
  EXPECT_NE(to.First(Kind::kFrame), nullptr);
}

TEST_F(KeysOfEndpointsTest, AnotherTokenOrNoneIsRefusedWithTheReason) {
  EXPECT_THAT(Refusal(JobKeys::NewToken(), kToken), HasSubstr("does not accept the token"));
  EXPECT_THAT(Refusal("", kToken), HasSubstr("asks for a token"));
  // Which message comes depends on which side closes first.
  EXPECT_THAT(Refusal(kToken, ""), AnyOf(HasSubstr("has no token, but this process has one"),
                                         HasSubstr("does not accept the token")));
}

// So does an endpoint with keys, if it hears first that this side has none.
TEST_F(KeysOfEndpointsTest, APeerThatClosesEachConnectionIsNamed) {
  const OwnedFd listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  auto* const any = reinterpret_cast<sockaddr*>(&at);
  ASSERT_EQ(bind(listener.get(), any, size), 0);
  ASSERT_EQ(listen(listener.get(), 64), 0);
  ASSERT_EQ(getsockname(listener.get(), any, &size), 0);
  std::thread closes([&listener] {
    for (int fd = 0; (fd = accept(listener.get(), nullptr, nullptr)) >= 0;) {
      std::array<char, 10> signature;
      (void)recv(fd, signature.data(), signature.size(), MSG_WAITALL);
      close(fd);
    }
  });
  transport::ZmqOptions options = Options("");
  options.connect_deadline = absl::Seconds(60);
  Node from = New(options);
  const std::string address = absl::StrCat("tcp://127.0.0.1:", ntohs(at.sin_port));
  ASSERT_TRUE(from.transport->Connect(address).ok());
  while (from.events.empty()) from.transport->Poll(absl::Seconds(1), &from.events);
  shutdown(listener.get(), SHUT_RDWR);
  closes.join();
  EXPECT_EQ(from.events[0].kind, Kind::kPeerLost);
  EXPECT_TRUE(absl::IsUnauthenticated(from.events[0].why)) << from.events[0].why;
  EXPECT_THAT(from.events[0].why.message(), HasSubstr("closes each connection, so it asks for a"));
}

TEST_F(KeysOfEndpointsTest, RefusedConnectionsAreReportedOnce) {
  Node to = New(Options(kToken));
  for (const std::string& token : {std::string(), JobKeys::NewToken(), std::string()}) {
    Node from = New(Options(token));
    Send(from, to);
  }
  const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
  while (to.events.empty() && MonotonicNow() < deadline) {
    to.transport->Poll(absl::Milliseconds(5), &to.events);
  }
  ASSERT_EQ(to.events.size(), 1u);
  EXPECT_EQ(to.events[0].kind, Kind::kGarbage);
  EXPECT_EQ(to.events[0].peer, 0u);
  // A stranger that closes the connection first is not counted.
  EXPECT_THAT(std::string(to.events[0].why.message()),
              HasSubstr("were refused: 1, the last one has "));
}

TEST_F(KeysOfEndpointsTest, WithoutEncryptionTheTokenIsProven) {
  Node from = New(Options(kToken, false)), to = New(Options(kToken, false));
  Send(from, to);
  EXPECT_NE(to.First(Kind::kFrame), nullptr);
  to.events.clear();
  Node other = New(Options(JobKeys::NewToken(), false));
  Send(other, to);
  ASSERT_NE(other.First(Kind::kPeerLost), nullptr);
  EXPECT_THAT(other.First(Kind::kPeerLost)->why.message(),
              HasSubstr("does not accept the token of this process, or is a later process there"));
  Node encrypted = New(Options(kToken));
  Send(encrypted, to);
  ASSERT_NE(encrypted.First(Kind::kPeerLost), nullptr);
  EXPECT_TRUE(absl::IsUnauthenticated(encrypted.First(Kind::kPeerLost)->why));
  EXPECT_EQ(to.First(Kind::kFrame), nullptr);
}

// A client of ZeroMQ that is no endpoint of ours.
class Client {
 public:
  explicit Client(const std::shared_ptr<transport::ZmqContext>& context)
      : context_(context), dealer_(zmq_socket(context->handle(), ZMQ_DEALER)) {
    Set(ZMQ_LINGER, 0);
  }
  ~Client() { zmq_close(dealer_); }
  void Set(int option, int value) {
    TANDEM_CHECK(zmq_setsockopt(dealer_, option, &value, sizeof value) == 0);
  }
  void Set(int option, const std::string& value) {
    TANDEM_CHECK(zmq_setsockopt(dealer_, option, value.data(), value.size()) == 0);
  }
  void SetPassword(const std::string& password) {
    Set(ZMQ_PLAIN_USERNAME, std::string("tandem"));
    Set(ZMQ_PLAIN_PASSWORD, password);
  }
  void Send(const std::string& address, const std::string& bytes) {
    TANDEM_CHECK(zmq_connect(dealer_, address.substr(0, address.find('#')).c_str()) == 0);
    TANDEM_CHECK(zmq_send(dealer_, bytes.data(), bytes.size(), 0) >= 0);
  }
  // Whether a message has come.
  bool Receive() { return zmq_recv(dealer_, nullptr, 0, ZMQ_DONTWAIT) >= 0; }

 private:
  const std::shared_ptr<transport::ZmqContext> context_;
  void* const dealer_;
};

// Polls until the endpoint has heard of strangers; returns what it says.
std::string Refused(Node& to) {
  const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
  while (to.First(Kind::kGarbage) == nullptr && MonotonicNow() < deadline) {
    to.transport->Poll(absl::Milliseconds(5), &to.events);
  }
  const transport::TransportEvent* const garbage = to.First(Kind::kGarbage);
  return garbage == nullptr ? "nothing" : std::string(garbage->why.message());
}

TEST_F(KeysOfEndpointsTest, ClientsWithoutThePasswordAreRefused) {
  const std::string other = JobKeys::FromToken(JobKeys::NewToken())->PasswordOf("1f2e");
  for (const std::string& password : {other, other + "x", std::string(255, 'x')}) {
    Node to = New(Options(kToken, false));
    Client client(std::make_shared<transport::ZmqContext>(1));
    client.SetPassword(password);
    client.Send(to.transport->address(), "hello");
    EXPECT_THAT(Refused(to), HasSubstr("were refused: 1, the last one has another token"));
    Node good = New(Options(kToken, false));
    Send(good, to);
    ASSERT_EQ(to.events.size(), 2u);
    EXPECT_EQ(to.events[1].kind, Kind::kFrame);
    EXPECT_FALSE(client.Receive());
  }
}

// Connects, and sends these bytes.
OwnedFd Dial(const Node& to, const std::string& bytes) {
  const transport::TcpAddress at = transport::SplitTcpAddress(to.transport->address());
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(at.port)));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  OwnedFd fd(socket(AF_INET, SOCK_STREAM, 0));
  TANDEM_CHECK(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  TANDEM_CHECK(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
               static_cast<ssize_t>(bytes.size()));
  return fd;
}

// Polls until the endpoint has an event, or has closed the connection. Returns whether it closed.
bool Closes(Node& to, const OwnedFd& fd) {
  const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
  bool closed = false;
  while (to.events.empty() && !closed && MonotonicNow() < deadline) {
    to.transport->Poll(absl::Milliseconds(5), &to.events);
    std::array<char, 1024> bytes;
    const ssize_t n = recv(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    closed = n == 0 || (n < 0 && errno != EAGAIN);
  }
  return closed;
}

// This one does not close the connection by itself, as a client of libzmq does.
TEST_F(KeysOfEndpointsTest, ClientsOfNoMechanismAreRefused) {
  std::string greeting("\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL", 16);
  greeting.resize(64);
  Node to = New(Options(kToken, false));
  const OwnedFd fd = Dial(to, greeting);
  EXPECT_THAT(Refused(to), HasSubstr("were refused: 1, the last one has no token"));
  to.events.clear();
  EXPECT_TRUE(Closes(to, fd));
}

TEST_F(KeysOfEndpointsTest, AnEncryptedEndpointComparesThePublicKeyOfClients) {
  Node to = New(Options(kToken));
  std::array<char, 41> key, secret;
  ASSERT_EQ(zmq_curve_keypair(key.data(), secret.data()), 0);
  Client client(std::make_shared<transport::ZmqContext>(1));
  client.Set(ZMQ_CURVE_SERVERKEY, KeysOf(kToken)->curve_public());
  client.Set(ZMQ_CURVE_PUBLICKEY, std::string(key.data()));
  client.Set(ZMQ_CURVE_SECRETKEY, std::string(secret.data()));
  client.Send(to.transport->address(), "hello");
  EXPECT_THAT(Refused(to), HasSubstr("has another token"));
}

// Somebody who can read packets knows the password, and still has no proof.
TEST_F(KeysOfEndpointsTest, FramesWithoutAProofAreIgnored) {
  Node to = New(Options(kToken, false));
  Client client(std::make_shared<transport::ZmqContext>(1));
  const std::string address = to.transport->address();
  client.SetPassword(KeysOf(kToken)->PasswordOf(address.substr(address.find('#') + 1)));
  client.Send(address, "hello");
  EXPECT_THAT(Refused(to), HasSubstr("were refused: 1, the last one has no token"));
  Node good = New(Options(kToken, false));
  Send(good, to);
  ASSERT_EQ(to.events.size(), 2u);
  EXPECT_EQ(to.events[1].kind, Kind::kFrame);
}

// A program that is not of the job: it listens at `port` and takes any password.
class Squatter {
 public:
  explicit Squatter(int port)
      : socket_(zmq_socket(context_.handle(), ZMQ_ROUTER)),
        gate_(zmq_socket(context_.handle(), ZMQ_REP)) {
    const int on = 1, none = 0;
    TANDEM_CHECK(zmq_setsockopt(socket_, ZMQ_PLAIN_SERVER, &on, sizeof on) == 0);
    TANDEM_CHECK(zmq_bind(gate_, "inproc://zeromq.zap.01") == 0);
    for (void* const s : {socket_, gate_}) zmq_setsockopt(s, ZMQ_LINGER, &none, sizeof none);
    const std::string address = absl::StrCat("tcp://127.0.0.1:", port);
    const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
    while (zmq_bind(socket_, address.c_str()) != 0) TANDEM_CHECK(MonotonicNow() < deadline);
  }
  ~Squatter() {
    zmq_close(gate_);
    zmq_close(socket_);
  }
  // The password that a client has shown; empty: none has come yet.
  std::string Heard() {
    std::vector<std::string> parts;
    std::array<char, 256> bytes;
    for (int more = 1; more != 0;) {
      const int size =
          zmq_recv(gate_, bytes.data(), bytes.size(), parts.empty() ? ZMQ_DONTWAIT : 0);
      if (size < 0) return "";
      parts.emplace_back(bytes.data(), static_cast<size_t>(size));
      size_t length = sizeof more;
      TANDEM_CHECK(zmq_getsockopt(gate_, ZMQ_RCVMORE, &more, &length) == 0);
    }
    for (const std::string& part : {std::string("1.0"), parts.at(1), std::string("200")}) {
      zmq_send(gate_, part.data(), part.size(), ZMQ_SNDMORE);
    }
    for (const int flags : {ZMQ_SNDMORE, ZMQ_SNDMORE, 0}) zmq_send(gate_, "", 0, flags);
    return parts.back();
  }

 private:
  transport::ZmqContext context_{1};
  void* const socket_;
  void* const gate_;
};

// A server dies, a stranger listens at its port, and a worker connects again.
TEST_F(KeysOfEndpointsTest, WhatAStrangerHearsAtTheirOldPortOpensNothing) {
  std::string address;
  {
    Node server = New(Options(kToken, false));
    address = server.transport->address();
  }
  const int port = std::stoi(transport::SplitTcpAddress(address).port);
  Node worker = New(Options(kToken, false));
  std::string password;
  {
    Squatter squatter(port);
    ASSERT_TRUE(worker.transport->Connect(address).ok());
    const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
    while (password.empty() && MonotonicNow() < deadline) {
      worker.transport->Poll(absl::Milliseconds(5), &worker.events);
      password = squatter.Heard();
    }
  }
  ASSERT_EQ(password.size(), 64u);
  transport::ZmqOptions same_port = Options(kToken, false);
  same_port.bind = absl::StrCat("tcp://127.0.0.1:", port);
  for (const transport::ZmqOptions& options : {Options(kToken, false), same_port}) {
    Node other = New(options);
    Client stranger(std::make_shared<transport::ZmqContext>(1));
    stranger.SetPassword(password);
    stranger.Send(other.transport->address(), "hello");
    EXPECT_THAT(Refused(other), HasSubstr("the last one has another token"));
  }
}

// A new server listens at the port of one that has died. The worker still has a connection to the
// old one, or the new one has refused its connection to the old address.
TEST_F(KeysOfEndpointsTest, ANewEndpointAtAnOldPortIsReached) {
  Node worker = New(Options(kToken, false));
  transport::PeerMap peers(*worker.transport);
  auto server = std::make_unique<Node>(New(Options(kToken, false)));
  std::string address = server->transport->address();
  const EndpointId shard = EndpointId::Shard(0, 0);
  // Sends to the server until the worker or the server has such an event.
  const auto send_until = [&](Kind of_worker, Kind of_server) {
    const absl::Time deadline = MonotonicNow() + absl::Seconds(60);
    const transport::TransportEvent* event = nullptr;
    worker.events.clear();
    size_t seen = 0;
    while (event == nullptr && MonotonicNow() < deadline) {
      (void)peers.Send({shard, SmallFrame(*worker.transport)});
      worker.transport->Poll(absl::Milliseconds(1), &worker.events);
      for (; seen < worker.events.size(); ++seen) (void)peers.OnEvent(worker.events[seen]);
      server->transport->Poll(absl::Milliseconds(1), &server->events);
      event = server->First(of_server);
      if (event == nullptr) event = worker.First(of_worker);
    }
    return event != nullptr && event->kind == of_server;
  };
  peers.SetAddress(shard, address);
  ASSERT_TRUE(send_until(Kind::kGarbage, Kind::kFrame));
  for (const bool refused : {false, true}) {
    server.reset();
    transport::ZmqOptions options = Options(kToken, false);
    options.bind = transport::SplitTcpAddress(address).ToString();
    server = std::make_unique<Node>(New(options));
    ASSERT_NE(server->transport->address(), address);
    if (refused) {
      EXPECT_TRUE(send_until(Kind::kGarbage, Kind::kGarbage));
    }
    server->events.clear();
    address = server->transport->address();
    EXPECT_TRUE(peers.SetAddress(shard, address));
    EXPECT_TRUE(send_until(Kind::kGarbage, Kind::kFrame));
  }
}

// libzmq numbers the connections of a socket from a random start: 31 bits of one rand() and one bit
// of the next. A stranger that already has the number of a later connection would end the process
// in a check of libzmq.
TEST_F(KeysOfEndpointsTest, StrangersCannotTakeTheNumbersOfConnections) {
  constexpr int kNumbers = 6;
  std::array<uint32_t, 6> random;
  std::srand(1);
  for (uint32_t& r : random) r = static_cast<uint32_t>(std::rand());
  std::srand(1);
  Node to = New(Options(kToken, false));
  const auto context = std::make_shared<transport::ZmqContext>(1);
  std::vector<std::unique_ptr<Client>> clients;
  for (size_t first = 0; first + 1 < random.size(); ++first) {
    for (uint32_t i = 0; i < kNumbers; ++i) {
      const uint32_t number = htonl((random[first] | random[first + 1] << 31) + i);
      Client& client = *clients.emplace_back(std::make_unique<Client>(context));
      client.Set(ZMQ_ROUTING_ID,
                 std::string(1, '\0') + std::string(reinterpret_cast<const char*>(&number), 4));
      if (i % 2 == 0) client.SetPassword("wrong");
      client.Send(to.transport->address(), "hello");
    }
  }
  EXPECT_THAT(Refused(to), HasSubstr("were refused: "));
  for (int i = 0; i < kNumbers; ++i) {
    Node good = New(Options(kToken, false));
    to.events.clear();
    Send(good, to);
    EXPECT_NE(to.First(Kind::kFrame), nullptr);
  }
}

// One context guards endpoints of several tokens.
TEST_F(KeysOfEndpointsTest, EachEndpointOfAContextHasItsOwnKeys) {
  const std::string token = JobKeys::NewToken();
  for (const bool encrypted : {false, true}) {
    transport::ZmqOptions options = Options(kToken, encrypted);
    Node one = New(options);
    options.keys = KeysOf(token);
    Node two = New(options);
    options.keys = nullptr;
    Node open = New(options);
    Node from = New(Options(token, encrypted));
    Send(from, one);
    ASSERT_NE(from.First(Kind::kPeerLost), nullptr);
    from.events.clear();
    Send(from, two);
    EXPECT_NE(two.First(Kind::kFrame), nullptr);
    Node none = New(Options(""));
    Send(none, open);
    EXPECT_NE(open.First(Kind::kFrame), nullptr);
  }
}

// ZMTP 1.0 and 2.0 know neither encryption nor passwords.
TEST_F(KeysOfEndpointsTest, OlderVersionsOfTheProtocolAreNoWayIn) {
  const std::string zmtp1("\1\0\4\0abc", 7);
  const std::string zmtp2(
      "\xff\0\0\0\0\0\0\0\1\x7f\1\5\0\0\0\3"
      "abc",
      19);
  for (const std::string& bytes : {zmtp1, zmtp2}) {
    for (const auto& [token, encrypted] :
         {std::pair(std::string(), true), std::pair(std::string(kToken), true),
          std::pair(std::string(kToken), false)}) {
      Node to = New(Options(token, encrypted));
      const OwnedFd fd = Dial(to, bytes);
      EXPECT_EQ(Closes(to, fd), !token.empty());
      if (!token.empty()) continue;
      // Without a token the message arrives, and is no frame.
      ASSERT_EQ(to.events.size(), 1u);
      EXPECT_EQ(to.events[0].kind, Kind::kGarbage);
      EXPECT_NE(to.events[0].peer, 0u);
    }
  }
}

// Only the connection to the scheduler is encrypted.
TEST_F(KeysOfEndpointsTest, AnEndpointEncryptsTheConnectionToOnePeer) {
  Node scheduler = New(Options(kToken));
  transport::ZmqOptions options = Options(kToken);
  options.encrypted = false;
  Node shard = New(options);
  options.encrypted_peer = scheduler.transport->address();
  Node worker = New(options);
  Send(worker, scheduler);
  EXPECT_NE(scheduler.First(Kind::kFrame), nullptr);
  Send(worker, shard);
  EXPECT_NE(shard.First(Kind::kFrame), nullptr);
}

}  // namespace
}  // namespace tandem
