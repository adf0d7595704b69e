// Whole clusters under random jobs, faults, stragglers and range moves, thousands of them. Each run
// is judged by World (tools/sim/world.h says by what). To see one seed again:
//   TANDEM_SIM_SEEDS=1 tests/world_test --seed=N --gtest_filter=WorldTest.SurvivesAnything
#include "tests/sim/proof/checked_world.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/rows/page_arena.h"
#include "tests/sim/proof/row_lives.h"
#include "tests/sim/proof/toy_runner.h"
#include "tests/sim/random_job.h"
#include "tests/sim/row_rules.h"
#include "tests/sim/sim_job.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

// Tables do not take steps together, as sums do not.
SimJob RandomJobForQuorums(Random* random) {
  SimJob job = RandomJob(random);
  job.workers = 2 + static_cast<int>(random->Uniform(5));
  job.dense_on_servers = false;
  job.dense_policy.clear();
  job.policy = RandomPolicy(job.depth, /*lockstep=*/false, random);
  job.second_policy =
      random->Bernoulli(0.5) ? "" : RandomPolicy(job.depth, /*lockstep=*/false, random);
  job.slow_workers = RandomStepTime(job.workers, random);
  if (random->Bernoulli(0.2)) {
    job.patience = static_cast<int>(random->Uniform(3));
    job.epochs = 6;
    job.max_steps = 0;
    job.evaluate_every = 1;
  }
  return job;
}

// Of gradients; sometimes beside backup workers, where a worker's next gradient may be of a step
// far on.
SimJob RandomSumsJob(Random* random) {
  SimJob job = RandomJobForQuorums(random);
  job.dense = absl::StrCat("synchroniser: ALLREDUCE algorithm: ", job.algorithm,
                           " quorum: ", random->Bernoulli(0.5) ? "SOLO" : "MAJORITY",
                           " quorum_bound: ", 1 + random->Uniform(4), " ");
  if (!random->Bernoulli(0.3)) return job;
  job.policy = BackupWorkers(job.workers, random);
  if (random->Bernoulli(0.5)) job.second_policy.clear();
  return job;
}

// Replicas that meet in steps of their own, in sync rounds that do not wait for all.
SimJob RandomSyncRoundsJob(Random* random) {
  SimJob job = RandomJobForQuorums(random);
  const uint64_t others = static_cast<uint64_t>(job.workers) - 1;
  job.dense = absl::StrCat(
      "synchroniser: LOCAL_SGD algorithm: ", job.algorithm,
      " quorum_bound: ", 1 + random->Uniform(4),
      " local_steps { sync_every: ", 1 + random->Uniform(5),
      " quorum: ", 1 + random->Uniform(others),
      random->Bernoulli(0.5) ? absl::StrCat(" grace_seconds: ", 0.04 * random->NextDouble()) : "",
      random->Bernoulli(0.5) ? " outer_learning_rate: 0.7 outer_momentum: 0.9" : "");
  if (absl::StrContains(job.dense, "outer_momentum") && random->Bernoulli(0.5)) {
    absl::StrAppend(&job.dense,
                    " outer_optimizer: ", random->Bernoulli(0.5) ? "DELAYED_NESTEROV" : "HELOCO");
  }
  absl::StrAppend(&job.dense, " } ");
  return job;
}

// In every third job rows come and go, and in every tenth they have types smaller than F32.
TEST(WorldTest, SurvivesAnything) {
  const uint64_t count = SeedCount(4000);
  int moves = 0, breaks = 0, checkpoints = 0, full_disks = 0;
  uint64_t resent = 0, at_budget = 0;
  server::RowCounts rows;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + count; ++seed) {
    SCOPED_TRACE(absl::StrCat("see it again with TANDEM_SIM_SEEDS=1 and --seed=", seed));
    Random random(seed);
    SimJob job = RandomJob(&random);
    if (seed % 3 == 0) AddRowRules(seed, /*at_budget=*/true, &job);
    const bool typed = seed % 10 == 7;
    if (typed) AddTypes(seed, &job);
    CheckedWorldOptions options = RandomWorld(job, seed, &random);
    options.explain = !typed;
    AddBudget(seed, job, &options);
    options.no_room = RandomFullDisk(seed, 40);
    SimRun run(job, options);
    if (!run.ok()) break;  // one trace is enough to read
    rows.Merge(RowCountsOf(run.plan, *run.world));
    at_budget += WasAtBudget(run.plan, *run.world) ? 1 : 0;
    full_disks += run.world->parts().context.full_disks;
    moves += run.world->moves();
    breaks += run.world->breaks();
    checkpoints += run.world->checkpoints();
    resent += run.world->frames_resent();
  }
  if (count < 100) return;
  EXPECT_GT(moves, static_cast<int>(count));  // else the faults were not there
  EXPECT_GT(breaks, static_cast<int>(count) / 10);
  EXPECT_GT(checkpoints, static_cast<int>(count) / 10);
  EXPECT_GT(full_disks, static_cast<int>(count) / 20);
  EXPECT_GT(resent, count);
  EXPECT_GT(rows.admitted, count);
  EXPECT_GT(rows.refused, count);
  EXPECT_GT(rows.evicted, count / 4);
  EXPECT_GT(rows.to_fresh_rows, count / 100);
  EXPECT_GT(rows.came_back, count / 100);
  EXPECT_GT(at_budget, count / 100);  // one job in 12 has AT_BUDGET
}

