// Bit for bit: BSP over any number of servers, with ranges moving and frames getting lost, with
// dense parameters on servers or by direct allreduce, is one plain loop; fixed delay is that loop
// with a queue.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/sim/reference.h"
#include "tests/sim/row_rules.h"
#include "tests/sim/sim_job.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

CheckedWorldOptions FaultyWorld(const SimJob& job, uint64_t seed) {
  CheckedWorldOptions options = EvenWorld(job, 6, seed);
  options.model.batches[0] = 9;  // uneven: the others go on without data
  options.explain = false;
  options.network.drop = 0.01;
  options.network.duplicate = 0.05;
  options.network.reorder = true;
  options.moves_per_second = 20;
  return options;
}

void ExpectReference(const SimJob& job, int64_t delay, int64_t dense_delay, uint64_t seed,
                     int dense = ToyModel::Options().dense) {
  SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", job.Text()));
  CheckedWorldOptions options = FaultyWorld(job, seed);
  options.model.dense = dense;
  SimRun run(job, options);
  ASSERT_TRUE(run.ok());
  Reference reference(run.plan, run.world->model(), delay, dense_delay);
  reference.Run();
  int rows = 0;
  for (const auto& [table, key] : run.world->TrainedRows()) {
    if (key == ToyModel::kDenseKey) continue;
    ASSERT_EQ(run.world->Row(table, key), reference.Row(table, key)) << table << " " << key;
    ++rows;
  }
  EXPECT_GT(rows, 10);
  for (int rank = 0; rank < job.workers; ++rank) {
    ASSERT_EQ(run.world->DenseValues(rank), reference.Dense());
  }
}

SimJob Base(const std::string& optimizer) {
  SimJob job;
  job.optimizer = optimizer;
  job.epochs = 2;
  job.workers = 3;
  job.slow_workers = kExponential;
  return job;
}

const char* const kOptimizers[] = {
    "kind: SGD learning_rate: 0.1",
    "kind: MOMENTUM learning_rate: 0.05",
    "kind: ADAGRAD learning_rate: 0.1",
    "kind: ROWWISE_ADAGRAD learning_rate: 0.1",
    "kind: ADAM learning_rate: 0.02",
    "kind: FTRL learning_rate: 0.1 l1: 0.1",
    "kind: LION learning_rate: 0.02",
    "kind: AMSGRAD learning_rate: 0.02",
    "kind: ADAMW learning_rate: 0.02",
    "kind: RMSPROP learning_rate: 0.02",
    ("kind: ADAGRAD learning_rate: 0.1 schedule { kind: COSINE warmup_samples: 30 "
     "warmup_factor: 0.2 restart_samples: 50 restart_growth: 1.5 end_factor: 0.1 }"),
};

TEST(EqualityTest, BspIsThePlainLoopOnAnyNumberOfServers) {
  for (const char* optimizer : kOptimizers) {
    for (const int servers : {1, 2, 4}) {
      SimJob job = Base(optimizer);
      job.servers = servers;
      job.depth = servers % 3;
      job.dense_on_servers = true;
      ExpectReference(job, 0, 0, TestSeed());
      job.dense_on_servers = false;
      ExpectReference(job, 0, 0, TestSeed());
    }
  }
}

// Error feedback on servers is the plain loop with the same delay.
TEST(EqualityTest, ErrorFeedbackIsThePlainLoopOnAnyNumberOfServers) {
  int cases = 0;
  for (const char* optimizer : kOptimizers) {
    if (absl::StrContains(optimizer, "FTRL")) continue;
    for (const int servers : {1, 2, 4}) {
      const int delay = 1 + cases++ / 2 % 3;
      SimJob job = Base(optimizer);
      job.servers = servers;
      job.policy = absl::StrCat("kind: FIXED_DELAY delay: ", delay);
      job.dense_optimizer = absl::StrCat("error_feedback: ", delay);
      job.dense_on_servers = true;
      ExpectReference(job, delay, delay, TestSeed(), 3 * job::kDenseBlockFloats + 17);
    }
  }
}

constexpr char kCountAndAge[] =
    " admission { kind: COUNT threshold: 2 within_versions: 4 unadmitted: ZERO } "
    "eviction { kind: AGE versions: 2 } ";

