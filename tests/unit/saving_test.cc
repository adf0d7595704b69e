#include "worker/saving.h"

#include "server/manifest.h"

#include "tests/unit/trainer_fixture.h"

namespace tandem {
namespace {

class SavingTest : public TrainerMachineTest {
 protected:
  void Begin(const std::string& synchroniser, int rank, const std::string& more = "") {
    Make("kind: ASP", synchroniser, rank, more);
    saving_ = std::make_unique<worker::Saving>(*context_, *synchroniser_, worker::SaveId::kFinal);
    saving_->Begin("save", "model", 12, 0, TrainPosition());
  }
  template <typename Task>
  Task TakeTask() {
    EXPECT_EQ(effects_.tasks.size(), 1u);
    const Task task = std::get<Task>(effects_.tasks.at(0));
    effects_.Clear();
    return task;
  }
  std::unique_ptr<worker::Saving> saving_;
};

TEST_F(SavingTest, RankZeroWritesBetweenTwoBarriersAndCommits) {
  Begin("ALLREDUCE", 0);
  EXPECT_FALSE(saving_->Advance(now_, &effects_));
  ASSERT_EQ(Entries().at(0).action(), BarrierEnter::LAST_SAVE);
  EXPECT_TRUE(effects_.tasks.empty());
  Release("ready to save");
  EXPECT_FALSE(saving_->Advance(now_, &effects_));
  const auto write = TakeTask<worker::WriteDenseTask>();
  EXPECT_EQ(*write.directory, server::SaveFolder("model", 0, 12, 0));
  EXPECT_EQ(*write.bytes, dense_->EncodeFile());
  EXPECT_TRUE(Entries().empty()) << "servers write when the dense part is there";
  saving_->OnTaskDone(absl::OkStatus());
  EXPECT_FALSE(saving_->Advance(now_, &effects_));
  const BarrierEnter entry = Entries().at(0);
  EXPECT_EQ(entry.action(), BarrierEnter::SAVE);
  EXPECT_EQ(entry.path(), server::SaveFolder("model", 0, 12, 0));
  Release("save");
  EXPECT_FALSE(saving_->Advance(now_, &effects_));
  EXPECT_EQ(*TakeTask<worker::CommitSaveTask>().directory, server::SaveFolder("model", 0, 12, 0));
  EXPECT_TRUE(saving_->holds());
  saving_->OnTaskDone(absl::OkStatus());
  EXPECT_TRUE(saving_->Advance(now_, &effects_));
  EXPECT_FALSE(saving_->holds());
}

// It is told apart from the last save, which may be at the same step, and no save that was asked for is
// made beside it.
TEST_F(SavingTest, TheBestModelHasAFolderOfItsOwn) {
  Make("kind: ASP", "ALLREDUCE", 0);
  saving_ = std::make_unique<worker::Saving>(*context_, *synchroniser_, worker::SaveId::kBest);
  saving_->Begin("best", "model", 12, 0, TrainPosition());
  saving_->Advance(now_, &effects_);
  EXPECT_EQ(Entries().at(0).action(), BarrierEnter::PAUSE_SAVES);
  Release("ready to best");
  saving_->Advance(now_, &effects_);
  EXPECT_EQ(*TakeTask<worker::WriteDenseTask>().directory,
            server::SaveFolder("model", 0, 12, 0) + ".best");
  saving_->OnTaskDone(absl::UnavailableError("disk full"));
  EXPECT_EQ(context_->failure.message(), "disk full") << "the job is for this";
}

TEST_F(SavingTest, OthersOnlyMeet) {
  Begin("SERVERS", 1);
  Release("ready to save");
  saving_->Advance(now_, &effects_);
  Release("ready to save");
  saving_->Advance(now_, &effects_);
  Release("save");
  EXPECT_TRUE(saving_->Advance(now_, &effects_));
  EXPECT_TRUE(effects_.tasks.empty());
  EXPECT_TRUE(Sent(FrameKind::kPull).empty());
}

TEST_F(SavingTest, ParametersOnServersAreReadBackWithTheirSlots) {
  Begin("SERVERS", 0);
  saving_->Advance(now_, &effects_);
  Release("ready to save");
  saving_->Advance(now_, &effects_);
  ASSERT_EQ(Sent(FrameKind::kPull).size(), 1u);
  EXPECT_EQ(Sent(FrameKind::kPull)[0].header.flags, kFlagEvaluate | kFlagWithSlots);
  EXPECT_TRUE(effects_.tasks.empty());
  AnswerAll();
  for (const client::ClientCore::Completion& c : TakeCompletions()) {
    EXPECT_TRUE(saving_->OnCompletion(c.request));
    EXPECT_FALSE(saving_->OnCompletion(c.request)) << "once";
  }
  saving_->Advance(now_, &effects_);
  TakeTask<worker::WriteDenseTask>();
}

TEST_F(SavingTest, EveryRankGathersWhatAShardedOptimizerKeeps) {
  for (const int rank : {0, 1}) {
    Begin("ALLREDUCE sharded_optimizer: true", rank);
    saving_->Advance(now_, &effects_);
    Release("ready to save");
    saving_->Advance(now_, &effects_);
    EXPECT_EQ(TakeTask<worker::GatherDenseTask>().save, worker::SaveId::kFinal);
    saving_->Advance(now_, &effects_);
    EXPECT_TRUE(effects_.tasks.empty()) << "once";
    saving_->OnCollected();
    saving_->Advance(now_, &effects_);
    EXPECT_EQ(effects_.tasks.size(), rank == 0 ? 1u : 0u);
    effects_.Clear();
  }
}

class RequestedSaveTest : public SavingTest {
 protected:
  void SetUp() override {
    Make("kind: ASP", "ALLREDUCE", 1);
    save_ = std::make_unique<worker::RequestedSave>(*context_, *synchroniser_);
  }
  void Command(uint64_t id, int64_t first_free) {
    tandem::Command command;
    command.set_kind(tandem::Command::SAVE);
    command.set_id(id);
    command.set_path("model");
    save_->OnCommand(command, first_free);
  }
  void Run(const worker::RequestedSave::Rest& rest = {}) {
    while (save_->Advance(now_, rest, &effects_)) {
    }
  }
  std::unique_ptr<worker::RequestedSave> save_;
};

TEST_F(RequestedSaveTest, NoStepBeginsThatOthersHaveNotAgreedTo) {
  context_->step = 5;
  EXPECT_GT(save_->HoldsFrom(), 5);
  Command(3, 6);
  Run();
  EXPECT_GT(save_->HoldsFrom(), 5) << "it has begun";
  EXPECT_LE(save_->HoldsFrom(), 6);
  Release("plan 3", 8);
  Run();
  EXPECT_GT(save_->HoldsFrom(), 7) << "somebody has come further";
  EXPECT_LE(save_->HoldsFrom(), 8);
  EXPECT_FALSE(save_->holds_pushes());
  context_->step = 8;
  Run();
  EXPECT_TRUE(save_->holds_pushes());
  Release("ready to save 3");
  Run();
  Release("save 3");
  Run();
  EXPECT_GT(save_->HoldsFrom(), 8);
  const std::vector<Control> answers = TakeControls();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].command_done().id(), 3u);
}

