// Every optimizer against the same formula written plainly in double precision; bits that do not
// depend on how rows are grouped into calls; bad settings refused by name.
#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optim/row_update.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

using Vector = std::vector<double>;

Optimizer Config(Optimizer::Kind kind) {
  Optimizer config;
  config.set_kind(kind);
  config.set_learning_rate(0.05);
  return config;
}

// One row in double precision, one formula each, with nothing shared with optim/.
struct Reference {
  Optimizer config;
  Vector w, a, b, c;  // weights; first, second and third kind of slots
  double t = 0;
  Vector eta = Vector();  // of FTRL: 1 / eta of the step before

  void Step(Vector g, double scale, double rate_factor = 1) {
    double norm = 0;
    for (double& x : g) x *= scale;
    for (const double x : g) norm += x * x;
    norm = std::sqrt(norm);
    const double clip = config.clip_norm();
    const bool decoupled = config.kind() == Optimizer::ADAMW || config.kind() == Optimizer::LION;
    for (size_t j = 0; j < g.size(); ++j) {
      if (clip > 0 && norm > clip) g[j] *= clip / norm;
      if (!decoupled) g[j] += config.weight_decay() * w[j];
    }
    const double rate = config.learning_rate() * rate_factor;
    if (config.kind() == Optimizer::FTRL) return UpdateFtrl(g, rate);
    if (decoupled) {
      for (double& x : w) x *= 1 - rate * config.weight_decay();
    }
    Update(g, rate);
  }

  void Update(const Vector& g, double rate) {
    const double epsilon = config.epsilon() == 0 ? 1e-8 : config.epsilon();
    double mean = 0;
    for (const double x : g) mean += x * x / static_cast<double>(g.size());
    if (config.kind() == Optimizer::ROWWISE_ADAGRAD) a[0] += mean;
    if (config.kind() == Optimizer::ROWWISE_ADAM) b[0] = 0.999 * b[0] + 0.001 * mean;
    t += 1;
    for (size_t j = 0; j < g.size(); ++j) {
      switch (config.kind()) {
        case Optimizer::MOMENTUM:
          a[j] = 0.9 * a[j] + g[j];
          w[j] -= rate * a[j];
          break;
        case Optimizer::ADAGRAD:
          a[j] += g[j] * g[j];
          w[j] -= rate * g[j] / (std::sqrt(a[j]) + epsilon);
          break;
        case Optimizer::ROWWISE_ADAGRAD:
          w[j] -= rate * g[j] / (std::sqrt(a[0]) + epsilon);
          break;
        case Optimizer::RMSPROP:
          a[j] = 0.99 * a[j] + 0.01 * g[j] * g[j];
          w[j] -= rate * g[j] / (std::sqrt(a[j]) + epsilon);
          break;
        case Optimizer::LION: {
          const double between = 0.9 * a[j] + 0.1 * g[j];
          w[j] -= between == 0 ? 0 : std::copysign(rate, between);
          a[j] = 0.99 * a[j] + 0.01 * g[j];
          break;
        }
        case Optimizer::ADAM:
        case Optimizer::AMSGRAD:
        case Optimizer::ADAMW:
        case Optimizer::ROWWISE_ADAM: {
          a[j] = 0.9 * a[j] + 0.1 * g[j];
          double second = b[0];
          if (config.kind() != Optimizer::ROWWISE_ADAM) {
            second = b[j] = 0.999 * b[j] + 0.001 * g[j] * g[j];
          }
          if (config.kind() == Optimizer::AMSGRAD) second = c[j] = std::max(c[j], second);
          const double m = a[j] / (1 - std::pow(0.9, t));
          const double v = second / (1 - std::pow(0.999, t));
          w[j] -= rate * m / (std::sqrt(v) + epsilon);
          break;
        }
        default:
          w[j] -= rate * g[j];
      }
    }
  }

  // The paper's algorithm, which keeps z over all steps. a: z, b: n.
  void UpdateFtrl(const Vector& g, double rate) {
    const double l1 = config.l1(), l2 = config.l2();
    const double beta = config.ftrl_beta() == 0 ? 1 : config.ftrl_beta();
    if (eta.empty()) {
      for (const double n : b) eta.push_back((beta + std::sqrt(n)) / rate);
    }
    for (size_t j = 0; j < g.size(); ++j) {
      b[j] += g[j] * g[j];
      const double now = (beta + std::sqrt(b[j])) / rate;
      a[j] += g[j] - (now - eta[j]) * w[j];
      eta[j] = now;
      w[j] = std::abs(a[j]) <= l1 ? 0 : -(a[j] - std::copysign(l1, a[j])) / (now + l2);
    }
  }
};

