// A program in the place of readers and model: driven by the compiled model over the same rows, an
// attached worker leaves the bits of tandem-worker. And what a program does wrong ends the job by
// name.
#include "worker/attached_worker.h"

#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/model_bits.h"
#include "tests/integration/plain_loop.h"
#include "tests/integration/program_cluster.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

// Two epochs in which workers run out of data at different steps, the last batch a short one.
constexpr int64_t kRows = 3 * 10 * 24 + 1;

class AttachedTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { job_ = std::make_unique<SmallJob>(kRows, 100); }
  static void TearDownTestSuite() { job_.reset(); }

  std::string Out() {
    return job_->File(absl::StrCat(::testing::UnitTest::GetInstance()->current_test_info()->name(),
                                   "-", runs_++));
  }

  // The model that programs leave; empty after a failure, which is reported.
  ModelBits Train(const job::ResolvedJob& compiled, const job::ResolvedJob& plan,
                  const std::string& out, float rate = 0,
                  absl::Duration pause = absl::ZeroDuration()) {
    ProgramCluster cluster(plan, out);
    const absl::Status ended = cluster.Run([&](worker::AttachedWorker& worker) {
      const absl::Status trained = TrainCompiled(compiled, worker, rate, pause);
      EXPECT_TRUE(trained.ok()) << trained;
      worker.Fail(trained);
    });
    EXPECT_TRUE(ended.ok()) << ended;
    if (!ended.ok()) return {};
    const absl::StatusOr<ModelBits> model = ReadCheckpoint(out + "/model");
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *model : ModelBits();
  }

  static std::unique_ptr<SmallJob> job_;
  int runs_ = 0;
};
std::unique_ptr<SmallJob> AttachedTest::job_;

TEST_F(AttachedTest, LeavesTheBitsOfThePlainLoop) {
  for (const char* const optimizer : {"ADAM", "ADAGRAD"}) {
    for (const int workers : {1, 2, 3}) {
      const Settings set = {
          "train.epochs=2", absl::StrCat("cluster.workers=", workers),
          absl::StrCat("table[0].optimizer={kind: ", optimizer, " learning_rate: 0.02}"),
          absl::StrCat("dense.optimizer={kind: ", optimizer, " learning_rate: 0.01}")};
      const absl::StatusOr<PlainLoopResult> plain = RunPlainLoop(job_->Plan(set), {});
      ASSERT_TRUE(plain.ok()) << plain.status();
      EXPECT_EQ(plain->uneven_steps > 0, workers > 1);
      // Where the dense part is; of the last two, where the tables are: on workers, with no server.
      for (const std::string synchroniser : {"ALLREDUCE", "SERVERS", "SHARDED", "REPLICATED"}) {
        for (const int depth : {0, 1}) {
          Settings all = set;
          all.push_back(absl::StrCat("train.prefetch_steps=", depth));
          if (synchroniser == "ALLREDUCE" || synchroniser == "SERVERS") {
            all.push_back(absl::StrCat("dense.synchroniser=", synchroniser));
          } else {
            all.push_back("cluster.servers=0");
            all.push_back("table[0].placement=" + synchroniser);
            all.push_back("table[1].placement=" + synchroniser);
          }
          SCOPED_TRACE(
              absl::StrCat(optimizer, " ", workers, " workers ", synchroniser, " depth ", depth));
          const job::ResolvedJob compiled = job_->Plan(all);
          EXPECT_EQ(Difference(plain->model, Train(compiled, ProgramPlan(compiled), Out())), "");
        }
      }
    }
  }
}

// Rows come sooner than the program gives batches and gradients, so that batches are asked for
// while it computes.
TEST_F(AttachedTest, ASlowProgramLeavesTheSameBits) {
  const Settings set = {"train.epochs=2", "cluster.workers=2"};
  const absl::StatusOr<PlainLoopResult> plain = RunPlainLoop(job_->Plan(set), {});
  ASSERT_TRUE(plain.ok()) << plain.status();
  for (const char* const synchroniser : {"ALLREDUCE", "SERVERS"}) {
    SCOPED_TRACE(synchroniser);
    Settings all = set;
    all.push_back("train.prefetch_steps=2");
    all.push_back(absl::StrCat("dense.synchroniser=", synchroniser));
    const job::ResolvedJob compiled = job_->Plan(all);
    const ModelBits model =
        Train(compiled, ProgramPlan(compiled), Out(), 0, absl::Milliseconds(20));
    EXPECT_EQ(Difference(plain->model, model), "");
  }
}

