// Runs whose processes die: random jobs, in which scheduler, servers and workers crash, are stopped
// or cut off at random events, also while an attempt begins and in the middle of a checkpoint. Some
// runs resume on another number of servers. tests/sim/proof/lives.h lists the checks of each run.
// To repeat one seed:
//   TANDEM_SIM_SEEDS=1 tests/lives_test --seed=N --gtest_filter=LivesTest.SurvivesAnything
#include "tests/sim/proof/lives.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/hash.h"
#include "gtest/gtest.h"
#include "tests/sim/random_job.h"
#include "tests/sim/row_rules.h"
#include "tests/sim/sim_job.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Kind = Accident::Kind;
using Moment = SimDisk::Moment;

// An empty folder, in memory if possible.
class Folder {
 public:
  Folder() {
    const std::string in = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : testing::TempDir();
    std::string path = in + "/sim_lives_XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    path_ = path;
  }
  ~Folder() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A job, its accidents, and the run.
struct LivesRun {
  LivesRun(const SimJob& job, const CheckedWorldOptions& options, std::vector<Accident> accidents,
           const std::vector<Accident>& more = {}, const std::vector<SimJob>& later = {})
      : plan(job.Plan()), lives(plan, {options, folder.path(), accidents, more, PlansOf(later)}) {
    status = lives.Run();
    accidents.insert(accidents.end(), more.begin(), more.end());
    EXPECT_TRUE(status.ok()) << status << "\n"
                             << job.Text() << "accidents:\n  "
                             << absl::StrJoin(accidents, "\n  ",
                                              [](std::string* out, const Accident& accident) {
                                                out->append(accident.DebugString());
                                              })
                             << "\nattempt " << lives.attempts() - 1 << ", last events:\n"
                             << lives.world().TraceText();
  }
  bool ok() const { return status.ok(); }
  static std::vector<job::ResolvedJob> PlansOf(const std::vector<SimJob>& jobs) {
    std::vector<job::ResolvedJob> plans;
    for (const SimJob& job : jobs) plans.push_back(job.Plan());
    return plans;
  }

  const Folder folder;
  const job::ResolvedJob plan;
  Lives lives;
  absl::Status status;
};

using Rows = std::map<std::pair<uint32_t, uint64_t>, std::vector<float>>;

Rows RowsOf(CheckedWorld& world) {
  Rows rows;
  for (const auto& [table, key] : world.TrainedRows()) {
    if (key != ToyModel::kDenseKey) rows[{table, key}] = world.Row(table, key);
  }
  return rows;
}

// Whether the bits at the end depend on nothing that happens: every policy takes steps together,
// and which rows there are follows from the updates.
bool IsReproducible(const job::ResolvedJob& plan) {
  const bool chooses =
      std::any_of(plan.tables.begin(), plan.tables.end(), [](const job::TablePlan& table) {
        return table.eviction.kind() == Eviction::LRU ||
               table.eviction.kind() == Eviction::AT_BUDGET;
      });
  return !chooses &&
         std::all_of(plan.groups.begin(), plan.groups.end(),
                     [](const job::GroupPlan& group) { return group.properties.lockstep; });
}

// How a run ends: rows, dense values of each worker, samples.
struct Ending {
  explicit Ending(CheckedWorld& world, int workers)
      : rows(RowsOf(world)), samples(world.report().samples) {
    for (int rank = 0; rank < workers; ++rank) dense.push_back(world.DenseValues(rank));
  }
  friend bool operator==(const Ending&, const Ending&) = default;

