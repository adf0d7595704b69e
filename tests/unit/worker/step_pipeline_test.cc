#include "worker/step_pipeline.h"

#include "tests/unit/worker/trainer_fixture.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

class StepPipelineTest : public TrainerMachineTest {
 protected:
  void Begin(const std::string& policy, const std::string& synchroniser,
             const std::string& train = "batch_size: 4") {
    Make(policy, synchroniser, 0, absl::StrCat("train { ", train, " }"));
    pipeline_ = std::make_unique<worker::StepPipeline>(*context_, *synchroniser_, *dense_,
                                                       absl::Milliseconds(20));
    pipeline_->Begin();
    Run();
  }
  void Run(int64_t hold_from = policies::kUnbounded) {
    while (!pipeline_->over() && pipeline_->Advance(now_, hold_from, &effects_)) {
    }
  }
  // The first task of this type, taken out of the effects.
  template <typename Task>
  Task Take() {
    for (auto it = effects_.tasks.begin(); it != effects_.tasks.end(); ++it) {
      if (!std::holds_alternative<Task>(*it)) continue;
      const Task task = std::get<Task>(*it);
      effects_.tasks.erase(it);
      return task;
    }
    ADD_FAILURE() << "no such task";
    return Task();
  }
  template <typename Task>
  size_t Count() const {
    size_t count = 0;
    for (const worker::TrainerTask& task : effects_.tasks)
      count += std::holds_alternative<Task>(task);
    return count;
  }
  // The next batch has this many samples and the keys 1, 2, 3 of table "a".
  void Fetch(int64_t samples) {
    const auto task = Take<worker::FetchTask>();
    task.slot->batch.Clear();
    task.slot->batch.samples = samples;
    task.slot->batch.sparse.clear();
    if (samples > 0) task.slot->batch.sparse.push_back({});
    if (samples > 0) task.slot->batch.sparse[0].keys = {1, 2, 3};
    pipeline_->OnTaskDone(task);
    Run();
  }
  void AnswerReads(uint64_t closed_samples = 1) {
    AnswerAll(closed_samples);
    for (const client::ClientCore::Completion& c : TakeCompletions()) {
      if (context_->pushes.OnDone(now_, c.request, &effects_)) continue;
      EXPECT_TRUE(pipeline_->OnCompletion(now_, c, &effects_));
    }
    Run();
  }
  // The step is computed, with ones for gradients.
  void Compute() {
    const auto task = Take<worker::ComputeTask>();
    for (const auto& gradients : task.slot->gradients) {
      for (float* const gradient : gradients) std::fill_n(gradient, 2, 1.0f);
    }
    task.slot->loss_sum = 2;
    pipeline_->OnTaskDone(task);
    Run();
  }
  void Synchronise(double samples_of_all) {
    const auto task = Take<worker::SynchroniseTask>();
    task.slot->samples_of_all = samples_of_all;
    pipeline_->OnTaskDone(task);
    Run();
  }

  std::unique_ptr<worker::StepPipeline> pipeline_;
};

TEST_F(StepPipelineTest, AStepIsReadComputedPushedAndSynchronised) {
  Begin("kind: BSP", "ALLREDUCE");
  EXPECT_THAT(pipeline_->Doing({}).text, HasSubstr("reading data of step 0"));
  Fetch(4);
  EXPECT_EQ(Count<worker::ComputeTask>(), 0u) << "rows come first";
  AnswerReads();
  EXPECT_TRUE(context_->order.step_begun());
  EXPECT_EQ(pipeline_->Doing({}).text, "computing step 0");
  Compute();
  EXPECT_EQ(Sent(FrameKind::kPush).size(), 2u);
  EXPECT_EQ(Sent(FrameKind::kPush)[0].header.samples, 4u);
  EXPECT_EQ(context_->order.pushed(), 1);
  EXPECT_EQ(context_->step(), 0);
  EXPECT_TRUE(context_->order.synchronising());
  EXPECT_THAT(pipeline_->Doing({"worker 1", {}}).text, HasSubstr("allreduce of step 0: worker 1"));
  Synchronise(8);
  EXPECT_EQ(context_->step(), 1);
  ASSERT_EQ(effects_.steps.size(), 1u);
  EXPECT_EQ(effects_.steps[0].samples, 4);
  EXPECT_EQ(effects_.steps[0].in_flight, 1);
}

