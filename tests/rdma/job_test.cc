// Whole jobs over RDMA and nothing else (cluster.transport: RDMA), beside the same over ZeroMQ: the
// same bits where a job is reproducible, nearly the same loss where it is not, and a summary that
// says which way frames went.
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "rdma/rdma_transport.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

constexpr char kOverRdma[] = "cluster.transport=RDMA", kOverZmq[] = "cluster.transport=ZMQ";
constexpr absl::Duration kLimit = absl::Minutes(40);  // processors may be emulated ones
// Where steps take long, a role may wait for another one longer than it would elsewhere.
constexpr char kPatient[] = "limits.startup_timeout_seconds=600";

class RdmaJobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto context = rdma::RdmaContext::New();
    if (!context.ok()) GTEST_SKIP() << context.status().message();
  }
  RunResult Run(const RunArguments& arguments) {
    RunResult run = RunJob(arguments, kLimit);
    EXPECT_TRUE(run.ok()) << run.DebugString();
    return run;
  }
  // Two workers reach two shards, and each other where they have something to say: what their
  // dense gradients take (`dense_links` pairs) is said by itself.
  static void ExpectAllOverRdma(const RunResult& run, int dense_links) {
    ASSERT_TRUE(run.summary.contains("paths"));
    EXPECT_GE(run.summary["paths"].size(), 4u) << run.summary["paths"];
    int of_dense = 0;
    for (const auto& path : run.summary["paths"]) {
      EXPECT_EQ(path["by"], "RDMA") << path;
      of_dense += path.value("for", "") == "dense gradients" ? 1 : 0;
    }
    EXPECT_EQ(of_dense, dense_links) << run.summary["paths"];
  }
};

TEST_F(RdmaJobTest, AJobOfMorePeersThanTheDeviceHasRoomForIsRefusedAtTheStart) {
  const SmallJob job(/*train_rows=*/2000, /*test_rows=*/50);
  const RunResult run =
      RunJob(job.Arguments("crowd", {kOverRdma, "cluster.workers=1000", kPatient}), kLimit);
  EXPECT_EQ(run.exit_code, 2) << run.DebugString();
  EXPECT_NE(run.output.find("its queues are too small"), std::string::npos) << run.DebugString();
}

// Two tables and a dense part, summed between the workers or on the servers: then what the dense
// part exchanges or pushes and pulls goes over RDMA as well.
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
      if (rdma) ExpectAllOverRdma(run, dense == absl::string_view("ALLREDUCE") ? 1 : 0);
      const auto model = ReadCheckpoint(arguments.out + "/model");
      ASSERT_TRUE(model.ok()) << model.status();
      EXPECT_FALSE(model->empty());
      bits[rdma] = *model;
    }
    EXPECT_EQ(Difference(bits[0], bits[1]), "");
  }
}

// Only what workers sum between them must go over RDMA: how it is summed is chosen by what these
// links cost.
TEST_F(RdmaJobTest, DenseGradientsAloneTakeRdmaAndAreChosenForByItsCosts) {
  const SmallJob job(/*train_rows=*/600, /*test_rows=*/50);
  const RunResult run =
      Run(job.Arguments("dense", {"reproducible=false", "dense.algorithm=AUTO", "dense.link=RDMA",
                                  "train.max_steps=20", "cluster.workers=2", kPatient}));
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run.summary["collectives"]["costs"]["link"], "rdma");
  EXPECT_EQ(run.summary.value("transport", ""), "shared memory");
  int of_dense = 0;
  for (const auto& path : run.summary["paths"]) {
    if (path.value("for", "") != "dense gradients") continue;
    ++of_dense;
    EXPECT_EQ(path["by"], "RDMA");
    EXPECT_EQ(path["why"], "requested explicitly");
  }
  EXPECT_EQ(of_dense, 1) << run.summary["paths"];
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

