// Staleness on a quadratic: what is known exactly must come out of the range of a real shard, its
// policy and its optimizer.
//
// Constant delay: the step size at which SGD stops converging is 2 sin(pi / (2 (2 delay + 1))) /
// curvature, and with momentum it follows from the roots of a polynomial: just below they converge,
// just above they diverge. Asynchrony: workers without memory move, on average, as heavy-ball
// momentum does (Mitliagkas et al. 2016, "Asynchrony begets momentum").
#include <algorithm>
#include <cmath>
#include <complex>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "job/job.h"
#include "optim/optimizer.h"
#include "policies/policy.h"
#include "server/range.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

// The range of a table with one row of one weight, which is 1 at first, under a policy.
class OneWeight {
 public:
  OneWeight(const Optimizer& config, const Policy& policy, int workers)
      : optimizer_(*optim::NewRowOptimizer(config)),
        policy_(*policies::NewUpdatePolicy(policy, workers)) {
    plan_.name = "w";
    plan_.dim = 1;
    plan_.expected_rows = 1;
    plan_.initializer.set_kind(Initializer::CONSTANT);
    plan_.initializer.set_scale(1);
    table_.plan = &plan_;
    table_.optimizer = optimizer_.get();
    table_.policy = policy_.get();
    table_.workers = workers;
    table_.reads = kReads;
    table_.gradient_share = 1;
    range_ = std::make_unique<server::Range>(0, 0, 0, &table_, &scratch_);
  }

  float Weight() {
    float weight = 0;
    range_->store().Pull({&kKey, 1}, absl::MakeSpan(&weight, 1));
    return weight;
  }
  int64_t version() const { return range_->progress().version; }
  void FinishDelayed() { range_->FinishDelayed(); }

  // Worker `rank` reads the weight for `step`.
  float Read(int rank, int64_t step) {
    const float weight = Weight();
    range_->RememberRead(absl::UnixEpoch(), rank, step, {&kKey, 1}, {&weight, 1});
    return weight;
  }
  const server::GradientSums& gradients() const { return table_.stats.gradients; }

  // Worker `rank` sends a gradient of one sample as its update of `step`.
  void Push(int rank, int64_t step, int64_t version_read, float gradient) {
    server::HeldUpdate update;
    update.rank = rank;
    update.step = step;
    update.samples = 1;
    update.version_read = version_read;
    update.keys = buffers_.Alloc(sizeof kKey);
    update.keys.MutableAs<uint64_t>()[0] = kKey;
    update.values = buffers_.Alloc(sizeof gradient);
    update.values.MutableAs<float>()[0] = gradient;
    EXPECT_EQ(range_->Admit(absl::UnixEpoch(), /*incarnation=*/1 + static_cast<uint64_t>(rank),
                            step, std::move(update), /*finished=*/false),
              server::Range::Admission::kAdmitted);
  }

 private:
  static constexpr uint64_t kKey = 7;
  static constexpr int kReads = 16;
  HeapBufferSource buffers_;
  job::TablePlan plan_;
  const std::unique_ptr<optim::RowOptimizer> optimizer_;
  const std::unique_ptr<policies::UpdatePolicy> policy_;
  server::TableContext table_;
  server::FoldScratch scratch_;
  std::unique_ptr<server::Range> range_;
};

// |w| after descending on w * w / 2 from 1, as soon as it is plainly small or plainly large.
double Descend(const Optimizer& config, int delay) {
  Policy fixed_delay;
  fixed_delay.set_kind(Policy::FIXED_DELAY);
  fixed_delay.set_delay(delay);
  OneWeight weight(config, fixed_delay, /*workers=*/1);
  double envelope = 1;  // largest of the last steps: the iterates swing
  for (int64_t step = 0; step < 400000; ++step) {
    EXPECT_EQ(weight.version(), step);
    const float gradient = weight.Weight();
    envelope = std::max(0.999 * envelope, std::abs(double{gradient}));
    if (envelope < 1e-3 || envelope > 1e3) break;
    weight.Push(0, step, step, gradient);
  }
  return envelope;
}