  Rows rows;
  std::vector<std::vector<float>> dense;
  int64_t samples = 0;
};

// The first difference of two endings; empty if there is none.
std::string Difference(const Ending& run, const Ending& undisturbed) {
  for (const auto& [row, values] : undisturbed.rows) {
    const auto found = run.rows.find(row);
    if (found != run.rows.end() && found->second == values) continue;
    const std::vector<float> other = found == run.rows.end() ? std::vector<float>() : found->second;
    return absl::StrCat("row ", row.second, " of table ", row.first, ": ",
                        absl::StrJoin(other, " "), ", undisturbed ", absl::StrJoin(values, " "));
  }
  if (run.samples != undisturbed.samples) {
    return absl::StrCat(run.samples, " samples, undisturbed ", undisturbed.samples);
  }
  return run == undisturbed ? "" : "other rows, or other dense parameters";
}

// The job without accidents, in a calm network.
Ending Undisturbed(const SimJob& job, const CheckedWorldOptions& options) {
  CheckedWorldOptions calm = EvenWorld(job, 0, options.seed + 1);
  calm.model = options.model;
  calm.evaluate = options.evaluate;
  calm.explain = options.explain;
  SimRun run(job, calm);
  return Ending(*run.world, job.workers);
}

// Checkpoints all the time.
CheckedWorldOptions WithCheckpoints(CheckedWorldOptions options, absl::Duration period) {
  options.checkpoints.clear();
  for (int i = 1; i <= 200; ++i) options.checkpoints.push_back(i * period);
  return options;
}

// Chooses early and late events, because jobs differ in length and an attempt begins with
// registering and loading. Chooses moments in the middle of a checkpoint in 30 % of the cases.
std::vector<Accident> RandomAccidents(const job::ResolvedJob& plan, Random* random) {
  std::vector<EndpointId> all = {EndpointId::Scheduler()};
  for (int i = 0; i < plan.server_processes(); ++i) all.push_back(EndpointId::Shard(i, 0));
  for (int rank = 0; rank < plan.workers(); ++rank) all.push_back(EndpointId::Worker(rank));
  std::vector<Accident> accidents(1 + random->Uniform(4));
  for (Accident& accident : accidents) {
    constexpr Kind kKinds[] = {Kind::kCrash, Kind::kCrash, Kind::kCrash,  Kind::kReset,
                               Kind::kReset, Kind::kReset, Kind::kVanish, Kind::kStop,
                               Kind::kStop,  Kind::kStop,  Kind::kHoldUp, Kind::kHoldDown};
    if (random->Bernoulli(0.3)) {
      accident.kind = kKinds[random->Uniform(6)];
      // A damaged checkpoint of the best model leaves an older best one, which is not the newest.
      const bool keeps_best = plan.job.train().has_keep_best();
      accident.moment = static_cast<Moment>(random->Uniform(keeps_best ? 3 : 5));
      accident.number =
          static_cast<int64_t>(random->Uniform(accident.moment == Moment::kFile ? 16 : 3));
      continue;
    }
    accident.kind = kKinds[random->Uniform(std::size(kKinds))];
    accident.process = all[random->Uniform(all.size())];
    accident.event = random->Uniform(uint64_t{32} << random->Uniform(9));
    if (accident.kind < Kind::kStop) continue;
    accident.length = absl::Seconds(6 * random->NextDouble());
    const bool deadly = accident.kind != Kind::kHoldDown && random->Bernoulli(0.3);
    if (deadly) accident.length += absl::Seconds(10);
  }
  return accidents;
}

const char* const kOuterSteps[] = {
    " outer_learning_rate: 0.7 outer_momentum: 0.5",
    " outer_learning_rate: 0.7 outer_momentum: 0.5 outer_optimizer: DELAYED_NESTEROV",
    " outer_learning_rate: 0.7 outer_momentum: 0.5 outer_optimizer: HELOCO"};

// A random job. Some jobs are reproducible. Some have tables on workers, replicas with sync rounds,
// or train.keep_best.
SimJob RandomJobOfLives(Random* random) {
  SimJob job = RandomJob(random);
  const double kind = random->NextDouble();
  if (kind < 0.4) {
    job.policy = kind < 0.3 ? "kind: BSP" : "kind: FIXED_DELAY delay: 2";
    job.second_policy = job.dense_policy = "";
  }
  if (kind < 0.1) job.placement = kind < 0.05 ? "SHARDED" : "REPLICATED";
  if (kind > 0.25 && kind < 0.5) {
    job.dense_on_servers = false;
    job.dense_policy.clear();
    const bool elastic = random->Bernoulli(0.5), outer = !elastic && random->Bernoulli(0.5);
    job.dense =
        absl::StrCat("synchroniser: ", elastic ? "EASGD" : "LOCAL_SGD",
                     " local_steps { sync_every: ", 1 + random->Uniform(4),
                     outer ? kOuterSteps[random->Uniform(std::size(kOuterSteps))] : "", " } ");
    for (std::string* policy : {&job.policy, &job.second_policy}) {
      if (absl::StrContains(*policy, "BACKUP")) *policy = "kind: ASP";
    }
  }
  if (random->Bernoulli(0.1)) {
    job.patience = static_cast<int>(random->Uniform(3));
    job.epochs = 6;
    job.max_steps = 0;
    job.evaluate_every = 1;
  }
  return job;
}

// The jobs of the attempts after the first. For half of the seeds they have other servers, shards
// and key ranges. Jobs with batches do not: each range has its own open batch, so a resume on other
// ranges may be refused (docs/CHECKPOINTS.md). Empty: all attempts have the same job.
std::vector<SimJob> RandomLater(uint64_t seed, const SimJob& job) {
  Random random(HashCombine(seed, 33));
  const job::ResolvedJob plan = job.Plan();
  const bool batches =
      std::any_of(plan.groups.begin(), plan.groups.end(),
                  [](const job::GroupPlan& group) { return group.properties.batch > 0; });
  if (batches || random.Bernoulli(0.5)) return {};
  std::vector<SimJob> later(4, job);  // as many as there are accidents at most
  for (SimJob& one : later) {
    one.servers = 1 + static_cast<int>(random.Uniform(3));
    one.shards_per_server = 1 + static_cast<int>(random.Uniform(2));
    one.ranges_per_shard = 1 + static_cast<int>(random.Uniform(3));
  }
  return later;
}

// In every second job rows come and go, and in every fifth they have types smaller than F32.
TEST(LivesTest, SurvivesAnything) {
  const uint64_t count = SeedCount(200);
  server::RowCounts rows;
  uint64_t attempts = 0, resumes = 0, recuts = 0, verdicts = 0, again = 0;
  uint64_t reproducible = 0, reproducible_recuts = 0, caught_up = 0, at_budget = 0;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + count; ++seed) {
    SCOPED_TRACE(absl::StrCat("see it again with TANDEM_SIM_SEEDS=1 and --seed=", seed));
    Random random(HashCombine(seed, 23));
    SimJob job = RandomJobOfLives(&random);
    if (seed % 2 == 0) AddRowRules(seed, /*at_budget=*/true, &job);
    const bool typed = seed % 5 == 1;
    if (typed) AddTypes(seed, &job);
    CheckedWorldOptions options = RandomWorld(job, seed, &random);
    options.explain = !typed;
    const std::vector<SimJob> later = RandomLater(seed, job);
    AddBudget(seed, job, &options, later);
    if (job.patience >= 0) options.evaluate = true;
    if (job.placement == "REPLICATED") options.moves_per_second = 0;
    options = WithCheckpoints(options, absl::Milliseconds(30 + 90 * random.NextDouble()));
    LivesRun run(job, options, RandomAccidents(job.Plan(), &random), /*more=*/{}, later);
    if (!run.ok()) break;  // one trace is enough to read
    attempts += static_cast<uint64_t>(run.lives.attempts());
    resumes += static_cast<uint64_t>(run.lives.resumes());
    recuts += static_cast<uint64_t>(run.lives.recuts());
    verdicts += static_cast<uint64_t>(run.lives.verdicts());
    again += static_cast<uint64_t>(run.lives.steps_again());
    const server::RowCounts of_run = RowCountsOf(run.plan, run.lives.world());
    rows.Merge(of_run);
    at_budget += WasAtBudget(run.plan, run.lives.world()) ? 1 : 0;
    if (!IsReproducible(run.plan)) continue;
    reproducible += run.lives.resumes() > 0 ? 1 : 0;
    reproducible_recuts += run.lives.recuts() > 0 ? 1 : 0;
    const bool catches_up = job.catch_up || job.second_catch_up;
    caught_up += catches_up && run.lives.resumes() > 0 ? 1 : 0;
    const std::string difference =
        Difference(Ending(run.lives.world(), job.workers), Undisturbed(job, options));
    EXPECT_EQ(difference, "") << job.Text();
    if (!difference.empty()) break;
  }
  if (count < 100) return;
  EXPECT_GT(attempts, 2 * count);  // else the accidents were not there
  EXPECT_GT(resumes, count / 2);
  EXPECT_GT(recuts, count / 10);
  EXPECT_GT(verdicts, count / 3);
  EXPECT_GT(again, count);
  EXPECT_GT(reproducible, count / 20);
  EXPECT_GT(reproducible_recuts, count / 100);
  EXPECT_GT(caught_up, 0u);
  EXPECT_GT(rows.admitted, count / 2);
  EXPECT_GT(rows.evicted, count / 10);
  EXPECT_GT(at_budget, 0u);  // of some 20 jobs
}

