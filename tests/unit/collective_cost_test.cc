// What collectives cost: the closed formulas against the schedules played in time.
#include "collectives/proof/cost.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/schedules/algorithms.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

constexpr CostModel kModel{.alpha = 1e-5, .beta = 1e-9, .gamma = 3e-10};
constexpr int kBytes = 4;

CollectiveShape ShapeOf(int ranks, int64_t count, int64_t segment = 0) {
  CollectiveShape shape;
  shape.ranks = ranks;
  shape.count = count;
  shape.segment = segment;
  return shape;
}

double Played(Primitive primitive, Algorithm algorithm, const CollectiveShape& shape) {
  const auto seconds = ScheduleSeconds(*MakeSchedules(primitive, algorithm, shape), kBytes, kModel);
  EXPECT_EQ(seconds.status(), absl::OkStatus());
  return *seconds;
}

double Predicted(Primitive primitive, Algorithm algorithm, const CollectiveShape& shape) {
  return PredictSeconds(primitive, algorithm, shape, kBytes, kModel);
}

TEST(TrafficTest, OfRingDirectAndHalvingDoublingIsTwoPMinusOneOverP) {
  CollectiveShape shape = ShapeOf(8, 8000);
  shape.rank = 3;
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
    EXPECT_EQ(AlgorithmTraffic(Primitive::kAllReduce, algorithm, shape), (Traffic{14, 14000}));
  }
  for (const Algorithm algorithm : {Algorithm::kHalvingDoubling, Algorithm::kSwing}) {
    EXPECT_EQ(AlgorithmTraffic(Primitive::kAllReduce, algorithm, shape), (Traffic{6, 14000}));
  }
  EXPECT_EQ(AlgorithmTraffic(Primitive::kAllReduce, Algorithm::kRing, ShapeOf(1, 8000)), Traffic{});
}

TEST(TrafficTest, NobodySendsMoreThanTwiceTheVectorInADoubleTree) {
  for (int p = 2; p <= 33; ++p) {
    CollectiveShape shape = ShapeOf(p, 1000);
    for (shape.rank = 0; shape.rank < p; ++shape.rank) {
      EXPECT_LE(AlgorithmTraffic(Primitive::kAllReduce, Algorithm::kDoubleTree, shape).elements,
                2000);
    }
  }
}

// Where all ranks send all the time, the formula is exact.
TEST(CostTest, PlayingTakesExactlyTheTimeOfTheFormulaWhereNothingOverlaps) {
  for (int p = 2; p <= 16; ++p) {
    const CollectiveShape shape = ShapeOf(p, p * 1000);
    const auto same = [&](Primitive primitive, Algorithm algorithm) {
      EXPECT_NEAR(Played(primitive, algorithm, shape), Predicted(primitive, algorithm, shape),
                  1e-12)
          << PrimitiveName(primitive) << " by " << AlgorithmName(algorithm) << " p=" << p;
    };
    same(Primitive::kAllReduce, Algorithm::kRing);
    same(Primitive::kReduceScatter, Algorithm::kRing);
    same(Primitive::kReduce, Algorithm::kChain);
    same(Primitive::kBarrier, Algorithm::kDissemination);
    if ((p & (p - 1)) != 0) continue;
    same(Primitive::kAllReduce, Algorithm::kRecursiveDoubling);
    same(Primitive::kAllReduce, Algorithm::kHalvingDoubling);
    same(Primitive::kAllReduce, Algorithm::kSwing);
    same(Primitive::kReduceScatter, Algorithm::kHalvingDoubling);
    same(Primitive::kReduce, Algorithm::kTree);
  }
}