void ExpectLimit(Optimizer config, int delay, double limit) {
  config.set_learning_rate(0.95 * limit);
  EXPECT_LT(Descend(config, delay), 1e-3) << "delay " << delay << ", below " << limit;
  config.set_learning_rate(1.05 * limit);
  EXPECT_GT(Descend(config, delay), 1e3) << "delay " << delay << ", above " << limit;
}

TEST(StabilityTest, PlainSgdStopsConvergingWhereTheFormulaSays) {
  Optimizer sgd;
  sgd.set_kind(Optimizer::SGD);
  for (const int delay : {0, 1, 2, 3, 4, 8, 16, 32}) {
    ExpectLimit(sgd, delay, 2 * std::sin(M_PI / (2 * (2 * delay + 1))));
  }
}

// The largest root, by its modulus, of a polynomial with the coefficients of z^degree, z^(degree -
// 1), ..., 1, the first of which is 1: all roots at once by the iteration of Durand and Kerner.
double LargestRoot(const std::vector<double>& coefficients) {
  const size_t degree = coefficients.size() - 1;
  std::vector<std::complex<double>> roots;
  for (size_t i = 0; i < degree; ++i) roots.push_back(std::pow(std::complex(0.4, 0.9), i));
  for (int round = 0; round < 2000; ++round) {
    double moved = 0;
    for (size_t i = 0; i < degree; ++i) {
      std::complex<double> value = 0, others = 1;
      for (const double coefficient : coefficients) value = value * roots[i] + coefficient;
      for (size_t j = 0; j < degree; ++j) others *= i == j ? 1.0 : roots[i] - roots[j];
      roots[i] -= value / others;
      moved = std::max(moved, std::abs(value / others));
    }
    if (moved < 1e-13) break;
  }
  double largest = 0;
  for (const std::complex<double>& root : roots) largest = std::max(largest, std::abs(root));
  return largest;
}

// The step size at which the largest root of polynomial(step size) leaves the unit circle.
double LimitOfRoots(absl::FunctionRef<std::vector<double>(double)> polynomial) {
  double stable = 0, unstable = 4;
  while (unstable - stable > 1e-9) {
    const double step = (stable + unstable) / 2;
    (LargestRoot(polynomial(step)) < 1 ? stable : unstable) = step;
  }
  return stable;
}

// The limit for w(c+1) = (1 + m) w(c) - m w(c-1) - step w(c-delay).
double LimitOfMomentum(double momentum, int delay) {
  return LimitOfRoots([&](double step) {
    std::vector<double> coefficients(static_cast<size_t>(std::max(delay + 1, 2)) + 1, 0);
    coefficients[0] = 1;
    coefficients[1] -= 1 + momentum;
    coefficients[2] += momentum;
    coefficients[static_cast<size_t>(delay) + 1] += step;
    return coefficients;
  });
}

// The limit for w(c+1) = w(c) - step (2 w(c-delay) - w(c-2 delay)).
double LimitOfErrorFeedback(int delay) {
  return LimitOfRoots([&](double step) {
    std::vector<double> coefficients(static_cast<size_t>(2 * delay) + 2, 0);
    coefficients[0] = 1;
    coefficients[1] -= 1;
    coefficients[static_cast<size_t>(delay) + 1] += 2 * step;
    coefficients[static_cast<size_t>(2 * delay) + 1] -= step;
    return coefficients;
  });
}

TEST(StabilityTest, TheRootsAgreeWithTheFormulaAndWithPublishedLimits) {
  for (const int delay : {0, 1, 2, 4, 8, 16}) {
    EXPECT_NEAR(LimitOfMomentum(0, delay), 2 * std::sin(M_PI / (2 * (2 * delay + 1))), 1e-6)
        << delay;
  }
  const double published[][2] = {{0, 3.8},   {1, .1},    {2, .0512},
                                 {4, .0265}, {8, .0139}, {16, .0075}};
  for (const auto& [delay, limit] : published) {
    EXPECT_NEAR(LimitOfMomentum(0.9, static_cast<int>(delay)), limit, 5e-5) << delay;
  }
}