TEST_F(StepPipelineTest, ReadsGoAheadByTheDepthAndNoFurther) {
  Begin("kind: ASP", "SERVERS", "batch_size: 4 prefetch_steps: 2");
  for (int step = 0; step < 4; ++step) {
    if (Count<worker::FetchTask>() > 0) Fetch(4);
  }
  std::set<int64_t> steps;
  for (const ParsedFrame& read : Sent(FrameKind::kPull)) steps.insert(read.header.step);
  EXPECT_EQ(steps, (std::set<int64_t>{0, 1, 2}));
  EXPECT_EQ(Count<worker::FetchTask>(), 0u) << "and one batch more than that is ready";
}

// The worker replaces a dead process. The servers have the steps below 7.
TEST_F(StepPipelineTest, BatchesOfStepsThatTheServersHaveAreReadAndDropped) {
  Make("kind: ASP", "SERVERS", 0, "train { batch_size: 4 prefetch_steps: 1 }");
  pipeline_ = std::make_unique<worker::StepPipeline>(*context_, *synchroniser_, *dense_,
                                                     absl::Milliseconds(20));
  context_->map = map_;
  context_->order.StandAt(5);
  TrainPosition start;
  start.set_step(5);
  start.set_rows(20);
  pipeline_->Resume(start, /*first_trained=*/7);
  Run();
  Fetch(4);
  Fetch(4);
  EXPECT_EQ(context_->step(), 7);
  EXPECT_EQ(context_->order.pushed(), 7);
  EXPECT_EQ(context_->epoch_rows, 28);
  EXPECT_TRUE(context_->client.out().empty()) << "nothing is read or pushed";
  Fetch(4);
  ASSERT_FALSE(Sent(FrameKind::kPull).empty());
  for (const ParsedFrame& read : Sent(FrameKind::kPull)) EXPECT_EQ(read.header.step, 7);
  AnswerReads();
  Compute();
  for (const ParsedFrame& push : Sent(FrameKind::kPush)) EXPECT_EQ(push.header.step, 7);
  const Progress report =
      context_->report.Take(now_, plan_, context_->client, 0, context_->step(), false);
  EXPECT_EQ(report.samples(), 12);
  EXPECT_EQ(report.trained_steps(), 3);
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    const uint64_t sent = context_->client.updates_sent()[t];  // of step 7
    EXPECT_GT(sent, 0u);
    EXPECT_EQ(report.updates(static_cast<int>(t)), 3 * sent);
  }
}

// The dead process has told some servers that its data have run out.
TEST_F(StepPipelineTest, TheEpochMayEndBeforeAStepIsTrained) {
  Make("kind: ASP", "SERVERS");
  pipeline_ = std::make_unique<worker::StepPipeline>(*context_, *synchroniser_, *dense_,
                                                     absl::Milliseconds(20));
  context_->map = map_;
  context_->order.StandAt(5);
  TrainPosition start;
  start.set_step(5);
  pipeline_->Resume(start, /*first_trained=*/7);
  Run();
  Fetch(4);
  EXPECT_FALSE(pipeline_->over());
  Fetch(0);
  EXPECT_TRUE(pipeline_->over());
  EXPECT_EQ(context_->step(), 6);
}

// A checkpoint needs the place behind the rows that were trained on, and the reader is ahead.
TEST_F(StepPipelineTest, ThePlaceInTheFilesIsThatOfTheTrainedRows) {
  Begin("kind: ASP", "SERVERS", "batch_size: 4 prefetch_steps: 2");
  const auto fetch_at = [&](int64_t rows) {
    const auto task = Take<worker::FetchTask>();
    task.slot->place.reset();
    if (rows > 0) task.slot->place.emplace().set_rows(rows);
    effects_.tasks.push_back(task);
    Fetch(4);
  };
  fetch_at(4);
  fetch_at(8);
  fetch_at(0);  // its reader does not know
  EXPECT_FALSE(context_->place.has_value());
  for (const int64_t rows : {4, 8, 8}) {
    AnswerReads();
    Compute();
    ASSERT_TRUE(context_->place.has_value());
    EXPECT_EQ(context_->place->rows(), rows);
    if (Count<worker::FetchTask>() > 0) fetch_at(100);
  }
  EXPECT_EQ(context_->epoch_rows, 12);
  TrainPosition start;
  start.set_rows(12);
  pipeline_->Resume(start);
  EXPECT_FALSE(context_->place.has_value());
  start.mutable_place()->set_rows(8);
  pipeline_->Resume(start);
  EXPECT_EQ(context_->place.value_or(ReadPlace()).rows(), 8);
  pipeline_->Begin();
  EXPECT_FALSE(context_->place.has_value()) << "another epoch";
}