// ---- fixed cases ------------------------------------------------------------------------------

constexpr uint64_t kBegins = 15, kLoads = 60, kTrains = 900;  // events of the jobs below

const EndpointId kNodes[] = {EndpointId::Shard(1, 0), EndpointId::Worker(0), EndpointId::Worker(2)};
const EndpointId kProcesses[] = {EndpointId::Scheduler(), kNodes[0], kNodes[1], kNodes[2]};

// Synchronous jobs whose optimizer has state: each bit at the end shows every update and the order
// of updates. The rows of table "a" have 8 bits until they are hot, and those of "b" come and go.
// With dense parameters on servers the rows of "a" also catch up.
class SynchronousLivesTest : public testing::Test {
 protected:
  struct Case {
    SimJob job;
    CheckedWorldOptions options;
    absl::optional<Ending> undisturbed;
  };

  SynchronousLivesTest() {
    for (const bool dense_on_servers : {false, true}) {
      Case& one = cases_[dense_on_servers ? 1 : 0];
      one.job.optimizer =
          dense_on_servers ? "kind: ADAM learning_rate: 0.02" : "kind: ADAGRAD learning_rate: 0.3";
      one.job.catch_up = dense_on_servers;
      one.job.row_rules = " row_dtype: INT8 state_dtype: BF16 hot_rows { min_updates: 5 } ";
      one.job.second_row_rules =
          " admission { kind: COUNT threshold: 2 } eviction { kind: AGE versions: 3 } ";
      one.job.dense_on_servers = dense_on_servers;
      one.job.depth = 1;
      one.job.epochs = 2;
      one.job.evaluate_every = 1;
      one.options = EvenWorld(one.job, 0, TestSeed());
      one.options.model.batches = {9, 7, 8};
      one.options.explain = false;
      one.options = WithCheckpoints(one.options, absl::Milliseconds(40));
      one.undisturbed.emplace(Undisturbed(one.job, one.options));
    }
  }

