// The checker catches what is broken: every single change to a schedule, with a message that says
// what is missing, doubled or out of place, and where.
#include "tests/unit/collectives/proof/checker.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/schedules/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/collectives/proof/draw.h"
#include "tests/unit/collectives/proof/replay.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr collectives::Primitive kAllReduce = collectives::Primitive::kAllReduce;

// One collective whose schedules can be broken.
struct Case {
  Case(collectives::Primitive the_primitive, collectives::Algorithm algorithm, int ranks,
       int64_t count)
      : primitive(the_primitive) {
    shape.ranks = ranks;
    shape.count = count;
    Make(algorithm);
  }
  void Make(collectives::Algorithm algorithm) {
    s = *collectives::MakeSchedules(primitive, algorithm, shape);
  }

  // The op of `rank`, step `step`, of kind `kind` to or from `peer`.
  collectives::Op& Find(int rank, int step, collectives::OpKind kind, int peer) {
    for (collectives::Op& op : Ops(rank, step)) {
      if (op.kind == kind && op.peer == peer) return op;
    }
    ADD_FAILURE() << "no such op in " << s[static_cast<size_t>(rank)].DebugString();
    return Ops(rank, step)[0];
  }
  std::vector<collectives::Op>& Ops(int rank, int step) {
    return s[static_cast<size_t>(rank)].steps[static_cast<size_t>(step)].ops;
  }
  void Drop(int rank, int step, const collectives::Op& op) {
    Ops(rank, step).erase(Ops(rank, step).begin() + (&op - Ops(rank, step).data()));
  }
  void Double(int rank, int step, collectives::Op op) { Ops(rank, step).push_back(op); }

  absl::Status Check(const CheckOptions& options = {}) const {
    return CheckSchedules(primitive, shape, {}, s, options);
  }
  std::string Fault(const CheckOptions& options = {}) const {
    return std::string(Check(options).message());
  }

  const collectives::Primitive primitive;
  collectives::CollectiveShape shape;
  std::vector<collectives::Schedule> s;
};