// Rows of floats with their slots, as a store keeps them.
struct Rows {
  Rows(const optim::RowOptimizer& optimizer, int row_dim, size_t count)
      : dim(row_dim), weights(count), slots(count) {
    for (size_t i = 0; i < count; ++i) {
      weights[i].assign(static_cast<size_t>(dim), 0.0f);
      slots[i].assign(static_cast<size_t>(optimizer.slots_per_row(dim)), -1.0f);
      optimizer.InitSlots(dim, absl::MakeSpan(slots[i]));
    }
  }

  void Apply(const optim::RowOptimizer& optimizer, absl::Span<const float> gradients, float scale,
             size_t first, size_t count, const optim::OptimizerStep& step = {}) {
    std::vector<float*> w, s;
    for (size_t i = first; i < first + count; ++i) {
      w.push_back(weights[i].data());
      s.push_back(slots[i].data());
    }
    const size_t d = static_cast<size_t>(dim);
    optimizer.Apply(dim, scale, step, gradients.subspan(first * d, count * d), w, s);
  }

  int dim;
  std::vector<std::vector<float>> weights, slots;
};

std::vector<float> RandomFloats(Random& random, size_t count) {
  std::vector<float> values(count);
  for (float& x : values) x = static_cast<float>(random.Normal());
  return values;
}

std::string KindName(const ::testing::TestParamInfo<Optimizer::Kind>& info) {
  return Optimizer::Kind_Name(info.param);
}

double LargestOf(const Vector& values) {
  double largest = 0;
  for (const double x : values) largest = std::max(largest, std::abs(x));
  return largest;
}

double LargestDifference(const std::vector<float>& a, const Vector& b) {
  double worst = 0;
  for (size_t j = 0; j < b.size(); ++j) worst = std::max(worst, std::abs(a[j] - b[j]));
  return worst;
}

class OptimizerTest : public ::testing::TestWithParam<Optimizer::Kind> {
 protected:
  // With the settings that only this kind has, and with others than the defaults.
  static Optimizer Full(Optimizer::Kind kind) {
    Optimizer config = Config(kind);
    config.set_weight_decay(0.02);
    if (kind == Optimizer::FTRL) {
      config.set_l1(0.3);
      config.set_l2(0.1);
      config.set_ftrl_beta(0.5);
      config.set_initial_accumulator(0.1);
    }
    return config;
  }

  static Reference New(const Optimizer& config, const std::vector<float>& weights) {
    const size_t d = weights.size();
    const double n = config.initial_accumulator();
    const bool second = config.kind() == Optimizer::FTRL;  // z and n
    return {config, Vector(weights.begin(), weights.end()), Vector(d, second ? 0 : n),
            Vector(d, second ? n : 0), Vector(d, 0.0)};
  }

  // The largest difference from the reference after `steps` steps on a row of `dim` floats.
  static double Error(const Optimizer& config, int dim, int steps) {
    const auto optimizer = *optim::NewRowOptimizer(config);
    Random random(TestSeed());
    const size_t d = static_cast<size_t>(dim);
    Rows rows(*optimizer, dim, 1);
    // The paper's weights of FTRL begin with zeros.
    if (config.kind() != Optimizer::FTRL) rows.weights[0] = RandomFloats(random, d);
    Reference reference = New(config, rows.weights[0]);
    for (int step = 0; step < steps; ++step) {
      const std::vector<float> g = RandomFloats(random, d);
      rows.Apply(*optimizer, g, 0.25f, 0, 1);
      reference.Step(Vector(g.begin(), g.end()), 0.25);
    }
    return LargestDifference(rows.weights[0], reference.w);
  }

  // A difference of rounding changes the sign of an interpolated momentum near 0.
  static bool IsSmooth() { return GetParam() != Optimizer::LION; }
};

TEST_P(OptimizerTest, AgreesWithTheFormulaInDoublePrecision) {
  if (!IsSmooth()) return;
  for (const int dim : {1, 3, 8, 10, 16, 17, 32, 64, 1024}) {
    EXPECT_LT(Error(Config(GetParam()), dim, 100), 2e-5) << "dim " << dim;
  }
}

TEST_P(OptimizerTest, ClippingAndDecayAgreeWithTheFormulaToo) {
  if (!IsSmooth()) return;
  Optimizer config = Full(GetParam());
  config.set_clip_norm(0.7);
  for (const int dim : {1, 10, 16, 64}) EXPECT_LT(Error(config, dim, 100), 2e-5) << "dim " << dim;
}

