// Schedules on paper: the checker proves the good ones for every size, and catches every broken
// one.
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/legacy/checker.h"
#include "collectives/legacy/cost.h"
#include "collectives/legacy/draw.h"
#include "collectives/legacy/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr AllReduceAlgorithm kRing = AllReduceAlgorithm::kRing;
constexpr AllReduceAlgorithm kDirect = AllReduceAlgorithm::kDirect;

std::set<int64_t> InterestingCounts(int p) { return {0, 1, p - 1, p, p + 1, 1000}; }

TEST(BlocksTest, CutTheVectorIntoNearEqualPiecesWithoutGaps) {
  for (const int p : {1, 2, 3, 7}) {
    for (const int64_t count : {0, 1, 2, 6, 7, 8, 100}) {
      const Blocks block(count, p);
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

TEST(CheckerTest, ProvesEveryAlgorithmForEverySize) {
  for (const AllReduceAlgorithm algorithm : kAllReduceAlgorithms) {
    for (int p = 1; p <= 64; ++p) {
      for (const int64_t count : InterestingCounts(p)) {
        EXPECT_EQ(CheckAllReduceAlgorithm(algorithm, p, count), absl::OkStatus())
            << AllReduceAlgorithmName(algorithm) << " p=" << p << " count=" << count;
      }
    }
  }
}

TEST(CheckerTest, TheProofCostsTheSameForHugeVectors) {
  EXPECT_EQ(CheckAllReduceAlgorithm(kRing, 8, int64_t{10'000'000'019}), absl::OkStatus());
}

TEST(CheckerTest, RingDoesNotAddInRankOrder) {
  EXPECT_EQ(CheckAllReduce(AllReduceSchedules(kRing, 3, 3), {.rank_order = true}).message(),
            "rank 0, elements [1, 2): not added in rank order, but 1 + 2 + 0");
  EXPECT_EQ(CheckAllReduce(AllReduceSchedules(kRing, 2, 8), {.rank_order = true}), absl::OkStatus())
      << "of two numbers there is only one sum";
}

// Finds the op of `rank`, step `step`, of kind `kind` to or from `peer`.
Op& Find(std::vector<Schedule>& schedules, int rank, int step, OpKind kind, int peer) {
  for (Op& op : schedules[rank].steps[step].ops) {
    if (op.kind == kind && op.peer == peer) return op;
  }
  ADD_FAILURE() << "no such op in " << schedules[rank].DebugString();
  return schedules[rank].steps[step].ops[0];
}
void Drop(std::vector<Schedule>& schedules, int rank, int step, const Op& op) {
  std::vector<Op>& ops = schedules[rank].steps[step].ops;
  ops.erase(ops.begin() + (&op - ops.data()));
}
void Double(std::vector<Schedule>& schedules, int rank, int step, Op op) {
  schedules[rank].steps[step].ops.push_back(op);
}

TEST(BrokenScheduleTest, ADroppedSendIsADeadlockThatNamesBothRanks) {
  auto s = AllReduceSchedules(kDirect, 4, 8);
  Drop(s, 2, 0, Find(s, 2, 0, OpKind::kSend, 1));
  const absl::Status status = CheckAllReduce(s, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "rank 1, step 0 expects [2, 4) from rank 2, whose message 0 (step 1) is [4, 6)");

  auto ring = AllReduceSchedules(kRing, 3, 3);
  Drop(ring, 0, 3, Find(ring, 0, 3, OpKind::kSend, 1));
  EXPECT_EQ(CheckAllReduce(ring, {}).message(),
            "deadlock with 1 messages in flight a pair: "
            "rank 1, step 3 waits for message 3 [0, 1) from rank 0");
}

TEST(BrokenScheduleTest, ADroppedReceiveLeavesAMessageOver) {
  auto s = AllReduceSchedules(kDirect, 4, 8);
  Drop(s, 3, 1, Find(s, 3, 1, OpKind::kReceive, 1));
  EXPECT_EQ(CheckAllReduce(s, {}).message(),
            "rank 1, step 1 sends message 1 [2, 4) to rank 3, which never receives it");
}

TEST(BrokenScheduleTest, AMissingContributionIsNamed) {
  auto s = AllReduceSchedules(kDirect, 4, 8);
  Drop(s, 3, 0, Find(s, 3, 0, OpKind::kSend, 1));
  Drop(s, 1, 0, Find(s, 1, 0, OpKind::kReduce, 3));
  EXPECT_EQ(CheckAllReduce(s, {}).message(),
            "rank 0, elements [2, 4): the contribution of rank 3 is missing");
}

TEST(BrokenScheduleTest, ADoubledContributionIsNamed) {
  auto s = AllReduceSchedules(kDirect, 4, 8);
  Double(s, 3, 0, Find(s, 3, 0, OpKind::kSend, 1));
  Double(s, 1, 0, Find(s, 1, 0, OpKind::kReduce, 3));
  EXPECT_EQ(CheckAllReduce(s, {}).message(),
            "rank 0, elements [2, 4): the contribution of rank 3 is added 2 times");
}

TEST(BrokenScheduleTest, ASwappedPeerIsADeadlock) {
  auto s = AllReduceSchedules(kRing, 4, 8);
  Find(s, 0, 0, OpKind::kSend, 1).peer = 2;
  EXPECT_THAT(std::string(CheckAllReduce(s, {}).message()),
              HasSubstr("rank 1, step 0 expects [0, 2) from rank 0, whose message 0 (step 1)"));
}

TEST(BrokenScheduleTest, AWrongPieceIsNamed) {
  auto s = AllReduceSchedules(kRing, 4, 8);
  Find(s, 2, 1, OpKind::kSend, 3).piece = {0, 2};
  EXPECT_EQ(CheckAllReduce(s, {}).message(),
            "rank 3, step 1 expects [2, 4) from rank 2, whose message 1 (step 1) is [0, 2)");
}

TEST(BrokenScheduleTest, AReceiveInPlaceOfAReduceLosesContributions) {
  auto s = AllReduceSchedules(kRing, 3, 3);
  Find(s, 1, 0, OpKind::kReduce, 0).kind = OpKind::kReceive;
  EXPECT_EQ(CheckAllReduce(s, {}).message(),
            "rank 0, elements [0, 1): the contribution of rank 1 is missing");
}

TEST(BrokenScheduleTest, TwoReducesInTheWrongOrderBreakOnlyTheRankOrder) {
  auto s = AllReduceSchedules(kDirect, 4, 4);
  std::swap(Find(s, 0, 0, OpKind::kReduce, 1), Find(s, 0, 0, OpKind::kReduce, 2));
  EXPECT_EQ(CheckAllReduce(s, {}), absl::OkStatus());
  EXPECT_EQ(CheckAllReduce(s, {.rank_order = true}).message(),
            "rank 0, elements [0, 1): not added in rank order, but 0 + 2 + 1 + 3");
}

TEST(BrokenScheduleTest, PartialSumsAreNotRankOrder) {
  // Recursive doubling, p = 4: (c0 + c1) + (c2 + c3). A sum, but not the fold.
  std::vector<Schedule> s;
  for (int rank = 0; rank < 4; ++rank) {
    s.push_back({.rank = rank, .ranks = 4, .count = 5, .steps = {}});
    for (const int distance : {1, 2}) {
      s[rank].AddStep().Send({0, 5}, rank ^ distance).Reduce({0, 5}, rank ^ distance);
    }
  }
  EXPECT_EQ(CheckAllReduce(s, {}), absl::OkStatus());
  EXPECT_THAT(std::string(CheckAllReduce(s, {.rank_order = true}).message()),
              HasSubstr("0 + 1 + 2 + 3 with partial sums"));
}

// Everybody sends two messages before anybody receives: needs room for two.
TEST(BrokenScheduleTest, TheBoundOnMessagesInFlightDecidesAboutDeadlock) {
  std::vector<Schedule> s;
  for (int rank = 0; rank < 2; ++rank) {
    s.push_back({.rank = rank, .ranks = 2, .count = 2, .steps = {}});
    s[rank].AddStep().Send({0, 1}, 1 - rank);
    s[rank].AddStep().Send({1, 1}, 1 - rank);
    s[rank].AddStep().Reduce({0, 1}, 1 - rank).Reduce({1, 1}, 1 - rank);
  }
  EXPECT_EQ(CheckAllReduce(s, {.max_in_flight = 2}), absl::OkStatus());
  EXPECT_THAT(std::string(CheckAllReduce(s, {.max_in_flight = 1}).message()),
              HasSubstr("rank 0, step 1 waits for room to send message 1 [1, 2) to rank 1"));
}

// Any one change to any one op of any rank must be noticed.
TEST(BrokenScheduleTest, EverySingleMutationIsCaught) {
  using Mutation = std::function<void(std::vector<Op>&, size_t)>;
  const int p = 5;
  const std::vector<std::pair<std::string, Mutation>> mutations = {
      {"drop", [](auto& ops, size_t i) { ops.erase(ops.begin() + static_cast<int64_t>(i)); }},
      {"double", [](auto& ops, size_t i) { ops.insert(ops.begin(), Op(ops[i])); }},
      {"next peer", [](auto& ops, size_t i) { ops[i].peer = (ops[i].peer + 1) % p; }},
      {"move", [](auto& ops, size_t i) { ops[i].piece.begin += ops[i].piece.begin > 0 ? -1 : 1; }},
      {"shorten", [](auto& ops, size_t i) { --ops[i].piece.count; }},
      {"other kind", [](auto& ops, size_t i) {
         ops[i].kind = static_cast<OpKind>((static_cast<int>(ops[i].kind) + 1) % 5);
       }}};
  int caught = 0;
  for (const AllReduceAlgorithm algorithm : kAllReduceAlgorithms) {
    const CheckOptions options{.rank_order = algorithm == kDirect};
    const std::vector<Schedule> good = AllReduceSchedules(algorithm, p, 11);
    for (int rank = 0; rank < p; ++rank) {
      for (size_t t = 0; t < good[rank].steps.size(); ++t) {
        for (size_t i = 0; i < good[rank].steps[t].ops.size(); ++i) {
          for (const auto& [name, mutate] : mutations) {
            const Op& op = good[rank].steps[t].ops[i];
            if (op.peer < 0 && name == "next peer") continue;  // aside ops have no peer
            if (op.kind == OpKind::kSetAside && name == "double") continue;  // idempotent
            std::vector<Schedule> bad = good;
            mutate(bad[rank].steps[t].ops, i);
            EXPECT_FALSE(CheckAllReduce(bad, options).ok())
                << name << " rank " << rank << " step " << t << " op " << i << " of "
                << AllReduceAlgorithmName(algorithm);
            ++caught;
          }
        }
      }
    }
  }
  EXPECT_GT(caught, 900) << "mutants tried";
}

TEST(BrokenScheduleTest, MalformedSchedulesAreRefusedBeforeTheyRun) {
  const auto refuse = [](const std::function<void(Schedule&)>& breakage) {
    auto s = AllReduceSchedules(kDirect, 3, 6);
    breakage(s[1]);
    const absl::Status status = CheckAllReduce(s, {});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(refuse([](Schedule& s) { s.steps[0].ops[0].peer = 3; }),
            "schedule of rank 1, step 0, send: peer 3 among 3 ranks");
  EXPECT_EQ(refuse([](Schedule& s) { s.steps[0].ops[0].peer = 1; }),
            "schedule of rank 1, step 0, send: peer 1 among 3 ranks");
  EXPECT_EQ(refuse([](Schedule& s) { s.steps[0].ops[0].piece.begin = 5; }),
            "schedule of rank 1, step 0, send: piece [5, 7) of a vector of 6");
  EXPECT_EQ(refuse([](Schedule& s) {
              s.AddStep().AddAside({0, 1});
            }),
            "schedule of rank 1, step 2, add aside: adds [0, 1) from aside, where [2, 4) is");
  EXPECT_EQ(refuse([](Schedule& s) { s = DirectAllReduce(2, 3, 6); }),
            "schedule 1 of 3 is of rank 2 of 3 for 6 elements, the first for 6");
}

TEST(CostTest, TrafficOfTheTwoAlgorithmsIsTwoPMinusOneOverP) {
  for (const AllReduceAlgorithm algorithm : kAllReduceAlgorithms) {
    const Traffic traffic = AllReduceTraffic(algorithm, 3, 8, 8000);
    EXPECT_EQ(traffic.messages, 14);
    EXPECT_EQ(traffic.elements, 14000);
    EXPECT_EQ(AllReduceTraffic(algorithm, 0, 1, 8000), Traffic{});
  }
}

TEST(CostTest, AWrongAmountOfTrafficIsNamed) {
  auto s = AllReduceSchedules(kRing, 4, 8);
  s[2].AddStep().Send({0, 3}, 3);
  EXPECT_EQ(CheckAllReduceTraffic(kRing, s).message(),
            "rank 2 of 4 sends 15 elements in 7 messages; ring should send 12 in 6");
}

TEST(CostTest, PlayingTheRingTakesExactlyTheTimeOfTheFormula) {
  const CostModel model{.alpha = 1e-5, .beta = 1e-9, .gamma = 3e-10};
  for (int p = 2; p <= 16; ++p) {
    const auto seconds = ScheduleSeconds(AllReduceSchedules(kRing, p, p * 1000), model);
    ASSERT_EQ(seconds.status(), absl::OkStatus());
    EXPECT_NEAR(*seconds, AllReduceSeconds(kRing, p, p * 4000.0, model), 1e-12);
  }
}

TEST(CostTest, DirectLiesBetweenItsTrafficAndTheSerialFormula) {
  const CostModel model{.alpha = 1e-5, .beta = 1e-9, .gamma = 3e-10};
  const CostModel sends_only{.alpha = 1e-5, .beta = 1e-9, .gamma = 0};
  for (int p = 2; p <= 16; ++p) {
    const auto seconds = ScheduleSeconds(AllReduceSchedules(kDirect, p, p * 1000), model);
    ASSERT_EQ(seconds.status(), absl::OkStatus());
    EXPECT_LE(*seconds, AllReduceSeconds(kDirect, p, p * 4000.0, model) + 1e-12);
    EXPECT_GE(*seconds, AllReduceSeconds(kDirect, p, p * 4000.0, sends_only) - 1e-12);
  }
}

TEST(CostTest, BusFactorFollowsNcclTests) {
  EXPECT_EQ(AllReduceBusFactor(1), 0);
  EXPECT_EQ(AllReduceBusFactor(2), 1);
  EXPECT_EQ(AllReduceBusFactor(4), 1.5);
}

TEST(DrawTest, ARingOfThree) {
  const auto drawing = DrawSchedules(AllReduceSchedules(kRing, 3, 6));
  ASSERT_EQ(drawing.status(), absl::OkStatus());
  EXPECT_EQ(*drawing,
            "3 ranks, 6 elements\n"
            "step 0\n"
            "  0 ==[0, 2)+> 1\n"
            "  1 ==[2, 4)+> 2\n"
            "  2 ==[4, 6)+> 0\n"
            "step 1\n"
            "  0 ==[4, 6)+> 1\n"
            "  1 ==[0, 2)+> 2\n"
            "  2 ==[2, 4)+> 0\n"
            "step 2\n"
            "  0 --[2, 4)-> 1\n"
            "  1 --[4, 6)-> 2\n"
            "  2 --[0, 2)-> 0\n"
            "step 3\n"
            "  0 --[0, 2)-> 1\n"
            "  1 --[2, 4)-> 2\n"
            "  2 --[4, 6)-> 0\n");
}

TEST(DrawTest, DirectOfTwo) {
  const auto drawing = DrawSchedules(AllReduceSchedules(kDirect, 2, 4));
  ASSERT_EQ(drawing.status(), absl::OkStatus());
  EXPECT_EQ(*drawing,
            "2 ranks, 4 elements\n"
            "step 0\n"
            "  0 --[2, 4)-> 1\n"
            "  1 ==[0, 2)+> 0\n"
            "step 1\n"
            "  0 --[0, 2)-> 1\n"
            "  1 --[2, 4)-> 0\n");
}

}  // namespace
}  // namespace tandem