TEST_F(RequestedSaveTest, ACommandThatComesAgainIsAnsweredIfItIsDone) {
  Command(3, 0);
  Command(3, 0);
  Run();
  EXPECT_TRUE(TakeControls().empty()) << "not written yet";
  for (const char* barrier : {"plan 3", "ready to save 3", "save 3"}) {
    Release(barrier);
    Run();
  }
  EXPECT_EQ(TakeControls().size(), 1u);
  Command(3, 0);
  Run();
  EXPECT_EQ(TakeControls().size(), 1u);
  EXPECT_GT(save_->HoldsFrom(), 100) << "and not taken again";
}

// What cannot be written ends the save and nothing else: the second meeting hears of it, and so does
// whoever asked, each time.
TEST_F(RequestedSaveTest, AFailedSaveIsSaidAndTheWorkerGoesOn) {
  Make("kind: ASP", "ALLREDUCE", 0);
  save_ = std::make_unique<worker::RequestedSave>(*context_, *synchroniser_);
  Command(3, 0);
  Run();
  Release("plan 3");
  Run();
  Release("ready to save 3");
  Run();
  TakeTask<worker::WriteDenseTask>();
  save_->saving().OnTaskDone(absl::ResourceExhaustedError("disk full"));
  Entries();
  Run();
  const std::vector<BarrierEnter> entries = Entries();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_TRUE(entries[0].may_fail());
  EXPECT_EQ(entries[0].failure(), "disk full");
  BarrierRelease release;
  release.set_name("save 3");
  release.set_failure("worker 0: disk full");
  context_->barriers.OnRelease(release);
  Run();
  TakeTask<worker::AbandonSaveTask>();
  save_->saving().OnTaskDone(absl::OkStatus());
  Run();
  EXPECT_EQ(context_->failure, absl::OkStatus());
  EXPECT_GT(save_->HoldsFrom(), 100) << "training goes on";
  for (int again = 0; again < 2; ++again) {
    const std::vector<Control> answers = TakeControls();
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_NE(answers[0].command_done().code(), 0);
    EXPECT_EQ(answers[0].command_done().message(), "worker 0: disk full");
    Command(3, 0);
  }
}

// The last thing the worker does before it is told to stop.
TEST_F(RequestedSaveTest, AfterASaveThatEndsTheJobNoStepBegins) {
  tandem::Command command;
  command.set_kind(tandem::Command::SAVE);
  command.set_id(3);
  command.set_path("model");
  command.set_hold(true);
  save_->OnCommand(command, 4);
  context_->step = 4;
  Run();
  for (const char* barrier : {"plan 3", "ready to save 3", "save 3"}) {
    Release(barrier, 4);
    Run();
  }
  EXPECT_EQ(TakeControls().size(), 1u);
  EXPECT_EQ(save_->HoldsFrom(), 4);
  EXPECT_TRUE(save_->holds_pushes());
}

TEST_F(RequestedSaveTest, WaitsForPushesAndForTheLastSynchronisation) {
  Command(1, 0);
  Run();
  Release("plan 1");
  context_->PushEmptyToAll(now_, 0, 0, 0);
  Run();
  EXPECT_FALSE(save_->holds_pushes());
  AcknowledgePushes();
  worker::RequestedSave::Rest busy;
  busy.synchronising = true;
  Run(busy);
  EXPECT_FALSE(save_->holds_pushes());
  Run();
  EXPECT_TRUE(save_->holds_pushes());
}

TEST_F(RequestedSaveTest, AWorkerAtTheEndOfItsDataNeedNotReachTheStep) {
  Command(1, 0);
  Run();
  Release("plan 1", 50);
  Run();
  EXPECT_FALSE(save_->holds_pushes());
  worker::RequestedSave::Rest rest;
  rest.out_of_steps = true;
  Run(rest);
  EXPECT_TRUE(save_->holds_pushes());
}

}  // namespace
}  // namespace tandem