// w -= u + (u - the u of `delay` steps ago), where u is what the optimizer alone would do.
TEST_P(OptimizerTest, ErrorFeedbackAddsWhatALateUpdateLacked) {
  if (GetParam() == Optimizer::FTRL) return;  // weights follow from its state alone
  constexpr int kDim = 24, kRows = 3;
  for (const int delay : {1, 3}) {
    Optimizer config = Full(GetParam());
    const auto alone = *optim::NewRowOptimizer(config);
    config.set_error_feedback(delay);
    const auto optimizer = *optim::NewRowOptimizer(config);
    EXPECT_EQ(optimizer->slots_per_row(kDim), alone->slots_per_row(kDim) + delay * kDim + 1);
    Random random(TestSeed());
    Rows rows(*optimizer, kDim, kRows), plain(*alone, kDim, kRows);
    for (auto& row : rows.weights) row = RandomFloats(random, kDim);
    const std::vector<float> none(kDim * kRows, 0.0f);
    std::vector<std::vector<float>> updates(static_cast<size_t>(delay), none);
    for (size_t step = 0; step < 20; ++step) {
      const std::vector<std::vector<float>> before = rows.weights;
      plain.weights = before;
      const std::vector<float> g = RandomFloats(random, kDim * kRows);
      rows.Apply(*optimizer, g, 0.5f, 0, kRows);
      plain.Apply(*alone, g, 0.5f, 0, kRows);
      std::vector<float> update;
      for (size_t j = 0; j < kDim * kRows; ++j) {
        const float w = plain.weights[j / kDim][j % kDim];
        update.push_back(before[j / kDim][j % kDim] - w);
        ASSERT_EQ(rows.weights[j / kDim][j % kDim], w - (update[j] - updates[step][j]))
            << "delay " << delay << ", step " << step << ", element " << j;
      }
      updates.push_back(update);
    }
  }
}

// From the float state of any step the next step is the formula's.
TEST_P(OptimizerTest, OneStepFromTheSameStateIsThatOfTheFormula) {
  for (const int dim : {1, 3, 8, 17, 64}) {
    const Optimizer config = Full(GetParam());
    const auto optimizer = *optim::NewRowOptimizer(config);
    Random random(TestSeed());
    const size_t d = static_cast<size_t>(dim);
    Rows rows(*optimizer, dim, 1);
    for (int step = 0; step < 20; ++step) {
      Reference reference = New(config, rows.weights[0]);
      const std::vector<float>& s = rows.slots[0];
      const auto part = [&](size_t i) {
        return Vector(s.begin() + static_cast<std::ptrdiff_t>(std::min(s.size(), i * d)),
                      s.begin() + static_cast<std::ptrdiff_t>(std::min(s.size(), (i + 1) * d)));
      };
      reference.a = part(0);
      reference.b = part(1);
      reference.c = part(2);
      reference.t = step;
      const std::vector<float> g = RandomFloats(random, d);
      rows.Apply(*optimizer, g, 0.25f, 0, 1);
      reference.Step(Vector(g.begin(), g.end()), 0.25);
      EXPECT_LT(LargestDifference(rows.weights[0], reference.w),
                1e-6 * (LargestOf(reference.w) + config.learning_rate()))
          << "dim " << dim << " step " << step;
    }
  }
}

// A factor of the rate is another learning rate: for a power of two, bit by bit.
TEST_P(OptimizerTest, AFactorOfTheRateIsALearningRateForThisStep) {
  const Optimizer config = Full(GetParam());
  Optimizer smaller = config;
  smaller.set_learning_rate(config.learning_rate() / 4);
  const auto optimizer = *optim::NewRowOptimizer(config);
  const auto other = *optim::NewRowOptimizer(smaller);
  Random random(TestSeed());
  Rows rows(*optimizer, 16, 1);
  for (int step = 0; step < 10; ++step) {
    const auto g = RandomFloats(random, 16);
    Rows same = rows;
    same.Apply(*other, g, 1, 0, 1);
    rows.Apply(*optimizer, g, 1, 0, 1, {.rate = 0.25f});
    EXPECT_EQ(rows.weights, same.weights);
    EXPECT_EQ(rows.slots, same.slots);
  }
}

