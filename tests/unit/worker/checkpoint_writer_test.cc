#include "worker/checkpoint_writer.h"

#include "absl/strings/str_cat.h"
#include "base/no_room.h"
#include "tests/unit/worker/trainer_fixture.h"

namespace tandem {
namespace {

class CheckpointWriterTest : public TrainerMachineTest {
 protected:
  void Begin(const std::string& synchroniser, int rank, const std::string& more = "") {
    Make("kind: ASP", synchroniser, rank, more);
    checkpoint_writer_ = std::make_unique<worker::CheckpointWriter>(*context_, *synchroniser_,
                                                                    worker::CheckpointId::kFinal);
    checkpoint_writer_->Begin("checkpoint", "model", 12, TrainPosition());
  }
  // The scheduler releases the mark and names the folder.
  void ReleaseMark(const std::string& name, int64_t max_value = 0) {
    BarrierRelease release;
    release.set_name("mark " + name);
    release.set_max_value(max_value);
    release.set_path("model/folder");
    context_->barriers.OnRelease(release);
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
  const BarrierEnter mark = Entries().at(0);
  ASSERT_EQ(mark.action(), BarrierEnter::LAST_CHECKPOINT);
  EXPECT_EQ(mark.path(), "model");
  EXPECT_EQ(mark.value(), 12);
  EXPECT_TRUE(effects_.tasks.empty());
  EXPECT_TRUE(checkpoint_writer_->reports_position());
  ReleaseMark("checkpoint", 12);
  EXPECT_FALSE(checkpoint_writer_->Advance(now_, &effects_));
  EXPECT_FALSE(checkpoint_writer_->reports_position());
  const auto write = TakeTask<worker::WriteDenseTask>();
  EXPECT_EQ(*write.directory, "model/folder");
  EXPECT_EQ(*write.bytes, dense_->EncodeFile());
  dense_->values()[0] += 1;
  EXPECT_NE(*write.bytes, dense_->EncodeFile()) << "a copy";
  EXPECT_TRUE(Entries().empty()) << "the dense part is not on the disk";
  checkpoint_writer_->OnTaskDone(absl::OkStatus());
  EXPECT_FALSE(checkpoint_writer_->Advance(now_, &effects_));
  const BarrierEnter entry = Entries().at(0);
  EXPECT_EQ(entry.action(), BarrierEnter::CHECKPOINT);
  EXPECT_EQ(entry.path(), "model/folder");
  Release("checkpoint");
  EXPECT_FALSE(checkpoint_writer_->Advance(now_, &effects_));
  EXPECT_EQ(*TakeTask<worker::CommitCheckpointTask>().directory, "model/folder");
  EXPECT_TRUE(checkpoint_writer_->holds()) << "nothing follows";
  checkpoint_writer_->OnTaskDone(absl::OkStatus());
  EXPECT_FALSE(checkpoint_writer_->Advance(now_, &effects_));
  const BarrierEnter committed = Entries().at(0);
  EXPECT_EQ(committed.name(), "commit checkpoint");
  EXPECT_EQ(committed.action(), BarrierEnter::COMMITTED);
  EXPECT_EQ(committed.failure(), "");
  Release("commit checkpoint");
  EXPECT_TRUE(checkpoint_writer_->Advance(now_, &effects_));
  EXPECT_FALSE(checkpoint_writer_->holds());
}

// The parts of a failed try are removed before the next mark. Nothing is gathered or copied again.
TEST_F(CheckpointWriterTest, AFullDiskIsTriedAgainFromAnotherMarkOn) {
  Begin("ALLREDUCE sharded_optimizer: true", 0);
  checkpoint_writer_->Advance(now_, &effects_);
  ReleaseMark("checkpoint", 12);
  checkpoint_writer_->Advance(now_, &effects_);
  TakeTask<worker::GatherDenseTask>();
  checkpoint_writer_->OnCollected();
  checkpoint_writer_->Advance(now_, &effects_);
  const std::string bytes = *TakeTask<worker::WriteDenseTask>().bytes;
  checkpoint_writer_->OnTaskDone(NoRoomError("dense.part: No space left on device"));
  EXPECT_EQ(context_->failure, absl::OkStatus());
  Entries();
  checkpoint_writer_->Advance(now_, &effects_);
  const BarrierEnter files = Entries().at(0);
  EXPECT_EQ(files.failure(), "dense.part: No space left on device");
  EXPECT_TRUE(files.no_room());
  EXPECT_FALSE(files.may_fail());

  BarrierRelease again;
  again.set_name("checkpoint");
  again.set_failure("worker 0: dense.part: No space left on device");
  again.set_again(true);
  context_->barriers.OnRelease(again);
  checkpoint_writer_->Advance(now_, &effects_);
  const auto abandon = TakeTask<worker::AbandonCheckpointTask>();
  EXPECT_TRUE(abandon.makes_room);
  EXPECT_TRUE(Entries().empty()) << "the old parts are there";
  *abandon.free_bytes = 17;
  checkpoint_writer_->OnTaskDone(absl::OkStatus());
  checkpoint_writer_->Advance(now_, &effects_);
  const BarrierEnter mark = Entries().at(0);
  EXPECT_EQ(mark.name(), "mark checkpoint, try 2");
  EXPECT_EQ(mark.action(), BarrierEnter::LAST_CHECKPOINT);
  EXPECT_EQ(mark.part_bytes(), static_cast<int64_t>(bytes.size()));
  EXPECT_EQ(mark.free_bytes(), 17);
  EXPECT_TRUE(checkpoint_writer_->writes()) << "to wait for room is progress";
  EXPECT_TRUE(checkpoint_writer_->holds());

  ReleaseMark("checkpoint, try 2", 12);
  checkpoint_writer_->Advance(now_, &effects_);
  EXPECT_EQ(*TakeTask<worker::WriteDenseTask>().bytes, bytes);
  checkpoint_writer_->OnTaskDone(absl::OkStatus());
  checkpoint_writer_->Advance(now_, &effects_);
  Release("checkpoint, try 2");
  checkpoint_writer_->Advance(now_, &effects_);
  TakeTask<worker::CommitCheckpointTask>();
  checkpoint_writer_->OnTaskDone(NoRoomError("MANIFEST: Disk quota exceeded"));
  Entries();
  checkpoint_writer_->Advance(now_, &effects_);
  const BarrierEnter committed = Entries().at(0);
  EXPECT_EQ(committed.name(), "commit checkpoint, try 2");
  EXPECT_TRUE(committed.no_room());
  again.set_name("commit checkpoint, try 2");
  context_->barriers.OnRelease(again);
  checkpoint_writer_->Advance(now_, &effects_);
  EXPECT_TRUE(effects_.tasks.empty()) << "a commit that fails removes the folder";
  EXPECT_EQ(Entries().at(0).name(), "mark checkpoint, try 3");
  EXPECT_EQ(context_->failure, absl::OkStatus());
}

// Only a full disk is tried again.
TEST_F(CheckpointWriterTest, AnyOtherErrorOfTheLastCheckpointEndsTheJob) {
  Begin("ALLREDUCE", 0);
  checkpoint_writer_->Advance(now_, &effects_);
  ReleaseMark("checkpoint", 12);
  checkpoint_writer_->Advance(now_, &effects_);
  TakeTask<worker::WriteDenseTask>();
  checkpoint_writer_->OnTaskDone(absl::ResourceExhaustedError("File too large"));
  EXPECT_EQ(context_->failure.message(), "File too large");
}

// No checkpoint that was asked for is made beside it.
TEST_F(CheckpointWriterTest, TheBestModelPausesOthersAndMustBeWritten) {
  Make("kind: ASP", "ALLREDUCE", 0);
  checkpoint_writer_ = std::make_unique<worker::CheckpointWriter>(*context_, *synchroniser_,
                                                                  worker::CheckpointId::kBest);
  checkpoint_writer_->Begin("best", "model", 12, TrainPosition());
  checkpoint_writer_->Advance(now_, &effects_);
  EXPECT_EQ(Entries().at(0).action(), BarrierEnter::PAUSE_CHECKPOINTS);
  ReleaseMark("best");
  checkpoint_writer_->Advance(now_, &effects_);
  TakeTask<worker::WriteDenseTask>();
  checkpoint_writer_->OnTaskDone(absl::UnavailableError("disk full"));
  EXPECT_EQ(context_->failure.message(), "disk full") << "the job is for this";
}

// Servers write what they have, so the workers have nothing to do between the barriers.
TEST_F(CheckpointWriterTest, WithoutAStateOfItsOwnAWorkerOnlyEntersBarriers) {
  for (const int rank : {0, 1}) {
    Begin("SERVERS", rank);
    checkpoint_writer_->Advance(now_, &effects_);
    ReleaseMark("checkpoint");
    checkpoint_writer_->Advance(now_, &effects_);
    EXPECT_TRUE(effects_.tasks.empty());
    EXPECT_TRUE(Sent(FrameKind::kPull).empty());
    Release("checkpoint");
    EXPECT_FALSE(checkpoint_writer_->Advance(now_, &effects_));
    EXPECT_EQ(effects_.tasks.size(), rank == 0 ? 1u : 0u) << "rank 0 commits";
    if (rank == 0) checkpoint_writer_->OnTaskDone(absl::OkStatus());
    checkpoint_writer_->Advance(now_, &effects_);
    Release("commit checkpoint");
    EXPECT_TRUE(checkpoint_writer_->Advance(now_, &effects_));
    effects_.Clear();
  }
}

TEST_F(CheckpointWriterTest, EveryRankGathersWhatAShardedOptimizerKeeps) {
  for (const int rank : {0, 1}) {
    Begin("ALLREDUCE sharded_optimizer: true", rank);
    checkpoint_writer_->Advance(now_, &effects_);
    ReleaseMark("checkpoint");
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
  // All agree, mark and write.
  void Write(uint64_t id, int64_t step = 0) {
    Release(absl::StrCat("plan ", id), step);
    Run();
    ReleaseMark(absl::StrCat("checkpoint ", id), step);
    Run();
    Release(absl::StrCat("checkpoint ", id), step);
    Run();
  }
  std::unique_ptr<worker::RequestedCheckpoint> checkpoint_;
};

// Workers that take steps together agree on one.
TEST_F(RequestedCheckpointTest, NoStepBeginsThatOthersHaveNotAgreedTo) {
  context_->order.StandAt(5);
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
  context_->order.StandAt(8);
  Run();
  EXPECT_TRUE(checkpoint_->holds_pushes());
  ReleaseMark("checkpoint 3", 8);
  Run();
  EXPECT_GT(checkpoint_->HoldsFrom(), 8) << "training does not wait for the files";
  EXPECT_FALSE(checkpoint_->holds_pushes());
  EXPECT_TRUE(TakeControls().empty()) << "not written yet";
  Release("checkpoint 3");
  Run();
  const std::vector<Control> answers = TakeControls();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].command_done().id(), 3u);
}

// Other workers mark at once, each at its own step: nothing of this step leaves the worker before
// the release, even if it is computed already.
TEST_F(RequestedCheckpointTest, AWorkerMarksAtTheStepThatItHasNotPushed) {
  Make("kind: ASP", "SERVERS", 1);
  checkpoint_ = std::make_unique<worker::RequestedCheckpoint>(*context_, *synchroniser_);
  context_->order.StandAt(5);
  context_->PushEmptyToAll(now_, 4, 4, 0);
  Command(3, 6);  // step 5 has begun
  Run();
  EXPECT_EQ(checkpoint_->HoldsFrom(), 5);
  EXPECT_TRUE(checkpoint_->holds_pushes());
  EXPECT_TRUE(Entries().empty()) << "earlier pushes come first";
  AcknowledgePushes();
  Run();
  const std::vector<BarrierEnter> entries = Entries();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].name(), "mark checkpoint 3");
  EXPECT_EQ(entries[0].action(), BarrierEnter::MARK);
  EXPECT_EQ(entries[0].value(), 5);
  ReleaseMark("checkpoint 3", 700);
  Run();
  EXPECT_GT(checkpoint_->HoldsFrom(), 5);
  EXPECT_FALSE(checkpoint_->holds_pushes());
}

