// A run repeated in its recorded order has the same bits, whatever the network and the workers do:
// lost, doubled and reordered frames, checkpoints in the first run, other speeds in the second. Toy
// gradients depend on every bit of every read.
//   TANDEM_SIM_SEEDS=1 tests/replay_test --seed=N    one seed again
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/sim/plugins.h"
#include "tests/sim/proof/checked_world.h"
#include "tests/sim/row_rules.h"
#include "tests/sim/sim_job.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

constexpr const char* kPolicies[] = {
    "kind: ASP",
    "kind: SSP bound: 3",
    "kind: DSSP bound: 3 upper_bound: 6",
    "kind: STALENESS_AWARE",
    "kind: COSINE_GATE age_decay: 0.1 age_cutoff: 4",
    "kind: RINGMASTER max_delay: 2",
    "kind: RINGLEADER",
    "kind: RENNALA batches: 2",
    "kind: DELAY_ADAPTIVE full_rate_delay: 1",
    "kind: K_BATCH_ASYNC batches: 3",
    "kind: GBA batches: 3 token_gap: 1",
    "kind: DC_ASGD compensation: 0.01",
    "kind: DC_ASGD compensation: 0.01 mean_square_decay: 0.9",
    "kind: FIXED_DELAY delay: 2",
    "kind: BSP",
    "kind: SYNC_SWITCH switch_step: 4",
};
constexpr uint64_t kNumPolicies = std::size(kPolicies) + 1;

std::string PolicyAt(uint64_t index, Random* random) {
  return index < std::size(kPolicies) ? kPolicies[index] : RandomPlugin(/*bound=*/3, random);
}

SimJob RandomJob(uint64_t seed, Random* random) {
  SimJob job;
  job.workers = 2 + static_cast<int>(random->Uniform(3));
  job.servers = 1 + static_cast<int>(random->Uniform(2));
  job.shards_per_server = 1 + static_cast<int>(random->Uniform(2));
  job.depth = static_cast<int>(random->Uniform(4));
  job.epochs = 1 + static_cast<int>(random->Uniform(2));
  job.max_inflight_pushes = 1 + static_cast<int>(random->Uniform(4));
  job.max_steps = random->Bernoulli(0.2) ? 5 : 0;
  job.evaluate_every = static_cast<int>(random->Uniform(2));
  const auto any = [&] { return PolicyAt(random->Uniform(kNumPolicies), random); };
  job.policy = PolicyAt(seed % kNumPolicies, random);
  job.second_policy = any();
  job.second_frozen = random->Bernoulli(0.1);
  job.dense_on_servers = random->Bernoulli(0.5);
  if (job.dense_on_servers) job.dense_policy = any();
  const bool momentum = random->Bernoulli(0.5);
  job.optimizer =
      momentum ? "kind: MOMENTUM learning_rate: 0.05" : "kind: ADAGRAD learning_rate: 0.1";
  if (job.dense_on_servers && momentum && random->Bernoulli(0.5)) {
    job.dense_policy = "kind: ORDERED_MOMENTUM";
  }
  if (job.dense_on_servers && absl::StrContains(job.dense_policy, "FIXED_DELAY")) {
    job.dense_optimizer = "error_feedback: 2";
  }
  job.order = true;
  return job;
}

// `seed`: of what may differ from run to run. `loses`: frames, and doubles them.
CheckedWorldOptions RandomWorld(const ToyModel::Options& model, bool loses, uint64_t seed) {
  Random random(seed);
  CheckedWorldOptions options;
  options.seed = seed;
  options.model = model;
  options.explain = false;  // the gradients are not those that the judge can read
  options.network.jitter *= 1 + 30 * random.NextDouble();
  options.fetch *= 1 + 10 * random.NextDouble();
  if (loses && random.Bernoulli(0.5)) {
    options.network.drop = 0.03 * random.NextDouble();
    options.network.duplicate = 0.1 * random.NextDouble();
    options.network.reorder = random.Bernoulli(0.5);
  }
  return options;
}

