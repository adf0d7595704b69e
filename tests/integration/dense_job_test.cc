// What a job may do with its dense gradients, in whole jobs: codecs, 16-bit wires, an optimizer
// that is sharded over the workers (and its checkpoints), hierarchical all-reduce, and workers that
// step by themselves. Each is held to a plain loop that computes the same without a system around
// it. Epochs end in steps of a few samples.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/plain_loop.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

// Three workers get 15, 14 and 14 batches of 24 an epoch, the odd one of a single row.
constexpr int64_t kRows = 3 * 14 * 24 + 1;

// Sums in rank order, so that nothing differs from the plain loop but what a test is about. SGD
// moves by the gradient itself, however small.
const Settings kPlain = {"reproducible=false", "dense.algorithm=DIRECT", "dense.bucket_bytes=-1",
                         "dense.optimizer={kind: SGD learning_rate: 0.1}", "train.epochs=2"};

class DenseJobTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { job_ = std::make_unique<SmallJob>(kRows, 30); }
  static void TearDownTestSuite() { job_.reset(); }

  ModelBits Train(const Settings& set, const std::string& init_from = "") {
    saved_ = absl::StrCat(::testing::UnitTest::GetInstance()->current_test_info()->name(), runs_++);
    RunArguments arguments = job_->Arguments(saved_, set);
    arguments.init_from = init_from;
    const RunResult run = RunJob(arguments);
    EXPECT_TRUE(run.ok()) << run.DebugString();
    saved_ = arguments.out + "/model";
    summary_ = run.summary;
    const absl::StatusOr<ModelBits> model = ReadCheckpoint(saved_);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *model : ModelBits();
  }

  ModelBits Plain(const Settings& set, const ModelBits& start = {}) {
    absl::StatusOr<PlainLoopResult> plain = RunPlainLoop(job_->Plan(set), start);
    EXPECT_TRUE(plain.ok()) << plain.status();
    if (!plain.ok()) return {};
    EXPECT_GT(plain->uneven_steps, 0);
    EXPECT_GT(plain->short_batches, 0);
    return std::move(plain->model);
  }

  // The job ends where the plain loop with the same settings does, and not where it does without.
  void ExpectAsPlain(const Settings& settings) {
    SCOPED_TRACE(settings[0]);
    const Settings set = Join(kPlain, settings);
    const ModelBits plain = Plain(set), whole = Plain(kPlain), trained = Train(set);
    if (plain.empty() || whole.empty() || trained.empty()) return;
    EXPECT_LT(DenseDistance(trained, plain), 0.02 * DenseDistance(whole, plain));
  }

  static std::unique_ptr<SmallJob> job_;
  std::string saved_;  // by the last run
  nlohmann::json summary_;
  int runs_ = 0;
};
std::unique_ptr<SmallJob> DenseJobTest::job_;

TEST_F(DenseJobTest, TopKWithErrorFeedback) {
  ExpectAsPlain({"dense.codec={kind: TOP_K fraction: 0.1}"});
}

TEST_F(DenseJobTest, SignWithErrorFeedback) { ExpectAsPlain({"dense.codec={kind: SIGN}"}); }

// Of full rank it loses nothing but last bits.
TEST_F(DenseJobTest, PowerSgd) {
  const ModelBits whole = Plain(kPlain), begun = Plain(Join(kPlain, {"train.epochs=1"}));
  const ModelBits trained = Train(Join(kPlain, {"dense.codec={kind: POWER_SGD rank: 128}"}));
  if (whole.empty() || trained.empty()) return;
  EXPECT_LT(DenseDistance(trained, whole), 0.01 * DenseDistance(begun, whole));
}

TEST_F(DenseJobTest, SixteenBitWires) {
  ExpectAsPlain({"dense.wire_dtype=BF16"});
  ExpectAsPlain({"dense.wire_dtype=F16"});
}

// Every worker updates its share of the blocks: nothing is lost by it, so the bits are those of the
// plain loop. So they are when others go on from what was saved, in other numbers, and when a job
// whose optimizer is whole does.
TEST_F(DenseJobTest, ShardedOptimizerAndItsCheckpoints) {
  const Settings common = {"train.epochs=2"}, sharded = {"dense.sharded_optimizer=true"};
  const ModelBits plain = Plain(common);
  const ModelBits trained = Train(Join(common, sharded));
  EXPECT_EQ(Difference(plain, trained), "");
  const std::string saved = saved_;
  const Settings two = Join(common, {"cluster.workers=2", "cluster.servers=4"});
  const ModelBits further = Plain(two, plain);
  EXPECT_EQ(Difference(further, Train(Join(two, sharded), saved)), "");
  EXPECT_EQ(Difference(further, Train(two, saved)), "");
}

