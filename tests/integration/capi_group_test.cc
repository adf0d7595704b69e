// Groups through the C interface, as libtandem.so has it: every operation on inputs whose results
// are exact, and what the members hear when one of them is gone, leaves, or calls something else.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "capi/tandem.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kLimitMs = 60'000;  // of anything here; a failure if reached

// One member, as a program of one process has it.
class Member {
 public:
  Member(int rank, int ranks, const char* link, int64_t deadline_ms = kLimitMs)
      : rank_(rank), ranks_(ranks) {
    tandem_group_options options = {};
    options.size = sizeof options;
    options.rank = rank;
    options.ranks = ranks;
    options.link = link;
    options.deadline_ms = deadline_ms;
    EXPECT_EQ(tandem_group_open(&options, &group_), 0) << tandem_error();
  }
  ~Member() { tandem_group_free(group_); }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  std::string address() const {
    const void* bytes = nullptr;
    int64_t count = 0;
    EXPECT_EQ(tandem_group_address(group_, &bytes, &count), 0);
    return {static_cast<const char*>(bytes), static_cast<size_t>(count)};
  }

  int Connect(const std::vector<std::string>& addresses, int64_t timeout_ms = kLimitMs) {
    std::vector<const void*> at;
    std::vector<int64_t> counts;
    for (const std::string& address : addresses) {
      at.push_back(address.data());
      counts.push_back(static_cast<int64_t>(address.size()));
    }
    const int begun = tandem_group_connect(group_, at.data(), counts.data(), timeout_ms);
    return begun < 0 ? begun : tandem_group_wait_connected(group_, 2 * kLimitMs);
  }

  // "", or the error of starting or of the operation.
  std::string Wait(int started, int32_t* from = nullptr) {
    if (started < 0) return tandem_error();
    const int ended = tandem_group_wait(group_, work_, 2 * kLimitMs, from);
    return ended == 1 ? "" : ended == 0 ? "it has not ended" : tandem_error();
  }