// A warm-up may begin with the factor 0, and a schedule may end there.
TEST_P(OptimizerTest, ARateOfZeroMovesNothingAndSpoilsNothing) {
  const auto optimizer = *optim::NewRowOptimizer(Full(GetParam()));
  Random random(TestSeed());
  Rows rows(*optimizer, 16, 1);
  for (int round = 0; round < 3; ++round) {
    const auto before = rows.weights;
    for (int step = 0; step < 3; ++step) {
      rows.Apply(*optimizer, RandomFloats(random, 16), 1, 0, 1, {.rate = 0});
    }
    EXPECT_EQ(rows.weights, before);
    rows.Apply(*optimizer, RandomFloats(random, 16), 1, 0, 1);
    EXPECT_NE(rows.weights, before);
    for (const float x : rows.weights[0]) EXPECT_TRUE(std::isfinite(x));
  }
}

// A batch, and the same rows in any other grouping, give the same bits: what a row becomes depends
// on that row alone. The sizes take both kinds of loop (row length known to the compiler or not).
TEST_P(OptimizerTest, ABatchIsOneRowAtATimeBitForBit) {
  for (const int dim : {7, 8, 16, 33, 64}) {
    for (const double clip : {0.0, 0.5}) {
      Optimizer config = Config(GetParam());
      config.set_clip_norm(clip);
      config.set_weight_decay(clip / 10);
      const auto optimizer = *optim::NewRowOptimizer(config);
      Rows batch(*optimizer, dim, 37), single(*optimizer, dim, 37);
      Random random(TestSeed());
      for (int step = 0; step < 5; ++step) {
        const auto g = RandomFloats(random, 37 * static_cast<size_t>(dim));
        batch.Apply(*optimizer, g, 0.3f, 0, 37);
        for (size_t i = 0; i < 37; ++i) single.Apply(*optimizer, g, 0.3f, i, 1);
      }
      EXPECT_EQ(batch.weights, single.weights) << "dim " << dim << " clip " << clip;
      EXPECT_EQ(batch.slots, single.slots) << "dim " << dim << " clip " << clip;
    }
  }
}

// Slots are all the memory there is: a second object continues from them as the first would have.
TEST_P(OptimizerTest, SlotsAreTheWholeState) {
  const auto one = *optim::NewRowOptimizer(Config(GetParam()));
  const auto other = *optim::NewRowOptimizer(Config(GetParam()));
  Rows straight(*one, 16, 1), handed(*one, 16, 1);
  Random random(TestSeed());
  for (int step = 0; step < 10; ++step) {
    const auto g = RandomFloats(random, 16);
    straight.Apply(*one, g, 1, 0, 1);
    handed.Apply(step < 5 ? *one : *other, g, 1, 0, 1);
  }
  EXPECT_EQ(straight.weights, handed.weights);
  EXPECT_EQ(straight.slots, handed.slots);
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerTest,
                         ::testing::Values(Optimizer::SGD, Optimizer::MOMENTUM, Optimizer::ADAGRAD,
                                           Optimizer::ROWWISE_ADAGRAD, Optimizer::ADAM,
                                           Optimizer::FTRL, Optimizer::AMSGRAD, Optimizer::RMSPROP,
                                           Optimizer::LION, Optimizer::ADAMW,
                                           Optimizer::ROWWISE_ADAM),
                         KindName);

// The rule of exact bits: products are rounded before they are added, sums go lane by lane. A build
// with fused multiply-add or with another order of addition fails here.
TEST(OptimizerBitsTest, RowwiseAdagradIsThisExactSequenceOfRoundings) {
  for (const int dim : {5, 8, 16, 40}) {
    const auto optimizer = *optim::NewRowOptimizer(Config(Optimizer::ROWWISE_ADAGRAD));
    Rows rows(*optimizer, dim, 1);
    Random random(TestSeed());
    const auto g = RandomFloats(random, static_cast<size_t>(dim));
    rows.weights[0] = RandomFloats(random, static_cast<size_t>(dim));
    const std::vector<float> before = rows.weights[0];
    rows.Apply(*optimizer, g, 0.3f, 0, 1);
    volatile float lane[8] = {};  // volatile: each result is rounded to a float in memory
    volatile float x, square;
    for (int j = 0; j < dim; ++j) {
      x = g[static_cast<size_t>(j)] * 0.3f;
      square = x * x;
      lane[j % 8] = lane[j % 8] + square;
    }
    for (int stride = 4; stride > 0; stride /= 2) {
      for (int l = 0; l < stride; ++l) lane[l] = lane[l] + lane[l + stride];
    }
    volatile float s = lane[0] / static_cast<float>(dim);
    volatile float rate = std::sqrt(s) + 1e-8f;
    rate = 0.05f / rate;
    EXPECT_EQ(rows.slots[0][0], s);
    for (size_t j = 0; j < before.size(); ++j) {
      x = g[j] * 0.3f;
      square = rate * x;
      EXPECT_EQ(rows.weights[0][j], before[j] - square) << "dim " << dim << " element " << j;
    }
  }
}

