// tandem simulate: the same bits each time, those of live clusters, and virtual time as it must be.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_compare.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const Settings kAsynchronous = {"reproducible=false", "policy={kind: ASP}",
                                "dense.synchroniser=SERVERS", "staleness.record_order=true",
                                "train.prefetch_steps=1"};

class SimulateTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { job_ = std::make_unique<SmallJob>(2500, 300); }
  static void TearDownTestSuite() { job_.reset(); }

  static RunResult Simulate(const std::string& name, const Settings& set,
                            const Settings& flags = {}) {
    std::vector<std::string> argv = {ProgramPath("tandem"), "simulate", job_->File("job.textproto"),
                                     "--out", job_->File(name)};
    for (const std::string& text : set) argv.insert(argv.end(), {"--set", text});
    argv.insert(argv.end(), flags.begin(), flags.end());
    RunResult result = RunProgram(argv);
    const std::string summary = job_->File(name) + "/summary.json";
    if (fs::exists(summary)) result.summary = nlohmann::json::parse(ReadTextFile(summary));
    return result;
  }
  // Of a run that goes well.
  static double Seconds(const std::string& name, const Settings& set, const Settings& flags = {}) {
    const RunResult result = Simulate(name, set, flags);
    EXPECT_TRUE(result.ok()) << result.DebugString();
    return result.summary.value("seconds", 0.0);
  }
  static RunResult Replay(const std::string& recorded, const std::string& name,
                          const Settings& flags = {}) {
    std::vector<std::string> argv = {ProgramPath("tandem"), "replay", job_->File(recorded), "--out",
                                     job_->File(name)};
    argv.insert(argv.end(), flags.begin(), flags.end());
    return RunProgram(argv);
  }
  static size_t FilesThatDiffer(const std::string& a, const std::string& b) {
    const auto left = server::CheckpointReader::Open(job_->File(a) + "/model");
    const auto right = server::CheckpointReader::Open(job_->File(b) + "/model");
    EXPECT_TRUE(left.ok() && right.ok()) << left.status() << right.status();
    const auto compared = server::CompareModels(*left, *right);
    EXPECT_TRUE(compared.ok()) << compared.status();
    EXPECT_GT(compared->ranges, 0);
    return compared->differences.size();
  }

  static std::unique_ptr<SmallJob> job_;
};
std::unique_ptr<SmallJob> SimulateTest::job_;

TEST_F(SimulateTest, ASeedIsARun) {
  const RunResult first = Simulate("first", kAsynchronous);
  const RunResult again = Simulate("again", kAsynchronous);
  ASSERT_TRUE(first.ok() && again.ok()) << first.DebugString() << again.DebugString();
  EXPECT_EQ(FilesThatDiffer("first", "again"), 0u);
  EXPECT_EQ(ReadTextFile(job_->File("first/metrics.jsonl")),
            ReadTextFile(job_->File("again/metrics.jsonl")));
  EXPECT_EQ(first.summary["staleness"], again.summary["staleness"]);
  EXPECT_EQ(first.summary["samples"], 2500);
  EXPECT_EQ(first.summary["evaluations"].size(), 1u);
  EXPECT_THAT(first.output, HasSubstr("done: 2,500 samples in "));
}

// Nothing in a reproducible job depends on when things happen.
TEST_F(SimulateTest, AReproducibleJobHasTheBitsOfAClusterAtOnce) {
  int number = 0;
  for (const Settings& kind :
       {Settings{}, Settings{"dense.synchroniser=LOCAL_SGD", "dense.local_steps.sync_every=4"},
        Settings{"dense.synchroniser=EASGD", "dense.local_steps.sync_every=3"}}) {
    const std::string name = "kind" + std::to_string(number++);
    const RunResult live = RunJob(job_->Arguments(name, kind));
    ASSERT_TRUE(live.ok()) << live.DebugString();
    const RunResult simulated = Simulate(name + "-simulated", kind);
    ASSERT_TRUE(simulated.ok()) << simulated.DebugString();
    EXPECT_EQ(FilesThatDiffer(name, name + "-simulated"), 0u) << number;
    EXPECT_EQ(simulated.summary["eval"]["auc"], live.summary["eval"]["auc"]);
    EXPECT_EQ(simulated.summary["bytes"]["collective"], live.summary["bytes"]["collective"]);
    EXPECT_GT(simulated.summary["bytes"]["collective"], 0);
  }
}

