// Reproducible jobs give the same bits whoever adds the gradients up: servers in any number,
// workers by allreduce, or one plain loop over a hash map that knows nothing of either. Compared
// are whole trained models, weights and optimizer slots, after 200 steps over several epochs in
// which workers run out of data at different steps.
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

constexpr int64_t kSteps = 200;
// Three workers get 67, 66 and 66 batches of 24 an epoch, the odd one of a single row; two get 100
// and 99.
constexpr int64_t kRows = 3 * 66 * 24 + 1;

const char kOnServers[] = "dense.synchroniser=SERVERS", kNoServers[] = "cluster.servers=0";
const char kSharded0[] = "table[0].placement=SHARDED", kSharded1[] = "table[1].placement=SHARDED",
           kReplicated0[] = "table[0].placement=REPLICATED",
           kReplicated1[] = "table[1].placement=REPLICATED";

class BitwiseTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { job_ = std::make_unique<SmallJob>(kRows, 100); }
  static void TearDownTestSuite() { job_.reset(); }

  // The model that a run of the system leaves; empty after a failure, which is reported.
  ModelBits Train(const Settings& set) {
    const std::string out =
        absl::StrCat(::testing::UnitTest::GetInstance()->current_test_info()->name(), "-", runs_++);
    return TrainModel(job_->Arguments(out, set));
  }

  // The plain loop's model for the same settings, after it has shown that the data is uneven.
  ModelBits PlainModel(const Settings& set) {
    absl::StatusOr<PlainLoopResult> plain = RunPlainLoop(job_->Plan(set), {});
    EXPECT_TRUE(plain.ok()) << plain.status();
    if (!plain.ok()) return {};
    EXPECT_GE(plain->steps, kSteps);
    EXPECT_GT(plain->uneven_steps, 0);
    EXPECT_GT(plain->short_batches, 0);
    EXPECT_EQ(plain->model.size(), 3u);
    return std::move(plain->model);
  }

  // Every variant of the settings ends with the bits of the plain loop.
  void ExpectPlainBits(const Settings& common, const std::vector<Settings>& variants) {
    const Settings set = Join({absl::StrCat("train.max_steps=", kSteps), "train.epochs=4"}, common);
    const ModelBits plain = PlainModel(set);
    for (const Settings& variant : variants) {
      std::string name;
      for (const std::string& s : variant) absl::StrAppend(&name, s, " ");
      SCOPED_TRACE(name);
      EXPECT_EQ(Difference(plain, Train(Join(set, variant))), "");
    }
  }

  static std::unique_ptr<SmallJob> job_;
  int runs_ = 0;
};
std::unique_ptr<SmallJob> BitwiseTest::job_;

// Adagrad and row-wise Adagrad rows, Adam on the dense part; the same command twice; servers and
// shards in different numbers; a delay of none.
TEST_F(BitwiseTest, ServersAllReduceAndThePlainLoop) {
  ExpectPlainBits({}, {{},
                       {},
                       {"cluster.servers=4", "train.prefetch_steps=1"},
                       {kOnServers, "cluster.servers=1"},
                       {kOnServers, "cluster.servers=2", "cluster.shards_per_server=2"},
                       {kOnServers, "cluster.servers=4", "policy={kind: FIXED_DELAY delay: 0}"}});
}

// Rows on workers, dealt over them or a copy at each, with no server at all; and some on servers.
TEST_F(BitwiseTest, TablesOnWorkers) {
  ExpectPlainBits({}, {{kNoServers, kSharded0, kSharded1},
                       {kNoServers, kReplicated0, kReplicated1},
                       {kNoServers, kReplicated0, kSharded1, "cluster.shards_per_server=2"},
                       {kOnServers, "cluster.servers=1", kSharded0}});
}

