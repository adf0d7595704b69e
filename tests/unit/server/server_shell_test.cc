// A server process with a scheduler played by the test. Every wait is bounded by a minute; nothing
// depends on how fast things go.
#include "server/server_shell.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <filesystem>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/clock.h"
#include "base/proc_files.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/segment_file.h"
#include "tests/sanitized.h"
#include "tests/unit/server/core_fixture.h"
#include "transport/in_process.h"

namespace {
std::atomic<int> flushes{0};
std::atomic<int> begun_segments{0};  // their opens, also those that still wait
}  // namespace

// In the place of the C library's, which the library under test would call.
extern "C" int fsync(int fd) {
  ++flushes;
  return static_cast<int>(syscall(SYS_fsync, fd));
}
extern "C" int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const unsigned mode = (flags & O_CREAT) != 0 ? va_arg(rest, unsigned) : 0;
  va_end(rest);
  if (absl::EndsWith(path, ".segment.tmp")) ++begun_segments;
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

namespace tandem {
namespace {

constexpr uint64_t kIncarnation = 77;

// Throws in the middle of a poll, once it is told to.
class BreakingTransport : public transport::Transport {
 public:
  BreakingTransport(std::unique_ptr<transport::Transport> inner, std::atomic<bool>* breaks)
      : inner_(std::move(inner)), breaks_(*breaks) {}
  Buffer Alloc(size_t bytes) override { return inner_->Alloc(bytes); }
  const std::string& address() const override { return inner_->address(); }
  absl::StatusOr<transport::PeerId> Connect(const std::string& address) override {
    return inner_->Connect(address);
  }
  absl::Status Send(transport::PeerId peer, Frame frame) override {
    return inner_->Send(peer, std::move(frame));
  }
  void Close(transport::PeerId peer) override { inner_->Close(peer); }
  void Poll(absl::Duration timeout, std::vector<transport::TransportEvent>* events) override {
    if (breaks_.exchange(false)) throw std::runtime_error("the poll is broken");
    inner_->Poll(timeout, events);
  }
  void Wake() override { inner_->Wake(); }
  transport::TransportCounters counters() const override { return inner_->counters(); }

 private:
  const std::unique_ptr<transport::Transport> inner_;
  std::atomic<bool>& breaks_;
};

class ServerShellTest : public ::testing::Test {
 protected:
  void SetUp() override {
    scheduler_ = *network_->NewTransport({});
    options_.plan = CorePlan(policy_, 1, 1);
    options_.plan.job.mutable_cluster()->set_shards_per_server(2);
    options_.plan.job.mutable_limits()->set_held_bytes_per_shard(held_bytes_);
    options_.plan.job.mutable_cluster()->set_memory_per_server(memory_per_server_);
    options_.member.scheduler = scheduler_->address();
    options_.member.index = 0;
    options_.member.incarnation = kIncarnation;
    options_.member.make_transport =
        [this, first = true](
            EndpointId) mutable -> absl::StatusOr<std::unique_ptr<transport::Transport>> {
      TANDEM_ASSIGN_OR_RETURN(auto made, network_->NewTransport({}));
      if (!std::exchange(first, false)) return made;
      return std::make_unique<BreakingTransport>(std::move(made), &breaks_);
    };
    server_ = std::thread([this] { result_ = server::RunServer(options_); });
  }
  void TearDown() override {
    if (!server_.joinable()) return;  // it has failed, as the test wants it
    Control stop;
    stop.mutable_command()->set_kind(Command::STOP);
    Send(stop);
    server_.join();
    EXPECT_TRUE(result_.ok()) << result_;
  }

  void Send(const Control& control) {
    FrameHeader header;
    header.sender = EndpointId::Scheduler();
    EXPECT_TRUE(scheduler_->Send(main_, EncodeControlFrame(*scheduler_, header, control)).ok());
  }

  // The next control message that has what is wanted; `main_` is where registrations come from.
  template <typename Wanted>
  Control Await(Wanted wanted) {
    const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
    while (MonotonicNow() < deadline) {
      while (next_ < events_.size()) {
        const transport::TransportEvent& event = events_[next_++];
        if (event.kind != transport::TransportEvent::Kind::kFrame) continue;
        const absl::StatusOr<Control> control = event.frame.ParseControl();
        if (!control.ok()) continue;
        if (control->has_register_()) main_ = event.peer;
        if (wanted(*control)) return *control;
      }
      scheduler_->Poll(absl::Milliseconds(10), &events_);
    }
    ADD_FAILURE() << "nothing came";
    return Control();
  }