  // With dense parameters in an allreduce, and on servers. All accidents must happen. `verdicts`:
  // the scheduler must end at least this many attempts.
  void Expect(const std::vector<Accident>& accidents, int resumes, int verdicts = 0) {
    for (const Case& one : cases_) {
      SCOPED_TRACE(one.job.dense_on_servers ? "dense on servers" : "allreduce");
      LivesRun run(one.job, one.options, accidents);
      ASSERT_TRUE(run.ok());
      const bool only_away = accidents[0].kind >= Kind::kStop && verdicts == 0;
      EXPECT_EQ(run.lives.attempts(), only_away ? 1 : static_cast<int64_t>(accidents.size()) + 1);
      EXPECT_EQ(run.lives.resumes(), resumes);
      EXPECT_GE(run.lives.verdicts(), verdicts);
      EXPECT_TRUE(Ending(run.lives.world(), one.job.workers) == *one.undisturbed);
    }
  }
  static Accident At(Kind kind, EndpointId process, uint64_t event,
                     absl::Duration length = absl::ZeroDuration()) {
    return {kind, process, event, length, absl::nullopt, 0};
  }
  static Accident Within(Moment moment, int64_t number) {
    return {Kind::kCrash, EndpointId(), 0, absl::ZeroDuration(), moment, number};
  }

  Case cases_[2];
};

TEST_F(SynchronousLivesTest, EachProcessMayDieAtEachMoment) {
  for (const uint64_t event : {kBegins, kLoads, kTrains}) {
    for (const EndpointId process : kProcesses) {
      SCOPED_TRACE(absl::StrCat(process.DebugString(), " at event ", event));
      Expect({At(Kind::kCrash, process, event)}, event == kTrains ? 1 : 0);
    }
  }
}

TEST_F(SynchronousLivesTest, EachProcessMayDieWhileTheRunResumes) {
  for (const EndpointId process : kProcesses) {
    SCOPED_TRACE(process.DebugString());
    Expect({At(Kind::kCrash, EndpointId::Worker(1), kTrains), At(Kind::kCrash, process, kBegins),
            At(Kind::kCrash, process, kLoads), At(Kind::kCrash, process, 150)},
           4);
  }
}

// A run that resumes on fewer or more servers, with other key ranges, ends with the same bits. A
// fixed delay also holds updates, which are cut anew. In table "b" rows come and go by AGE.
TEST_F(SynchronousLivesTest, ARunMayResumeOnOtherServers) {
  for (const char* policy : {"kind: BSP", "kind: FIXED_DELAY delay: 2"}) {
    for (Case& one : cases_) {
      one.job.policy = policy;
      const bool delayed = absl::StrContains(policy, "delay");
      one.job.dense_optimizer = delayed && one.job.dense_on_servers ? "error_feedback: 2" : "";
      const Ending undisturbed = Undisturbed(one.job, one.options);
      SimJob few = one.job, many = one.job;
      few.servers = few.ranges_per_shard = 1;
      many.servers = 3;
      many.shards_per_server = 2;
      const std::vector<SimJob> orders[] = {{few, many}, {many, few}};
      for (const std::vector<SimJob>& later : orders) {
        SCOPED_TRACE(later[0].Text());
        LivesRun run(one.job, one.options,
                     {At(Kind::kCrash, EndpointId::Worker(1), kTrains),
                      At(Kind::kCrash, EndpointId::Shard(1, 0), 150)},
                     /*more=*/{}, later);
        ASSERT_TRUE(run.ok());
        EXPECT_EQ(run.lives.attempts(), 3);
        EXPECT_EQ(run.lives.recuts(), 2);
        EXPECT_EQ(Difference(Ending(run.lives.world(), one.job.workers), undisturbed), "");
      }
    }
  }
}

