// How much ranks send, where it is known by heart; collective_algorithms_test compares all formulas
// with schedules.
#include "collectives/schedules/algorithms.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

collectives::CollectiveShape ShapeOf(int ranks, int64_t count) {
  collectives::CollectiveShape shape;
  shape.ranks = ranks;
  shape.count = count;
  return shape;
}

TEST(TrafficTest, OfRingDirectAndHalvingDoublingIsTwoPMinusOneOverP) {
  collectives::CollectiveShape shape = ShapeOf(8, 8000);
  shape.rank = 3;
  for (const collectives::Algorithm algorithm :
       {collectives::Algorithm::kRing, collectives::Algorithm::kDirect}) {
    EXPECT_EQ(collectives::AlgorithmTraffic(collectives::Primitive::kAllReduce, algorithm, shape),
              (collectives::Traffic{14, 14000}));
  }
  for (const collectives::Algorithm algorithm :
       {collectives::Algorithm::kHalvingDoubling, collectives::Algorithm::kSwing}) {
    EXPECT_EQ(collectives::AlgorithmTraffic(collectives::Primitive::kAllReduce, algorithm, shape),
              (collectives::Traffic{6, 14000}));
  }
  EXPECT_EQ(collectives::AlgorithmTraffic(collectives::Primitive::kAllReduce,
                                          collectives::Algorithm::kRing, ShapeOf(1, 8000)),
            collectives::Traffic{});
}

TEST(TrafficTest, NobodySendsMoreThanTwiceTheVectorInADoubleTree) {
  for (int p = 2; p <= 33; ++p) {
    collectives::CollectiveShape shape = ShapeOf(p, 1000);
    for (shape.rank = 0; shape.rank < p; ++shape.rank) {
      EXPECT_LE(collectives::AlgorithmTraffic(collectives::Primitive::kAllReduce,
                                              collectives::Algorithm::kDoubleTree, shape)
                    .elements,
                2000);
    }
  }
}

TEST(TrafficTest, NaiveSendsEverythingToRank0AndBack) {
  collectives::CollectiveShape shape = ShapeOf(8, 8000);
  const auto sent = [&](int rank) {
    shape.rank = rank;
    return collectives::AlgorithmTraffic(collectives::Primitive::kAllReduce,
                                         collectives::Algorithm::kNaive, shape);
  };
  EXPECT_EQ(sent(0), (collectives::Traffic{7, 56000}));
  for (int r = 1; r < 8; ++r) EXPECT_EQ(sent(r), (collectives::Traffic{1, 8000}));
}

TEST(TrafficTest, BusFactorFollowsNcclTests) {
  EXPECT_EQ(collectives::BusFactor(collectives::Primitive::kAllReduce, 1), 0);
  EXPECT_EQ(collectives::BusFactor(collectives::Primitive::kAllReduce, 2), 1);
  EXPECT_EQ(collectives::BusFactor(collectives::Primitive::kAllReduce, 4), 1.5);
  EXPECT_EQ(collectives::BusFactor(collectives::Primitive::kAllGather, 4), .75);
  EXPECT_EQ(collectives::BusFactor(collectives::Primitive::kReduceScatter, 4), .75);
  EXPECT_EQ(collectives::BusFactor(collectives::Primitive::kAllToAll, 4), .75);
  EXPECT_EQ(collectives::BusFactor(collectives::Primitive::kBroadcast, 4), 1);
  EXPECT_EQ(collectives::BusFactor(collectives::Primitive::kReduce, 4), 1);
  EXPECT_EQ(collectives::BusFactor(collectives::Primitive::kBarrier, 4), 0);
}

}  // namespace
}  // namespace tandem