// Rows come and go by the steps alone, wherever the ranges are cut.
TEST(EqualityTest, RowsThatComeAndGoAreThePlainLoopOnAnyNumberOfServers) {
  for (const char* optimizer : kOptimizers) {
    for (const int delay : {0, 2}) {
      for (const int servers : {1, 2, 4}) {
        SimJob job = Base(optimizer);
        job.servers = servers;
        job.depth = servers % 3;
        job.dense_on_servers = true;
        job.row_rules = kCountAndAge;
        job.second_row_rules = " eviction { kind: AGE versions: 1 } ";
        if (delay > 0) job.policy = absl::StrCat("kind: FIXED_DELAY delay: ", delay);
        ExpectReference(job, delay, delay, TestSeed());
      }
    }
  }
}

// Rows of small types are rounded in the same way wherever they are, moves included.
TEST(EqualityTest, RowsOfSmallTypesAreThePlainLoopOnAnyNumberOfServers) {
  const char* const kTypes[] = {" row_dtype: BF16 state_dtype: BF16 ", " row_dtype: INT8 ",
                                " row_dtype: F16 ", " state_dtype: BF16 ",
                                " row_dtype: INT8 state_dtype: BF16 hot_rows { min_updates: 4 } "};
  int cases = 0;
  for (const char* optimizer : kOptimizers) {
    for (const int delay : {0, 2}) {
      SimJob job = Base(optimizer);
      job.servers = 1 << cases % 3;
      job.depth = cases % 2;
      job.row_rules = kTypes[cases % 5];
      job.second_row_rules = kTypes[(cases + 1) % 5];
      if (cases % 4 == 3) job.row_rules += kCountAndAge;
      if (delay > 0) job.policy = absl::StrCat("kind: FIXED_DELAY delay: ", delay);
      job.dense_on_servers = delay > 0;
      ExpectReference(job, delay, delay, TestSeed());
      ++cases;
    }
  }
  for (const int servers : {1, 2, 4}) {
    SimJob job = Base("kind: ADAM learning_rate: 0.02");
    job.servers = servers;
    job.row_rules = kTypes[0];
    ExpectReference(job, 0, 0, TestSeed());
  }
}

// A worker alone reads what it wrote, also where rows lie in a cache or are kept as they were read.
TEST(EqualityTest, RowsOfSmallTypesOfAWorkerAloneAreThePlainLoopUnderEveryPolicy) {
  const char* const kTypes[] = {" row_dtype: BF16 state_dtype: BF16 ", " row_dtype: F16 ",
                                " row_dtype: INT8 ",
                                " row_dtype: INT8 hot_rows { min_updates: 4 } "};
  const char* const kPolicies[] = {"kind: ASP",
                                   "kind: SSP bound: 2",
                                   "kind: ESSP bound: 1",
                                   "kind: ESSP bound: 2 cache_rows: 4",
                                   "kind: DC_ASGD compensation: 0.5",
                                   "kind: DC_ASGD compensation: 0.5 mean_square_decay: 0.9",
                                   "kind: STALENESS_AWARE",
                                   "kind: RINGLEADER",
                                   "kind: RINGMASTER max_delay: 1",
                                   "kind: DELAY_ADAPTIVE"};
  for (const char* policy : kPolicies) {
    for (const char* types : kTypes) {
      SimJob job = Base("kind: ADAGRAD learning_rate: 0.1");
      job.workers = 1;
      job.servers = 2;
      job.row_rules = types;
      job.policy = policy;
      job.dense_on_servers = true;
      ExpectReference(job, 0, 0, TestSeed());
    }
  }
}

TEST(EqualityTest, AnyTypesOfRowsAreThePlainLoop) {
  const uint64_t count = SeedCount(60);
  uint64_t caught_up = 0;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + count; ++seed) {
    SCOPED_TRACE(absl::StrCat("see it again with TANDEM_SIM_SEEDS=1 and --seed=", seed));
    Random random(HashCombine(seed, 43));
    SimJob job = Base("");
    const int delay = random.Bernoulli(0.3) ? static_cast<int>(random.Uniform(4)) : 0;
    if (delay > 0) job.policy = absl::StrCat("kind: FIXED_DELAY delay: ", delay);
    if (random.Bernoulli(0.5)) job.row_rules = kCountAndAge;
    AddTypes(seed, &job);
    if (random.Bernoulli(0.5)) {
      job.optimizer = kOptimizers[random.Uniform(std::size(kOptimizers))];
      job.catch_up = job.second_catch_up = false;
    }
    caught_up += job.catch_up || job.second_catch_up ? 1 : 0;
    job.servers = 1 + static_cast<int>(random.Uniform(4));
    job.depth = static_cast<int>(random.Uniform(3));
    job.dense_on_servers = true;
    ExpectReference(job, delay, delay, seed);
    if (::testing::Test::HasFailure()) return;
  }
  if (count < 50) return;
  EXPECT_GT(caught_up, count / 10);
}