// Past the table of corrections the formula is computed; the two must meet without a step.
TEST(AdamTest, CorrectionsContinueBeyondTheirTable) {
  const auto optimizer = *optim::NewRowOptimizer(Config(Optimizer::ADAM));
  for (const float t : {8190.0f, 8191.0f, 8192.0f, 20000.0f, 16777216.0f}) {
    std::vector<float> w(4, 0.0f), slots = {0, 0, 0, 0, 1, 1, 1, 1, t}, g(4, 1.0f);
    float* rows[] = {w.data()};
    float* slot_rows[] = {slots.data()};
    optimizer->Apply(4, 1, {}, g, rows, slot_rows);
    const double c2 = 1 - std::pow(0.999, t + 1.0);
    const double want = -0.05 * 0.1 / std::sqrt((0.999 + 0.001) / c2);
    EXPECT_NEAR(w[0], want, 1e-7) << "t " << t;
    EXPECT_EQ(slots[8], t + 1);  // at 2^24 the count stays
  }
}

// Ten groups of five gradients, each of its own group or of an earlier one: in the end the momentum
// and the weights are those of ten steps of heavy ball, each with the sum of its group.
TEST(MomentumTest, AGradientThatComesGroupsLateCountsAsIfItHadComeInItsOwn) {
  constexpr int kGroups = 10, kUpdates = 5, kDim = 19;
  Random random(TestSeed());
  Optimizer config = Config(Optimizer::MOMENTUM);
  config.set_momentum(0.8);
  const auto optimizer = *optim::NewRowOptimizer(config);
  for (const int most_late : {0, 1, 9}) {
    Rows rows(*optimizer, kDim, 1);
    rows.weights[0] = RandomFloats(random, kDim);
    Vector w(rows.weights[0].begin(), rows.weights[0].end()), b(kDim);
    std::vector<Vector> sums(kGroups, Vector(kDim));
    for (int i = 0; i < kGroups * kUpdates; ++i) {
      const int group = i / kUpdates;
      const int late =
          std::min(group, static_cast<int>(random.Uniform(static_cast<uint64_t>(most_late) + 1)));
      const std::vector<float> g = RandomFloats(random, kDim);
      rows.Apply(*optimizer, g, 0.5f, 0, 1,
                 {.rate = 2, .groups_late = late, .begins_group = i % kUpdates == 0});
      for (size_t j = 0; j < kDim; ++j) sums[static_cast<size_t>(group - late)][j] += 0.5 * g[j];
    }
    for (const Vector& sum : sums) {
      for (size_t j = 0; j < kDim; ++j) {
        b[j] = 0.8 * b[j] + sum[j];
        w[j] -= 2 * 0.05 * b[j];
      }
    }
    EXPECT_LT(LargestDifference(rows.weights[0], w), 1e-5) << most_late;
    EXPECT_LT(LargestDifference(rows.slots[0], b), 1e-5) << most_late;
  }
}

