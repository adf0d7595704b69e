// Codecs: what they send, what error feedback keeps, and that training with it arrives where it
// should.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/random.h"
#include "collectives/codecs/codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/collectives/collective_world.h"

namespace tandem {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;

using Make = std::function<std::unique_ptr<collectives::GradientCodec>()>;
std::unique_ptr<collectives::GradientCodec> TopK(double fraction) {
  return std::move(*collectives::NewTopKCodec(fraction));
}
std::unique_ptr<collectives::GradientCodec> PowerSgd(int rank) {
  return std::move(*collectives::NewPowerSgdCodec(rank, 7));
}

// A thread a rank, since codecs wait for their collectives.
void OnEveryRank(CollectiveWorld& world, const std::function<void(collectives::Group&)>& run) {
  std::vector<std::thread> threads;
  for (int r = 0; r < world.ranks(); ++r) threads.emplace_back([&, r] { run(world.group(r)); });
  for (std::thread& thread : threads) thread.join();
}

using Vectors = std::vector<std::vector<float>>;

Vectors RandomVectors(int ranks, int count, uint64_t seed) {
  Random random(seed);
  Vectors out(ranks);
  for (auto& v : out) {
    for (int i = 0; i < count; ++i) v.push_back(static_cast<float>(random.Normal()));
  }
  return out;
}

struct Outcome {
  Vectors sums, sent;
};
Outcome SumOnce(const Make& make, const Vectors& in) {
  CollectiveWorld world(static_cast<int>(in.size()));
  Outcome out{in, in};
  OnEveryRank(world, [&](collectives::Group& g) {
    const size_t r = static_cast<size_t>(g.rank());
    ASSERT_TRUE(
        make()->Sum(g, in[r], absl::MakeSpan(out.sums[r]), absl::MakeSpan(out.sent[r])).ok());
  });
  return out;
}

TEST(TopKCodec, SendsTheLargestAndSumsThem) {
  const Outcome out = SumOnce([] { return TopK(0.4); }, {{1, -5, 2, 0, 3}, {4, 1, -1, 1, 0.5}});
  EXPECT_THAT(out.sent[0], ElementsAre(0, -5, 0, 0, 3));
  EXPECT_THAT(out.sent[1], ElementsAre(4, 1, 0, 0, 0)) << "of equals the first";
  for (const auto& sum : out.sums) EXPECT_THAT(sum, ElementsAre(4, -4, 0, 0, 3));
}

TEST(TopKCodec, ANanIsLargerThanAnyNumber) {
  const float nan = std::nanf(""), infinity = HUGE_VALF;
  std::vector<float> in(64, 1);
  in[7] = -nan;
  in[20] = -infinity;
  in[40] = nan;
  for (const int k : {1, 2, 3}) {
    const Outcome out = SumOnce([&] { return TopK(k / 64.0); }, {in});
    EXPECT_TRUE(std::isnan(out.sent[0][7])) << k;
    EXPECT_EQ(std::isnan(out.sent[0][40]), k > 1) << "of equals the first";
    EXPECT_EQ(out.sent[0][20], k > 2 ? -infinity : 0) << k;
    EXPECT_EQ(std::count(out.sent[0].begin(), out.sent[0].end(), 0), 64 - k);
  }
  // Among many: any order of places must come out the same.
  std::vector<float> many(5000, nan);
  for (size_t i = 0; i < many.size(); i += 3) many[i] = static_cast<float>(i);
  const Outcome out = SumOnce([] { return TopK(0.9); }, {many});
  std::vector<float> smallest;
  for (size_t i = 0; i < many.size(); ++i) {
    if (out.sent[0][i] == 0) smallest.push_back(many[i]);
  }
  EXPECT_EQ(smallest.size(), 500u);
  EXPECT_THAT(smallest, Each(::testing::Lt(1500)));
}

TEST(SignCodec, SendsSignsAtTheMeanMagnitude) {
  const Outcome out = SumOnce([] { return collectives::NewSignCodec(); }, {{1, -5, 0}, {1, 1, 1}});
  EXPECT_THAT(out.sent[0], ElementsAre(2, -2, 2));
  for (const auto& sum : out.sums) EXPECT_THAT(sum, ElementsAre(3, -1, 3));
}

TEST(PowerSgdCodec, IsExactForMatricesOfItsRank) {
  // 30 x 30 matrices u v^T with the same v on all ranks: the sum is of rank one, too.
  Random random(3);
  std::vector<float> v(30);
  for (float& x : v) x = static_cast<float>(random.Normal());
  Vectors in(3);
  std::vector<float> expected(900);
  for (auto& matrix : in) {
    for (int i = 0; i < 30; ++i) {
      const auto u = static_cast<float>(random.Normal());
      for (int j = 0; j < 30; ++j) matrix.push_back(u * v[j]);
    }
    for (size_t i = 0; i < 900; ++i) expected[i] += matrix[i];
  }
  const Outcome out = SumOnce([] { return PowerSgd(1); }, in);
  EXPECT_EQ(out.sums[0], out.sums[1]) << "the same bits on all ranks";
  EXPECT_EQ(out.sums[0], out.sums[2]);
  for (size_t i = 0; i < 900; ++i) EXPECT_NEAR(out.sums[0][i], expected[i], 1e-4);
}

TEST(PowerSgdCodec, GetsOverGradientsOfZero) {
  CollectiveWorld world(1);
  const auto codec = PowerSgd(2);
  std::vector<float> zero(100), sum(100), sent(100);
  ASSERT_TRUE(codec->Sum(world.group(0), zero, absl::MakeSpan(sum), absl::MakeSpan(sent)).ok());
  EXPECT_THAT(sum, Each(0));
  const std::vector<float> ones(100, 1);
  ASSERT_TRUE(codec->Sum(world.group(0), ones, absl::MakeSpan(sum), absl::MakeSpan(sent)).ok());
  EXPECT_THAT(sum, Each(FloatNear(1, 1e-5f)));
}

TEST(Codecs, SayWhetherTheirCodesAddUp) {
  EXPECT_FALSE(TopK(0.1)->linear());
  EXPECT_FALSE(collectives::NewSignCodec()->linear());
  EXPECT_TRUE(PowerSgd(1)->linear());
}

TEST(Codecs, RefuseSettingsWithoutMeaning) {
  EXPECT_FALSE(collectives::NewTopKCodec(0).ok());
  EXPECT_FALSE(collectives::NewTopKCodec(1.5).ok());
  EXPECT_FALSE(collectives::NewTopKCodec(std::nan("")).ok());
  EXPECT_FALSE(collectives::NewPowerSgdCodec(0, 1).ok());
}

const std::pair<const char*, Make> kCodecs[] = {
    {"top-k", [] { return TopK(0.05); }},
    {"sign", [] { return collectives::NewSignCodec(); }},
    {"PowerSGD", [] { return PowerSgd(2); }},
};

TEST(Codecs, TheSumIsWhatAllHaveSent) {
  for (const auto& [name, make] : kCodecs) {
    const Outcome out = SumOnce(make, RandomVectors(3, 2500, 4));
    for (size_t i = 0; i < 2500; ++i) {
      ASSERT_NEAR(out.sums[0][i], out.sent[0][i] + out.sent[1][i] + out.sent[2][i], 1e-4) << name;
    }
    EXPECT_EQ(out.sums[0], out.sums[1]) << name;
  }
}

TEST(ErrorFeedback, NothingIsLostOnlyLate) {
  for (const auto& [name, make] : kCodecs) {
    CollectiveWorld world(2);
    const Vectors in = RandomVectors(2, 1500, 5);
    constexpr int kSteps = 8;
    Vectors received(2, std::vector<float>(1500)), kept(2);
    OnEveryRank(world, [&, &codec = make](collectives::Group& g) {
      const auto r = static_cast<size_t>(g.rank());
      collectives::ErrorFeedback feedback(codec());
      for (int step = 0; step < kSteps; ++step) {
        std::vector<float> gradient = in[r];
        ASSERT_TRUE(feedback.Sum(g, absl::MakeSpan(gradient), 1).ok());
        for (size_t i = 0; i < 1500; ++i) received[r][i] += gradient[i];
      }
      kept[r].assign(feedback.residual().begin(), feedback.residual().end());
    });
    for (size_t i = 0; i < 1500; ++i) {
      const float produced = kSteps * (in[0][i] + in[1][i]);
      ASSERT_NEAR(received[0][i] + kept[0][i] + kept[1][i], produced, 2e-3) << name;
    }
  }
}

// What is not sent weighs the same in the mean, however many samples the step has that sends it.
TEST(ErrorFeedback, KeepsPerSample) {
  CollectiveWorld world(1);
  collectives::ErrorFeedback feedback(TopK(0.5));  // one of two
  const auto sum = [&](std::vector<float> gradient, double samples) {
    EXPECT_TRUE(feedback.Sum(world.group(0), absl::MakeSpan(gradient), samples).ok());
    return gradient;
  };
  EXPECT_THAT(sum({3 * 1024, 1024}, 1024), ElementsAre(3 * 1024, 0));
  EXPECT_THAT(feedback.residual(), ElementsAre(0, 1));
  EXPECT_THAT(sum({0, 0}, 0), ElementsAre(0, 0)) << "nobody has samples: nothing is sent";
  EXPECT_THAT(feedback.residual(), ElementsAre(0, 1)) << "or forgotten";
  EXPECT_THAT(sum({2, 0}, 4), ElementsAre(0, 4)) << "one per sample";
  EXPECT_THAT(feedback.residual(), ElementsAre(0.5, 0));
  EXPECT_THAT(sum({0, 0}, 2), ElementsAre(1, 0));
}

// Half the distance to the optimum, squared and weighted, after 1,500 steps of two ranks on a
// quadratic of 400 dimensions that the two see with opposite noise.
double Train(const Make& make, bool feedback) {
  constexpr int kDim = 400, kSteps = 1500;
  constexpr float kRate = 0.003f;
  CollectiveWorld world(2);
  std::vector<double> loss(2);
  OnEveryRank(world, [&](collectives::Group& g) {
    Random random(11);  // both ranks draw the same numbers
    std::vector<float> w(kDim), curvature(kDim), noise(kDim), gradient(kDim), sent(kDim);
    for (float& x : w) x = static_cast<float>(2 * random.Normal());
    for (float& x : curvature) x = 0.2f + 2 * static_cast<float>(random.NextDouble());
    const auto codec = make();
    collectives::ErrorFeedback with(make());
    for (int step = 0; step < kSteps; ++step) {
      for (int i = 0; i < kDim; ++i) {
        const auto jitter = static_cast<float>(random.Normal());
        gradient[i] = curvature[i] * w[i] + (g.rank() == 0 ? jitter : -jitter);
      }
      const absl::Status status = feedback
                                      ? with.Sum(g, absl::MakeSpan(gradient), 1)
                                      : codec->Sum(g, std::vector<float>(gradient),
                                                   absl::MakeSpan(gradient), absl::MakeSpan(sent));
      ASSERT_TRUE(status.ok());
      for (int i = 0; i < kDim; ++i) w[i] -= kRate * gradient[i];
    }
    for (int i = 0; i < kDim; ++i) loss[g.rank()] += 0.5 * curvature[i] * w[i] * w[i];
  });
  EXPECT_EQ(loss[0], loss[1]);
  return loss[0];
}

TEST(ErrorFeedback, ArrivesWhereTheCodecAloneIsStuck) {
  const double top_k = Train([] { return TopK(0.01); }, false);
  const double top_k_feedback = Train([] { return TopK(0.01); }, true);
  EXPECT_GT(top_k, 250) << "a third of where it began";
  EXPECT_LT(top_k_feedback, 1);
  const double sign = Train([] { return collectives::NewSignCodec(); }, false);
  const double sign_feedback = Train([] { return collectives::NewSignCodec(); }, true);
  EXPECT_GT(sign, 0.6);
  EXPECT_LT(sign_feedback, 0.25);
  RecordProperty("top_k", std::to_string(top_k) + " to " + std::to_string(top_k_feedback));
  RecordProperty("sign", std::to_string(sign) + " to " + std::to_string(sign_feedback));
}

// What a codec remembers comes back as bytes: two halves of a run give the bits of the whole.
TEST(ErrorFeedback, GoesOnWithWhatItRemembered) {
  for (const auto& row : kCodecs) {
    const std::string name = row.first;
    const Make& make = row.second;
    const Vectors in = RandomVectors(2, 1500, 5);
    Vectors whole = in, halves = in;
    const auto run = [&](Vectors* out, bool interrupted) {
      CollectiveWorld world(2);
      OnEveryRank(world, [&](collectives::Group& g) {
        const auto r = static_cast<size_t>(g.rank());
        auto feedback = std::make_unique<collectives::ErrorFeedback>(make());
        for (int step = 0; step < 4; ++step) {
          (*out)[r] = in[r];
          ASSERT_TRUE(feedback->Sum(g, absl::MakeSpan((*out)[r]), 3).ok());
          if (!interrupted || step != 1) continue;
          const std::string state = feedback->State();
          EXPECT_FALSE(state.empty());
          feedback = std::make_unique<collectives::ErrorFeedback>(make());
          ASSERT_TRUE(feedback->SetState(state).ok());
          collectives::ErrorFeedback other(make());
          EXPECT_FALSE(other.SetState(state.substr(0, state.size() - 1)).ok()) << name;
        }
      });
    };
    run(&whole, false);
    run(&halves, true);
    EXPECT_EQ(whole, halves) << name;
  }
}

}  // namespace
}  // namespace tandem
