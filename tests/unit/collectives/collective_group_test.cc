// The public interface of collectives (collectives/group.h), first as documentation, then exactly:
// every primitive, algorithm, type and op on numbers that leave no room for error.
#include "collectives/group.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/collectives/collective_world.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- What each primitive does, on four ranks -------------------------------------------------

class WorkedExamples : public ::testing::Test {
 protected:
  static constexpr int kRanks = 4;
  CollectiveWorld world_{kRanks};
  std::vector<std::vector<float>> out_ = std::vector<std::vector<float>>(kRanks);
};

TEST_F(WorkedExamples, AllReduceGivesTheSumToAll) {
  std::vector<float> in = {0, 1, 2, 3};  // rank r holds [r]
  for (auto& out : out_) out.resize(1);
  ASSERT_TRUE(world_
                  .RunAll([&](collectives::Group& g) {
                    return g.AllReduce(&in[g.rank()], out_[g.rank()].data(), 1,
                                       collectives::DataType::kF32, collectives::ReduceOp::kSum);
                  })
                  .ok());
  for (const auto& out : out_) EXPECT_THAT(out, ElementsAre(6));
}

TEST_F(WorkedExamples, AllGatherGivesEverybodysToAll) {
  std::vector<float> in = {0, 1, 2, 3};
  for (auto& out : out_) out.resize(kRanks);
  ASSERT_TRUE(world_
                  .RunAll([&](collectives::Group& g) {
                    return g.AllGather(&in[g.rank()], out_[g.rank()].data(), 1,
                                       collectives::DataType::kF32);
                  })
                  .ok());
  for (const auto& out : out_) EXPECT_THAT(out, ElementsAre(0, 1, 2, 3));
}

TEST_F(WorkedExamples, BroadcastGivesTheRootsToAll) {
  std::vector<float> in = {0, 1, 2, 3};
  for (auto& out : out_) out.resize(1, -1);
  ASSERT_TRUE(world_
                  .RunAll([&](collectives::Group& g) {
                    return g.Broadcast(&in[g.rank()], out_[g.rank()].data(), 1,
                                       collectives::DataType::kF32,
                                       /*root=*/0);
                  })
                  .ok());
  for (const auto& out : out_) EXPECT_THAT(out, ElementsAre(0));
}

TEST_F(WorkedExamples, ReduceScatterGivesEachRankItsBlockOfTheSum) {
  const std::vector<float> in = {0, 1, 2, 3};  // every rank holds [0, 1, 2, 3]
  for (auto& out : out_) out.resize(1);
  ASSERT_TRUE(world_
                  .RunAll([&](collectives::Group& g) {
                    return g.ReduceScatter(in.data(), out_[g.rank()].data(), 1,
                                           collectives::DataType::kF32,
                                           collectives::ReduceOp::kSum);
                  })
                  .ok());
  for (int r = 0; r < kRanks; ++r) EXPECT_THAT(out_[r], ElementsAre(4 * r));
}

TEST_F(WorkedExamples, AllToAllSendsBlockJOfRankIToBlockIOfRankJ) {
  std::vector<std::vector<float>> in(kRanks);
  for (int i = 0; i < kRanks; ++i) {
    for (int j = 0; j < kRanks; ++j) in[i].push_back(static_cast<float>(10 * i + j));
    out_[i].resize(kRanks);
  }
  ASSERT_TRUE(world_
                  .RunAll([&](collectives::Group& g) {
                    return g.AllToAll(in[g.rank()].data(), out_[g.rank()].data(), 1,
                                      collectives::DataType::kF32);
                  })
                  .ok());
  for (int j = 0; j < kRanks; ++j) EXPECT_THAT(out_[j], ElementsAre(j, 10 + j, 20 + j, 30 + j));
}

