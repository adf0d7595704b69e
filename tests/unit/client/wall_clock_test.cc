// The time of day is set forward and back while things wait: nothing but timestamps may notice.
//
// This program's own clock_gettime stands in front of the C library's and adds an offset to the
// time of day of this process; the clock of the machine stays as it is.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "client/client.h"
#include "collectives/rendezvous/coordinator.h"
#include "collectives/rendezvous/coordinator_client.h"
#include "gtest/gtest.h"
#include "node/beat_thread.h"
#include "node/node_link.h"
#include "tools/bench/lone_shard.h"
#include "transport/in_process.h"

namespace {
std::atomic<int64_t> seconds_set{0};
}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const long failed = syscall(SYS_clock_gettime, clock, now);
  if (failed == 0 && clock == CLOCK_REALTIME) now->tv_sec += seconds_set.load();
  return static_cast<int>(failed);
}

namespace tandem {
namespace {

constexpr int64_t kHour = 3600;
constexpr absl::Duration kPatience = absl::Seconds(60);

class WallClockTest : public testing::Test {
 protected:
  ~WallClockTest() override { seconds_set = 0; }
};

TEST_F(WallClockTest, TheTestSetsTheTimeOfDayAndNothingElse) {
  const absl::Time before = absl::Now(), monotonic = MonotonicNow();
  seconds_set = kHour;
  EXPECT_GE(absl::Now() - before, absl::Seconds(kHour));
  EXPECT_LT(MonotonicNow() - monotonic, kPatience);
  seconds_set = -kHour;
  EXPECT_LT(absl::Now() - before, absl::ZeroDuration());
  EXPECT_GE(MonotonicNow(), monotonic);
}

TEST_F(WallClockTest, AWaitEndsAtItsDeadlineOrAtASignal) {
  absl::Mutex mutex;
  CondVar changed;
  bool ready = false;
  const absl::Time begun = MonotonicNow();
  std::thread sets([] {
    absl::SleepFor(absl::Milliseconds(20));
    seconds_set = -kHour;
  });
  {
    absl::MutexLock lock(&mutex);
    while (!changed.WaitUntil(&mutex, begun + absl::Milliseconds(60))) {
    }
  }
  sets.join();
  EXPECT_GE(MonotonicNow() - begun, absl::Milliseconds(60));
  EXPECT_LT(MonotonicNow() - begun, kPatience);
  std::thread signals([&] {
    absl::MutexLock lock(&mutex);
    ready = true;
    changed.SignalAll();
  });
  {
    absl::MutexLock lock(&mutex);
    while (!ready) changed.Wait(&mutex);
  }
  signals.join();
}

// Two workers, one of which waits for the other, while the clock is set.
class ClientClockTest : public WallClockTest {
 protected:
  ClientClockTest()
      : plan_(bench::LoneShardPlan("table { name: \"ids\" dim: 1 initializer { kind: ZERO } "
                                   "optimizer { kind: SGD learning_rate: 1 } }\n",
                                   "kind: BSP", 2)),
        shard_(plan_, network_.NewTransport({}).value()) {
    for (int rank = 0; rank < 2; ++rank) {
      client::Client::Options options;
      options.self = EndpointId::Worker(rank);
      options.incarnation = 7 + static_cast<uint64_t>(rank);
      clients_.push_back(
          client::Client::New(plan_, network_.NewTransport({}).value(), options).value());
      EXPECT_TRUE(clients_.back()->SetView(shard_.view()).ok());
    }
  }
  client::Future Push(int rank) {
    const absl::Span<const float> gradients(&gradient_, 1);
    return clients_[static_cast<size_t>(rank)]->Push(0, 0, 1, {&keys_, 1}, {&gradients, 1});
  }
  client::Future Pull() {
    const absl::Span<float> rows(&row_, 1);
    return clients_[0]->Pull(0, 1, {&keys_, 1}, {&rows, 1});
  }