// The simulator's order on real processes, and theirs in the simulator.
TEST_F(SimulateTest, AnAsynchronousRunHasTheBitsOfAClusterInTheSameOrder) {
  const RunResult simulated = Simulate("twin", kAsynchronous);
  ASSERT_TRUE(simulated.ok()) << simulated.DebugString();
  const RunResult live = Replay("twin", "twin-live");
  EXPECT_TRUE(live.ok()) << live.DebugString();
  EXPECT_THAT(live.output, HasSubstr("replayed: the same bits, in "));

  const RunResult recorded = RunJob(job_->Arguments("recorded", kAsynchronous));
  ASSERT_TRUE(recorded.ok()) << recorded.DebugString();
  const RunResult serial = Replay("recorded", "recorded-serial", {"--serial"});
  EXPECT_TRUE(serial.ok()) << serial.DebugString();
  EXPECT_THAT(serial.output, HasSubstr("replayed: the same bits, in "));
}

// Virtual time is exact: steps of 10 ms, and one worker whose steps take 100.
TEST_F(SimulateTest, AStragglerHoldsUpThoseWhoWaitForIt) {
  const std::string slow = "fault_injection.slow_workers={worker: 1 mean_seconds: 0.1}";
  const std::string together = "policy={kind: BSP}", alone = "policy={kind: ASP}";
  const Settings common = {"reproducible=false", "dense.synchroniser=SERVERS", slow,
                           "train.max_steps=20", "train.epochs=1"};
  const auto with = [&](const std::string& policy) {
    Settings set = common;
    set.push_back(policy);
    return set;
  };
  const RunResult bsp = Simulate("bsp", with(together));
  const RunResult asp = Simulate("asp", with(alone));
  ASSERT_TRUE(bsp.ok() && asp.ok()) << bsp.DebugString() << asp.DebugString();
  // Both end when the slow one does; who need not wait has spent no second on it before.
  EXPECT_NEAR(bsp.summary.value("seconds", 0.0), 2.0, 0.1);
  EXPECT_NEAR(asp.summary.value("seconds", 0.0), 2.0, 0.1);
  EXPECT_GT(bsp.summary["by_worker"][0]["waited_for"][1].get<double>(), 1.5);
  EXPECT_EQ(asp.summary["by_worker"][0]["waited_for"][1].get<double>(), 0.0);
}

// A step that is slow now and then holds up who waits for all, and is a late gradient elsewhere.
TEST_F(SimulateTest, AQuorumDoesNotWaitForSlowSteps) {
  const auto simulate = [](const std::string& quorum) {
    return Simulate(
        quorum,
        {"reproducible=false", "policy={kind: ASP}", "cluster.workers=4", "train.batch_size=10",
         "dense.quorum=" + quorum,
         "fault_injection.slow_workers={mean_seconds: 0.02 slow_share: 0.05 slow_factor: 8}"});
  };
  const RunResult all = simulate("ALL");
  ASSERT_TRUE(all.ok()) << all.DebugString();
  double missed_before = 0.1;
  for (const std::string quorum : {"MAJORITY", "SOLO"}) {
    const RunResult some = simulate(quorum);
    ASSERT_TRUE(some.ok()) << some.DebugString();
    EXPECT_EQ(some.summary["samples"], 2500);
    EXPECT_LT(some.summary.value("seconds", 1e9), 0.85 * all.summary.value("seconds", 0.0));
    const nlohmann::json missed = some.summary["staleness"]["dense"]["version_staleness"];
    EXPECT_EQ(missed["count"], 252) << "gradients: of 63 steps of each worker";
    EXPECT_LE(missed["max"], 4);
    EXPECT_GT(missed["mean"], missed_before);
    missed_before = missed["mean"];
  }
}