TEST_F(WorkedExamples, GatherAndScatterAreEachOthersReverse) {
  std::vector<float> in = {0, 1, 2, 3}, back(kRanks, -1);
  for (auto& out : out_) out.resize(kRanks, -1);
  ASSERT_TRUE(world_
                  .RunAll([&](collectives::Group& g) {
                    return g.Gather(&in[g.rank()], out_[g.rank()].data(), 1,
                                    collectives::DataType::kF32,
                                    /*root=*/2);
                  })
                  .ok());
  EXPECT_THAT(out_[2], ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(out_[0], ElementsAre(-1, -1, -1, -1));
  ASSERT_TRUE(world_
                  .RunAll([&](collectives::Group& g) {
                    return g.Scatter(out_[g.rank()].data(), &back[g.rank()], 1,
                                     collectives::DataType::kF32,
                                     /*root=*/2);
                  })
                  .ok());
  EXPECT_THAT(back, ElementsAre(0, 1, 2, 3));
}

TEST_F(WorkedExamples, SendsAndReceivesOfAGroupStartTogether) {
  std::vector<float> in = {0, 1, 2, 3}, left(kRanks), right(kRanks);
  ASSERT_TRUE(world_
                  .RunAll([&](collectives::Group& g) -> absl::StatusOr<collectives::Work> {
                    const int r = g.rank(), before = (r + 3) % kRanks, after = (r + 1) % kRanks;
                    g.GroupStart();  // without it, everybody would wait in the first Receive
                    (void)g.Receive(&left[r], 1, collectives::DataType::kF32, before);
                    (void)g.Receive(&right[r], 1, collectives::DataType::kF32, after);
                    (void)g.Send(&in[r], 1, collectives::DataType::kF32, before);
                    (void)g.Send(&in[r], 1, collectives::DataType::kF32, after);
                    return g.GroupEnd();
                  })
                  .ok());
  EXPECT_THAT(left, ElementsAre(3, 0, 1, 2));
  EXPECT_THAT(right, ElementsAre(1, 2, 3, 0));
}

TEST_F(WorkedExamples, SeveralOperationsMayBeInFlight) {
  std::vector<std::vector<float>> x(kRanks, {1, 2}), y(kRanks, {3});
  ASSERT_TRUE(world_
                  .RunAll([&](collectives::Group& g) -> absl::StatusOr<collectives::Work> {
                    (void)g.AllReduce(x[g.rank()].data(), x[g.rank()].data(), 2,
                                      collectives::DataType::kF32, collectives::ReduceOp::kSum);
                    (void)g.Barrier();
                    return g.AllReduce(y[g.rank()].data(), y[g.rank()].data(), 1,
                                       collectives::DataType::kF32, collectives::ReduceOp::kMax);
                  })
                  .ok());
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_THAT(x[r], ElementsAre(4, 8));
    EXPECT_THAT(y[r], ElementsAre(3));
  }
}

TEST_F(WorkedExamples, SmallAllReducesOfAGroupBecomeOne) {
  std::vector<std::vector<float>> x(kRanks, {1, 2}), y(kRanks, {3});
  const auto call = [&](collectives::Group& g) -> absl::StatusOr<collectives::Work> {
    g.GroupStart();
    (void)g.AllReduce(x[g.rank()].data(), x[g.rank()].data(), 2, collectives::DataType::kF32,
                      collectives::ReduceOp::kSum);
    (void)g.AllReduce(y[g.rank()].data(), y[g.rank()].data(), 1, collectives::DataType::kF32,
                      collectives::ReduceOp::kSum);
    return g.GroupEnd();
  };
  ASSERT_TRUE(world_.RunAll(call).ok());
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_THAT(x[r], ElementsAre(4, 8));
    EXPECT_THAT(y[r], ElementsAre(12));
    ASSERT_EQ(world_.group(r).Records().size(), 1u);
    EXPECT_EQ(world_.group(r).Records()[0].count, 3);
  }
}

// ---- Everything, exactly ----------------------------------------------------------------------

struct Case {
  collectives::Primitive primitive;
  collectives::AlgorithmChoice choice;
  collectives::DataType type;
  collectives::ReduceOp op;
  int ranks;
  int64_t count;
  int root = 0;
  bool in_place = false;
  size_t misaligned = 0;
};

std::string Text(const Case& c) {
  return absl::StrCat(
      collectives::PrimitiveName(c.primitive), " ", collectives::AlgorithmName(c.choice.algorithm),
      " ", collectives::Name(c.type), " ", collectives::Name(c.op), ", ", c.ranks, " ranks, ",
      c.count, " elements, root ", c.root, c.in_place ? ", in place" : "", ", segment ",
      c.choice.segment_bytes, ", misaligned ", c.misaligned);
}

constexpr double kFactor = 0.5;  // of premulsum

