// What a server makes of what the scheduler says: each task goes to the shards once and is answered
// when all have done it, every time the scheduler asks.
#include "server/server_core.h"

#include <string>
#include <vector>

#include "base/memory_full.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/core_fixture.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kIncarnation = 99;

class ServerCoreTest : public ::testing::Test {
 protected:
  Control TheView(uint32_t number) const {
    Control control;
    View& view = *control.mutable_view();
    view = CoreViewMessage(plan_, number);
    for (uint64_t s = 0; s < 2; ++s) {
      Member* const member = view.add_server();
      member->set_incarnation(s == 1 ? kIncarnation : 1);
      member->add_endpoint("a");
      member->add_endpoint("b");
    }
    return control;
  }
  static Control TheCommand(Command::Kind kind, uint64_t id, const std::string& path = "") {
    Control control;
    control.mutable_command()->set_kind(kind);
    control.mutable_command()->set_id(id);
    control.mutable_command()->set_path(path);
    return control;
  }
  // What the core wants because of `control`.
  const server::ServerEffects& Give(const Control& control) {
    effects_.Clear();
    core_.OnControl(control, &effects_);
    return effects_;
  }
  const server::ServerEffects& Done(uint64_t id, const absl::Status& status = absl::OkStatus(),
                                    const ShardReport* report = nullptr) {
    effects_.Clear();
    core_.OnShardDone(id, status, report, &effects_);
    return effects_;
  }
  // To view 1, on both shards.
  void Start() {
    Give(TheView(1));
    Done(1);
    ASSERT_EQ(Done(1).to_scheduler.size(), 1u);
  }

  static job::ResolvedJob TwoShards() {
    job::ResolvedJob plan = CorePlan("kind: BSP", 2, 2);
    plan.job.mutable_cluster()->set_shards_per_server(2);
    return plan;
  }

  const job::ResolvedJob plan_ = TwoShards();
  server::ServerCore core_{plan_, kIncarnation};
  server::ServerEffects effects_;
};

TEST_F(ServerCoreTest, SaysWhatItDoes) {
  EXPECT_EQ(core_.Doing(), "registering");
  Give(TheView(1));
  EXPECT_EQ(core_.Doing(), "makes or loads its ranges");
  Done(1);
  Done(1);
  EXPECT_EQ(core_.Doing(), "serves rows");
  Give(TheCommand(Command::CHECKPOINT, uint64_t{7} << 32, "folder"));
  EXPECT_EQ(core_.Doing(), "writes its part of a checkpoint");
}

TEST_F(ServerCoreTest, AViewIsAnsweredWhenAllShardsHaveIt) {
  ASSERT_EQ(Give(TheView(1)).tasks.size(), 1u);
  EXPECT_EQ(core_.index(), 1);
  EXPECT_EQ(effects_.tasks[0].kind, server::ShardTask::Kind::kView);
  EXPECT_EQ(effects_.tasks[0].map->view(), 1u);
  EXPECT_TRUE(effects_.to_scheduler.empty());
  EXPECT_TRUE(Done(1).to_scheduler.empty());
  ASSERT_EQ(Done(1).to_scheduler.size(), 1u);
  EXPECT_EQ(effects_.to_scheduler[0].command_done().id(), 1u);
  EXPECT_EQ(effects_.to_scheduler[0].command_done().code(), 0);
}

TEST_F(ServerCoreTest, AViewWithoutThisServerOrThatAShardCannotTakeEndsIt) {
  server::ServerCore stranger(plan_, 12345);
  stranger.OnControl(TheView(1), &effects_);
  EXPECT_THAT(std::string(stranger.failure().message()), HasSubstr("without this server"));

  Give(TheView(1));
  Done(1, absl::DataLossError("dense.part: cut"));
  EXPECT_TRUE(Done(1).to_scheduler.empty());
  EXPECT_THAT(std::string(core_.failure().message()), HasSubstr("dense.part"));
}

