// Muon against its formula in double precision; bits that depend neither on blocks nor on the
// compiler; ADAMW for all that is no matrix.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optim/optimizer.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

using Vector = std::vector<double>;
using optim::MatrixPlace;

Optimizer Config(Optimizer::Kind kind = Optimizer::MUON) {
  Optimizer config;
  config.set_kind(kind);
  config.set_learning_rate(0.05);
  config.set_weight_decay(0.1);
  return config;
}

std::vector<float> RandomFloats(Random& random, size_t count) {
  std::vector<float> values(count);
  for (float& x : values) x = static_cast<float>(random.Normal());
  return values;
}

// A flat buffer in blocks, with its state.
struct Buffer {
  Buffer(const Optimizer& config, const std::vector<float>& values, int block_floats,
         const std::vector<MatrixPlace>& matrices)
      : optimizer(*optim::NewRowOptimizer(config, 0, matrices)),
        size(values.size()),
        dim(block_floats),
        blocks((size + static_cast<size_t>(dim) - 1) / static_cast<size_t>(dim)),
        slots_per_block(static_cast<size_t>(optimizer->slots_per_row(dim))),
        weights(values),
        slots(blocks * slots_per_block) {
    weights.resize(blocks * static_cast<size_t>(dim));
    for (size_t b = 0; b < blocks; ++b) optimizer->InitSlots(dim, Slots(b));
  }

  absl::Span<float> Slots(size_t block) {
    return absl::MakeSpan(slots).subspan(block * slots_per_block, slots_per_block);
  }

  void Apply(std::vector<float> gradient, float scale = 1, float rate = 1) {
    gradient.resize(weights.size());
    std::vector<float*> rows, state;
    for (size_t b = 0; b < blocks; ++b) {
      rows.push_back(weights.data() + b * static_cast<size_t>(dim));
      state.push_back(Slots(b).data());
    }
    optimizer->Apply(dim, scale, {.rate = rate}, gradient, rows, state);
  }

  std::vector<float> Values() const {
    return {weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(size)};
  }

  const std::unique_ptr<optim::RowOptimizer> optimizer;
  const size_t size;
  const int dim;
  const size_t blocks, slots_per_block;
  std::vector<float> weights, slots;
};

// One matrix of torch.optim.Muon with adjust_lr_fn "match_rms_adamw", in double precision.
struct Reference {
  int64_t rows, cols;
  Vector w, m;
  double decay = 0.1, clip_norm = 0;

  void Step(Vector g, double rate) {
    double norm = 0;
    for (const double x : g) norm += x * x;
    norm = std::sqrt(norm);
    if (clip_norm > 0 && norm > clip_norm) {
      for (double& x : g) x *= clip_norm / norm;
    }
    Vector u(g.size());
    for (size_t i = 0; i < g.size(); ++i) {
      m[i] = 0.95 * m[i] + 0.05 * g[i];
      u[i] = 0.05 * g[i] + 0.95 * m[i];
    }
    u = Orthogonal(u);
    const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
    for (size_t i = 0; i < g.size(); ++i) {
      w[i] = w[i] * (1 - rate * decay) - rate * scale * u[i];
    }
  }

  // Newton-Schulz on u, or on its transpose if that is the wide one. The iteration is the same on
  // both, so no transpose is needed: a u + (b G + c G G) u with G = u u^T equals its mirror.
  Vector Orthogonal(Vector u) const {
    const auto n = static_cast<size_t>(rows), k = static_cast<size_t>(cols);
    double norm = 0;
    for (const double x : u) norm += x * x;
    for (double& x : u) x /= std::max(std::sqrt(norm), 1e-7);
    for (int step = 0; step < 5; ++step) {
      Vector gram(n * n), update(n * n), next(n * k);
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < n; ++j) {
          for (size_t p = 0; p < k; ++p) gram[i * n + j] += u[i * k + p] * u[j * k + p];
        }
      }
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < n; ++j) {
          double square = 0;
          for (size_t p = 0; p < n; ++p) square += gram[i * n + p] * gram[p * n + j];
          update[i * n + j] = -4.7750 * gram[i * n + j] + 2.0315 * square;
        }
      }
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < k; ++j) {
          next[i * k + j] = 3.4445 * u[i * k + j];
          for (size_t p = 0; p < n; ++p) next[i * k + j] += update[i * n + p] * u[p * k + j];
        }
      }
      u = next;
    }
    return u;
  }
};

