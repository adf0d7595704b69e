// The types in which rows are stored: exact conversions, the nearest neighbour, and the mean of
// random roundings.
#include "optim/row_rounding.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "base/random.h"
#include "collectives/reduce.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optim/update_count.h"

namespace tandem {
namespace {

using optim::ExpandRow;
using optim::kMaxF16;
using optim::RoundingBits;
using optim::RowHead;
using optim::StoreNearest;
using optim::StoreRow;

constexpr Table::Dtype kHalves[] = {Table::BF16, Table::F16};

collectives::DataType WireType(Table::Dtype type) {
  return type == Table::BF16 ? collectives::DataType::kBF16 : collectives::DataType::kF16;
}

uint16_t Nearest(Table::Dtype type, float value) {
  uint16_t half = 0;
  StoreNearest(type, {&value, 1}, &half);
  return half;
}

float Value(Table::Dtype type, uint16_t half) {
  const uint16_t row[] = {half, 0};
  float values[2] = {};
  ExpandRow(type, 2, row, values);
  return values[0];
}

float Rounded(Table::Dtype type, float value, const RoundingBits& bits) {
  uint16_t half = 0;
  StoreRow(type, 1, &value, bits, &half);
  return Value(type, half);
}

// The conversions of collectives have been tested against the definition of the types.
TEST(RowRoundingTest, EveryNumberOf16BitsHasItsValue) {
  for (const Table::Dtype type : kHalves) {
    for (uint32_t half = 0; half < 65536; ++half) {
      const auto in = static_cast<uint16_t>(half);
      float want = 0;
      collectives::Widen(WireType(type), &in, 1, {&want, 1});
      const float value = Value(type, in);
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(value)) << half;
        EXPECT_TRUE(std::isnan(Value(type, Nearest(type, value)))) << half;
        continue;
      }
      ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(want)) << half;
      ASSERT_EQ(Nearest(type, value), in) << value;
      // No random bits change a number that the type has.
      const float random = Rounded(type, value, {1, half, 3, RoundingBits::kWeights});
      ASSERT_EQ(std::bit_cast<uint32_t>(random), std::bit_cast<uint32_t>(want)) << half;
    }
  }
}

TEST(RowRoundingTest, NearestIsThatOfCollectives) {
  Random random(7);
  for (const Table::Dtype type : kHalves) {
    for (int i = 0; i < 1'000'000; ++i) {
      const float value = std::bit_cast<float>(static_cast<uint32_t>(random.Next64()));
      uint16_t want = 0;
      collectives::Narrow(WireType(type), {&value, 1}, 1, &want);
      if (std::isnan(value)) continue;
      ASSERT_EQ(Nearest(type, value), want) << value;
    }
    for (uint32_t half = 0; half < 0x7bff; ++half) {  // halfway: to the even neighbour
      const float low = Value(type, static_cast<uint16_t>(half));
      const float high = Value(type, static_cast<uint16_t>(half + 1));
      ASSERT_EQ(Nearest(type, low + (high - low) / 2) & 1, 0) << low;
    }
  }
}

// A value between two neighbours becomes one of them, and the mean of many roundings is the value.
TEST(RowRoundingTest, TheMeanOfRandomRoundingsIsTheValue) {
  constexpr int kTimes = 200'000;
  for (const Table::Dtype type : kHalves) {
    // The last two are subnormal in F16.
    for (const float value : {1.0003f, -0.1234567f, 3.3e-5f, -6.1e-7f}) {
      const float middle = Value(type, Nearest(type, value));
      const float low = Value(type, static_cast<uint16_t>(Nearest(type, value) - 1));
      const float high = Value(type, static_cast<uint16_t>(Nearest(type, value) + 1));
      const double step = std::max(std::abs(high - middle), std::abs(middle - low));
      double sum = 0;
      for (int stamp = 0; stamp < kTimes; ++stamp) {
        const float rounded = Rounded(type, value, {5, stamp, 9, RoundingBits::kWeights});
        ASSERT_LT(std::abs(rounded - value), step) << value;
        sum += rounded;
      }
      // The deviation of the mean is at most half a step by the root of the number of roundings.
      EXPECT_NEAR(sum / kTimes, value, 4 * step / 2 / std::sqrt(kTimes)) << value;
    }
  }
}