TEST_F(SynchronousLivesTest, ATornCheckpointIsPassedOver) {
  for (const int64_t file : {0, 5, 12}) {  // of the first checkpoint of the attempt
    Expect({Within(Moment::kFile, file)}, 0);
    Expect({Within(Moment::kFile, 40), Within(Moment::kFile, file)}, 2);
  }
  Expect({Within(Moment::kBeforeManifest, 0)}, 0);
  Expect({Within(Moment::kBeforeManifest, 1), Within(Moment::kBeforeManifest, 0)}, 2);
}

TEST_F(SynchronousLivesTest, ACheckpointIsWholeWithItsManifest) {
  Expect({Within(Moment::kBeforeLatest, 0), Within(Moment::kBeforeLatest, 0)}, 2);
}

// Also if several attempts leave one, the run returns to the last whole checkpoint.
TEST_F(SynchronousLivesTest, ADamagedCheckpointIsPassedOver) {
  for (const Moment damage : {Moment::kAfterCommit, Moment::kFlip}) {
    Expect({Within(damage, 0)}, 0);
    Expect({Within(damage, 2), Within(damage, 0), Within(damage, 1), Within(damage, 0)}, 4);
  }
}

TEST_F(SynchronousLivesTest, TheSchedulerNamesTheDeadProcess) {
  constexpr absl::Duration kLong = absl::Seconds(15);
  for (const EndpointId process : kNodes) {
    SCOPED_TRACE(process.DebugString());
    for (const Kind kind : {Kind::kReset, Kind::kVanish, Kind::kStop, Kind::kHoldUp}) {
      Expect({At(kind, process, kTrains, kLong)}, 1, 1);
    }
    Expect({At(Kind::kReset, process, kLoads), At(Kind::kVanish, process, kLoads)}, 0, 2);
  }
}

// A worker whose connection is only broken for a moment is not named.
TEST(LivesTest, TheSchedulerNamesTheDeadProcessThoughLinksBreak) {
  for (uint64_t seed = TestSeed(); seed < TestSeed() + SeedCount(20); ++seed) {
    SCOPED_TRACE(seed);
    SimJob job;
    CheckedWorldOptions options = EvenWorld(job, 12, seed);
    options.breaks_per_second = 20;
    LivesRun run(job, options,
                 {{Kind::kReset, EndpointId::Worker(2), kTrains / 3, {}, absl::nullopt, 0}});
    ASSERT_TRUE(run.ok());
    EXPECT_EQ(run.lives.verdicts(), 1);
  }
}

TEST_F(SynchronousLivesTest, AProcessThatIsAwayForAWhileIsNotDead) {
  for (const EndpointId process : kNodes) {
    for (const Kind kind : {Kind::kStop, Kind::kHoldUp, Kind::kHoldDown}) {
      Expect({At(kind, process, kTrains, absl::Seconds(5))}, 0);
    }
  }
  // The scheduler knows that it was away itself.
  Expect({At(Kind::kStop, EndpointId::Scheduler(), kTrains, absl::Seconds(60))}, 0);
}

// ---- workers that are replaced ----------------------------------------------------------------

// Policies under which a new process may take the place of a worker.
std::string ReplaceablePolicy(int depth, Random* random) {
  for (;;) {
    std::string policy = RandomPolicy(depth, /*lockstep=*/false, random);
    if (!absl::StrContains(policy, "SYNC_SWITCH") && !absl::StrContains(policy, "DSSP")) {
      return policy;
    }
  }
}

SimJob ReplaceableJob(Random* random) {
  SimJob job = RandomJob(random);
  job.workers = std::max(job.workers, 2);
  job.max_steps = 0;
  job.dense_on_servers = true;
  job.policy = ReplaceablePolicy(job.depth, random);
  job.second_policy = random->Bernoulli(0.5) ? ReplaceablePolicy(job.depth, random) : "";
  job.dense_policy = random->Bernoulli(0.5) ? ReplaceablePolicy(job.depth, random) : "";
  job.report_seconds = 0.02;
  if (random->Bernoulli(0.1)) {
    job.patience = static_cast<int>(random->Uniform(3));
    job.epochs = 4;
    job.evaluate_every = 1;
  }
  return job;
}