// A step of a program is made longer as one of a compiled model is, and comes to the same bits.
TEST_F(AttachedTest, AProgramIsSlowOnPurposeAndLeavesTheSameBits) {
  const Settings set = {"cluster.workers=2", "train.max_steps=8"};
  Settings slow = set;
  slow.push_back("fault_injection.slow_workers=[{worker: 1 mean_seconds: 0.05}]");
  const job::ResolvedJob compiled = job_->Plan(set), slowed = job_->Plan(slow);
  const std::string out = Out();
  EXPECT_EQ(Difference(Train(compiled, ProgramPlan(compiled), Out()),
                       Train(slowed, ProgramPlan(slowed), out)),
            "");
  const auto summary = nlohmann::json::parse(ReadTextFile(out + "/summary.json"));
  EXPECT_EQ(summary["by_worker"][0]["slept_seconds"], 0);
  EXPECT_GT(summary["by_worker"][1]["slept_seconds"], 0);
}

// Also where they come from servers with the first step: a script may look at them before.
TEST_F(AttachedTest, AllBeginWithTheValuesOfRankZero) {
  for (const char* const synchroniser : {"ALLREDUCE", "SERVERS"}) {
    SCOPED_TRACE(synchroniser);
    const job::ResolvedJob compiled =
        job_->Plan({"cluster.workers=2", absl::StrCat("dense.synchroniser=", synchroniser)});
    ProgramCluster cluster(ProgramPlan(compiled), Out());
    std::atomic<int> begun{0};
    (void)cluster.Run([&](worker::AttachedWorker& worker) {
      const absl::Time limit = MonotonicNow() + absl::Seconds(50);
      EXPECT_TRUE(worker.WaitJoined(limit).ok());
      const float first = worker.rank() == 0 ? 3 : 4;
      EXPECT_TRUE(worker.Start({{"w", {2}}}, std::vector<float>{first, 1}).ok());
      EXPECT_TRUE(worker.WaitStarted(limit).ok());
      EXPECT_EQ(worker.dense()[0], 3);
      ++begun;  // whoever leaves ends the job
      while (begun < 2 && MonotonicNow() < limit) absl::SleepFor(absl::Milliseconds(1));
    });
  }
}

// A program comes when its data are there, which startup_timeout_seconds say nothing about.
TEST_F(AttachedTest, AWorkerMayStartMuchLaterThanTheOthers) {
  const job::ResolvedJob compiled =
      job_->Plan({"cluster.workers=2", "limits.startup_timeout_seconds=3"});
  ProgramCluster cluster(ProgramPlan(compiled), Out());
  const absl::Status ended = cluster.Run([&](worker::AttachedWorker& worker) {
    const absl::StatusOr<bool> joined = worker.WaitJoined(MonotonicNow() + absl::Seconds(50));
    EXPECT_TRUE(joined.ok()) << joined.status();
    if (worker.rank() == 1) absl::SleepFor(absl::Seconds(4));
    const absl::Status trained = TrainCompiled(compiled, worker);
    EXPECT_TRUE(trained.ok()) << trained;
    worker.Fail(trained);
  });
  EXPECT_TRUE(ended.ok()) << ended;
}

