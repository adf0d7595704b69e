// A simulated cluster whose workers are real ones but for LibTorch: readers that open files,
// shuffle and hash, batches, pooling, merging of gradients, metrics (worker/step_runner.h), around
// a model of a few lines. What comes out does not depend on how many servers there are, nor on what
// the network does.
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "data/datagen.h"
#include "gtest/gtest.h"
#include "tests/sim/proof/checked_world.h"
#include "tests/test_seed.h"
#include "tests/unit/data/data_fixture.h"
#include "worker/step_runner.h"

namespace tandem {
namespace {

// logit = bias + weights · numbers + the sum of all pooled rows.
class LinearModel final : public models::DenseModel {
 public:
  static absl::StatusOr<std::unique_ptr<models::DenseModel>> New(
      const job::ResolvedJob&, const models::ModelInputs& inputs) {
    return std::unique_ptr<models::DenseModel>(new LinearModel(inputs));
  }

  const std::vector<models::ParameterInfo>& parameters() const override { return parameters_; }
  int64_t parameter_count() const override { return inputs_.numeric + 1; }

  absl::Status Forward(const data::Batch& batch, absl::Span<const float> flat,
                       absl::Span<const models::PooledRows> pooled,
                       absl::Span<float> logits) override {
    const auto numeric = static_cast<size_t>(inputs_.numeric);
    for (size_t s = 0; s < logits.size(); ++s) {
      float sum = flat[numeric];
      for (size_t j = 0; j < numeric; ++j) sum += flat[j] * batch.numbers[s * numeric + j];
      for (const models::PooledRows& cells : pooled) {
        const size_t width = cells.size() / logits.size();
        for (size_t i = 0; i < width; ++i) sum += cells[s * width + i];
      }
      logits[s] = sum;
    }
    return absl::OkStatus();
  }

