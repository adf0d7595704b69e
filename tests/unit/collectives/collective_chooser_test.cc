// The chooser: rules are read, written and refused with a place and a reason; costs are played to
// times that can be checked by hand; rules made from costs say what the costs say; and calibration
// gives all ranks the same text.
#include "collectives/tuning/chooser.h"

#include <algorithm>
#include <string>
#include <vector>

#include "collectives/tuning/engine_cost.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/collectives/memory_links.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(absl::string_view rules) {
  return std::string(collectives::ChooserRules::Parse(rules).status().message());
}

TEST(ChooserRulesTest, CasesBySize) {
  const auto rules = collectives::ChooserRules::Parse(
      " allreduce : <=32K=one_shot, <=4M=direct/128K, ring/256K ; broadcast:tree;");
  ASSERT_TRUE(rules.ok()) << rules.status();
  const auto find = [&](int64_t bytes) {
    return *rules->Find(collectives::Primitive::kAllReduce, bytes);
  };
  EXPECT_EQ(find(0).algorithm, collectives::Algorithm::kOneShot);
  EXPECT_EQ(find(32 << 10).algorithm, collectives::Algorithm::kOneShot);
  EXPECT_EQ(find((32 << 10) + 1).algorithm, collectives::Algorithm::kDirect);
  EXPECT_EQ(find((32 << 10) + 1).segment_bytes, 128 << 10);
  EXPECT_EQ(find(int64_t{1} << 40).algorithm, collectives::Algorithm::kRing);
  EXPECT_EQ(rules->Find(collectives::Primitive::kBroadcast, 7)->algorithm,
            collectives::Algorithm::kTree);
  EXPECT_EQ(rules->Find(collectives::Primitive::kReduce, 7), nullptr);
  EXPECT_EQ(rules->ToString(),
            "allreduce:<=32K=one_shot,<=4M=direct/128K,ring/256K; broadcast:tree");
}

TEST(ChooserRulesTest, ErrorsSayWhereAndWhat) {
  EXPECT_THAT(ErrorOf("allgadder:ring"),
              HasSubstr("at 0 ('allgadder'): expected a primitive: allreduce,"));
  EXPECT_THAT(ErrorOf("allreduce ring"), HasSubstr("at 10 ('r'): expected ':'"));
  EXPECT_THAT(ErrorOf("allreduce:magic"),
              HasSubstr("at 10 ('magic'): expected an algorithm of allreduce"));
  EXPECT_THAT(ErrorOf("allreduce:pairwise"), HasSubstr("expected an algorithm of allreduce: ring"));
  EXPECT_THAT(ErrorOf("allreduce:<=12Q=ring,ring"), HasSubstr("at 12 ('12Q'): expected a size"));
  EXPECT_THAT(ErrorOf("allreduce:<=4K=ring"),
              HasSubstr("(the end): expected ',' and a case without"));
  EXPECT_THAT(ErrorOf("allreduce:<=4K=ring,<=4K=ring,ring"), HasSubstr("a size above that"));
  EXPECT_THAT(ErrorOf("allreduce:ring,direct"), HasSubstr("no case after the one without"));
  EXPECT_THAT(ErrorOf("allreduce:ring;allreduce:ring"), HasSubstr("one rule for each primitive"));
  EXPECT_THAT(ErrorOf("allreduce:ring/"), HasSubstr("(the end): expected a size"));
}

TEST(ChooserRulesTest, TheGroupsChooserFollowsThem) {
  const auto rules = std::make_shared<collectives::ChooserRules>();
  const collectives::Chooser chooser = collectives::ChooserFrom(rules, 4, false);
  EXPECT_EQ(chooser(collectives::Primitive::kAllReduce, 4).algorithm,
            collectives::DefaultChooser(4, false)(collectives::Primitive::kAllReduce, 4).algorithm);
  *rules = *collectives::ChooserRules::Parse("allreduce:ring/64K");
  EXPECT_EQ(chooser(collectives::Primitive::kAllReduce, 4).algorithm,
            collectives::Algorithm::kRing);
  EXPECT_EQ(chooser(collectives::Primitive::kAllReduce, 4).segment_bytes, 64 << 10);
}

