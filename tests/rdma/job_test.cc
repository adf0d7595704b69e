// Whole jobs over RDMA and nothing else (cluster.transport: RDMA), beside the same over ZeroMQ: the
// same bits where a job is reproducible, nearly the same loss where it is not, and a summary that
// says which way frames went.
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "rdma/rdma_transport.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

using Settings = std::vector<std::string>;

constexpr char kOverRdma[] = "cluster.transport=RDMA", kOverZmq[] = "cluster.transport=ZMQ";
constexpr absl::Duration kLimit = absl::Minutes(40);  // processors may be emulated ones
// Where steps take long, a role may wait for another one longer than it would elsewhere.
constexpr char kPatient[] = "limits.start_seconds=600";

Settings Join(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class RdmaJobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto context = RdmaContext::New();
    if (!context.ok()) GTEST_SKIP() << context.status().message();
  }
  RunResult Run(const RunArguments& arguments) {
    RunResult run = RunJob(arguments, kLimit);
    EXPECT_TRUE(run.ok()) << run.DebugString();
    return run;
  }
  // Two workers reach two shards, and each other where they have something to say.
  static void ExpectAllOverRdma(const RunResult& run) {
    ASSERT_TRUE(run.summary.contains("paths"));
    EXPECT_GE(run.summary["paths"].size(), 4u) << run.summary["paths"];
    for (const auto& path : run.summary["paths"]) EXPECT_EQ(path["by"], "RDMA") << path;
  }
};

// Two tables and a dense part, summed between the workers or on the servers: then what the dense
// part pushes and pulls goes over RDMA as well.
TEST_F(RdmaJobTest, AReproducibleJobEndsWithTheBitsThatZeroMqGives) {
  const SmallJob job(/*train_rows=*/2000, /*test_rows=*/50);
  const Settings common = {"train.max_steps=40", "cluster.workers=2", kPatient};
  for (const char* const dense : {"ALLREDUCE", "SERVERS"}) {
    SCOPED_TRACE(dense);
    const Settings set = Join(common, {absl::StrCat("dense.synchroniser=", dense)});
    ModelBits bits[2];
    for (const bool rdma : {false, true}) {
      const RunArguments arguments =
          job.Arguments(absl::StrCat(dense, rdma), Join(set, {rdma ? kOverRdma : kOverZmq}));
      const RunResult run = Run(arguments);
      ASSERT_TRUE(run.ok());
      if (rdma) ExpectAllOverRdma(run);
      const auto model = ReadSavedModel(arguments.out + "/model");
      ASSERT_TRUE(model.ok()) << model.status();
      EXPECT_FALSE(model->empty());
      bits[rdma] = *model;
    }
    EXPECT_EQ(Difference(bits[0], bits[1]), "");
  }
}

// Over all samples that the lines of progress tell of.
double MeanLoss(const std::string& metrics) {
  std::istringstream lines(ReadTextFile(metrics));
  double sum = 0, weight = 0, before = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("loss")) continue;
    const double samples = json["samples"];
    sum += (samples - before) * json["loss"].get<double>();
    weight += samples - before;
    before = samples;
  }
  return sum / weight;
}

// Needs the MovieLens files that the job's configuration names, in $TANDEM_DATA, and the tree in
// $TANDEM_SOURCE_DIR. $TANDEM_NCF_STEPS: steps, 2,000 if unset.
TEST_F(RdmaJobTest, CollaborativeFilteringLearnsAsItDoesOverZeroMq) {
  const char* const tree = std::getenv("TANDEM_SOURCE_DIR");
  const char* const steps = std::getenv("TANDEM_NCF_STEPS");
  if (std::getenv("TANDEM_DATA") == nullptr || tree == nullptr) GTEST_SKIP() << "no TANDEM_DATA";
  const Settings common = {absl::StrCat("train.max_steps=", steps == nullptr ? "2000" : steps),
                           "policy.kind=ASP", "limits.report_seconds=1", kPatient};
  const std::vector<std::pair<std::string, std::string>> ways = {
      {"asp", "dense.synchroniser=SERVERS"}, {"hybrid", "train.depth=1"}};
  const TemporaryFolder folder;
  for (const auto& [name, setting] : ways) {
    SCOPED_TRACE(name);
    double loss[2] = {};
    for (const bool rdma : {false, true}) {
      RunArguments arguments;
      arguments.job = absl::StrCat(tree, "/configs/ncf_gmf8.textproto");
      arguments.out = folder.File(absl::StrCat(name, rdma));
      arguments.set = Join(common, {setting, rdma ? kOverRdma : kOverZmq});
      arguments.save = false;
      const RunResult run = Run(arguments);
      ASSERT_TRUE(run.ok());
      if (rdma) ExpectAllOverRdma(run);
      loss[rdma] = MeanLoss(arguments.out + "/metrics.jsonl");
      std::printf("%s over %s: mean loss %.5f, %s in %s s\n", name.c_str(),
                  rdma ? "RDMA" : "ZeroMQ", loss[rdma], run.summary["samples"].dump().c_str(),
                  run.summary["seconds"].dump().c_str());
    }
    EXPECT_LT(std::abs(loss[1] / loss[0] - 1), 0.02) << loss[0] << " and " << loss[1];
  }
}

}  // namespace
}  // namespace tandem
