// How a job's workers choose: all alike, by the job's rules before what was measured, by a file to
// the same choices every time, and by nothing where bits must not depend on measurements.
#include "worker/dense/tune_group.h"

#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"
#include "tests/unit/collectives/memory_links.h"

namespace tandem {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr char kJob[] = R"(
cluster { workers: 3 servers: 1 }
data { format: CRITEO train: "train.tsv" }
table { name: "ids" dim: 8 }
dense { optimizer { learning_rate: 0.1 } }
model { dlrm { bottom: [8] top: [8] } }
train { batch_size: 16 }
)";

job::ResolvedJob Plan(const job::Overrides& overrides = {}) {
  const auto job = job::ParseJob(kJob, "job", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  const auto plan = job::Resolve(*job);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

struct Tuned {
  absl::Status status;
  worker::DenseTuning tuning;
  std::string rules;
  json described() const { return json::parse(tuning.json); }
};

// Every worker of the plan, in a thread of its own.
std::vector<Tuned> Tune(const job::ResolvedJob& plan, int64_t bytes = 64 << 20,
                        const worker::DeviceSum* device_sum = nullptr) {
  std::vector<Tuned> all(static_cast<size_t>(plan.workers()));
  RunRankThreads(plan.workers(), [&](int rank, RankLinks links) {
    const auto rules = std::make_shared<collectives::ChooserRules>();
    collectives::GroupOptions options;
    options.chooser = collectives::ChooserFrom(rules, plan.workers(), false);
    collectives::Group group(rank, std::move(links), options);
    auto tuning =
        worker::TuneGroup(plan, bytes, /*host_of_rank=*/{}, group, rules.get(), device_sum);
    Tuned& own = all[static_cast<size_t>(rank)];
    own.status = tuning.status();
    if (tuning.ok()) own.tuning = *tuning;
    own.rules = rules->ToString();
  });
  return all;
}

void ExpectAlike(const std::vector<Tuned>& all) {
  for (const Tuned& one : all) {
    EXPECT_TRUE(one.status.ok()) << one.status;
    EXPECT_EQ(one.rules, all[0].rules);
    EXPECT_EQ(one.tuning.bucket_bytes, all[0].tuning.bucket_bytes);
    if (&one == &all[0]) continue;
    EXPECT_THAT(one.tuning.json, IsEmpty());
  }
}

// A machine of many cores on a slow wire.
std::string CostsFile(const TemporaryFolder& folder, double message) {
  collectives::Calibration costs;
  costs.link = "tcp";
  costs.ranks = 3;
  costs.cores = 64;
  costs.costs.message = message;
  costs.costs.latency = 2 * message;
  costs.costs.bytes = {{1 << 20, 4e-9, 4e-9, 5e-9, 1e-10}};
  costs.segment_bytes = 256 << 10;
  WriteTextFile(folder.File("costs"), costs.ToString());
  return folder.File("costs");
}

TEST(TuneGroupTest, MeasuresAndAllWorkersChooseAlike) {
  const std::vector<Tuned> all = Tune(Plan(), 1 << 20);
  ExpectAlike(all);
  EXPECT_THAT(all[0].rules, HasSubstr("allreduce:"));
  const json described = all[0].described();
  EXPECT_EQ(described["algorithm"], "AUTO");
  EXPECT_THAT(described["costs"]["from"].get<std::string>(), StartsWith("measured in"));
  ASSERT_EQ(described["choices"].size(), 1u);
  EXPECT_EQ(described["choices"][0]["bytes"], 1 << 20);
  EXPECT_THAT(described["choices"][0]["why"].get<std::string>(),
              AnyOf(StartsWith("tried out: "), StartsWith("predicted: ")));
  EXPECT_THAT(all[0].tuning.line,
              AllOf(HasSubstr("between 3 workers: 1048576 bytes by "), HasSubstr("in one piece")));
}

TEST(TuneGroupTest, TheSameFileGivesTheSameChoices) {
  const TemporaryFolder folder;
  const job::ResolvedJob plan = Plan({{"dense.calibration", CostsFile(folder, 30e-6)}});
  const std::vector<Tuned> all = Tune(plan);
  ExpectAlike(all);
  EXPECT_EQ(Tune(plan)[0].tuning.json, all[0].tuning.json);
  EXPECT_GT(all[0].tuning.bucket_bytes, 0);
  const json described = all[0].described();
  EXPECT_EQ(described["costs"]["from"], "file " + folder.File("costs"));
  EXPECT_THAT(described["bucket_why"].get<std::string>(), HasSubstr("on latency"));
  EXPECT_EQ(described["choices"].size(), 3u) << "the first bucket, whole ones, and what is left";
  // Dearer messages, larger buckets.
  const job::ResolvedJob dear = Plan({{"dense.calibration", CostsFile(folder, 300e-6)}});
  EXPECT_GT(Tune(dear)[0].tuning.bucket_bytes, all[0].tuning.bucket_bytes);
}

// Gradients on GPUs are summed there: the group's algorithms are neither measured nor named.
TEST(TuneGroupTest, OnGpusItSaysWhatSums) {
  class GpuSum final : public worker::DeviceSum {
    std::string name() const override { return "cuda_ipc"; }
    std::string why() const override { return "gradients are on GPUs"; }
    uint64_t bytes_sent() const override { return 0; }
    absl::Status Sum(float*, int64_t, float*, const Waiting&) override { return absl::OkStatus(); }
  };
  const GpuSum sum;
  const std::vector<Tuned> all = Tune(Plan({{"dense.device", "CUDA"}}), 64 << 20, &sum);
  ExpectAlike(all);
  const json described = all[0].described();
  EXPECT_EQ(described["algorithm"], "CUDA");
  ASSERT_EQ(described["choices"].size(), 1u);
  EXPECT_EQ(described["choices"][0]["algorithm"], "cuda_ipc");
  EXPECT_EQ(described["choices"][0]["why"], "gradients are on GPUs");
  EXPECT_EQ(all[0].tuning.bucket_bytes, 0);
  EXPECT_FALSE(described.contains("costs"));
  EXPECT_FALSE(described.contains("rules"));
}

TEST(TuneGroupTest, TheJobsWordComesFirst) {
  const TemporaryFolder folder;
  const std::pair<std::string, std::string> costs = {"dense.calibration", CostsFile(folder, 30e-6)};
  const std::vector<Tuned> ruled =
      Tune(Plan({costs, {"dense.algorithm_rules", "allreduce:swing/64K"}}));
  ExpectAlike(ruled);
  EXPECT_THAT(ruled[0].rules, HasSubstr("allreduce:swing/64K"));
  EXPECT_EQ(ruled[0].described()["choices"][0]["why"], "by the job's rules");
  EXPECT_EQ(Tune(Plan({costs, {"dense.bucket_bytes", "-1"}}))[0].tuning.bucket_bytes, 0);
  EXPECT_EQ(Tune(Plan({costs, {"dense.bucket_bytes", "777"}}))[0].tuning.bucket_bytes, 777);
  const std::vector<Tuned> named = Tune(Plan({costs, {"dense.algorithm", "RING"}}));
  EXPECT_EQ(named[0].rules, "");
  EXPECT_GT(named[0].tuning.bucket_bytes, 0);
  EXPECT_EQ(named[0].described()["choices"][0]["algorithm"], "ring");
}

TEST(TuneGroupTest, NothingIsMeasuredWhereBitsMustNotDependOnIt) {
  const std::vector<Tuned> all = Tune(Plan({{"reproducible", "true"}}));
  ExpectAlike(all);
  EXPECT_EQ(all[0].rules, "");
  EXPECT_EQ(all[0].tuning.bucket_bytes, 0);
  EXPECT_FALSE(all[0].described().contains("costs"));
  EXPECT_EQ(all[0].described()["choices"][0]["algorithm"], "direct");
  for (const char* set : {"dense.codec={kind: SIGN}", "dense.sharded_optimizer=true"}) {
    const std::vector<std::string> parts = absl::StrSplit(set, absl::MaxSplits('=', 1));
    EXPECT_EQ(Tune(Plan({{parts[0], parts[1]}}), 1 << 20)[0].tuning.bucket_bytes, 0) << set;
  }
}

TEST(TuneGroupTest, AFileThatCannotBeReadIsTheErrorOfAll) {
  const job::ResolvedJob plan = Plan({{"dense.calibration", "/nowhere/costs"}});
  for (const Tuned& one : Tune(plan)) {
    EXPECT_THAT(std::string(one.status.message()),
                HasSubstr("dense.calibration: \"/nowhere/costs\": cannot be read"));
  }
  EXPECT_THAT(std::string(worker::CheckDenseChoices(plan).message()), HasSubstr("/nowhere/costs"));
  const TemporaryFolder folder;
  WriteTextFile(folder.File("costs"), "message often\n");
  EXPECT_THAT(
      std::string(
          worker::CheckDenseChoices(Plan({{"dense.calibration", folder.File("costs")}})).message()),
      HasSubstr("line 1"));
  EXPECT_THAT(
      std::string(worker::CheckDenseChoices(Plan({{"dense.algorithm_rules", "allreduce:magic"}}))
                      .message()),
      HasSubstr("dense.algorithm_rules: \"allreduce:magic\": rules: at 10 ('magic')"));
}

// Playing every algorithm for many ranks would take longer than it could checkpoint.
TEST(TuneGroupTest, ManyWorkersTakeTheDefaults) {
  const std::vector<Tuned> all = Tune(Plan({{"cluster.workers", "65"}}), 1 << 20);
  ExpectAlike(all);
  EXPECT_EQ(all[0].rules, "");
  EXPECT_EQ(all[0].described()["choices"][0]["why"], "by default: more than 64 workers");
}

TEST(TuneGroupTest, OneWorkerHasNothingToChoose) {
  const std::vector<Tuned> one = Tune(Plan({{"cluster.workers", "1"}}));
  EXPECT_TRUE(one[0].status.ok()) << one[0].status;
  EXPECT_THAT(one[0].tuning.json, IsEmpty());
}

}  // namespace
}  // namespace tandem
