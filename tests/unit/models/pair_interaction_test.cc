#include "models/pair_interaction.h"

#include <tuple>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

// Vectors of all samples in one array [samples, vectors, dim], and views of it as the class wants
// them.
struct Vectors {
  Vectors(int64_t samples, int vectors, int dim)
      : count(vectors), width(dim), data(samples * vectors * dim) {}

  float& at(int64_t s, int i, int k) { return data[(s * count + i) * width + k]; }
  template <typename T>
  std::vector<models::VectorOfSamples<T>> Views() {
    std::vector<models::VectorOfSamples<T>> views;
    for (int i = 0; i < count; ++i) views.push_back({&data[i * width], count * width});
    return views;
  }

  int count, width;
  std::vector<float> data;
};

class PairInteractionTest : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  static constexpr int64_t kSamples = 5;
  static constexpr int kGap = 3;  // floats between the outputs of two samples
  const int n_ = std::get<0>(GetParam());
  const int dim_ = std::get<1>(GetParam());
  const models::PairInteraction interaction_{n_, dim_};
  const int64_t stride_ = interaction_.pairs() + kGap;
};

Vectors RandomVectors(int64_t samples, int n, int dim, Random* random) {
  Vectors vectors(samples, n, dim);
  for (float& x : vectors.data) x = static_cast<float>(random->Normal());
  return vectors;
}

// Every output is the dot product that the documented order says, and nothing is written between
// the samples; sizes on both sides of a whole number of lanes.
TEST_P(PairInteractionTest, ForwardIsTheDotProductOfEachPair) {
  Random random(TestSeed());
  Vectors in = RandomVectors(kSamples, n_, dim_, &random);
  std::vector<float> out(kSamples * stride_, -7.0f);
  interaction_.Forward(0, kSamples, in.Views<const float>(), out.data(), stride_);
  for (int64_t s = 0; s < kSamples; ++s) {
    const float* pair = &out[s * stride_];
    for (int i = 0; i < n_; ++i) {
      for (int j = 0; j < i; ++j, ++pair) {
        double dot = 0.0;
        for (int k = 0; k < dim_; ++k) dot += double{in.at(s, i, k)} * in.at(s, j, k);
        EXPECT_NEAR(*pair, dot, 1e-4) << "sample " << s << " pair " << i << "," << j;
      }
    }
    for (int g = 0; g < kGap; ++g) EXPECT_EQ(pair[g], -7.0f);
  }
}

// The gradient of vector i is the sum over its pairs of the pair's gradient times the other vector.
TEST_P(PairInteractionTest, BackwardIsTheSumOverPairs) {
  Random random(TestSeed());
  Vectors in = RandomVectors(kSamples, n_, dim_, &random);
  Vectors d_in(kSamples, n_, dim_);
  for (float& x : d_in.data) x = 99.0f;  // must be overwritten
  std::vector<float> d_out(kSamples * stride_);
  for (float& x : d_out) x = static_cast<float>(random.Normal());
  interaction_.Backward(0, kSamples, in.Views<const float>(), d_out.data(), stride_,
                        d_in.Views<float>());

  std::vector<double> want(d_in.data.size(), 0.0);
  for (int64_t s = 0; s < kSamples; ++s) {
    const float* pair = &d_out[s * stride_];
    for (int i = 0; i < n_; ++i) {
      for (int j = 0; j < i; ++j, ++pair) {
        for (int k = 0; k < dim_; ++k) {
          want[(s * n_ + i) * dim_ + k] += double{*pair} * in.at(s, j, k);
          want[(s * n_ + j) * dim_ + k] += double{*pair} * in.at(s, i, k);
        }
      }
    }
  }
  for (size_t e = 0; e < want.size(); ++e) EXPECT_NEAR(d_in.data[e], want[e], 1e-4) << e;
}

// Samples are independent: a range of samples gives the bits that the whole gives.
TEST_P(PairInteractionTest, ARangeOfSamplesGivesTheSameBits) {
  Random random(TestSeed());
  Vectors in = RandomVectors(kSamples, n_, dim_, &random);
  std::vector<float> whole(kSamples * stride_, 0.0f), parts = whole;
  interaction_.Forward(0, kSamples, in.Views<const float>(), whole.data(), stride_);
  interaction_.Forward(0, 2, in.Views<const float>(), parts.data(), stride_);
  interaction_.Forward(2, kSamples, in.Views<const float>(), parts.data(), stride_);
  EXPECT_THAT(parts, ::testing::ElementsAreArray(whole));
}

INSTANTIATE_TEST_SUITE_P(Sizes, PairInteractionTest,
                         ::testing::Combine(::testing::Values(1, 2, 16, 17, 27, 40),
                                            ::testing::Values(1, 7, 16, 33)));

}  // namespace
}  // namespace tandem