collectives::Calibration SomeCosts(double message, double byte) {
  collectives::Calibration c;
  c.link = "test";
  c.ranks = 2;
  c.cores = 64;
  c.costs.message = message;
  c.costs.latency = 3 * message;
  c.costs.bytes = {{1024, byte, byte, byte, byte}};
  c.segment_bytes = 1 << 20;
  return c;
}

// One message each way, then a fold of it: sent after 1 + 100 * .01, visible 3 later, folded in
// 1 + 100 * .01 more (bytes; microseconds).
TEST(EngineCostTest, OneShotByHand) {
  const collectives::Calibration c = SomeCosts(1e-6, .01e-6);
  collectives::CollectiveShape shape;
  shape.ranks = 2;
  const auto seconds = collectives::PredictEngineSeconds(collectives::Primitive::kAllReduce,
                                                         collectives::Algorithm::kOneShot, shape,
                                                         100, 0, c.costs, 64);
  ASSERT_TRUE(seconds.ok()) << seconds.status();
  // The peer's message is visible from 1 + 3 on.
  EXPECT_NEAR(*seconds, (1 + 3 + 1 + 1) * 1e-6, 1e-12);
}

// Four ranks on one core take all turns one after another.
TEST(EngineCostTest, RanksShareCores) {
  const collectives::Calibration c = SomeCosts(0, .01e-6);
  collectives::CollectiveShape shape;
  shape.ranks = 4;
  const auto at = [&](int cores) {
    return *collectives::PredictEngineSeconds(collectives::Primitive::kAllReduce,
                                              collectives::Algorithm::kDirect, shape, 4000, 0,
                                              c.costs, cores);
  };
  EXPECT_NEAR(at(1), 4 * at(4), 1e-9);
  EXPECT_NEAR(at(2), 2 * at(4), 1e-9);
}

TEST(ChooserTest, RulesFollowTheCosts) {
  // Nothing but messages costs: few of them win. Nothing but bytes: little traffic wins.
  const auto dear_messages = collectives::MakeRules(8, {}, SomeCosts(1e-3, 1e-15));
  const auto dear_bytes = collectives::MakeRules(8, {}, SomeCosts(1e-12, 1e-6));
  ASSERT_TRUE(dear_messages.ok() && dear_bytes.ok());
  EXPECT_EQ(dear_messages->Find(collectives::Primitive::kAllReduce, 1 << 16)->algorithm,
            collectives::Algorithm::kRecursiveDoubling);
  EXPECT_EQ(dear_bytes->Find(collectives::Primitive::kAllReduce, 1 << 16)->algorithm,
            collectives::Algorithm::kDirect);
  EXPECT_EQ(collectives::ChooserRules::Parse(dear_bytes->ToString())->ToString(),
            dear_bytes->ToString());
}

// As measured among four processes on two cores: what adds in rank order is predicted to lose by 11
// % at 16 KiB, which is within what predictions of crowded cores are worth.
TEST(ChooserTest, OnCrowdedCoresWhatAddsInRankOrderNeedNotBeTheFastest) {
  absl::StatusOr<collectives::Calibration> costs = collectives::Calibration::Parse(
      "link shm\nranks 4\ncores 2\nlatency 0\nmessage 2.974e-07\noperation 3.118e-07\n"
      "turn 1.026e-06\nsegment 131072\n"
      "bytes 16384 write 1.082e-10 read 1.082e-10 fold 1.076e-10 copy 1.306e-11\n");
  ASSERT_TRUE(costs.ok()) << costs.status();
  const auto fastest = [&] {
    return collectives::Predict(collectives::Primitive::kAllReduce, 16 << 10, 4, {}, *costs)
        ->front()
        .choice.algorithm;
  };
  const auto chosen = [&] {
    return collectives::MakeRules(4, {}, *costs)
        ->Find(collectives::Primitive::kAllReduce, 16 << 10)
        ->algorithm;
  };
  EXPECT_NE(fastest(), collectives::Algorithm::kDirect);
  EXPECT_EQ(chosen(), collectives::Algorithm::kDirect);
  costs->cores = 4;  // each rank has one
  EXPECT_NE(fastest(), collectives::Algorithm::kDirect);
  EXPECT_EQ(chosen(), fastest());
}

