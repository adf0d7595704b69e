// Links: one suite that every kind passes. What is written arrives, whole and in order, however
// transfers are cut; what is on its way is bounded; the end of the peer is seen, after what it
// wrote before; nothing works after an error.
#include "collectives/links/link.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "base/random.h"
#include "collectives/links/frame_link.h"
#include "collectives/links/in_memory_link.h"
#include "collectives/links/shm_link.h"
#include "collectives/links/tcp_link.h"
#include "collectives/links/tcp_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"
#include "tests/unit/transport/transport_links.h"

namespace tandem {
namespace {

using Bytes = std::vector<uint8_t>;

// A pair of links and what moves bytes between them besides the links' own calls.
struct LinkPair {
  std::unique_ptr<collectives::Link> a, b;
  std::function<void()> pump = [] {};
};

struct LinkKind {
  std::string name;
  std::function<LinkPair(uint64_t seed)> make;
  bool threads = true;  // the ends may be used by two threads
  // Why there are none of this kind here; empty if there are.
  std::function<std::string()> missing = [] { return ""; };
};

// Two frame links and a connection between them that lets frames wait as it likes.
class FrameWorld {
 public:
  // `late`: how often a frame does not go on.
  FrameWorld(uint64_t seed, double late) : random_(seed), late_(late) {
    collectives::FrameLinkOptions options;
    options.group = 3;
    options.incarnation = 5;
    options.window_bytes = 100'000;
    options.frame_bytes = 8192;
    for (auto& link : links_) link = std::make_unique<collectives::FrameLink>(source_, options);
  }
  collectives::FrameLink& link(int end) { return *links_[end]; }
  uint64_t frames() const { return carried_; }

  void Pump() {
    for (int end = 0; end < 2; ++end) {
      const size_t before = under_way_[end].size();
      if (!closed_[end]) links_[end]->Flush(&under_way_[end]);
      carried_ += under_way_[end].size() - before;
      Deliver(end);
    }
  }
  // What it has written still arrives.
  void Close(int end) {
    Pump();
    closed_[end] = true;
  }

 private:
  void Deliver(int from) {
    std::vector<Frame>& frames = under_way_[from];
    while (!frames.empty() && !random_.Bernoulli(late_)) {
      const auto parsed = DecodeFrame(frames.front());
      TANDEM_CHECK_OK(parsed.status());
      if (!closed_[1 - from]) TANDEM_CHECK_OK(links_[1 - from]->OnFrame(*parsed));
      frames.erase(frames.begin());
    }
    if (!frames.empty() || !closed_[from]) return;
    links_[1 - from]->OnPeerLost(absl::UnavailableError("connection closed by the peer"));
  }

  HeapBufferSource source_;
  Random random_;
  const double late_;
  std::unique_ptr<collectives::FrameLink> links_[2];
  std::vector<Frame> under_way_[2];
  bool closed_[2] = {false, false};
  uint64_t carried_ = 0;
};

// One end of it; when it goes, its stream ends in order.
class FrameWorldEnd final : public collectives::Link {
 public:
  FrameWorldEnd(std::shared_ptr<FrameWorld> world, int end) : world_(std::move(world)), end_(end) {}
  ~FrameWorldEnd() override { world_->Close(end_); }
  absl::StatusOr<size_t> Write(absl::Span<const uint8_t> head,
                               absl::Span<const uint8_t> body) override {
    world_->Pump();
    return link().Write(head, body);
  }
  absl::StatusOr<absl::Span<const uint8_t>> Peek(size_t least) override {
    world_->Pump();
    return link().Peek(least);
  }
  void Consume(size_t n) override { link().Consume(n); }
  absl::StatusOr<size_t> Read(absl::Span<uint8_t> to) override {
    world_->Pump();
    return link().Read(to);
  }
  absl::string_view kind() const override { return link().kind(); }

