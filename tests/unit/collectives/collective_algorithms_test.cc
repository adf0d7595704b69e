// Every algorithm of every collective, proven on paper: for p = 1 ... 64, for counts around p, with
// uneven counts, for every root, in place and out of place, whole and in segments.
#include "collectives/schedules/algorithms.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "collectives/schedules/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"
#include "tests/unit/collectives/proof/checker.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr int kMaxRanks = 64;

// For large p a sample, for small p everything.
constexpr int kSmall = 17;

// Sanitizers slow the proof tenfold: then a sample of the larger p.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kStride = 15;
#else
constexpr int kStride = 1;
#endif
std::vector<int> RankCounts() {
  std::vector<int> ranks;
  for (int p = 1; p <= kMaxRanks; p += p < kSmall ? 1 : kStride) ranks.push_back(p);
  return ranks;
}

std::string Describe(const collectives::CollectiveShape& shape) {
  return absl::StrCat(
      "p=", shape.ranks, " root=", shape.root, " count=", shape.count, " counts=[",
      absl::StrJoin(shape.counts, " "), "] segment=", shape.segment,
      shape.in_place ? " in place" : "", " hosts=[", absl::StrJoin(shape.host_of_rank, " "),
      "] inner ", collectives::AlgorithmName(shape.inner.value_or(collectives::Algorithm::kDirect)),
      " outer ", collectives::AlgorithmName(shape.outer.value_or(collectives::Algorithm::kRing)));
}

// Whether `count` is that of a rank's block, not that of the vector.
bool InBlocks(collectives::Primitive primitive) {
  return primitive == collectives::Primitive::kReduceScatter ||
         primitive == collectives::Primitive::kAllGather ||
         primitive == collectives::Primitive::kGather ||
         primitive == collectives::Primitive::kScatter ||
         primitive == collectives::Primitive::kAllToAll;
}

std::set<int64_t> Counts(collectives::Primitive primitive, int p) {
  if (primitive == collectives::Primitive::kBarrier) return {0};
  if (InBlocks(primitive)) return {0, 1, 7};
  if (p <= kSmall) return {0, 1, p - 1, p, p + 1, 1000};
  return {p - 1, 3 * p + 1};
}

// Whole messages, and cuts into few and into more parts.
std::set<int64_t> Segments(collectives::Primitive primitive, collectives::Algorithm algorithm,
                           const collectives::CollectiveShape& shape) {
  if (!collectives::CutsMessages(primitive, algorithm)) return {0};
  if (InBlocks(primitive)) return {0, 3};
  std::set<int64_t> segments = {0, std::max<int64_t>(1, shape.count / 5)};
  const bool in_blocks =
      algorithm == collectives::Algorithm::kRing || algorithm == collectives::Algorithm::kDirect;
  if ((in_blocks && !collectives::HasRoot(primitive)) || shape.ranks <= kSmall) {
    segments.insert(std::max<int64_t>(1, shape.count / (3 * shape.ranks)));
  }
  return segments;
}

std::set<int> Roots(collectives::Primitive primitive, int p) {
  if (!collectives::HasRoot(primitive)) return {0};
  std::set<int> roots;
  const int stride = p <= 8 ? 1 : p <= kSmall ? 5 : 31;
  for (int root = 0; root < p; root += stride) roots.insert(root);
  roots.insert(p - 1);
  return roots;
}

// Nothing, one, many, and all of it on one rank.
std::vector<std::vector<int64_t>> UnevenCounts(int p, Random* random) {
  std::vector<int64_t> mixed, one(static_cast<size_t>(p), 0);
  for (int r = 0; r < p; ++r) mixed.push_back(static_cast<int64_t>(random->Uniform(7)) % 5);
  one[static_cast<size_t>(p / 2)] = 9;
  return {mixed, one};
}

// Checks a shape in place and out of place, whole and segmented; the number of proofs.
int Prove(collectives::Primitive primitive, collectives::Algorithm algorithm,
          collectives::CollectiveShape shape,
          const std::vector<std::vector<int64_t>>& counts_by_rank = {}) {
  int proofs = 0;
  for (const bool in_place : {false, true}) {
    for (const int64_t segment : Segments(primitive, algorithm, shape)) {
      shape.in_place = in_place;
      shape.segment = segment;
      const absl::Status status = CheckAlgorithm(primitive, algorithm, shape, counts_by_rank);
      EXPECT_EQ(status, absl::OkStatus())
          << collectives::PrimitiveName(primitive) << " by "
          << collectives::AlgorithmName(algorithm) << " " << Describe(shape);
      ++proofs;
      if (!status.ok()) return proofs;
    }
  }
  return proofs;
}