// A count that no run of ours wrote (a file made by hand) is computed with, never indexed with.
TEST(AdamTest, AnImpossibleStepCountReadsNoMemory) {
  const auto optimizer = *optim::NewRowOptimizer(Config(Optimizer::ADAM));
  for (const float t : {-5.0f, 1e30f, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> w(1), slots = {0, 0, t}, g(1, 1.0f);
    float* rows[] = {w.data()};
    float* slot_rows[] = {slots.data()};
    optimizer->Apply(1, 1, {}, g, rows, slot_rows);
  }
}

Optimizer AdamByTable() {
  Optimizer config = Config(Optimizer::ADAM);
  config.set_step_count(Optimizer::TABLE);
  return config;
}

// Weights of torch 1.13: torch.optim.SparseAdam([w], lr=.01), w = ones(2, 1), 110 steps. Row 0 has
// the gradient g in odd steps and -g / 2 in even ones. Row 1 has g in steps 50, 60, ..., 110. The
// small g is below epsilon, so the place of epsilon counts.
TEST(AdamTest, ByTableItHasTheWeightsOfTorchsSparseAdam) {
  const struct {
    float g;
    float frequent, rare;
  } kCases[] = {{2.0f, 0.640577137f, 0.898863077f}, {3e-9f, 0.982721984f, 0.998039126f}};
  for (const auto& c : kCases) {
    Optimizer config = AdamByTable();
    config.set_learning_rate(0.01);
    const auto optimizer = *optim::NewRowOptimizer(config);
    Rows rows(*optimizer, 1, 2);
    rows.weights = {{1.0f}, {1.0f}};
    for (int64_t step = 1; step <= 110; ++step) {
      const std::vector<float> g = {step % 2 == 1 ? c.g : -c.g / 2, c.g};
      const bool rare = step >= 50 && step % 10 == 0;
      rows.Apply(*optimizer, g, 1, 0, rare ? 2 : 1, {.number = step});
    }
    EXPECT_NEAR(rows.weights[0][0], c.frequent, 1e-6) << c.g;
    EXPECT_NEAR(rows.weights[1][0], c.rare, 1e-6) << c.g;
  }
}

// Rows of all frequencies in a random order, beside SparseAdam's formula in double precision. Rows
// that share a call and rows alone have the same bits.
TEST(AdamTest, ByTableRareAndFrequentRowsFollowTheFormulaOfSparseAdam) {
  for (const double size : {1.0, 1e-8, 1e-15}) {
    for (const int dim : {3, 16}) {
      const auto optimizer = *optim::NewRowOptimizer(AdamByTable());
      const size_t d = static_cast<size_t>(dim), count = 8;
      Rows rows(*optimizer, dim, count), single(*optimizer, dim, count);
      std::vector<Vector> w(count, Vector(d)), m = w, v = w;
      Random random(TestSeed());
      for (int64_t step = 1; step <= 400; ++step) {
        const size_t in_step = 1 + static_cast<size_t>(random.Exponential());  // row 0 in each
        const size_t rows_now = std::min(count, in_step);
        std::vector<float> g = RandomFloats(random, count * d);
        for (float& x : g) x *= static_cast<float>(size);
        rows.Apply(*optimizer, g, 0.5f, 0, rows_now, {.number = step});
        const double t = static_cast<double>(step);
        const double rate = 0.05 * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t));
        for (size_t i = 0; i < rows_now; ++i) {
          single.Apply(*optimizer, g, 0.5f, i, 1, {.number = step});
          for (size_t j = 0; j < d; ++j) {
            const double x = 0.5 * g[i * d + j];
            m[i][j] = 0.9 * m[i][j] + 0.1 * x;
            v[i][j] = 0.999 * v[i][j] + 0.001 * x * x;
            w[i][j] -= rate * m[i][j] / (std::sqrt(v[i][j]) + 1e-8);
          }
        }
      }
      double largest = 0, worst = 0;
      for (size_t i = 0; i < count; ++i) {
        for (size_t j = 0; j < d; ++j) {
          largest = std::max(largest, std::abs(w[i][j]));
          worst = std::max(worst, std::abs(rows.weights[i][j] - w[i][j]));
        }
      }
      EXPECT_LT(worst, 2e-6 * largest) << "gradients of " << size << ", dim " << dim;
      EXPECT_EQ(rows.weights, single.weights);
      EXPECT_EQ(rows.slots, single.slots);
    }
  }
}

// Weights of torch 1.13 in double precision after 1,000 steps with lr=.01 from (.5, -1, 1.5). The
// gradient of element j in step t is ((7t + 13j) mod 31 - 15) / 16 + (j - 1) / 8, four times that
// in the first 100 steps, so that AMSGRAD keeps their second moments.
TEST(TorchTest, AThousandStepsEndAtTheWeightsOfTorch) {
  const struct {
    Optimizer::Kind kind;
    double decay;
    float weights[3];
  } kCases[] = {
      // torch.optim.Adam(lr=.01)
      {Optimizer::ADAM, 0, {1.81689186f, -1.01236483f, 0.237425665f}},
      // torch.optim.Adam(lr=.01, weight_decay=.1)
      {Optimizer::ADAM, 0.1, {1.02980468f, -0.406207506f, -0.174061371f}},
      // torch.optim.Adam(lr=.01, weight_decay=.1, amsgrad=True)
      {Optimizer::AMSGRAD, 0.1, {1.01577442f, -0.430881264f, -0.115044333f}},
      // torch.optim.AdamW(lr=.01, weight_decay=.1)
      {Optimizer::ADAMW, 0.1, {1.02584579f, -0.373448583f, -0.269403001f}},
      // torch.optim.RMSprop(lr=.01, weight_decay=.1)
      {Optimizer::RMSPROP, 0.1, {1.13907365f, -0.264878667f, -0.642276036f}},
  };
  for (const auto& c : kCases) {
    for (const Optimizer::StepCount count : {Optimizer::ROW, Optimizer::TABLE}) {
      Optimizer config = Config(c.kind);
      config.set_learning_rate(0.01);
      config.set_weight_decay(c.decay);
      config.set_step_count(count);
      const auto optimizer = *optim::NewRowOptimizer(config);
      Rows rows(*optimizer, 3, 1);
      rows.weights[0] = {0.5f, -1.0f, 1.5f};
      for (int step = 1; step <= 1000; ++step) {
        std::vector<float> g;
        for (int j = 0; j < 3; ++j) {
          g.push_back(static_cast<float>((7 * step + 13 * j) % 31 - 15) / 16 +
                      static_cast<float>(j - 1) / 8);
        }
        rows.Apply(*optimizer, g, step <= 100 ? 4 : 1, 0, 1, {.number = step});
      }
      for (size_t j = 0; j < 3; ++j) {
        EXPECT_NEAR(rows.weights[0][j], c.weights[j], 1e-5)
            << optimizer->name() << " element " << j;
      }
    }
  }
}