 private:
  collectives::FrameLink& link() const { return world_->link(end_); }
  std::shared_ptr<FrameWorld> world_;
  const int end_;
};

std::vector<LinkKind> AllKinds() {
  std::vector<LinkKind> kinds;
  const auto memory = [](uint64_t partial_seed, size_t capacity) {
    collectives::InMemoryLinkOptions options;
    options.capacity = capacity;
    options.partial_seed = partial_seed;
    auto ends = collectives::InMemoryLink::NewPair(options);
    return LinkPair{std::move(ends[0]), std::move(ends[1])};
  };
  kinds.push_back({"Memory", [=](uint64_t) { return memory(0, 1 << 16); }});
  kinds.push_back({"MemoryPartial", [=](uint64_t seed) { return memory(seed + 1, 4096); }});
  kinds.push_back({"Tcp", [](uint64_t) {
                     auto sockets = collectives::TcpPair();
                     TANDEM_CHECK_OK(sockets.status());
                     return LinkPair{
                         std::make_unique<collectives::TcpLink>(std::move(sockets->first)),
                         std::make_unique<collectives::TcpLink>(std::move(sockets->second))};
                   }});
  const auto shm = [](size_t capacity) {
    auto ends = collectives::ShmLink::NewPair(capacity);
    TANDEM_CHECK_OK(ends.status());
    return LinkPair{std::move((*ends)[0]), std::move((*ends)[1])};
  };
  kinds.push_back({"Shm", [=](uint64_t) { return shm(collectives::ShmLink::kDefaultCapacity); }});
  kinds.push_back({"ShmSmall", [=](uint64_t) { return shm(4096); }});
  const auto frames = [](uint64_t seed, double late) {
    auto world = std::make_shared<FrameWorld>(seed, late);
    return LinkPair{std::make_unique<FrameWorldEnd>(world, 0),
                    std::make_unique<FrameWorldEnd>(world, 1), [world] { world->Pump(); }};
  };
  kinds.push_back({"Frames", [=](uint64_t seed) { return frames(seed, 0); }, false});
  kinds.push_back({"FramesLate", [=](uint64_t seed) { return frames(seed, .2); }, false});
  for (const collectives::LinkChoice choice :
       {collectives::LinkChoice::kZmq, collectives::LinkChoice::kRdma}) {
    const auto transports = [=](uint64_t) {
      TransportEnds ends = TransportMesh(choice, 2).Next();
      return LinkPair{std::move(ends.first), std::move(ends.second)};
    };
    kinds.push_back({choice == collectives::LinkChoice::kZmq ? "Zmq" : "Rdma", transports, true,
                     [=] { return Missing(choice); }});
  }
  return kinds;
}

// Byte i of a stream, so that any part of it can be checked wherever it is cut.
uint8_t ByteAt(uint64_t stream, uint64_t i) {
  return static_cast<uint8_t>(Mix64(stream * 0x10001 + i / 8) >> (8 * (i % 8)));
}

// Writes a stream in pieces of random size, as heads and bodies.
class Writer {
 public:
  Writer(collectives::Link& link, uint64_t stream, uint64_t total, uint64_t seed)
      : link_(link), stream_(stream), total_(total), random_(seed) {}
  bool done() const { return written_ == total_; }
  uint64_t written() const { return written_; }
  absl::Status Step() {
    if (begin_ == bytes_.size()) Refill();
    const auto all = absl::MakeConstSpan(bytes_).subspan(begin_);
    const size_t head = head_ - std::min(head_, begin_);
    const auto taken = link_.Write(all.first(head), all.subspan(head));
    if (!taken.ok()) return taken.status();
    if (*taken > all.size()) return absl::InternalError("took more than there was");
    begin_ += *taken;
    written_ += *taken;
    return absl::OkStatus();
  }

 private:
  void Refill() {
    const size_t most = random_.Bernoulli(.5) ? 100 : 40000;
    bytes_.resize(std::min<uint64_t>(total_ - written_, random_.Uniform(most)));
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = ByteAt(stream_, written_ + i);
    head_ = std::min<size_t>(bytes_.size(), random_.Uniform(64));
    begin_ = 0;
  }