// Rows of small types are rounded with bits that depend on neither servers nor places.
TEST_F(BitwiseTest, RowsOfSmallTypes) {
  ExpectPlainBits({"table[0].row_dtype=INT8", "table[0].hot_rows={min_updates: 8}",
                   "table[1].row_dtype=INT8", "table[1].state_dtype=BF16"},
                  {{kOnServers, "cluster.servers=1"},
                   {"cluster.servers=2", "cluster.shards_per_server=2", "train.prefetch_steps=1"},
                   {kNoServers, kSharded0, kReplicated1}});
  ExpectPlainBits(
      {"table[0].row_dtype=BF16", "table[0].state_dtype=BF16", "table[1].row_dtype=F16",
       "table[1].optimizer={kind: ADAM learning_rate: 0.01}", "table[1].state_dtype=BF16"},
      {{kOnServers, "cluster.servers=1"},
       {"cluster.servers=2", "cluster.shards_per_server=2", "train.prefetch_steps=1"},
       {kOnServers, "cluster.servers=4"},
       {kNoServers, kSharded0, kReplicated1}});
}

// No process has a row of a frozen table, and each computes the same initial values.
TEST_F(BitwiseTest, AFrozenTableIsTheSameAtEachPlace) {
  const Settings frozen = {"train.max_steps=40", "table[0].frozen=true"};
  ModelBits on_servers = Train(frozen);
  for (const char* placement : {kSharded0, kReplicated0}) {
    SCOPED_TRACE(placement);
    EXPECT_EQ(Difference(on_servers, Train(Join(frozen, {kNoServers, placement, kSharded1}))), "");
  }
  EXPECT_TRUE(on_servers["some"].empty());
  EXPECT_FALSE(on_servers["rest"].empty());
}

// Two workers, and the other optimizers, with decay and clipping.
TEST_F(BitwiseTest, AdamAndMomentumRows) {
  ExpectPlainBits({"cluster.workers=2", "table[0].optimizer={kind: ADAM learning_rate: 0.01}",
                   "table[1].optimizer={kind: MOMENTUM learning_rate: 0.1 clip_norm: 0.01 "
                   "schedule {kind: INVERSE_SQRT warmup_samples: 400 warmup_factor: 0.1}}",
                   "dense.optimizer={kind: ADAGRAD learning_rate: 0.01 weight_decay: 0.001 "
                   "schedule {kind: COSINE total_samples: 20000}}"},
                  {{"cluster.servers=1"},
                   {kOnServers, "cluster.servers=2"},
                   {kNoServers, kSharded0, kSharded1},
                   {kNoServers, kReplicated0, kReplicated1}});
}

// A fixed delay is a queue of folded steps, applied in order at the end: of the tables and of the
// dense part on servers ...
TEST_F(BitwiseTest, FixedDelayIsAQueue) {
  ExpectPlainBits({kOnServers, "policy={kind: FIXED_DELAY delay: 3}",
                   "dense.optimizer.schedule={kind: STEP every_samples: 1000 factor: 0.7}"},
                  {{"cluster.servers=1", "cluster.shards_per_server=2"}, {"cluster.servers=4"}});
}

// ... and of one table alone, with two workers. Its Adam counts the steps that are applied.
TEST_F(BitwiseTest, FixedDelayOfOneTable) {
  ExpectPlainBits({"cluster.workers=2", "table[1].policy={kind: FIXED_DELAY delay: 3}",
                   "table[1].optimizer={kind: ADAM learning_rate: 0.01}",
                   "table[0].optimizer={kind: ADAM learning_rate: 0.01 step_count: ROW}"},
                  {{}, {kOnServers, "cluster.servers=1"}});
}

// Rows that make up for missed steps do so where they are.
TEST_F(BitwiseTest, RowsThatCatchUp) {
  ExpectPlainBits(
      {"cluster.workers=2", "table[1].policy={kind: FIXED_DELAY delay: 3}",
       "table[0].optimizer={kind: ADAM learning_rate: 0.01 catch_up: true clip_norm: 0.05}",
       "table[1].optimizer={kind: ADAM learning_rate: 0.01 catch_up: true}"},
      {{"cluster.servers=1"}, {"cluster.servers=3", "cluster.shards_per_server=2", kReplicated0}});
}

// The comparison has teeth: a ring adds in another order, and that shows.
TEST_F(BitwiseTest, RingDiffers) {
  const Settings set = {absl::StrCat("train.max_steps=", kSteps), "train.epochs=4"};
  const ModelBits plain = PlainModel(set);
  const ModelBits ring = Train(Join(set, {"reproducible=false", "dense.algorithm=RING"}));
  EXPECT_NE(Difference(plain, ring), "");
}

}  // namespace
}  // namespace tandem
