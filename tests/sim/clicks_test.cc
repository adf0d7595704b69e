// The planted click model (tools/sim/clicks.h): its gradients are those of its loss; the same seed
// gives the same bits; and under the policies of a simulated cluster it comes out as it must: near
// the best logloss in step, as near without waiting at a small step, and far from there with a
// delay that the step is too large for.
#include "tools/sim/clicks.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "job/job.h"
#include "tests/sim/proof/checked_world.h"

namespace tandem {
namespace {

constexpr int64_t kDense = 5, kSteps = 150;

// "hybrid": tables under ASP, the dense part under BSP. Of the model that the job names nothing is
// used.
job::ResolvedJob Plan(const std::string& policy, const std::string& optimizer, int dim, int seed) {
  const std::string text = absl::StrCat(
      "name: \"clicks\" seed: ", seed, " cluster { workers: 8 servers: 2 }\n",
      "data { format: CRITEO train: \"none\" }\n", "table { name: \"ids\" dim: ", dim,
      " initializer { kind: NORMAL scale: 0.1 } }\n", "dense { synchroniser: SERVERS optimizer { ",
      optimizer, " } ", policy == "hybrid" ? "policy { kind: BSP } " : "", "}\n", "policy { ",
      policy == "hybrid" ? "kind: ASP async_scale: INVERSE_WORKERS" : policy, " }\n",
      "model { mlp { hidden: [1] } }\n", "train { batch_size: 64 }\n",
      "fault_injection { slow_workers { distribution: LOGNORMAL mean_seconds: 0.01 sigma: 0.5 } "
      "}\n");
  absl::StatusOr<Job> job = job::ParseJob(text, "clicks.textproto", {});
  EXPECT_TRUE(job.ok()) << job.status();
  absl::StatusOr<job::ResolvedJob> plan = job::Resolve(*job);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

sim::ClickOptions Options(int seed) {
  sim::ClickOptions options;
  options.fields = 4;
  options.ids = 200;
  options.dense = kDense;
  options.steps = kSteps;
  options.seed = static_cast<uint64_t>(seed);
  return options;
}

// A run, and what is left of it. `max_steps`: of the job; 0: none.
struct Outcome {
  sim::ClickLosses losses;
  std::vector<float> values;  // the dense parameters, and the rows of the first ids
};
Outcome Train(const std::string& policy, const std::string& optimizer, int dim = 1, int seed = 1,
              int64_t steps = kSteps, int64_t max_steps = 0) {
  job::ResolvedJob plan = Plan(policy, optimizer, dim, seed);
  plan.job.mutable_train()->set_max_steps(max_steps);
  sim::ClickOptions click_options = Options(seed);
  click_options.steps = steps;
  const auto model = std::make_shared<const sim::ClickModel>(plan, click_options);
  Outcome outcome;
  CheckedWorldOptions options;
  options.seed = static_cast<uint64_t>(seed);
  options.service_seed = static_cast<uint64_t>(seed);
  options.frame_bytes = size_t{1} << 20;
  options.make_runner = [&](const job::ResolvedJob& of, int rank) {
    return sim::ClickRunner::New(of, rank, model, &outcome.losses);
  };
  absl::StatusOr<std::unique_ptr<CheckedWorld>> world = CheckedWorld::New(plan, options);
  EXPECT_TRUE(world.ok()) << world.status();
  if (!world.ok()) return outcome;
  const absl::Status status = (*world)->Run();
  EXPECT_TRUE(status.ok()) << status;
  outcome.values = (*world)->DenseValues(0);
  for (uint64_t key = 1; key <= 50; ++key) {
    for (const float value : (*world)->Row(0, key)) outcome.values.push_back(value);
  }
  return outcome;
}

constexpr char kSmallStep[] = "kind: SGD learning_rate: 0.5";
constexpr char kLargeStep[] = "kind: SGD learning_rate: 2";

// Differences of the loss, element by element.
TEST(ClicksTest, GradientsAreThoseOfTheLoss) {
  constexpr size_t kDim = 3;
  const job::ResolvedJob plan = Plan("kind: BSP", kSmallStep, kDim, 3);
  const sim::ClickModel model(plan, Options(3));
  data::Batch batch;
  std::vector<double> truth;
  model.FillBatch(0, 7, &batch, &truth);
  const data::SparseInput& input = batch.sparse[0];
  std::vector<float> dense(kDense), values(input.keys.size() * kDim);
  for (size_t i = 0; i < dense.size(); ++i) dense[i] = 0.1f * static_cast<float>(i) - 0.2f;
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.05f * static_cast<float>(i % 11) - 0.2f;
  std::vector<float> of_dense(kDense), of_values(values.size(), 99);
  std::vector<const float*> rows;
  std::vector<float*> gradients;
  for (size_t k = 0; k < input.keys.size(); ++k) {
    rows.push_back(values.data() + k * kDim);
    gradients.push_back(of_values.data() + k * kDim);
  }
  std::vector<double> logits;
  const auto loss = [&] {
    logits.assign(batch.labels.size(), 0);
    sim::ClickModel::AddDense(batch, dense, &logits);
    sim::ClickModel::AddRows(input, kDim, rows, &logits);
    double sum = 0;
    for (size_t s = 0; s < logits.size(); ++s) {
      sum += std::log1p(std::exp(logits[s])) - double{batch.labels[s]} * logits[s];
    }
    return sum;
  };
  loss();
  std::vector<double> errors;
  for (size_t s = 0; s < logits.size(); ++s) {
    errors.push_back(1 / (1 + std::exp(-logits[s])) - batch.labels[s]);
  }
  sim::ClickModel::DenseGradient(batch, errors, absl::MakeSpan(of_dense));
  sim::ClickModel::RowGradients(input, kDim, errors, rows, gradients);
  const auto expect_slope = [&](float* at, float gradient, const std::string& what) {
    constexpr float kStep = 1.0f / 256;
    const float value = *at;
    *at = value + kStep;
    const double above = loss();
    *at = value - kStep;
    const double below = loss();
    *at = value;
    EXPECT_NEAR((above - below) / (2 * kStep), gradient, 2e-3) << what;
  };
  for (size_t i = 0; i < dense.size(); ++i) {
    expect_slope(&dense[i], of_dense[i], absl::StrCat("dense ", i));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    expect_slope(&values[i], of_values[i], absl::StrCat("key ", i / kDim, ", element ", i % kDim));
  }
}

// Steps that a policy lets a worker skip count for train.max_steps: the last tenth is of those
// before it.
TEST(ClicksTest, TheLastTenthIsOfTheRunWhateverWasSkipped) {
  const std::string optimizer = "kind: SGD learning_rate: 0.1";
  for (const char* policy : {"kind: BSP", "kind: BACKUP_WORKERS backups: 4"}) {
    const Outcome run = Train(policy, optimizer, 1, 5, /*steps=*/1000, /*max_steps=*/60);
    EXPECT_GT(run.losses.last.samples, 0) << policy;
    EXPECT_LE(run.losses.last.samples, 8 * 7 * 64) << policy;
    EXPECT_LT(run.losses.last.Above(), run.losses.first.Above()) << policy;
  }
}

// Labels are drawn from the planted probabilities: summed over many samples the two differ by what
// chance allows.
TEST(ClicksTest, LabelsFollowThePlantedModel) {
  const job::ResolvedJob plan = Plan("kind: BSP", kSmallStep, 3, 5);
  const sim::ClickModel model(plan, Options(5));
  double clicks = 0, want = 0, variance = 0;
  for (int64_t step = 0; step < 400; ++step) {
    data::Batch batch;
    std::vector<double> truth;
    model.FillBatch(2, step, &batch, &truth);
    for (size_t s = 0; s < truth.size(); ++s) {
      const double p = 1 / (1 + std::exp(-truth[s]));
      clicks += batch.labels[s];
      want += p;
      variance += p * (1 - p);
    }
  }
  EXPECT_LT(std::abs(clicks - want), 4 * std::sqrt(variance));
  EXPECT_GT(want, 0.1 * 400 * 64);
  EXPECT_LT(want, 0.5 * 400 * 64);
}

TEST(ClicksTest, TheSameSeedHasTheSameBits) {
  for (const std::string policy : {"kind: ASP", "hybrid"}) {
    const Outcome one = Train(policy, kSmallStep, 3), same = Train(policy, kSmallStep, 3);
    ASSERT_EQ(one.values.size(), same.values.size());
    EXPECT_EQ(std::memcmp(one.values.data(), same.values.data(), one.values.size() * sizeof(float)),
              0);
    EXPECT_EQ(one.losses.last.loss, same.losses.last.loss);
    EXPECT_NE(Train(policy, kSmallStep, 3, 2).values, one.values);
  }
}

TEST(ClicksTest, InStepItComesNearTheBestLogloss) {
  for (const int dim : {1, 3}) {
    const sim::ClickLosses losses =
        Train("kind: BSP", "kind: ADAGRAD learning_rate: 0.2", dim, 1, 4 * kSteps).losses;
    EXPECT_GT(losses.first.Above(), 0.1);
    EXPECT_LT(losses.last.Above(), 0.01) << "dim " << dim;
    EXPECT_GT(losses.last.Above(), 0);
    EXPECT_FALSE(losses.diverged());
    EXPECT_EQ(losses.first.samples, 8 * 64);
    EXPECT_EQ(losses.last.samples, 8 * 64 * 4 * kSteps / 10);
  }
}

// A job that ends before the data do: the last tenth of its steps is that of those that there were.
TEST(ClicksTest, TheLastTenthIsOfTheStepsThatAJobTakes) {
  const sim::ClickLosses losses = Train("kind: BSP", kSmallStep, 1, 1, kSteps, 20).losses;
  EXPECT_EQ(losses.first.samples, 8 * 64);
  EXPECT_EQ(losses.last.samples, 8 * 64 * 2);
  EXPECT_GT(losses.last.Above(), 0);
  EXPECT_LT(losses.last.Above(), losses.first.Above());
}

double Above(const std::string& policy, const std::string& optimizer) {
  return Train(policy, optimizer).losses.last.Above();
}

// A step that the staleness is too small to matter for. Scaled by the workers, so that a worker's
// steps move the model as far without waiting as in step.
TEST(ClicksTest, WhoDoesNotWaitComesAsNearAtASmallStep) {
  const double in_step = Above("kind: BSP", kSmallStep);
  EXPECT_LT(in_step, 0.05);
  for (const std::string policy : {"kind: ASP async_scale: INVERSE_WORKERS",
                                   "kind: SSP bound: 3 async_scale: INVERSE_WORKERS", "hybrid"}) {
    EXPECT_LT(std::abs(Above(policy, kSmallStep) - in_step), 0.1 * in_step) << policy;
  }
}

// Dense parameters are in each sample, rows of rare ids are not: what waits for the dense part
// alone bears a step that those who wait for nothing do not.
TEST(ClicksTest, ATooLargeStepIsWorseTheLongerTheDelay) {
  const double in_step = Above("kind: BSP", kLargeStep);
  const double some = Above("kind: FIXED_DELAY delay: 4", kLargeStep);
  const sim::ClickLosses much = Train("kind: FIXED_DELAY delay: 16", kLargeStep).losses;
  EXPECT_LT(in_step, 0.05);
  EXPECT_GT(some, 2 * in_step);
  EXPECT_GT(much.last.Above(), 2 * some);
  EXPECT_TRUE(much.diverged());
  EXPECT_LT(Above("hybrid", kLargeStep), 0.05);
  EXPECT_GT(Above("kind: ASP", kLargeStep), 2 * in_step);
}

}  // namespace
}  // namespace tandem