// A row with an admission by COUNT, and an eviction by AGE or LRU, has updates at versions 0, 1, 2
// and 6. It may have the values that the rules allow, and no others.
TEST(RowLivesTest, ARowHasTheUpdatesOfOneLife) {
  using Want = RowLives::Want;
  using Moment = RowLives::Moment;
  SimJob job;
  job.workers = 2;
  for (const bool certain : {true, false}) {
    job.row_rules =
        absl::StrCat(" admission { kind: COUNT threshold: 2 } eviction { ",
                     certain ? "kind: AGE versions: 3" : "kind: LRU max_rows: 1", " } ");
    const job::ResolvedJob plan = job.Plan();
    const RowRules rules(plan.tables[0]);
    ASSERT_EQ(rules.certain(), certain);
    RowLives lives(&rules, job.workers, /*range=*/0);
    EXPECT_TRUE(lives.Add(1, 0, {0, 0, 5, 1}));
    EXPECT_TRUE(lives.Add(2, 1, {0, 1, 6, 1}));   // creates the row
    EXPECT_FALSE(lives.Add(2, 1, {1, 0, 7, 1}));  // of the same fold
    EXPECT_TRUE(lives.Add(3, 2, {1, 1, 8, 1}));
    EXPECT_TRUE(lives.Add(4, 6, {0, 2, 9, 1}));  // by AGE it is refused
    const auto may_be = [&](std::vector<float> taken, size_t seen, Moment moment,
                            Want want = Want::kAny) {
      std::vector<float> row;
      for (const float of_element : taken) row.push_back(ToyModel::kFirstCount - of_element);
      row.push_back(0.5);  // a value
      if (taken == std::vector<float>({0, 0, 0})) row.back() = ToyModel::kFirstCount;
      return lives.Check(row, seen, seen, moment, want).ok();
    };
    EXPECT_TRUE(may_be({0, 0, 0}, 0, {}));
    EXPECT_TRUE(may_be({0, 0, 0}, 1, {})) << "refused";
    EXPECT_FALSE(may_be({1, 0, 5}, 1, {}));
    EXPECT_TRUE(may_be({1, 1, 13}, 2, {}));
    EXPECT_FALSE(may_be({1, 1, 14}, 2, {})) << "other tickets";
    EXPECT_FALSE(may_be({2, 1, 18}, 2, {})) << "an update from before the row";
    EXPECT_FALSE(may_be({1, 0, 6}, 2, {})) << "half a fold";
    EXPECT_TRUE(may_be({1, 2, 21}, 3, {}));
    EXPECT_FALSE(may_be({1, 1, 13}, 3, {})) << "too early";
    EXPECT_EQ(may_be({0, 1, 8}, 3, {}), !certain) << "a life that LRU may have begun";
    EXPECT_FALSE(may_be({1, 2, 21}, 3, {}, Want::kAbsent));
    EXPECT_EQ(may_be({0, 0, 0}, 3, Moment::At(5)), !certain) << "not too old yet";
    EXPECT_TRUE(may_be({0, 0, 0}, 3, Moment::At(6)));
    EXPECT_FALSE(may_be({0, 0, 0}, 3, Moment::At(6), Want::kRow));
    EXPECT_TRUE(may_be({1, 2, 21}, 3, Moment::At(5)));
    EXPECT_EQ(may_be({1, 2, 21}, 3, Moment::At(6)), !certain) << "too old";
    EXPECT_FALSE(may_be({1, 2, 21}, 3, Moment::At(7))) << "read after the next update";
    EXPECT_TRUE(may_be({0, 0, 0}, 4, Moment::At(7))) << "a new count";
    EXPECT_EQ(may_be({2, 2, 30}, 4, {}), !certain) << "of two lives";
    EXPECT_FALSE(may_be({2, 0, 15}, 4, {})) << "a mix of two lives";
    const std::vector<int64_t> below = {2, 1};
    EXPECT_EQ(lives.AtLeast(below), 2u);
    EXPECT_EQ(lives.AtMost(below), 2u);
    EXPECT_EQ(lives.Before(2), 2u);
    lives.Cut([](const RowLives::Part& part) { return part.rank == 0 || part.step < 1; });
    EXPECT_EQ(lives.size(), 2u);
  }
}

// The same where rows are kept, in both tables. What SSP promises is what the judge holds every
// read to; here that the cache is at work. In every second job rows come and go.
TEST(WorldTest, KeptRowsSurviveAnything) {
  const uint64_t count = SeedCount(400);
  uint64_t cached = 0;
  server::RowCounts rows;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + count; ++seed) {
    SCOPED_TRACE(absl::StrCat("see it again with TANDEM_SIM_SEEDS=1 and --seed=", seed));
    Random random(HashCombine(seed, 15));
    SimJob job = RandomJob(&random);
    job.policy = Essp(job.depth + static_cast<int>(random.Uniform(4)), &random);
    job.second_policy.clear();
    job.dense_policy = random.Bernoulli(0.5) ? "" : "kind: ASP";
    CheckedWorldOptions options = RandomWorld(job, seed, &random);
    for (int& batches : options.model.batches) batches *= 3;
    if (seed % 2 == 0) AddRowRules(seed, /*at_budget=*/true, &job);
    AddBudget(seed, job, &options);
    SimRun run(job, options);
    if (!run.ok()) break;  // one trace is enough to read
    cached += run.world->rows_cached();
    rows.Merge(RowCountsOf(run.plan, *run.world));
  }
  if (count < 100) return;
  EXPECT_GT(cached, 4 * count);
  EXPECT_GT(rows.evicted, count / 4);
}