  collectives::Link& link_;
  uint64_t stream_, total_, written_ = 0;
  Random random_;
  Bytes bytes_;
  size_t begin_ = 0, head_ = 0;
};

// Takes a stream from a link by Peek and Read in turns, and compares.
class Reader {
 public:
  Reader(collectives::Link& link, uint64_t stream, uint64_t total, uint64_t seed)
      : link_(link), stream_(stream), total_(total), random_(seed) {}
  bool done() const { return read_ == total_; }
  uint64_t read() const { return read_; }
  bool wrong() const { return wrong_; }
  absl::Status Step() { return random_.Bernoulli(.5) ? StepPeek() : StepRead(); }

 private:
  absl::Status StepPeek() {
    const uint64_t least =
        1 + random_.Uniform(std::min<uint64_t>(collectives::Link::kMaxPeek, total_ - read_));
    const auto seen = link_.Peek(least);
    if (!seen.ok()) return seen.status();
    if (!seen->empty() && seen->size() < least) return absl::InternalError("less than the least");
    const size_t n = random_.Uniform(std::min<uint64_t>(seen->size(), total_ - read_) + 1);
    Compare(seen->first(n));
    link_.Consume(n);
    return absl::OkStatus();
  }
  absl::Status StepRead() {
    bytes_.resize(std::min<uint64_t>(total_ - read_, random_.Uniform(100000)));
    const auto n = link_.Read(absl::MakeSpan(bytes_));
    if (!n.ok()) return n.status();
    if (*n > bytes_.size()) return absl::InternalError("more than asked for");
    Compare(absl::MakeConstSpan(bytes_).first(*n));
    return absl::OkStatus();
  }
  void Compare(absl::Span<const uint8_t> bytes) {
    for (const uint8_t byte : bytes) wrong_ |= byte != ByteAt(stream_, read_++);
  }

