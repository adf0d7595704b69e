// In steady state a frame through shared memory costs no allocation and no system call; only who
// sleeps is woken. A program of its own, because it replaces operator new.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dirent.h>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "gtest/gtest.h"
#include "tests/unit/count_allocations.h"
#include "tests/unit/transport/scarce_system.h"
#include "transport/shm_transport.h"

namespace tandem {
namespace {

using Kind = transport::TransportEvent::Kind;

// Two endpoints that one thread drives in turns, so that neither ever has to wait.
class Pair {
 public:
  Pair() {
    transport::ShmOptions options;
    options.socket_interval = absl::InfiniteDuration();
    a_ = transport::NewShmTransport(options).value();
    b_ = transport::NewShmTransport(options).value();
    b_at_a_ = a_->Connect(b_->address()).value();
    while (a_at_b_ == 0) {
      Send(*a_, b_at_a_, 8);
      b_->Poll(absl::Milliseconds(1), &events_);
      if (!events_.empty()) a_at_b_ = events_[0].peer;
      events_.clear();
    }
    a_->Poll(absl::Milliseconds(1), &events_);  // the greeting
  }

  // A frame there, one back, of values that are read where they lie if they are large.
  void Trip(size_t bytes) {
    Send(*a_, b_at_a_, bytes);
    Receive(*b_, bytes);
    Send(*b_, a_at_b_, bytes);
    Receive(*a_, bytes);
  }
  transport::ShmStats stats() const {
    const transport::ShmStats a = a_->stats(), b = b_->stats();
    transport::ShmStats sum;
    sum.bells = a.bells + b.bells;
    sum.waits = a.waits + b.waits;
    sum.socket_reads = a.socket_reads + b.socket_reads;
    sum.announcements = a.announcements + b.announcements;
    sum.bytes_copied = a.bytes_copied + b.bytes_copied;
    sum.parts_placed = a.parts_placed + b.parts_placed;
    return sum;
  }
  transport::ShmTransport& a() { return *a_; }
  transport::ShmTransport& b() { return *b_; }

 private:
  static void Send(transport::Transport& from, transport::PeerId to, size_t bytes) {
    FrameHeader header;
    header.kind = FrameKind::kSegment;
    Buffer values = from.Alloc(bytes);
    values.mutable_data()[bytes - 1] = 5;
    TANDEM_CHECK_OK(from.Send(to, EncodeDataFrame(from, header, {}, Buffer(), std::move(values))));
  }
  void Receive(transport::Transport& at, size_t bytes) {
    at.Poll(absl::ZeroDuration(), &events_);
    TANDEM_CHECK(events_.size() == 1 && events_[0].kind == Kind::kFrame);
    const Buffer& values = events_[0].frame.values();
    TANDEM_CHECK(values.size() == bytes && values.data()[bytes - 1] == 5);
    events_.clear();
  }

