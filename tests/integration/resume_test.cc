// A run that was killed goes on: from its newest whole checkpoint, on any number of servers, to the
// bits of a run that was never disturbed. Told to end, it checkpoints first; and what may not
// change when it goes on is refused.
//
// The moments at which runs are killed follow from --seed. TenKills is the whole of it and takes
// minutes:
//   build/tests/resume_test --gtest_also_run_disabled_tests --gtest_filter='*TenKills*'
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job.h"
#include "policies/kinds.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "tests/integration/kill_and_resume.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"
#include "tests/source_path.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Three workers get 67, 66 and 66 batches of 24 an epoch: they run out of data at different steps.
constexpr int64_t kRows = 3 * 66 * 24 + 1;

Settings Steps(int64_t steps, int64_t checkpoint_every) {
  return {absl::StrCat("train.max_steps=", steps), "train.epochs=1000",
          absl::StrCat("checkpoint.every_steps=", checkpoint_every)};
}

class ResumeTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { job_ = std::make_unique<SmallJob>(kRows, 100); }
  static void TearDownTestSuite() { job_.reset(); }

  static RunArguments Resume(const std::string& name, const Settings& set) {
    return Resumed(job_->Arguments(name, set));
  }
  static std::string Out(const std::string& name) { return job_->File(name); }
  static ModelBits Model(const std::string& name) {
    absl::StatusOr<ModelBits> model = ReadCheckpoint(job_->File(name + "/model"));
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : ModelBits();
  }

  // Trains `set` with `kills` kills, each time on another number of servers, and then to its end. A
  // kill comes up to `moment` after a checkpoint; every other one instead at any moment of the
  // run's life, its start included.
  RunResult KillAndGoOn(const std::string& name, const Settings& set, int kills,
                        absl::Duration moment) {
    Random random(TestSeed());
    // Steps of runs that are to be killed take their time, so that none is through before.
    const Settings slow = Join(set, {"fault_injection.slow_workers={mean_seconds: 0.02}"});
    int resumed = 0;
    for (int i = 0; i < kills; ++i) {
      const int64_t saved = CheckpointStep(Out(name));
      const Settings servers = {absl::StrCat("cluster.servers=", 1 + i % 3)};
      RunArguments arguments = saved < 0 ? job_->Arguments(name, Join(slow, servers))
                                         : Resume(name, Join(slow, servers));
      if (saved < 0) arguments.flags = {"--overwrite"};
      RunningJob job(arguments);
      // The other ones may be killed before their scheduler has counted the attempt.
      if (saved >= 0 && i % 2 == 0) ++resumed;
      if (i % 2 == 0 && !WaitForCheckpointAfter(&job, Out(name), saved)) {
        // Through before it was killed.
        const RunResult run = job.Finish(kRunLimit);
        EXPECT_TRUE(run.ok()) << run.DebugString();
        break;
      }
      absl::SleepFor(moment * (i % 2 == 0 ? 1 : 5) * random.NextDouble());
      KillAll(&job);
    }
    RunResult last = RunJob(Resume(name, set));
    if (last.exit_code == 2 && absl::StrContains(last.output, "the run is finished")) {
      last = RunJob(Resume(name, Join(set, {"train.epochs=1001"})));  // for its summary
    } else {
      ++resumed;
    }
    EXPECT_TRUE(last.ok()) << last.DebugString() << "--seed=" << TestSeed();
    EXPECT_GT(resumed, 0);
    EXPECT_GE(last.summary["resumed"], resumed);
    return last;
  }

  // Of a run undisturbed, and of one that was killed.
  static void ExpectTheSameCounts(const RunResult& undisturbed, const RunResult& last) {
    // Workers that meet now and then may take more steps without rows at the end.
    const std::string dense = undisturbed.summary["policy"]["dense"].dump();
    if (!absl::StrContains(dense, "LOCAL_SGD") && !absl::StrContains(dense, "EASGD")) {
      EXPECT_EQ(last.summary["eval"]["step"], undisturbed.summary["eval"]["step"]);
    }
    EXPECT_EQ(last.summary["steps"], undisturbed.summary["steps"]);
    EXPECT_EQ(last.summary["samples"], undisturbed.summary["samples"]);
  }

  // The job undisturbed and killed: the same bits, the same numbers.
  void ExpectTheSameBits(const std::string& name, const Settings& set, int kills,
                         absl::Duration moment) {
    const std::string whole = name + "-whole", broken = name + "-broken";
    const RunResult undisturbed = RunJob(job_->Arguments(whole, set));
    ASSERT_TRUE(undisturbed.ok()) << undisturbed.DebugString();
    const RunResult last = KillAndGoOn(broken, set, kills, moment);
    ASSERT_FALSE(HasFailure());
    EXPECT_EQ(Difference(Model(whole), Model(broken)), "") << "--seed=" << TestSeed();
    EXPECT_EQ(last.Measured(), undisturbed.Measured());
    ExpectTheSameCounts(undisturbed, last);
  }

  // In each file of the last checkpoint all workers stand at the same step, and the version is what
  // the policy makes of their steps.
  static void ExpectVersions(const std::string& name, const job::ResolvedJob& plan) {
    const auto saved = server::CheckpointReader::Open(job_->File(name + "/model"));
    ASSERT_TRUE(saved.ok()) << saved.status();
    int ranges = 0;
    for (const server::CheckpointFile& file : saved->manifest().files) {
      if (file.table.front() == '(') continue;  // no rows
      const auto image = saved->Read(file);
      ASSERT_TRUE(image.ok()) << image.status();
      const policies::RangeProgress& progress = image->progress;
      if (progress.workers.empty()) continue;  // the dense part, as one file for those who read it
      ++ranges;
      const int64_t steps = progress.workers[0].admitted;
      for (const auto& worker : progress.workers) EXPECT_EQ(worker.admitted, steps) << file.name;
      const auto table = std::find_if(plan.tables.begin(), plan.tables.end(),
                                      [&](const auto& t) { return t.name == file.table; });
      const policies::Properties& policy = plan.groups[table->group].properties;
      const int64_t workers = plan.workers(), together = std::min(policy.switch_step, steps);
      if (policy.batch > 0) continue;       // batches of any steps
      // Which updates came too late is by chance, and workers push steps without samples.
      if (policy.counts_applied) continue;
      const bool by_update = !policy.holds || policy.switch_step > 0;
      EXPECT_EQ(progress.version, by_update ? together + workers * (steps - together) : steps)
          << file.name << ": " << job::PolicyName(plan.groups[table->group].policy);
    }
    EXPECT_GE(ranges, 3);
  }

  static std::unique_ptr<SmallJob> job_;
};
std::unique_ptr<SmallJob> ResumeTest::job_;