// What rank r must hold at output element i; `in(rank, index)` are the inputs.
double Expected(const Case& c, int r, int64_t i) {
  const auto in = [&](int rank, int64_t index) {
    return collectives::ExactInput(c.op, c.type, rank, index);
  };
  const auto reduced = [&](int64_t index) {
    const double sum = collectives::ExactResult(c.op, c.type, c.ranks, index);
    return c.op == collectives::ReduceOp::kPreMulSum ? sum * kFactor : sum;
  };
  switch (c.primitive) {
    case collectives::Primitive::kAllReduce:
    case collectives::Primitive::kReduce:
      return reduced(i);
    case collectives::Primitive::kReduceScatter:
      return reduced(r * c.count + i);
    case collectives::Primitive::kBroadcast:
      return in(c.root, i);
    case collectives::Primitive::kAllGather:
    case collectives::Primitive::kGather:
      return in(static_cast<int>(i / c.count), i % c.count);
    case collectives::Primitive::kScatter:
      return in(c.root, r * c.count + i);
    case collectives::Primitive::kAllToAll:
      return in(static_cast<int>(i / c.count), r * c.count + i % c.count);
    default:
      return 0;
  }
}

bool InputIsBig(collectives::Primitive p) {
  return p == collectives::Primitive::kReduceScatter || p == collectives::Primitive::kScatter ||
         p == collectives::Primitive::kAllToAll;
}
bool OutputIsBig(collectives::Primitive p) {
  return p == collectives::Primitive::kAllGather || p == collectives::Primitive::kGather ||
         p == collectives::Primitive::kAllToAll;
}

absl::StatusOr<collectives::Work> Call(const Case& c, collectives::Group& g, const void* in,
                                       void* out) {
  collectives::CallOptions call;
  call.choice = c.choice;
  call.factor = kFactor;
  switch (c.primitive) {
    case collectives::Primitive::kAllReduce:
      return g.AllReduce(in, out, c.count, c.type, c.op, call);
    case collectives::Primitive::kReduce:
      return g.Reduce(in, out, c.count, c.type, c.op, c.root, call);
    case collectives::Primitive::kBroadcast:
      return g.Broadcast(in, out, c.count, c.type, c.root, call);
    case collectives::Primitive::kReduceScatter:
      return g.ReduceScatter(in, out, c.count, c.type, c.op, call);
    case collectives::Primitive::kAllGather:
      return g.AllGather(in, out, c.count, c.type, call);
    case collectives::Primitive::kGather:
      return g.Gather(in, out, c.count, c.type, c.root, call);
    case collectives::Primitive::kScatter:
      return g.Scatter(in, out, c.count, c.type, c.root, call);
    case collectives::Primitive::kAllToAll:
      return g.AllToAll(in, out, c.count, c.type, call);
    default:
      return g.Barrier(call);
  }
}

// Runs the case and checks every element of every rank, guards and inputs.
void Check(const Case& c, CollectiveWorld& world) {
  const int64_t in_count = InputIsBig(c.primitive) ? c.count * c.ranks : c.count;
  const int64_t out_count = OutputIsBig(c.primitive) ? c.count * c.ranks : c.count;
  std::vector<collectives::Vector> in, out, before;
  for (int r = 0; r < c.ranks; ++r) {
    in.emplace_back(c.type, in_count, c.misaligned);
    out.emplace_back(c.type, out_count, c.misaligned / 2);
    collectives::FillExact(c.op, r, &in.back());
    before.push_back(in.back());
  }
  // In place, the smaller side is the rank's block of the bigger one.
  const bool big_out = OutputIsBig(c.primitive) && c.primitive != collectives::Primitive::kAllToAll;
  const auto block = [&](int r) {
    return static_cast<size_t>(r * c.count) * collectives::SizeOf(c.type);
  };
  const absl::Status status = world.RunAll([&](collectives::Group& g) {
    const int r = g.rank();
    if (!c.in_place) return Call(c, g, in[r].data(), out[r].data());
    if (big_out) {
      std::memcpy(out[r].data() + block(r), in[r].data(), in[r].size());
      return Call(c, g, out[r].data() + block(r), out[r].data());
    }
    const bool big_in = InputIsBig(c.primitive) && c.primitive != collectives::Primitive::kAllToAll;
    return Call(c, g, in[r].data(), in[r].data() + (big_in ? block(r) : 0));
  });
  ASSERT_TRUE(status.ok()) << Text(c) << ": " << status;
  for (int r = 0; r < c.ranks; ++r) {
    ASSERT_TRUE(in[r].GuardsIntact() && out[r].GuardsIntact()) << Text(c) << ", rank " << r;
    if (!c.in_place) {
      ASSERT_TRUE(in[r] == before[r]) << Text(c) << ", rank " << r << ": input changed";
    }
    if (c.primitive == collectives::Primitive::kBarrier) continue;
    if ((c.primitive == collectives::Primitive::kReduce ||
         c.primitive == collectives::Primitive::kGather) &&
        r != c.root) {
      continue;
    }
    const bool in_input = c.in_place && !big_out;
    const bool in_block =
        in_input && InputIsBig(c.primitive) && c.primitive != collectives::Primitive::kAllToAll;
    const collectives::Vector& got = in_input ? in[r] : out[r];
    for (int64_t i = 0; i < out_count; ++i) {
      const int64_t at = in_block ? r * c.count + i : i;
      const double expected = Expected(c, r, i);
      if (c.op == collectives::ReduceOp::kAverage && collectives::Reduces(c.primitive)) {
        // The sum is exact and times 1 / ranks within 2 units of the last place.
        const double unit =
            std::abs(expected / c.ranks) * (c.type == collectives::DataType::kF64   ? 0x1p-52
                                            : c.type == collectives::DataType::kF32 ? 0x1p-23
                                            : c.type == collectives::DataType::kF16 ? 0x1p-10
                                                                                    : 0x1p-7);
        ASSERT_LE(std::abs(got.Get(at) - expected / c.ranks), 2 * unit)
            << Text(c) << ", rank " << r << ", element " << i;
      } else {
        ASSERT_EQ(got.Get(at), expected) << Text(c) << ", rank " << r << ", element " << i;
      }
    }
  }
}

