#include "worker/epoch_end.h"

#include "tests/unit/worker/trainer_fixture.h"

namespace tandem {
namespace {

class EpochEndTest : public TrainerMachineTest {
 protected:
  void Run(bool hold = false) {
    while (end_->Advance(now_, hold)) {
    }
  }
  void Begin(const std::string& policy, int64_t step,
             const std::string& train = "train { batch_size: 4 }") {
    Make(policy, "SERVERS", 0, train);
    context_->order.StandAt(step);
    end_ = std::make_unique<worker::EpochEnd>(*context_);
    end_->Begin();
  }
  std::unique_ptr<worker::EpochEnd> end_;
};

TEST_F(EpochEndTest, ALockstepJobOnlyWaitsForItsPushes) {
  Begin("kind: BSP", 4);
  context_->PushEmptyToAll(now_, 3, 3, 0);
  Run();
  EXPECT_FALSE(end_->over());
  AcknowledgePushes();
  Run();
  EXPECT_TRUE(end_->over());
  EXPECT_EQ(context_->common_step, 4);
  EXPECT_TRUE(Entries().empty());
}

// All go on behind the largest step of all; only then are clocks finite again.
TEST_F(EpochEndTest, OthersMeetAtTheLargestStepAndCatchUp) {
  Begin("kind: ASP", 4);
  EXPECT_FALSE(end_->out_of_steps());
  Run();
  ASSERT_EQ(Sent(FrameKind::kPush).size(), 2u);  // to both servers
  EXPECT_EQ(Sent(FrameKind::kPush)[0].header.flags, kFlagEndOfEpoch);
  EXPECT_EQ(Sent(FrameKind::kPush)[0].header.step, 4);
  EXPECT_TRUE(end_->out_of_steps());
  EXPECT_TRUE(Entries().empty()) << "not before all pushes are acknowledged";
  AcknowledgePushes();
  Run();
  const std::vector<BarrierEnter> entries = Entries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].name(), "epoch 0");
  EXPECT_EQ(entries[0].value(), 5) << "the next step";
  EXPECT_EQ(entries[1].name(), "epoch 0 ended");
  EXPECT_EQ(entries[1].value(), 5) << "behind the step without data";
  Release("epoch 0", 9);
  Run();
  EXPECT_TRUE(Sent(FrameKind::kPush).empty()) << "not before both are released";
  Release("epoch 0 ended", 9);
  Run();
  ASSERT_EQ(Sent(FrameKind::kPush).size(), 2u);
  const FrameHeader catch_up = Sent(FrameKind::kPush)[0].header;
  EXPECT_EQ(catch_up.first_step, 5);
  EXPECT_EQ(catch_up.step, 9);
  EXPECT_EQ(catch_up.flags, 0);
  AcknowledgePushes();
  Run();
  EXPECT_FALSE(end_->over());
  EXPECT_FALSE(end_->out_of_steps()) << "its clock is finite: others may go on, and so may it";
  Release("epoch 0 caught up");
  Run();
  EXPECT_TRUE(end_->over());
  EXPECT_EQ(context_->step(), 10);
  EXPECT_EQ(context_->order.pushed(), 10);
  EXPECT_EQ(context_->common_step, 9);
  EXPECT_EQ(context_->empty_steps, 2);
}

// The worker ran out of data at step 4 and waited. The run resumed from a checkpoint of that time,
// and the worker pushes END_OF_EPOCH once more.
TEST_F(EpochEndTest, AResumedWorkerCountsTheStepsSinceItRanOutOfData) {
  Begin("kind: ASP", 5, "train { batch_size: 4 epochs: 2 max_steps: 5 }");
  context_->ended_at = 5;
  Run();
  AcknowledgePushes();
  Run();
  const std::vector<BarrierEnter> entries = Entries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].value(), 6);
  EXPECT_EQ(entries[1].value(), 5);
  Release("epoch 0", 6);
  Release("epoch 0 ended", 5);
  Run();
  AcknowledgePushes();
  Run();
  Release("epoch 0 caught up");
  Run();
  EXPECT_TRUE(end_->over());
  EXPECT_EQ(context_->step(), 7);
  EXPECT_EQ(context_->empty_steps, 3) << "steps 4, 5 and 6";
  EXPECT_FALSE(context_->LastEpoch()) << "the workers have trained 4 of 5 steps";
}

TEST_F(EpochEndTest, NothingIsPushedWhileACheckpointHolds) {
  Begin("kind: ASP", 4);
  Run(/*hold=*/true);
  EXPECT_TRUE(Sent(FrameKind::kPush).empty());
  Run();
  EXPECT_EQ(Sent(FrameKind::kPush).size(), 2u);
}

}  // namespace
}  // namespace tandem