  const uint64_t id_ = 5;
  const client::TableKeys keys_ = {0, {&id_, 1}};
  const float gradient_ = 3;
  float row_ = 0;
  transport::InProcessNetwork network_;
  const job::ResolvedJob plan_;
  bench::LoneShard shard_;
  std::vector<std::unique_ptr<client::Client>> clients_;
};

TEST_F(ClientClockTest, AReadThatWaitsDoesNotFailWhenTheClockIsSetForward) {
  ASSERT_TRUE(Push(0).status().ok());
  const client::Future read = Pull();
  EXPECT_FALSE(read.WaitFor(absl::Milliseconds(100)));  // the other worker has not pushed
  seconds_set = kHour;
  EXPECT_FALSE(read.WaitFor(absl::Milliseconds(200)));
  ASSERT_TRUE(Push(1).status().ok());
  EXPECT_TRUE(read.status().ok()) << read.status();
  EXPECT_EQ(row_, -3);
}

TEST_F(ClientClockTest, AWaitIsNoLongerWhenTheClockIsSetBack) {
  ASSERT_TRUE(Push(0).status().ok());
  const client::Future read = Pull();
  std::thread sets([] {
    absl::SleepFor(absl::Milliseconds(50));
    seconds_set = -kHour;
  });
  const absl::Time begun = MonotonicNow();
  EXPECT_FALSE(read.WaitFor(absl::Milliseconds(200)));
  EXPECT_LT(MonotonicNow() - begun, kPatience);
  sets.join();
  ASSERT_TRUE(Push(1).status().ok());
  EXPECT_TRUE(read.status().ok()) << read.status();
}

// Who hears no beat for 8 s declares a process dead.
TEST_F(WallClockTest, BeatsGoOnWhenTheClockIsSetBack) {
  transport::InProcessNetwork network;
  const auto scheduler = network.NewTransport({}).value();
  const node::LoopProgress progress;
  node::BeatThread beats([&network] { return network.NewTransport({}); }, scheduler->address(),
                         EndpointId::Worker(0), 1, {&progress}, absl::Seconds(1));
  const auto hear_beats = [&scheduler](int want) {
    std::vector<transport::TransportEvent> events;
    const absl::Time deadline = MonotonicNow() + kPatience;
    for (int heard = 0; heard < want;) {
      if (MonotonicNow() > deadline) return false;
      events.clear();
      scheduler->Poll(absl::Milliseconds(100), &events);
      for (const transport::TransportEvent& event : events)
        heard += event.kind == transport::TransportEvent::Kind::kFrame;
    }
    return true;
  };
  ASSERT_TRUE(hear_beats(1));
  seconds_set = -kHour;
  EXPECT_TRUE(hear_beats(2));
}

// Members of a collective group beat, too, and are beaten to.
TEST_F(WallClockTest, AGroupStaysTogether) {
  for (const int64_t set : {kHour, -kHour}) {
    collectives::CoordinatorOptions options;
    options.address = "127.0.0.1:0";
    options.beat = absl::Milliseconds(50);
    auto coordinator = collectives::Coordinator::Start(options);
    ASSERT_TRUE(coordinator.ok()) << coordinator.status();
    std::unique_ptr<collectives::CoordinatorClient> members[2];
    std::thread joins[2];
    for (int rank = 0; rank < 2; ++rank) {
      joins[rank] = std::thread([&, rank] {
        collectives::JoinOptions join;
        join.coordinator = (*coordinator)->address();
        join.rank = rank;
        join.ranks = 2;
        auto joined = collectives::CoordinatorClient::Join(join, MonotonicNow() + kPatience);
        ASSERT_TRUE(joined.ok()) << joined.status();
        members[rank] = *std::move(joined);
      });
    }
    for (std::thread& thread : joins) thread.join();
    ASSERT_NE(members[0], nullptr);
    ASSERT_NE(members[1], nullptr);
    seconds_set = set;
    const absl::Status verdict = members[0]->WaitVerdict(MonotonicNow() + absl::Milliseconds(500));
    EXPECT_TRUE(verdict.ok()) << verdict;
    seconds_set = 0;
  }
}

}  // namespace
}  // namespace tandem
