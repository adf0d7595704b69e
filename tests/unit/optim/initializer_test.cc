// Initial values and the fold: pure functions of what their headers say, in the stated order.
#include "optim/initializer.h"

#include <cmath>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optim/fold.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

std::vector<float> Row(const Initializer& config, uint64_t seed, uint64_t key, size_t dim) {
  std::vector<float> row(dim, -77);
  optim::InitRow(config, seed, key, absl::MakeSpan(row));
  return row;
}

Initializer Config(Initializer::Kind kind, double scale) {
  Initializer config;
  config.set_kind(kind);
  config.set_scale(scale);
  return config;
}

TEST(InitializerTest, ZeroAndConstant) {
  EXPECT_THAT(Row(Config(Initializer::ZERO, 3), 1, 2, 5), ::testing::Each(0.0f));
  EXPECT_THAT(Row(Config(Initializer::CONSTANT, 0.25), 1, 2, 5), ::testing::Each(0.25f));
}

TEST(InitializerTest, ValuesDependOnSeedAndKeyOnly) {
  for (const auto kind : {Initializer::UNIFORM, Initializer::NORMAL}) {
    const Initializer config = Config(kind, 0.1);
    const auto row = Row(config, 5, 6, 17);
    Row(config, 9, 9, 4);  // what was made in between does not matter
    EXPECT_EQ(Row(config, 5, 6, 17), row);
    EXPECT_NE(Row(config, 5, 7, 17), row);
    EXPECT_NE(Row(config, 6, 6, 17), row);
  }
}

// Mean and variance over many rows, and the half-open bound. The tolerances are six deviations of
// the estimates.
TEST(InitializerTest, UniformHasItsBoundsMeanAndVariance) {
  const double scale = 0.5;
  double sum = 0, squares = 0;
  const int rows = 4000, dim = 25;
  for (uint64_t key = 0; key < rows; ++key) {
    for (const float x : Row(Config(Initializer::UNIFORM, scale), TestSeed(), key, dim)) {
      ASSERT_GE(x, -scale);
      ASSERT_LT(x, scale);
      sum += x;
      squares += x * x;
    }
  }
  const double n = rows * dim;
  EXPECT_NEAR(sum / n, 0, 6 * scale / std::sqrt(3 * n));
  EXPECT_NEAR(squares / n, scale * scale / 3, 0.003);
}

TEST(InitializerTest, NormalHasItsDeviation) {
  double sum = 0, squares = 0;
  const int rows = 4000, dim = 25;
  for (uint64_t key = 0; key < rows; ++key) {
    for (const float x : Row(Config(Initializer::NORMAL, 0.1), TestSeed(), key, dim)) {
      sum += x;
      squares += x * x;
    }
  }
  const double n = rows * dim;
  EXPECT_NEAR(sum / n, 0, 6 * 0.1 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 0.01, 6 * 0.01 * std::sqrt(2 / n));
}

TEST(InitializerTest, UnspecifiedIsUniformOverTheRootOfDim) {
  EXPECT_EQ(Row(Initializer(), 1, 2, 16), Row(Config(Initializer::UNIFORM, 0.25), 1, 2, 16));
}

TEST(FoldTest, AddsElementByElement) {
  std::vector<float> sum = {1, 2, 3};
  const std::vector<float> x = {0.5f, -2, 1};
  optim::FoldAdd(sum.data(), x.data(), 3);
  EXPECT_THAT(sum, ::testing::ElementsAre(1.5f, 0, 4));
}

TEST(FoldTest, TheFactorIsOneOverTheCountRoundedOnce) {
  EXPECT_EQ(optim::FoldFactor(3), static_cast<float>(1.0 / 3));
  EXPECT_EQ(optim::FoldFactor(0), 0);
}

}  // namespace
}  // namespace tandem