// ADAM of a table counts the steps of its ranges, which a resumed run may cut anew.
const char kAdam0[] =
    "table[0].optimizer={kind: ADAM learning_rate: 0.01 schedule {kind: COSINE warmup_samples: 300 "
    "restart_samples: 1500 restart_growth: 1.3 end_factor: 0.1}}";
const Settings kDelayed = {"policy={kind: FIXED_DELAY delay: 4}", "dense.synchroniser=SERVERS",
                           "dense.optimizer.error_feedback=4", kAdam0,
                           "table[1].optimizer={kind: ADAM learning_rate: 0.01 catch_up: true}"};
// Checkpoints come between sync rounds: replicas differ, and so do their optimizers' slots.
const Settings kOuter = {"dense.synchroniser=LOCAL_SGD",
                         "dense.local_steps={sync_every: 7 warmup_steps: 30 outer_learning_rate: "
                         "0.7 outer_momentum: 0.9 outer_optimizer: DELAYED_NESTEROV}",
                         "dense.optimizer.schedule={kind: EXPONENTIAL every_samples: 2000 "
                         "factor: 0.5}"};
const Settings kElastic = {"dense.synchroniser=EASGD", "dense.local_steps={sync_every: 7}"};

// Shuffled rows are read again. Without, the reader continues in the middle of the file.
const Settings kInOrder = {"data.shuffle_buffer=0"};