// A scheduler that lost its connection asks again. The shards do nothing twice.
TEST_F(ServerCoreTest, WhatIsAskedAgainIsDoneOnceAndAnsweredEachTime) {
  Start();
  const Control checkpoint = TheCommand(Command::CHECKPOINT, 7, "out/model/step-3");
  ASSERT_EQ(Give(checkpoint).tasks.size(), 1u);
  EXPECT_EQ(effects_.tasks[0].path, "out/model/step-3");
  EXPECT_TRUE(Give(checkpoint).tasks.empty());  // under way
  Done(7);
  EXPECT_TRUE(Give(checkpoint).to_scheduler.empty());
  EXPECT_EQ(Done(7).to_scheduler.size(), 1u);
  EXPECT_TRUE(Give(checkpoint).tasks.empty());  // over
  ASSERT_EQ(effects_.to_scheduler.size(), 1u);
  EXPECT_EQ(effects_.to_scheduler[0].command_done().id(), 7u);
  EXPECT_TRUE(Give(TheView(1)).tasks.empty());
  EXPECT_EQ(effects_.to_scheduler.size(), 1u);
}

TEST_F(ServerCoreTest, TheFirstErrorOfAnyShardIsTheAnswer) {
  Start();
  Give(TheCommand(Command::CHECKPOINT, 7, "somewhere"));
  Done(7, absl::ResourceExhaustedError("disk full"));
  const CommandDone done = Done(7).to_scheduler[0].command_done();
  EXPECT_EQ(done.code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(done.message(), "disk full");
  EXPECT_TRUE(core_.failure().ok());  // what a failed checkpoint means is the scheduler's to say
}

TEST_F(ServerCoreTest, ReportsComeBeforeTheAnswer) {
  Start();
  Give(TheCommand(Command::REPORT, 7));
  ShardReport report;
  report.set_shard(0);
  Done(7, absl::OkStatus(), &report);
  report.set_shard(1);
  ASSERT_EQ(Done(7, absl::OkStatus(), &report).to_scheduler.size(), 3u);
  EXPECT_EQ(effects_.to_scheduler[0].shard_report().shard(), 0u);
  EXPECT_EQ(effects_.to_scheduler[1].shard_report().shard(), 1u);
  EXPECT_EQ(effects_.to_scheduler[2].command_done().id(), 7u);
}

// A mark carries the counts of its moment; the files come later, as a task of their own.
TEST_F(ServerCoreTest, AMarkIsAnsweredBeforeTheFilesAreWritten) {
  Start();
  ASSERT_EQ(Give(TheCommand(Command::MARK, 7, "out/model/step-3")).tasks.size(), 1u);
  EXPECT_EQ(effects_.tasks[0].kind, server::ShardTask::Kind::kMark);
  EXPECT_EQ(effects_.tasks[0].path, "out/model/step-3");
  Give(TheCommand(Command::CHECKPOINT, 8, "out/model/step-3"));
  ShardReport report;
  Done(7, absl::OkStatus(), &report);
  ASSERT_EQ(Done(7, absl::OkStatus(), &report).to_scheduler.size(), 3u);
  EXPECT_EQ(effects_.to_scheduler[2].command_done().id(), 7u);
  Done(8);
  EXPECT_EQ(Done(8).to_scheduler.at(0).command_done().id(), 8u);
}

// The run record of the checkpoint needs the counts of the mark, even if they come late.
TEST_F(ServerCoreTest, AMarkIsAnsweredAgainWithItsReports) {
  Start();
  for (const uint64_t mark : {7, 8}) {
    Give(TheCommand(Command::MARK, mark, "out/model/step-3"));
    ShardReport report;
    report.set_record_bytes(100 * mark);
    Done(mark, absl::OkStatus(), &report);
    ASSERT_EQ(Done(mark, absl::OkStatus(), &report).to_scheduler.size(), 3u);
    EXPECT_TRUE(Give(TheCommand(Command::MARK, mark, "out/model/step-3")).tasks.empty());
    ASSERT_EQ(effects_.to_scheduler.size(), 3u);
    for (size_t i : {0, 1}) {
      EXPECT_EQ(effects_.to_scheduler[i].shard_report().record_bytes(), 100 * mark);
    }
    EXPECT_EQ(effects_.to_scheduler[2].command_done().id(), mark);
  }
  Give(TheCommand(Command::MARK, 7));
  EXPECT_EQ(effects_.to_scheduler.size(), 1u) << "reports of the last mark only";
}

// The answer to a report is the reports before it, which went with it if it was lost.
TEST_F(ServerCoreTest, ReportsThatWereLostAreMadeAgain) {
  Start();
  ShardReport report;
  for (int time = 0; time < 2; ++time) {
    ASSERT_EQ(Give(TheCommand(Command::REPORT, 7)).tasks.size(), 1u);
    Done(7, absl::OkStatus(), &report);
    EXPECT_EQ(Done(7, absl::OkStatus(), &report).to_scheduler.size(), 3u);
  }
}

TEST_F(ServerCoreTest, ADeadWorkerIsForgottenByAllShardsAndAgainIfTheAnswerIsLost) {
  Start();
  Control forget = TheCommand(Command::FORGET_WORKER, 7);
  forget.mutable_command()->set_worker(1);
  ShardReport report;
  for (int time = 0; time < 2; ++time) {
    ASSERT_EQ(Give(forget).tasks.size(), 1u);
    EXPECT_EQ(effects_.tasks[0].kind, server::ShardTask::Kind::kForgetWorker);
    EXPECT_EQ(effects_.tasks[0].worker, 1);
    Done(7, absl::OkStatus(), &report);
    EXPECT_EQ(Done(7, absl::OkStatus(), &report).to_scheduler.size(), 3u);
  }
  forget.mutable_command()->set_id(8);
  forget.mutable_command()->set_worker(1'000);
  ASSERT_EQ(Give(forget).to_scheduler.size(), 1u);
  EXPECT_NE(effects_.to_scheduler[0].command_done().code(), 0);
}

TEST_F(ServerCoreTest, FinishAndStop) {
  Start();
  ASSERT_EQ(Give(TheCommand(Command::FINISH_DELAYED, 7)).tasks.size(), 1u);
  EXPECT_EQ(effects_.tasks[0].kind, server::ShardTask::Kind::kFinishDelayed);
  EXPECT_TRUE(Give(TheCommand(Command::START, 8)).to_scheduler.empty());
  EXPECT_FALSE(core_.stopped());
  Give(TheCommand(Command::STOP, 9));
  EXPECT_TRUE(core_.stopped());
}

TEST_F(ServerCoreTest, AServerWithoutMemoryForARowHasFailedWhateverItDoes) {
  Start();
  Give(TheCommand(Command::FINISH_DELAYED, 7));
  Done(7, MemoryFullError("no memory for another row"));
  EXPECT_EQ(core_.failure(), absl::OkStatus()) << "the other shard is still at it";
  EXPECT_TRUE(Done(7).to_scheduler.empty());
  EXPECT_TRUE(IsMemoryFull(core_.failure())) << core_.failure();
}

// Training may continue without the checkpoint. If it may not, the mark tells the scheduler that a
// new attempt would fail in the same way. A lost answer is sent again with the mark.
TEST_F(ServerCoreTest, ACheckpointWithoutMemoryIsAnsweredWithTheMark) {
  Start();
  for (int time = 0; time < 2; ++time) {
    Give(TheCommand(Command::CHECKPOINT, 7, "/model/step-40"));
    if (time == 0) {
      Done(7, MemoryFullError("no memory for copies of rows"));
      Done(7);
    }
    EXPECT_EQ(core_.failure(), absl::OkStatus());
    ASSERT_EQ(effects_.to_scheduler.size(), 1u);
    const CommandDone& done = effects_.to_scheduler[0].command_done();
    EXPECT_EQ(done.code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
    EXPECT_TRUE(done.memory_full());
  }
}

TEST_F(ServerCoreTest, WhatItDoesNotKnowIsRefusedAndWhatComesTooEarlyToo) {
  EXPECT_NE(Give(TheCommand(Command::CHECKPOINT, 6, "x")).to_scheduler[0].command_done().code(), 0);
  Start();
  EXPECT_NE(Give(TheCommand(Command::COMMAND_UNSPECIFIED, 7)).to_scheduler[0].command_done().code(),
            0);
}

}  // namespace
}  // namespace tandem