TEST_F(StepPipelineTest, DenseParametersOnServersAreReadAndPushedWithTheStep) {
  Begin("kind: ASP", "SERVERS");
  Fetch(4);
  AnswerReads();
  const auto compute = Take<worker::ComputeTask>();
  EXPECT_EQ(compute.slot->dense.size(), dense_->padded().size());
  compute.slot->dense_gradient[0] = 7;
  effects_.tasks.push_back(compute);
  Compute();
  EXPECT_EQ(Count<worker::SynchroniseTask>(), 0u);
  float largest = 0;
  for (const ParsedFrame& push : Sent(FrameKind::kPush)) {
    for (const float x : push.values().As<float>()) largest = std::max(largest, x);
  }
  EXPECT_EQ(largest, 7);
  EXPECT_EQ(context_->step(), 1) << "nobody is waited for";
}

TEST_F(StepPipelineTest, NoStepBeginsWhileItIsHeld) {
  Begin("kind: ASP", "SERVERS");
  Fetch(4);
  AnswerAll();
  for (const client::ClientCore::Completion& c : TakeCompletions()) {
    pipeline_->OnCompletion(now_, c, &effects_);
  }
  Run(/*hold_from=*/0);
  EXPECT_EQ(Count<worker::ComputeTask>(), 0u);
  Run();
  EXPECT_EQ(Count<worker::ComputeTask>(), 1u);
}

// A checkpoint without this step is marked while the step is computed: nothing of the step leaves
// the worker, or counts, before the mark is over.
TEST_F(StepPipelineTest, AStepThatIsComputedWhileItIsHeldIsPushedLater) {
  Begin("kind: ASP", "SERVERS");
  Fetch(4);
  AnswerReads();
  const auto task = Take<worker::ComputeTask>();
  for (const auto& gradients : task.slot->gradients) {
    for (float* const gradient : gradients) std::fill_n(gradient, 2, 1.0f);
  }
  pipeline_->OnTaskDone(task);
  Run(/*hold_from=*/0);
  EXPECT_TRUE(Sent(FrameKind::kPush).empty());
  EXPECT_EQ(context_->order.pushed(), 0);
  EXPECT_EQ(context_->epoch_rows, 0);
  EXPECT_TRUE(effects_.steps.empty());
  Run();
  EXPECT_FALSE(Sent(FrameKind::kPush).empty());
  EXPECT_EQ(context_->step(), 1);
  EXPECT_EQ(context_->epoch_rows, 4);
}

TEST_F(StepPipelineTest, AWorkerThatIsLateGoesOnAtTheOpenStepButNotBeyondACheckpoint) {
  Begin("kind: BACKUP_WORKERS backups: 1", "SERVERS");
  Fetch(4);
  context_->order.OnOpenStep(5);
  Run(/*hold_from=*/3);
  EXPECT_EQ(context_->step(), 0) << "a batch is being fetched for a step";
  const auto fetch = Take<worker::FetchTask>();
  fetch.slot->batch.samples = 4;
  pipeline_->OnTaskDone(fetch);
  Run(/*hold_from=*/3);
  EXPECT_EQ(context_->step(), 3);
  EXPECT_EQ(context_->order.pushed(), 3);
  for (const ParsedFrame& push : Sent(FrameKind::kPush)) {
    EXPECT_EQ(push.header.first_step, 0);
    EXPECT_EQ(push.header.step, 2);
    EXPECT_EQ(push.header.samples, 0u);
  }
  EXPECT_EQ(fetch.slot->step, 4) << "what was fetched for step 1 is for the second one from here";
  EXPECT_EQ(Count<worker::ComputeTask>(), 0u);
}