  const char* policy_ = "kind: BSP";
  int64_t held_bytes_ = int64_t{1} << 30;
  int64_t memory_per_server_ = 0;  // the default
  std::shared_ptr<transport::InProcessNetwork> network_ =
      std::make_shared<transport::InProcessNetwork>();
  std::unique_ptr<transport::Transport> scheduler_;
  server::ServerOptions options_;
  std::thread server_;
  std::atomic<bool> breaks_{false};  // the transport of the server's main thread
  absl::Status result_;
  transport::PeerId main_ = 0;
  std::vector<transport::TransportEvent> events_;
  size_t next_ = 0;
};

// Nobody reads or writes rows, for as long as an evaluation or a slow batch may last: its loops go
// round all the same, and its beats say so.
TEST_F(ServerShellTest, AServerWithNothingToDoMakesProgress) {
  Await([](const Control& c) { return c.has_register_(); });
  uint64_t last = Await([](const Control& c) { return c.has_beat(); }).beat().progress();
  for (int beat = 0; beat < 3; ++beat) {
    const uint64_t next = Await([](const Control& c) { return c.has_beat(); }).beat().progress();
    EXPECT_GT(next, last);
    last = next;
  }
}

// The scheduler tells the others, who would see a lost connection alone.
TEST_F(ServerShellTest, AnExceptionIsReported) {
  Await([](const Control& c) { return c.has_register_(); });
  breaks_ = true;
  const Control said = Await([](const Control& c) { return c.has_failure(); });
  EXPECT_EQ(said.failure().reason(), "the poll is broken");
  server_.join();
  EXPECT_EQ(result_, absl::InternalError("the poll is broken"));
}

TEST_F(ServerShellTest, AFailureThatTheSchedulerHasToldIsNotReportedBack) {
  Await([](const Control& c) { return c.has_register_(); });
  Control failed;
  failed.mutable_failure()->set_node("server 1");
  failed.mutable_failure()->set_reason("out of memory");
  failed.mutable_failure()->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  Send(failed);
  server_.join();
  EXPECT_EQ(result_, absl::ResourceExhaustedError("server 1: out of memory"));
  const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
  const auto gone = [&] {
    for (const transport::TransportEvent& event : events_) {
      if (event.peer == main_ && event.kind != transport::TransportEvent::Kind::kFrame) return true;
    }
    return false;
  };
  while (!gone() && MonotonicNow() < deadline) scheduler_->Poll(absl::Milliseconds(10), &events_);
  EXPECT_TRUE(gone());
  for (; next_ < events_.size(); ++next_) {
    if (events_[next_].kind != transport::TransportEvent::Kind::kFrame) continue;
    const absl::StatusOr<Control> control = events_[next_].frame.ParseControl();
    EXPECT_FALSE(control.ok() && control->has_failure());
  }
}

// Makes checkpoints in folder_.
class ShellCheckpointTest : public ServerShellTest {
 protected:
  void SetUp() override {
    ServerShellTest::SetUp();
    const job::ResolvedJob& plan = options_.plan;
    const Register registered =
        Await([](const Control& c) { return c.has_register_(); }).register_();
    Control view;
    *view.mutable_view() = CoreViewMessage(plan, 1);
    Member* const server = view.mutable_view()->add_server();
    server->set_incarnation(kIncarnation);
    for (const std::string& endpoint : registered.endpoint()) server->add_endpoint(endpoint);
    Send(view);
    AwaitDone(1);
    worker_ = *network_->NewTransport({});
    shard_ = *worker_->Connect(registered.endpoint(0));
    map_ = CoreView(plan, 1);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    ServerShellTest::TearDown();
    std::filesystem::remove_all(folder_);
  }
  // The names in the folder of the checkpoint.
  std::set<std::string> Files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }
  // Files of the checkpoint that this process has open.
  int OpenFiles() const {
    int count = 0;
    for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code closed_meanwhile;
      const std::string to = std::filesystem::read_symlink(fd, closed_meanwhile).string();
      count += to.compare(0, folder_.size(), folder_) == 0 ? 1 : 0;
    }
    return count;
  }