  tandem_group* group() { return group_; }
  int64_t* work() { return &work_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

 private:
  const int rank_, ranks_;
  tandem_group* group_ = nullptr;
  int64_t work_ = 0;
};

// Runs `body` on every rank, in a thread each.
void InThreads(int ranks, const char* link, const std::function<void(Member&)>& body,
               int64_t deadline_ms = kLimitMs) {
  std::vector<std::string> addresses(static_cast<size_t>(ranks));
  std::barrier<> met(ranks), connected(ranks);  // ThreadSanitizer does not see Abseil's
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Member member(r, ranks, link, deadline_ms);
      addresses[static_cast<size_t>(r)] = member.address();
      met.arrive_and_wait();
      const int here = member.Connect(addresses);
      const std::string error = here == 1 ? "" : tandem_error();
      // A body may end the group for those still on their way.
      connected.arrive_and_wait();
      ASSERT_EQ(here, 1) << error;
      body(member);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Element i of rank r: sums, products and averages over up to four ranks are exact.
template <class T>
T Input(int rank, int64_t i) {
  return static_cast<T>((rank + 1) * (i % 5 + 1) % 7 + 1);
}

template <class T>
std::vector<T> Inputs(int rank, int64_t count) {
  std::vector<T> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(Input<T>(rank, i));
  return out;
}

template <class T>
T Reduced(int32_t op, int ranks, int64_t i) {
  T out = Input<T>(0, i);
  for (int r = 1; r < ranks; ++r) {
    const T x = Input<T>(r, i);
    if (op == TANDEM_SUM || op == TANDEM_AVERAGE) out = static_cast<T>(out + x);
    if (op == TANDEM_PRODUCT) out = static_cast<T>(out * x);
    if (op == TANDEM_MIN) out = std::min(out, x);
    if (op == TANDEM_MAX) out = std::max(out, x);
    if constexpr (std::is_integral_v<T>) {
      if (op == TANDEM_BIT_AND) out = static_cast<T>(out & x);
      if (op == TANDEM_BIT_OR) out = static_cast<T>(out | x);
      if (op == TANDEM_BIT_XOR) out = static_cast<T>(out ^ x);
    }
  }
  if (op == TANDEM_AVERAGE)
    out = static_cast<T>(out * static_cast<T>(T{1} / static_cast<T>(ranks)));
  return out;
}

template <class T>
void CheckReductions(Member& m, int32_t type, int64_t count) {
  for (int32_t op = TANDEM_SUM; op <= TANDEM_BIT_XOR; ++op) {
    const bool bits = op >= TANDEM_BIT_AND;
    const std::vector<T> in = Inputs<T>(m.rank(), count);
    std::vector<T> out(in.size());
    const int started =
        tandem_group_allreduce(m.group(), in.data(), out.data(), count, type, op, m.work());
    if (std::is_integral_v<T> ? op == TANDEM_AVERAGE : bits) {
      EXPECT_THAT(m.Wait(started), HasSubstr("is not defined for"));
      continue;
    }
    ASSERT_EQ(m.Wait(started), "");
    std::vector<T> in_place = in, reduced = in, mine(in.size());
    ASSERT_EQ(m.Wait(tandem_group_allreduce(m.group(), in_place.data(), in_place.data(), count,
                                            type, op, m.work())),
              "");
    const int root = m.ranks() - 1;
    ASSERT_EQ(m.Wait(tandem_group_reduce(m.group(), in.data(), reduced.data(), count, type, op,
                                         root, m.work())),
              "");
    // Shares of uneven size: all that is left over goes to rank 0.
    std::vector<int64_t> counts(static_cast<size_t>(m.ranks()), count / m.ranks());
    counts[0] += count % m.ranks();
    const int64_t begin = m.rank() == 0 ? 0 : counts[0] + (m.rank() - 1) * (count / m.ranks());
    ASSERT_EQ(m.Wait(tandem_group_reduce_scatter(m.group(), in.data(), mine.data(), counts.data(),
                                                 type, op, m.work())),
              "");
    for (int64_t i = 0; i < count; ++i) {
      const T want = Reduced<T>(op, m.ranks(), i);
      const auto at = static_cast<size_t>(i);
      ASSERT_EQ(out[at], want) << "op " << op << " at " << i;
      ASSERT_EQ(in_place[at], want);
      ASSERT_EQ(reduced[at], m.rank() == root ? want : in[at]);
      if (i >= begin && i < begin + counts[static_cast<size_t>(m.rank())]) {
        ASSERT_EQ(mine[static_cast<size_t>(i - begin)], want);
      }
    }
  }
}

TEST(CapiGroupTest, LaunchersTellTheRank) {
  tandem_launch launch = {};
  EXPECT_EQ(tandem_find_launch(&launch), -1) << "a size of 0";
  launch.size = sizeof launch;
  EXPECT_EQ(tandem_find_launch(&launch), 0) << "no launcher started this test";
  setenv("OMPI_COMM_WORLD_RANK", "2", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4", 1);
  ASSERT_EQ(tandem_find_launch(&launch), 1) << tandem_error();
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.ranks, 4);
  EXPECT_EQ(launch.one_host, 1);
  EXPECT_GE(launch.port, 10000);
  setenv("OMPI_COMM_WORLD_RANK", "4", 1);
  EXPECT_EQ(tandem_find_launch(&launch), -1);
  EXPECT_THAT(tandem_error(), HasSubstr("OMPI_COMM_WORLD_RANK=4: expected a rank below"));
  for (const char* name : {"RANK", "SIZE", "LOCAL_SIZE"}) {
    unsetenv(absl::StrCat("OMPI_COMM_WORLD_", name).c_str());
  }
}

TEST(CapiGroupTest, ReductionsAreExact) {
  for (const char* const link : {"shm", "tcp"}) {
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat(link, ", ", ranks, " ranks"));
      InThreads(ranks, link, [](Member& m) {
        for (const int64_t count : {0, 1, 1000, 100'000}) {
          CheckReductions<float>(m, TANDEM_F32, count);
          CheckReductions<double>(m, TANDEM_F64, count);
          CheckReductions<int32_t>(m, TANDEM_I32, count);
          CheckReductions<int64_t>(m, TANDEM_I64, count);
          CheckReductions<uint8_t>(m, TANDEM_U8, count);
        }
      });
    }
  }
}

// ranks * count elements of which block r is that of rank r; rank r's block is longer by r.
TEST(CapiGroupTest, WhatIsMovedArrives) {
  for (const int ranks : {1, 2, 3}) {
    InThreads(ranks, "auto", [ranks](Member& m) {
      std::vector<int64_t> counts;
      std::vector<int32_t> all, mine;
      for (int r = 0; r < ranks; ++r) {
        counts.push_back(100 + r);
        for (const int32_t x : Inputs<int32_t>(r, 100 + r)) all.push_back(x);
      }
      mine = Inputs<int32_t>(m.rank(), 100 + m.rank());
      const int root = ranks / 2;
      const bool at_root = m.rank() == root;

      std::vector<int32_t> gathered(all.size()), at_one(all.size()), share(mine.size());
      ASSERT_EQ(m.Wait(tandem_group_allgather(m.group(), mine.data(), gathered.data(),
                                              counts.data(), TANDEM_I32, m.work())),
                "");
      EXPECT_EQ(gathered, all);
      ASSERT_EQ(
          m.Wait(tandem_group_gather(m.group(), mine.data(), at_root ? at_one.data() : nullptr,
                                     counts.data(), TANDEM_I32, root, m.work())),
          "");
      EXPECT_EQ(at_one, at_root ? all : std::vector<int32_t>(all.size()));
      ASSERT_EQ(m.Wait(tandem_group_scatter(m.group(), at_root ? all.data() : nullptr, share.data(),
                                            counts.data(), TANDEM_I32, root, m.work())),
                "");
      EXPECT_EQ(share, mine);
      std::vector<int32_t> told = at_root ? all : std::vector<int32_t>(all.size());
      ASSERT_EQ(
          m.Wait(tandem_group_broadcast(m.group(), told.data(), static_cast<int64_t>(told.size()),
                                        TANDEM_I32, root, m.work())),
          "");
      EXPECT_EQ(told, all);

      // From i to j: 10 * i + j elements, each of that value.
      std::vector<int64_t> to, from;
      std::vector<int32_t> out, want;
      for (int r = 0; r < ranks; ++r) {
        to.push_back(10 * m.rank() + r);
        from.push_back(10 * r + m.rank());
        out.insert(out.end(), static_cast<size_t>(to.back()), 10 * m.rank() + r);
        want.insert(want.end(), static_cast<size_t>(from.back()), 10 * r + m.rank());
      }
      std::vector<int32_t> in(want.size());
      ASSERT_EQ(m.Wait(tandem_group_alltoall(m.group(), out.data(), to.data(), in.data(),
                                             from.data(), TANDEM_I32, m.work())),
                "");
      EXPECT_EQ(in, want);
      ASSERT_EQ(m.Wait(tandem_group_barrier(m.group(), 0, m.work())), "");
    });
  }
}

// Messages are found by tag, whatever the order and whoever comes first, and beside collectives.
TEST(CapiGroupTest, MessagesAreFoundByTheirTags) {
  for (const char* const link : {"shm", "tcp"}) {
    InThreads(2, link, [](Member& m) {
      constexpr int64_t kFloats = 1 << 20;  // more than any link holds
      constexpr int64_t kBytes = kFloats * 4;
      const int other = 1 - m.rank();
      std::vector<std::vector<float>> out, in;
      std::vector<int64_t> works;
      for (int tag = 0; tag < 4; ++tag) {
        out.emplace_back(static_cast<size_t>(kFloats), static_cast<float>(10 * m.rank() + tag));
        in.emplace_back(static_cast<size_t>(kFloats));
      }
      // Rank 0 posts its receives first; rank 1 wants them in the opposite order.
      for (int i = 0; i < 8; ++i) {
        const bool sends = (i >= 4) == (m.rank() == 0);
        const size_t tag = static_cast<size_t>(m.rank() == 0 || sends ? i % 4 : 3 - i % 4);
        works.push_back(0);
        ASSERT_EQ(sends ? tandem_group_send(m.group(), out[tag].data(), kBytes, other,
                                            static_cast<int64_t>(tag), 0, &works.back())
                        : tandem_group_receive(m.group(), in[tag].data(), kBytes, other,
                                               static_cast<int64_t>(tag), 0, &works.back()),
                  0)
            << tandem_error();
      }
      ASSERT_EQ(m.Wait(tandem_group_barrier(m.group(), 0, m.work())), "");
      for (const int64_t work : works) {
        ASSERT_EQ(tandem_group_wait(m.group(), work, kLimitMs, nullptr), 1) << tandem_error();
      }
      for (size_t tag = 0; tag < 4; ++tag) {
        EXPECT_EQ(in[tag],
                  std::vector<float>(static_cast<size_t>(kFloats),
                                     static_cast<float>(10 * other + static_cast<int>(tag))));
      }
    });
  }
}

// Three threads wait for each operation of rank 0, and in every second round a fourth forgets it.
// A wait that begins before the end gets the result; a later one is told that it is late.
TEST(CapiGroupTest, ThreadsWaitForOneOperationAndForgetIt) {
  constexpr int kRounds = 60, kWaiting = 3;
  std::vector<int64_t> got(kRounds, -1);  // memory of receives that are forgotten
  InThreads(2, "shm", [&got](Member& m) {
    for (int64_t round = 0; round < kRounds; ++round) {
      if (m.rank() == 1) {
        ASSERT_EQ(m.Wait(tandem_group_barrier(m.group(), 0, m.work())), "");
        ASSERT_EQ(m.Wait(tandem_group_send(m.group(), &round, 8, 0, round, 0, m.work())), "");
        continue;
      }
      const bool forgets = round % 2 == 1;
      int64_t work = 0;
      int64_t* const room = &got[static_cast<size_t>(round)];
      ASSERT_EQ(tandem_group_receive(m.group(), room, 8, -1, round, 0, &work), 0);
      std::atomic<int> results{0};
      std::vector<std::thread> threads;
      for (int i = 0; i < kWaiting; ++i) {
        threads.emplace_back([&] {
          int32_t from = -1;
          if (tandem_group_wait(m.group(), work, kLimitMs, &from) == 1) {
            EXPECT_EQ(*room, round);
            EXPECT_EQ(from, 1);
            ++results;
          } else {
            EXPECT_THAT(tandem_error(), HasSubstr("was forgotten, or somebody has waited for it"));
          }
        });
      }
      if (forgets) threads.emplace_back([&] { tandem_group_forget(m.group(), work); });
      ASSERT_EQ(m.Wait(tandem_group_barrier(m.group(), 0, m.work())), "");
      for (std::thread& thread : threads) thread.join();
      EXPECT_GE(results, forgets ? 0 : 1) << "round " << round;
    }
  });
}

// A program that waits for a signal (sigwait) has blocked it.
TEST(CapiGroupTest, ASignalThatTheProgramHasBlockedStaysBlocked) {
  sigset_t usr1, before, after;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &usr1, &before), 0);
  { const Member member(0, 1, "shm"); }
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, &after), 0);
  EXPECT_EQ(sigismember(&after, SIGUSR1), 1);
}

