#include "worker/evaluation_round.h"

#include "absl/strings/str_cat.h"
#include "tests/unit/worker/trainer_fixture.h"

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

class KeepBestRoundTest : public EvaluationRoundTest {
 protected:
  void BeginToKeep(KeepBest::Metric metric, int rank) {
    Make("kind: BSP", "ALLREDUCE", rank);
    plan_.job.mutable_data()->add_test("test");
    plan_.job.mutable_data()->mutable_validation()->set_last_fraction(0.1);
    plan_.job.mutable_evaluation()->set_every_epochs(1);
    plan_.job.mutable_train()->set_epochs(9);
    plan_.job.mutable_train()->mutable_keep_best()->set_metric(metric);
    plan_.job.mutable_train()->mutable_keep_best()->set_patience(1);
    round_ = std::make_unique<worker::EvaluationRound>(*context_, *synchroniser_, true);
    round_->Begin();
    Run();
  }
  // One round in which this worker has nothing to score, up to the second sync round. Returns whose
  // rows they were.
  worker::HeldOut Round(int number, double auc) {
    round_->OnShare(EndpointId::Worker(1), ShareOf(number), Buffer());
    Release(absl::StrCat("evaluation ", number));
    Run();
    const worker::HeldOut rows = Finish<worker::FetchTestTask>([](const worker::FetchTestTask& t) {
                                   t.slot->batch.Clear();
                                 }).rows;
    Finish<worker::FillShareTask>();
    if (context_->rank == 0) {
      Finish<worker::MergeSharesTask>([&](const worker::MergeSharesTask& task) {
        *task.json = absl::StrCat("{\"auc\":", auc, "}");
      });
    } else {
      round_->OnShareTaken(static_cast<uint64_t>(number));
      Run();
    }
    return rows;
  }
  // The value that this worker has entered the second sync round with.
  int64_t Value(int number) {
    for (const BarrierEnter& entry : Entries()) {
      if (entry.name() == absl::StrCat("evaluated ", number)) return entry.value();
    }
    return -1;
  }
};

TEST_F(KeepBestRoundTest, RankZeroJudgesValidationRowsAndOnlyThose) {
  BeginToKeep(KeepBest::AUC, 0);
  EXPECT_EQ(Round(0, 0.7), worker::HeldOut::kValidation);
  EXPECT_EQ(round_->TakeReport(),
            R"({"auc":0.7,"best":true,"data":"validation","epoch":1,"step":0})");
  EXPECT_TRUE(round_->aside()) << "its model is not saved yet";
  EXPECT_EQ(Value(0), (worker::Verdict{.best = true}.Pack()));
  Release("evaluated 0", worker::Verdict{.best = true}.Pack());
  Run();
  ASSERT_TRUE(round_->over());
  EXPECT_TRUE(round_->verdict().best);

  round_->BeginTest();
  Run();
  EXPECT_EQ(Round(1, 0.9), worker::HeldOut::kTest);
  EXPECT_EQ(round_->TakeReport(), R"({"auc":0.9,"data":"test","epoch":1,"step":0})");
  EXPECT_FALSE(round_->aside());
  EXPECT_EQ(Value(1), 0) << "test rows have no say";
  Release("evaluated 1", 0);
  Run();
  ASSERT_TRUE(round_->over());

  context_->epoch = 1;
  round_->Begin();
  Run();
  EXPECT_EQ(Round(2, 0.69), worker::HeldOut::kValidation);
  EXPECT_EQ(round_->TakeReport(), R"({"auc":0.69,"data":"validation","epoch":2,"step":0})");
  EXPECT_TRUE(round_->aside());
  EXPECT_EQ(Value(2), (worker::Verdict{.stop = true}.Pack()));
  EXPECT_EQ(round_->judge().best().epoch(), 0);
}

TEST_F(KeepBestRoundTest, OthersDoAsTheSyncRoundSays) {
  BeginToKeep(KeepBest::AUC, 1);
  Round(0, 0);
  EXPECT_EQ(Value(0), 0);
  Release("evaluated 0", worker::Verdict{true, true}.Pack());
  Run();
  ASSERT_TRUE(round_->over());
  EXPECT_TRUE(round_->verdict().best && round_->verdict().stop);
}

TEST_F(KeepBestRoundTest, RowsThatCannotBeJudgedEndTheJob) {
  BeginToKeep(KeepBest::LOGLOSS, 0);
  Round(0, 0.7);
  EXPECT_THAT(context_->failure.message(), ::testing::HasSubstr("give no logloss"));
  EXPECT_FALSE(round_->TakeReport().has_value());
}

}  // namespace
}  // namespace tandem