TEST(MuonTest, AgreesWithTheFormulaInDoublePrecision) {
  const std::pair<int, int> kShapes[] = {{1, 1}, {1, 9},   {9, 1},   {3, 5},
                                         {8, 8}, {17, 33}, {70, 18}, {32, 64}};
  for (const double clip : {0.0, 0.5}) {
    for (const auto& [rows, cols] : kShapes) {
      const auto size = static_cast<size_t>(rows * cols);
      Random random(TestSeed());
      Optimizer config = Config();
      config.set_clip_norm(clip);
      Buffer buffer(config, RandomFloats(random, size), 1024, {{0, rows, cols}});
      Reference reference{
          rows,         cols, Vector(buffer.weights.begin(), buffer.weights.begin() + rows * cols),
          Vector(size), 0.1,  clip};
      for (int step = 0; step < 8; ++step) {
        const float rate = step % 3 == 0 ? 1.0f : 0.25f;
        const std::vector<float> g = RandomFloats(random, size);
        buffer.Apply(g, 0.5f, rate);
        Vector scaled(g.begin(), g.end());
        for (double& x : scaled) x *= 0.5;
        reference.Step(scaled, 0.05 * static_cast<double>(rate));
        for (size_t i = 0; i < size; ++i) {
          ASSERT_NEAR(buffer.weights[i], reference.w[i], 4e-6)
              << rows << "x" << cols << " step " << step << " element " << i;
        }
      }
    }
  }
}

// Weights of numpy 1.24 in double precision: the formula of torch.optim.Muon(lr=.05,
// weight_decay=.1, adjust_lr_fn="match_rms_adamw") on a matrix of 2 x 3, from w = (1 .. 6) / 4, ten
// steps with the gradient ((7t + 13i) mod 31 - 15) / 16 of element i in step t.
TEST(MuonTest, TenStepsEndAtTheWeightsOfTheFormulaInNumpy) {
  Buffer buffer(Config(), {0.25f, 0.5f, 0.75f, 1.0f, 1.25f, 1.5f}, 1024, {{0, 2, 3}});
  for (int step = 1; step <= 10; ++step) {
    std::vector<float> g;
    for (int i = 0; i < 6; ++i) {
      g.push_back(static_cast<float>((7 * step + 13 * i) % 31 - 15) / 16);
    }
    buffer.Apply(g);
  }
  const float kWeights[] = {0.254593081f, 0.495403023f, 0.749323776f,
                            0.917450786f, 1.16577448f,  1.47515231f};
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(buffer.weights[i], kWeights[i], 1e-6) << i;
}

// The step has singular values near 1, so its root mean square is near 0.2 of the learning rate,
// whatever the shape and the size of the gradient.
TEST(MuonTest, TheStepOfAMatrixHasTheSizeOfAnAdamStep) {
  for (const auto& [rows, cols] : {std::pair(64, 16), std::pair(16, 64), std::pair(40, 40)}) {
    for (const float size : {1e-3f, 1.0f, 1e6f}) {
      const auto count = static_cast<size_t>(rows * cols);
      Random random(TestSeed());
      Optimizer config = Config();
      config.set_weight_decay(0);
      Buffer buffer(config, std::vector<float>(count), 1024, {{0, rows, cols}});
      buffer.Apply(RandomFloats(random, count), size);
      double square = 0;
      for (const float w : buffer.Values()) square += double{w} * w;
      const double rms = std::sqrt(square / static_cast<double>(count)) / 0.05;
      EXPECT_GT(rms, 0.14);
      EXPECT_LT(rms, 0.24);
    }
  }
}

// Matrices between vectors, which blocks cut at any place: the bits are those of one large block.
TEST(MuonTest, BlocksChangeNoBit) {
  const std::vector<MatrixPlace> matrices = {{5, 8, 6}, {53, 7, 11}, {140, 1, 20}};
  Random random(TestSeed());
  const std::vector<float> values = RandomFloats(random, 171);
  Buffer small(Config(), values, 16, matrices), large(Config(), values, 1024, matrices);
  for (int step = 0; step < 5; ++step) {
    const auto g = RandomFloats(random, values.size());
    small.Apply(g, 0.3f);
    large.Apply(g, 0.3f);
    EXPECT_EQ(small.Values(), large.Values());
  }
}