// Every synchroniser is here.
const std::map<Dense::Synchroniser, Settings> kSynchronisers = {{Dense::ALLREDUCE, kInOrder},
                                                                {Dense::SERVERS, kDelayed},
                                                                {Dense::LOCAL_SGD, kOuter},
                                                                {Dense::EASGD, kElastic}};

TEST_F(ResumeTest, KilledRunsEndWithTheBitsOfOneThatWasNot) {
  const google::protobuf::EnumDescriptor* const all = Dense::Synchroniser_descriptor();
  EXPECT_EQ(kSynchronisers.size(), static_cast<size_t>(all->value_count() - 1));
  for (const auto& [synchroniser, set] : kSynchronisers) {
    ExpectTheSameBits(Dense::Synchroniser_Name(synchroniser), Join(Steps(200, 20), set), 2,
                      absl::Milliseconds(200));
  }
}

// Rows in blocks, in the middle of files and shuffled.
TEST_F(ResumeTest, KilledRunsOfBlocksEndWithTheBitsOfOneThatWasNot) {
  const Settings blocks = Join(Steps(200, 20), {"data.deal=BLOCKS"});
  ExpectTheSameBits("blocks-in-order", Join(blocks, kInOrder), 2, absl::Milliseconds(200));
  ExpectTheSameBits("blocks-shuffled", blocks, 2, absl::Milliseconds(200));
  const RunResult refused =
      RunJob(Resume("blocks-shuffled-broken", Join(Steps(300, 20), {"data.deal=ROWS"})));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.output, HasSubstr("data.deal is ROWS, but the run deals its rows by BLOCKS"));
}

// ---- every policy -----------------------------------------------------------------------------

// Policies of the two tables and of the dense part on servers, and more settings. All kinds are
// here. Checkpoints come every 10 steps, so that they find open batches, steps that wait, and both
// sides of a switch.
const Settings kPolicies[] = {
    {"BSP", "SSP bound: 2", "FIXED_DELAY delay: 4"},
    {"ASP", "BACKUP_WORKERS backups: 0", "STALENESS_AWARE"},
    {"K_BATCH_ASYNC batches: 7", "GBA batches: 7 token_gap: 1", "SYNC_SWITCH switch_step: 5"},
    {"SYNC_SWITCH switch_step: 40", "DSSP bound: 1 upper_bound: 3",
     "DC_ASGD compensation: 0.1 mean_square_decay: 0.9"},
    {"ESSP bound: 2 cache_rows: 50", "ESSP bound: 1", "ASP"},
    {"COSINE_GATE age_decay: 0.1 age_cutoff: 4", "ASP", "SSP bound: 1"},
    {"RINGMASTER max_delay: 2", "DELAY_ADAPTIVE full_rate_delay: 1", "RINGLEADER"},
    {"RENNALA batches: 2", "RENNALA", "RENNALA batches: 1"},
    {"SSP bound: 1", "ASP", "ORDERED_MOMENTUM", "dense.optimizer.kind=MOMENTUM"},
};

Settings Under(const Settings& policies) {
  const auto policy = [&](size_t i) { return absl::StrCat("policy={kind: ", policies[i], "}"); };
  return Join(
      Join(Steps(100, 10),
           {absl::StrCat("table[0].", policy(0)), absl::StrCat("table[1].", policy(1)),
            absl::StrCat("dense.", policy(2)), "dense.synchroniser=SERVERS", kInOrder[0], kAdam0}),
      Settings(policies.begin() + 3, policies.end()));
}