// Neither seed, stamp, key, stream nor element may repeat the bits of another one.
TEST(RowRoundingTest, BitsDependOnEverything) {
  const auto bits = [](uint64_t seed, int64_t stamp, uint64_t key, RoundingBits::Stream stream) {
    std::vector<uint32_t> out;
    for (size_t j = 0; j < 64; ++j) out.push_back(RoundingBits(seed, stamp, key, stream)(j));
    return out;
  };
  const auto same = [](const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
    int equal = 0;
    for (size_t j = 0; j < a.size(); ++j) equal += a[j] == b[j] ? 1 : 0;
    return equal;
  };
  const auto base = bits(1, 2, 3, RoundingBits::kWeights);
  EXPECT_EQ(base, bits(1, 2, 3, RoundingBits::kWeights));
  EXPECT_LE(same(base, bits(2, 2, 3, RoundingBits::kWeights)), 1);
  EXPECT_LE(same(base, bits(1, 3, 3, RoundingBits::kWeights)), 1);
  EXPECT_LE(same(base, bits(1, 2, 4, RoundingBits::kWeights)), 1);
  EXPECT_LE(same(base, bits(1, 2, 3, RoundingBits::kState)), 1);
  std::vector<uint32_t> shifted(base.begin() + 1, base.end());
  shifted.push_back(0);
  EXPECT_LE(same(base, shifted), 1);
}

// Checkpoints and orders of earlier runs go on with the same bits.
TEST(RowRoundingTest, BitsAreThoseOfEarlierVersions) {
  EXPECT_EQ(RoundingBits(1, 2, 3, RoundingBits::kWeights)(0), 39855u);
  EXPECT_EQ(RoundingBits(1, 2, 3, RoundingBits::kState)(1), 47138u);
  EXPECT_EQ(RoundingBits(9, 8, 7, RoundingBits::kUpdates)(15), 57672u);
  EXPECT_EQ(optim::UpdateCount::Updates(37), 68);
}

// Each of the 16 bits is set half of the time, over elements, keys and stamps.
TEST(RowRoundingTest, BitsAreUniform) {
  const auto expect_uniform = [](const char* over, auto bits_of) {
    constexpr int kTimes = 1 << 16;
    int set[16] = {};
    for (int i = 0; i < kTimes; ++i) {
      const uint32_t bits = bits_of(i);
      ASSERT_LT(bits, 65536u);
      for (int b = 0; b < 16; ++b) set[b] += (bits >> b) & 1;
    }
    for (const int count : set) EXPECT_NEAR(count, kTimes / 2, 5 * std::sqrt(kTimes) / 2) << over;
  };
  const RoundingBits one(1, 2, 3, RoundingBits::kWeights);
  expect_uniform("elements", [&](int i) { return one(static_cast<size_t>(i)); });
  expect_uniform("keys", [](int i) {
    return RoundingBits(1, 2, static_cast<uint64_t>(i), RoundingBits::kWeights)(0);
  });
  expect_uniform("stamps", [](int i) { return RoundingBits(1, i, 3, RoundingBits::kWeights)(0); });
}

TEST(RowRoundingTest, WhatF16CannotHoldIsSaid) {
  uint16_t stored[3] = {};
  const auto fits = [&](float value) {
    const float row[] = {1, value, 2};
    const RoundingBits bits(1, 2, 3, RoundingBits::kWeights);
    const bool by_chance = StoreRow(Table::F16, 3, row, bits, stored);
    EXPECT_EQ(StoreNearest(Table::F16, row, stored), by_chance);
    return by_chance;
  };
  EXPECT_TRUE(fits(kMaxF16));
  EXPECT_TRUE(fits(-kMaxF16));
  EXPECT_FALSE(fits(65536));
  EXPECT_TRUE(std::isinf(Value(Table::F16, stored[1])));
  EXPECT_FALSE(fits(-1e30f));
  EXPECT_FALSE(fits(std::numeric_limits<float>::infinity()));
  EXPECT_FALSE(fits(std::numeric_limits<float>::quiet_NaN()));
  const float large[] = {-1e30f};
  EXPECT_TRUE(StoreNearest(Table::BF16, large, stored));
}

