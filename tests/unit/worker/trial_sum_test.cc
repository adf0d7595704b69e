// The sum that shows whether devices read each other's memory, and the faults that it must notice.
#include "worker/dense/trial_sum.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using worker::CheckTrialSum;
using worker::TrialVector;

constexpr int kRanks = 4;
constexpr int64_t kCount = 5000;

// The sum of these ranks, in float32 as devices add.
std::vector<float> SumOf(const std::vector<int>& ranks) {
  std::vector<float> sum(kCount);
  for (const int rank : ranks) {
    const std::vector<float> values = TrialVector(rank, kCount);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

bool Passes(const std::vector<float>& sum) {
  return CheckTrialSum(absl::MakeConstSpan(sum), kRanks).ok();
}

TEST(TrialSumTest, RightSumsPassInAnyOrder) {
  EXPECT_TRUE(Passes(SumOf({0, 1, 2, 3})));
  EXPECT_TRUE(Passes(SumOf({3, 1, 0, 2})));
  std::vector<int> most;
  for (int rank = 0; rank < 64; ++rank) most.push_back(63 - rank);
  EXPECT_TRUE(CheckTrialSum(SumOf(most), 64).ok());
  EXPECT_TRUE(CheckTrialSum({}, 2).ok());
}

TEST(TrialSumTest, WrongSumsDoNot) {
  EXPECT_FALSE(Passes(std::vector<float>(kCount)));  // nothing came
  EXPECT_FALSE(Passes(SumOf({0, 1, 2})));            // a rank is missing
  EXPECT_FALSE(Passes(SumOf({0, 1, 2, 2})));         // one came twice
  EXPECT_FALSE(Passes(SumOf({0, 0, 3, 3})));         // ... for another one
  EXPECT_FALSE(Passes(TrialVector(1, kCount)));      // the own vector, unchanged
  std::vector<float> shifted = SumOf({0, 1, 2, 3});
  std::rotate(shifted.begin(), shifted.begin() + 64, shifted.end());
  EXPECT_FALSE(Passes(shifted));
  std::vector<float> last = SumOf({0, 1, 2, 3});
  last.back() += 1;
  EXPECT_THAT(std::string(CheckTrialSum(last, kRanks).message()),
              HasSubstr("a trial sum is wrong: element 4999 of 5000 is"));
}

}  // namespace
}  // namespace tandem