  void Command(tandem::Command::Kind kind, uint64_t id, bool abandon = false) {
    Control control;
    control.mutable_command()->set_kind(kind);
    control.mutable_command()->set_id(id);
    control.mutable_command()->set_path(folder_);
    control.mutable_command()->set_may_fail(kind == tandem::Command::MARK);
    control.mutable_command()->set_abandon(abandon);
    Send(control);
  }
  // Sends REPORT with new ids until the server counts at least so many bytes. Returns the report.
  ShardReport AwaitMemory(uint64_t bytes) {
    ShardReport report;
    const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
    for (; report.memory_bytes() < bytes; absl::SleepFor(absl::Milliseconds(20))) {
      if (MonotonicNow() > deadline) {
        ADD_FAILURE() << "the server counts " << report.memory_bytes() << " of " << bytes;
        break;
      }
      Command(tandem::Command::REPORT, next_report_++);
      report = Await([](const Control& c) { return c.has_shard_report(); }).shard_report();
    }
    return report;
  }
  uint32_t LastRange() const {  // written last
    return static_cast<uint32_t>(map_->ranges().size()) - 1;
  }
  // Begins a checkpoint (MARK 6, CHECKPOINT 7). A row changes before it is written.
  void ChangeARowOfACheckpoint() {
    SendRow(FrameKind::kPush, LastRange(), 0);
    EXPECT_TRUE(AwaitFrames(FrameKind::kAck, 1));
    Command(tandem::Command::MARK, 6);
    Command(tandem::Command::CHECKPOINT, 7);
    EXPECT_EQ(AwaitDone(6).code(), 0);
    SendRow(FrameKind::kPush, LastRange(), 1);
    EXPECT_TRUE(AwaitFrames(FrameKind::kAck, 2));
  }
  void AwaitACheckOfMemory() {
    SendRow(FrameKind::kPull, 0, /*step=*/9);          // the shard sends a WAITING each second,
    EXPECT_TRUE(AwaitFrames(FrameKind::kWaiting, 2));  // ... and checks the memory then
    EXPECT_FALSE(IsDone(7));
  }
  CommandDone AwaitDone(uint64_t id) {
    return Await([id](const Control& c) { return c.command_done().id() == id; }).command_done();
  }
  bool IsDone(uint64_t id) {
    while (next_ < events_.size()) {
      const transport::TransportEvent& event = events_[next_++];
      if (event.kind != transport::TransportEvent::Kind::kFrame) continue;
      const absl::StatusOr<Control> control = event.frame.ParseControl();
      if (control.ok() && control->command_done().id() == id) return true;
    }
    return false;
  }
  // Worker 0 pulls (kPull) or pushes (kPush) the first row of a range.
  void SendRow(FrameKind kind, uint32_t range, int64_t step) {
    FrameHeader header;
    header.kind = kind;
    header.sender = EndpointId::Worker(0);
    header.view = 1;
    header.incarnation = 5;
    header.request = ++request_;
    header.first_step = header.step = step;
    header.group = static_cast<uint16_t>(options_.plan.tables[map_->range(range).table].group);
    SliceEntry entry;
    entry.range = range;
    entry.rows = 1;
    std::vector<float> values;
    if (kind == FrameKind::kPush) {
      header.samples = 1;
      values.assign(static_cast<size_t>(options_.plan.tables[map_->range(range).table].dim), 1.0f);
      entry.row_floats = static_cast<uint32_t>(values.size());
    }
    ASSERT_TRUE(worker_
                    ->Send(shard_, EncodeDataFrame(
                                       *worker_, header, {&entry, 1},
                                       BufferOf(*worker_, KeysIn(*map_, options_.plan, range, 1)),
                                       BufferOf(*worker_, values)))
                    .ok());
  }
  int Came(FrameKind kind) const {
    int count = 0;
    for (const transport::TransportEvent& e : came_) {
      count += e.kind == transport::TransportEvent::Kind::kFrame && e.frame.header.kind == kind;
    }
    return count;
  }
  bool AwaitFrames(FrameKind kind, int count) {
    const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
    while (Came(kind) < count && MonotonicNow() < deadline) {
      worker_->Poll(absl::Milliseconds(10), &came_);
    }
    return Came(kind) >= count;
  }

  const std::string folder_ = absl::StrCat(::testing::TempDir(), "/server_shell_test.", getpid());
  std::unique_ptr<transport::Transport> worker_;
  transport::PeerId shard_ = 0;
  std::shared_ptr<const RangeMap> map_;
  uint64_t request_ = 0;
  uint64_t next_report_ = 100;                   // id of the next REPORT
  std::vector<transport::TransportEvent> came_;  // to the worker
};

// A shard writes one file and flushes it once, however many ranges it has, and the folder once. The
// view gives all ranges to shard 0.
TEST_F(ShellCheckpointTest, AShardWritesOneFile) {
  const int before = flushes;
  Command(tandem::Command::MARK, 6);
  Command(tandem::Command::CHECKPOINT, 7);
  const CommandDone done = AwaitDone(7);
  EXPECT_EQ(done.code(), 0) << done.message();
  EXPECT_THAT(Files(), ::testing::ElementsAre("server-0-shard-0-0.segment"));
  EXPECT_EQ(flushes - before, 2);
  const auto parts = server::ReadSegmentIndex(folder_ + "/server-0-shard-0-0.segment");
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(parts->size(), map_->ranges().size());
  EXPECT_GT(parts->size(), 1u);
}

