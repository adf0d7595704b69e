// Sessions with a scheduler and a server of their own, each on a thread: a program that trains in
// the place of a worker, and readers that come and go meanwhile.
#include "client/session.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/role_flags.h"
#include "node/transport_choice.h"
#include "scheduler/scheduler_shell.h"
#include "server/server_shell.h"
#include "tools/bench/lone_shard.h"
#include "transport/zmq_transport.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Rows start at 0 and change by minus the gradient sum over its samples.
constexpr char kTables[] =
    "table { name: \"items\" dim: 2 field: \"C1\" initializer { kind: ZERO } "
    "optimizer { kind: SGD learning_rate: 1 } }\n"
    "table { name: \"users\" dim: 3 initializer { kind: CONSTANT scale: 0.5 } "
    "optimizer { kind: SGD learning_rate: 1 } }\n";

class SessionTest : public testing::Test {
 protected:
  void Start(const std::string& policy, int workers, bool checkpoints = false) {
    plan_ = bench::LoneShardPlan(kTables, policy, workers);
    out_ = absl::StrCat(testing::TempDir(), "/session_test.", getpid());
    std::filesystem::create_directories(out_);
    transport::ZmqOptions zmq;
    zmq.context = std::make_shared<transport::ZmqContext>(1);
    scheduler_transport_ = transport::NewZmqTransport(zmq).value();
    scheduler_ = scheduler_transport_->address();
    scheduler_thread_ = std::thread([this, checkpoints] {
      scheduler::SchedulerOptions options;
      options.plan = plan_;
      options.out_dir = out_;
      options.abort = &abort_;
      options.ends = &ends_;
      options.checkpoint = &checkpoints_;
      if (checkpoints) options.models.checkpoint_folder = out_ + "/model";
      options.on_event = [this](const nlohmann::json& event) {
        absl::MutexLock lock(&mutex_);
        events_ += event.dump() + "\n";
      };
      scheduler_ended_ = scheduler::ServeJob(options, *scheduler_transport_, "ZeroMQ");
    });
    server_thread_ = std::thread([this] {
      server::ServerOptions options;
      options.plan = plan_;
      options.member.scheduler = scheduler_;
      options.member.incarnation = 77;
      options.member.make_transport = node::EndpointFactory(
          node::RoleFlags(), plan_.job.cluster(), 77, std::make_shared<transport::PathLog>());
      server_ended_ = server::RunServer(options);
    });
  }
  void TearDown() override {
    abort_ = true;  // if it has not ended yet
    if (scheduler_thread_.joinable()) scheduler_thread_.join();
    if (server_thread_.joinable()) server_thread_.join();
    scheduler_transport_.reset();
    std::filesystem::remove_all(out_);
  }

  std::unique_ptr<client::Session> OpenRank(int rank) {
    client::Session::Options options;
    options.scheduler = scheduler_;
    options.rank = rank;
    return Checked(client::Session::Open(options));
  }
  std::unique_ptr<client::Session> OpenReader() {
    return Checked(client::Session::Open(scheduler_));
  }
  static std::unique_ptr<client::Session> Checked(
      absl::StatusOr<std::unique_ptr<client::Session>> session) {
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *std::move(session) : nullptr;
  }
  // How one row is asked for and brought: by reads of a table by name, and by pulls.
  struct OneRow {
    explicit OneRow(uint64_t key) : id(key) {}
    client::Future Pull(client::Session* session, int64_t step) {
      return session->client().Pull(0, step, {&keys, 1}, {&to, 1});
    }
    absl::Status Read(client::Session* session, const std::string& table) {
      return session->Read(table, {&id, 1}, to);
    }

    const uint64_t id;
    float row[2] = {};
    const client::TableKeys keys = {0, {&id, 1}};
    const absl::Span<float> to = absl::MakeSpan(row);
  };
  static client::Future Push(client::Session* session, int64_t step,
                             const std::vector<uint64_t>& ids,
                             const std::vector<float>& gradients) {
    const client::TableKeys keys = {0, ids};
    const absl::Span<const float> from = gradients;
    const client::Future push = session->client().Push(0, step, 1, {&keys, 1}, {&from, 1});
    push.Wait();  // ids and gradients are the caller's again
    return push;
  }
  static std::vector<float> Read(client::Session* session, const std::vector<uint64_t>& ids,
                                 const std::string& table = "items") {
    std::vector<float> rows(ids.size() * session->RowFloats(table), -1);
    const absl::Status read = session->Read(table, ids, absl::MakeSpan(rows));
    EXPECT_TRUE(read.ok()) << read;
    return rows;
  }

  job::ResolvedJob plan_;
  std::string out_, scheduler_;
  std::atomic<bool> abort_{false};
  std::atomic<int> checkpoints_{0}, ends_{0};
  absl::Mutex mutex_;
  std::string events_ ABSL_GUARDED_BY(mutex_);  // of the scheduler, a line each
  std::unique_ptr<transport::Transport> scheduler_transport_;
  std::thread scheduler_thread_, server_thread_;
  absl::Status scheduler_ended_, server_ended_;
};