// The rules were at work, and a step is a version.
TEST(EqualityTest, RowsComeAndGo) {
  SimJob job = Base("kind: ADAGRAD learning_rate: 0.1");
  job.dense_on_servers = true;
  job.row_rules = kCountAndAge;
  SimRun run(job, FaultyWorld(job, TestSeed()));
  ASSERT_TRUE(run.ok());
  Reference reference(run.plan, run.world->model(), 0, 0);
  reference.Run();
  EXPECT_EQ(run.world->server_checks().Version(0, run.world->model().Key(0, 0)), reference.step());
  const server::RowCounts counts = run.world->server_checks().Counts(0);
  EXPECT_GT(counts.admitted, 10u);
  EXPECT_GT(counts.refused, 10u);
  EXPECT_GT(counts.evicted, 5u);
}

// A draw does not depend on the range, either.
TEST(EqualityTest, DrawsAreTheSameOnAnyNumberOfServers) {
  std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> rows[3];
  std::vector<float> dense[3];
  for (const int i : {0, 1, 2}) {
    SimJob job = Base("kind: ADAGRAD learning_rate: 0.1");
    job.servers = 1 << i;
    job.depth = i;
    job.dense_on_servers = true;
    job.row_rules =
        " admission { kind: PROBABILITY probability: 0.4 } eviction { kind: AGE versions: 4 } ";
    SimRun run(job, FaultyWorld(job, TestSeed()));
    ASSERT_TRUE(run.ok());
    const server::RowCounts counts = run.world->server_checks().Counts(0);
    EXPECT_GT(counts.admitted, 10u);
    EXPECT_GT(counts.refused, 10u);
    for (const auto& [table, key] : run.world->TrainedRows()) {
      if (key != ToyModel::kDenseKey) rows[i][{table, key}] = run.world->Row(table, key);
    }
    dense[i] = run.world->DenseValues(0);
    EXPECT_TRUE(rows[i] == rows[0]) << job.servers << " servers";
    EXPECT_EQ(dense[i], dense[0]) << job.servers << " servers";
  }
}

// A switch that never comes is BSP, although no worker pushes steps that it has no data for.
TEST(EqualityTest, BeforeTheSwitchIsThePlainLoop) {
  for (const char* optimizer : kOptimizers) {
    for (const int servers : {1, 3}) {
      SimJob job = Base(optimizer);
      job.servers = servers;
      job.depth = servers % 3;
      job.policy = "kind: SYNC_SWITCH switch_step: 1000";
      job.dense_on_servers = true;
      ExpectReference(job, 0, 0, TestSeed());
      job.dense_on_servers = false;
      ExpectReference(job, 0, 0, TestSeed());
    }
  }
}

// Tables on workers, dealt over them or a copy at each. (SimServers::Row compares the copies.)
TEST(EqualityTest, TablesOnWorkersAreThePlainLoop) {
  for (const char* optimizer : kOptimizers) {
    for (const char* synchroniser : {"SHARDED", "REPLICATED"}) {
      for (const int workers : {1, 2, 3}) {
        SimJob job = Base(optimizer);
        job.placement = synchroniser;
        job.workers = workers;
        job.servers = 0;
        job.depth = workers % 2;
        job.shards_per_server = workers == 3 ? 2 : 1;
        ExpectReference(job, 0, 0, TestSeed());
        job.servers = 1;
        job.dense_on_servers = true;
        ExpectReference(job, 0, 0, TestSeed());
      }
    }
  }
}

// Rows that make up for missed steps have the bits of the plain loop at each read, on whatever
// server they are. Moves of ranges and lost frames change nothing.
TEST(EqualityTest, RowsThatCatchUpAreThePlainLoop) {
  for (const int delay : {0, 2}) {
    for (const char* placement : {"SERVERS", "SHARDED", "REPLICATED"}) {
      if (delay > 0 && placement != std::string("SERVERS")) continue;
      for (const int servers : {1, 3}) {
        SimJob job = Base("kind: ADAM learning_rate: 0.02");
        job.catch_up = job.second_catch_up = true;
        job.placement = placement;
        job.servers = servers;
        job.depth = servers % 3;
        if (delay > 0) job.policy = absl::StrCat("kind: FIXED_DELAY delay: ", delay);
        ExpectReference(job, delay, 0, TestSeed());
        for (const char* const types : {" row_dtype: BF16 state_dtype: BF16 ",
                                        " row_dtype: INT8 hot_rows { min_updates: 3 } "}) {
          job.row_rules = types;
          ExpectReference(job, delay, 0, TestSeed());
        }
      }
    }
  }
}