// The whole of it beside `tandem run`: model, evaluation after each epoch, steps and samples.
TEST_F(AttachedTest, EvaluatesAndReportsAsAWorkerDoes) {
  const Settings set = {"train.epochs=2", "evaluation.every_epochs=1"};
  const RunArguments arguments = job_->Arguments("worker", set);
  const RunResult run = RunJob(arguments);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  const job::ResolvedJob compiled = job_->Plan(set);
  const std::string out = Out();
  const ModelBits model = Train(compiled, ProgramPlan(compiled), out);
  const absl::StatusOr<ModelBits> expected = ReadCheckpoint(arguments.out + "/model");
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_EQ(Difference(*expected, model), "");
  const auto summary = nlohmann::json::parse(ReadTextFile(out + "/summary.json"));
  nlohmann::json evaluation = run.summary["eval"];
  EXPECT_EQ(evaluation.erase("data"), 1);  // which rows a program scores, it alone knows
  EXPECT_EQ(summary["eval"], evaluation);
  EXPECT_GT(summary["eval"]["auc"], 0.4);
  for (const char* const field : {"samples", "steps"}) {
    EXPECT_EQ(summary[field], run.summary[field]) << field;
  }
}

// A program's optimizer gets the mean gradient, also in steps for which its worker has no data:
// plain steps with it are those of the job's SGD.
TEST_F(AttachedTest, TheProgramsOwnOptimizerStepsAsTheJobsWould) {
  const Settings set = {"train.epochs=2", "dense.optimizer={kind: SGD learning_rate: 0.25}"};
  const job::ResolvedJob compiled = job_->Plan(set);
  const job::ResolvedJob program = ProgramPlan(compiled, {"dense.optimizer={kind: PROGRAM}"});
  const ModelBits expected = Train(compiled, ProgramPlan(compiled), Out());
  ModelBits model = Train(compiled, program, Out(), 0.25f);
  EXPECT_EQ(Difference(expected, model), "");
}

// A batch is requested after a step has been handed out: the program may answer the step
// first, or the batch.
TEST(RequestQueueTest, RequestsOpenTogetherAreAnsweredInEitherOrder) {
  using worker::Request;
  for (const bool batch_first : {true, false}) {
    worker::RequestQueue requests;
    worker::StepSlot computed, fetched;
    const auto soon = [] { return MonotonicNow() + absl::Seconds(50); };
    const auto ask = [&](Request::Kind kind, worker::StepSlot* slot) {
      const absl::Status answer = requests.Ask({.kind = kind, .slot = slot});
      EXPECT_TRUE(answer.ok()) << answer;
    };
    std::thread compute(ask, Request::Kind::kCompute, &computed);
    EXPECT_EQ(requests.Next(soon())->kind, Request::Kind::kCompute);
    std::thread fetch(ask, Request::Kind::kBatch, &fetched);
    while (requests.Next(soon())->kind != Request::Kind::kBatch)
      absl::SleepFor(absl::Milliseconds(1));
    if (batch_first) requests.Expect(Request::Kind::kBatch)->Answer(absl::OkStatus());
    const auto step = [&] {
      auto use = requests.Expect(Request::Kind::kCompute);
      ASSERT_TRUE(use.ok()) << use.status();
      use->AnswerCompute(/*done=*/false);
    };
    step();
    // Parameters change now: not a time for anything but that.
    EXPECT_THAT(requests.Expect(Request::Kind::kBatch).status().message(),
                HasSubstr("a batch was given, but the worker wants nothing yet"));
    requests.StepDone();
    EXPECT_EQ(requests.Next(soon())->kind, Request::Kind::kStepDone);
    if (!batch_first) {
      EXPECT_EQ(requests.Next(soon())->kind, Request::Kind::kBatch);
      requests.Expect(Request::Kind::kBatch)->Answer(absl::OkStatus());
    }
    requests.Close(absl::OkStatus());  // whoever is left would be let go with an error
    compute.join();
    fetch.join();
  }
}

TEST(RequestQueueTest, AStepIsTakenBackFromAProgramThatRests) {
  using worker::Request;
  worker::RequestQueue requests;
  worker::StepSlot slot;
  const auto soon = [] { return MonotonicNow() + absl::Seconds(50); };
  const auto ask = [&] {
    EXPECT_TRUE(requests.Ask({.kind = Request::Kind::kCompute, .slot = &slot}).ok());
  };
  slot.step = 3;
  EXPECT_FALSE(requests.TakeBack(3));  // the program may be at it
  requests.Rest();
  std::thread asked(ask);
  EXPECT_EQ(requests.Next(soon())->kind, Request::Kind::kCompute);
  EXPECT_TRUE(requests.TakeBack(3));
  asked.join();
  slot.step = 4;
  EXPECT_TRUE(requests.TakeBack(4));  // before it is asked for
  ask();
  slot.step = 5;
  std::thread given(ask);
  EXPECT_EQ(requests.Next(soon())->kind, Request::Kind::kCompute);
  requests.Expect(Request::Kind::kCompute)->AnswerCompute(/*done=*/true);
  given.join();
  EXPECT_FALSE(requests.TakeBack(5));
}