TEST_F(ResumeTest, EveryPolicyIsKilled) {
  std::set<Policy::Kind> killed;
  for (const Settings& policies : kPolicies) {
    const job::ResolvedJob plan = job_->Plan(Join(Under(policies), {"reproducible=false"}));
    for (const job::GroupPlan& group : plan.groups) killed.insert(group.policy.kind());
  }
  for (const policies::PolicyKind& row : policies::PolicyKinds()) {
    // Nothing is trained under KEY_VALUE; plugin_test resumes a PLUGIN.
    if (row.kind == Policy::KEY_VALUE || row.kind == Policy::PLUGIN) continue;
    EXPECT_EQ(killed.count(row.kind), 1u) << Policy::Kind_Name(row.kind) << ": add it to kPolicies";
  }
}

// A worker alone is deterministic under any policy.
TEST_F(ResumeTest, AWorkerAloneEndsWithTheSameBitsUnderEveryPolicy) {
  for (const Settings& policies : kPolicies) {
    SCOPED_TRACE(policies[0]);
    ExpectTheSameBits(absl::StrCat("alone ", policies[0].substr(0, 5)),
                      Join(Under(policies), {"cluster.workers=1"}), 1, absl::Milliseconds(100));
  }
}

// Several are not, but each step of each is in the model once: nothing is computed twice or left
// out, and versions count what their policy says.
TEST_F(ResumeTest, SeveralWorkersTakeEachStepOnceUnderEveryPolicy) {
  for (const Settings& policies : kPolicies) {
    SCOPED_TRACE(policies[0]);
    const Settings set = Join(Under(policies), {"reproducible=false"});
    const std::string name = absl::StrCat("several ", policies[0].substr(0, 5));
    const RunResult undisturbed = RunJob(job_->Arguments(name + "-whole", set));
    ASSERT_TRUE(undisturbed.ok()) << undisturbed.DebugString();
    const RunResult last = KillAndGoOn(name, set, 1, absl::Milliseconds(100));
    ASSERT_FALSE(HasFailure());
    ExpectTheSameCounts(undisturbed, last);
    ExpectVersions(name, job_->Plan(set));
  }
}

// A worker alone is deterministic under any policy: the end of an epoch is told by sync rounds.
TEST_F(ResumeTest, AnEpochThatSyncRoundsEndGoesOn) {
  const Settings alone = {"cluster.workers=1", "reproducible=false", "policy={kind: ASP}",
                          "dense.algorithm=DIRECT"};
  ExpectTheSameBits("alone", Join(Join(Steps(450, 20), alone), kOuter), 2, absl::Milliseconds(200));
}

const Settings kOnWorkers = {"table[0].placement=SHARDED", "table[1].placement=REPLICATED"};

TEST_F(ResumeTest, TablesOnWorkersGoOn) {
  ExpectTheSameBits("on-workers", Join(Steps(200, 20), kOnWorkers), 2, absl::Milliseconds(200));
}

// A checkpoint does not say where rows were.
TEST_F(ResumeTest, RowsMayGoOnElsewhere) {
  const RunResult whole = RunJob(job_->Arguments("there", Steps(90, 1000)));
  ASSERT_TRUE(whole.ok()) << whole.DebugString();
  const RunResult first = RunJob(job_->Arguments("elsewhere", Steps(30, 1000)));
  ASSERT_TRUE(first.ok()) << first.DebugString();
  const RunResult second =
      RunJob(Resume("elsewhere", Join(Join(Steps(60, 1000), kOnWorkers), {"cluster.servers=0"})));
  ASSERT_TRUE(second.ok()) << second.DebugString();
  EXPECT_THAT(second.output, HasSubstr("changed: table[0].placement: SERVERS -> SHARDED"));
  const RunResult third =
      RunJob(Resume("elsewhere", Join(Steps(90, 1000), {"table[0].placement=REPLICATED"})));
  ASSERT_TRUE(third.ok()) << third.DebugString();
  EXPECT_EQ(Difference(Model("there"), Model("elsewhere")), "");
}

