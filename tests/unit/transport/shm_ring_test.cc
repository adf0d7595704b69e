// The shared-memory ring and the Unix sockets that hand it over: bytes pass unchanged between two
// processes, sleeping loses no wake-up, a killed peer leaves nothing half written, and cursors that
// lie are refused.
#include "transport/shm_ring.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/sanitized.h"
#include "tests/test_seed.h"
#include "tests/unit/transport/scarce_system.h"
#include "transport/unix_link.h"

namespace tandem {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(100);
// Where the header has its words: shm_ring.cc.
constexpr size_t kTailWord = 0, kHeadWord = 16, kProducerSleepsWord = 48;

struct Ends {
  transport::ShmRing producer, consumer;
  OwnedFd fd;
};

Ends NewRing(size_t capacity) {
  Ends ends;
  auto fd = transport::ShmRing::Create(capacity);
  TANDEM_CHECK_OK(fd.status());
  auto producer = transport::ShmRing::Map(fd->get(), transport::ShmRing::Role::kProducer);
  auto consumer = transport::ShmRing::Map(fd->get(), transport::ShmRing::Role::kConsumer);
  TANDEM_CHECK_OK(producer.status());
  TANDEM_CHECK_OK(consumer.status());
  ends.producer = *std::move(producer);
  ends.consumer = *std::move(consumer);
  ends.fd = *std::move(fd);
  return ends;
}

// The header as a hostile process can write it.
class Words {
 public:
  explicit Words(int fd)
      : mapping_(*transport::MapSharedMemory(fd, transport::kPageBytes, /*writable=*/true)) {}
  std::atomic<uint64_t>& operator[](size_t i) {
    return reinterpret_cast<std::atomic<uint64_t>*>(mapping_.data())[i];
  }

 private:
  transport::Mapping mapping_;
};

// Runs `body` in a child process; the child never returns.
pid_t Fork(const std::function<void()>& body) {
  const pid_t pid = fork();
  TANDEM_CHECK(pid >= 0);
  if (pid == 0) {
    body();
    _exit(0);
  }
  return pid;
}

int WaitFor(pid_t pid) {
  int status = 0;
  TANDEM_CHECK(waitpid(pid, &status, 0) == pid);
  return status;
}

void SleepOn(int fd) {
  pollfd waiting = {.fd = fd, .events = POLLIN, .revents = 0};
  TANDEM_CHECK(poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) == 1);
  uint64_t count;
  TANDEM_CHECK(read(fd, &count, sizeof count) == sizeof count);
}

void Ring(int fd) {
  const uint64_t one = 1;
  TANDEM_CHECK(write(fd, &one, sizeof one) == sizeof one);
}

// Sends `total` bytes of a pattern in random pieces, sleeping when there is no room.
void Produce(transport::ShmRing* ring, uint64_t total, uint64_t seed, int my_bell, int its_bell) {
  Random pieces(seed), pattern(seed + 1);
  for (uint64_t sent = 0; sent < total;) {
    const size_t want = std::min<uint64_t>(total - sent, 1 + pieces.Uniform(ring->capacity() - 1));
    auto space = ring->Reserve(want, want);
    TANDEM_CHECK_OK(space.status());
    if (space->empty()) {
      if (ring->ProducerMaySleep(want)) SleepOn(my_bell);
      ring->ProducerAwake();
      continue;
    }
    for (uint8_t& byte : *space) byte = static_cast<uint8_t>(pattern.Next64());
    sent += want;
    if (ring->Publish(want)) Ring(its_bell);
  }
  if (ring->Finish()) Ring(its_bell);
}

// Reads to the end; returns how many bytes were as they should be.
uint64_t ConsumeAll(transport::ShmRing* ring, uint64_t seed, int my_bell, int its_bell) {
  Random pattern(seed + 1), pieces(seed + 2);
  for (uint64_t right = 0;;) {
    const bool finished = ring->finished();
    auto bytes = ring->Peek();
    TANDEM_CHECK_OK(bytes.status());
    if (bytes->empty()) {
      if (finished) return right;
      if (ring->ConsumerMaySleep()) SleepOn(my_bell);
      ring->ConsumerAwake();
      continue;
    }
    const size_t take = 1 + pieces.Uniform(bytes->size());
    for (size_t i = 0; i < take; ++i) {
      right += (*bytes)[i] == static_cast<uint8_t>(pattern.Next64());
    }
    if (ring->Consume(take)) Ring(its_bell);
  }
}