// A row of INT8: its numbers and their exponent.
struct Int8Row {
  explicit Int8Row(absl::Span<const float> row) { EXPECT_TRUE(Nearest(row)); }

  bool Nearest(absl::Span<const float> row, int exponent = RowHead::kNoExponent) {
    stored.resize(optim::WeightBytes(Table::INT8, row.size()));
    return StoreNearest(Table::INT8, row, stored.data(), exponent);
  }
  bool Random(absl::Span<const float> row, int64_t stamp) {
    return StoreRow(Table::INT8, row.size(), row.data(), {1, stamp, 3, RoundingBits::kWeights},
                    stored.data());
  }
  std::vector<float> Values() const {
    std::vector<float> values(stored.size() - 1);
    ExpandRow(Table::INT8, values.size(), stored.data(), values.data());
    return values;
  }
  int exponent() const { return stored.back(); }

  std::vector<int8_t> stored;
};

TEST(RowRoundingTest, EveryRowOfInt8KeepsItsValues) {
  for (int exponent = optim::kMinExponent; exponent <= optim::kMaxExponent; ++exponent) {
    std::vector<float> row;
    for (int number = -127; number <= 127; ++number) {
      row.push_back(static_cast<float>(std::ldexp(number, exponent)));
    }
    Int8Row stored(row);
    ASSERT_EQ(stored.exponent(), exponent);
    ASSERT_EQ(stored.Values(), row);
    ASSERT_TRUE(stored.Random(row, exponent));
    ASSERT_EQ(stored.Values(), row) << "no random bits change a number that the type has";
  }
  const std::vector<float> zeros(5, 0.0f);
  EXPECT_EQ(Int8Row(zeros).Values(), zeros);
}

TEST(RowRoundingTest, NearestOfInt8IsTheNearestNumber) {
  Random random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<float> row(5);
    const double size = std::ldexp(1.0, static_cast<int>(random.Uniform(200)) - 100);
    for (float& value : row) value = static_cast<float>(random.Normal() * size);
    const Int8Row stored(row);
    const std::vector<float> values = stored.Values();
    const double step = std::ldexp(1.0, stored.exponent());
    for (size_t j = 0; j < row.size(); ++j) {
      // The nearest multiple of the step, but for bits of the value below 2^-16 of the step.
      ASSERT_LE(std::abs(values[j] - row[j]), step * (0.5 + 0x1p-16)) << row[j];
    }
    std::vector<float> again = values;
    EXPECT_TRUE(optim::RoundToNearest(Table::INT8, absl::MakeSpan(again)));
    ASSERT_EQ(again, values);
  }
}

// The exponent stays until a weight does not fit, or a scale four times smaller would do. Weights
// that do not change then keep their bits.
TEST(RowRoundingTest, TheScaleOfInt8Lasts) {
  Int8Row row(std::vector<float>{100, 1, 0});
  EXPECT_EQ(row.exponent(), 0);
  const std::vector<float> odd = {127, 1, 0}, small = {64, 1, 0}, large = {127.5f, 1, 0};
  EXPECT_TRUE(row.Random(odd, 1));
  EXPECT_EQ(row.exponent(), 0);
  EXPECT_TRUE(row.Random(large, 2));
  EXPECT_EQ(row.exponent(), 1);
  for (int64_t stamp = 3; stamp < 100; ++stamp) {
    EXPECT_TRUE(row.Random(small, stamp));
    ASSERT_EQ(row.exponent(), 1) << "64 of 254";
    ASSERT_EQ(row.Values()[0], 64);
  }
  const std::vector<float> smaller = {63, 1, 0};
  EXPECT_TRUE(row.Random(smaller, 100));
  EXPECT_EQ(row.exponent(), -1) << "a quarter of 254 would do";
  EXPECT_EQ(row.Values(), smaller);
  EXPECT_TRUE(row.Nearest(smaller, 1));
  EXPECT_EQ(row.exponent(), 1) << "a row from a file keeps its scale";
}