// One step of delay divides the usable step size by 38 under momentum 0.9: the first surprise of
// stale gradients.
TEST(StabilityTest, MomentumMakesDelayMuchWorse) {
  for (const double mu : {0.5, 0.9}) {
    Optimizer momentum;
    momentum.set_kind(Optimizer::MOMENTUM);
    momentum.set_momentum(mu);
    for (const int delay : {0, 1, 2, 4, 8, 16}) {
      SCOPED_TRACE(absl::StrCat("momentum ", mu));
      ExpectLimit(momentum, delay, LimitOfMomentum(mu, delay));
    }
  }
  EXPECT_NEAR(LimitOfMomentum(0.9, 0) / LimitOfMomentum(0.9, 1), 38, 0.01);
}

// Error feedback lowers the limit: with a delay of one from 1 to the inverse of the golden ratio.
TEST(StabilityTest, ErrorFeedbackStopsConvergingWhereItsRootsSay) {
  EXPECT_NEAR(LimitOfErrorFeedback(1), (std::sqrt(5) - 1) / 2, 1e-6);
  for (const int delay : {1, 2, 4, 8}) {
    Optimizer sgd;
    sgd.set_kind(Optimizer::SGD);
    sgd.set_error_feedback(delay);
    ExpectLimit(sgd, delay, LimitOfErrorFeedback(delay));
  }
}

// Well below the limit, the distance to a run without delay is of second order in the step size.
// Without error feedback it is of first order.
TEST(StabilityTest, ErrorFeedbackHidesTheDelay) {
  const auto after = [](int delay, bool feedback, double step_size) {
    Optimizer sgd;
    sgd.set_kind(Optimizer::SGD);
    sgd.set_learning_rate(step_size);
    if (feedback) sgd.set_error_feedback(delay);
    Policy fixed_delay;
    fixed_delay.set_kind(Policy::FIXED_DELAY);
    fixed_delay.set_delay(delay);
    OneWeight weight(sgd, fixed_delay, /*workers=*/1);
    for (int64_t step = 0; step < 30; ++step) weight.Push(0, step, step, weight.Weight());
    return double{weight.Weight()};
  };
  const auto distance = [&](int delay, bool feedback, double step_size) {
    return std::abs(after(delay, feedback, step_size) / after(0, false, step_size) - 1);
  };
  for (const int delay : {1, 2, 4}) {
    SCOPED_TRACE(delay);
    EXPECT_NEAR(distance(delay, false, 0.002) / distance(delay, false, 0.001), 2, 0.1);
    EXPECT_NEAR(distance(delay, true, 0.002) / distance(delay, true, 0.001), 4, 0.3);
    EXPECT_LT(distance(delay, true, 0.002), 0.02 * distance(delay, false, 0.002));
  }
}

// When the queue has been applied, every update has counted once.
TEST(StabilityTest, ErrorFeedbackEndsWithEachUpdateOnce) {
  for (const int delay : {1, 3}) {
    Optimizer sgd;
    sgd.set_kind(Optimizer::SGD);
    sgd.set_learning_rate(0.1);
    sgd.set_error_feedback(delay);
    Policy fixed_delay;
    fixed_delay.set_kind(Policy::FIXED_DELAY);
    fixed_delay.set_delay(delay);
    OneWeight weight(sgd, fixed_delay, /*workers=*/1);
    double want = 1;
    for (int64_t step = 0; step < 20; ++step) {
      const float gradient = weight.Weight();
      want -= 0.1 * gradient;
      weight.Push(0, step, step, gradient);
    }
    EXPECT_GT(std::abs(weight.Weight() - want), 1e-3);
    weight.FinishDelayed();
    EXPECT_NEAR(weight.Weight(), want, 1e-6);
    weight.FinishDelayed();  // once more
    EXPECT_NEAR(weight.Weight(), want, 1e-6);
  }
}

// ---- asynchrony -------------------------------------------------------------------------------

constexpr int kTrajectory = 120;  // updates