TEST(BrokenScheduleTest, ADroppedSendIsADeadlockThatNamesBothRanks) {
  Case c(kAllReduce, collectives::Algorithm::kRing, 3, 3);
  c.Drop(0, 3, c.Find(0, 3, collectives::OpKind::kSend, 1));
  EXPECT_EQ(c.Check().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(c.Fault(),
            "deadlock with channels of 1 messages: "
            "rank 1, step 3 waits for message 3 [0, 1) from rank 0");
}

TEST(BrokenScheduleTest, AFoldWaitsForTheRankThatDoesNotSend) {
  Case c(kAllReduce, collectives::Algorithm::kOneShot, 3, 2);
  c.Drop(2, 0, c.Find(2, 0, collectives::OpKind::kSend, 1));
  EXPECT_EQ(c.Fault(),
            "deadlock with channels of 1 messages: "
            "rank 1, step 0 waits for message 0 [0, 2) from rank 2");
}

TEST(BrokenScheduleTest, ADroppedReceiveLeavesAMessageOver) {
  Case c(kAllReduce, collectives::Algorithm::kDirect, 4, 8);
  c.Drop(3, 1, c.Find(3, 1, collectives::OpKind::kReceive, 1));
  EXPECT_EQ(c.Fault(), "rank 1, step 1 sends message 1 [2, 4) to rank 3, which never receives it");
}

TEST(BrokenScheduleTest, AMissingContributionIsNamed) {
  Case c(collectives::Primitive::kReduce, collectives::Algorithm::kTree, 4, 8);
  c.Drop(3, 0, c.Find(3, 0, collectives::OpKind::kSend, 2));
  collectives::Op& reduce = c.Find(2, 0, collectives::OpKind::kReduce, 3);
  reduce = {collectives::OpKind::kCopy, -1, reduce.piece, reduce.operand};
  EXPECT_EQ(c.Fault(), "rank 0, elements [0, 8): the contribution of rank 3 is missing");
}

TEST(BrokenScheduleTest, ADoubledContributionIsNamed) {
  Case c(collectives::Primitive::kReduce, collectives::Algorithm::kTree, 4, 8);
  c.Double(3, 0, c.Find(3, 0, collectives::OpKind::kSend, 2));
  collectives::Op again = c.Find(2, 0, collectives::OpKind::kReduce, 3);
  again.operand = again.piece;
  c.Double(2, 0, again);
  EXPECT_EQ(c.Fault(), "rank 0, elements [0, 8): the contribution of rank 3 is added 2 times");
}

TEST(BrokenScheduleTest, OnlyTheElementsThatAreWrongAreNamed) {
  Case c(kAllReduce, collectives::Algorithm::kRecursiveDoubling, 2, 10);
  c.Double(1, 0, {collectives::OpKind::kCombine, -1, {3, 2}, {3, 2, collectives::Region::kInput}});
  EXPECT_EQ(c.Fault(), "rank 1, elements [3, 5): the contribution of rank 1 is added 2 times");
}

TEST(BrokenScheduleTest, ASwappedPeerIsADeadlock) {
  Case c(kAllReduce, collectives::Algorithm::kRing, 4, 8);
  c.Find(0, 0, collectives::OpKind::kSend, 1).peer = 2;
  EXPECT_THAT(c.Fault(), HasSubstr("waits for message"));
}

TEST(BrokenScheduleTest, SwappedBlocksAreNamed) {
  Case c(collectives::Primitive::kAllGather, collectives::Algorithm::kDirect, 3, 2);
  std::swap(c.Find(0, 0, collectives::OpKind::kReceive, 1).piece,
            c.Find(0, 0, collectives::OpKind::kReceive, 2).piece);
  EXPECT_EQ(c.Fault(), "rank 0, elements [2, 4): the contribution of rank 1 is missing");
}

TEST(BrokenScheduleTest, AWrongOffsetIsNamed) {
  Case c(collectives::Primitive::kAllToAll, collectives::Algorithm::kPairwise, 3, 2);
  c.Find(1, 0, collectives::OpKind::kSend, 2).piece.begin -= 1;
  EXPECT_EQ(c.Fault(), "rank 2, elements [2, 4): holds in[3, 5) of rank 1 where in[4, 6) belongs");

  Case reduction(collectives::Primitive::kReduce, collectives::Algorithm::kDirect, 3, 4);
  reduction.Find(1, 0, collectives::OpKind::kSend, 0).piece = {1, 2, collectives::Region::kInput};
  reduction.Drop(2, 0, reduction.Find(2, 0, collectives::OpKind::kSend, 0));
  for (const collectives::Piece part : {collectives::Piece{0, 2, collectives::Region::kInput},
                                        collectives::Piece{2, 2, collectives::Region::kInput}}) {
    reduction.Double(2, 0, {collectives::OpKind::kSend, 0, part, {}});
    if (part.begin > 0) reduction.Double(1, 0, {collectives::OpKind::kSend, 0, part, {}});
  }
  reduction.s[0].steps.clear();
  for (const collectives::Piece part : {collectives::Piece{0, 2}, collectives::Piece{2, 2}}) {
    reduction.s[0].AddStep().Reduce(part, collectives::In(part), 1).Reduce(part, 2);
  }
  EXPECT_EQ(reduction.Fault(),
            "rank 0, elements [0, 2): holds in[1, 3) of rank 1 where in[0, 2) belongs");
}

TEST(BrokenScheduleTest, AMessageOfTheWrongSizeIsNamed) {
  Case c(kAllReduce, collectives::Algorithm::kRing, 4, 8);
  c.Find(2, 1, collectives::OpKind::kSend, 3).piece = {0, 1};
  EXPECT_EQ(c.Fault(),
            "rank 3, step 1 expects [2, 4) from rank 2, whose message 1 (step 1) is [0, 1)");
}

TEST(BrokenScheduleTest, AReceiveInPlaceOfAReduceLosesContributions) {
  Case c(kAllReduce, collectives::Algorithm::kRing, 3, 3);
  c.Find(1, 0, collectives::OpKind::kReduce, 0).kind = collectives::OpKind::kReceive;
  EXPECT_EQ(c.Fault(), "rank 0, elements [0, 1): the contribution of rank 1 is missing");
}

TEST(BrokenScheduleTest, ReadingUndefinedMemoryIsNamed) {
  Case scratch(collectives::Primitive::kReduceScatter, collectives::Algorithm::kRing, 3, 2);
  collectives::Op& send = scratch.Find(1, 0, collectives::OpKind::kSend, 2);
  send.piece = {0, 2, collectives::Region::kScratch};
  EXPECT_EQ(scratch.Fault(),
            "rank 1, step 0, send reads scratch[0, 2) before all of it was written");

  // Out of place, output is undefined at first; in place it is the input.
  Case output(kAllReduce, collectives::Algorithm::kRing, 3, 6);
  collectives::Op& reduce = output.Find(0, 0, collectives::OpKind::kReduce, 2);
  reduce.operand = reduce.piece;
  EXPECT_EQ(output.Fault(), "rank 0, step 0, reduce reads [4, 6) before all of it was written");
  output.shape.in_place = true;
  EXPECT_EQ(output.Check(), absl::OkStatus());
}

TEST(BrokenScheduleTest, OutputThatIsNeverWrittenIsNamed) {
  Case c(collectives::Primitive::kBroadcast, collectives::Algorithm::kTree, 4, 5);
  collectives::Op& copy = c.Find(0, 1, collectives::OpKind::kCopy, -1);
  copy.piece.count = copy.operand.count = 3;
  EXPECT_EQ(c.Fault(), "rank 0, elements [3, 5): nothing was ever written there");
}

TEST(BrokenScheduleTest, WhatIsOverwrittenBeforeItIsSentIsMissed) {
  Case c(kAllReduce, collectives::Algorithm::kRing, 3, 3);
  std::swap(c.Ops(0, 1)[0], c.Ops(0, 3)[1]);  // Sends a block after another took its place.
  EXPECT_FALSE(c.Check().ok());

  // Made for separate buffers, used in place: the own block is overwritten while others need it.
  Case gather(collectives::Primitive::kAllToAll, collectives::Algorithm::kPairwise, 3, 2);
  EXPECT_EQ(gather.Check(), absl::OkStatus());
  gather.shape.in_place = true;
  EXPECT_EQ(gather.Fault(),
            "rank 0, elements [2, 4): the contribution of rank 0 does not belong there");
}

TEST(BrokenScheduleTest, WhatWouldBeOverwrittenBeforeItHasGoneIsADeadlock) {
  Case c(kAllReduce, collectives::Algorithm::kRecursiveDoubling, 4, 6);
  EXPECT_EQ(c.Check({.channel = 1}), absl::OkStatus());
  EXPECT_EQ(c.Check({.channel = 0}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(c.Fault({.channel = 0}),
              StartsWith("deadlock with channels of 0 messages: rank 0, step 1 waits to overwrite "
                         "[0, 6) until message 0 [0, 6) to rank 2 has gone; rank 1, "));
}

// Two messages are sent, and then both pieces overwritten: needs room for two.
TEST(BrokenScheduleTest, TheRoomOfAChannelDecidesAboutDeadlock) {
  Case c(kAllReduce, collectives::Algorithm::kRing, 2, 2);
  for (int rank = 0; rank < 2; ++rank) {
    collectives::Schedule& s = c.s[static_cast<size_t>(rank)];
    s.steps.clear();
    s.AddStep().Send({0, 1, collectives::Region::kInput}, 1 - rank);
    s.AddStep().Send({1, 1, collectives::Region::kInput}, 1 - rank);
    // The second message first: but it meets the first receipt.
    s.AddStep().Reduce({1, 1}, {1, 1, collectives::Region::kInput}, 1 - rank);
    s.AddStep().Reduce({0, 1}, {0, 1, collectives::Region::kInput}, 1 - rank);
  }
  c.shape.in_place = true;
  EXPECT_THAT(c.Fault({.channel = 1}), HasSubstr("rank 0, step 2 waits to overwrite [1, 2) until "
                                                 "message 1 in[1, 2) to rank 1 has gone"));
  EXPECT_THAT(c.Fault({.channel = 2}), HasSubstr("belongs"))
      << "it finishes, with swapped elements";
}

TEST(BrokenScheduleTest, OnlyRankOrderIsRankOrder) {
  EXPECT_EQ(Case(kAllReduce, collectives::Algorithm::kDirect, 4, 4).Check({.rank_order = true}),
            absl::OkStatus());
  EXPECT_EQ(Case(kAllReduce, collectives::Algorithm::kRing, 2, 8).Check({.rank_order = true}),
            absl::OkStatus())
      << "of two numbers there is only one sum";
  EXPECT_EQ(Case(kAllReduce, collectives::Algorithm::kRing, 3, 3).Fault({.rank_order = true}),
            "rank 0, elements [1, 2): not added in rank order, but as 0 + (2 + 1)");
  EXPECT_EQ(Case(kAllReduce, collectives::Algorithm::kRecursiveDoubling, 4, 5)
                .Fault({.rank_order = true}),
            "rank 0, elements [0, 5): not added in rank order, but as 0 + 1 + (2 + 3)");

  Case fold(kAllReduce, collectives::Algorithm::kDirect, 4, 4);
  std::swap(fold.s[0].folds[0][1], fold.s[0].folds[0][2]);
  EXPECT_EQ(fold.Check(), absl::OkStatus());
  EXPECT_EQ(fold.Fault({.rank_order = true}),
            "rank 0, elements [0, 1): not added in rank order, but as 0 + 2 + 1 + 3");
}

TEST(BrokenScheduleTest, ABarrierThatDoesNotHoldIsNamed) {
  Case c(collectives::Primitive::kBarrier, collectives::Algorithm::kDissemination, 4, 0);
  EXPECT_EQ(c.Check(), absl::OkStatus());
  for (collectives::Schedule& s : c.s) s.steps.pop_back();
  EXPECT_EQ(c.Fault(), "rank 0 passes the barrier before rank 1 has come");
}

// Any one change to any one op of any rank must be noticed.
TEST(BrokenScheduleTest, EverySingleMutationIsCaught) {
  using Mutation = std::function<void(std::vector<collectives::Op>&, size_t)>;
  const int p = 5;
  const std::vector<std::pair<std::string, Mutation>> mutations = {
      {"drop", [](auto& ops, size_t i) { ops.erase(ops.begin() + static_cast<int64_t>(i)); }},
      {"double", [](auto& ops, size_t i) { ops.insert(ops.begin(), collectives::Op(ops[i])); }},
      {"next peer", [](auto& ops, size_t i) { ops[i].peer = (ops[i].peer + 1) % p; }},
      {"move", [](auto& ops, size_t i) { ops[i].piece.begin += ops[i].piece.begin > 0 ? -1 : 1; }},
      {"shorten", [](auto& ops, size_t i) { --ops[i].piece.count; }},
      {"move operand",
       [](auto& ops, size_t i) { ops[i].operand.begin += ops[i].operand.begin > 0 ? -1 : 1; }},
      {"other kind", [](auto& ops, size_t i) {
         ops[i].kind = static_cast<collectives::OpKind>((static_cast<int>(ops[i].kind) + 1) % 6);
       }}};
  int caught = 0;
  for (const collectives::Primitive primitive : collectives::kPrimitives) {
    for (const collectives::Algorithm algorithm : collectives::AlgorithmsFor(primitive)) {
      const CheckOptions options{.rank_order = collectives::AddsInRankOrder(algorithm)};
      const Case good(primitive, algorithm, p, 11);
      ASSERT_EQ(good.Check(options), absl::OkStatus());
      for (int rank = 0; rank < p; ++rank) {
        for (size_t t = 0; t < good.s[static_cast<size_t>(rank)].steps.size(); ++t) {
          const std::vector<collectives::Op>& ops = good.s[static_cast<size_t>(rank)].steps[t].ops;
          for (size_t i = 0; i < ops.size(); ++i) {
            for (const auto& [name, mutate] : mutations) {
              const collectives::Op& op = ops[i];
              if (primitive == collectives::Primitive::kBarrier && name != "drop" &&
                  name != "next peer" && name != "double") {
                continue;  // empty pieces
              }
              if (op.peer < 0 && name == "next peer") continue;  // a copy has no peer
              if (op.kind == collectives::OpKind::kCopy && name == "double")
                continue;  // idempotent
              if (!op.HasOperand() && name == "move operand") continue;
              Case bad = good;
              mutate(bad.Ops(rank, static_cast<int>(t)), i);
              EXPECT_FALSE(bad.Check(options).ok())
                  << name << " rank " << rank << " step " << t << " op " << i << " of "
                  << collectives::PrimitiveName(primitive) << " by "
                  << collectives::AlgorithmName(algorithm) << "\n"
                  << bad.s[static_cast<size_t>(rank)].DebugString();
              ++caught;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(caught, 4000) << "mutants tried";
}

TEST(BrokenScheduleTest, MalformedSchedulesAreRefusedBeforeTheyRun) {
  const auto refuse = [](const std::function<void(collectives::Schedule&)>& breakage) {
    Case c(kAllReduce, collectives::Algorithm::kDirect, 3, 6);
    breakage(c.s[1]);
    EXPECT_EQ(c.Check().code(), absl::StatusCode::kInvalidArgument);
    return c.Fault();
  };
  EXPECT_EQ(refuse([](collectives::Schedule& s) { s.steps[0].ops[0].peer = 3; }),
            "schedule of rank 1, step 0, send in[4, 6) to 3: peer 3 among 3 ranks");
  EXPECT_EQ(refuse([](collectives::Schedule& s) { s.steps[0].ops[0].peer = 1; }),
            "schedule of rank 1, step 0, send in[4, 6) to 1: peer 1 among 3 ranks");
  EXPECT_EQ(refuse([](collectives::Schedule& s) { s.steps[0].ops[0].piece.begin = 5; }),
            "schedule of rank 1, step 0, send in[5, 7) to 2: piece in[5, 7) of 6 elements");
  EXPECT_EQ(refuse([](collectives::Schedule& s) {
              s.AddStep().Copy({0, 1, collectives::Region::kInput}, {0, 1});
            }),
            "schedule of rank 1, step 2, copy in[0, 1) with [0, 1): input would be overwritten");
  EXPECT_EQ(refuse([](collectives::Schedule& s) { s.rank = 2; }),
            "schedule 1 of 3 is of rank 2 of 3");
  EXPECT_EQ(refuse([](collectives::Schedule& s) { s.output = 7; }),
            "rank 1 has 6 elements of input and 7 of output instead of 6 and 6");
}

TEST(BrokenScheduleTest, ASegmentThatIsTooLongIsNamed) {
  collectives::CollectiveShape shape;
  shape.ranks = 2;
  shape.count = 8;
  const auto whole = *collectives::MakeSchedules(kAllReduce, collectives::Algorithm::kRing, shape);
  EXPECT_EQ(CheckTraffic(kAllReduce, collectives::Algorithm::kRing, shape, {}, whole),
            absl::OkStatus());
  shape.segment = 1;
  EXPECT_EQ(CheckTraffic(kAllReduce, collectives::Algorithm::kRing, shape, {}, whole).message(),
            "rank 0 of 2 sends 8 elements in 2 messages; allreduce by ring should send 8 in 8");
}

// ---- Drawings ----

std::string Draw(collectives::Primitive primitive, collectives::Algorithm algorithm, int ranks,
                 int64_t count) {
  const auto drawing = DrawSchedules(Case(primitive, algorithm, ranks, count).s);
  EXPECT_EQ(drawing.status(), absl::OkStatus());
  return "\n" + *drawing;
}

TEST(DrawTest, ARingOfThree) {
  EXPECT_EQ(Draw(kAllReduce, collectives::Algorithm::kRing, 3, 6), R"(
3 ranks, 6 elements in, 6 out
step 0
  0 ==in[0, 2)+> 1 [0, 2)
  1 ==in[2, 4)+> 2 [2, 4)
  2 ==in[4, 6)+> 0 [4, 6)
step 1
  0 ==[4, 6)+> 1
  1 ==[0, 2)+> 2
  2 ==[2, 4)+> 0
step 2
  0 --[2, 4)-> 1
  1 --[4, 6)-> 2
  2 --[0, 2)-> 0
step 3
  0 --[0, 2)-> 1
  1 --[2, 4)-> 2
  2 --[4, 6)-> 0
)");
}

TEST(DrawTest, DirectOfTwo) {
  EXPECT_EQ(Draw(kAllReduce, collectives::Algorithm::kDirect, 2, 4), R"(
2 ranks, 4 elements in, 4 out
step 0
  0 ==in[2, 4)*> 1 [2, 4)
  1 ==in[0, 2)*> 0 [0, 2)
step 1
  0 --[0, 2)-> 1
  1 --[2, 4)-> 0
)");
}

TEST(DrawTest, ABroadcastByATreeOfThree) {
  EXPECT_EQ(Draw(collectives::Primitive::kBroadcast, collectives::Algorithm::kTree, 3, 4), R"(
3 ranks, 4 elements in, 4 out
step 0
  0 --in[0, 4)-> 2 [0, 4)
step 1
  0 --in[0, 4)-> 1 [0, 4)
  0 [0, 4) = in[0, 4)
)");
}

TEST(DrawTest, SchedulesThatDoNotFinishAreNotDrawn) {
  Case c(kAllReduce, collectives::Algorithm::kRing, 3, 6);
  c.Drop(0, 0, c.Find(0, 0, collectives::OpKind::kSend, 1));
  EXPECT_EQ(DrawSchedules(c.s).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tandem