// The worker replaces a dead process, which has pushed step 6 to some ranges only.
TEST_F(RequestedCheckpointTest, AWorkerMarksWhenAllRangesHaveTheSameSteps) {
  Make("kind: ASP", "SERVERS", 1);
  checkpoint_ = std::make_unique<worker::RequestedCheckpoint>(*context_, *synchroniser_);
  checkpoint_->SetFirstCut(7);
  context_->order.StandAt(5);
  Command(3, 6);
  Run();
  EXPECT_EQ(checkpoint_->HoldsFrom(), 7);
  EXPECT_FALSE(checkpoint_->holds_pushes())
      << "the end of an epoch may be the step that is missing";
  EXPECT_TRUE(Entries().empty());
  context_->order.StandAt(7);
  Run();
  EXPECT_TRUE(checkpoint_->holds_pushes());
  ASSERT_EQ(Entries().size(), 1u);
}

// The updates of one step that a policy collects must all be there.
TEST_F(RequestedCheckpointTest, StepsThatAPolicyCollectsAreCutAtOneStep) {
  Make("kind: BACKUP_WORKERS backups: 1", "SERVERS", 1);
  checkpoint_ = std::make_unique<worker::RequestedCheckpoint>(*context_, *synchroniser_);
  Command(3, 6);
  Run();
  EXPECT_EQ(Entries().at(0).name(), "plan 3");
}