// A checkpoint that takes long, here for the file of shard 0, which is a pipe without a reader.
class LongCheckpointTest : public ShellCheckpointTest {
 protected:
  void SetUp() override {
    ShellCheckpointTest::SetUp();
    ASSERT_EQ(mkfifo(pipe_.c_str(), 0600), 0);
  }
  void TearDown() override {
    const int both_ends = open(pipe_.c_str(), O_RDWR);
    ShellCheckpointTest::TearDown();
    close(both_ends);
  }
  const std::string pipe_ = folder_ + "/server-0-shard-0-0.segment.tmp";
};

// While a file is written, the shard sends WAITING messages, without which readers give up, and
// acknowledges pushes. It answers CHECKPOINT when the files are written or have failed.
TEST_F(LongCheckpointTest, TrainingGoesOn) {
  SendRow(FrameKind::kPull, 0, /*step=*/1);  // step 0 has not been pushed
  EXPECT_TRUE(AwaitFrames(FrameKind::kWaiting, 1));
  Command(tandem::Command::MARK, 6);
  Await([](const Control& c) { return c.has_shard_report(); });
  EXPECT_EQ(AwaitDone(6).code(), 0);
  Command(tandem::Command::CHECKPOINT, 7);
  EXPECT_TRUE(AwaitFrames(FrameKind::kWaiting, Came(FrameKind::kWaiting) + 2));
  SendRow(FrameKind::kPush, 0, /*step=*/0);
  EXPECT_TRUE(AwaitFrames(FrameKind::kAck, 1));
  EXPECT_TRUE(AwaitFrames(FrameKind::kRows, 1));
  EXPECT_FALSE(IsDone(7)) << "the checkpoint is not over";
  const int both_ends = open(pipe_.c_str(), O_RDWR);
  ASSERT_GE(both_ends, 0);
  EXPECT_NE(AwaitDone(7).code(), 0) << "a pipe cannot be flushed";
  close(both_ends);
  Command(tandem::Command::CHECKPOINT, 8);
  EXPECT_NE(AwaitDone(8).code(), 0) << "asked again";
}

// The next mark ends it.
TEST_F(LongCheckpointTest, TheNextOneReplacesIt) {
  Command(tandem::Command::MARK, 6);
  Command(tandem::Command::CHECKPOINT, 7);
  EXPECT_EQ(AwaitDone(6).code(), 0);
  Command(tandem::Command::MARK, 8);
  EXPECT_EQ(AwaitDone(7).code(), static_cast<int>(absl::StatusCode::kCancelled));
  EXPECT_EQ(AwaitDone(8).code(), 0);
}