// All tables have eviction AT_BUDGET, so a full server evicts a row for each new one or refuses
// the new one. World compares the memory of each server with its budget after each event, also
// while ranges move and checkpoints are copied.
TEST(WorldTest, RowsAtTheBudgetSurviveAnything) {
  const uint64_t count = SeedCount(200);
  uint64_t at_budget = 0, checkpoints = 0, moves = 0;
  server::RowCounts rows;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + count; ++seed) {
    SCOPED_TRACE(absl::StrCat("see it again with TANDEM_SIM_SEEDS=1 and --seed=", seed));
    Random random(HashCombine(seed, 33));
    SimJob job = RandomJob(&random);
    job.second_frozen = false;
    for (std::string* policy : {&job.policy, &job.second_policy}) {
      if (absl::StrContains(*policy, "mean_square_decay")) *policy = "kind: ASP";
    }
    job.row_rules = job.second_row_rules = " eviction { kind: AT_BUDGET } ";
    CheckedWorldOptions options = RandomWorld(job, seed, &random);
    for (int& batches : options.model.batches) batches *= 3;
    AddBudget(seed, job, &options);
    SimRun run(job, options);
    if (!run.ok()) break;  // one trace is enough to read
    at_budget += WasAtBudget(run.plan, *run.world) ? 1 : 0;
    rows.Merge(RowCountsOf(run.plan, *run.world));
    checkpoints += static_cast<uint64_t>(run.world->checkpoints());
    moves += static_cast<uint64_t>(run.world->moves());
    if (seed % 50 != 0) continue;
    SimRun again(job, options);
    EXPECT_EQ(again.world->trace_hash(), run.world->trace_hash());
  }
  if (count < 100) return;
  EXPECT_GT(at_budget, count / 2);  // else the budgets were too large
  EXPECT_GT(rows.admitted, count);
  EXPECT_GT(rows.evicted, count);
  EXPECT_GT(rows.refused, count);
  EXPECT_GT(checkpoints, count / 10);
  EXPECT_GT(moves, count / 2);
}

// Rows that do not make room take more than their part of the memory. The server says so, and the
// job ends with one line and a checkpoint that has all updates (CheckpointCheck).
TEST(WorldTest, AFullServerEndsTheJobWithALastCheckpoint) {
  for (uint64_t seed = TestSeed(); seed < TestSeed() + SeedCount(20); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SimJob job;  // each server has three ranges of each table
    job.policy = "kind: ASP";
    CheckedWorldOptions options = EvenWorld(job, 60, seed);
    options.network.drop = 0.02;
    options.moves_per_second = 10;
    options.row_bytes = 4 * server::PageArena::kPage;
    options.no_room = RandomFullDisk(seed, 15);
    const job::ResolvedJob plan = job.Plan();
    const auto world = CheckedWorld::New(plan, options);
    ASSERT_TRUE(world.ok()) << world.status();
    const absl::Status run = (*world)->Run();
    EXPECT_TRUE(absl::StrContains(run.message(), "the scheduler ends the job: server ")) << run;
    const std::string line((*world)->parts().scheduler.core().result().message());
    for (const char* const part :
         {" rows take ", "; the server uses ",
          " bytes, and the rest is for a last checkpoint; the checkpoint of step ",
          " is in model; hint: --resume with a larger cluster.memory_per_server"}) {
      EXPECT_TRUE(absl::StrContains(line, part)) << line;
    }
    EXPECT_FALSE(absl::StrContains(line, "\n")) << line;
    EXPECT_EQ((*world)->checkpoints(), 1);
    if (testing::Test::HasFailure()) {
      ADD_FAILURE() << "last events:\n" << (*world)->TraceText();
      break;
    }
  }
}

// Jobs whose dense sums do not wait for all. tests/sim/proof/quorum_judge.h lists the checks of
// each read, sum, evaluation and checkpoint. Here: some gradients were late, as late as they may
// be, and every fault occurred. `least`: gradients a seed.
void QuorumSurvivesAnything(uint64_t salt, SimJob (*random_job)(Random*), int longer,
                            uint64_t least) {
  const uint64_t count = SeedCount(200);
  uint64_t gradients = 0, at_the_bound = 0, checkpoints = 0, resumes = 0, early = 0;
  int64_t missed = 0;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + count; ++seed) {
    SCOPED_TRACE(absl::StrCat("see it again with TANDEM_SIM_SEEDS=1 and --seed=", seed));
    Random random(HashCombine(seed, salt));
    const SimJob job = random_job(&random);
    CheckedWorldOptions options = RandomWorld(job, seed, &random);
    for (int& batches : options.model.batches) batches *= longer;
    options.resume_dense = random.Bernoulli(0.5);
    if (job.patience >= 0) options.evaluate = true;
    options.no_room = RandomFullDisk(seed, 40);
    SimRun run(job, options);
    if (!run.ok()) break;  // one trace is enough to read
    const QuorumJudge& quorum = run.world->quorum();
    ASSERT_LE(quorum.max_missed(), run.plan.job.dense().quorum_bound());
    at_the_bound += quorum.max_missed() == run.plan.job.dense().quorum_bound() ? 1 : 0;
    gradients += quorum.gradients();
    missed += quorum.missed();
    checkpoints += static_cast<uint64_t>(run.world->checkpoints());
    resumes += static_cast<uint64_t>(run.world->resumes());
    if (job.patience >= 0) early += run.world->evaluations() < job.epochs ? 1 : 0;
    if (seed % 50 != 0) continue;
    SimRun again(job, options);
    EXPECT_EQ(again.world->trace_hash(), run.world->trace_hash());
  }
  if (count < 100) return;
  EXPECT_GT(gradients, least * count);
  EXPECT_GT(missed, static_cast<int64_t>(gradients) / 10);
  EXPECT_GT(at_the_bound, count / 10);
  EXPECT_GT(checkpoints, count / 10);
  EXPECT_GT(resumes, checkpoints / 5);  // of about half
  EXPECT_GT(early, 0u);
}

TEST(WorldTest, SumsOfAQuorumSurviveAnything) {
  QuorumSurvivesAnything(17, RandomSumsJob, /*longer=*/3, /*least=*/20);
}

TEST(WorldTest, SyncRoundsOfAQuorumSurviveAnything) {
  QuorumSurvivesAnything(19, RandomSyncRoundsJob, /*longer=*/6, /*least=*/20);
}

