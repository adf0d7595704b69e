#include "worker/evaluation_round.h"

#include "tests/unit/trainer_fixture.h"

namespace tandem {
namespace {

class EvaluationRoundTest : public TrainerMachineTest {
 protected:
  void Begin(const std::string& policy, int rank, bool test_data = true) {
    Make(policy, "ALLREDUCE", rank);
    round_ = std::make_unique<worker::EvaluationRound>(*context_, *synchroniser_, test_data);
    round_->Begin();
    Run();
  }
  void Run() {
    while (round_->Advance(now_, &effects_)) {
    }
  }
  // The next task, which must be of this type; it is done when this returns, and the round goes on.
  template <typename Task>
  Task Finish(const std::function<void(const Task&)>& work = [](const Task&) {}) {
    EXPECT_EQ(effects_.tasks.size(), 1u);
    const Task task = std::get<Task>(effects_.tasks.at(0));
    effects_.Clear();
    work(task);
    round_->OnTaskDone();
    Run();
    return task;
  }
  // Up to the share, with no test batch at all.
  void ScoreNothing() {
    Release("evaluation 0");
    Run();
    EXPECT_TRUE(Finish<worker::FetchTestTask>([](const worker::FetchTestTask& t) {
                  t.slot->batch.Clear();
                }).first);
    Finish<worker::FillShareTask>([](const worker::FillShareTask& t) { t.share->set_samples(3); });
  }
  EvaluationShare ShareOf(int64_t number) {
    EvaluationShare share;
    share.set_evaluation(number);
    share.set_samples(5);
    return share;
  }

  std::unique_ptr<worker::EvaluationRound> round_;
};

TEST_F(EvaluationRoundTest, WithoutTestDataThereIsNone) {
  Begin("kind: BSP", 0, /*test_data=*/false);
  EXPECT_TRUE(round_->over());
  EXPECT_TRUE(Entries().empty());
}

TEST_F(EvaluationRoundTest, WhatAFixedDelayHoldsIsAppliedAlsoWithoutTestData) {
  Begin("kind: FIXED_DELAY delay: 2", 0, /*test_data=*/false);
  const std::vector<BarrierEnter> entries = Entries();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].action(), BarrierEnter::FINISH_DELAYED);
  EXPECT_FALSE(round_->over());
  Release("finish_delayed");
  Run();
  EXPECT_TRUE(round_->over());
}

TEST_F(EvaluationRoundTest, BatchesAreReadAndScoredUntilThereIsNoMore) {
  Begin("kind: BSP", 1);
  Release("evaluation 0");
  Run();
  const auto fill = [](const worker::FetchTestTask& task) {
    task.slot->batch.samples = 2;
    task.slot->batch.sparse.resize(1);
    task.slot->batch.sparse[0].keys = {1, 2, 3};
  };
  EXPECT_TRUE(Finish<worker::FetchTestTask>(fill).first);
  EXPECT_TRUE(effects_.tasks.empty()) << "rows come first";
  const std::vector<ParsedFrame> reads = Sent(FrameKind::kPull);
  ASSERT_FALSE(reads.empty());
  EXPECT_EQ(reads[0].header.flags, kFlagEvaluate);
  AnswerAll();
  for (const client::ClientCore::Completion& c : TakeCompletions()) {
    EXPECT_TRUE(round_->OnCompletion(c.request));
  }
  Run();
  const worker::ScoreTask score = Finish<worker::ScoreTask>();
  EXPECT_EQ(score.slot->rows.at(0).at().size(), 3u);
  EXPECT_FALSE(Finish<worker::FetchTestTask>([](const worker::FetchTestTask& t) {
                 t.slot->batch.Clear();
               }).first);
  Finish<worker::FillShareTask>();
}

TEST_F(EvaluationRoundTest, AShareIsSentAgainUntilRankZeroHasIt) {
  Begin("kind: BSP", 1);
  ScoreNothing();
  ASSERT_EQ(TakeControls().size(), 1u);
  Run();
  EXPECT_TRUE(TakeControls().empty());
  now_ += absl::Seconds(1);
  Run();
  const std::vector<Control> again = TakeControls();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].evaluation_share().samples(), 3);
  // A share may be large: each time it waits twice as long.
  for (int pause = 2; pause <= 64; pause *= 2) {
    now_ += absl::Seconds(pause) - absl::Nanoseconds(1);
    Run();
    EXPECT_TRUE(TakeControls().empty()) << pause;
    now_ += absl::Nanoseconds(1);
    Run();
    EXPECT_EQ(TakeControls().size(), 1u) << pause;
  }
  round_->OnRankZeroLost(now_ - absl::Seconds(1));
  Run();
  EXPECT_EQ(TakeControls().size(), 1u) << "but a lost connection has lost it";
  EXPECT_FALSE(round_->TakeReport().has_value());
  round_->OnShareTaken(7);  // of another one
  Run();
  EXPECT_FALSE(round_->TakeReport().has_value());
  round_->OnShareTaken(0);
  Run();
  EXPECT_EQ(round_->TakeReport(), "");
  EXPECT_FALSE(round_->TakeReport().has_value()) << "once";
  Release("evaluated 0");
  Run();
  EXPECT_TRUE(round_->over());
}

TEST_F(EvaluationRoundTest, RankZeroMergesWhatAllHaveSentOnce) {
  Begin("kind: BSP", 0);
  round_->OnShare(EndpointId::Worker(1), ShareOf(0), Buffer());  // quicker than we are
  round_->OnShare(EndpointId::Worker(1), ShareOf(0), Buffer());
  round_->OnShare(EndpointId::Worker(9), ShareOf(0), Buffer());  // there is no such worker
  EXPECT_EQ(TakeControls().size(), 3u) << "all are answered";
  ScoreNothing();
  Finish<worker::MergeSharesTask>([](const worker::MergeSharesTask& task) {
    ASSERT_EQ(task.shares->size(), 2u);
    EXPECT_EQ(task.shares->at(0).samples(), 3);
    EXPECT_EQ(task.shares->at(1).samples(), 5);
    *task.json = "{}";
  });
  EXPECT_EQ(round_->TakeReport(), "{\"epoch\":1,\"step\":0}");
  Release("evaluated 0");
  Run();
  EXPECT_TRUE(round_->over());
}

}  // namespace
}  // namespace tandem
