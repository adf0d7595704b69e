// How much ranks send, where it is known by heart; collective_algorithms_test compares all formulas
// with schedules.
#include "collectives/schedules/algorithms.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

CollectiveShape ShapeOf(int ranks, int64_t count) {
  CollectiveShape shape;
  shape.ranks = ranks;
  shape.count = count;
  return shape;
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

TEST(TrafficTest, BusFactorFollowsNcclTests) {
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