// Two workers make the quorum, and the third takes 8 ms more to each sync round: within the grace
// nobody is late, and all go on at its pace; beyond it the two go on after the grace. Virtual time
// has no noise.
TEST(WorldTest, ASyncRoundWaitsForItsGraceAndNoLonger) {
  constexpr int kBatches = 120, kEvery = 4, kSyncRounds = kBatches / kEvery;
  const auto run_with = [](int quorum, double grace) {
    SimJob job;
    job.policy = "kind: ASP";
    job.slow_workers =
        "slow_workers { mean_seconds: 0.01 } slow_workers { worker: 2 mean_seconds: 0.012 } ";
    job.dense = absl::StrCat("synchroniser: LOCAL_SGD ", quorum < 3 ? "quorum_bound: 30 " : "",
                             "local_steps { sync_every: ", kEvery,
                             quorum < 3 ? absl::StrCat(" quorum: ", quorum) : "",
                             grace > 0 ? absl::StrCat(" grace_seconds: ", grace) : "", " } ");
    CheckedWorldOptions options = EvenWorld(job, kBatches, TestSeed());
    options.network.delay = options.network.jitter = absl::Microseconds(1);
    options.evaluate = false;
    return std::make_unique<SimRun>(job, options);
  };
  const auto all = run_with(3, 0), patient = run_with(2, 0.02), hasty = run_with(2, 0.004),
             none = run_with(2, 0);
  for (const auto* run : {&all, &patient, &hasty, &none}) ASSERT_TRUE((*run)->ok());
  EXPECT_EQ(patient->world->quorum().missed(), 0);
  EXPECT_EQ(patient->world->quorum().gradients(), uint64_t{3 * kSyncRounds});
  EXPECT_LT(absl::AbsDuration(patient->world->elapsed() - all->world->elapsed()),
            absl::Milliseconds(40));
  EXPECT_GT(hasty->world->quorum().missed(), 0);
  EXPECT_GT(none->world->quorum().missed(), 0);
}

// Tables on workers: rows dealt over them, or a copy of all at each. (A copy is not moved: it is
// that of its worker. At the end all copies are compared.)
TEST(WorldTest, TablesOnWorkersSurviveAnything) {
  const uint64_t count = SeedCount(200);
  uint64_t resent = 0, checkpoints = 0, moves = 0, replicated = 0;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + count; ++seed) {
    SCOPED_TRACE(absl::StrCat("see it again with TANDEM_SIM_SEEDS=1 and --seed=", seed));
    Random random(HashCombine(seed, 18));
    const bool copies = random.Bernoulli(0.5);
    SimJob job = RandomJob(&random);
    job.placement = copies ? "REPLICATED" : "SHARDED";
    job.policy = "kind: BSP";
    job.second_policy.clear();
    job.dense_on_servers = random.Bernoulli(0.3);
    job.dense_policy.clear();
    if (!job.dense_on_servers && random.Bernoulli(0.7)) job.servers = 0;
    CheckedWorldOptions options = RandomWorld(job, seed, &random);
    if (copies) options.moves_per_second = 0;
    SimRun run(job, options);
    if (!run.ok()) break;  // one trace is enough to read
    replicated += copies ? 1 : 0;
    resent += run.world->frames_resent();
    checkpoints += static_cast<uint64_t>(run.world->checkpoints());
    moves += static_cast<uint64_t>(run.world->moves());
  }
  if (count < 100) return;
  EXPECT_GT(resent, count);
  EXPECT_GT(checkpoints, count / 10);
  EXPECT_GT(moves, count / 2);
  EXPECT_GT(replicated, count / 4);
}

// Steps take now less and now more: who does not wait for all of them is faster, and who waits for
// fewer has later gradients. (An epoch ends when the last worker is through its data, so the
// smaller quorum need not be the faster one.)
TEST(WorldTest, TheSmallerTheQuorumTheLaterTheGradients) {
  constexpr int kBatches = 300;
  absl::Duration all;
  double missed_before = 0.1;
  for (const std::string quorum : {"ALL", "MAJORITY", "SOLO"}) {
    SimJob job;
    job.workers = 5;
    job.policy = "kind: ASP";
    job.slow_workers = kExponential;
    job.dense = absl::StrCat("synchroniser: ALLREDUCE quorum: ", quorum,
                             quorum == "ALL" ? " " : " quorum_bound: 4 ");
    CheckedWorldOptions options = EvenWorld(job, kBatches, TestSeed());
    options.network.delay = options.network.jitter = absl::Microseconds(50);
    SimRun run(job, options);
    ASSERT_TRUE(run.ok()) << quorum;
    if (quorum == "ALL") {
      all = run.world->elapsed();
      continue;
    }
    EXPECT_LT(run.world->elapsed(), 0.8 * all) << quorum;
    const QuorumJudge& sums = run.world->quorum();
    EXPECT_EQ(sums.gradients(), static_cast<uint64_t>(job.workers) * kBatches);
    const double missed =
        static_cast<double>(sums.missed()) / static_cast<double>(sums.gradients());
    EXPECT_GT(missed, 1.15 * missed_before) << quorum;
    missed_before = missed;
  }
}