  absl::Status ForwardBackward(const data::Batch& batch, absl::Span<const float> flat,
                               absl::Span<const models::PooledRows> pooled,
                               absl::Span<float> logits, double* loss_sum,
                               absl::Span<float> flat_gradient,
                               absl::Span<const absl::Span<float>> pooled_gradients) override {
    const absl::Status status = Forward(batch, flat, pooled, logits);
    if (!status.ok()) return status;
    const auto numeric = static_cast<size_t>(inputs_.numeric);
    std::fill(flat_gradient.begin(), flat_gradient.end(), 0.0f);
    *loss_sum = 0;
    for (size_t s = 0; s < logits.size(); ++s) {
      *loss_sum += data::Logloss(logits[s], batch.labels[s]);
      const float slope = 1 / (1 + std::exp(-logits[s])) - batch.labels[s];
      flat_gradient[numeric] += slope;
      for (size_t j = 0; j < numeric; ++j) {
        flat_gradient[j] += slope * batch.numbers[s * numeric + j];
      }
      for (const absl::Span<float>& cells : pooled_gradients) {
        const size_t width = cells.size() / logits.size();
        std::fill_n(cells.begin() + static_cast<std::ptrdiff_t>(s * width), width, slope);
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<float*> DeviceGradient(bool) override {
    return absl::FailedPreconditionError("on no GPU");
  }
  void LeaveGradientOnDevice() override {}

 private:
  explicit LinearModel(const models::ModelInputs& inputs) : inputs_(inputs) {
    models::ParameterInfo all;
    all.name = "linear";
    all.size = parameter_count();
    all.shape = {all.size};
    all.initializer.set_kind(Initializer::CONSTANT);
    parameters_.push_back(all);
  }

  const models::ModelInputs inputs_;
  std::vector<models::ParameterInfo> parameters_;
};

class RealDataTest : public ::testing::Test {
 protected:
  static constexpr int kTrainRows = 900, kTestRows = 300, kWorkers = 3, kEpochs = 2;

  RealDataTest() {
    data::DatagenOptions options;
    options.train = folder_.Path("train.tsv");
    options.test = folder_.Path("test.tsv");
    options.train_rows = kTrainRows;
    options.test_rows = kTestRows;
    options.seed = 5;
    std::ostringstream log;
    EXPECT_TRUE(data::GenerateCriteo(options, log).ok());
  }

  job::ResolvedJob Plan(const std::string& policy, int servers, const std::string& dense) {
    const absl::StatusOr<Job> job = job::ParseJob(
        absl::StrCat(
            "name: \"real\" seed: 7 reproducible: ", policy == "kind: BSP" ? "true" : "false",
            " cluster { workers: ", kWorkers, " servers: ", servers,
            " } data { format: CRITEO train: \"", folder_.Path("train.tsv"), "\" test: \"",
            folder_.Path("test.tsv"), "\" shuffle_buffer: 200 } table { name: \"all\" dim: 1 ",
            "initializer { kind: UNIFORM scale: 0.01 } ",
            "optimizer { kind: ADAGRAD learning_rate: 0.05 } expected_rows: 2000 } ", "policy { ",
            policy, " } dense { optimizer { kind: ADAM learning_rate: 0.01 } ", dense,
            " } model { logistic_regression {} } train { batch_size: 16 epochs: ", kEpochs,
            " prefetch_steps: 1 } "
            "fault_injection { slow_workers { distribution: EXPONENTIAL mean_seconds: 0.01 } }"),
        "real", {});
    EXPECT_TRUE(job.ok()) << job.status();
    absl::StatusOr<job::ResolvedJob> plan = job::Resolve(*job);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *plan;
  }

  static CheckedWorldOptions Options() {
    CheckedWorldOptions options;
    options.seed = TestSeed();
    options.make_runner = [](const job::ResolvedJob& plan, int rank) {
      return worker::StepRunner::New(plan, rank, nullptr, LinearModel::New);
    };
    options.checkpoint_at_end = true;
    return options;
  }
  static CheckedWorldOptions Faulty() {
    CheckedWorldOptions options = Options();
    options.network.drop = 0.01;
    options.network.duplicate = 0.05;
    options.network.reorder = true;
    options.moves_per_second = 20;
    return options;
  }

  struct Result {
    nlohmann::json evaluation;
    std::vector<float> dense;
    int64_t samples = 0, moves = 0;
  };
  static Result Run(const job::ResolvedJob& plan, const CheckedWorldOptions& options) {
    absl::StatusOr<std::unique_ptr<CheckedWorld>> world = CheckedWorld::New(plan, options);
    EXPECT_TRUE(world.ok()) << world.status();
    if (!world.ok()) return {};
    const absl::Status status = (*world)->Run();
    EXPECT_TRUE(status.ok()) << status << "\n" << (*world)->TraceText();
    Result result;
    result.evaluation = nlohmann::json::parse((*world)->report().evaluation_json, nullptr, false);
    result.dense = (*world)->DenseValues(0);
    result.samples = (*world)->report().samples;
    result.moves = (*world)->moves();
    return result;
  }

  TempDir folder_;
};

TEST_F(RealDataTest, ServersAndFaultsLeaveNoTraceInWhatIsLearnt) {
  for (const char* dense : {"", "synchroniser: SERVERS"}) {
    SCOPED_TRACE(dense);
    const Result plain = Run(Plan("kind: BSP", 1, dense), Options());
    EXPECT_EQ(plain.samples, kTrainRows * kEpochs);
    EXPECT_EQ(plain.evaluation["samples"], kTestRows);
    EXPECT_GT(plain.evaluation["auc"].get<double>(), 0.55) << "it learns";
    const Result faulty = Run(Plan("kind: BSP", 3, dense), Faulty());
    EXPECT_GT(faulty.moves, 0);
    EXPECT_EQ(faulty.evaluation, plain.evaluation);
    EXPECT_EQ(faulty.dense, plain.dense);
  }
}

TEST_F(RealDataTest, EverySampleIsUsedOnceAnEpochWithoutLockstep) {
  const Result result = Run(Plan("kind: SSP bound: 3", 2, "synchroniser: SERVERS"), Faulty());
  EXPECT_EQ(result.samples, kTrainRows * kEpochs);
  EXPECT_EQ(result.evaluation["samples"], kTestRows);
}

}  // namespace
}  // namespace tandem