// The mean over runs of the weight before each update, under ASP: `workers` without memory, so that
// each update is of any of them alike, on w * w / 2. Before the first one they hold reads of
// assorted ages, all of the weight that has not moved.
std::vector<double> MeanTrajectory(int workers, double rate, int runs) {
  Optimizer sgd;
  sgd.set_kind(Optimizer::SGD);
  sgd.set_learning_rate(rate);
  Policy asp;
  asp.set_kind(Policy::ASP);
  Random random(TestSeed());
  std::vector<double> mean(kTrajectory, 0);
  for (int run = 0; run < runs; ++run) {
    OneWeight weight(sgd, asp, workers);
    std::vector<float> read(static_cast<size_t>(workers), weight.Weight());
    std::vector<int64_t> version(read.size(), 0), step(read.size(), 0);
    for (double& sum : mean) {
      sum += weight.Weight() / runs;
      const size_t rank = random.Uniform(static_cast<uint64_t>(workers));
      weight.Push(static_cast<int>(rank), step[rank]++, version[rank], read[rank]);
      read[rank] = weight.Weight();
      version[rank] = weight.version();
    }
  }
  return mean;
}

// Steps of rate (1 - m) with momentum m: the sum of past gradients, weighted geometrically.
std::vector<double> HeavyBall(double momentum, double rate) {
  std::vector<double> trajectory;
  double weight = 1, velocity = 1;  // as if it had stood there for ever
  for (int update = 0; update < kTrajectory; ++update) {
    trajectory.push_back(weight);
    weight -= rate * velocity;
    velocity = momentum * velocity + (1 - momentum) * weight;
  }
  return trajectory;
}

TEST(AsynchronyTest, WorkersWithoutMemoryAreMomentumOnAverage) {
  constexpr double kRate = 0.15;
  for (const int workers : {2, 4, 8}) {
    SCOPED_TRACE(absl::StrCat(workers, " workers"));
    const std::vector<double> mean = MeanTrajectory(workers, kRate, /*runs=*/4000);
    const auto distance = [&](double momentum) {
      const std::vector<double> want = HeavyBall(momentum, kRate);
      double most = 0;
      for (size_t i = 0; i < mean.size(); ++i) most = std::max(most, std::abs(mean[i] - want[i]));
      return most;
    };
    EXPECT_LT(distance(1 - 1.0 / workers), 0.02);
    // And of no other momentum: that of one worker more, or less, is plainly further away.
    EXPECT_GT(distance(1 - 1.0 / (workers + 1)), 0.04);
    EXPECT_GT(distance(1 - 1.0 / (workers - 1)), 0.04);
  }
}

// Gradient descent with rate r and delay t on w * w / 2: w(c+1) = w(c) - r w(c-t), and w(c) tends
// to x^c with x^(t+1) = x^t - r. An update misses the change w(c) - w(c-t). Relative to w(c) its
// length is x^-t - 1, that of the update is 1 - x, and both have one direction.
TEST(StabilityTest, WhatAFixedDelayMissesIsTheFormula) {
  constexpr double kRate = 0.02;
  constexpr int64_t kSteps = 300;
  for (const int delay : {0, 1, 4}) {
    Policy fixed_delay;
    fixed_delay.set_kind(Policy::FIXED_DELAY);
    fixed_delay.set_delay(delay);
    Optimizer sgd;
    sgd.set_kind(Optimizer::SGD);
    sgd.set_learning_rate(kRate);
    OneWeight weight(sgd, fixed_delay, /*workers=*/1);
    std::vector<double> w = {1};  // by version
    double distance = 0, update = 0;
    for (int64_t step = 0; step < kSteps; ++step) {
      weight.Push(0, step, step, weight.Read(0, step));
      // The step of version `read` is applied now.
      const int64_t read = step - delay;
      const double now = w.back(), then = read < 0 ? 0 : w[static_cast<size_t>(read)];
      w.push_back(now - kRate * then);
      if (read < 0) continue;
      distance += std::abs(now - then) / now;
      update += kRate * then / now;
    }
    server::GradientSums::Cell all;
    for (const server::GradientSums::Cell& cell : weight.gradients().by_staleness) {
      all.rows += cell.rows;
      all.missed_rows += cell.missed_rows;
      all.cosine += cell.cosine;
      all.distance += cell.distance;
      all.update += cell.update;
    }
    SCOPED_TRACE(delay);
    EXPECT_EQ(all.rows, static_cast<uint64_t>(kSteps - delay));
    EXPECT_NEAR(all.distance, distance, 1e-4 * distance);
    EXPECT_NEAR(all.update, update, 1e-4 * update);
    EXPECT_EQ(all.missed_rows, delay == 0 ? 0u : all.rows - 1);  // the first one misses nothing
    EXPECT_NEAR(all.cosine, static_cast<double>(all.missed_rows), 1e-6);
    double x = 1;
    for (int i = 0; i < 200; ++i) x = 1 - kRate / std::pow(x, delay);
    EXPECT_NEAR(w[kSteps] / w[kSteps - 1], x, 1e-9);
    const double last = std::abs(w[kSteps - 1] - w[kSteps - 1 - delay]) / w[kSteps - 1];
    EXPECT_NEAR(last, std::pow(x, -delay) - 1, 1e-9);
    EXPECT_NEAR(distance / static_cast<double>(all.rows), last, 0.03 * last);
  }
}