// The samples of all workers in all epochs, up to train.max_steps.
int64_t AllSamples(const SimJob& job, const ToyModel& model) {
  int64_t samples = 0, steps = 0;
  for (int64_t epoch = 0; epoch < job.epochs; ++epoch) {
    int64_t longest = 0;  // the steps of the epoch
    for (int rank = 0; rank < job.workers; ++rank) {
      int64_t batch = 0;
      while (job.max_steps == 0 || steps + batch < job.max_steps) {
        const int64_t more = model.Samples(rank, epoch, batch);
        if (more == 0) break;
        samples += more;
        ++batch;
      }
      longest = std::max(longest, batch);
    }
    steps += longest;
  }
  return samples;
}

// A worker dies at any event. Sometimes it is only silent, and its messages arrive late. Sometimes
// another process dies soon after it, perhaps before the new process has come. If the run resumes
// from a checkpoint, a worker may die again. In addition to the checks of lives.h: the run trains
// on each row once, and the reports say so.
TEST(ReplacedWorkersTest, TrainOnEachRowOnce) {
  const uint64_t count = SeedCount(80);
  uint64_t replaced = 0, restarts = 0;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + count; ++seed) {
    SCOPED_TRACE(absl::StrCat("see it again with TANDEM_SIM_SEEDS=1 and --seed=", seed));
    Random random(HashCombine(seed, 29));
    SimJob job = ReplaceableJob(&random);
    if (seed % 2 == 0) AddRowRules(seed, /*at_budget=*/true, &job);
    CheckedWorldOptions options = RandomWorld(job, seed, &random);
    AddBudget(seed, job, &options);
    for (int& batches : options.model.batches) {
      batches = random.Bernoulli(0.1) ? 0 : 20 + static_cast<int>(random.Uniform(80));
    }
    options.replacements = 3;
    options.start_time = absl::Milliseconds(200) * (1 + 5 * random.NextDouble());
    if (job.patience >= 0) options.evaluate = true;
    if (random.Bernoulli(0.7)) {
      options = WithCheckpoints(options, absl::Milliseconds(60 + 300 * random.NextDouble()));
    }
    constexpr Kind kKinds[] = {Kind::kCrash,  Kind::kCrash, Kind::kCrash, Kind::kReset,
                               Kind::kVanish, Kind::kStop,  Kind::kHoldUp};
    const auto any_worker = [&] {
      return EndpointId::Worker(
          static_cast<int>(random.Uniform(static_cast<uint64_t>(job.workers))));
    };
    Accident first;
    first.kind = kKinds[random.Uniform(std::size(kKinds))];
    if (first.kind >= Kind::kStop) first.length = absl::Seconds(4 + 12 * random.NextDouble());
    first.process = any_worker();
    first.event = random.Uniform(uint64_t{128} << random.Uniform(7));
    std::vector<Accident> more;
    if (random.Bernoulli(0.5)) {
      Accident second;
      second.process = random.Bernoulli(0.8) ? any_worker() : EndpointId::Shard(0, 0);
      second.event = first.event + random.Uniform(uint64_t{16} << random.Uniform(9));
      more.push_back(second);
    }
    Accident later;  // in the next attempt, if there is one
    later.process = any_worker();
    later.event = random.Uniform(uint64_t{128} << random.Uniform(7));
    LivesRun run(job, options, {first, later}, more);
    if (!run.ok()) break;  // one trace is enough to read
    replaced += static_cast<uint64_t>(run.lives.replaced());
    restarts += static_cast<uint64_t>(run.lives.attempts() - 1);
    // A run that ends early trains fewer epochs.
    const bool whole = job.patience < 0;
    if (whole) {
      EXPECT_EQ(run.lives.world().report().samples, AllSamples(job, run.lives.world().model()));
    }
    if (testing::Test::HasFailure()) break;
  }
  if (count < 80) return;
  EXPECT_GT(replaced, count / 10);  // else the test shows nothing
  EXPECT_GT(restarts, count / 10);
}