TEST(MuonTest, AllButMatricesTakeTheStepsOfAdamW) {
  const std::vector<MatrixPlace> matrices = {{40, 6, 10}};
  Random random(TestSeed());
  const std::vector<float> values = RandomFloats(random, 200);
  Buffer muon(Config(), values, 64, matrices), none(Config(), values, 64, {});
  Buffer adamw(Config(Optimizer::ADAMW), values, 64, {});
  for (int step = 0; step < 10; ++step) {
    const auto g = RandomFloats(random, values.size());
    for (Buffer* const buffer : {&muon, &none, &adamw}) buffer->Apply(g, 0.3f);
  }
  EXPECT_EQ(none.weights, adamw.weights);
  EXPECT_EQ(none.slots, adamw.slots);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i < 40 || i >= 100) {
      EXPECT_EQ(muon.weights[i], adamw.weights[i]) << i;
    } else {
      EXPECT_NE(muon.weights[i], adamw.weights[i]) << i;
    }
  }
}

// The rule of exact bits: each element of a product is the sum of its terms in their order, and no
// product is fused with an addition. On a 1 x 2 matrix the whole iteration is a few roundings.
TEST(MuonTest, ASmallMatrixIsThisExactSequenceOfRoundings) {
  Optimizer config = Config();
  config.set_weight_decay(0);
  Buffer buffer(config, {0.0f, 0.0f}, 16, {{0, 1, 2}});
  const float gradient[] = {0.7f, -1.3f};
  buffer.Apply({gradient[0], gradient[1]});
  volatile float x[2], a, b, t, s;  // volatile: each result is rounded to a float in memory
  const float rest = 1 - 0.95f;
  for (int i = 0; i < 2; ++i) {
    a = rest * gradient[i];  // the momentum
    b = a - gradient[i];
    t = 0.95f * b;
    x[i] = gradient[i] + t;
  }
  a = x[0] * x[0];
  b = x[1] * x[1];
  s = a + b;
  s = std::sqrt(s);
  for (int i = 0; i < 2; ++i) x[i] = x[i] / s;
  for (int step = 0; step < 5; ++step) {
    a = x[0] * x[0];
    b = x[1] * x[1];
    s = a + b;
    t = s * s;
    t = 2.0315f * t;
    a = -4.7750f * s;
    s = a + t;
    for (int i = 0; i < 2; ++i) {
      a = 3.4445f * x[i];
      b = s * x[i];
      x[i] = a + b;
    }
  }
  t = 0.2f * std::sqrt(2.0f);
  t = 0.05f * t;
  for (int i = 0; i < 2; ++i) {
    a = t * x[i];
    EXPECT_EQ(buffer.weights[static_cast<size_t>(i)], -a) << i;
  }
}

TEST(MuonTest, AFactorOfTheRateIsALearningRateForThisStep) {
  Optimizer smaller = Config();
  smaller.set_learning_rate(Config().learning_rate() / 4);
  const std::vector<MatrixPlace> matrices = {{3, 5, 7}};
  Random random(TestSeed());
  const std::vector<float> values = RandomFloats(random, 50);
  Buffer buffer(Config(), values, 16, matrices), other(smaller, values, 16, matrices);
  for (int step = 0; step < 3; ++step) {
    const auto g = RandomFloats(random, values.size());
    buffer.Apply(g, 1, 0.25f);
    other.Apply(g);
    EXPECT_EQ(buffer.weights, other.weights);
    EXPECT_EQ(buffer.slots, other.slots);
  }
  const auto before = buffer.weights;
  buffer.Apply(RandomFloats(random, values.size()), 1, 0);
  EXPECT_EQ(buffer.weights, before);
}

// A gradient of zeros has no direction, and the momentum goes on.
TEST(MuonTest, AZeroGradientIsHarmless) {
  Buffer buffer(Config(), std::vector<float>(15, 1.0f), 16, {{0, 3, 5}});
  buffer.Apply(std::vector<float>(15));
  for (const float w : buffer.Values()) EXPECT_NEAR(w, 1 - 0.05 * 0.1, 1e-6);
}

TEST(MuonTest, SlotsAndDefaults) {
  const auto optimizer = *optim::NewRowOptimizer(Config());
  EXPECT_EQ(optimizer->slots_per_row(1024), 2049);
  EXPECT_EQ(optimizer->name(), "muon");
  Optimizer bad = Config();
  bad.set_momentum(1);
  EXPECT_THAT(std::string(optim::NewRowOptimizer(bad).status().message()),
              ::testing::HasSubstr("momentum"));
}

}  // namespace
}  // namespace tandem