TEST(ShmRingTest, BytesPassBetweenProcessesUnchangedWithBothSidesSleeping) {
  Ends ends = NewRing(transport::ShmRing::kMinCapacity);
  constexpr uint64_t kTotal = 1 << 20;
  const OwnedFd to_producer(eventfd(0, EFD_CLOEXEC)), to_consumer(eventfd(0, EFD_CLOEXEC));
  const uint64_t seed = TestSeed();
  const pid_t child =
      Fork([&] { Produce(&ends.producer, kTotal, seed, to_producer.get(), to_consumer.get()); });
  EXPECT_EQ(ConsumeAll(&ends.consumer, seed, to_consumer.get(), to_producer.get()), kTotal);
  EXPECT_EQ(WaitFor(child), 0);
}

TEST(ShmRingTest, BytesPassBetweenThreadsUnchanged) {
  Ends ends = NewRing(transport::ShmRing::kMinCapacity);
  constexpr uint64_t kTotal = 1 << 18;
  const OwnedFd to_producer(eventfd(0, EFD_CLOEXEC)), to_consumer(eventfd(0, EFD_CLOEXEC));
  std::thread producer(
      [&] { Produce(&ends.producer, kTotal, 5, to_producer.get(), to_consumer.get()); });
  EXPECT_EQ(ConsumeAll(&ends.consumer, 5, to_consumer.get(), to_producer.get()), kTotal);
  producer.join();
}

TEST(ShmRingTest, EverySpanIsContiguousAcrossTheWrap) {
  Ends ends = NewRing(4096);
  for (int lap = 0; lap < 50; ++lap) {
    auto space = ends.producer.Reserve(3000, 3000);
    ASSERT_TRUE(space.ok());
    ASSERT_EQ(space->size(), 3000u);
    std::memset(space->data(), lap, space->size());
    EXPECT_FALSE(ends.producer.Publish(3000));
    auto bytes = ends.consumer.Peek();
    ASSERT_TRUE(bytes.ok());
    ASSERT_EQ(bytes->size(), 3000u);
    EXPECT_TRUE(std::all_of(bytes->begin(), bytes->end(), [&](uint8_t b) { return b == lap; }));
    EXPECT_FALSE(ends.consumer.Consume(3000));
  }
}

