// What a server makes of what the scheduler says: each task goes to the shards once and is answered
// when all have done it, every time the scheduler asks; and a checkpoint of a shard, slice by
// slice.
#include "server/server_core.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint_directory.h"
#include "server/shard_checkpoint.h"
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

TEST_F(ServerCoreTest, FinishAndStop) {
  Start();
  ASSERT_EQ(Give(TheCommand(Command::FINISH_DELAYED, 7)).tasks.size(), 1u);
  EXPECT_EQ(effects_.tasks[0].kind, server::ShardTask::Kind::kFinishDelayed);
  EXPECT_TRUE(Give(TheCommand(Command::START, 8)).to_scheduler.empty());
  EXPECT_FALSE(core_.stopped());
  Give(TheCommand(Command::STOP, 9));
  EXPECT_TRUE(core_.stopped());
}

TEST_F(ServerCoreTest, WhatItDoesNotKnowIsRefusedAndWhatComesTooEarlyToo) {
  EXPECT_NE(Give(TheCommand(Command::CHECKPOINT, 6, "x")).to_scheduler[0].command_done().code(), 0);
  Start();
  EXPECT_NE(Give(TheCommand(Command::COMMAND_UNSPECIFIED, 7)).to_scheduler[0].command_done().code(),
            0);
}

// ---- a checkpoint of one shard
// ----------------------------------------------------------------------

class ShardCheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    shard_ = *server::ShardCore::New(plan_, kSelf, kIncarnation, buffers_);
    shard_->OnView(now_, CoreView(plan_, 1), &effects_);
    for (server::Range* range : shard_->ranges().Owned()) {
      for (const uint64_t key : KeysIn(*CoreView(plan_, 1), plan_, range->id(), 20)) {
        if (!range->table().plan->dense) range->store().Assign({&key, 1}, {{1.0f, 2.0f}}, {});
      }
    }
  }
  std::string Whole(const server::ShardCheckpoint::File& file) {
    server::ShardCheckpoint::File copy = file;
    return copy.encoder.Finish();
  }

  static constexpr EndpointId kSelf = {Role::kServer, 0, 0};
  const job::ResolvedJob plan_ = CorePlan("kind: BSP", 2, 2);
  HeapBufferSource buffers_;
  absl::Time now_ = absl::UnixEpoch();
  std::unique_ptr<server::ShardCore> shard_;
  server::ShardEffects effects_;
};

// Slices of any size give the bytes of the range as a whole.
TEST_F(ShardCheckpointTest, SlicesMakeTheFilesOfTheRanges) {
  std::map<std::string, std::string> want;
  for (const server::Range* range : shard_->ranges().Owned()) {
    const server::RangeImage image = range->Image();
    want[server::RangeFileName(image)] = server::EncodeRange(image);
  }
  ASSERT_EQ(want.size(), 4u);  // of a dense table all but its rows, which are in the dense part
  for (const size_t rows : {1, 7, 20, 1000}) {
    server::ShardCheckpoint checkpoint(shard_.get());
    std::map<std::string, std::string> files;
    int steps = 0;
    for (; !checkpoint.done(); ++steps) {
      const auto file = checkpoint.Step(rows);
      ASSERT_TRUE(file.ok()) << file.status();
      if (file->has_value()) files[(*file)->name] = Whole(**file);
    }
    EXPECT_EQ(files, want) << rows;
    EXPECT_EQ(steps, 2 * static_cast<int>((20 + rows - 1) / rows) + 2);  // 2: no rows in a step
  }
}

// A range on its way is in nobody's file: the checkpoint waits until it has arrived.
TEST_F(ShardCheckpointTest, WaitsForRangesOnTheirWay) {
  shard_->OnView(now_, CoreView(plan_, 2, {{0, 1}}), &effects_);  // range 0 goes to server 1
  server::ShardCheckpoint checkpoint(shard_.get());
  EXPECT_FALSE(checkpoint.MayStep());
  const auto nothing = checkpoint.Step(1000);
  ASSERT_TRUE(nothing.ok() && !nothing->has_value());
  EXPECT_FALSE(checkpoint.done());
}

// A push in the middle of a checkpoint would tear it.
TEST_F(ShardCheckpointTest, ARangeThatChangesEndsTheCheckpoint) {
  server::ShardCheckpoint checkpoint(shard_.get());
  ASSERT_TRUE(checkpoint.Step(7).ok());
  server::HeldUpdate update;
  update.rank = 0;
  server::Range* const range = shard_->ranges().Owned()[0];
  ASSERT_EQ(range->Admit(absl::UnixEpoch(), 1, 0, std::move(update), false),
            server::Range::Admission::kAdmitted);
  const absl::Status status = checkpoint.Step(7).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("range 0 changed"));
}

}  // namespace
}  // namespace tandem