// The same of sync rounds, and with a grace somewhere between.
TEST_F(SimulateTest, SyncRoundsOfAQuorumDoNotWaitForSlowSteps) {
  const auto simulate = [](const std::string& name, const std::string& who) {
    return Simulate(
        name,
        {"reproducible=false", "policy={kind: ASP}", "cluster.workers=4", "train.batch_size=10",
         "dense.synchroniser=LOCAL_SGD", "dense.local_steps={sync_every: 4 " + who + "}",
         "fault_injection.slow_workers={mean_seconds: 0.02 slow_share: 0.05 slow_factor: 8}"});
  };
  const RunResult all = simulate("all-meet", ""), some = simulate("some-meet", "quorum: 2"),
                  patient = simulate("patient", "quorum: 2 grace_seconds: 0.05");
  for (const RunResult* run : {&all, &some, &patient}) {
    ASSERT_TRUE(run->ok()) << run->DebugString();
    EXPECT_EQ(run->summary["samples"], 2500);
  }
  const auto seconds = [](const RunResult& run) { return run.summary.value("seconds", 1e9); };
  EXPECT_LT(seconds(some), 0.9 * seconds(all));
  EXPECT_LT(seconds(patient), seconds(all));
  const auto missed = [](const RunResult& run) {
    return run.summary["staleness"]["dense"]["version_staleness"];
  };
  EXPECT_EQ(missed(some)["count"], 64) << "movements: of 63 steps of each worker";
  EXPECT_LE(missed(some)["max"], 4);
  EXPECT_GT(missed(some)["mean"], 0.1);
  EXPECT_LT(missed(patient)["mean"].get<double>(), missed(some)["mean"].get<double>());
}

TEST_F(SimulateTest, FramesTakeTheirTimeOnTheLinks) {
  const double free = Seconds("free", {});
  const double narrow = Seconds("narrow", {}, {"--bytes-per-second", "1e7"});
  const double narrower = Seconds("narrower", {}, {"--bytes-per-second", "5e6"});
  EXPECT_GT(narrow, free * 1.2);
  EXPECT_NEAR((narrower - free) / (narrow - free), 2.0, 0.5);
  EXPECT_GT(Seconds("far", {}, {"--latency-seconds", "0.01"}), free * 1.5);
}

// What live steps took holds here, and the speeds of both stand side by side.
TEST_F(SimulateTest, TakesItsTimesFromALiveRun) {
  const Settings slow = {"fault_injection.slow_workers={mean_seconds: 0.02}", "train.max_steps=20",
                         "train.epochs=1"};
  const RunResult live = RunJob(job_->Arguments("timed", slow));
  ASSERT_TRUE(live.ok()) << live.DebugString();
  const RunResult twin =
      Simulate("timed-twin", slow, {"--calibrate", job_->File("timed"), "--no-checkpoint"});
  ASSERT_TRUE(twin.ok()) << twin.DebugString();
  EXPECT_THAT(twin.output, HasSubstr("a step computes "));
  EXPECT_THAT(twin.output, HasSubstr("training alone: "));
  EXPECT_THAT(twin.output, HasSubstr(" times as much"));
  const nlohmann::json &simulated = twin.summary["simulated"], &worker = live.summary["by_worker"];
  ASSERT_EQ(simulated["compute_seconds"].size(), worker.size());
  for (size_t rank = 0; rank < worker.size(); ++rank) {
    const double of_step = worker[rank]["computed_seconds"].get<double>() / 20;
    EXPECT_NEAR(simulated["compute_seconds"][rank].get<double>(), of_step, 1e-9);
    // A step of this one takes what the job says, or what it computed live, if that was more.
    EXPECT_NEAR(twin.summary["by_worker"][rank]["computed_seconds"].get<double>(),
                20 * std::max(0.02, of_step), 1e-6);
  }
  EXPECT_GT(simulated["live_samples_per_second"].get<double>(), 0);
  const RunResult of_twin = Simulate("x", slow, {"--calibrate", job_->File("timed-twin")});
  EXPECT_EQ(of_twin.exit_code, 2) << of_twin.DebugString();
  EXPECT_THAT(of_twin.output, HasSubstr("is a simulated run"));
}