ToyModel::Options RandomModel(const SimJob& job, uint64_t seed, Random* random) {
  ToyModel::Options model;
  model.seed = seed;
  for (int rank = 0; rank < job.workers; ++rank) {
    model.batches.push_back(static_cast<int>(random->Uniform(12)));
  }
  return model;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

int64_t RowsThatDiffer(SimRun* a, SimRun* b) {
  int64_t differ = 0;
  for (const auto& [table, key] : a->world->TrainedRows()) {
    if (table >= a->plan.tables.size() || a->plan.tables[table].dense) continue;  // below
    if (!SameBits(a->world->Row(table, key), b->world->Row(table, key))) ++differ;
  }
  for (int rank = 0; rank < a->plan.workers(); ++rank) {
    if (!SameBits(a->world->DenseValues(rank), b->world->DenseValues(rank))) ++differ;
  }
  return differ;
}

// In every second job rows come and go.
TEST(ReplayTest, ARunInItsRecordedOrderHasItsBits) {
  const uint64_t count = SeedCount(200);
  int differed = 0;
  uint64_t evicted = 0, caught_up = 0;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + count; ++seed) {
    SCOPED_TRACE(absl::StrCat("see it again with TANDEM_SIM_SEEDS=1 and --seed=", seed));
    Random random(seed);
    SimJob job = RandomJob(seed, &random);
    if (random.Bernoulli(0.5)) AddRowRules(seed, /*at_budget=*/false, &job);
    if (seed % 2 == 0) AddTypes(seed, &job);
    caught_up += job.catch_up || job.second_catch_up ? 1 : 0;
    const ToyModel::Options model = RandomModel(job, seed, &random);
    // What DC_ASGD remembers of a read may give way to another answer of it, if a network doubles
    // it.
    const bool loses = job.Text().find("DC_ASGD") == std::string::npos;
    CheckedWorldOptions first = RandomWorld(model, loses, random.Next64());
    if (random.Bernoulli(0.3))
      first.checkpoints.push_back(absl::Seconds(0.2 * random.NextDouble()));
    SimRun recorded(job, first);
    ASSERT_TRUE(recorded.ok());
    CheckedWorldOptions again = RandomWorld(model, loses, random.Next64());
    // A push may wait longer for its turn than an answer may take.
    if (random.Bernoulli(0.2)) again.compute = absl::Seconds(35);
    again.limit = absl::Hours(10);
    SimRun free(job, again);
    ASSERT_TRUE(free.ok());
    differed += RowsThatDiffer(&recorded, &free) > 0 ? 1 : 0;

    again.replay = std::make_shared<std::map<uint32_t, std::vector<server::OrderEntry>>>(
        recorded.world->servers().order());
    SimRun replayed(job, again);
    ASSERT_TRUE(replayed.ok());
    ASSERT_EQ(RowsThatDiffer(&recorded, &replayed), 0) << job.Text();
    const server::RowCounts rows = RowCountsOf(recorded.plan, *recorded.world);
    const server::RowCounts again_rows = RowCountsOf(replayed.plan, *replayed.world);
    ASSERT_EQ(rows.admitted, again_rows.admitted) << job.Text();
    ASSERT_EQ(rows.refused, again_rows.refused) << job.Text();
    evicted += rows.evicted;
    // The order is that which was asked for, read by read.
    ASSERT_EQ(recorded.world->servers().order().size(), replayed.world->servers().order().size());
    for (const auto& [range, order] : recorded.world->servers().order()) {
      const std::vector<server::OrderEntry>& taken = replayed.world->servers().order().at(range);
      ASSERT_EQ(order.size(), taken.size());
      for (size_t i = 0; i < order.size(); ++i) {
        server::OrderEntry want = order[i];
        if (want.rows == 0) want.version_read = taken[i].version_read;  // it read nothing there
        ASSERT_EQ(std::memcmp(&want, &taken[i], sizeof want), 0)
            << "range " << range << " entry " << i << ": worker " << want.worker << " step "
            << want.step << ", taken: worker " << taken[i].worker << " step " << taken[i].step;
      }
    }
  }
  if (count < 100) return;
  EXPECT_GT(differed, static_cast<int>(count) / 2);  // else nothing was to be repeated
  EXPECT_GT(evicted, count / 4);
  EXPECT_GT(caught_up, count / 100);
}

TEST(ReplayTest, APushThatTheRecordedRunHadNotEndsIt) {
  SimJob job;
  job.policy = "kind: ASP";
  job.order = true;
  SimRun recorded(job, EvenWorld(job, 6, TestSeed()));
  ASSERT_TRUE(recorded.ok());
  auto order = std::make_shared<std::map<uint32_t, std::vector<server::OrderEntry>>>(
      recorded.world->servers().order());
  for (auto& [range, entries] : *order) {
    for (server::OrderEntry& entry : entries) {
      if (entry.worker == 1 && entry.step == 3) entry.samples += 1;
    }
  }
  CheckedWorldOptions options = EvenWorld(job, 6, TestSeed());
  options.replay = order;
  const job::ResolvedJob plan = job.Plan();
  auto world = CheckedWorld::New(plan, options);
  ASSERT_TRUE(world.ok()) << world.status();
  const absl::Status status = (*world)->Run();
  EXPECT_NE(status.message().find("not as recorded: range "), std::string::npos) << status;
  EXPECT_NE(status.message().find("worker 1 pushes step 3"), std::string::npos) << status;
}

}  // namespace
}  // namespace tandem