// A worker dies while all train. Its death is noticed in different ways.
class ReplacedWorkerTest : public testing::TestWithParam<const char*> {
 protected:
  ReplacedWorkerTest() {
    job_.policy = GetParam();
    job_.dense_on_servers = true;
    job_.depth = 1;
    job_.epochs = 2;
    job_.evaluate_every = 1;
    job_.report_seconds = 0.02;
    options_ = EvenWorld(job_, 60, TestSeed());
    // An epoch lasts longer than a process may be silent. At its end workers wait at a barrier, and
    // then none can be replaced.
    options_.compute = absl::Milliseconds(250);
    options_.replacements = 2;
    options_.start_time = absl::Milliseconds(300);
  }
  static Accident At(Kind kind, int rank, uint64_t event,
                     absl::Duration length = absl::Seconds(15)) {
    return {kind, EndpointId::Worker(rank), event, length, absl::nullopt, 0};
  }
  SimJob job_;
  CheckedWorldOptions options_;
};

TEST_P(ReplacedWorkerTest, TheOthersGoOn) {
  constexpr absl::Duration kAwakes = absl::Milliseconds(8500);  // when its place is vacant
  const Accident accidents[] = {
      At(Kind::kCrash, 0, kTrains),         At(Kind::kReset, 2, kTrains),
      At(Kind::kVanish, 0, kTrains),        At(Kind::kStop, 2, kTrains),
      At(Kind::kStop, 1, kTrains, kAwakes), At(Kind::kHoldUp, 1, kTrains)};
  for (const Accident& accident : accidents) {
    SCOPED_TRACE(accident.DebugString());
    LivesRun run(job_, options_, {accident});
    ASSERT_TRUE(run.ok());
    EXPECT_EQ(run.lives.attempts(), 1);
    EXPECT_EQ(run.lives.replaced(), 1);
    EXPECT_EQ(run.lives.world().report().samples, AllSamples(job_, run.lives.world().model()));
  }
}

// Workers die one after the other, one of them twice. The third death ends the attempt.
TEST_P(ReplacedWorkerTest, AsOftenAsTheJobAllows) {
  const std::vector<Accident> more = {At(Kind::kCrash, 1, 3 * kTrains),
                                      At(Kind::kCrash, 0, 5 * kTrains)};
  LivesRun run(job_, options_, {At(Kind::kCrash, 1, kTrains)}, more);
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run.lives.replaced(), 2);
  EXPECT_EQ(run.lives.attempts(), 2);
  EXPECT_EQ(run.lives.world().report().samples, AllSamples(job_, run.lives.world().model()));
}

// The second one dies before the new process of the first one has registered: all start again.
TEST_P(ReplacedWorkerTest, ButNotTwoAtATime) {
  LivesRun run(job_, WithCheckpoints(options_, absl::Milliseconds(100)),
               {At(Kind::kCrash, 1, kTrains)}, {At(Kind::kCrash, 2, kTrains + 5)});
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run.lives.attempts(), 2);
}

INSTANTIATE_TEST_SUITE_P(Policies, ReplacedWorkerTest,
                         testing::Values("kind: ASP", "kind: SSP bound: 2", "kind: ESSP bound: 2",
                                         "kind: GBA batches: 3 token_gap: 1",
                                         "kind: RINGMASTER max_delay: 2", "kind: RINGLEADER",
                                         "kind: RENNALA batches: 2",
                                         "kind: DC_ASGD compensation: 1e-12"),
                         [](const auto& policy) {
                           const std::string text = policy.param;
                           const std::string kind = text.substr(text.find(' ') + 1);
                           return kind.substr(0, kind.find(' '));
                         });

// In a resumed attempt the new process reads the checkpoint with which the attempt has begun. Later
// checkpoints have been written meanwhile.
TEST(ReplacedWorkersTest, ReadTheCheckpointOfTheAttempt) {
  SimJob job;
  job.policy = "kind: ASP";
  job.dense_on_servers = true;
  job.report_seconds = 0.02;
  CheckedWorldOptions options = EvenWorld(job, 60, TestSeed());
  options.compute = absl::Milliseconds(250);
  options.replacements = 1;
  for (int i = 1; i <= 5; ++i) options.checkpoints.push_back(i * absl::Milliseconds(300));
  LivesRun run(job, options,
               {{Kind::kCrash, EndpointId::Shard(1, 0), 4 * kTrains, {}, absl::nullopt, 0},
                {Kind::kCrash, EndpointId::Worker(1), 5 * kTrains, {}, absl::nullopt, 0}});
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run.lives.attempts(), 2);
  EXPECT_EQ(run.lives.resumes(), 1);
  EXPECT_EQ(run.lives.replaced(), 1);
}