// How old what is kept may be, where a push is at all ranges at once: an update of each other
// worker for each step that the two may be apart either way, and of its own those since the row was
// known last.
TEST(WorldTest, KeptRowsAreNoOlderThanTheBoundAllows) {
  constexpr int kBatches = 60;
  uint64_t records = 0, cached = 0;
  int64_t oldest = 0;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + 40; ++seed) {
    Random random(HashCombine(seed, 16));
    SimJob job;
    job.workers = 2 + static_cast<int>(random.Uniform(3));
    job.servers = 1;
    job.dense_on_servers = true;
    job.depth = static_cast<int>(random.Uniform(3));
    const int bound = job.depth + static_cast<int>(random.Uniform(3));
    job.policy = Essp(bound, &random);
    job.slow_workers = kTransient;
    CheckedWorldOptions options = EvenWorld(job, kBatches, seed);
    options.network.drop = 0.02;
    options.network.reorder = true;
    options.frame_bytes = size_t{1} << 20;
    SimRun run(job, options);
    ASSERT_TRUE(run.ok()) << "seed " << seed;
    cached += run.world->rows_cached();
    for (const server::UpdateRecord& r : run.world->records()) {
      // That a worker is out of data is one version more, which it waits for nobody with.
      if (r.step >= kBatches - 1 - bound) continue;
      const int64_t staleness = r.version_applied - r.version_read;
      ASSERT_LE(r.clock_gap, bound) << "seed " << seed;
      ASSERT_LE(staleness, (job.workers - 1) * (2 * bound + 1) + bound) << "seed " << seed;
      oldest = std::max(oldest, staleness);
      ++records;
    }
  }
  EXPECT_GT(records, 5000u);
  EXPECT_GT(cached, 4000u);
  EXPECT_GT(oldest, 6);
}

// Rows that nothing changes: a worker reads each of them once, and once more when it is first told
// of its range. If it may keep only some, it reads more.
TEST(WorldTest, FrozenRowsAreReadOnce) {
  SimJob job;
  job.policy = "kind: ASP";
  job.second_frozen = true;
  job.dense_on_servers = true;
  const CheckedWorldOptions options = EvenWorld(job, 60, TestSeed());
  uint64_t cached[2] = {}, asked = 0;
  for (const bool small : {false, true}) {
    job.second_policy = absl::StrCat("kind: ESSP bound: 3 cache_rows: ", small ? 6 : 0);
    SimRun run(job, options);
    ASSERT_TRUE(run.ok());
    cached[small] = run.world->rows_cached();
    asked = 0;
    for (int rank = 0; rank < job.workers; ++rank) {
      for (int64_t index = 0; run.world->model().Samples(rank, 0, index) > 0; ++index) {
        data::Batch batch;
        run.world->model().FillBatch(rank, 0, index, &batch);
        asked += batch.sparse[1].keys.size();
      }
    }
  }
  const uint64_t rows = static_cast<uint64_t>(options.model.universe * job.workers);
  EXPECT_GT(asked, 5 * rows);
  EXPECT_GE(cached[false], asked - 2 * rows);
  EXPECT_LT(cached[true], cached[false]);
  EXPECT_GT(cached[true], 0u);
}

// A whole job in which every update is a known number: each row ends at its initial value less 1/N
// of what would be taken without the scale. World explains the rows from what the policy says; here
// the same sum once more, by hand.
TEST(WorldTest, InverseWorkersTakesOneNthOfEveryUpdate) {
  for (const std::string policy : {"kind: ASP", "kind: SSP bound: 2"}) {
    SimJob job;
    job.workers = 4;
    job.policy = policy + " async_scale: INVERSE_WORKERS";
    job.dense_on_servers = true;
    SimRun run(job, EvenWorld(job, 12, TestSeed()));
    ASSERT_TRUE(run.ok());
    const ToyModel& model = run.world->model();
    std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> want;  // counts, by row
    for (int rank = 0; rank < job.workers; ++rank) {
      for (int64_t index = 0; model.Samples(rank, 0, index) > 0; ++index) {
        data::Batch batch;
        model.FillBatch(rank, 0, index, &batch);
        for (const data::SparseInput& input : batch.sparse) {
          for (const uint64_t key : input.keys) {
            std::vector<float>& row = want[{input.table, key}];
            row.resize(static_cast<size_t>(job.workers), ToyModel::kFirstCount);
            row[static_cast<size_t>(rank)] -= 1.0f / 4;  // the mean over its samples is 1
          }
        }
      }
    }
    EXPECT_GT(want.size(), 10u);
    for (const auto& [at, counts] : want) {
      std::vector<float> row = run.world->Row(at.first, at.second);
      row.resize(counts.size());
      EXPECT_EQ(row, counts) << policy << ", table " << at.first << " key " << at.second;
    }
  }
}

// What the budget of held updates counts on: a range has one step open, and as many more as a
// worker may have pushes unacknowledged, also when they are late to one shard only. To have them
// all open takes workers that have no row of the late range to read in so many steps, so batches
// have one key.
TEST(WorldTest, RangesHaveNoMoreOpenStepsThanPushesMayBeUnacknowledged) {
  for (const int unacknowledged : {1, 3}) {
    int64_t most = 0;
    for (uint64_t seed = TestSeed(); seed < TestSeed() + 60; ++seed) {
      SimJob job;
      job.servers = 4;
      job.policy = seed % 2 == 0 ? "kind: BSP" : "kind: FIXED_DELAY delay: 2";
      job.dense_on_servers = true;
      job.max_inflight_pushes = unacknowledged;
      job.depth = static_cast<int>(seed % 3);
      CheckedWorldOptions options = EvenWorld(job, 20, seed);
      options.model.keys_per_batch = 1;
      options.network.drop = 0.1;
      options.network.jitter *= 10;
      SimRun run(job, options);
      ASSERT_TRUE(run.ok()) << "seed " << seed;
      ASSERT_LE(run.world->server_checks().max_open_steps(), 1 + unacknowledged) << "seed " << seed;
      most = std::max(most, run.world->server_checks().max_open_steps());
    }
    EXPECT_EQ(most, 1 + unacknowledged) << "or the bound was not put to the test";
  }
}