TEST(CapiGroupTest, AWrongMessageFailsAlone) {
  InThreads(2, "auto", [](Member& m) {
    int64_t value = 5;
    if (m.rank() == 0) {
      ASSERT_EQ(m.Wait(tandem_group_send(m.group(), &value, 8, 1, 1, 0, m.work())), "");
      ASSERT_EQ(m.Wait(tandem_group_send(m.group(), &value, 8, 1, 2, 0, m.work())), "");
    } else {
      EXPECT_THAT(m.Wait(tandem_group_receive(m.group(), &value, 4, 0, 1, 0, m.work())),
                  HasSubstr("a message of 8 bytes came from rank 0 with tag 1, and rank 1 has room "
                            "for 4"));
      EXPECT_THAT(m.Wait(tandem_group_receive(m.group(), &value, 8, 0, 9, 50, m.work())),
                  HasSubstr("no message with tag 9 from rank 0 in time"));
      ASSERT_EQ(m.Wait(tandem_group_receive(m.group(), &value, 8, 0, 2, 0, m.work())), "");
      EXPECT_EQ(value, 5);
    }
    ASSERT_EQ(m.Wait(tandem_group_barrier(m.group(), 0, m.work())), "");
  });
}

TEST(CapiGroupTest, CallsThatCannotBeRightSaySo) {
  InThreads(1, "auto", [](Member& m) {
    float x = 1;
    int64_t* const work = m.work();
    const int64_t negative = -1;
    EXPECT_THAT(m.Wait(tandem_group_allreduce(m.group(), &x, &x, 1, 77, TANDEM_SUM, work)),
                HasSubstr("type 77: expected one of TANDEM_F32 (0) to TANDEM_U8 (6)"));
    EXPECT_THAT(m.Wait(tandem_group_allreduce(m.group(), &x, &x, 1, TANDEM_F32, 77, work)),
                HasSubstr("op 77: expected one of"));
    EXPECT_THAT(m.Wait(tandem_group_allreduce(m.group(), &x, nullptr, 1, 0, 0, work)),
                HasSubstr("out: a null pointer"));
    EXPECT_THAT(m.Wait(tandem_group_allreduce(m.group(), &x, &x, -1, 0, 0, work)),
                HasSubstr("-1 elements"));
    EXPECT_THAT(m.Wait(tandem_group_broadcast(m.group(), &x, 1, 0, 3, work)),
                HasSubstr("root 3 in a group of 1"));
    EXPECT_THAT(m.Wait(tandem_group_allgather(m.group(), &x, &x, &negative, 0, work)),
                HasSubstr("counts[0] is -1"));
    EXPECT_THAT(m.Wait(tandem_group_send(m.group(), &x, 4, 0, 0, 0, work)),
                HasSubstr("send to rank 0 on rank 0 of 1"));
    EXPECT_THAT(m.Wait(tandem_group_receive(m.group(), &x, 4, -1, 0, 0, work)),
                HasSubstr("receive from any rank: the group has only one rank"));
    EXPECT_EQ(tandem_group_wait(m.group(), 4711, 0, nullptr), -1);
    EXPECT_THAT(tandem_error(), HasSubstr("operation 4711 is unknown"));
    EXPECT_EQ(tandem_group_connect(m.group(), nullptr, nullptr, 0), -1);
  });
  Member alone(0, 2, "tcp");
  EXPECT_EQ(tandem_group_barrier(alone.group(), 0, alone.work()), -1);
  EXPECT_THAT(tandem_error(), HasSubstr("not connected yet"));
  EXPECT_EQ(alone.Connect({alone.address(), "garbage"}), -1);
  EXPECT_THAT(tandem_error(), HasSubstr("the address of rank 1 is invalid"));
  EXPECT_EQ(alone.Connect({alone.address(), alone.address()}), -1);
  EXPECT_THAT(tandem_error(), HasSubstr("the address of rank 1 belongs to rank 0"));
}