// Without data, rows and gradients: the staleness and the speed of the job with them, since nothing
// else decides them; and of more workers than could train here.
TEST_F(SimulateTest, TimesNeedNoData) {
  const Settings job = {
      "reproducible=false",
      "dense.synchroniser=SERVERS",
      "policy={kind: SSP bound: 1}",
      "fault_injection.slow_workers={distribution: EXPONENTIAL mean_seconds: 0.01}",
      "cluster.servers=1",
      "cluster.ranges_per_shard=1",
      "train.max_steps=30",
      "train.epochs=1"};
  const RunResult with = Simulate("with-rows", job, {"--no-checkpoint"});
  Settings nowhere = job;
  nowhere.push_back("data.train=[\"nowhere.tsv\"]");
  const RunResult without = Simulate("without-rows", nowhere, {"--timing-only"});
  ASSERT_TRUE(with.ok() && without.ok()) << with.DebugString() << without.DebugString();
  // Not to the last digit: workers of the one begin a little after each other (timing_test has it
  // exact).
  for (const char* table : {"some", "rest", "dense"}) {
    const nlohmann::json& a = with.summary["staleness"][table];
    const nlohmann::json& b = without.summary["staleness"][table];
    EXPECT_EQ(a["clock_gap"]["max"], b["clock_gap"]["max"]) << table;
    const double mean = a["version_staleness"]["mean"];
    EXPECT_NEAR(b["version_staleness"]["mean"].get<double>(), mean, 0.1 * mean) << table;
  }
  EXPECT_EQ(with.summary["steps"], without.summary["steps"]);
  EXPECT_EQ(with.summary["samples"], without.summary["samples"]);
  EXPECT_EQ(without.summary["simulated"]["timing_only"], true);
  const double seconds = with.summary["seconds"];
  EXPECT_NEAR(without.summary["seconds"].get<double>(), seconds, 0.1 * seconds);

  Settings many = nowhere;
  many.push_back("cluster.workers=5000");
  const RunResult large = Simulate("large", many, {"--timing-only", "--steps", "10"});
  ASSERT_TRUE(large.ok()) << large.DebugString();
  EXPECT_EQ(large.summary["by_worker"].size(), 5000u);
  EXPECT_FALSE(large.summary["by_worker"][0].contains("waited_for"));
  EXPECT_EQ(large.summary["simulated"]["waited_seconds"].size(), 5000u);
  EXPECT_LE(large.summary["staleness"]["some"]["clock_gap"]["max"], 1);
  EXPECT_THAT(large.output, HasSubstr(" events in "));
}