// z of the paper, with every eta it had, while a schedule moves the rate up and down.
TEST(FtrlTest, FollowsThePaperUnderAChangingRate) {
  Optimizer config = Config(Optimizer::FTRL);
  config.set_l1(0.2);
  const auto optimizer = *optim::NewRowOptimizer(config);
  Random random(TestSeed());
  Rows rows(*optimizer, 16, 1);
  Reference reference{config, Vector(16), Vector(16), Vector(16), Vector()};
  reference.eta.assign(16, 1 / 0.05);
  for (int step = 0; step < 200; ++step) {
    const float rate = step % 5 == 0 ? 0.5f : 0.01f * static_cast<float>(1 + step % 50);
    const std::vector<float> g = RandomFloats(random, 16);
    rows.Apply(*optimizer, g, 1, 0, 1, {.rate = rate});
    reference.Step(Vector(g.begin(), g.end()), 1, rate);
    ASSERT_LT(LargestDifference(rows.weights[0], reference.w), 2e-6) << "step " << step;
  }
}

TEST(FtrlTest, L1MakesWeightsExactlyZero) {
  Optimizer config = Config(Optimizer::FTRL);
  config.set_l1(3);
  const auto optimizer = *optim::NewRowOptimizer(config);
  Random random(TestSeed());
  Rows rows(*optimizer, 16, 1);
  for (int step = 0; step < 200; ++step) {
    std::vector<float> g = RandomFloats(random, 16);
    for (float& x : g) x *= 0.1f;
    g[3] += 1;  // the only one with a direction
    rows.Apply(*optimizer, g, 1, 0, 1);
  }
  int zeros = 0;
  for (const float w : rows.weights[0]) zeros += w == 0;
  EXPECT_LT(rows.weights[0][3], -0.1f);
  EXPECT_GT(zeros, 5);
}

// A row is not pulled to zero by its first gradient, and a small rate is a small step.
TEST(FtrlTest, InitialValuesStay) {
  const auto optimizer = *optim::NewRowOptimizer(Config(Optimizer::FTRL));
  Rows rows(*optimizer, 1, 1);
  rows.weights = {{0.75f}};
  rows.Apply(*optimizer, std::vector<float>{0.01f}, 1, 0, 1, {.rate = 0.001f});
  EXPECT_NEAR(rows.weights[0][0], 0.75, 1e-6);
  rows.Apply(*optimizer, std::vector<float>{3.0f}, 1, 0, 1);
  EXPECT_NEAR(rows.weights[0][0], 0.75 - 3 * 0.05 / (1 + std::sqrt(9.0001)), 1e-6);
}

// Steps as large as the learning rate, whatever the gradient; none without a direction.
TEST(LionTest, StepsHaveOneSize) {
  const auto optimizer = *optim::NewRowOptimizer(Config(Optimizer::LION));
  Rows rows(*optimizer, 3, 1);
  rows.Apply(*optimizer, std::vector<float>{1e-20f, -1e10f, 0}, 1, 0, 1);
  EXPECT_EQ(rows.weights[0], (std::vector<float>{-0.05f, 0.05f, 0}));
}