  std::unique_ptr<transport::ShmTransport> a_, b_;
  transport::PeerId b_at_a_ = 0, a_at_b_ = 0;
  std::vector<transport::TransportEvent> events_;
};

TEST(ShmSteadyTest, FramesAllocateNothingAndCallNobody) {
  Pair pair;
  for (int i = 0; i < 100; ++i) {
    pair.Trip(64);
    pair.Trip(1 << 20);
  }
  const int64_t allocated = allocations;
  const transport::ShmStats before = pair.stats();
  for (int i = 0; i < 5000; ++i) {
    pair.Trip(64);
    pair.Trip(1 << 20);
  }
  const transport::ShmStats after = pair.stats();
  EXPECT_EQ(allocations - allocated, 0);
  EXPECT_EQ(after.bells - before.bells, 0u);
  EXPECT_EQ(after.waits - before.waits, 0u);
  EXPECT_EQ(after.socket_reads - before.socket_reads, 0u);
  EXPECT_EQ(after.announcements - before.announcements, 0u);
  EXPECT_EQ(after.bytes_copied - before.bytes_copied, 0u) << "large values are written once";
  EXPECT_EQ(after.parts_placed - before.parts_placed, 10'000u);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// From here on any system call but the end of the process, and asking for the time where that is
// one, kills the process.
void ForbidSystemCalls() {
#define TANDEM_ALLOW(name)                               \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), \
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      TANDEM_ALLOW(exit_group),
      TANDEM_ALLOW(clock_gettime),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
#undef TANDEM_ALLOW
  const sock_fprog program = {sizeof code / sizeof code[0], code};
  TANDEM_CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  TANDEM_CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

// The kernel counts as well: a child that may not make system calls survives thousands of frames.
TEST(ShmSteadyTest, TheKernelSeesNoSystemCallOfAFrame) {
  for (const bool cheat : {false, true}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Pair pair;
      for (int i = 0; i < 100; ++i) {
        pair.Trip(64);
        pair.Trip(1 << 20);
      }
      ForbidSystemCalls();
      for (int i = 0; i < 2000; ++i) {
        pair.Trip(64);
        pair.Trip(1 << 20);
      }
      if (cheat) getppid();
      syscall(SYS_exit_group, 7);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WIFEXITED(status) && WEXITSTATUS(status) == 7, !cheat) << status;
  }
}
#endif

// Rings need older seals only, and would carry small frames for ever.
TEST(ShmSteadyTest, OnAnOldKernelThereIsNoSharedMemory) {
  EXPECT_TRUE(OnAnOldKernel([] {
    return absl::IsUnimplemented(transport::NewShmTransport(transport::ShmOptions()).status());
  }));
}

// Each side on a thread, sleeping between frames: a frame costs its receiver a wait and a read of
// the bell, and its sender the bell, whatever its size.
TEST(ShmSteadyTest, SleepersAreRungOnceAFrame) {
  Pair pair;
  constexpr uint64_t kTrips = 300;
  const transport::ShmStats before = pair.stats();
  transport::PeerId peer = 0;
  std::thread echo([&] {
    std::vector<transport::TransportEvent> events;
    for (uint64_t left = kTrips; left > 0; events.clear()) {
      pair.b().Poll(absl::InfiniteDuration(), &events);
      for (transport::TransportEvent& event : events) {
        peer = event.peer;
        TANDEM_CHECK_OK(pair.b().Send(event.peer, std::move(event.frame.frame)));
        --left;
      }
    }
  });
  const transport::PeerId to = pair.a().Connect(pair.b().address()).value();
  std::vector<transport::TransportEvent> events;
  FrameHeader header;
  header.kind = FrameKind::kSegment;
  for (uint64_t i = 0; i < kTrips; ++i) {
    TANDEM_CHECK_OK(pair.a().Send(
        to, EncodeDataFrame(pair.a(), header, {}, Buffer(), pair.a().Alloc(1 << 16))));
    while (events.empty()) pair.a().Poll(absl::InfiniteDuration(), &events);
    events.clear();
  }
  echo.join();
  const transport::ShmStats after = pair.stats();
  constexpr uint64_t kSetUp = 50;
  EXPECT_LE(after.bells - before.bells, 2 * kTrips + kSetUp);
  EXPECT_LE(after.waits - before.waits, 4 * kTrips + kSetUp);
  EXPECT_LE(after.socket_reads - before.socket_reads, 4 * kTrips + kSetUp);
}

std::set<std::string> NamesIn(const char* directory) {
  std::set<std::string> names;
  DIR* const dir = opendir(directory);
  if (dir == nullptr) return names;
  while (const dirent* const entry = readdir(dir)) names.insert(entry->d_name);
  closedir(dir);
  return names;
}

// Shared memory has no name, so a killed process leaves none; nor does one that ends in order.
TEST(ShmSteadyTest, NothingIsLeftInDevShm) {
  const std::set<std::string> before = NamesIn("/dev/shm");
  for (const bool killed : {false, true}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      {
        Pair pair;
        pair.Trip(1 << 20);
        if (killed) kill(getpid(), SIGKILL);
      }
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WIFSIGNALED(status), killed);
  }
  for (const std::string& name : NamesIn("/dev/shm")) {
    EXPECT_TRUE(before.count(name) == 1 || name.find("tandem") == std::string::npos) << name;
  }
}

}  // namespace
}  // namespace tandem