TEST(ShmRingTest, ReserveGivesWhatIsFreeAndNeverMore) {
  Ends ends = NewRing(4096);
  EXPECT_EQ(*ends.producer.bytes_free(), 4096u);
  EXPECT_EQ(ends.producer.Reserve(1, 100'000)->size(), 4096u);
  EXPECT_FALSE(ends.producer.Publish(4000));
  EXPECT_TRUE(ends.producer.Reserve(97, 97)->empty());
  EXPECT_EQ(ends.producer.Reserve(96, 4096)->size(), 96u);
  EXPECT_EQ(ends.consumer.Peek()->size(), 4000u);
  EXPECT_FALSE(ends.consumer.Consume(1000));
  EXPECT_EQ(ends.producer.Reserve(97, 4096)->size(), 1096u);
  EXPECT_EQ(ends.producer.consumed(), 1000u);
}

TEST(ShmRingTest, AWakeUpIsAskedForOnceAndOnlyWhenItIsOfUse) {
  Ends ends = NewRing(4096);
  ASSERT_TRUE(ends.consumer.ConsumerMaySleep());
  ASSERT_EQ(ends.producer.Reserve(4096, 4096)->size(), 4096u);
  EXPECT_TRUE(ends.producer.Publish(1));
  EXPECT_FALSE(ends.producer.Publish(1)) << "it has been woken";
  EXPECT_FALSE(ends.consumer.ConsumerMaySleep()) << "there is something to read";
  ends.consumer.ConsumerAwake();
  EXPECT_FALSE(ends.producer.Publish(4094));
  ASSERT_EQ(ends.consumer.Peek()->size(), 4096u);
  ASSERT_TRUE(ends.producer.ProducerMaySleep(1000));
  EXPECT_FALSE(ends.consumer.Consume(999)) << "not enough yet";
  EXPECT_TRUE(ends.consumer.Consume(1));
  EXPECT_FALSE(ends.consumer.Consume(1));
  EXPECT_FALSE(ends.producer.ProducerMaySleep(1000)) << "there is room";
  ends.producer.ProducerAwake();
  ASSERT_EQ(ends.consumer.Peek()->size(), 4096u - 1001u);
  EXPECT_FALSE(ends.consumer.Consume(4096 - 1001));
  ASSERT_TRUE(ends.consumer.ConsumerMaySleep());
  EXPECT_TRUE(ends.producer.Finish());
  EXPECT_TRUE(ends.consumer.finished());
  EXPECT_FALSE(ends.consumer.ConsumerMaySleep());
}

TEST(ShmRingTest, CursorsThatLieAreRefused) {
  for (const uint64_t lie : {uint64_t{99}, uint64_t{4197}, ~uint64_t{0}, uint64_t{1} << 63}) {
    Ends ends = NewRing(4096);
    Words words(ends.fd.get());
    ASSERT_EQ(ends.producer.Reserve(100, 100)->size(), 100u);
    EXPECT_FALSE(ends.producer.Publish(100));
    ASSERT_EQ(ends.consumer.Peek()->size(), 100u);
    EXPECT_FALSE(ends.consumer.Consume(100));
    EXPECT_EQ(*ends.producer.bytes_free(), 4096u);
    words[kTailWord] = lie;
    EXPECT_EQ(ends.consumer.Peek().status().code(), absl::StatusCode::kDataLoss) << lie;
    words[kHeadWord] = lie;
    EXPECT_EQ(ends.producer.bytes_free().status().code(), absl::StatusCode::kDataLoss) << lie;
    // As long as the known room suffices the cursor is not even looked at.
    EXPECT_TRUE(ends.producer.Reserve(1, 1).ok());
    words[kProducerSleepsWord] = lie;  // at worst a wake-up that nobody needs, or none
    EXPECT_EQ(ends.consumer.Consume(0), lie == 99);
  }
}

TEST(ShmRingTest, WhatAKilledProducerHasNotPublishedWasNeverThere) {
  Ends ends = NewRing(transport::ShmRing::kDefaultCapacity);
  auto sockets = transport::UnixLink::Pair();
  ASSERT_TRUE(sockets.ok());
  const pid_t child = Fork([&] {
    sockets->first = transport::UnixLink();
    uint8_t* const first = ends.producer.Reserve(8, 8)->data();
    std::memcpy(first, "complete", 8);
    (void)ends.producer.Publish(8);
    auto space = ends.producer.Reserve(1 << 19, 1 << 19);
    TANDEM_CHECK_OK(sockets->second.Send("writing"));
    for (;;) std::memset(space->data(), 0xee, space->size());
  });
  sockets->second = transport::UnixLink();
  auto message = sockets->first.ReceiveBy(MonotonicNow() + kPatience);
  ASSERT_TRUE(message.ok()) << message.status();
  kill(child, SIGKILL);
  WaitFor(child);
  EXPECT_TRUE(sockets->first.PeerIsGone());
  EXPECT_TRUE(absl::IsUnavailable(sockets->first.ReceiveBy(MonotonicNow() + kPatience).status()));
  auto bytes = ends.consumer.Peek();
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(std::string(bytes->begin(), bytes->end()), "complete");
  EXPECT_FALSE(ends.consumer.finished());
}

TEST(ShmRingTest, OnlySealedMemoryOfAPossibleSizeIsARing) {
  const auto refused = [](int fd) {
    return absl::IsInvalidArgument(
        transport::ShmRing::Map(fd, transport::ShmRing::Role::kConsumer).status());
  };
  const OwnedFd unsealed(memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096 + 4096), 0);
  EXPECT_TRUE(refused(unsealed.get())) << "its owner could shrink it under us";
  const OwnedFd odd = *transport::CreateSharedMemory(4096 + 3 * 4096),
                header_only = *transport::CreateSharedMemory(4096);
  EXPECT_TRUE(refused(odd.get()));
  EXPECT_TRUE(refused(header_only.get()));
  const OwnedFd event(eventfd(0, EFD_CLOEXEC));
  EXPECT_TRUE(refused(event.get()));
  const OwnedFd ring = *transport::ShmRing::Create(8192);
  EXPECT_NE(ftruncate(ring.get(), 4096), 0);
  EXPECT_NE(fcntl(ring.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(transport::ShmRing::Create(5000).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(transport::ShmRing::Create(1024).status()));
}

TEST(ShmMemoryTest, MemoryForReadersCanOnlyBeReadByOthers) {
  auto memory = transport::CreateMemoryForReaders(transport::kPageBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  memory->mapping.data()[7] = 42;
  EXPECT_FALSE(
      transport::MapSharedMemory(memory->fd.get(), transport::kPageBytes, /*writable=*/true).ok());
  auto reader =
      transport::MapSharedMemory(memory->fd.get(), transport::kPageBytes, /*writable=*/false);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->data()[7], 42);
  EXPECT_NE(mprotect(reader->data(), transport::kPageBytes, PROT_READ | PROT_WRITE), 0);
}

std::string TestName(const char* what) { return absl::StrCat("tandem-test-", getpid(), "-", what); }

TEST(UnixLinkTest, DescriptorsPassAndMessagesKeepTheirBoundaries) {
  const std::string name = TestName("pass");
  auto listener = transport::UnixListener::Bind(name);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(absl::IsNotFound(listener->Accept().status()));
  const pid_t child = Fork([&name] {
    auto link = transport::UnixLink::ConnectBy(name, MonotonicNow() + kPatience);
    TANDEM_CHECK_OK(link.status());
    const OwnedFd ring = *transport::ShmRing::Create(4096);
    auto producer = transport::ShmRing::Map(ring.get(), transport::ShmRing::Role::kProducer);
    std::memcpy(producer->Reserve(5, 5)->data(), "hello", 5);
    (void)producer->Publish(5);
    const int fds[] = {ring.get()};
    TANDEM_CHECK_OK(link->Send("ring", fds));
    TANDEM_CHECK_OK(link->Send("second"));
  });
  absl::StatusOr<transport::UnixLink> link = absl::NotFoundError("");
  const absl::Time deadline = MonotonicNow() + kPatience;
  while (absl::IsNotFound(link.status()) && MonotonicNow() < deadline) link = listener->Accept();
  ASSERT_TRUE(link.ok()) << link.status();
  auto first = link->ReceiveBy(MonotonicNow() + kPatience);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->bytes, "ring");
  ASSERT_EQ(first->fds.size(), 1u);
  auto ring = transport::ShmRing::Map(first->fds[0].get(), transport::ShmRing::Role::kConsumer);
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_EQ(ring->Peek()->size(), 5u);
  EXPECT_EQ(link->ReceiveBy(MonotonicNow() + kPatience)->bytes, "second");
  EXPECT_TRUE(absl::IsUnavailable(link->ReceiveBy(MonotonicNow() + kPatience).status()));
  EXPECT_EQ(WaitFor(child), 0);
}

// A newcomer would else wait in the queue, and keep the listener busy, until there is a descriptor.
TEST(UnixLinkTest, ANewcomerForWhomNoDescriptorIsLeftIsRefused) {
  if (kSanitized) GTEST_SKIP() << "UBSan looks at objects through a pipe";
  auto listener = transport::UnixListener::Bind(TestName("full"));
  ASSERT_TRUE(listener.ok()) << listener.status();
  auto link = transport::UnixLink::Connect(TestName("full"));
  ASSERT_TRUE(link.ok()) << link.status();
  {
    const NoDescriptorsLeft none;
    EXPECT_TRUE(absl::IsResourceExhausted(listener->Accept().status()));
    EXPECT_TRUE(link->PeerIsGone());
    EXPECT_TRUE(absl::IsNotFound(listener->Accept().status())) << "nobody waits any more";
  }
  auto next = transport::UnixLink::Connect(TestName("full"));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(listener->Accept().ok());
}

TEST(UnixLinkTest, NamesAreTakenAndFree) {
  EXPECT_TRUE(absl::IsUnavailable(transport::UnixLink::Connect(TestName("nobody")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(transport::UnixLink::Connect("").status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(transport::UnixLink::Connect(std::string(200, 'x')).status()));
  auto listener = transport::UnixListener::Bind(TestName("taken"));
  ASSERT_TRUE(listener.ok());
  EXPECT_TRUE(absl::IsUnavailable(transport::UnixListener::Bind(TestName("taken")).status()));
  EXPECT_TRUE(transport::UnixLink::Connect(TestName("taken")).ok());
  listener = absl::NotFoundError("gone");
  EXPECT_TRUE(transport::UnixListener::Bind(TestName("taken")).ok())
      << "names vanish with their owner";
}

TEST(UnixLinkTest, AFullSocketIsSaidAndNothingIsHalfSent) {
  auto pair = transport::UnixLink::Pair();
  ASSERT_TRUE(pair.ok());
  const std::string message(transport::UnixLink::kMaxMessageBytes, 'x');
  int sent = 0;
  absl::Status status;
  for (; status.ok() && sent < 1'000'000; ++sent) status = pair->first.Send(message);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  for (int i = 0; i + 1 < sent; ++i) {
    auto received = pair->second.Receive();
    ASSERT_TRUE(received.ok()) << received.status();
    ASSERT_EQ(received->bytes, message);
  }
  EXPECT_TRUE(absl::IsNotFound(pair->second.Receive().status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(pair->second.ReceiveBy(MonotonicNow()).status()));
  pair->first = transport::UnixLink();
  EXPECT_TRUE(absl::IsUnavailable(pair->second.Receive().status()));
  EXPECT_TRUE(absl::IsUnavailable(pair->second.Send("x")));
}

}  // namespace
}  // namespace tandem