TEST(ChooserTest, RulesOfAScope) {
  collectives::RuleScope scope;
  scope.primitives = {collectives::Primitive::kAllReduce};
  scope.max_bytes = 1 << 12;
  const auto rules = collectives::MakeRules(4, {}, SomeCosts(1e-6, 1e-9), scope);
  ASSERT_TRUE(rules.ok()) << rules.status();
  EXPECT_NE(rules->Find(collectives::Primitive::kAllReduce, int64_t{1} << 40), nullptr);
  EXPECT_EQ(rules->Find(collectives::Primitive::kReduce, 4), nullptr);
}

// ---- What was tried out ----

// By costs 64 KiB are for recursive doubling; the ring, as it happened, was faster.
collectives::Calibration WhereTheRingWon() {
  collectives::Calibration c = SomeCosts(1e-3, 1e-15);
  c.trials = {
      {collectives::Primitive::kAllReduce,
       64 << 10,
       {collectives::Algorithm::kRecursiveDoubling, 0},
       9e-3},
      {collectives::Primitive::kAllReduce, 64 << 10, {collectives::Algorithm::kRing, 0}, 8e-3}};
  return c;
}

TEST(TrialTest, CountsMoreThanAPrediction) {
  const collectives::Calibration c = WhereTheRingWon();
  const auto all = collectives::Rank(collectives::Primitive::kAllReduce, 64 << 10, 8, {}, c);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ((*all)[0].choice.algorithm, collectives::Algorithm::kRing);
  EXPECT_EQ((*all)[1].choice.algorithm, collectives::Algorithm::kRecursiveDoubling);
  EXPECT_TRUE((*all)[0].tried && (*all)[1].tried && !(*all)[2].tried);
  EXPECT_EQ((*all)[0].seconds, 8e-3);
  EXPECT_NE(collectives::Predict(collectives::Primitive::kAllReduce, 64 << 10, 8, {}, c)
                ->front()
                .choice.algorithm,
            collectives::Algorithm::kRing);
}

TEST(TrialTest, IsOfItsSizeAndPrimitiveOnly) {
  const collectives::Calibration c = WhereTheRingWon();
  const auto rules = collectives::MakeRules(8, {}, c);
  ASSERT_TRUE(rules.ok()) << rules.status();
  const auto chosen = [&](int64_t bytes) {
    return rules->Find(collectives::Primitive::kAllReduce, bytes)->algorithm;
  };
  EXPECT_EQ(chosen(64 << 10), collectives::Algorithm::kRing);
  EXPECT_EQ(chosen((32 << 10) + 4), collectives::Algorithm::kRing);
  EXPECT_EQ(chosen(32 << 10), collectives::Algorithm::kRecursiveDoubling);
  EXPECT_EQ(chosen((64 << 10) + 4), collectives::Algorithm::kRecursiveDoubling);
  EXPECT_FALSE(
      collectives::Rank(collectives::Primitive::kReduceScatter, 64 << 10, 8, {}, c)->front().tried);
}

TEST(TrialTest, WhatAddsInRankOrderWinsTies) {
  collectives::Calibration c = WhereTheRingWon();
  const auto chosen = [&](double seconds) {
    c.trials.push_back({collectives::Primitive::kAllReduce,
                        64 << 10,
                        {collectives::Algorithm::kDirect, 0},
                        seconds});
    const auto rules = collectives::MakeRules(8, {}, c);
    c.trials.pop_back();
    return rules->Find(collectives::Primitive::kAllReduce, 64 << 10)->algorithm;
  };
  EXPECT_EQ(chosen(8.3e-3), collectives::Algorithm::kDirect);
  EXPECT_EQ(chosen(8.6e-3), collectives::Algorithm::kRing);
}