class EveryAlgorithm : public ::testing::TestWithParam<collectives::Primitive> {};

TEST_P(EveryAlgorithm, IsProvenForEverySize) {
  const collectives::Primitive primitive = GetParam();
  for (const collectives::Algorithm algorithm : collectives::AlgorithmsFor(primitive)) {
    if (algorithm == collectives::Algorithm::kHierarchical) continue;  // HierarchicalTest
    int proofs = 0;
    for (const int p : RankCounts()) {
      if (HasFailure()) break;
      for (const int root : Roots(primitive, p)) {
        for (const int64_t count : Counts(primitive, p)) {
          collectives::CollectiveShape shape;
          shape.ranks = p;
          shape.root = root;
          shape.count = count;
          proofs += Prove(primitive, algorithm, shape);
        }
      }
    }
    std::printf("%-14s by %-18s %zu values of p = 1 ... %d: %d proofs\n",
                std::string(collectives::PrimitiveName(primitive)).c_str(),
                std::string(collectives::AlgorithmName(algorithm)).c_str(), RankCounts().size(),
                kMaxRanks, proofs);
    std::fflush(stdout);
  }
}

std::string NameOf(const ::testing::TestParamInfo<collectives::Primitive>& info) {
  return std::string(collectives::PrimitiveName(info.param));
}
INSTANTIATE_TEST_SUITE_P(All, EveryAlgorithm, ::testing::ValuesIn(collectives::kPrimitives),
                         NameOf);

class UnevenBlocks : public ::testing::TestWithParam<collectives::Primitive> {};