TEST(CapiGroupTest, WhoDoesNotComeIsNamed) {
  Member here(0, 2, "tcp"), elsewhere(1, 2, "tcp");
  EXPECT_EQ(here.Connect({here.address(), elsewhere.address()}, 100), -1);
  EXPECT_THAT(tandem_error(), HasSubstr("no link to rank 1 in time (tried: rank 1 at "));
  EXPECT_THAT(tandem_error(), HasSubstr("127.0.0.1:"));
}

TEST(CapiGroupTest, WhoIsWaitedForInVainIsNamedOnAllRanks) {
  absl::Mutex mutex;
  int failed = 0;
  InThreads(
      3, "auto",
      [&](Member& m) {
        float x = 1;
        if (m.rank() == 2) {  // comes when it is too late
          absl::MutexLock lock(&mutex);
          mutex.Await(absl::Condition(
              +[](int* n) { return *n == 2; }, &failed));
        }
        // What the others gave before they failed may be all that rank 2 needs; not what is next.
        const std::string error =
            m.Wait(tandem_group_allreduce(m.group(), &x, &x, 1, TANDEM_F32, TANDEM_SUM, m.work()));
        if (m.rank() < 2) {
          EXPECT_THAT(error, HasSubstr("for rank 2"));
        }
        EXPECT_THAT(m.Wait(tandem_group_barrier(m.group(), 0, m.work())), HasSubstr("for rank 2"));
        absl::MutexLock lock(&mutex);
        ++failed;
      },
      300);
}

