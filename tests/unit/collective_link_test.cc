// Links: one suite that every kind passes. What is written arrives, whole and in order, however
// transfers are cut; what is on its way is bounded; the end of the peer is seen, after what it
// wrote before; nothing works after an error.
#include "collectives/link.h"

#include <poll.h>

#include <algorithm>
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
#include "collectives/links/in_memory_link.h"
#include "collectives/links/shm_link.h"
#include "collectives/links/tcp_link.h"
#include "collectives/links/tcp_socket.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

using Bytes = std::vector<uint8_t>;

// A pair of links and what moves bytes between them besides the links' own calls.
struct LinkPair {
  std::unique_ptr<Link> a, b;
  std::function<void()> pump = [] {};
};

struct LinkKind {
  std::string name;
  std::function<LinkPair(uint64_t seed)> make;
  bool threads = true;  // the ends may be used by two threads
};

std::vector<LinkKind> AllKinds() {
  std::vector<LinkKind> kinds;
  const auto memory = [](uint64_t partial_seed, size_t capacity) {
    InMemoryLinkOptions options;
    options.capacity = capacity;
    options.partial_seed = partial_seed;
    auto ends = InMemoryLink::NewPair(options);
    return LinkPair{std::move(ends[0]), std::move(ends[1])};
  };
  kinds.push_back({"Memory", [=](uint64_t) { return memory(0, 1 << 16); }});
  kinds.push_back({"MemoryPartial", [=](uint64_t seed) { return memory(seed + 1, 4096); }});
  kinds.push_back({"Tcp", [](uint64_t) {
                     auto sockets = TcpPair();
                     TANDEM_CHECK_OK(sockets.status());
                     return LinkPair{std::make_unique<TcpLink>(std::move(sockets->first)),
                                     std::make_unique<TcpLink>(std::move(sockets->second))};
                   }});
  const auto shm = [](size_t capacity) {
    auto ends = ShmLink::NewPair(capacity);
    TANDEM_CHECK_OK(ends.status());
    return LinkPair{std::move((*ends)[0]), std::move((*ends)[1])};
  };
  kinds.push_back({"Shm", [=](uint64_t) { return shm(ShmLink::kDefaultCapacity); }});
  kinds.push_back({"ShmSmall", [=](uint64_t) { return shm(4096); }});
  return kinds;
}

// Byte i of a stream, so that any part of it can be checked wherever it is cut.
uint8_t ByteAt(uint64_t stream, uint64_t i) {
  return static_cast<uint8_t>(Mix64(stream * 0x10001 + i / 8) >> (8 * (i % 8)));
}

// Writes a stream in pieces of random size, as heads and bodies.
class Writer {
 public:
  Writer(Link& link, uint64_t stream, uint64_t total, uint64_t seed)
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

  Link& link_;
  uint64_t stream_, total_, written_ = 0;
  Random random_;
  Bytes bytes_;
  size_t begin_ = 0, head_ = 0;
};

// Takes a stream from a link by Peek and Read in turns, and compares.
class Reader {
 public:
  Reader(Link& link, uint64_t stream, uint64_t total, uint64_t seed)
      : link_(link), stream_(stream), total_(total), random_(seed) {}
  bool done() const { return read_ == total_; }
  uint64_t read() const { return read_; }
  bool wrong() const { return wrong_; }
  absl::Status Step() { return random_.Bernoulli(.5) ? StepPeek() : StepRead(); }

 private:
  absl::Status StepPeek() {
    const uint64_t least = 1 + random_.Uniform(std::min<uint64_t>(Link::kMaxPeek, total_ - read_));
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

  Link& link_;
  uint64_t stream_, total_, read_ = 0;
  Random random_;
  Bytes bytes_;
  bool wrong_ = false;
};

class LinkTest : public ::testing::TestWithParam<LinkKind> {
 protected:
  LinkTest() : trace_(__FILE__, __LINE__, "rerun with --seed=" + std::to_string(TestSeed())) {}
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
  const auto run = [&](Link& link, uint64_t out, uint64_t in) {
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
bool Converse(Link& link, bool begins, int messages) {
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

TEST(InMemoryLinkTest, ABreakIsSeenAtOnceOnBothEnds) {
  auto ends = InMemoryLink::NewPair();
  const Bytes bytes(100);
  ASSERT_EQ(*ends[0]->Write({}, bytes), 100u);
  ends[1]->Break(absl::DataLossError("cut"));
  ends[0]->Break(absl::InternalError("later"));
  for (auto& end : ends) {
    EXPECT_EQ(end->Peek(1).status(), absl::DataLossError("cut"));
    EXPECT_EQ(end->Write({}, bytes).status(), absl::DataLossError("cut"));
  }
}

}  // namespace
}  // namespace tandem