// The job is too large for statistics of each pair of a worker and a table, or of two workers. The
// counts of the report still equal those of the world (World::CheckCounts).
TEST(WorldTest, ManyWorkersAndTablesReportCheckpointAndEnd) {
  SimJob job;
  job.workers = 300;
  job.dense_on_servers = true;
  job.max_steps = 2;
  std::string text = job.Text();
  for (int t = 2; t < 16; ++t) {
    text +=
        job.TableText(absl::StrCat("t", t), job.workers + 2, absl::StrCat(" field: \"C", t, "\""),
                      /*its_policy=*/"", /*frozen=*/t == 2);
  }
  const absl::StatusOr<Job> parsed = job::ParseJob(text, "sim.textproto", {});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const absl::StatusOr<job::ResolvedJob> plan = job::Resolve(*parsed);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_FALSE(plan->CountsPairs() || plan->CountsWaitsInPairs());
  CheckedWorldOptions options = EvenWorld(job, 2, TestSeed());
  options.model.dense = job.workers + 1;
  options.model.universe = 4;
  options.model.keys_per_batch = 1;
  options.frame_bytes = 1 << 20;
  options.checkpoint_at_end = true;
  options.evaluate = options.explain = false;
  const auto world = CheckedWorld::New(*plan, options);
  ASSERT_TRUE(world.ok()) << world.status();
  const absl::Status run = (*world)->Run();
  ASSERT_TRUE(run.ok()) << run << "\n" << (*world)->TraceText();
  EXPECT_GE((*world)->checkpoints(), 1);
  const scheduler::JobReport& report = (*world)->report();
  uint64_t by_table = 0, by_worker = 0;
  double age = 0, age_by_worker = 0, waited = 0, awaited = 0;
  for (const TableReport& table : report.tables) {
    EXPECT_EQ(table.worker_size(), 0);
    if (plan->tables[2].name == table.table()) continue;  // the frozen one
    by_table += table.sent();
    age += table.age().sum();
  }
  ASSERT_EQ(report.updates_of.size(), 300u);
  for (const WorkerUpdates& worker : report.updates_of) {
    by_worker += worker.sent();
    age_by_worker += worker.age().sum();
  }
  EXPECT_GT(by_table, 300u);
  EXPECT_EQ(by_worker, by_table);
  EXPECT_EQ(age_by_worker, age);
  for (const double seconds : report.waited) waited += seconds;
  for (const double seconds : report.awaited) awaited += seconds;
  EXPECT_GT(waited, 0) << "a step of BSP ends when the last push has come";
  EXPECT_GT(awaited, 0);
}

// At an end of an epoch some may stand at the border while others are asked to checkpoint.
TEST(WorldTest, CheckpointsAtTheBordersOfEpochsAreOfOneMoment) {
  for (uint64_t seed = TestSeed(); seed < TestSeed() + SeedCount(30); ++seed) {
    SimJob job;
    job.policy = seed % 2 != 0 ? "kind: ASP" : "kind: BACKUP_WORKERS backups: 0";
    job.dense_on_servers = true;
    job.epochs = 20;
    CheckedWorldOptions options = EvenWorld(job, 2, seed);
    options.barrier_drop = 0.2;
    for (int i = 0; i < 300; ++i) options.checkpoints.push_back(absl::Milliseconds(10 * i));
    SimRun run(job, options);
    ASSERT_TRUE(run.ok()) << "seed " << seed;
  }
}

// Links to the scheduler break again and again, and with them what was on its way.
TEST(WorldTest, TheLastEvaluationIsReportedThoughLinksBreak) {
  for (uint64_t seed = TestSeed(); seed < TestSeed() + SeedCount(60); ++seed) {
    SimJob job;
    job.policy = "kind: ASP";
    job.dense_on_servers = true;
    job.epochs = 3;
    job.evaluate_every = 1;
    CheckedWorldOptions options = EvenWorld(job, 3, seed);
    options.breaks_per_second = 20;
    SimRun run(job, options);
    ASSERT_TRUE(run.ok()) << "seed " << seed;
    const nlohmann::json evaluation = nlohmann::json::parse(run.world->report().evaluation_json);
    EXPECT_EQ(evaluation["evaluation"], 3) << "seed " << seed;
    EXPECT_EQ(evaluation["epoch"], 3) << "seed " << seed;
  }
}

// Every row that was trained is in a progress line before the evaluation of its model, and at the
// end of the run, though the whole run is shorter than an interval.
TEST(WorldTest, EveryRowIsInALineBeforeItsEvaluation) {
  for (const char* policy : {"kind: BSP", "kind: ASP", "kind: SSP bound: 2"}) {
    SimJob job;
    job.policy = policy;
    job.epochs = 2;
    job.evaluate_every = 1;
    for (const bool on_servers : {false, true}) {
      job.dense_on_servers = on_servers;
      CheckedWorldOptions options = EvenWorld(job, 5, TestSeed());
      std::vector<int64_t> lines, before;
      options.on_notice = [&](absl::Duration, const scheduler::SchedulerNotice& notice) {
        using Kind = scheduler::SchedulerNotice::Kind;
        if (notice.kind == Kind::kProgress) lines.push_back(notice.progress.samples);
        if (notice.kind == Kind::kEvaluation) before.push_back(lines.empty() ? 0 : lines.back());
      };
      const SimRun run(job, options);
      ASSERT_TRUE(run.ok());
      const int64_t all = run.world->report().samples;
      ASSERT_EQ(lines.size(), 2u) << policy;
      EXPECT_EQ(lines, before) << policy;
      EXPECT_GT(lines[0], 0) << policy;
      EXPECT_LT(lines[0], all) << policy;
      EXPECT_EQ(lines[1], all) << policy;
    }
  }
}