TEST_F(SessionTest, ARankTrainsAndReadersSeeIt) {
  Start("kind: ASP", 1);
  std::unique_ptr<client::Session> first;
  std::thread opens([&] { first = OpenReader(); });  // before there is a view
  const auto rank = OpenRank(0);
  opens.join();
  ASSERT_TRUE(rank != nullptr && first != nullptr);
  EXPECT_EQ(first->plan().hash, plan_.hash);
  const auto second = OpenReader();
  ASSERT_NE(second, nullptr);
  using Floats = std::vector<float>;
  EXPECT_EQ(Read(first.get(), {1, 2, 1}), Floats(6, 0));
  EXPECT_EQ(Read(first.get(), {5}, "users"), Floats(3, 0.5f));
  for (int64_t step = 0; step < 10; ++step) {
    ASSERT_TRUE(Push(rank.get(), step, {1}, {1, 2}).status().ok());
    const float done = -static_cast<float>(step + 1);
    EXPECT_EQ(Read(first.get(), {1, 2, 1}), (Floats{done, 2 * done, 0, 0, done, 2 * done}));
    EXPECT_EQ(Read(second.get(), {1}), (Floats{done, 2 * done}));
    if (step == 5) first = OpenReader();  // one goes, another comes: nobody notices
    ASSERT_NE(first, nullptr);
  }
  EXPECT_TRUE(second->status().ok());
  EXPECT_TRUE(rank->Finish().ok()) << rank->status();
  scheduler_thread_.join();
  server_thread_.join();
  EXPECT_TRUE(scheduler_ended_.ok()) << scheduler_ended_;
  EXPECT_TRUE(server_ended_.ok()) << server_ended_;
  // Reads have created no row.
  std::ifstream file(out_ + "/summary.json");
  const auto summary = nlohmann::json::parse(file);
  EXPECT_EQ(summary["tables"]["items"]["rows"], 1) << summary.dump(1);
  EXPECT_EQ(summary["tables"]["users"]["rows"], 0);
}

TEST_F(SessionTest, AReaderChangesNothing) {
  Start("kind: BSP", 1);
  const auto rank = OpenRank(0);
  ASSERT_NE(rank, nullptr);
  const auto reader = OpenReader();
  ASSERT_NE(reader, nullptr);
  EXPECT_TRUE(absl::IsFailedPrecondition(Push(reader.get(), 0, {1}, {1, 1}).status()));
  OneRow one(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(one.Pull(reader.get(), 0).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(reader->Finish()));
  EXPECT_TRUE(absl::IsNotFound(one.Read(reader.get(), "nothing")));
  EXPECT_TRUE(absl::IsInvalidArgument(one.Read(reader.get(), "users"))) << "3 floats a row";
  EXPECT_EQ(Read(reader.get(), {1}), std::vector<float>(2, 0));
  EXPECT_TRUE(rank->Finish().ok());
}

// Ranks wait for each other, readers for nobody; two ranks meet at the end.
TEST_F(SessionTest, TwoRanksInLockstep) {
  Start("kind: BSP", 2);
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([this, r] {
      const auto rank = OpenRank(r);
      ASSERT_NE(rank, nullptr);
      for (int64_t step = 0; step < 5; ++step) {
        OneRow one(9);
        ASSERT_TRUE(one.Pull(rank.get(), step).status().ok());
        EXPECT_EQ(one.row[0], -2 * static_cast<float>(step)) << "the mean of 1 and 3";
        ASSERT_TRUE(Push(rank.get(), step, {9}, {r == 0 ? 1.0f : 3.0f, 0}).status().ok());
      }
      EXPECT_TRUE(rank->Finish().ok());
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(SessionTest, TheEndOfTheJobEndsTheSession) {
  Start("kind: ASP", 1);
  const auto rank = OpenRank(0);
  ASSERT_NE(rank, nullptr);
  const auto reader = OpenReader();
  ASSERT_NE(reader, nullptr);
  abort_ = true;
  EXPECT_FALSE(rank->Finish().ok());
  EXPECT_THAT(std::string(rank->status().message()), HasSubstr("interrupted"));
  while (reader->status().ok()) absl::SleepFor(absl::Milliseconds(5));
  const absl::Status read = OneRow(1).Read(reader.get(), "items");
  EXPECT_THAT(std::string(read.message()), HasSubstr("interrupted")) << read;
}

// A program with a rank writes nothing, so nobody may be told that all is saved.
TEST_F(SessionTest, AJobOfSessionsSaysThatItHasNoCheckpoints) {
  Start("kind: ASP", 1, /*checkpoints=*/true);
  const auto rank = OpenRank(0);
  ASSERT_NE(rank, nullptr);
  ASSERT_TRUE(Push(rank.get(), 0, {1}, {1, 2}).status().ok());
  checkpoints_ = 1;
  ends_ = 1;
  while (rank->status().ok()) absl::SleepFor(absl::Milliseconds(5));
  scheduler_thread_.join();
  EXPECT_THAT(std::string(scheduler_ended_.message()),
              HasSubstr("no checkpoint: worker 0: a rank that is a session"))
      << scheduler_ended_;
  absl::MutexLock lock(&mutex_);
  EXPECT_THAT(events_, Not(HasSubstr("\"saved\""))) << events_;
}

TEST_F(SessionTest, NobodyThere) {
  client::Session::Options options;
  options.scheduler = "tcp://127.0.0.1:1";
  options.open_within = absl::Milliseconds(300);
  const absl::Status opened = client::Session::Open(options).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(opened)) << opened;
  EXPECT_THAT(std::string(opened.message()), HasSubstr("tcp://127.0.0.1:1"));
  options.scheduler = "somewhere";
  EXPECT_TRUE(absl::IsInvalidArgument(client::Session::Open(options).status()));
}

}  // namespace
}  // namespace tandem