TEST(CapiGroupTest, WhoLeavesInOrderIsNoLossUntilItIsWaitedFor) {
  InThreads(3, "auto", [](Member& m) {
    ASSERT_EQ(m.Wait(tandem_group_barrier(m.group(), 0, m.work())), "");
    if (m.rank() == 1) {
      int32_t none = 0;
      int64_t waiting = 0;
      EXPECT_EQ(tandem_group_receive(m.group(), &none, 4, 0, 0, 0, &waiting), 0);
      EXPECT_EQ(tandem_group_close(m.group()), 0);
      EXPECT_EQ(tandem_group_wait(m.group(), waiting, 0, nullptr), -1);
      EXPECT_THAT(tandem_error(), HasSubstr("the group was closed"));
      return;
    }
    int32_t x = m.rank();
    if (m.rank() == 0) {
      ASSERT_EQ(m.Wait(tandem_group_send(m.group(), &x, 4, 2, 0, 0, m.work())), "");
    } else {
      ASSERT_EQ(m.Wait(tandem_group_receive(m.group(), &x, 4, 0, 0, 0, m.work())), "");
    }
    EXPECT_THAT(m.Wait(tandem_group_barrier(m.group(), 0, m.work())),
                HasSubstr("rank 1 is lost: it has closed the group"));
  });
}