TEST_P(UnevenBlocks, AreProvenForEverySize) {
  const collectives::Primitive primitive = GetParam();
  SCOPED_TRACE(absl::StrCat("rerun with --seed=", TestSeed()));
  Random random(TestSeed());
  for (const collectives::Algorithm algorithm : collectives::AlgorithmsFor(primitive)) {
    for (const int p : RankCounts()) {
      if (HasFailure()) break;
      for (const int root : Roots(primitive, p)) {
        for (const std::vector<int64_t>& counts : UnevenCounts(p, &random)) {
          collectives::CollectiveShape shape;
          shape.ranks = p;
          shape.root = root;
          shape.counts = counts;
          Prove(primitive, algorithm, shape);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, UnevenBlocks,
                         ::testing::Values(collectives::Primitive::kReduceScatter,
                                           collectives::Primitive::kAllGather,
                                           collectives::Primitive::kGather,
                                           collectives::Primitive::kScatter),
                         NameOf);

TEST(AllToAllTest, IsProvenForACountOfEachPair) {
  SCOPED_TRACE(absl::StrCat("rerun with --seed=", TestSeed()));
  Random random(TestSeed());
  for (const int p : RankCounts()) {
    if (HasFailure()) break;
    std::vector<std::vector<int64_t>> counts_by_rank(static_cast<size_t>(p));
    for (std::vector<int64_t>& row : counts_by_rank) {
      for (int r = 0; r < p; ++r) row.push_back(static_cast<int64_t>(random.Uniform(6)) % 4);
    }
    collectives::CollectiveShape shape;
    shape.ranks = p;
    Prove(collectives::Primitive::kAllToAll, collectives::Algorithm::kPairwise, shape,
          counts_by_rank);
  }
}

TEST(HierarchicalTest, IsProvenOverAnyTwoAlgorithms) {
  int pairs = 0;
  for (const collectives::Algorithm inner : collectives::Algorithms()) {
    for (const collectives::Algorithm outer : collectives::Algorithms()) {
      collectives::CollectiveShape shape;
      shape.inner = inner;
      shape.outer = outer;
      if (!collectives::MakeSchedule(collectives::Primitive::kAllReduce,
                                     collectives::Algorithm::kHierarchical, shape)
               .ok())
        continue;
      ++pairs;
      for (const auto& hosts :
           std::vector<std::vector<int>>{{},
                                         {0},
                                         {0, 0},
                                         {0, 1},
                                         {0, 0, 1, 1},
                                         {0, 1, 0, 1, 0, 1},
                                         {5, 5, 2, 2, 2, 2, 2, 5},
                                         {0, 1, 1, 1, 2, 2},
                                         {0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3}}) {
        shape.ranks = hosts.empty() ? 3 : static_cast<int>(hosts.size());
        shape.host_of_rank = hosts;
        for (const int64_t count : {0, 1, 7, 50}) {
          shape.count = count;
          Prove(collectives::Primitive::kAllReduce, collectives::Algorithm::kHierarchical, shape);
        }
      }
    }
  }
  EXPECT_EQ(pairs, 5 * 9);
}

TEST(HierarchicalTest, IsProvenForEverySizeAndPlacement) {
  SCOPED_TRACE(absl::StrCat("rerun with --seed=", TestSeed()));
  Random random(TestSeed());
  for (const int p : RankCounts()) {
    const int hosts = 1 + static_cast<int>(random.Uniform(static_cast<uint64_t>(std::min(p, 9))));
    collectives::CollectiveShape shape;
    shape.ranks = p;
    shape.count = 2 * p + 3;
    for (int r = 0; r < p; ++r) {
      shape.host_of_rank.push_back(
          r < hosts ? r : static_cast<int>(random.Uniform(static_cast<uint64_t>(hosts))));
    }
    for (const collectives::Algorithm inner :
         {collectives::Algorithm::kDirect, collectives::Algorithm::kHalvingDoubling,
          collectives::Algorithm::kTree}) {
      shape.inner = inner;
      Prove(collectives::Primitive::kAllReduce, collectives::Algorithm::kHierarchical, shape);
    }
  }
}

class TwoLevels : public ::testing::TestWithParam<collectives::Primitive> {};

TEST_P(TwoLevels, AreProvenOverAnyTwoAlgorithms) {
  const collectives::Primitive primitive = GetParam();
  int pairs = 0;
  for (const collectives::Algorithm inner : collectives::Algorithms()) {
    for (const collectives::Algorithm outer : collectives::Algorithms()) {
      collectives::CollectiveShape shape;
      shape.inner = inner;
      shape.outer = outer;
      if (!collectives::MakeSchedule(primitive, collectives::Algorithm::kHierarchical, shape).ok())
        continue;
      ++pairs;
      for (const auto& hosts : std::vector<std::vector<int>>{
               {0, 0}, {0, 1}, {0, 1, 0, 1, 0, 1}, {5, 5, 2, 2, 2, 2, 2, 5}, {0, 1, 1, 1, 2, 2}}) {
        shape.ranks = static_cast<int>(hosts.size());
        shape.host_of_rank = hosts;
        for (shape.root = 0; shape.root < (collectives::HasRoot(primitive) ? shape.ranks : 1);
             ++shape.root) {
          for (const int64_t count : {0, 1, 7}) {
            shape.count = count;
            Prove(primitive, collectives::Algorithm::kHierarchical, shape);
          }
        }
      }
    }
  }
  const auto algorithms = static_cast<int>(collectives::AlgorithmsFor(primitive).size()) - 1;
  EXPECT_EQ(pairs, algorithms * algorithms);
}

TEST_P(TwoLevels, AreProvenForEverySizeAndPlacement) {
  const collectives::Primitive primitive = GetParam();
  SCOPED_TRACE(absl::StrCat("rerun with --seed=", TestSeed()));
  Random random(TestSeed());
  for (const int p : RankCounts()) {
    const int hosts = 1 + static_cast<int>(random.Uniform(static_cast<uint64_t>(std::min(p, 9))));
    collectives::CollectiveShape shape;
    shape.ranks = p;
    shape.count = 5;
    for (int r = 0; r < p; ++r) {
      shape.host_of_rank.push_back(
          r < hosts ? r : static_cast<int>(random.Uniform(static_cast<uint64_t>(hosts))));
    }
    shape.root = collectives::HasRoot(primitive)
                     ? static_cast<int>(random.Uniform(static_cast<uint64_t>(p)))
                     : 0;
    Prove(primitive, collectives::Algorithm::kHierarchical, shape);
    if (collectives::HasRoot(primitive)) continue;
    for (const std::vector<int64_t>& counts : UnevenCounts(p, &random)) {
      shape.counts = counts;
      Prove(primitive, collectives::Algorithm::kHierarchical, shape);
    }
    shape.counts.clear();
  }
}

INSTANTIATE_TEST_SUITE_P(All, TwoLevels,
                         ::testing::Values(collectives::Primitive::kReduce,
                                           collectives::Primitive::kBroadcast,
                                           collectives::Primitive::kReduceScatter,
                                           collectives::Primitive::kAllGather),
                         NameOf);

// Elements that are treated alike are one to the checker.
TEST(CheckerTest, TheProofCostsTheSameForHugeVectors) {
  collectives::CollectiveShape shape;
  shape.ranks = 12;
  shape.count = int64_t{10'000'000'019};
  for (const collectives::Algorithm algorithm :
       collectives::AlgorithmsFor(collectives::Primitive::kAllReduce)) {
    EXPECT_EQ(CheckAlgorithm(collectives::Primitive::kAllReduce, algorithm, shape),
              absl::OkStatus());
  }
}

// ---- Shapes ----

std::string Refusal(collectives::Primitive primitive, collectives::Algorithm algorithm,
                    const collectives::CollectiveShape& shape,
                    absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const absl::Status status = collectives::MakeSchedule(primitive, algorithm, shape).status();
  EXPECT_EQ(status.code(), code) << status;
  return std::string(status.message());
}

TEST(ShapeTest, MalformedShapesAreRefused) {
  const auto refuse = [](void (*breakage)(collectives::CollectiveShape&)) {
    collectives::CollectiveShape shape;
    shape.ranks = 3;
    shape.count = 5;
    breakage(shape);
    return Refusal(collectives::Primitive::kAllGather, collectives::Algorithm::kRing, shape);
  };
  EXPECT_EQ(refuse([](auto& s) { s.rank = 3; }), "allgather of 3 ranks: rank 3 of 3");
  EXPECT_EQ(refuse([](auto& s) { s.root = -1; }), "allgather of 3 ranks: root -1");
  EXPECT_EQ(refuse([](auto& s) { s.count = -2; }), "allgather of 3 ranks: count -2");
  EXPECT_EQ(refuse([](auto& s) { s.count = int64_t{1} << 62; }),
            "allgather of 3 ranks: count 4611686018427387904");
  EXPECT_EQ(refuse([](auto& s) {
              s.counts = {1, 2};
            }),
            "allgather of 3 ranks: 2 counts for 3 ranks");
  EXPECT_EQ(refuse([](auto& s) {
              s.counts = {1, -2, 1};
            }),
            "allgather of 3 ranks: -2 among the counts");
  EXPECT_EQ(refuse([](auto& s) { s.segment = -1; }),
            "allgather of 3 ranks: segments of -1 elements");
  EXPECT_EQ(refuse([](auto& s) {
              s.count = 2'000'000;
              s.segment = 1;
            }),
            "allgather of 3 ranks: segments of 1 elements");
  EXPECT_EQ(refuse([](auto& s) { s.host_of_rank = {0}; }),
            "allgather of 3 ranks: hosts are given for 1 ranks");
  EXPECT_THAT(refuse([](auto& s) {
                s.send_counts = {1, 2, 3};
                s.receive_counts = {2, 2, 3};
              }),
              HasSubstr("a rank sends itself another number of elements"));
}

TEST(ShapeTest, WhatAnAlgorithmDoesNotDoIsSaid) {
  collectives::CollectiveShape shape;
  shape.ranks = 2;
  shape.send_counts = shape.receive_counts = {1, 2};
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  EXPECT_EQ(Refusal(collectives::Primitive::kBarrier, collectives::Algorithm::kRing, shape,
                    unimplemented),
            "algorithm ring does not support barrier");
  EXPECT_THAT(Refusal(collectives::Primitive::kAllToAll, collectives::Algorithm::kBruck, shape,
                      unimplemented),
              HasSubstr("use pairwise"));
  shape.inner = collectives::Algorithm::kSwing;
  EXPECT_THAT(Refusal(collectives::Primitive::kAllReduce, collectives::Algorithm::kHierarchical,
                      shape, unimplemented),
              HasSubstr("swing within hosts; use ring, direct"));
  shape.inner = collectives::Algorithm::kRing;
  shape.outer = collectives::Algorithm::kHierarchical;
  EXPECT_THAT(Refusal(collectives::Primitive::kAllReduce, collectives::Algorithm::kHierarchical,
                      shape, unimplemented),
              HasSubstr("hierarchical across hosts"));
}

TEST(NamesTest, AreReadAsTheyAreWritten) {
  for (const collectives::Primitive primitive : collectives::kPrimitives) {
    EXPECT_EQ(*collectives::ParsePrimitive(collectives::PrimitiveName(primitive)), primitive);
    EXPECT_FALSE(collectives::AlgorithmsFor(primitive).empty())
        << collectives::PrimitiveName(primitive);
  }
  for (const collectives::Algorithm algorithm : collectives::Algorithms()) {
    EXPECT_EQ(*collectives::ParseAlgorithm(collectives::AlgorithmName(algorithm)), algorithm);
  }
  EXPECT_THAT(std::string(collectives::ParsePrimitive("ring").status().message()),
              HasSubstr("unknown collective 'ring'; expected one of allreduce, "));
  EXPECT_THAT(std::string(collectives::ParseAlgorithm("rings").status().message()),
              HasSubstr("unknown algorithm 'rings'; expected one of ring, direct, "));
}

TEST(BlocksTest, CutTheVectorIntoNearEqualPiecesWithoutGaps) {
  for (const int p : {1, 2, 3, 7}) {
    for (const int64_t count : {0, 1, 2, 6, 7, 8, 100}) {
      const collectives::Blocks block(count, p);
      int64_t at = 0;
      for (int i = 0; i < p; ++i) {
        EXPECT_EQ(block(i).begin, at);
        EXPECT_EQ(block(i).count, count / p + (i < count % p ? 1 : 0));
        EXPECT_EQ(block(i), block(i + p));
        EXPECT_EQ(block(i), block(i - p)) << "also negative indices are taken mod p";
        at = block(i).end();
      }
      EXPECT_EQ(at, count);
    }
  }
}

// Out of place nothing is copied by the algorithms for long vectors but what the caller asks for:
// its own contribution to where the result is.
TEST(CopiesTest, ThereAreNoNeedlessOnes) {
  collectives::CollectiveShape shape;
  shape.ranks = 8;
  shape.count = 64;
  shape.segment = 4;
  const auto copied = [&](collectives::Primitive primitive, collectives::Algorithm algorithm) {
    int64_t elements = 0;
    const auto schedules = collectives::MakeSchedules(primitive, algorithm, shape);
    for (const collectives::Schedule& s : *schedules) {
      for (const collectives::Step& step : s.steps) {
        for (const collectives::Op& op : step.ops) {
          if (op.kind == collectives::OpKind::kCopy) elements += op.piece.count;
        }
      }
    }
    return elements;
  };
  for (const bool in_place : {false, true}) {
    shape.in_place = in_place;
    for (const collectives::Algorithm algorithm :
         collectives::AlgorithmsFor(collectives::Primitive::kAllReduce)) {
      EXPECT_EQ(copied(collectives::Primitive::kAllReduce, algorithm), 0)
          << collectives::AlgorithmName(algorithm);
    }
    for (const collectives::Algorithm algorithm :
         collectives::AlgorithmsFor(collectives::Primitive::kReduce)) {
      EXPECT_EQ(copied(collectives::Primitive::kReduce, algorithm), 0)
          << collectives::AlgorithmName(algorithm);
    }
    for (const collectives::Algorithm algorithm :
         collectives::AlgorithmsFor(collectives::Primitive::kReduceScatter)) {
      EXPECT_EQ(copied(collectives::Primitive::kReduceScatter, algorithm), 0)
          << collectives::AlgorithmName(algorithm);
    }
    for (const collectives::Algorithm algorithm :
         collectives::AlgorithmsFor(collectives::Primitive::kBroadcast)) {
      EXPECT_EQ(copied(collectives::Primitive::kBroadcast, algorithm), in_place ? 0 : 64)
          << collectives::AlgorithmName(algorithm);
    }
    for (const collectives::Algorithm algorithm :
         {collectives::Algorithm::kRing, collectives::Algorithm::kDirect,
          collectives::Algorithm::kRecursiveDoubling}) {
      EXPECT_EQ(copied(collectives::Primitive::kAllGather, algorithm), in_place ? 0 : 8 * 64)
          << collectives::AlgorithmName(algorithm);
    }
  }
}

}  // namespace
}  // namespace tandem