  collectives::Link& link_;
  uint64_t stream_, total_, read_ = 0;
  Random random_;
  Bytes bytes_;
  bool wrong_ = false;
};

class LinkTest : public ::testing::TestWithParam<LinkKind> {
 protected:
  LinkTest() : trace_(__FILE__, __LINE__, "rerun with --seed=" + std::to_string(TestSeed())) {}
  void SetUp() override {
    if (const std::string missing = GetParam().missing(); !missing.empty()) GTEST_SKIP() << missing;
  }
  LinkPair Make() { return GetParam().make(TestSeed()); }
  ::testing::ScopedTrace trace_;
};

INSTANTIATE_TEST_SUITE_P(All, LinkTest, ::testing::ValuesIn(AllKinds()),
                         [](const auto& kind) { return kind.param.name; });

// Bounds loops that wait for something to arrive; far more than any of them needs.
constexpr int kManyTurns = 5'000'000;

TEST_P(LinkTest, BytesArriveWholeInBothDirections) {
  LinkPair pair = Make();
  constexpr uint64_t kTotal = 3'000'017;
  Writer writers[] = {{*pair.a, 1, kTotal, 11}, {*pair.b, 2, kTotal, 12}};
  Reader readers[] = {{*pair.b, 1, kTotal, 13}, {*pair.a, 2, kTotal, 14}};
  for (int turn = 0; !readers[0].done() || !readers[1].done(); ++turn) {
    ASSERT_LT(turn, kManyTurns);
    for (int i = 0; i < 2; ++i) {
      if (!writers[i].done()) {
        ASSERT_EQ(writers[i].Step(), absl::OkStatus());
      }
      if (!readers[i].done()) {
        ASSERT_EQ(readers[i].Step(), absl::OkStatus());
      }
      pair.pump();
    }
  }
  EXPECT_FALSE(readers[0].wrong() || readers[1].wrong());
}

TEST_P(LinkTest, TwoThreadsMayHaveAnEndEach) {
  if (!GetParam().threads) GTEST_SKIP() << "a state machine, both ends in one thread";
  LinkPair pair = Make();
  constexpr uint64_t kTotal = 2'000'003;
  const auto run = [&](collectives::Link& link, uint64_t out, uint64_t in) {
    Writer writer(link, out, kTotal, out);
    Reader reader(link, in, kTotal, 10 + in);
    for (int turn = 0; turn < kManyTurns && !(writer.done() && reader.done()); ++turn) {
      if (!writer.done()) {
        EXPECT_EQ(writer.Step(), absl::OkStatus());
      }
      if (!reader.done()) {
        EXPECT_EQ(reader.Step(), absl::OkStatus());
      }
      if (turn % 64 == 0) std::this_thread::yield();
    }
    EXPECT_TRUE(writer.done() && reader.done() && !reader.wrong());
  };
  std::thread other([&] { run(*pair.b, 2, 1); });
  run(*pair.a, 1, 2);
  other.join();
}

// A link that nobody reads takes a bounded number of bytes, and all of them come out.
TEST_P(LinkTest, WhatIsOnItsWayIsBounded) {
  LinkPair pair = Make();
  constexpr uint64_t kFar = uint64_t{1} << 30;
  Writer writer(*pair.a, 3, kFar, 5);
  uint64_t before = 1;
  for (int still = 0; still < 200; still = writer.written() == before ? still + 1 : 0) {
    before = writer.written();
    ASSERT_EQ(writer.Step(), absl::OkStatus());
    pair.pump();
    ASSERT_LT(writer.written(), uint64_t{64} << 20);
  }
  ASSERT_GT(writer.written(), 0u);
  Reader reader(*pair.b, 3, writer.written(), 6);
  for (int turn = 0; !reader.done(); ++turn) {
    ASSERT_LT(turn, kManyTurns);
    ASSERT_EQ(reader.Step(), absl::OkStatus());
    pair.pump();
  }
  EXPECT_FALSE(reader.wrong());
}

// What was written before the end is read; then every call fails, and goes on failing.
TEST_P(LinkTest, TheEndIsSeenAfterTheLastByte) {
  LinkPair pair = Make();
  Writer writer(*pair.a, 4, 5000, 7);
  Reader reader(*pair.b, 4, 5000, 8);
  for (int turn = 0; !writer.done(); ++turn) {
    ASSERT_LT(turn, kManyTurns);
    ASSERT_EQ(writer.Step(), absl::OkStatus());
    pair.pump();
    if (!reader.done() && reader.read() < 1000) {
      ASSERT_EQ(reader.Step(), absl::OkStatus());
    }
  }
  pair.pump();
  pair.a = nullptr;
  for (int turn = 0; !reader.done(); ++turn) {
    ASSERT_LT(turn, kManyTurns);
    ASSERT_EQ(reader.Step(), absl::OkStatus());
  }
  EXPECT_FALSE(reader.wrong());
  absl::Status end;
  for (int turn = 0; end.ok(); ++turn) {
    ASSERT_LT(turn, kManyTurns);
    end = pair.b->Peek(1).status();
  }
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable) << end;
  Bytes bytes(100);
  EXPECT_FALSE(pair.b->Peek(16).ok());
  EXPECT_FALSE(pair.b->Read(absl::MakeSpan(bytes)).ok());
  absl::Status write;
  for (int turn = 0; write.ok() && turn < kManyTurns; ++turn) {
    write = pair.b->Write({}, bytes).status();
  }
  EXPECT_EQ(write.code(), absl::StatusCode::kUnavailable) << write;
}

// Less than was asked for and then the end is an end, not a wait.
TEST_P(LinkTest, AnEndInTheMiddleOfAMessageIsSeen) {
  LinkPair pair = Make();
  Writer writer(*pair.a, 5, 10, 9);
  while (!writer.done()) {
    ASSERT_EQ(writer.Step(), absl::OkStatus());
  }
  pair.pump();
  pair.a = nullptr;
  absl::Status end;
  for (int turn = 0; end.ok(); ++turn) {
    ASSERT_LT(turn, kManyTurns);
    const auto seen = pair.b->Peek(11);
    end = seen.status();
    if (seen.ok()) {
      ASSERT_TRUE(seen->empty());
    }
  }
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable) << end;
}