TEST(TrialTest, AllRanksHaveTheSameAndTheRulesFollowThem) {
  constexpr int kRanks = 3;
  std::vector<collectives::Calibration> of_rank(kRanks);
  RunRankThreads(kRanks, [&](int rank, RankLinks links) {
    collectives::Group group(rank, std::move(links), {});
    collectives::Calibration costs = SomeCosts(1e-6, 1e-10);
    costs.cores = 1;  // where little can be foretold
    collectives::TryOptions options;
    options.primitives = {collectives::Primitive::kAllReduce,
                          collectives::Primitive::kReduceScatter,
                          collectives::Primitive::kAllGather};
    options.max_bytes = 16 << 10;
    options.seconds = 3600;  // all rounds, however slow this is
    ASSERT_EQ(collectives::TryOut(group, options, &costs), absl::OkStatus());
    of_rank[static_cast<size_t>(rank)] = costs;
    options.primitives = {collectives::Primitive::kBroadcast};
    EXPECT_TRUE(absl::IsUnimplemented(collectives::TryOut(group, options, &costs)));
  });
  const collectives::Calibration& c = of_rank[0];
  EXPECT_GT(c.trials.size(), 4u) << c.ToString();
  EXPECT_EQ(of_rank[1].ToString(), c.ToString());
  EXPECT_EQ(of_rank[2].ToString(), c.ToString());
  for (const collectives::Trial& t : c.trials) {
    EXPECT_GT(t.seconds, 0) << c.ToString();
    // The rule is the fastest that was tried, or as fast as that.
    const auto rules = collectives::MakeRules(kRanks, {}, c);
    const collectives::Algorithm chosen = rules->Find(t.primitive, t.bytes)->algorithm;
    const auto all = collectives::Rank(t.primitive, t.bytes, kRanks, {}, c);
    const auto it = std::find_if(all->begin(), all->end(), [&](const collectives::Prediction& p) {
      return p.choice.algorithm == chosen;
    });
    EXPECT_TRUE(it->tried);
    EXPECT_LE(0.95 * it->seconds, all->front().seconds);
  }
}

// As where sixty ranks share a core: the first call alone takes longer than all may.
TEST(TrialTest, WithoutTimeNothingIsTriedByHalves) {
  RunRankThreads(2, [](int rank, RankLinks links) {
    collectives::Group group(rank, std::move(links), {});
    collectives::Calibration costs = SomeCosts(1e-6, 1e-10);
    costs.cores = 1;
    collectives::TryOptions options;
    options.seconds = 1e-9;
    EXPECT_EQ(collectives::TryOut(group, options, &costs), absl::OkStatus());
    EXPECT_TRUE(costs.trials.empty()) << costs.ToString();
  });
}

// ---- Buckets ----

collectives::BucketChoice Bucket(int64_t gradient, const collectives::Calibration& costs,
                                 std::vector<int> hosts = {},
                                 absl::optional<collectives::Algorithm> algorithm = absl::nullopt,
                                 int ranks = 2) {
  const auto choice = collectives::ChooseBucket(gradient, ranks, hosts, algorithm, costs);
  EXPECT_TRUE(choice.ok()) << choice.status();
  return choice.ok() ? *choice : collectives::BucketChoice{-1, ""};
}

// A byte a nanosecond, four of them (written, read, twice): a hundredth of a second of latency
// needs buckets of megabytes, a ten-thousandth smaller ones, and the same costs give the same.
TEST(ChooseBucketTest, DearerMessagesMakeLargerBuckets) {
  const int64_t dear = Bucket(1 << 30, SomeCosts(100e-6, 1e-9)).bytes;
  const int64_t cheap = Bucket(1 << 30, SomeCosts(10e-6, 1e-9)).bytes;
  EXPECT_GT(dear, cheap);
  EXPECT_GE(cheap, 64 << 10);
  EXPECT_EQ(dear & (dear - 1), 0);
  EXPECT_EQ(Bucket(1 << 30, SomeCosts(100e-6, 1e-9)).bytes, dear);
  // The latency of what is chosen is small, that of half of it is not.
  const collectives::Calibration costs = SomeCosts(100e-6, 1e-9);
  const auto seconds = [&](int64_t bytes) {
    return collectives::Predict(collectives::Primitive::kAllReduce, bytes, 2, {}, costs)
        ->front()
        .seconds;
  };
  EXPECT_LE(seconds(4), 0.1 * seconds(dear));
  EXPECT_GT(seconds(4), 0.1 * seconds(dear / 2));
  EXPECT_EQ(Bucket(1 << 30, costs).why.find("an all-reduce of"), 0u);
}