// On one host it is the direct one (hosts apart: netns_test).
TEST_F(DenseJobTest, Hierarchical) {
  const Settings common = {"train.epochs=2", "reproducible=false", "dense.bucket_bytes=-1"};
  const ModelBits trained = Train(Join(common, {"dense.algorithm=HIERARCHICAL"}));
  EXPECT_EQ(Difference(Plain(common), trained), "");
  EXPECT_EQ(summary_["collectives"]["choices"][0]["algorithm"], "hierarchical");
}

// ---- workers that step by themselves ----

Settings Local(const std::string& synchroniser, const std::string& local_steps) {
  return {absl::StrCat("dense.synchroniser=", synchroniser),
          absl::StrCat("dense.local_steps={", local_steps, "}")};
}

// With plain SGD the mean of models by samples is a step with the mean gradient.
TEST_F(DenseJobTest, AveragesOfEveryStepAreAllReduce) {
  const Settings sgd = {"dense.optimizer={kind: SGD learning_rate: 0.1}", "train.epochs=2"};
  const ModelBits plain = Plain(sgd), begun = Plain(Join(sgd, {"train.epochs=1"}));
  const ModelBits trained = Train(Join(sgd, Local("LOCAL_SGD", "sync_every: 1")));
  const ModelBits seldom = Train(Join(sgd, Local("LOCAL_SGD", "sync_every: 7")));
  if (plain.empty() || begun.empty() || trained.empty() || seldom.empty()) return;
  EXPECT_LT(DenseDistance(trained, plain), 1e-3 * DenseDistance(begun, plain));
  EXPECT_GT(DenseDistance(seldom, plain), 1e-2 * DenseDistance(begun, plain))
      << "or it shows nothing";
}

// A step between two sync rounds sends nothing: 15 steps an epoch are three sync rounds under BSP
// (after 6, 12 and at the end), and four where only a sync round can tell the end (after 6, 12, 18
// and 24). After nine steps together there are two, after 15 and 21.
TEST_F(DenseJobTest, LocalStepsCheckpointTraffic) {
  const Settings common = {"train.epochs=1", "reproducible=false", "dense.algorithm=DIRECT",
                           "dense.bucket_bytes=-1"};
  Settings local = {"train.epochs=1", "reproducible=false", "dense.algorithm=DIRECT"};
  (void)Train(common);
  const double every_step = summary_["bytes"]["collective"];  // 15, and the one that tells the end
  const auto share = [&](const Settings& set) {
    (void)Train(Join(local, set));
    EXPECT_EQ(summary_["steps"], 15);
    return summary_["bytes"]["collective"].get<double>() / every_step;
  };
  EXPECT_NEAR(share(Local("LOCAL_SGD", "sync_every: 6")), 3.0 / 16, 0.005);
  EXPECT_NEAR(share(Local("EASGD", "sync_every: 6")), 3.0 / 16, 0.005);
  local.emplace_back("policy={kind: ASP}");
  EXPECT_NEAR(share(Local("LOCAL_SGD", "sync_every: 6")), 4.0 / 16, 0.005);
  EXPECT_NEAR(share(Local("LOCAL_SGD", "sync_every: 6 warmup_steps: 9")), (9 + 2.0) / 16, 0.005);
}

// What was evaluated at the end is what lies in the checkpoint: one model, not some worker's.
TEST_F(DenseJobTest, TheModelOfLocalStepsIsTheOneThatIsCheckpointed) {
  const Settings asynchronous = {"train.epochs=2", "reproducible=false", "policy={kind: ASP}"};
  for (const Settings& local :
       {Local("EASGD", "sync_every: 4"),
        Local("LOCAL_SGD", "sync_every: 4 outer_learning_rate: 0.7 outer_momentum: 0.9"),
        Local("LOCAL_SGD",
              "sync_every: 4 outer_learning_rate: 0.7 "
              "outer_momentum: 0.9 outer_optimizer: HELOCO")}) {
    const Settings set = Join(asynchronous, local);
    (void)Train(set);
    const auto evaluated = summary_["eval"];
    RunArguments again =
        job_->Arguments(absl::StrCat("again", runs_++), Join(set, {"train.evaluate_only=true"}));
    again.init_from = saved_;
    const RunResult run = RunJob(again);
    ASSERT_TRUE(run.ok()) << run.DebugString();
    EXPECT_EQ(run.summary["eval"]["auc"], evaluated["auc"]);
    EXPECT_EQ(run.summary["eval"]["logloss"], evaluated["logloss"]);
    EXPECT_EQ(summary_["policy"]["dense"],
              local[0] == "dense.synchroniser=EASGD" ? "EASGD(4)" : "LOCAL_SGD(4)");
  }
}

}  // namespace
}  // namespace tandem