TEST_F(RequestedCheckpointTest, ACommandThatComesAgainIsAnsweredIfItIsDone) {
  Command(3, 0);
  Command(3, 0);
  Run();
  EXPECT_TRUE(TakeControls().empty()) << "not written yet";
  Write(3);
  EXPECT_EQ(TakeControls().size(), 1u);
  Command(3, 0);
  Run();
  EXPECT_EQ(TakeControls().size(), 1u);
  EXPECT_GT(checkpoint_->HoldsFrom(), 100) << "and not taken again";
}

// A write error ends the checkpoint and nothing else. The worker reports the error at the second
// barrier, and in each answer to the command.
TEST_F(RequestedCheckpointTest, AFailedCheckpointIsSaidAndTheWorkerGoesOn) {
  Make("kind: ASP", "ALLREDUCE", 0);
  checkpoint_ = std::make_unique<worker::RequestedCheckpoint>(*context_, *synchroniser_);
  Command(3, 0);
  Run();
  Release("plan 3");
  Run();
  ReleaseMark("checkpoint 3");
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
  context_->order.StandAt(4);
  Run();
  Write(3, 4);
  EXPECT_TRUE(TakeControls().empty()) << "rank 0 has not committed";
  Release("commit checkpoint 3");
  Run();
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

// This needs a job whose workers agree on a step but may run out of data before it: a quorum, or a
// policy that collects steps.
TEST_F(RequestedCheckpointTest, AWorkerAtTheEndOfItsDataNeedNotReachTheStep) {
  Make("kind: BACKUP_WORKERS backups: 1", "SERVERS", 1);
  checkpoint_ = std::make_unique<worker::RequestedCheckpoint>(*context_, *synchroniser_);
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