// The kinds of Adam agree on what a step of a table is, and a state has the name of its count.
TEST(AdamTest, EachKindHasANameForEachCount) {
  const auto name = [](Optimizer::Kind kind, Optimizer::StepCount count) {
    Optimizer config = Config(kind);
    config.set_step_count(count);
    return (*optim::NewRowOptimizer(config))->name();
  };
  for (const auto& [kind, word] :
       {std::pair(Optimizer::ADAM, "adam"), std::pair(Optimizer::AMSGRAD, "amsgrad"),
        std::pair(Optimizer::ADAMW, "adamw"), std::pair(Optimizer::ROWWISE_ADAM, "rowwise_adam")}) {
    EXPECT_EQ(name(kind, Optimizer::ROW), word);
    EXPECT_EQ(name(kind, Optimizer::TABLE), absl::StrCat(word, "(table)"));
  }
}

TEST(OptimizerSettingsTest, SlotsPerRow) {
  const auto slots = [](Optimizer::Kind kind) {
    return (*optim::NewRowOptimizer(Config(kind)))->slots_per_row(16);
  };
  EXPECT_EQ(slots(Optimizer::OPTIMIZER_UNSPECIFIED), 0);
  EXPECT_EQ(slots(Optimizer::SGD), 0);
  EXPECT_EQ(slots(Optimizer::MOMENTUM), 16);
  EXPECT_EQ(slots(Optimizer::ADAGRAD), 16);
  EXPECT_EQ(slots(Optimizer::ROWWISE_ADAGRAD), 1);
  EXPECT_EQ(slots(Optimizer::ADAM), 33);
  EXPECT_EQ(slots(Optimizer::FTRL), 32);
  EXPECT_EQ(slots(Optimizer::AMSGRAD), 49);
  EXPECT_EQ(slots(Optimizer::RMSPROP), 16);
  EXPECT_EQ(slots(Optimizer::LION), 16);
  EXPECT_EQ(slots(Optimizer::ADAMW), 33);
  EXPECT_EQ(slots(Optimizer::ROWWISE_ADAM), 18);
  EXPECT_EQ((*optim::NewRowOptimizer(AdamByTable()))->slots_per_row(16), 32);
}

TEST(OptimizerSettingsTest, InitialAccumulatorFillsTheSlots) {
  Optimizer config = Config(Optimizer::ADAGRAD);
  config.set_initial_accumulator(0.1);
  std::vector<float> slots(4);
  (*optim::NewRowOptimizer(config))->InitSlots(4, absl::MakeSpan(slots));
  EXPECT_THAT(slots, ::testing::Each(0.1f));
}

TEST(OptimizerSettingsTest, ASettingOutOfRangeIsRefusedByName) {
  using Set = void (Optimizer::*)(double);
  const struct {
    const char* name;
    Set set;
    std::vector<double> bad;
  } kCases[] = {
      {"learning_rate", &Optimizer::set_learning_rate, {0, -1, 1e-60, 1e60, NAN}},
      {"momentum", &Optimizer::set_momentum, {-0.1, 1, 0.999999999, NAN}},
      {"beta1", &Optimizer::set_beta1, {-0.1, 1, NAN}},
      {"beta2", &Optimizer::set_beta2, {-0.1, 1.5, NAN}},
      {"epsilon", &Optimizer::set_epsilon, {-1e-8, 1e-60, INFINITY, NAN}},
      {"initial_accumulator", &Optimizer::set_initial_accumulator, {-1, INFINITY, NAN}},
      {"weight_decay", &Optimizer::set_weight_decay, {-1e-9, INFINITY, NAN}},
      {"clip_norm", &Optimizer::set_clip_norm, {-1, INFINITY, NAN}},
      {"l1", &Optimizer::set_l1, {-1, INFINITY, NAN}},
      {"l2", &Optimizer::set_l2, {-1, INFINITY, NAN}},
      {"ftrl_beta", &Optimizer::set_ftrl_beta, {-1, 1e-60, INFINITY, NAN}},
  };
  for (const auto& c : kCases) {
    for (const double bad : c.bad) {
      Optimizer config = Config(Optimizer::ADAM);
      (config.*c.set)(bad);
      const auto result = optim::NewRowOptimizer(config);
      ASSERT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << c.name << " " << bad;
      EXPECT_THAT(std::string(result.status().message()), ::testing::HasSubstr(c.name));
    }
  }
}

TEST(OptimizerSettingsTest, AnUnknownKindIsRefused) {
  Optimizer config = Config(static_cast<Optimizer::Kind>(77));
  EXPECT_THAT(std::string(optim::NewRowOptimizer(config).status().message()),
              ::testing::HasSubstr("kind 77"));
}

}  // namespace
}  // namespace tandem