// One side of a conversation that sleeps whenever there is nothing to do: answers each message with
// one, of a size that both know. False if it slept for ten seconds, or the stream is wrong.
bool Converse(collectives::Link& link, bool begins, int messages) {
  const auto size_of = [](int i) { return i % 50 == 7 ? size_t{3'000'000} : size_t{40}; };
  const auto sleep = [&] {
    if (!link.PrepareToSleep()) {
      link.WakeUp();
      return true;
    }
    const short writable = link.WantsWritable() ? POLLOUT : 0;
    pollfd waiting = {
        .fd = link.fd(), .events = static_cast<short>(POLLIN | writable), .revents = 0};
    const int ready = poll(&waiting, 1, 10'000);
    link.WakeUp();
    return ready > 0;
  };
  Bytes bytes;
  for (int i = 0; i < 2 * messages; ++i) {
    bytes.assign(size_of(i), static_cast<uint8_t>(i));
    for (size_t done = 0; done < bytes.size();) {
      const auto all = absl::MakeSpan(bytes).subspan(done);
      const auto n = (i % 2 == 0) == begins ? link.Write({}, all) : link.Read(all);
      if (!n.ok()) return false;
      done += *n;
      if (*n == 0 && !sleep()) return false;
    }
    for (const uint8_t byte : bytes) {
      if (byte != static_cast<uint8_t>(i)) return false;
    }
  }
  return true;
}

// No wake-up is lost: neither that bytes have come nor that there is room again.
TEST_P(LinkTest, SleepersAreWoken) {
  LinkPair pair = Make();
  if (pair.a->fd() < 0) GTEST_SKIP() << "nothing to sleep on";
  bool other_ok = false;
  std::thread other([&] { other_ok = Converse(*pair.b, false, 2000); });
  EXPECT_TRUE(Converse(*pair.a, true, 2000));
  other.join();
  EXPECT_TRUE(other_ok);
}

// The peer is a process that writes some bytes and is killed: they are read, then its end is seen,
// by one who sleeps too.
void KilledPeerIsSeen(const std::function<std::unique_ptr<collectives::Link>()>& parents,
                      const std::function<std::unique_ptr<collectives::Link>()>& childs,
                      absl::string_view why) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto link = childs();
    for (size_t done = 0; done < 50'000;) done += link->Write({}, Bytes(50'000 - done, 9)).value();
    raise(SIGKILL);
  }
  const auto link = parents();
  Bytes bytes(50'000);
  absl::Status end;
  size_t got = 0;
  for (int turn = 0; end.ok() && turn < kManyTurns; ++turn) {
    const auto n = link->Read(absl::MakeSpan(bytes).subspan(std::min<size_t>(got, 49'999)));
    end = n.status();
    if (n.ok()) got += *n;
    if (n.ok() && *n == 0 && link->PrepareToSleep()) {
      pollfd waiting = {link->fd(), POLLIN, 0};
      ASSERT_EQ(poll(&waiting, 1, 60'000), 1);
    }
    link->WakeUp();
  }
  EXPECT_EQ(got, 50'000u);
  EXPECT_EQ(end, absl::UnavailableError(why));
  waitpid(child, nullptr, 0);
}

TEST(ShmLinkTest, AKilledPeerIsSeen) {
  auto sockets = transport::UnixLink::Pair();
  const auto rings = collectives::ShmLink::NewRings();
  ASSERT_TRUE(sockets.ok() && rings.ok());
  const auto end = [&](bool maker) -> std::unique_ptr<collectives::Link> {
    transport::UnixLink own = std::move(maker ? sockets->first : sockets->second);
    (maker ? sockets->second : sockets->first) =
        transport::UnixLink();  // the other process has it alone
    return std::make_unique<collectives::ShmLink>(std::move(own),
                                                  collectives::ShmLink::Map(*rings, maker).value());
  };
  KilledPeerIsSeen([&] { return end(true); }, [&] { return end(false); },
                   "the peer's process is gone");
}

TEST(TcpLinkTest, AKilledPeerIsSeen) {
  auto sockets = collectives::TcpPair();
  ASSERT_TRUE(sockets.ok());
  const auto end = [&](bool first) -> std::unique_ptr<collectives::Link> {
    OwnedFd own = std::move(first ? sockets->first : sockets->second);
    (first ? sockets->second : sockets->first) = OwnedFd();
    return std::make_unique<collectives::TcpLink>(std::move(own));
  };
  KilledPeerIsSeen([&] { return end(true); }, [&] { return end(false); },
                   "connection closed by the peer");
}

// ---- Over transports ----

class TransportLinkTest : public ::testing::TestWithParam<collectives::LinkChoice> {
 protected:
  void SetUp() override {
    if (const std::string missing = Missing(GetParam()); !missing.empty()) {
      GTEST_SKIP() << missing;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(All, TransportLinkTest,
                         ::testing::Values(collectives::LinkChoice::kZmq,
                                           collectives::LinkChoice::kRdma),
                         [](const auto& choice) {
                           return choice.param == collectives::LinkChoice::kZmq ? "Zmq" : "Rdma";
                         });

// Looks at a link until `done`, sleeping as an engine does.
bool SleepUntil(collectives::Link& link, const std::function<bool()>& done) {
  for (int turn = 0; turn < 100'000; ++turn) {
    if (done()) return true;
    pollfd waiting = {link.fd(), POLLIN, 0};
    if (link.PrepareToSleep()) (void)poll(&waiting, 1, 100);
    link.WakeUp();
  }
  return false;
}

constexpr char kVictimOf[] = "TANDEM_TEST_VICTIM_OF", kVictimOver[] = "TANDEM_TEST_VICTIM_OVER";

// The other process, a program of its own because a child that is forked cannot use an RDMA device
// that its parent has used: connects to the address that it is told, writes a little, waits for an
// answer, and is killed.
TEST(TransportLinkVictim, DISABLED_IsKilled) {
  const char *const address = std::getenv(kVictimOf), *const over = std::getenv(kVictimOver);
  ASSERT_TRUE(address != nullptr && over != nullptr) << "started by other tests";
  const collectives::LinkChoice choice = collectives::LinkChoiceOf(over).value();
  auto ports = collectives::LinkPorts::Open("127.0.0.1", choice);
  TANDEM_CHECK_OK(ports.status());
  const auto link = HubOf(*ports, choice).Connect(address, kLinksIncarnation, "hello");
  TANDEM_CHECK_OK(link.status());
  (void)SleepUntil(**link, [&] { return (*link)->answer().has_value(); });
  TANDEM_CHECK((*link)->Write({}, Bytes(50'000, 9)).value() == 50'000);
  (void)SleepUntil(**link, [&] { return !(*link)->Peek(1).value().empty(); });
  raise(SIGKILL);
}

pid_t StartVictim(const collectives::TransportHub& of) {
  setenv(kVictimOf, of.address().c_str(), 1);
  setenv(kVictimOver, of.kind().c_str(), 1);
  const char* const arguments[] = {"victim", "--gtest_also_run_disabled_tests",
                                   "--gtest_filter=TransportLinkVictim.*", "--gtest_brief=1",
                                   nullptr};
  pid_t pid = -1;
  TANDEM_CHECK(posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr,
                           const_cast<char* const*>(arguments), environ) == 0);
  return pid;
}

TEST_P(TransportLinkTest, AKilledPeerIsSeenByASleeper) {
  auto ports = collectives::LinkPorts::Open("127.0.0.1", GetParam());
  ASSERT_TRUE(ports.ok()) << ports.status();
  collectives::TransportHub& hub = HubOf(*ports, GetParam());
  const pid_t child = StartVictim(hub);
  std::unique_ptr<collectives::TransportLink> link;
  for (int turn = 0; link == nullptr && turn < 60'000; ++turn) {
    (void)hub.Poll();
    if (const auto newcomer = hub.NextNewcomer()) {
      link = hub.Admit(*newcomer, kLinksIncarnation, "welcome");
    }
    usleep(1000);
  }
  ASSERT_NE(link, nullptr);
  Bytes bytes(50'000);
  size_t got = 0;
  ASSERT_TRUE(SleepUntil(*link, [&] {
    const auto n = link->Read(absl::MakeSpan(bytes).subspan(got));
    got += n.value_or(bytes.size());
    return got >= bytes.size();
  }));
  EXPECT_EQ(bytes, Bytes(50'000, 9));
  ASSERT_EQ(link->Write({}, Bytes(1)).value(), 1u);
  absl::Status end;
  ASSERT_TRUE(SleepUntil(*link, [&] { return !(end = link->Peek(1).status()).ok(); }));
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(end.message()), ::testing::StartsWith("connection lost: "));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

// Lets both endpoints go on for a while.
void PollBoth(collectives::TransportHub& a, collectives::TransportHub& b,
              const std::function<bool()>& until) {
  bool done = until();
  for (int turn = 0; !done && turn < kManyTurns; ++turn) {
    (void)a.Poll();
    (void)b.Poll();
    done = until();
  }
  EXPECT_TRUE(done);
}

// Who is refused is told why; who speaks without having been admitted is shut out. The link that is
// there goes on.
TEST_P(TransportLinkTest, StrangersChangeNothing) {
  TransportMesh mesh(GetParam(), 3);
  TransportEnds ends = mesh.Next();
  collectives::TransportHub &hub = mesh.hub(0), &other = mesh.hub(2);
  auto refused = other.Connect(hub.address(), 5, "let me in");
  ASSERT_TRUE(refused.ok()) << refused.status();
  absl::optional<collectives::TransportHub::Newcomer> newcomer;
  PollBoth(hub, other, [&] { return (newcomer = hub.NextNewcomer()).has_value(); });
  EXPECT_EQ(newcomer->greeting, "let me in");
  hub.Refuse(*newcomer, "no");
  PollBoth(hub, other, [&] { return !(*refused)->failure().ok(); });
  EXPECT_EQ((*refused)->answer(), absl::optional<std::string>("no"));
  auto rude = other.Connect(hub.address(), 5, "let me in");
  ASSERT_TRUE(rude.ok()) << rude.status();
  ASSERT_EQ(*(*rude)->Write({}, Bytes(1000)), 1000u);  // before it is answered
  PollBoth(hub, other, [&] { return !(*rude)->failure().ok(); });
  EXPECT_FALSE(hub.NextNewcomer().has_value());
  ASSERT_EQ(*ends.second->Write({}, Bytes(1000, 3)), 1000u);
  Bytes got(1000);
  size_t n = 0;
  PollBoth(hub, mesh.hub(1),
           [&] { return (n += *ends.first->Read(absl::MakeSpan(got).subspan(n))) == got.size(); });
  EXPECT_EQ(got, Bytes(1000, 3));
}

// What a link has taken arrives though its rank never looks again: the peer alone goes on. Sizes
// from a header to more than a frame, as many as it takes.
TEST_P(TransportLinkTest, WhatIsTakenArrivesWithoutHelp) {
  for (const size_t size : {size_t{64}, size_t{4000}, size_t{60'000},
                            collectives::TransportLink::kFrameBytes, size_t{1'000'000}}) {
    TransportEnds ends = TransportMesh(GetParam(), 2).Next();
    const Bytes bytes(size, 5);
    size_t written = 0, read = 0;
    for (size_t n = 1; n > 0; written += n) n = *ends.first->Write({}, bytes);
    EXPECT_GE(written, std::min(size * collectives::TransportLink::kWindowFrames,
                                collectives::TransportLink::kWindowBytes / 2));
    EXPECT_LE(written, collectives::TransportLink::kWindowBytes);
    Bytes got(written);
    for (int turn = 0; read < written && turn < kManyTurns; ++turn) {
      read += *ends.second->Read(absl::MakeSpan(got).subspan(read));
    }
    EXPECT_EQ(read, written) << size;
    EXPECT_EQ(got, Bytes(written, 5)) << size;
  }
}

TEST(InMemoryLinkTest, ABreakIsSeenAtOnceOnBothEnds) {
  auto ends = collectives::InMemoryLink::NewPair();
  const Bytes bytes(100);
  ASSERT_EQ(*ends[0]->Write({}, bytes), 100u);
  ends[1]->Break(absl::DataLossError("cut"));
  ends[0]->Break(absl::InternalError("later"));
  for (auto& end : ends) {
    EXPECT_EQ(end->Peek(1).status(), absl::DataLossError("cut"));
    EXPECT_EQ(end->Write({}, bytes).status(), absl::DataLossError("cut"));
  }
}

// An idle link says nothing.
TEST(FrameLinkTest, NothingIsSentWhenThereIsNothingToSay) {
  FrameWorld world(1, 0);
  ASSERT_EQ(*world.link(0).Write({}, Bytes(100)), 100u);
  for (int i = 0; i < 200; ++i) world.Pump();
  const uint64_t frames = world.frames();
  EXPECT_LE(frames, 4u);
  for (int i = 0; i < 1000; ++i) world.Pump();
  EXPECT_EQ(world.frames(), frames);
}

// Over a connection that loses nothing, what is not next is a lie, and so are more frames than may
// be under way.
TEST(FrameLinkTest, GapsAndTooManyFramesAreRefused) {
  HeapBufferSource source;
  collectives::FrameLinkOptions options;
  options.window_bytes = 4096;
  options.window_frames = 4;
  collectives::FrameLink link(source, options);
  const auto arrives = [&](uint64_t offset, uint8_t flags, size_t bytes) {
    FrameHeader header;
    header.kind = FrameKind::kSegment;
    header.flags = flags;
    header.request = offset;
    const auto parsed = DecodeFrame(
        EncodeDataFrame(source, header, {}, Buffer(), CopyToBuffer(source, Bytes(bytes))));
    TANDEM_CHECK_OK(parsed.status());
    return link.OnFrame(*parsed).ok();
  };
  EXPECT_FALSE(arrives(1, collectives::FrameLink::kData, 10));
  EXPECT_FALSE(arrives(0, 1, 10));  // flags that were in use once
  EXPECT_FALSE(arrives(0, 2, 10));
  EXPECT_FALSE(arrives(0, collectives::FrameLink::kGreeting, 10));
  for (uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(arrives(10 * i, collectives::FrameLink::kData, 10));
  EXPECT_FALSE(arrives(30, collectives::FrameLink::kData, 10));
  EXPECT_FALSE(arrives(40, collectives::FrameLink::kData, 10));
  ASSERT_EQ(link.Peek(1)->size(), 10u);
  link.Consume(10);
  EXPECT_TRUE(arrives(40, collectives::FrameLink::kData, 10));
}

// Whatever a frame says, it is refused or it fits; nothing is read or kept beyond the window.
TEST(FrameLinkTest, ImpossibleSegmentsAreRefused) {
  HeapBufferSource source;
  collectives::FrameLinkOptions options;
  options.group = 3;
  options.window_bytes = 4096;
  collectives::FrameLink link(source, options);
  const auto refusal = [&](const std::function<void(FrameHeader*)>& change, size_t bytes) {
    FrameHeader header;
    header.kind = FrameKind::kSegment;
    header.group = 3;
    change(&header);
    const auto parsed = DecodeFrame(
        EncodeDataFrame(source, header, {}, Buffer(), CopyToBuffer(source, Bytes(bytes))));
    TANDEM_CHECK_OK(parsed.status());
    return link.OnFrame(*parsed).code();
  };
  constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(refusal([](FrameHeader* h) { h->kind = FrameKind::kAck; }, 10), kRefused);
  EXPECT_EQ(refusal([](FrameHeader* h) { h->group = 4; }, 10), kRefused);
  EXPECT_EQ(refusal([](FrameHeader* h) { h->incarnation = 1; }, 10), kRefused);
  EXPECT_EQ(refusal([](FrameHeader*) {}, 4097), kRefused);
  EXPECT_EQ(refusal([](FrameHeader* h) { h->request = 4000; }, 100), kRefused);
  EXPECT_EQ(refusal([](FrameHeader* h) { h->request = UINT64_MAX; }, 100), kRefused);
  EXPECT_EQ(refusal([](FrameHeader* h) { h->step = 1; }, 10), kRefused);
  EXPECT_EQ(refusal([](FrameHeader* h) { h->step = -1; }, 10), kRefused);
  EXPECT_EQ(refusal([](FrameHeader* h) { h->first_step = 1; }, 10), kRefused);
  EXPECT_EQ(refusal([](FrameHeader*) {}, 4096), absl::StatusCode::kOk);
  EXPECT_EQ(link.Peek(1)->size(), 4096u);
}

}  // namespace
}  // namespace tandem
