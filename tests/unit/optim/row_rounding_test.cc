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

namespace tandem {
namespace {

using optim::ExpandRow;
using optim::kMaxF16;
using optim::RoundingBits;
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

// How far weights of 1 move, on average, in 100,000 updates of 1e-4. Six of ten updates raise the
// weight, so that it should move by 2. BF16 has no number so close to 1.
enum class Bits { kNearest, kConstant, kRandom };
double MeanMove(Bits how) {
  constexpr int kWeights = 64, kUpdates = 100'000;
  double sum = 0;
  for (uint64_t key = 0; key < kWeights; ++key) {
    uint16_t stored = Nearest(Table::BF16, 1.0f);
    for (int t = 0; t < kUpdates; ++t) {
      const float value = Value(Table::BF16, stored) + (t % 10 < 6 ? 1e-4f : -1e-4f);
      const RoundingBits bits(1, how == Bits::kConstant ? 0 : t, key, RoundingBits::kWeights);
      if (how == Bits::kNearest) {
        stored = Nearest(Table::BF16, value);
      } else {
        StoreRow(Table::BF16, 1, &value, bits, &stored);
      }
    }
    sum += Value(Table::BF16, stored) - 1.0;
  }
  return sum / kWeights;
}

TEST(RowRoundingTest, SmallUpdatesAreNotLost) {
  // 0.06 is the deviation of the mean of 64 weights.
  EXPECT_NEAR(MeanMove(Bits::kRandom), 2, 0.25);
  EXPECT_EQ(MeanMove(Bits::kNearest), 0);
  EXPECT_GT(std::abs(MeanMove(Bits::kConstant) - 2), 1);
}

}  // namespace
}  // namespace tandem