std::vector<collectives::ReduceOp> OpsOf(collectives::Primitive primitive,
                                         collectives::DataType type) {
  std::vector<collectives::ReduceOp> out;
  for (const collectives::ReduceOp op : collectives::kReduceOps) {
    if (!collectives::Reduces(primitive) && op != collectives::ReduceOp::kSum) continue;
    if (collectives::Defined(op, type)) out.push_back(op);
  }
  return out;
}

class EveryPrimitive : public ::testing::TestWithParam<collectives::Primitive> {};

TEST_P(EveryPrimitive, IsExactForAllAlgorithmsTypesOpsRanksAndCounts) {
  const collectives::Primitive primitive = GetParam();
  int64_t cases = 0;
  for (int p = 1; p <= 17; ++p) {
    CollectiveWorld world(p);
    for (const collectives::Algorithm algorithm : collectives::AlgorithmsFor(primitive)) {
      for (const collectives::DataType type : collectives::kDataTypes) {
        for (const collectives::ReduceOp op : OpsOf(primitive, type)) {
          for (const int64_t count : {0, 1, p - 1, p, p + 1, 1000}) {
            Case c{primitive, {algorithm, 0}, type, op, p, count};
            // What does not multiply the cases takes turns.
            c.in_place = cases % 2 == 1;
            c.root = static_cast<int>(cases % p);
            c.choice.segment_bytes =
                cases % 3 == 1 ? 64 * static_cast<int64_t>(collectives::SizeOf(type)) : 0;
            c.misaligned = cases % 5 == 4 ? 1 : 0;
            ++cases;
            Check(c, world);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
  RecordProperty("cases", absl::StrCat(cases));
}

// Two levels, on hosts of different sizes whose ranks do not lie side by side.
TEST(Hierarchical, IsExactForEveryPlacement) {
  int64_t cases = 0;
  for (const std::vector<int>& hosts : std::vector<std::vector<int>>{
           {0, 1}, {0, 0, 1, 1}, {0, 1, 0, 1, 1}, {2, 0, 0, 0, 1, 2, 0}}) {
    collectives::GroupOptions options;
    options.host_of_rank = hosts;
    const int p = static_cast<int>(hosts.size());
    CollectiveWorld world(p, options);
    for (const collectives::Primitive primitive :
         {collectives::Primitive::kAllReduce, collectives::Primitive::kReduce,
          collectives::Primitive::kBroadcast, collectives::Primitive::kReduceScatter,
          collectives::Primitive::kAllGather}) {
      for (int root = 0; root < p; ++root) {
        for (const int64_t count : {0, 1, p + 1, 1000}) {
          Case c{primitive,
                 {collectives::Algorithm::kHierarchical, 0},
                 collectives::DataType::kF32,
                 collectives::ReduceOp::kSum,
                 p,
                 count};
          c.root = collectives::HasRoot(primitive) ? root : 0;
          c.in_place = cases % 2 == 1;
          c.choice.segment_bytes = cases % 3 == 1 ? 256 : 0;
          ++cases;
          Check(c, world);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, EveryPrimitive, ::testing::ValuesIn(collectives::kPrimitives),
                         [](const auto& param) {
                           return std::string(collectives::PrimitiveName(param.param));
                         });

}  // namespace
}  // namespace tandem