// The step sizes at which a delay stops a quadratic from converging (tests/sim/stability_test.cc
// calculates them), by the command.
TEST_F(SimulateTest, AQuadraticDivergesWhereTheFormulaSays) {
  const auto run = [](int delay, double rate, int max_steps = 0) {
    std::vector<std::string> argv = {ProgramPath("tandem"),
                                     "simulate",
                                     SourcePath("configs/quadratic.textproto"),
                                     "--problem",
                                     "quadratic",
                                     "--steps",
                                     "3000",
                                     "--overwrite",
                                     "--out",
                                     job_->File("quadratic"),
                                     "--set",
                                     absl::StrCat("policy.delay=", delay),
                                     "--set",
                                     absl::StrCat("dense.optimizer.learning_rate=", rate),
                                     "--set",
                                     absl::StrCat("train.max_steps=", max_steps)};
    RunResult result = RunProgram(argv);
    EXPECT_TRUE(result.ok()) << result.DebugString();
    result.summary = nlohmann::json::parse(ReadTextFile(job_->File("quadratic/summary.json")));
    return result;
  };
  for (const int delay : {1, 4}) {
    const double limit = 2 * std::sin(M_PI / (2 * (2 * delay + 1)));
    const RunResult below = run(delay, 0.95 * limit), above = run(delay, 1.05 * limit);
    EXPECT_EQ(below.summary["simulated"]["problem"]["diverged"], false);
    EXPECT_LT(below.summary["simulated"]["problem"]["last_loss"], 1e-3);
    EXPECT_EQ(below.summary["simulated"]["problem"]["first_loss"], 1.0) << "half of 1, twice";
    EXPECT_EQ(above.summary["simulated"]["problem"]["diverged"], true);
    EXPECT_GT(above.summary["simulated"]["problem"]["last_loss"], 1e3);
    EXPECT_THAT(above.output, HasSubstr(": diverged"));
    EXPECT_EQ(above.summary["staleness"]["row"]["version_staleness"]["max"], delay);
  }
  // A job that ends long before --steps has a last tenth, too.
  const RunResult cut = run(1, 1.05, 300);
  EXPECT_EQ(cut.summary["samples"], 300);
  EXPECT_EQ(cut.summary["simulated"]["problem"]["diverged"], true);
}

// ASP without noise, in double: workers that take `steps` seconds each; when the loss of a model
// that one of them reads is first at most `until` times that of zeros.
double ReachedByPlainLoop(const std::vector<double>& steps, size_t d, double rate, double until) {
  const auto loss = [](const std::vector<double>& x) {
    double sum = 0, before = 0;  // of x - the minimum, with zeros around it
    for (size_t i = 0; i <= x.size(); ++i) {
      const double here =
          i == x.size() ? 0
                        : x[i] + 1 - static_cast<double>(i + 1) / static_cast<double>(x.size() + 1);
      sum += (here - before) * (here - before);
      before = here;
    }
    return sum / 8;
  };
  std::vector<double> x(d);
  std::vector<std::vector<double>> read(steps.size(), x);
  std::vector<double> ends = steps;
  const double first = loss(x);
  for (;;) {
    const size_t w = static_cast<size_t>(std::min_element(ends.begin(), ends.end()) - ends.begin());
    const std::vector<double>& from = read[w];
    for (size_t i = 0; i < d; ++i) {
      const double left = i > 0 ? from[i - 1] : 0, right = i + 1 < d ? from[i + 1] : 0;
      x[i] -= rate * ((2 * from[i] - left - right) / 4 + (i == 0 ? 0.25 : 0));
    }
    if (loss(x) <= until * first) return ends[w];
    read[w] = x;
    ends[w] += steps[w];
  }
}