// What a worker exchanges with the rows that it holds itself is on no link.
TEST(NetworkTest, WithinAProcessNothingIsPaid) {
  sim::NetworkOptions options;
  options.bytes_per_second = 1000;
  options.jitter = absl::ZeroDuration();
  sim::SimNetwork network(options, TestSeed(), /*server_processes=*/1);
  const absl::Time now = absl::UnixEpoch();
  const auto arrives = [&](EndpointId from, EndpointId to) {
    std::vector<absl::Time> at;
    network.Route(now, from, to, 500, &at);
    return at.at(0) - now;
  };
  const EndpointId worker = EndpointId::Worker(1), own = EndpointId::Shard(2, 0);
  EXPECT_EQ(arrives(worker, own), absl::ZeroDuration());
  EXPECT_EQ(arrives(EndpointId::Shard(2, 1), worker), absl::ZeroDuration());
  const absl::Duration one = absl::Milliseconds(500) + options.delay;
  EXPECT_EQ(arrives(worker, EndpointId::Shard(1, 0)), one);  // of worker 0
  // The two of a process share its link.
  EXPECT_EQ(arrives(own, EndpointId::Shard(0, 0)), one + absl::Milliseconds(500));
}

TEST(EqualityTest, FixedDelayIsThePlainLoopWithAQueue) {
  for (const char* optimizer : kOptimizers) {
    for (const int delay : {0, 1, 3, 20}) {  // 0 is BSP; 20 is more than the job has steps
      SimJob job = Base(optimizer);
      job.policy = absl::StrCat("kind: FIXED_DELAY delay: ", delay);
      job.depth = delay % 2;
      job.dense_on_servers = true;
      ExpectReference(job, delay, delay, TestSeed());
      job.dense_on_servers = false;
      ExpectReference(job, delay, 0, TestSeed());
    }
  }
}

// The updates of a worker alone come in their order, so each is a step of the plain loop. A step
// has its parts, so it is rounded in another way.
TEST(EqualityTest, OrderedMomentumOfOneWorkerIsThePlainLoop) {
  std::vector<std::vector<float>> dense;
  for (const int servers : {1, 2, 4}) {
    SimJob job = Base("kind: MOMENTUM learning_rate: 0.05");
    job.workers = 1;
    job.servers = servers;
    job.dense_on_servers = true;
    job.dense_policy = "kind: ORDERED_MOMENTUM";
    SimRun run(job, FaultyWorld(job, TestSeed()));
    ASSERT_TRUE(run.ok());
    Reference reference(run.plan, run.world->model(), /*delay=*/0, /*dense_delay=*/0);
    reference.Run();
    dense.push_back(run.world->DenseValues(0));
    const std::vector<float> want = reference.Dense();
    ASSERT_EQ(dense[0].size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(dense[0][i], want[i], 1e-5 * std::max(1.0f, std::abs(want[i])));
    }
    EXPECT_EQ(dense.back(), dense.front()) << servers << " servers";
  }
}

// Parameters that fill several blocks and stop in the middle of one.
TEST(EqualityTest, DenseParametersOfSeveralBlocks) {
  for (const bool on_servers : {false, true}) {
    SimJob job = Base("kind: ADAM learning_rate: 0.02");
    job.dense_on_servers = on_servers;
    job.servers = 3;
    CheckedWorldOptions options = FaultyWorld(job, TestSeed());
    options.model.dense = 3 * job::kDenseBlockFloats + 17;
    SimRun run(job, options);
    ASSERT_TRUE(run.ok());
    Reference reference(run.plan, run.world->model(), 0, 0);
    reference.Run();
    EXPECT_EQ(run.world->DenseValues(0), reference.Dense()) << "on servers: " << on_servers;
  }
}

// The comparison has teeth: the ring adds in another order, and that shows.
TEST(EqualityTest, TheRingDiffers) {
  SimJob job = Base("kind: SGD learning_rate: 0.1");
  job.workers = 4;
  job.algorithm = "RING";
  CheckedWorldOptions options = FaultyWorld(job, TestSeed());
  options.model.dense = 512;
  SimRun run(job, options);
  ASSERT_TRUE(run.ok());
  Reference reference(run.plan, run.world->model(), 0, 0);
  reference.Run();
  EXPECT_NE(run.world->DenseValues(0), reference.Dense());
}

}  // namespace
}  // namespace tandem