// All workers end after the same epoch, whatever is lost on the way and whoever asks for
// checkpoints meanwhile, and what they saved is the best.
TEST(WorldTest, TheBestIsKeptAndTheRunEndsInTime) {
  int early = 0, checkpoints = 0, full_disks = 0;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + SeedCount(300); ++seed) {
    Random random(HashCombine(seed, 77));
    SimJob job;
    const char* const policies[] = {"kind: BSP", "kind: ASP", "kind: SSP bound: 2",
                                    "kind: FIXED_DELAY delay: 2", "kind: K_BATCH_ASYNC batches: 2"};
    job.policy = policies[seed % 5];
    job.dense_on_servers = seed % 2 == 0;
    job.epochs = 8;
    job.patience = static_cast<int>(random.Uniform(3));
    CheckedWorldOptions options = RandomWorld(job, seed, &random);
    options.evaluate = true;
    options.checkpoint_at_end = random.Bernoulli(0.8);
    options.no_room = RandomFullDisk(seed, 60);
    SimRun run(job, options);
    ASSERT_TRUE(run.ok()) << "seed " << seed;
    int best = 0, last = 0;
    double value = 0;
    while (last < job.epochs && (job.patience == 0 || last < best + job.patience)) {
      const double auc = ToyRunner::AucOf(options.model.seed, ++last);
      if (auc <= value) continue;
      value = auc;
      best = last;
    }
    const scheduler::JobReport& report = run.world->report();
    ASSERT_TRUE(report.best.has_value()) << "seed " << seed;
    EXPECT_EQ(report.best->epoch() + 1, best) << "seed " << seed;
    EXPECT_EQ(report.best->value(), value) << "seed " << seed;
    EXPECT_EQ(nlohmann::json::parse(report.evaluation_json)["epoch"], best) << "seed " << seed;
    EXPECT_EQ(run.world->evaluations(), last) << "seed " << seed;
    early += last < job.epochs ? 1 : 0;
    checkpoints += run.world->checkpoints();
    full_disks += run.world->parts().context.full_disks;
  }
  EXPECT_GT(early, 0);
  EXPECT_GT(checkpoints, 0);
  EXPECT_GT(full_disks, 0);
}

// A checkpoint at any moment of a job that ends with updates that are held back.
TEST(WorldTest, NoCheckpointFallsIntoTheEndOfADelay) {
  SimJob job;
  job.dense_on_servers = true;
  job.dense_policy = "kind: FIXED_DELAY delay: 3";
  const SimRun plain(job, EvenWorld(job, 6, TestSeed()));
  ASSERT_TRUE(plain.ok());
  const absl::Duration pause = plain.world->elapsed() / SeedCount(100);
  for (absl::Duration at; at < plain.world->elapsed(); at += pause) {
    CheckedWorldOptions options = EvenWorld(job, 6, TestSeed());
    options.checkpoints = {at};
    SimRun run(job, options);
    ASSERT_TRUE(run.ok()) << at;
  }
}

TEST(WorldTest, WithoutBackupsNothingIsDropped) {
  SimJob job;
  job.dense_on_servers = true;
  job.policy = "kind: BACKUP_WORKERS backups: 0";
  job.slow_workers = FourTimesAsSlow(2);
  CheckedWorldOptions options = EvenWorld(job, 7, TestSeed());
  options.model.batches = {7, 6, 7};
  const SimRun run(job, options);
  ASSERT_TRUE(run.ok());
  for (const server::UpdateRecord& r : run.world->records())
    EXPECT_NE(r.fate, server::kFateDropped);
}

// Three workers of which two close a step, one of them always slow: most of what it computes is
// dropped, everything is accounted for, and it holds nobody up.
TEST(WorldTest, BackupWorkersDropWhatIsLateAndGoOn) {
  SimJob job;
  job.dense_on_servers = true;
  job.slow_workers = FourTimesAsSlow(2);
  CheckedWorldOptions options = EvenWorld(job, 40, TestSeed());
  options.model.batches[2] = 10;
  job.policy = "kind: BSP";
  const SimRun together(job, options);
  ASSERT_TRUE(together.ok());
  job.policy = "kind: BACKUP_WORKERS backups: 1";
  const SimRun backups(job, options);
  ASSERT_TRUE(backups.ok());
  uint64_t late = 0, others = 0;
  for (const server::UpdateRecord& r : backups.world->records()) {
    if (r.fate == server::kFateDropped) ++(r.worker == 2 ? late : others);
  }
  EXPECT_GT(late, 30u);
  EXPECT_LT(others, late / 10);
  const server::UpdateStats stats = backups.world->Stats(0);
  EXPECT_EQ(stats.arrived, stats.merged + stats.dropped);
  EXPECT_GT(stats.merged, 0u);
  EXPECT_LT(backups.world->elapsed(), 0.8 * together.world->elapsed());
}

// The same beside dense sums that do not wait for it either, but for a few steps: tables drop its
// updates, and sums have all its gradients.
TEST(WorldTest, BesideBackupWorkersEveryGradientIsSummed) {
  SimJob job;
  job.policy = "kind: BACKUP_WORKERS backups: 1";
  job.dense = "synchroniser: ALLREDUCE quorum: MAJORITY quorum_bound: 2 ";
  job.slow_workers = FourTimesAsSlow(2);
  CheckedWorldOptions options = EvenWorld(job, 40, TestSeed());
  options.model.batches[2] = 10;
  const SimRun run(job, options);
  ASSERT_TRUE(run.ok());
  EXPECT_GT(run.world->Stats(0).dropped, 10u);
  EXPECT_EQ(run.world->quorum().gradients(), 90u);
  EXPECT_EQ(run.world->quorum().max_missed(), 2);
}