// ---- what goes wrong ----

class WrongProgramTest : public AttachedTest {
 protected:
  // Runs a program that ends the job, and says how the scheduler saw it.
  std::string Ending(const std::function<void(worker::AttachedWorker&)>& program,
                     const std::string& set = "cluster.workers=2") {
    const job::ResolvedJob plan = ProgramPlan(job_->Plan({"cluster.workers=2", set}));
    ProgramCluster cluster(plan, Out());
    const absl::Time begun = MonotonicNow();
    const absl::Status ended = cluster.Run(program);
    EXPECT_LT(MonotonicNow() - begun, absl::Seconds(50));
    EXPECT_FALSE(ended.ok());
    return std::string(ended.message());
  }
  static absl::Time Soon() { return MonotonicNow() + absl::Seconds(50); }
  // To the first batch that is requested.
  static absl::Status Begin(worker::AttachedWorker& worker,
                            std::vector<server::CheckpointParameter> parameters,
                            const std::vector<float>& values) {
    const absl::StatusOr<bool> joined = worker.WaitJoined(Soon());
    if (!joined.ok()) return joined.status();
    if (absl::Status started = worker.Start(std::move(parameters), values); !started.ok()) {
      return started;
    }
    return worker.WaitStarted(Soon()).status();
  }
  // A batch of two samples with one id each for the first table.
  static data::Batch TwoSamples() {
    data::Batch batch;
    batch.samples = 2;
    batch.sparse.resize(1);
    batch.sparse[0].fields = 1;
    batch.sparse[0].keys = {7, 8};
    batch.sparse[0].index = {0, 1};
    return batch;
  }
};

TEST_F(WrongProgramTest, FailNamesTheWorkerAndTheReasonToAll) {
  std::atomic<int> told{0};
  const std::string ending = Ending([&](worker::AttachedWorker& worker) {
    EXPECT_TRUE(Begin(worker, {{"w", {2}}}, {1, 2}).ok());
    if (worker.rank() == 1) worker.Fail(absl::InvalidArgumentError("ValueError: no (train.py:31)"));
    absl::Status status;
    while (status.ok()) status = worker.Next(Soon()).status();
    if (absl::StrContains(status.message(), "ValueError: no (train.py:31)")) ++told;
    EXPECT_FALSE(worker.Close().ok());
  });
  EXPECT_THAT(ending, HasSubstr("worker 1: ValueError: no (train.py:31)"));
  EXPECT_EQ(told, 2);
}

TEST_F(WrongProgramTest, LeavingEarlyEndsTheJob) {
  const std::string ending = Ending([&](worker::AttachedWorker& worker) {
    EXPECT_TRUE(Begin(worker, {}, {}).ok());
    if (worker.rank() == 1) return;  // the destructor closes
    while (worker.Next(Soon()).ok()) {
    }
  });
  EXPECT_THAT(ending, HasSubstr("worker 1: the program has left before the job had ended"));
}

// It ends while the other one still makes its module, too.
TEST_F(WrongProgramTest, LeavingBeforeTheStart) {
  const std::string ending = Ending([&](worker::AttachedWorker& worker) {
    EXPECT_TRUE(worker.WaitJoined(Soon()).ok());
    if (worker.rank() == 0) return;
    EXPECT_FALSE(worker.WaitStarted(Soon()).ok());
  });
  EXPECT_THAT(ending, HasSubstr("worker 0: the program has left"));
}