// Earlier versions counted the steps of ADAM by row, and their jobs do not say so.
TEST_F(ResumeTest, ARunOfAnEarlierVersionKeepsItsStepCount) {
  const Settings by_row = {absl::StrReplaceAll(kAdam0, {{"}}", "} step_count: ROW}"}})};
  for (const auto& [name, steps] : {std::pair{"rows-whole", 60}, std::pair{"rows", 30}}) {
    const RunResult run = RunJob(job_->Arguments(name, Join(Steps(steps, 1000), by_row)));
    ASSERT_TRUE(run.ok()) << run.DebugString();
  }
  const std::string job = Out("rows") + "/job.textproto";
  const std::string written = ReadTextFile(job);
  WriteTextFile(job, absl::StrReplaceAll(written, {{"    step_count: ROW\n", ""}}));
  EXPECT_LT(ReadTextFile(job).size(), written.size());
  const RunResult other = RunJob(
      Resume("rows", Join(Steps(60, 1000), {kAdam0, "table[0].optimizer.step_count=TABLE"})));
  EXPECT_EQ(other.exit_code, 2) << other.DebugString();
  EXPECT_THAT(other.output, HasSubstr("table[0].optimizer.step_count: ROW -> TABLE"));
  const RunResult resumed = RunJob(Resume("rows", Join(Steps(60, 1000), {kAdam0})));
  ASSERT_TRUE(resumed.ok()) << resumed.DebugString();
  EXPECT_EQ(Difference(Model("rows-whole"), Model("rows")), "");
  EXPECT_THAT(ReadTextFile(job), HasSubstr("step_count: ROW"));
}

// The resumed run has fewer servers. They repeat the steps after the checkpoint.
TEST_F(ResumeTest, RecordsOfRemovedServersEndAtTheCheckpoint) {
  const Settings set = {"train.epochs=1000000", "checkpoint.every_steps=1000000",
                        "staleness.record_updates=true"};
  const std::string records = Out("recorded") + "/server-1-shard-0.updates";
  {
    RunningJob job(job_->Arguments(
        "recorded", Join(set, {"fault_injection.slow_workers={mean_seconds: 0.02}"})));
    ASSERT_TRUE(job.WaitForStep(5, kRunLimit)) << job.driver().Output();
    job.driver().Signal(SIGUSR1);
    ASSERT_TRUE(WaitForCheckpointAfter(&job, Out("recorded"), 0)) << job.driver().Output();
    ASSERT_TRUE(job.WaitForStep(CheckpointStep(Out("recorded")) + 6, kRunLimit));
    KillAll(&job);
  }
  const auto point = cli::FindResumePoint(Out("recorded"), {});
  ASSERT_TRUE(point.ok()) << point.status();
  const uint64_t kept = point->record.record_bytes().at("server-1-shard-0");
  ASSERT_GT(fs::file_size(records), kept) << "nothing is to be cut";
  const Settings few = {absl::StrCat("train.max_steps=", point->step + 50), "cluster.servers=1"};
  const RunResult run = RunJob(Resume("recorded", Join(set, few)));
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_EQ(fs::file_size(records), kept);
  ChildProcess check({"/usr/bin/python3", SourcePath("tests/chaos/records.py"), Out("recorded")},
                     job_->File("records.txt"), {});
  ASSERT_TRUE(check.WaitFor(kRunLimit));
  EXPECT_EQ(check.exit_code(), 0) << check.Output();
}

TEST_F(ResumeTest, DISABLED_TenKills) {
  ExpectTheSameBits("ten-bsp", Steps(1000, 25), 10, absl::Milliseconds(200));
  ExpectTheSameBits("ten-servers", Join(Steps(1000, 25), {"dense.synchroniser=SERVERS"}), 10,
                    absl::Milliseconds(200));
  ExpectTheSameBits("ten-delay", Join(Steps(1000, 25), kDelayed), 10, absl::Milliseconds(200));
  ExpectTheSameBits("ten-table",
                    Join(Steps(1000, 25), {"table[1].policy={kind: FIXED_DELAY delay: 4}"}), 10,
                    absl::Milliseconds(200));
  ExpectTheSameBits("ten-outer", Join(Steps(1000, 25), kOuter), 10, absl::Milliseconds(200));
  ExpectTheSameBits("ten-workers", Join(Steps(1000, 25), kOnWorkers), 10, absl::Milliseconds(200));
  ExpectTheSameBits("ten-elastic", Join(Steps(1000, 25), kElastic), 10, absl::Milliseconds(200));
}