// Each worker marks a checkpoint at its own step, also while it computes. So updates are as stale
// as without checkpoints.
TEST(WorldTest, CheckpointsDoNotMakeAFastWorkerWaitForASlowOne) {
  for (const char* policy : {"kind: ASP", "kind: SSP bound: 8", "kind: K_BATCH_ASYNC batches: 2"}) {
    SimJob job;
    job.workers = 2;
    job.dense_on_servers = true;
    job.policy = policy;
    job.slow_workers = FourTimesAsSlow(1);
    double staleness[2] = {};
    int checkpoints = 0;
    for (const bool with : {false, true}) {
      CheckedWorldOptions options = EvenWorld(job, 100, TestSeed());
      for (int i = 1; with && i <= 20; ++i) {
        options.checkpoints.push_back(absl::Milliseconds(100 * i));
      }
      const SimRun run(job, options);
      ASSERT_TRUE(run.ok()) << policy;
      const server::Measure measure = run.world->Stats(0).version_staleness;
      staleness[with] = measure.sum / static_cast<double>(measure.count);
      checkpoints = run.world->checkpoints();
    }
    EXPECT_GT(checkpoints, 9) << policy;
    EXPECT_NEAR(staleness[1], staleness[0], 0.1 * staleness[0]) << policy;
  }
}

// A worker that has left out the steps before a checkpoint stands still there: the others do not
// wait for it in the sums of those steps, or they would never come to the checkpoint. Ranges move
// all the time, so a worker often hears late that it is late.
TEST(WorldTest, ACheckpointBehindStepsThatAreLeftOutIsReached) {
  SimJob job;
  job.workers = 2;
  job.servers = 3;
  job.ranges_per_shard = job.depth = 1;
  job.max_inflight_pushes = 3;
  job.slow_workers = kExponential;
  job.policy = "kind: BACKUP_WORKERS backups: 1";
  job.dense = "synchroniser: ALLREDUCE quorum: MAJORITY quorum_bound: 3 ";
  const uint64_t count = SeedCount(10);
  uint64_t dropped = 0, checkpoints = 0;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + count; ++seed) {
    CheckedWorldOptions options = EvenWorld(job, 40, seed);
    options.network.drop = 0.03;
    options.moves_per_second = 100;
    for (int i = 1; i <= 12; ++i) options.checkpoints.push_back(absl::Milliseconds(30 * i));
    const SimRun run(job, options);
    ASSERT_TRUE(run.ok()) << "seed " << seed;
    checkpoints += static_cast<uint64_t>(run.world->checkpoints());
    dropped += run.world->Stats(0).dropped;
  }
  if (count < 10) return;
  EXPECT_GT(checkpoints, count);
  EXPECT_GT(dropped, count);
}

std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> RowsUnder(const std::string& policy) {
  SimJob job;
  job.dense_on_servers = true;
  job.optimizer = "kind: ADAGRAD learning_rate: 0.3";
  job.slow_workers = kExponential;
  job.depth = 1;
  job.epochs = 2;
  job.policy = policy;
  CheckedWorldOptions options = EvenWorld(job, 30, TestSeed());
  options.model.batches = {30, 17, 25};
  options.explain = false;
  SimRun run(job, options);
  EXPECT_TRUE(run.ok()) << policy;
  std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> rows;
  for (const auto& [table, key] : run.world->TrainedRows()) {
    rows[{table, key}] = run.world->Row(table, key);
  }
  EXPECT_GT(rows.size(), 10u);
  return rows;
}

// One seed, one network: what each policy must be with the knob that makes it ASP, to the last bit,
// although the optimizer depends on the order of updates.
TEST(WorldTest, WithoutTheirKnobsTheyAreAsp) {
  const auto want = RowsUnder("kind: ASP");
  for (const std::string policy :
       {"kind: K_BATCH_ASYNC batches: 1", "kind: GBA batches: 1 token_gap: 1000",
        "kind: DC_ASGD compensation: 0", "kind: DSSP bound: 1000 upper_bound: 1000",
        "kind: SYNC_SWITCH switch_step: 0", "kind: RINGMASTER max_delay: 1000",
        "kind: DELAY_ADAPTIVE full_rate_delay: 1000"}) {
    EXPECT_EQ(RowsUnder(policy), want) << policy;
  }
  EXPECT_NE(RowsUnder("kind: RENNALA batches: 1"), want);
}

TEST(WorldTest, RennalaWithBatchesOfOneIsRingmasterWithADelayOfOne) {
  EXPECT_EQ(RowsUnder("kind: RENNALA batches: 1"), RowsUnder("kind: RINGMASTER max_delay: 1"));
}

// Beside a part that takes every step together nobody says that its data is at an end; what a batch
// still holds is applied all the same before each evaluation, also when the number of steps ends
// the job.
TEST(WorldTest, BatchesAreEmptyAtEvaluationsBesideALockstepPart) {
  for (const int max_steps : {0, 10}) {
    for (const std::string policy :
         {"kind: K_BATCH_ASYNC batches: 7", "kind: GBA batches: 7", "kind: RENNALA batches: 7"}) {
      SimJob job;
      job.policy = policy;
      job.epochs = max_steps == 0 ? 3 : 1;
      job.max_steps = max_steps;
      job.evaluate_every = 1;
      CheckedWorldOptions options = EvenWorld(job, 12, TestSeed());
      options.model.batches = {12, 5, 9};
      SimRun run(job, options);  // the judge looks at every row that an evaluation reads
      ASSERT_TRUE(run.ok()) << policy;
      const server::UpdateStats stats = run.world->Stats(0);
      EXPECT_EQ(stats.arrived, stats.merged + stats.dropped);
      EXPECT_GT(stats.merged, 0u);
    }
  }
}

TEST(WorldTest, TheSameSeedIsTheSameRun) {
  for (uint64_t seed = TestSeed(); seed < TestSeed() + SeedCount(20); ++seed) {
    uint64_t hash[2];
    for (uint64_t& h : hash) {
      Random random(seed);
      SimJob job = RandomJob(&random);
      if (seed % 2 == 0) AddRowRules(seed, /*at_budget=*/true, &job);
      CheckedWorldOptions options = RandomWorld(job, seed, &random);
      AddBudget(seed, job, &options);
      SimRun run(job, options);
      ASSERT_TRUE(run.ok()) << "seed " << seed;
      h = run.world->trace_hash();
    }
    EXPECT_EQ(hash[0], hash[1]) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tandem
