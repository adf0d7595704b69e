#include "worker/checkpoint_writer.h"

#include "server/manifest.h"

#include "tests/unit/worker/trainer_fixture.h"

namespace tandem {
namespace {

class CheckpointWriterTest : public TrainerMachineTest {
 protected:
  void Begin(const std::string& synchroniser, int rank, const std::string& more = "") {
    Make("kind: ASP", synchroniser, rank, more);
    checkpoint_writer_ = std::make_unique<worker::CheckpointWriter>(*context_, *synchroniser_,
                                                                    worker::CheckpointId::kFinal);
    checkpoint_writer_->Begin("checkpoint", "model", 12, 0, TrainPosition());
  }
  template <typename Task>
  Task TakeTask() {
    EXPECT_EQ(effects_.tasks.size(), 1u);
    const Task task = std::get<Task>(effects_.tasks.at(0));
    effects_.Clear();
    return task;
  }
  std::unique_ptr<worker::CheckpointWriter> checkpoint_writer_;
};

TEST_F(CheckpointWriterTest, RankZeroWritesBetweenTwoBarriersAndCommits) {
  Begin("ALLREDUCE", 0);
  EXPECT_FALSE(checkpoint_writer_->Advance(now_, &effects_));
  ASSERT_EQ(Entries().at(0).action(), BarrierEnter::LAST_CHECKPOINT);
  EXPECT_TRUE(effects_.tasks.empty());
  Release("ready to checkpoint");
  EXPECT_FALSE(checkpoint_writer_->Advance(now_, &effects_));
  const auto write = TakeTask<worker::WriteDenseTask>();
  EXPECT_EQ(*write.directory, server::CheckpointFolder("model", 0, 12, 0));
  EXPECT_EQ(*write.bytes, dense_->EncodeFile());
  EXPECT_TRUE(Entries().empty()) << "servers write when the dense part is there";
  checkpoint_writer_->OnTaskDone(absl::OkStatus());
  EXPECT_FALSE(checkpoint_writer_->Advance(now_, &effects_));
  const BarrierEnter entry = Entries().at(0);
  EXPECT_EQ(entry.action(), BarrierEnter::CHECKPOINT);
  EXPECT_EQ(entry.path(), server::CheckpointFolder("model", 0, 12, 0));
  Release("checkpoint");
  EXPECT_FALSE(checkpoint_writer_->Advance(now_, &effects_));
  EXPECT_EQ(*TakeTask<worker::CommitCheckpointTask>().directory,
            server::CheckpointFolder("model", 0, 12, 0));
  EXPECT_TRUE(checkpoint_writer_->holds());
  checkpoint_writer_->OnTaskDone(absl::OkStatus());
  EXPECT_TRUE(checkpoint_writer_->Advance(now_, &effects_));
  EXPECT_FALSE(checkpoint_writer_->holds());
}

// It is told apart from the last checkpoint, which may be at the same step, and no checkpoint that
// was asked for is made beside it.
TEST_F(CheckpointWriterTest, TheBestModelHasAFolderOfItsOwn) {
  Make("kind: ASP", "ALLREDUCE", 0);
  checkpoint_writer_ = std::make_unique<worker::CheckpointWriter>(*context_, *synchroniser_,
                                                                  worker::CheckpointId::kBest);
  checkpoint_writer_->Begin("best", "model", 12, 0, TrainPosition());
  checkpoint_writer_->Advance(now_, &effects_);
  EXPECT_EQ(Entries().at(0).action(), BarrierEnter::PAUSE_CHECKPOINTS);
  Release("ready to best");
  checkpoint_writer_->Advance(now_, &effects_);
  EXPECT_EQ(*TakeTask<worker::WriteDenseTask>().directory,
            server::CheckpointFolder("model", 0, 12, 0) + ".best");
  checkpoint_writer_->OnTaskDone(absl::UnavailableError("disk full"));
  EXPECT_EQ(context_->failure.message(), "disk full") << "the job is for this";
}

TEST_F(CheckpointWriterTest, OthersOnlyMeet) {
  Begin("SERVERS", 1);
  Release("ready to checkpoint");
  checkpoint_writer_->Advance(now_, &effects_);
  Release("ready to checkpoint");
  checkpoint_writer_->Advance(now_, &effects_);
  Release("checkpoint");
  EXPECT_TRUE(checkpoint_writer_->Advance(now_, &effects_));
  EXPECT_TRUE(effects_.tasks.empty());
  EXPECT_TRUE(Sent(FrameKind::kPull).empty());
}

TEST_F(CheckpointWriterTest, ParametersOnServersAreReadBackWithTheirSlots) {
  Begin("SERVERS", 0);
  checkpoint_writer_->Advance(now_, &effects_);
  Release("ready to checkpoint");
  checkpoint_writer_->Advance(now_, &effects_);
  ASSERT_EQ(Sent(FrameKind::kPull).size(), 1u);
  EXPECT_EQ(Sent(FrameKind::kPull)[0].header.flags, kFlagEvaluate | kFlagWithSlots);
  EXPECT_TRUE(effects_.tasks.empty());
  AnswerAll();
  for (const client::ClientCore::Completion& c : TakeCompletions()) {
    EXPECT_TRUE(checkpoint_writer_->OnCompletion(c.request));
    EXPECT_FALSE(checkpoint_writer_->OnCompletion(c.request)) << "once";
  }
  checkpoint_writer_->Advance(now_, &effects_);
  TakeTask<worker::WriteDenseTask>();
}

TEST_F(CheckpointWriterTest, EveryRankGathersWhatAShardedOptimizerKeeps) {
  for (const int rank : {0, 1}) {
    Begin("ALLREDUCE sharded_optimizer: true", rank);
    checkpoint_writer_->Advance(now_, &effects_);
    Release("ready to checkpoint");
    checkpoint_writer_->Advance(now_, &effects_);
    EXPECT_EQ(TakeTask<worker::GatherDenseTask>().checkpoint, worker::CheckpointId::kFinal);
    checkpoint_writer_->Advance(now_, &effects_);
    EXPECT_TRUE(effects_.tasks.empty()) << "once";
    checkpoint_writer_->OnCollected();
    checkpoint_writer_->Advance(now_, &effects_);
    EXPECT_EQ(effects_.tasks.size(), rank == 0 ? 1u : 0u);
    effects_.Clear();
  }
}

class RequestedCheckpointTest : public CheckpointWriterTest {
 protected:
  void SetUp() override {
    Make("kind: ASP", "ALLREDUCE", 1);
    checkpoint_ = std::make_unique<worker::RequestedCheckpoint>(*context_, *synchroniser_);
  }
  void Command(uint64_t id, int64_t first_free) {
    tandem::Command command;
    command.set_kind(tandem::Command::CHECKPOINT);
    command.set_id(id);
    command.set_path("model");
    checkpoint_->OnCommand(command, first_free);
  }
  void Run(const worker::RequestedCheckpoint::TrainingState& state = {}) {
    while (checkpoint_->Advance(now_, state, &effects_)) {
    }
  }
  std::unique_ptr<worker::RequestedCheckpoint> checkpoint_;
};

TEST_F(RequestedCheckpointTest, NoStepBeginsThatOthersHaveNotAgreedTo) {
  context_->step = 5;
  EXPECT_GT(checkpoint_->HoldsFrom(), 5);
  Command(3, 6);
  Run();
  EXPECT_GT(checkpoint_->HoldsFrom(), 5) << "it has begun";
  EXPECT_LE(checkpoint_->HoldsFrom(), 6);
  Release("plan 3", 8);
  Run();
  EXPECT_GT(checkpoint_->HoldsFrom(), 7) << "somebody has come further";
  EXPECT_LE(checkpoint_->HoldsFrom(), 8);
  EXPECT_FALSE(checkpoint_->holds_pushes());
  context_->step = 8;
  Run();
  EXPECT_TRUE(checkpoint_->holds_pushes());
  Release("ready to checkpoint 3");
  Run();
  Release("checkpoint 3");
  Run();
  EXPECT_GT(checkpoint_->HoldsFrom(), 8);
  const std::vector<Control> answers = TakeControls();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].command_done().id(), 3u);
}