// The quadratic of papers on asynchronous SGD ends when a plain loop does. Noise changes that time,
// and the same seed does not.
TEST_F(SimulateTest, TheTridiagonalQuadraticEndsAtItsLoss) {
  const auto run = [](const std::vector<std::string>& more) {
    std::vector<std::string> argv = {
        ProgramPath("tandem"),
        "simulate",
        SourcePath("configs/tridiagonal.textproto"),
        "--problem",
        "tridiagonal",
        "--parameters",
        "24",
        "--latency-seconds",
        "1e-7",
        "--no-checkpoint",
        "--overwrite",
        "--out",
        job_->File("tridiagonal"),
        "--set",
        "cluster.workers=3",
        "--set",
        "fault_injection.slow_workers=[{worker: 0 mean_seconds: 0.01}, {worker: 1 mean_seconds: "
        "0.0257}, {worker: 2 mean_seconds: 0.0331}]"};
    argv.insert(argv.end(), more.begin(), more.end());
    const RunResult result = RunProgram(argv);
    EXPECT_TRUE(result.ok()) << result.DebugString();
    return nlohmann::json::parse(
        ReadTextFile(job_->File("tridiagonal/summary.json")))["simulated"]["problem"];
  };
  const nlohmann::json exact = run({"--until", "0.05", "--steps", "10000"});
  EXPECT_EQ(exact["kind"], "tridiagonal");
  EXPECT_NEAR(exact["first_loss"].get<double>(), 0.125 * 24 / 25, 1e-9);
  EXPECT_LE(exact["last_loss"].get<double>(), 0.05 * exact["first_loss"].get<double>());
  const double seconds = exact["reached_seconds"];
  EXPECT_NEAR(seconds, ReachedByPlainLoop({0.01, 0.0257, 0.0331}, 24, 0.25, 0.05), 1e-3 * seconds);
  const std::vector<std::string> noise = {"--until", "0.05", "--noise", "0.01", "--seconds", "99"};
  const nlohmann::json noisy = run(noise);
  EXPECT_NE(noisy["reached_seconds"], exact["reached_seconds"]);
  EXPECT_EQ(noisy, run(noise));
  // The first element may begin elsewhere, and time may be over earlier: 50 steps, and those that
  // have begun.
  const nlohmann::json cut = run({"--start", "5", "--until", "1e-6", "--seconds", "0.5"});
  EXPECT_GT(cut["first_loss"].get<double>(), 6);
  EXPECT_FALSE(cut.contains("reached_seconds"));
  const nlohmann::json summary =
      nlohmann::json::parse(ReadTextFile(job_->File("tridiagonal/summary.json")));
  EXPECT_NEAR(summary["by_worker"][0]["steps"].get<double>(), 50, 2);
  EXPECT_NEAR(summary["seconds"].get<double>(), 0.5, 0.1);
}

// The planted click model by the command: what it reports is the same each time, and near the best
// there is.
TEST_F(SimulateTest, AClickModelComesNearThePlantedOne) {
  nlohmann::json problem[2];
  for (nlohmann::json& of : problem) {
    const RunResult result =
        RunProgram({ProgramPath("tandem"), "simulate", SourcePath("configs/clicks.textproto"),
                    "--problem", "clicks", "--parameters", "9", "--ids", "300", "--steps", "200",
                    "--overwrite", "--out", job_->File("clicks"), "--set", "policy={kind: ASP}"});
    ASSERT_TRUE(result.ok()) << result.DebugString();
    EXPECT_THAT(result.output, HasSubstr("where the planted model has "));
    of = nlohmann::json::parse(
        ReadTextFile(job_->File("clicks/summary.json")))["simulated"]["problem"];
  }
  EXPECT_EQ(problem[0], problem[1]);
  EXPECT_EQ(problem[0]["kind"], "clicks");
  EXPECT_EQ(problem[0]["ids"], 300);
  const double least = problem[0]["least_loss"], last = problem[0]["last_loss"];
  EXPECT_GT(least, 0.3);
  EXPECT_GT(last, least);
  EXPECT_LT(last, least + 0.02);
  EXPECT_GT(problem[0]["first_loss"], least + 0.1);
  EXPECT_EQ(problem[0]["diverged"], false);
}