TEST(RowRoundingTest, TheMeanOfRandomRoundingsOfInt8IsTheValue) {
  constexpr int kTimes = 100'000;
  const std::vector<float> row = {1, 0.123456f, -0.7654321f, 1.1e-4f};  // in steps of 1/64
  Int8Row stored(row);
  std::vector<double> sums(row.size());
  for (int stamp = 0; stamp < kTimes; ++stamp) {
    EXPECT_TRUE(stored.Random(row, stamp));
    const std::vector<float> values = stored.Values();
    for (size_t j = 0; j < row.size(); ++j) {
      ASSERT_LT(std::abs(values[j] - row[j]), 1.0 / 64);
      sums[j] += values[j];
    }
  }
  for (size_t j = 0; j < row.size(); ++j) {
    EXPECT_NEAR(sums[j] / kTimes, row[j], 4.0 / 64 / 2 / std::sqrt(kTimes)) << row[j];
  }
}

TEST(RowRoundingTest, WhatInt8CannotHoldIsSaidAndChangesNothing) {
  Int8Row row(std::vector<float>{1, 2});
  const std::vector<int8_t> before = row.stored;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {kInfinity, -kInfinity, std::nanf(""), 1.001f * optim::kMaxInt8}) {
    EXPECT_FALSE(row.Random(std::vector<float>{1, bad}, 1));
    EXPECT_FALSE(row.Nearest(std::vector<float>{bad, 1}));
    EXPECT_EQ(row.stored, before);
  }
  const std::vector<float> largest = {optim::kMaxInt8, -optim::kMaxInt8};
  EXPECT_TRUE(row.Random(largest, 2));
  EXPECT_EQ(row.Values(), largest);
}

// Exact up to 16, and right in the mean beyond.
TEST(UpdateCountTest, CountsUpdates) {
  using optim::UpdateCount;
  constexpr int kUpdates = 3000, kRows = 2000;
  double sum = 0, squares = 0;
  for (uint64_t key = 0; key < kRows; ++key) {
    uint8_t count = 0;
    for (int t = 1; t <= kUpdates; ++t) {
      count = UpdateCount::Next(count, RoundingBits(1, t, key, RoundingBits::kUpdates)(0));
      if (t <= 16) {
        ASSERT_EQ(UpdateCount::Updates(count), t);
      }
    }
    const double share = static_cast<double>(UpdateCount::Updates(count)) / kUpdates;
    sum += share;
    squares += share * share;
  }
  const double mean = sum / kRows, deviation = std::sqrt(squares / kRows - mean * mean);
  EXPECT_NEAR(mean, 1, 4 * 0.17 / std::sqrt(kRows));
  EXPECT_NEAR(deviation, 0.15, 0.03);
  EXPECT_GE(UpdateCount::Updates(UpdateCount::kLast), 900'000) << "the largest min_updates";
  EXPECT_EQ(UpdateCount::Next(UpdateCount::kLast, 0), UpdateCount::kLast);
}

// How far weights of 1 move, on average, in 100,000 updates of 1e-4. Six of ten updates raise the
// weight, so that it should move by 2. Neither type has a number so close to 1.
enum class Bits { kNearest, kConstant, kRandom };
double MeanMove(Table::Dtype type, Bits how) {
  constexpr int kWeights = 64, kUpdates = 100'000;
  double sum = 0;
  for (uint64_t key = 0; key < kWeights; ++key) {
    float value = 1;
    char stored[2];
    StoreNearest(type, {&value, 1}, stored);
    for (int t = 0; t < kUpdates; ++t) {
      value += t % 10 < 6 ? 1e-4f : -1e-4f;
      const RoundingBits bits(1, how == Bits::kConstant ? 0 : t, key, RoundingBits::kWeights);
      if (how == Bits::kNearest) {
        StoreNearest(type, {&value, 1}, stored);
      } else {
        StoreRow(type, 1, &value, bits, stored);
      }
      ExpandRow(type, 1, stored, &value);
    }
    sum += value - 1.0;
  }
  return sum / kWeights;
}

TEST(RowRoundingTest, SmallUpdatesAreNotLost) {
  for (const Table::Dtype type : {Table::BF16, Table::INT8}) {
    // 0.06 is the deviation of the mean of 64 weights.
    EXPECT_NEAR(MeanMove(type, Bits::kRandom), 2, 0.25);
    EXPECT_EQ(MeanMove(type, Bits::kNearest), 0);
    EXPECT_GT(std::abs(MeanMove(type, Bits::kConstant) - 2), 1);
  }
}

}  // namespace
}  // namespace tandem