// A run that has come to the end of its steps may be given more, in the middle of an epoch.
TEST_F(ResumeTest, MoreStepsAreThoseOfTheLongerRun) {
  const Settings on_servers = {"dense.synchroniser=SERVERS"};
  int runs = 0;
  for (const Settings& kind : {kInOrder, Join(on_servers, kInOrder), on_servers, kDelayed}) {
    const std::string name = absl::StrCat("more-", ++runs);
    const RunResult whole = RunJob(job_->Arguments(name + "-whole", Join(Steps(90, 1000), kind)));
    ASSERT_TRUE(whole.ok()) << whole.DebugString();
    const RunResult first = RunJob(job_->Arguments(name, Join(Steps(30, 1000), kind)));
    ASSERT_TRUE(first.ok()) << first.DebugString();
    const RunResult on = RunJob(Resume(name, Join(Steps(90, 1000), kind)));
    ASSERT_TRUE(on.ok()) << on.DebugString();
    EXPECT_THAT(on.output, HasSubstr("changed: train.max_steps: 30 -> 90"));
    EXPECT_EQ(on.summary["samples"], whole.summary["samples"]) << name;
    EXPECT_THAT(ReadTextFile(Out(name) + "/logs/worker-1.log"),
                HasSubstr(absl::StrCat("worker 1: has read ", kind.back() == kInOrder[0] ? 0 : 720,
                                       " rows again to resume")));
    if (kind == kDelayed) continue;  // its queue was emptied at the end of the first 30
    EXPECT_EQ(Difference(Model(name + "-whole"), Model(name)), "") << name;
  }
}

// ---- told to end ------------------------------------------------------------------------------

std::string LastLine(const std::string& output) {
  const std::vector<std::string> lines = absl::StrSplit(output, '\n', absl::SkipEmpty());
  return lines.empty() ? "" : lines.back();
}