// Collaborative filtering, a test for each policy, so that each can be run alone: an emulated
// processor needs minutes for each. Needs the MovieLens files that the job's configuration names,
// in $TANDEM_DATA, and the tree in $TANDEM_SOURCE_DIR. $TANDEM_NCF_STEPS: steps, 2,000 if unset.
class RdmaCollaborativeFilteringTest : public RdmaJobTest {
 protected:
  struct Trained {
    double loss = 0;  // mean over all samples
    ModelBits bits;
  };

  void SetUp() override {
    if (std::getenv("TANDEM_DATA") == nullptr || std::getenv("TANDEM_SOURCE_DIR") == nullptr) {
      GTEST_SKIP() << "no TANDEM_DATA or TANDEM_SOURCE_DIR";
    }
    RdmaJobTest::SetUp();
  }

  // The ranking of 100 candidates for each user at the end would take longer than the training, and
  // tells nothing that the loss and the model do not.
  Trained Train(const Settings& policy, bool rdma) {
    const char* const steps = std::getenv("TANDEM_NCF_STEPS");
    RunArguments arguments;
    arguments.job = absl::StrCat(std::getenv("TANDEM_SOURCE_DIR"), "/configs/ncf_gmf8.textproto");
    arguments.out = folder_.File(rdma ? "rdma" : "zmq");
    arguments.set =
        Join(policy, {absl::StrCat("train.max_steps=", steps == nullptr ? "2000" : steps),
                      "data.test=[]", "data.negatives.test_negatives=",
                      "limits.report_interval_seconds=1", rdma ? kOverRdma : kOverZmq, kPatient});
    Trained trained;
    const RunResult run = Run(arguments);
    if (!run.ok()) return trained;
    const bool servers = absl::c_linear_search(policy, "dense.synchroniser=SERVERS");
    if (rdma) ExpectAllOverRdma(run, /*dense_links=*/servers ? 0 : 1);
    trained.loss = MeanLoss(arguments.out + "/metrics.jsonl");
    const auto model = ReadCheckpoint(arguments.out + "/model");
    EXPECT_TRUE(model.ok()) << model.status();
    if (model.ok()) trained.bits = *model;
    std::printf("over %s: mean loss %.7f, %s samples in %s s\n", rdma ? "RDMA" : "ZeroMQ",
                trained.loss, run.summary["samples"].dump().c_str(),
                run.summary["seconds"].dump().c_str());
    std::fflush(stdout);
    return trained;
  }

  void ExpectNearlyTheSameLoss(const Settings& policy) {
    const Trained zmq = Train(policy, /*rdma=*/false), rdma = Train(policy, /*rdma=*/true);
    EXPECT_FALSE(rdma.bits.empty());
    EXPECT_LT(std::abs(rdma.loss / zmq.loss - 1), 0.02) << zmq.loss << " and " << rdma.loss;
  }

  const TemporaryFolder folder_;
};

TEST_F(RdmaCollaborativeFilteringTest, InStepItEndsWithTheBitsThatZeroMqGives) {
  const Settings policy = {"reproducible=true", "policy.kind=BSP"};
  const Trained zmq = Train(policy, /*rdma=*/false), rdma = Train(policy, /*rdma=*/true);
  EXPECT_FALSE(rdma.bits.empty());
  EXPECT_EQ(Difference(zmq.bits, rdma.bits), "");
}

TEST_F(RdmaCollaborativeFilteringTest, AsynchronouslyItLearnsAsOverZeroMq) {
  ExpectNearlyTheSameLoss({"policy.kind=ASP", "dense.synchroniser=SERVERS"});
}

// Tables asynchronous and a step ahead, the dense layer summed between the workers.
TEST_F(RdmaCollaborativeFilteringTest, WithDenseInStepItLearnsAsOverZeroMq) {
  ExpectNearlyTheSameLoss({"policy.kind=ASP", "train.prefetch_steps=1"});
}

}  // namespace
}  // namespace tandem