Optimizer Momentum(double rate, double momentum) {
  Optimizer config;
  config.set_kind(Optimizer::MOMENTUM);
  config.set_learning_rate(rate);
  config.set_momentum(momentum);
  return config;
}

Policy OrderedMomentum() {
  Policy policy;
  policy.set_kind(Policy::ORDERED_MOMENTUM);
  policy.set_async_scale(Policy::INVERSE_WORKERS);
  return policy;
}

// Gradients in the order of synchronous steps are synchronous steps with momentum.
TEST(StabilityTest, OrderedMomentumInOrderIsHeavyBall) {
  constexpr int kWorkers = 4;
  const Optimizer config = Momentum(0.1, 0.9);
  Policy bsp;
  bsp.set_kind(Policy::BSP);
  OneWeight together(config, bsp, kWorkers), ordered(config, OrderedMomentum(), kWorkers);
  double lowest = 1;
  for (int64_t step = 0; step < 100; ++step) {
    const float read = ordered.Weight();
    ASSERT_NEAR(read, together.Weight(), 1e-5) << step;
    lowest = std::min(lowest, double{read});
    for (int rank = 0; rank < kWorkers; ++rank) {
      const float noise = 0.1f * static_cast<float>(rank - 1);
      together.Push(rank, step, step, together.Weight() + noise);
      ordered.Push(rank, step, step * kWorkers, read + noise);
    }
  }
  EXPECT_LT(lowest, -0.5) << "momentum carries the weight past its optimum";
}

// In any order: a simulation in double precision that keeps the gradients of each group, and knows
// the weights only as those of heavy ball with the gradients that have come. So a gradient changes
// all steps since its group.
TEST(StabilityTest, OrderedMomentumIsHeavyBallWithTheGradientsThatHaveCome) {
  constexpr int kWorkers = 4;
  constexpr double kRate = 0.05, kMomentum = 0.8;
  Random random(TestSeed());
  OneWeight weight(Momentum(kRate, kMomentum), OrderedMomentum(), kWorkers);
  std::vector<double> sums;  // of the gradients of each group
  int64_t read_at[kWorkers] = {}, steps[kWorkers] = {};
  float read[kWorkers];
  std::fill(std::begin(read), std::end(read), weight.Weight());
  int64_t most_late = 0;
  for (int64_t version = 0; version < 400; ++version) {
    // Worker 0 is slow.
    const auto rank = static_cast<size_t>(
        random.Bernoulli(0.05) ? 0 : 1 + random.Uniform(static_cast<uint64_t>(kWorkers - 1)));
    const int64_t group = version / kWorkers;
    sums.resize(static_cast<size_t>(group) + 1);
    const int64_t own = std::min(group, (read_at[rank] + kWorkers - 1) / kWorkers);
    most_late = std::max(most_late, group - own);
    sums[static_cast<size_t>(own)] += double{read[rank]} / kWorkers;
    weight.Push(static_cast<int>(rank), steps[rank]++, read_at[rank], read[rank]);
    double w = 1, b = 0;
    for (const double sum : sums) {
      b = kMomentum * b + sum;
      w -= kRate * b;
    }
    ASSERT_NEAR(weight.Weight(), w, 1e-5) << version;
    read_at[rank] = weight.version();
    read[rank] = weight.Weight();
    ASSERT_EQ(weight.version(), version + 1);
  }
  EXPECT_GT(most_late, 3);
}

}  // namespace
}  // namespace tandem
