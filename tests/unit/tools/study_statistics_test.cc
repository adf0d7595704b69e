// Student's t against a printed table, and effects against numbers worked out by hand.
#include "tools/study/statistics.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace tandem {
namespace {

using namespace study;  // NOLINT: all that is tested here

// Fisher & Yates, Statistical Tables, table III: two-sided 5 % points.
TEST(StatisticsTest, QuantilesAreThoseOfTheTables) {
  EXPECT_NEAR(TQuantile(0.975, 1), 12.706, 5e-4);
  EXPECT_NEAR(TQuantile(0.975, 2), 4.303, 5e-4);
  EXPECT_NEAR(TQuantile(0.975, 4), 2.776, 5e-4);
  EXPECT_NEAR(TQuantile(0.975, 9), 2.262, 5e-4);
  EXPECT_NEAR(TQuantile(0.975, 120), 1.980, 5e-4);
  EXPECT_NEAR(TQuantile(0.5, 3), 0, 1e-12);
}

TEST(StatisticsTest, ASpreadHasAnIntervalFromTwoValuesOn) {
  EXPECT_EQ(SpreadOf({}).count, 0u);
  const Spread one = SpreadOf({3});
  EXPECT_EQ(one.low, 3);
  EXPECT_EQ(one.high, 3);
  // 1, 2, 3: mean 2, deviation 1; half of the interval 4.303 / sqrt(3).
  // By hand: logarithms 0 and 2, deviation sqrt(2), t of one degree 12.706: e^(1 -+ 12.706).
  const Spread positive = SpreadOfPositive({1, std::exp(2)});
  EXPECT_NEAR(positive.mean, std::exp(1), 1e-12);
  EXPECT_NEAR(std::log(positive.low), 1 - 12.7062, 1e-4);
  EXPECT_NEAR(std::log(positive.high), 1 + 12.7062, 1e-4);
  EXPECT_EQ(SpreadOfPositive({}).count, 0u);
  const Spread three = SpreadOf({3, 1, 2});
  EXPECT_DOUBLE_EQ(three.mean, 2);
  EXPECT_DOUBLE_EQ(three.deviation, 1);
  EXPECT_NEAR(three.high - three.mean, 4.30265 / std::sqrt(3), 1e-4);
  EXPECT_EQ(three.min, 1);
  EXPECT_EQ(three.max, 3);
}

// What seeds have in common falls out: both vary by 10, their difference by almost nothing.
TEST(StatisticsTest, DifferencesArePairedBySeed) {
  const std::vector<double> a = {10.2, 20.1, 30.3}, b = {10, 20, 30};
  const Effect effect = DifferenceOf(a, b);
  EXPECT_EQ(effect.seeds, 3u);
  EXPECT_NEAR(effect.mean, 0.2, 1e-12);
  EXPECT_NEAR(effect.high - effect.mean, 4.30265 * 0.1 / std::sqrt(3), 1e-4);
  EXPECT_FALSE(effect.resolved);  // -0.048 to 0.448
  EXPECT_FALSE(effect.enough);
  EXPECT_TRUE(DifferenceOf({10.2, 20.2, 30.21}, b).resolved);
}

TEST(StatisticsTest, OneSeedResolvesNothing) {
  EXPECT_FALSE(DifferenceOf({2}, {1}).resolved);
  EXPECT_FALSE(DifferenceOf({}, {}).resolved);
}

TEST(StatisticsTest, AFewDifferencesThatAreTheSameResolveNothing) {
  EXPECT_FALSE(DifferenceOf({2, 3}, {1, 2}).resolved);
  EXPECT_FALSE(RatioOf({3, 4.5, 1.2}, {2, 3, 0.8}).resolved);  // 1.5 each, but for rounding
  EXPECT_TRUE(DifferenceOf({2, 3, 4, 5, 6}, {1, 2, 3, 4, 5}).resolved);
}

TEST(StatisticsTest, MoreSeedsAreEnough) {
  const Effect effect = DifferenceOf({1, 2, 3, 4, 5}, {1.1, 1.9, 3.1, 3.9, 5});
  EXPECT_TRUE(effect.enough);
  EXPECT_FALSE(effect.resolved);
}

TEST(StatisticsTest, RoundingIsNoEffect) {
  EXPECT_FALSE(DifferenceOf({0.1 + 0.2, 0.1 + 0.2}, {0.3, 0.3}).resolved);
  const std::vector<double> sums(5, 0.1 + 0.2), same(5, 0.3);
  EXPECT_FALSE(RatioOf(sums, same).resolved);
}

TEST(StatisticsTest, RatiosAreGeometric) {
  const Effect effect = RatioOf({2, 8}, {1, 1});  // factors 2 and 8
  EXPECT_NEAR(effect.mean, 4, 1e-12);
  EXPECT_NEAR(effect.low * effect.high, 16, 1e-6);
  EXPECT_FALSE(effect.resolved);
  EXPECT_TRUE(RatioOf({2.0, 2.1, 1.9}, {1, 1, 1}).resolved);
}

}  // namespace
}  // namespace tandem