TEST_F(SimulateTest, WhatCannotBeSimulatedIsSaidInOneLine) {
  const auto expect_refused = [](const RunResult& result, const std::string& why) {
    EXPECT_EQ(result.exit_code, 2) << result.DebugString();
    EXPECT_THAT(result.output, HasSubstr(why));
  };
  expect_refused(Simulate("x", {"data.train=[\"nowhere.tsv\"]"}), "nowhere.tsv");
  expect_refused(Simulate("x", {}, {"--step-seconds", "0"}), "--step-seconds must be more than 0");
  expect_refused(Simulate("x", {"reproducible=false", "dense.codec={kind: SIGN}"}), "dense.codec");
  expect_refused(Simulate("x", {}, {"--steps", "5"}), "for --timing-only");
  expect_refused(Simulate("x", {}, {"--noise", "1"}), "for --problem quadratic");
  expect_refused(Simulate("x", {}, {"--until", "0.1"}), "for --problem quadratic and tridiagonal");
  expect_refused(Simulate("x", {}, {"--problem", "tridiagonal", "--until", "1"}), "--until must");
  expect_refused(Simulate("x", {"train.max_steps=0"}, {"--problem", "quadratic", "--until", "0.1"}),
                 "--until: the run also needs a limit, because it may never reach this loss");
  expect_refused(Simulate("x", {}, {"--problem", "tridiagonal", "--condition", "2"}),
                 "are for --problem quadratic");
  expect_refused(Simulate("x", {}, {"--problem", "quadratic", "--start", "1"}),
                 "--start is for --problem tridiagonal");
  expect_refused(Simulate("x", {}, {"--problem", "tridiagonal", "--seconds", "-1"}),
                 "--seconds not less than 0");
  expect_refused(Simulate("x", {}, {"--problem", "clicks", "--seconds", "1"}),
                 "--seconds is not for --problem clicks");
  expect_refused(Simulate("x", {}, {"--seconds", "1"}), "for --timing-only");
  expect_refused(Simulate("x", {}, {"--parameters", "2"}), "--parameters is for --problem");
  expect_refused(Simulate("x", {}, {"--problem", "quadratic", "--ids", "9"}), "--problem clicks");
  expect_refused(Simulate("x", {}, {"--problem", "clicks", "--zipf", "5"}), "--zipf 0 to 4");
  expect_refused(Simulate("x", {},
                          {"--problem", "clicks", "--parameters", "1000000", "--set",
                           "train.batch_size=4096"}),
                 "GB of memory, must be at most 4");
  EXPECT_NE(Simulate("x", {}, {"--problem", "cubic"}).exit_code, 0);
  expect_refused(Simulate("x", {}, {"--timing-only", "--bytes-per-second", "1e6"}), "--step-bytes");
  for (const char* bytes : {"--step-bytes", "--dense-bytes"}) {
    expect_refused(Simulate("x", {}, {"--timing-only", "--bytes-per-second", "1e-9", bytes, "1e9"}),
                   "take 1e+18 s, must be less than the job's limits.stall_timeout_seconds");
  }
  expect_refused(Simulate("x", {}, {"--timing-only", "--set", "cluster.workers=65537"}), "65536");
  expect_refused(Simulate("x", {}, {"--timing-only", "--problem", "quadratic"}), "--timing-only");
  expect_refused(Simulate("x", {}, {"--timing-only", "--steps", "-1"}), "--steps must be 1 to");
  expect_refused(
      Simulate("x", {"reproducible=false", "policy={kind: ESSP bound: 2}"}, {"--timing-only"}),
      "policy.kind: ESSP");
  EXPECT_FALSE(fs::exists(job_->File("x")));
  ASSERT_TRUE(Simulate("there", {"train.max_steps=2"}).ok());
  expect_refused(Simulate("there", {}), "--overwrite");
  std::ofstream(job_->File("t.trace")) << "0.01\n10 ms\n";
  const std::string trace =
      absl::StrCat("fault_injection.slow_workers={trace: '", job_->File("t.trace"), "'}");
  const std::vector<std::vector<std::string>> without_data = {
      {"--timing-only", "--overwrite"}, {"--problem", "quadratic", "--overwrite"}};
  for (const auto& flags : without_data) {
    expect_refused(Simulate("there", {trace}, flags), "t.trace:2");
    EXPECT_TRUE(fs::exists(job_->File("there/summary.json"))) << "refused before anything is lost";
  }
  EXPECT_NE(RunProgram({ProgramPath("tandem"), "simulate"}).exit_code, 0);
}

}  // namespace
}  // namespace tandem