TEST(ChooseBucketTest, OneForSmallModelsAndWhereNobodyHasTime) {
  const collectives::Calibration costs = SomeCosts(10e-6, 1e-9);
  const int64_t bucket = Bucket(1 << 30, costs).bytes;
  EXPECT_EQ(Bucket(4 * bucket, costs).bytes, bucket);
  EXPECT_EQ(Bucket(4 * bucket - 1, costs).bytes, 0);
  EXPECT_THAT(Bucket(4 * bucket - 1, costs).why, HasSubstr("fewer than 4 buckets"));
  EXPECT_EQ(Bucket(1 << 30, costs, {}, absl::nullopt, 1).bytes, 0);
  collectives::Calibration crowded = costs;
  crowded.cores = 2;
  EXPECT_EQ(Bucket(1 << 30, crowded).bytes, 0);
  EXPECT_THAT(Bucket(1 << 30, crowded).why, HasSubstr("2 ranks on 2 cores"));
  EXPECT_EQ(Bucket(1 << 30, crowded, {0, 1}).bytes, bucket) << "on two hosts they wait for a wire";
}

TEST(ChooseBucketTest, OfTheAlgorithmThatIsUsed) {
  const collectives::Calibration costs = SomeCosts(50e-6, 1e-9);
  EXPECT_GT(Bucket(1 << 30, costs, {}, collectives::Algorithm::kRing, 8).bytes,
            Bucket(1 << 30, costs, {}, collectives::Algorithm::kDoubleTree, 8).bytes);
}

TEST(CalibrationTest, TextAndBack) {
  collectives::Calibration c = SomeCosts(1.5e-6, 2e-10);
  c.trials = {
      {collectives::Primitive::kAllGather, 512, {collectives::Algorithm::kRing, 0}, 2.5e-6},
      {collectives::Primitive::kAllGather, 1024, {collectives::Algorithm::kDirect, 65536}, 3e-6}};
  const auto back = collectives::Calibration::Parse(c.ToString());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->ToString(), c.ToString());
  EXPECT_THAT(std::string(collectives::Calibration::Parse("mesage 3\n").status().message()),
              HasSubstr("line 1: 'mesage 3'"));
  EXPECT_THAT(std::string(collectives::Calibration::Parse("message 3\n").status().message()),
              HasSubstr("no line 'bytes"));
  for (const char* const bad : {"tried allreduce 512 magic/0 1e-6", "tried allreduce 0 ring/0 1e-6",
                                "tried broadcast 512 swing/0 1e-6", "tried allreduce 512 ring 1"}) {
    EXPECT_THAT(std::string(collectives::Calibration::Parse(bad).status().message()),
                HasSubstr("'tried PRIMITIVE N ALGORITHM/SEGMENT S'"))
        << bad;
  }
}

TEST(CalibrationTest, AllRanksGetTheSame) {
  std::vector<std::string> texts(3);
  RunRankThreads(3, [&](int rank, RankLinks links) {
    collectives::Group group(rank, std::move(links), {});
    const auto measured = collectives::Calibrate(group, {.cores = 2, .seconds = 0.05});
    ASSERT_TRUE(measured.ok()) << measured.status();
    texts[static_cast<size_t>(rank)] = measured->ToString();
  });
  EXPECT_THAT(texts[0], HasSubstr("link memory\nranks 3\ncores 2\n"));
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
}

// Whatever the budget, it ends soon, and all ranks stop at the same call.
TEST(CalibrationTest, ATinyBudgetStillMeasuresEverything) {
  RunRankThreads(2, [](int rank, RankLinks links) {
    collectives::Group group(rank, std::move(links), {});
    const auto measured =
        collectives::Calibrate(group, {.cores = 2, .max_bytes = 64 << 20, .seconds = 1e-6});
    ASSERT_TRUE(measured.ok()) << measured.status();
    EXPECT_EQ(measured->costs.bytes.size(), 2u) << measured->ToString();
    EXPECT_NE(measured->segment_bytes, 0) << measured->ToString();
  });
}

}  // namespace
}  // namespace tandem