// Every formula is that of a schedule: the played time is never far below or above.
TEST(CostTest, EveryFormulaIsNearTheTimeOfItsSchedule) {
  for (const Primitive primitive : kPrimitives) {
    for (const Algorithm algorithm : AlgorithmsFor(primitive)) {
      for (const int p : {2, 3, 4, 6, 8, 13, 16}) {
        for (const int64_t count : {0, 1, 100'000}) {
          for (const int64_t segment : {int64_t{0}, count / 20}) {
            const CollectiveShape shape = ShapeOf(p, count, segment);
            const double played = Played(primitive, algorithm, shape);
            const double predicted = Predicted(primitive, algorithm, shape);
            EXPECT_LE(played, predicted * 1.35)
                << PrimitiveName(primitive) << " by " << AlgorithmName(algorithm) << " p=" << p
                << " count=" << count << " segment=" << segment;
            EXPECT_GE(played, predicted * .4)
                << PrimitiveName(primitive) << " by " << AlgorithmName(algorithm) << " p=" << p
                << " count=" << count << " segment=" << segment;
          }
        }
      }
    }
  }
}

TEST(CostTest, LatencyDecidesForShortVectorsAndBandwidthForLongOnes) {
  const auto fastest = [](int64_t count) {
    Algorithm best = Algorithm::kRing;
    for (const Algorithm algorithm : AlgorithmsFor(Primitive::kAllReduce)) {
      const CollectiveShape shape = ShapeOf(16, count);
      if (Predicted(Primitive::kAllReduce, algorithm, shape) <
          Predicted(Primitive::kAllReduce, best, shape)) {
        best = algorithm;
      }
    }
    return best;
  };
  EXPECT_EQ(fastest(1), Algorithm::kRecursiveDoubling);
  EXPECT_EQ(fastest(10'000'000), Algorithm::kHalvingDoubling);
}

TEST(CostTest, SegmentsShortenAChain) {
  const auto seconds = [](int64_t segment) {
    return Predicted(Primitive::kBroadcast, Algorithm::kChain, ShapeOf(8, 1'000'000, segment));
  };
  EXPECT_NEAR(seconds(0), 7 * (kModel.alpha + 4e6 * kModel.beta), 1e-12);
  EXPECT_NEAR(seconds(50'000), (20 + 8 - 2) * (kModel.alpha + 2e5 * kModel.beta), 1e-12);
}

TEST(CostTest, AcrossHostsAHierarchySendsLess) {
  CollectiveShape shape = ShapeOf(16, 1'000'000);
  for (int r = 0; r < 16; ++r) shape.host_of_rank.push_back(r / 8);
  shape.inner = shape.outer = Algorithm::kRing;
  const CostModel within{1e-6, 1e-11, 1e-11}, across{1e-4, 1e-8, 1e-11};
  const double two_levels = PredictSeconds(Primitive::kAllReduce, Algorithm::kHierarchical, shape,
                                           kBytes, within, across);
  // An eighth of the vector crosses, and comes back.
  EXPECT_NEAR(two_levels, 2 * across.alpha + 4e6 / 8 * across.beta, .2 * two_levels);
  EXPECT_LT(two_levels,
            PredictSeconds(Primitive::kAllReduce, Algorithm::kRing, shape, kBytes, across) / 5);
}

TEST(CostTest, BusFactorFollowsNcclTests) {
  EXPECT_EQ(BusFactor(Primitive::kAllReduce, 1), 0);
  EXPECT_EQ(BusFactor(Primitive::kAllReduce, 2), 1);
  EXPECT_EQ(BusFactor(Primitive::kAllReduce, 4), 1.5);
  EXPECT_EQ(BusFactor(Primitive::kAllGather, 4), .75);
  EXPECT_EQ(BusFactor(Primitive::kReduceScatter, 4), .75);
  EXPECT_EQ(BusFactor(Primitive::kAllToAll, 4), .75);
  EXPECT_EQ(BusFactor(Primitive::kBroadcast, 4), 1);
  EXPECT_EQ(BusFactor(Primitive::kReduce, 4), 1);
  EXPECT_EQ(BusFactor(Primitive::kBarrier, 4), 0);
}

}  // namespace
}  // namespace tandem