// The group's threads have descriptors of their own: what has the same number in the program's
// table is the program's, from the opening to the end.
TEST(CapiGroupTest, DescriptorsOfTheProgramAreNotWrittenTo) {
  const TemporaryFolder folder;
  const std::string name = folder.File("kept");
  std::ofstream(name) << "kept";
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  const int reader = fcntl(ends[0], F_DUPFD, 100), writer = fcntl(ends[1], F_DUPFD, 100);
  const int file = open(name.c_str(), O_WRONLY);
  close(ends[0]);
  close(ends[1]);
  for (const int to : {writer, file}) {
    std::vector<int> low;  // every number that was free is the pipe, then the file
    while (low.empty() || low.back() < 32) low.push_back(fcntl(to, F_DUPFD, 3));
    { const Member never_joined(0, 2, "tcp"); }
    InThreads(2, "auto", [](Member& m) {
      float x = 1;
      ASSERT_EQ(
          m.Wait(tandem_group_allreduce(m.group(), &x, &x, 1, TANDEM_F32, TANDEM_SUM, m.work())),
          "");
      EXPECT_EQ(tandem_group_close(m.group()), 0);
    });
    for (const int fd : low) EXPECT_EQ(close(fd), 0);
  }
  char byte;
  EXPECT_EQ(read(reader, &byte, 1), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(ReadTextFile(name), "kept");
  for (const int fd : {reader, writer, file}) EXPECT_EQ(close(fd), 0);
}

// ---- Processes ----

// A member in a process of its own, which meets the others in a folder.
std::string MeetAt(const TemporaryFolder& folder, Member& m) {
  const std::string own = folder.File(absl::StrCat(m.rank()));
  std::ofstream(own + ".new", std::ios::binary) << m.address();
  if (rename((own + ".new").c_str(), own.c_str()) != 0) return "no file";
  std::vector<std::string> addresses;
  for (int r = 0; r < m.ranks(); ++r) {
    const std::string name = folder.File(absl::StrCat(r));
    while (access(name.c_str(), R_OK) != 0) usleep(1000);
    addresses.push_back(ReadTextFile(name));
  }
  return m.Connect(addresses) == 1 ? "" : tandem_error();
}

// All survivors name the one that was killed, whomever they waited for.
TEST(CapiGroupTest, AKilledRankIsNamedByAll) {
  for (const char* const link : {"shm", "tcp"}) {
    const TemporaryFolder folder;
    std::vector<pid_t> children;
    for (int r = 0; r < 3; ++r) {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child > 0) {
        children.push_back(child);
        continue;
      }
      alarm(60);
      Member m(r, 3, link);
      std::string error = MeetAt(folder, m);
      std::vector<float> x(300'000, 1);
      for (int i = 0; error.empty(); ++i) {
        if (r == 1 && i == 10) raise(SIGKILL);
        error = m.Wait(tandem_group_allreduce(m.group(), x.data(), x.data(), 300'000, TANDEM_F32,
                                              TANDEM_MAX, m.work()));
      }
      std::ofstream(folder.File(absl::StrCat("error", r))) << error;
      _exit(0);
    }
    for (const pid_t child : children) waitpid(child, nullptr, 0);
    for (const int r : {0, 2}) {
      EXPECT_THAT(ReadTextFile(folder.File(absl::StrCat("error", r))), HasSubstr("rank 1 is lost"))
          << link;
    }
  }
}

// A process that a member forks keeps nothing of the group open: if the member is killed, the
// others hear of it although the fork lives.
TEST(CapiGroupTest, AForkHasNothingOfTheGroup) {
  const TemporaryFolder folder;
  int fork_lives[2];
  ASSERT_EQ(pipe(fork_lives), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    Member m(1, 2, "tcp");
    const std::string error = MeetAt(folder, m);
    float never = 0;
    tandem_group_receive(m.group(), &never, 4, 0, 1, 0, m.work());
    if (fork() == 0) {
      std::ofstream said(folder.File("fork.new"));
      said << tandem_group_wait(m.group(), *m.work(), 0, nullptr) << " " << tandem_error() << "\n";
      said << tandem_group_wait_connected(m.group(), 0) << " " << tandem_error() << "\n";
      tandem_group_forget(m.group(), *m.work());
      said << tandem_group_send(m.group(), &never, 4, 0, 1, 0, m.work()) << " " << tandem_error()
           << "\n";
      said << tandem_group_barrier(m.group(), 0, m.work()) << " " << tandem_error() << "\n";
      said.close();
      rename(folder.File("fork.new").c_str(), folder.File("fork").c_str());
      char end;
      alarm(60);
      close(fork_lives[1]);
      (void)!read(fork_lives[0], &end, 1);  // until the test is over
      _exit(0);
    }
    while (access(folder.File("fork").c_str(), R_OK) != 0) usleep(1000);
    raise(SIGKILL);
  }
  Member m(0, 2, "tcp");
  ASSERT_EQ(MeetAt(folder, m), "");
  float x = 1;
  EXPECT_THAT(
      m.Wait(tandem_group_allreduce(m.group(), &x, &x, 1, TANDEM_F32, TANDEM_SUM, m.work())),
      HasSubstr("rank 1 is lost"));
  waitpid(child, nullptr, 0);
  const std::vector<std::string> said =
      absl::StrSplit(ReadTextFile(folder.File("fork")), '\n', absl::SkipEmpty());
  EXPECT_THAT(said, ElementsAre(StartsWith("-1 this group belongs to process"),
                                StartsWith("-1 this group belongs to process"),
                                StartsWith("-1 this group belongs to process"),
                                StartsWith("-1 this group belongs to process")));
  close(fork_lives[1]);
  close(fork_lives[0]);
}

}  // namespace
}  // namespace tandem