TEST_F(WrongProgramTest, ModulesMustBeTheSame) {
  const auto program = [&](worker::AttachedWorker& worker) {
    const absl::StatusOr<bool> joined = worker.WaitJoined(Soon());
    EXPECT_TRUE(joined.ok()) << joined.status();
    const int64_t width = worker.rank() == 0 ? 2 : 4;
    absl::Status status = Begin(worker, {{"a", {1}}, {"b", {width, 2}}},
                                std::vector<float>(1 + static_cast<size_t>(width) * 2));
    while (status.ok()) status = worker.Next(Soon()).status();
  };
  for (const char* const synchroniser : {"ALLREDUCE", "SERVERS"}) {
    EXPECT_THAT(Ending(program, absl::StrCat("dense.synchroniser=", synchroniser)),
                HasSubstr("worker 1: dense parameter 1 is b [4, 2] here and b [2, 2] on worker "
                          "0; hint: build the same module on every worker"));
  }
}

TEST_F(WrongProgramTest, WrongCallsAreRefusedAndChangeNothing) {
  const std::string ending = Ending([&](worker::AttachedWorker& worker) {
    EXPECT_THAT(worker.Start({{"w", {3}}}, std::vector<float>{1}).message(),
                HasSubstr("dense parameters: 1 floats, expected 3"));
    ASSERT_TRUE(Begin(worker, {{"w", {2}}}, {1, 2}).ok());
    EXPECT_THAT(worker.Start({}, {}).message(), HasSubstr("called before"));
    if (worker.rank() == 1) {
      while (worker.Next(Soon()).ok()) {
      }
      return;
    }
    absl::StatusOr<worker::Request> request = worker.Next(Soon());
    ASSERT_TRUE(request.ok() && request->kind == worker::Request::Kind::kBatch);
    EXPECT_THAT(worker.Finish({}).message(),
                HasSubstr("the gradients of a step was given, but the worker wants a batch"));
    data::Batch batch = TwoSamples();
    batch.samples = 25;
    EXPECT_THAT(worker.GiveBatch(&batch).message(),
                HasSubstr("a batch of 25 samples, and train.batch_size is 24"));
    batch.samples = 2;
    batch.sparse[0].index.resize(24 * 3 + 1);
    EXPECT_THAT(worker.GiveBatch(&batch).message(),
                HasSubstr("a batch has 73 ids for table some, but only 72 are allowed"));
    batch = TwoSamples();
    ASSERT_TRUE(worker.GiveBatch(&batch).ok());
    do request = worker.Next(Soon());
    while (request.ok() && request->kind == worker::Request::Kind::kBatch &&
           worker.GiveBatch(&(batch = TwoSamples())).ok());
    ASSERT_TRUE(request.ok() && request->kind == worker::Request::Kind::kCompute)
        << request.status();
    std::vector<float> cells(16);
    EXPECT_THAT(worker.Rows(1, absl::MakeSpan(cells)).message(), HasSubstr("no input 1"));
    EXPECT_THAT(worker.Rows(0, absl::MakeSpan(cells).first(8)).message(),
                HasSubstr("rows: 8 floats, expected 16"));
    EXPECT_TRUE(worker.Rows(0, absl::MakeSpan(cells)).ok());
    EXPECT_THAT(worker.Rows(0, absl::MakeSpan(cells)).message(), HasSubstr("were already taken"));
    const std::vector<float> one(1);
    EXPECT_THAT(worker.Finish({.cells = {one}}).message(),
                HasSubstr("gradient of input 0: 1 floats, expected 16"));
    EXPECT_THAT(worker.Finish({.dense = one}).message(),
                HasSubstr("dense gradient: 1 floats, expected 2"));
    EXPECT_TRUE(worker.Finish({.loss_sum = std::nan("")}).ok());
    while (worker.Next(Soon()).ok()) {
    }
  });
  EXPECT_THAT(ending, HasSubstr("worker 0: the loss is nan at step 0 (epoch 0)"));
}

TEST(AttachedWorkerTest, RefusesACompiledJob) {
  SmallJob job(100, 10);
  worker::WorkerOptions options;
  options.plan = job.Plan({});
  EXPECT_THAT(worker::AttachedWorker::Join(options).status().message(),
              HasSubstr("the job has a compiled model"));
}

}  // namespace
}  // namespace tandem