TEST_F(RequestedCheckpointTest, ACommandThatComesAgainIsAnsweredIfItIsDone) {
  Command(3, 0);
  Command(3, 0);
  Run();
  EXPECT_TRUE(TakeControls().empty()) << "not written yet";
  for (const char* barrier : {"plan 3", "ready to checkpoint 3", "checkpoint 3"}) {
    Release(barrier);
    Run();
  }
  EXPECT_EQ(TakeControls().size(), 1u);
  Command(3, 0);
  Run();
  EXPECT_EQ(TakeControls().size(), 1u);
  EXPECT_GT(checkpoint_->HoldsFrom(), 100) << "and not taken again";
}

// What cannot be written ends the checkpoint and nothing else: the second sync round hears of it,
// and so does whoever asked, each time.
TEST_F(RequestedCheckpointTest, AFailedCheckpointIsSaidAndTheWorkerGoesOn) {
  Make("kind: ASP", "ALLREDUCE", 0);
  checkpoint_ = std::make_unique<worker::RequestedCheckpoint>(*context_, *synchroniser_);
  Command(3, 0);
  Run();
  Release("plan 3");
  Run();
  Release("ready to checkpoint 3");
  Run();
  TakeTask<worker::WriteDenseTask>();
  checkpoint_->saving().OnTaskDone(absl::ResourceExhaustedError("disk full"));
  Entries();
  Run();
  const std::vector<BarrierEnter> entries = Entries();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_TRUE(entries[0].may_fail());
  EXPECT_EQ(entries[0].failure(), "disk full");
  BarrierRelease release;
  release.set_name("checkpoint 3");
  release.set_failure("worker 0: disk full");
  context_->barriers.OnRelease(release);
  Run();
  TakeTask<worker::AbandonCheckpointTask>();
  checkpoint_->saving().OnTaskDone(absl::OkStatus());
  Run();
  EXPECT_EQ(context_->failure, absl::OkStatus());
  EXPECT_GT(checkpoint_->HoldsFrom(), 100) << "training goes on";
  for (int again = 0; again < 2; ++again) {
    const std::vector<Control> answers = TakeControls();
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_NE(answers[0].command_done().code(), 0);
    EXPECT_EQ(answers[0].command_done().message(), "worker 0: disk full");
    Command(3, 0);
  }
}