// Two workers wait for a slow one at the end of each epoch, and checkpoints are marked meanwhile. A
// run that resumes from such a checkpoint trains all steps up to the limit.
TEST(LivesTest, AResumedRunTrainsAllStepsUpToTheLimit) {
  const uint64_t count = SeedCount(30);
  uint64_t resumes = 0;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + count; ++seed) {
    SCOPED_TRACE(absl::StrCat("see it again with TANDEM_SIM_SEEDS=1 and --seed=", seed));
    Random random(HashCombine(seed, 31));
    SimJob job;
    job.depth = static_cast<int>(random.Uniform(3));
    job.policy = ReplaceablePolicy(job.depth, &random);
    job.dense_on_servers = true;
    job.slow_workers = FourTimesAsSlow(2);
    job.epochs = 3;
    job.max_steps = 10 + static_cast<int>(random.Uniform(14));
    const CheckedWorldOptions options =
        WithCheckpoints(EvenWorld(job, 8, seed), absl::Milliseconds(20));
    std::vector<Accident> accidents(2);
    for (Accident& accident : accidents) {
      accident.process = EndpointId::Shard(1, 0);
      accident.event = 300 + random.Uniform(1200);
    }
    LivesRun run(job, options, accidents);
    if (!run.ok()) break;  // one trace is enough to read
    resumes += static_cast<uint64_t>(run.lives.resumes());
    EXPECT_EQ(run.lives.world().report().samples, AllSamples(job, run.lives.world().model()));
    if (testing::Test::HasFailure()) break;
  }
  if (count < 30) return;
  EXPECT_GT(resumes, count / 3);  // else the test shows nothing
}

// The checkpoint at the step limit is whole, but the run dies before it ends. The resumed run adds
// no step. So it adds no version, and the same rows are young enough to stay.
TEST(LivesTest, AResumedRunAddsNoStepBehindTheLimit) {
  for (const std::string dense : {"ALLREDUCE", "SERVERS", "LOCAL_SGD"}) {
    SimJob job;
    job.dense_on_servers = dense == "SERVERS";
    if (dense == "LOCAL_SGD") job.dense = "synchroniser: LOCAL_SGD local_steps { sync_every: 4 } ";
    job.epochs = 3;
    job.max_steps = 13;
    job.second_row_rules = " eviction { kind: AGE versions: 3 } ";
    SCOPED_TRACE(job.Text());
    CheckedWorldOptions options = EvenWorld(job, 5, TestSeed());
    options.checkpoint_at_end = true;
    SimRun undisturbed(job, options);
    ASSERT_TRUE(undisturbed.ok());
    LivesRun run(job, options, {{Kind::kCrash, EndpointId(), 0, {}, Moment::kBeforeLatest, 0}});
    ASSERT_TRUE(run.ok());
    EXPECT_EQ(run.lives.resumes(), 1);
    EXPECT_EQ(run.lives.world().steps(0), undisturbed.world->steps(0));
    EXPECT_EQ(
        Difference(Ending(run.lives.world(), job.workers), Ending(*undisturbed.world, job.workers)),
        "");
  }
}

// A job in which workers take steps together starts all roles again.
TEST(ReplacedWorkersTest, NotInJobsThatTakeStepsTogether) {
  SimJob job;
  job.dense_on_servers = true;
  job.epochs = 2;
  job.report_seconds = 0.02;
  CheckedWorldOptions options =
      WithCheckpoints(EvenWorld(job, 30, TestSeed()), absl::Milliseconds(40));
  options.replacements = 3;
  LivesRun run(job, options,
               {{Kind::kCrash, EndpointId::Worker(1), kTrains, {}, absl::nullopt, 0}});
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run.lives.attempts(), 2);
  EXPECT_EQ(run.lives.replaced(), 0);
}

TEST(LivesTest, TheSameSeedIsTheSameRun) {
  for (uint64_t seed = TestSeed(); seed < TestSeed() + SeedCount(5); ++seed) {
    uint64_t hash[2];
    for (uint64_t& h : hash) {
      Random random(seed);
      SimJob job = RandomJob(&random);
      if (seed % 2 == 0) AddRowRules(seed, /*at_budget=*/true, &job);
      CheckedWorldOptions options =
          WithCheckpoints(RandomWorld(job, seed, &random), absl::Milliseconds(30));
      const std::vector<SimJob> later = RandomLater(seed, job);
      AddBudget(seed, job, &options, later);
      LivesRun run(job, options, RandomAccidents(job.Plan(), &random), /*more=*/{}, later);
      ASSERT_TRUE(run.ok()) << "seed " << seed;
      h = run.lives.trace_hash();
    }
    EXPECT_EQ(hash[0], hash[1]) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tandem