// A signal that comes before the process has stopped would still be looked at first.
bool WaitUntilStopped(pid_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/stat");
  const absl::Time deadline = MonotonicNow() + absl::Seconds(20);
  while (!absl::StrContains(ReadTextFile(path), ") T ") && MonotonicNow() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  return absl::StrContains(ReadTextFile(path), ") T ");
}

TEST_F(ResumeTest, ASignalCheckpointsFirst) {
  const Settings set = Steps(300, 100'000);
  const RunResult whole = RunJob(job_->Arguments("signal-whole", set));
  ASSERT_TRUE(whole.ok()) << whole.DebugString();
  const Settings endless = {"train.max_steps=300000", "train.epochs=1000000"};
  RunningJob job(job_->Arguments("signal", endless));
  ASSERT_TRUE(job.WaitForStep(20, kRunLimit));
  // As those who end whole jobs do: to every process, and to the first one twice. The scheduler is
  // too busy to look at its signal before that of the driver comes.
  const std::map<std::string, pid_t> roles = job.Roles();
  kill(roles.at("scheduler"), SIGSTOP);
  ASSERT_TRUE(WaitUntilStopped(roles.at("scheduler")));
  for (const auto& [name, pid] : roles) kill(pid, SIGTERM);
  job.driver().Signal(SIGTERM);
  job.driver().Signal(SIGTERM);
  EXPECT_TRUE(job.driver().WaitForOutput("making a checkpoint first", absl::Seconds(20)));
  kill(roles.at("scheduler"), SIGCONT);
  const RunResult ended = job.Finish(kRunLimit);
  EXPECT_EQ(ended.signal, SIGTERM) << ended.DebugString();
  EXPECT_TRUE(job.WaitForNobody(absl::Seconds(20)));
  const int64_t step = CheckpointStep(Out("signal"));
  ASSERT_GE(step, 20) << ended.DebugString();
  EXPECT_EQ(ended.summary["stopped"]["checkpointed_step"], step) << ended.DebugString();
  EXPECT_THAT(LastLine(ended.output), HasSubstr(absl::StrCat("checkpoint at step ", step)));
  EXPECT_THAT(LastLine(ended.output), HasSubstr("--resume " + job_->File("signal")));

  // It goes on, here to a nearer end: as far as the undisturbed run, or a step further than it was.
  const std::string metrics = ReadTextFile(job_->File("signal/metrics.jsonl"));
  const RunResult resumed = RunJob(
      Resume("signal",
             Join(endless, {absl::StrCat("train.max_steps=", std::max<int64_t>(300, step + 1))})));
  ASSERT_TRUE(resumed.ok()) << resumed.DebugString();
  EXPECT_FALSE(resumed.summary.contains("stopped"));
  ASSERT_EQ(resumed.summary["evaluations"].size(), 1u) << resumed.DebugString();
  EXPECT_EQ(resumed.summary["evaluations"][0]["auc"], resumed.summary["eval"]["auc"]);
  EXPECT_EQ(resumed.summary["resumed"], 1);
  const std::string after = ReadTextFile(job_->File("signal/metrics.jsonl"));
  EXPECT_TRUE(absl::StartsWith(after, metrics)) << "it is appended to";
  EXPECT_THAT(after, HasSubstr("\"event\":\"resumed\""));
  if (step < 300) {
    EXPECT_EQ(Difference(Model("signal-whole"), Model("signal")), "");
    EXPECT_EQ(resumed.summary["samples"], whole.summary["samples"]);
  }
}

TEST_F(ResumeTest, ASecondSignalEndsAtOnce) {
  RunningJob job(job_->Arguments("twice", {"train.epochs=1000000"}));
  ASSERT_TRUE(job.WaitForStep(20, kRunLimit));
  // A server that does not answer: the checkpoint cannot come to an end.
  kill(job.Roles()["server-0"], SIGSTOP);
  job.driver().Signal(SIGINT);
  ASSERT_TRUE(job.driver().WaitForOutput("making a checkpoint first", absl::Seconds(20)));
  absl::SleepFor(absl::Milliseconds(1200));  // what comes within a second is the same
  job.driver().Signal(SIGINT);
  const RunResult ended = job.Finish(absl::Seconds(30));
  EXPECT_FALSE(ended.timed_out) << ended.DebugString();
  EXPECT_EQ(ended.signal, SIGINT) << ended.DebugString();
  EXPECT_TRUE(job.WaitForNobody(absl::Seconds(20)));
  EXPECT_EQ(CheckpointStep(Out("twice")), -1);
}

// ---- what cannot be written -------------------------------------------------------------------

// A checkpoint on the way that cannot be written is said; training goes on, and the checkpoint
// before stays.
TEST_F(ResumeTest, AFailedCheckpointIsSaidAndTrainingGoesOn) {
  const std::string model = job_->File("full/model");
  RunningJob job(job_->Arguments("full", {"train.epochs=1000000", "checkpoint.every_steps=30"}));
  ASSERT_TRUE(WaitForCheckpointAfter(&job, Out("full"), 0)) << job.driver().Output();
  fs::rename(model, model + ".aside");
  WriteTextFile(model, "a file where the folder was\n");
  ASSERT_TRUE(job.driver().WaitForOutput("the checkpoint at step ", kRunLimit))
      << job.driver().Output();
  EXPECT_THAT(job.driver().Output(), HasSubstr(" failed: worker 0: "));
  EXPECT_THAT(job.driver().Output(), HasSubstr("and training continues"));
  fs::remove(model);
  fs::rename(model + ".aside", model);
  const int64_t saved = CheckpointStep(Out("full"));
  EXPECT_GT(saved, 0) << "the last whole checkpoint is still there";
  EXPECT_TRUE(WaitForCheckpointAfter(&job, Out("full"), saved)) << job.driver().Output();
  KillAll(&job);
}

// A new process in the place of a dead worker reads the checkpoint from which the run has resumed.
// So this checkpoint stays while the run trains.
TEST_F(ResumeTest, TheCheckpointStaysForANewProcess) {
  const Settings set = {"policy={kind: ASP}", "reproducible=false", "dense.synchroniser=SERVERS",
                        "checkpoint={every_steps: 10 keep: 1}"};
  const RunResult first = RunJob(job_->Arguments("stays", Join({"train.max_steps=20"}, set)));
  ASSERT_TRUE(first.ok()) << first.DebugString();
  const auto saved = cli::FindResumePoint(Out("stays"), {});
  ASSERT_TRUE(saved.ok()) << saved.status();
  RunningJob job(Resume("stays", Join({"train.epochs=1000000", "cluster.max_restarts=3"}, set)));
  // A run that may restart removes nothing until it has noticed its first checkpoint.
  for (int64_t step = saved->step, i = 0; i < 3; step = CheckpointStep(Out("stays")), ++i) {
    ASSERT_TRUE(WaitForCheckpointAfter(&job, Out("stays"), step)) << job.driver().Output();
  }
  EXPECT_TRUE(fs::exists(saved->checkpoint));
  KillAll(&job);
}

// ---- what is refused --------------------------------------------------------------------------

class RefusedResumeTest : public ResumeTest {
 protected:
  static void Expect(const RunArguments& arguments, const std::vector<std::string>& words) {
    std::vector<std::string> argv = {ProgramPath("tandem"), "run", arguments.job};
    argv.insert(argv.end(), arguments.flags.begin(), arguments.flags.end());
    for (const std::string& set : arguments.set) argv.insert(argv.end(), {"--set", set});
    const RunResult run = RunProgram(argv);
    EXPECT_EQ(run.exit_code, 2) << run.DebugString();
    EXPECT_EQ(std::count(run.output.begin(), run.output.end(), '\n'), 1) << run.output;
    for (const std::string& word : words) EXPECT_THAT(run.output, HasSubstr(word));
  }
};

TEST_F(RefusedResumeTest, WhatWouldBeAnotherRun) {
  const RunArguments nothing = Resume("nothing", {});
  Expect(nothing, {"--resume " + nothing.out, "/run: not there", "hint"});

  const Settings set = Steps(30, 10);
  const RunResult trained = RunJob(job_->Arguments("done", set));
  ASSERT_TRUE(trained.ok()) << trained.DebugString();
  Expect(Resume("done", set), {"the run is finished", "train.max_steps"});
  const Settings longer = Steps(40, 10);
  Expect(Resume("done", Join(longer, {"train.batch_size=12"})),
         {"train.batch_size: 24 -> 12", "docs/CHECKPOINTS.md"});
  Expect(Resume("done", Join(longer, {"cluster.workers=2"})), {"3 workers, the job 2"});
  Expect(Resume("done", Join(longer, {"seed=8"})), {"seed: 7 -> 8"});
  RunArguments both = Resume("done", longer);
  both.flags.insert(both.flags.end(), {"--init-from", both.out + "/model"});
  Expect(both, {"not with --init-from"});
  // One that runs is not gone on with.
  RunningJob running(
      job_->Arguments("runs", {"train.epochs=1000000", "checkpoint.every_steps=10"}));
  ASSERT_TRUE(WaitForCheckpointAfter(&running, Out("runs"), 0));
  Expect(Resume("runs", {"train.epochs=1000000"}), {"another run writes into it"});
  KillAll(&running);
  // What may change.
  const RunResult on = RunJob(
      Resume("done", Join(longer, {"cluster.servers=1", "dense.optimizer.learning_rate=0.001",
                                   "evaluation.every_epochs=1", "checkpoint={keep: 1}"})));
  EXPECT_TRUE(on.ok()) << on.DebugString();
  EXPECT_GT(on.summary["steps"], trained.summary["steps"]);
}

}  // namespace
}  // namespace tandem