// The last thing the worker does before it is told to stop.
TEST_F(RequestedCheckpointTest, AfterACheckpointThatEndsTheJobNoStepBegins) {
  tandem::Command command;
  command.set_kind(tandem::Command::CHECKPOINT);
  command.set_id(3);
  command.set_path("model");
  command.set_hold(true);
  checkpoint_->OnCommand(command, 4);
  context_->step = 4;
  Run();
  for (const char* barrier : {"plan 3", "ready to checkpoint 3", "checkpoint 3"}) {
    Release(barrier, 4);
    Run();
  }
  EXPECT_EQ(TakeControls().size(), 1u);
  EXPECT_EQ(checkpoint_->HoldsFrom(), 4);
  EXPECT_TRUE(checkpoint_->holds_pushes());
}

TEST_F(RequestedCheckpointTest, WaitsForPushesAndForTheLastSynchronisation) {
  Command(1, 0);
  Run();
  Release("plan 1");
  context_->PushEmptyToAll(now_, 0, 0, 0);
  Run();
  EXPECT_FALSE(checkpoint_->holds_pushes());
  AcknowledgePushes();
  worker::RequestedCheckpoint::TrainingState busy;
  busy.synchronising = true;
  Run(busy);
  EXPECT_FALSE(checkpoint_->holds_pushes());
  Run();
  EXPECT_TRUE(checkpoint_->holds_pushes());
}

TEST_F(RequestedCheckpointTest, AWorkerAtTheEndOfItsDataNeedNotReachTheStep) {
  Command(1, 0);
  Run();
  Release("plan 1", 50);
  Run();
  EXPECT_FALSE(checkpoint_->holds_pushes());
  worker::RequestedCheckpoint::TrainingState state;
  state.out_of_steps = true;
  Run(state);
  EXPECT_TRUE(checkpoint_->holds_pushes());
}

}  // namespace
}  // namespace tandem