TEST_F(LongCheckpointTest, AnAbandonedOneWritesNoMoreFiles) {
  const int before = begun_segments;
  Command(tandem::Command::MARK, 6);
  EXPECT_EQ(AwaitDone(6).code(), 0);
  const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
  while (begun_segments == before && MonotonicNow() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_GT(begun_segments, before);
  Command(tandem::Command::CHECKPOINT, 7, /*abandon=*/true);
  SendRow(FrameKind::kPull, 0, /*step=*/1);  // step 0 has not been pushed
  EXPECT_TRUE(AwaitFrames(FrameKind::kWaiting, 2)) << "the shard has done the command";
  const int both_ends = open(pipe_.c_str(), O_RDWR);
  ASSERT_GE(both_ends, 0);
  EXPECT_EQ(AwaitDone(7).code(), static_cast<int>(absl::StatusCode::kCancelled));
  EXPECT_THAT(Files(), ::testing::IsEmpty()) << "also no unfinished file";
  close(both_ends);
  EXPECT_EQ(OpenFiles(), 0);
}

class LittleMemoryTest : public LongCheckpointTest {
 protected:
  LittleMemoryTest() {
    policy_ = "kind: SSP bound: 3";  // holds nothing
    held_bytes_ = 1;
  }
};

// Rows that change before they are written take memory. Training does not wait for the disk, so the
// checkpoint ends when they need too much and the file that is being written has ended.
TEST_F(LittleMemoryTest, ACheckpointWhoseRowsNeedTooMuchMemoryEnds) {
  ChangeARowOfACheckpoint();
  AwaitACheckOfMemory();
  const int both_ends = open(pipe_.c_str(), O_RDWR);
  ASSERT_GE(both_ends, 0);
  const CommandDone done = AwaitDone(7);
  EXPECT_EQ(done.code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_NE(done.message().find("limits.held_bytes_per_shard allows 1"), std::string::npos);
  SendRow(FrameKind::kPush, LastRange(), 2);
  EXPECT_TRUE(AwaitFrames(FrameKind::kAck, 3));
  close(both_ends);
}

class CrowdedTest : public LongCheckpointTest {
 protected:
  CrowdedTest() {
    policy_ = "kind: SSP bound: 3";  // holds nothing
    memory_per_server_ = static_cast<int64_t>(ResidentBytes()) + (int64_t{128} << 20);
  }
  std::vector<char> others_;  // memory of the process for something else
};

// A few copies are too many if the process uses the rest of the memory for something else.
TEST_F(CrowdedTest, ACheckpointWhoseCopiesLeaveTooLittleForRowsEnds) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs memory of its own";
  ChangeARowOfACheckpoint();
  const auto limit = static_cast<uint64_t>(memory_per_server_);
  const uint64_t little = uint64_t{8} << 20, wanted = limit - little - (uint64_t{2} << 20);
  ASSERT_LT(ResidentBytes(), wanted);
  others_.assign(limit - little - ResidentBytes(), 1);
  AwaitMemory(wanted);
  AwaitACheckOfMemory();
  const int both_ends = open(pipe_.c_str(), O_RDWR);
  ASSERT_GE(both_ends, 0);
  const CommandDone done = AwaitDone(7);
  EXPECT_EQ(done.code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_NE(done.message().find("copies leave too little for rows"), std::string::npos)
      << done.message();
  close(both_ends);
}

class SmallBudgetTest : public ServerShellTest {
 protected:
  SmallBudgetTest() { memory_per_server_ = 1 << 20; }
};

// The first view says who else is on the host, so the server knows its limit.
TEST_F(SmallBudgetTest, AJobThatDoesNotFitIsRefusedWithTheNumbers) {
  Await([](const Control& c) { return c.has_register_(); });
  Control view;
  *view.mutable_view() = CoreViewMessage(options_.plan, 1);
  view.mutable_view()->add_server()->set_incarnation(kIncarnation);
  Send(view);
  const Failure said = Await([](const Control& c) { return c.has_failure(); }).failure();
  EXPECT_EQ(said.code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(said.reason().find("cluster.memory_per_server: 1048576 bytes, but a server needs "), 0u)
      << said.reason();
  server_.join();
  EXPECT_FALSE(result_.ok());
}

class FullServerTest : public LongCheckpointTest {
 protected:
  FullServerTest() { memory_per_server_ = static_cast<int64_t>(ResidentBytes() + 64 * kMiB); }

  static constexpr size_t kMiB = size_t{1} << 20;
};

// The process needs more for something else, and then a row comes. The server keeps free 24 MiB for
// its two shards, and some more. It says that it is full until the job ends.
TEST_F(FullServerTest, ItSaysSoAgainAndAgain) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs memory of its own";
  const auto limit = static_cast<uint64_t>(memory_per_server_);
  const std::vector<char> other(40 * kMiB, 1);
  const ShardReport report = AwaitMemory(limit - 26 * kMiB);
  EXPECT_EQ(report.memory_limit(), limit);
  EXPECT_LT(report.memory_bytes(), limit);
  SendRow(FrameKind::kPush, 0, /*step=*/0);
  for (int i = 0; i < 2; ++i) {
    const std::string why =
        Await([](const Control& c) { return c.has_memory_full(); }).memory_full().reason();
    EXPECT_EQ(why.find("table a: 1 rows take "), 0u) << why;
  }
  EXPECT_EQ(other.back(), 1);
}

// The process itself needs more than the limit, and nothing is left for copies.
TEST_F(FullServerTest, ACheckpointWithoutMemoryForCopiesEnds) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs memory of its own";
  const auto limit = static_cast<uint64_t>(memory_per_server_);
  const std::vector<char> other(96 * kMiB, 1);
  AwaitMemory(limit);
  Command(tandem::Command::MARK, 6);
  Command(tandem::Command::CHECKPOINT, 7);
  const CommandDone done = AwaitDone(7);
  EXPECT_EQ(done.code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(done.message().find("no memory for copies of rows: "), 0u) << done.message();
  EXPECT_TRUE(done.memory_full());
  EXPECT_EQ(other.back(), 1);
}

}  // namespace
}  // namespace tandem