// Others may wait in a sum for the steps that it leaves out, and before a checkpoint it stands
// still.
TEST_F(StepPipelineTest, SumsAreToldOfStepsThatAreLeftOut) {
  Begin("kind: BACKUP_WORKERS backups: 1", "ALLREDUCE quorum: MAJORITY");
  Fetch(4);
  Fetch(4);
  context_->order.OnOpenStep(5);
  Run(/*hold_from=*/3);
  EXPECT_EQ(context_->step(), 3);
  EXPECT_TRUE(context_->order.synchronising())
      << "a checkpoint waits for that as for the sum of a step";
  EXPECT_EQ(pipeline_->Doing({}).text, "allreduce of step 2");
  const auto task = Take<worker::SynchroniseTask>();
  EXPECT_EQ(task.slot->step, 2);
  EXPECT_TRUE(task.slot->dense_gradient.empty());
  Run(/*hold_from=*/7);
  EXPECT_EQ(context_->step(), 3) << "one after the other";
  pipeline_->OnTaskDone(task);
  Run(/*hold_from=*/3);
  EXPECT_FALSE(context_->order.synchronising());
  EXPECT_EQ(context_->step(), 3);
  Run(/*hold_from=*/7);
  EXPECT_EQ(context_->step(), 5);
  Synchronise(0);
  AnswerReads();
  EXPECT_EQ(Take<worker::ComputeTask>().slot->step, 5);
}

TEST_F(StepPipelineTest, UnacknowledgedStepsAreBounded) {
  Begin("kind: ASP", "SERVERS", "batch_size: 4 max_inflight_pushes: 1");
  Fetch(4);
  AnswerReads();
  Compute();
  Fetch(4);
  // The read of step 1 is answered, the push of step 0 is not.
  std::vector<Outgoing> pushes;
  for (auto it = context_->client.out().begin(); it != context_->client.out().end();) {
    if (Decoded(it->frame).header.kind != FrameKind::kPush) {
      ++it;
      continue;
    }
    pushes.push_back(*it);
    it = context_->client.out().erase(it);
  }
  AnswerReads();
  EXPECT_EQ(Count<worker::ComputeTask>(), 0u);
  context_->client.out() = pushes;
  AnswerReads();
  EXPECT_EQ(Count<worker::ComputeTask>(), 1u);
}

TEST_F(StepPipelineTest, WithoutLockstepTheEpochEndsWithTheData) {
  Begin("kind: ASP", "SERVERS");
  Fetch(0);
  EXPECT_TRUE(pipeline_->over());
  EXPECT_TRUE(Sent(FrameKind::kPull).empty());
}

// The worker ran out of samples before the run resumed. With a larger train.max_steps it has some.
TEST_F(StepPipelineTest, AWorkerWithSamplesHasNotEnded) {
  Begin("kind: ASP", "SERVERS");
  context_->ended_at = 3;
  Fetch(4);
  EXPECT_EQ(context_->ended_at, 0);
}

TEST_F(StepPipelineTest, AWorkerWithoutSamplesRemembersItsEnd) {
  Begin("kind: ASP", "SERVERS");
  context_->ended_at = 3;
  Fetch(0);
  EXPECT_EQ(context_->ended_at, 3);
}

// A worker without data goes on with n = 0 until nobody has samples: as the reduction says ...
TEST_F(StepPipelineTest, AnEmptyStepOfAllEndsALockstepEpochOfReplicas) {
  Begin("kind: BSP", "ALLREDUCE");
  Fetch(0);
  AnswerReads();
  EXPECT_EQ(Count<worker::ComputeTask>(), 0u);
  Synchronise(4);  // somebody else has data
  EXPECT_FALSE(pipeline_->over());
  AnswerReads();
  Synchronise(0);
  EXPECT_TRUE(pipeline_->over());
  EXPECT_EQ(context_->step(), 2);
}

// ... or as the servers say in answer to the reads of the next step.
TEST_F(StepPipelineTest, AnEmptyStepOfAllEndsALockstepEpochOnServers) {
  Begin("kind: BSP", "SERVERS");
  Fetch(0);
  AnswerReads(/*closed_samples=*/0);
  EXPECT_FALSE(pipeline_->over()) << "no step of this epoch has closed before its first one";
  EXPECT_EQ(context_->step(), 1);
  AnswerReads(/*closed_samples=*/3);
  EXPECT_FALSE(pipeline_->over());
  AnswerReads(/*closed_samples=*/0);
  EXPECT_TRUE(pipeline_->over());
}

TEST_F(StepPipelineTest, ALossThatIsNotFiniteFailsTheJob) {
  Begin("kind: ASP", "SERVERS");
  Fetch(4);
  AnswerReads();
  const auto task = Take<worker::ComputeTask>();
  task.slot->loss_sum = std::numeric_limits<double>::infinity();
  pipeline_->OnTaskDone(task);
  Run();
  EXPECT_THAT(context_->failure.ToString(), HasSubstr("the loss is inf at step 0"));
}

}  // namespace
}  // namespace tandem
