// What goes wrong in a group, what stays the same whatever happens on the way, and what does not.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/random.h"
#include "collectives/errors.h"
#include "collectives/group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/collectives/collective_world.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

collectives::GroupOptions ShortDeadline() {
  collectives::GroupOptions options;
  options.deadline = absl::Milliseconds(300);
  return options;
}

// ---- Ranks that disagree ----------------------------------------------------------------------

// What rank 1 says when it calls `odd` and the other two ranks call `usual`.
template <typename Usual, typename Odd>
std::string Disagreement(Usual usual, Odd odd) {
  CollectiveWorld world(3, ShortDeadline());
  const auto statuses =
      world.Run([&](collectives::Group& g) { return g.rank() == 1 ? odd(g) : usual(g); });
  for (int r = 0; r < 3; ++r) EXPECT_FALSE(statuses[r].ok()) << "rank " << r;
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kInvalidArgument) << statuses[1];
  return Message(statuses[1]);
}

class RanksThatDisagree : public ::testing::Test {
 protected:
  absl::StatusOr<collectives::Work> Sum(collectives::Group& g, int64_t count,
                                        collectives::DataType type = collectives::DataType::kF32,
                                        collectives::ReduceOp op = collectives::ReduceOp::kSum) {
    void* const at = memory_[static_cast<size_t>(g.rank())].data();
    return g.AllReduce(at, at, count, type, op);
  }
  std::vector<std::vector<double>> memory_ =
      std::vector<std::vector<double>>(3, std::vector<double>(64));
};

TEST_F(RanksThatDisagree, InCount) {
  EXPECT_THAT(Disagreement([&](collectives::Group& g) { return Sum(g, 4); },
                           [&](collectives::Group& g) { return Sum(g, 5); }),
              AllOf(HasSubstr("rank 1 is in allreduce #0 of 5 f32"),
                    HasSubstr("rank 0 in allreduce #0 of 4 f32")));
}

TEST_F(RanksThatDisagree, InType) {
  EXPECT_THAT(
      Disagreement([&](collectives::Group& g) { return Sum(g, 4); },
                   [&](collectives::Group& g) { return Sum(g, 4, collectives::DataType::kF64); }),
      AllOf(HasSubstr("rank 1 is in allreduce #0 of 4 f64"), HasSubstr("of 4 f32")));
}

TEST_F(RanksThatDisagree, InOp) {
  EXPECT_THAT(
      Disagreement([&](collectives::Group& g) { return Sum(g, 4); },
                   [&](collectives::Group& g) {
                     return Sum(g, 4, collectives::DataType::kF32, collectives::ReduceOp::kMax);
                   }),
      AllOf(HasSubstr("rank 1 is in allreduce #0 of 4 f32, max"), HasSubstr("of 4 f32, sum")));
}

TEST_F(RanksThatDisagree, InOrder) {
  EXPECT_THAT(Disagreement(
                  [&](collectives::Group& g) {
                    (void)Sum(g, 4);
                    return g.Barrier();
                  },
                  [&](collectives::Group& g) {
                    (void)g.Barrier();
                    return Sum(g, 4);
                  }),
              AllOf(HasSubstr("rank 1 is in barrier #0 of 0 u8, dissemination"),
                    HasSubstr("in allreduce #0"), Not(HasSubstr("unknown"))));
}

TEST_F(RanksThatDisagree, InRoot) {
  const auto broadcast = [&](collectives::Group& g, int root) {
    return g.Broadcast(memory_[g.rank()].data(), memory_[g.rank()].data(), 4,
                       collectives::DataType::kF32, root);
  };
  CollectiveWorld world(3, ShortDeadline());
  const auto statuses =
      world.Run([&](collectives::Group& g) { return broadcast(g, g.rank() == 1 ? 2 : 0); });
  const bool named = std::any_of(statuses.begin(), statuses.end(), [](const absl::Status& s) {
    return s.code() == absl::StatusCode::kInvalidArgument &&
           Message(s).find("root 2") != std::string::npos &&
           Message(s).find("root 0") != std::string::npos;
  });
  const bool waits = std::any_of(statuses.begin(), statuses.end(), [](const absl::Status& s) {
    return s.code() == absl::StatusCode::kDeadlineExceeded;
  });
  EXPECT_TRUE(named || waits);
}

TEST_F(RanksThatDisagree, InSegments) {
  const auto sum = [&](collectives::Group& g, int64_t segment) {
    collectives::CallOptions call;
    call.choice = collectives::AlgorithmChoice{collectives::Algorithm::kDirect, segment};
    void* const at = memory_[static_cast<size_t>(g.rank())].data();
    return g.AllReduce(at, at, 60, collectives::DataType::kF32, collectives::ReduceOp::kSum, call);
  };
  EXPECT_THAT(Disagreement([&](collectives::Group& g) { return sum(g, 0); },
                           [&](collectives::Group& g) { return sum(g, 16); }),
              HasSubstr("segment sizes differ"));
}

TEST(CollectiveFaults, CallsThatCannotBeRightAreRefusedAtOnce) {
  CollectiveWorld world(3);
  collectives::Group& g = world.group(0);
  float x = 0;
  EXPECT_THAT(
      Message(g.AllReduce(&x, &x, -1, collectives::DataType::kF32, collectives::ReduceOp::kSum)
                  .status()),
      HasSubstr("-1 elements"));
  EXPECT_THAT(
      Message(g.AllReduce(&x, nullptr, 1, collectives::DataType::kF32, collectives::ReduceOp::kSum)
                  .status()),
      HasSubstr("no output"));
  EXPECT_THAT(
      Message(g.AllReduce(&x, &x, 1, collectives::DataType::kF32, collectives::ReduceOp::kBitOr)
                  .status()),
      HasSubstr("not defined"));
  EXPECT_THAT(Message(g.Broadcast(&x, &x, 1, collectives::DataType::kF32, 3).status()),
              HasSubstr("root 3"));
  EXPECT_THAT(Message(g.Send(&x, 1, collectives::DataType::kF32, 0).status()),
              HasSubstr("send to rank 0"));
  EXPECT_THAT(Message(g.Receive(&x, 1, collectives::DataType::kF32, 7).status()),
              HasSubstr("rank 7"));
  EXPECT_FALSE(g.GroupEnd().ok());
  EXPECT_TRUE(g.status().ok());
}

// ---- Ranks that do not answer -----------------------------------------------------------------

TEST(CollectiveFaults, TheDeadlineIsTotalAndNamesWhoIsWaitedFor) {
  CollectiveWorld world(2, ShortDeadline());
  std::vector<float> x(100000);
  const auto work = world.group(0).AllReduce(
      x.data(), x.data(), 100000, collectives::DataType::kF32, collectives::ReduceOp::kSum);
  const absl::Time before = MonotonicNow();
  const absl::Status status = world.group(0).Wait(work);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(MonotonicNow() - before, absl::Milliseconds(200));
  EXPECT_THAT(Message(status), AllOf(HasSubstr("allreduce #0 on rank 0"), HasSubstr("300ms"),
                                     HasSubstr("for rank 1")));
  EXPECT_EQ(world.group(0)
                .AllReduce(x.data(), x.data(), 1, collectives::DataType::kF32,
                           collectives::ReduceOp::kSum)
                .status(),
            status);  // finished
}

TEST(CollectiveFaults, ABrokenLinkNamesTheRankAtItsEndWhereverItBreaks) {
  for (const collectives::Algorithm algorithm :
       collectives::AlgorithmsFor(collectives::Primitive::kAllReduce)) {
    for (const int rounds : {0, 1, 2, 5, 12, 30}) {
      collectives::GroupOptions options;
      options.deadline = absl::Milliseconds(50);
      CollectiveWorld world(4, options, {.capacity = 4096, .partial_seed = 77});
      std::vector<std::vector<float>> x(4, std::vector<float>(5000, 1));
      std::vector<absl::StatusOr<collectives::Work>> work;
      for (int r = 0; r < 4; ++r) {
        collectives::CallOptions call;
        call.choice = collectives::AlgorithmChoice{algorithm, 1024};
        work.push_back(world.group(r).AllReduce(x[r].data(), x[r].data(), 5000,
                                                collectives::DataType::kF32,
                                                collectives::ReduceOp::kSum, call));
      }
      for (int i = 0; i < rounds; ++i) {
        for (int r = 0; r < 4; ++r) (void)world.group(r).Test(*work[r]);
      }
      for (int r = 0; r < 4; ++r) {
        if (r != 2) world.link(2, r).Break(absl::UnavailableError("gone"));
      }
      for (const int r : {0, 1, 3}) {
        const absl::Status status = world.group(r).Wait(work[r]);
        if (status.ok()) continue;                                           // had all it needed
        if (status.code() == absl::StatusCode::kDeadlineExceeded) continue;  // no word of its own
        EXPECT_EQ(collectives::LostPeer(status), 2)
            << collectives::AlgorithmName(algorithm) << ": " << status;
        EXPECT_THAT(Message(status), HasSubstr("rank 2 is lost: gone"));
      }
    }
  }
}

// ---- Bits -------------------------------------------------------------------------------------

std::vector<std::vector<float>> RandomVectors(int ranks, int64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<std::vector<float>> out(static_cast<size_t>(ranks));
  for (auto& v : out) {
    for (int64_t i = 0; i < count; ++i) v.push_back(static_cast<float>(random.Normal()));
  }
  return out;
}

using Vectors = std::vector<std::vector<float>>;

// All-reduces in place, as `parts` calls of near-equal size.
Vectors Reduced(Vectors x, const collectives::AlgorithmChoice& choice, int parts = 1,
                uint64_t jitter = 0, bool fused = false) {
  CollectiveWorld world(static_cast<int>(x.size()), {}, {.capacity = 8192, .partial_seed = jitter});
  const collectives::Blocks block(static_cast<int64_t>(x[0].size()), parts);
  const absl::Status status =
      world.RunAll([&](collectives::Group& g) -> absl::StatusOr<collectives::Work> {
        collectives::CallOptions call;
        if (!fused) call.choice = choice;
        absl::StatusOr<collectives::Work> last = collectives::Work{0};
        if (fused) g.GroupStart();
        for (int i = 0; i < parts; ++i) {
          float* const at = x[static_cast<size_t>(g.rank())].data() + block(i).begin;
          last = g.AllReduce(at, at, block(i).count, collectives::DataType::kF32,
                             collectives::ReduceOp::kSum, call);
        }
        return fused ? g.GroupEnd() : last;
      });
  EXPECT_TRUE(status.ok()) << status;
  return x;
}

TEST(CollectiveBits, AllRanksHoldTheSameAndEveryLaunchGivesTheSame) {
  for (const collectives::Algorithm algorithm :
       collectives::AlgorithmsFor(collectives::Primitive::kAllReduce)) {
    for (const int p : {2, 3, 4, 7, 8}) {
      const Vectors in = RandomVectors(p, 3001, 5);
      const Vectors once = Reduced(in, {algorithm, 1024});
      for (int r = 1; r < p; ++r)
        EXPECT_EQ(once[0], once[r]) << collectives::AlgorithmName(algorithm) << " " << p;
      EXPECT_EQ(once, Reduced(in, {algorithm, 1024})) << collectives::AlgorithmName(algorithm);
      EXPECT_EQ(once, Reduced(in, {algorithm, 1024}, 1, /*jitter=*/99))
          << collectives::AlgorithmName(algorithm);
    }
  }
}

TEST(CollectiveBits, RankOrderDoesNotDependOnCuttingFusingSegmentsOrArrival) {
  for (const int p : {2, 4, 8}) {
    const Vectors in = RandomVectors(p, 3001, 6);
    const Vectors whole = Reduced(in, {collectives::Algorithm::kDirect, 0});
    EXPECT_EQ(whole, Reduced(in, {collectives::Algorithm::kDirect, 256}));
    EXPECT_EQ(whole, Reduced(in, {collectives::Algorithm::kDirect, 1024}, 7));
    EXPECT_EQ(whole, Reduced(in, {collectives::Algorithm::kDirect, 1024}, 7, /*jitter=*/3));
    EXPECT_EQ(whole, Reduced(in, {collectives::Algorithm::kOneShot, 0}));
    EXPECT_EQ(whole, Reduced(in, {}, 7, 0, /*fused=*/true));
    // What "rank order" means.
    for (size_t i = 0; i < in[0].size(); ++i) {
      float sum = in[0][i];
      for (int r = 1; r < p; ++r) sum += in[static_cast<size_t>(r)][i];
      ASSERT_EQ(whole[0][i], sum);
    }
  }
}

// Cutting a vector in two gives its elements other places in a ring, and so another order of
// additions: of random numbers so large a share of the sums has other bits. Without it the test
// above would show nothing. A tree over ranks adds in an order of its own, but each element in the
// same one.
TEST(CollectiveBits, CuttingChangesTheSumsOfARingAlone) {
  constexpr int kCount = 30000;
  for (const auto& [p, share] : {std::pair(4, 0.30), std::pair(8, 0.50), std::pair(16, 0.65)}) {
    const Vectors in = RandomVectors(p, kCount, 6);
    const auto changed = [&in](collectives::Algorithm algorithm) {
      const Vectors whole = Reduced(in, {algorithm, 0}), cut = Reduced(in, {algorithm, 0}, 2);
      int differ = 0;
      for (size_t i = 0; i < kCount; ++i) differ += whole[0][i] != cut[0][i] ? 1 : 0;
      return static_cast<double>(differ) / kCount;
    };
    EXPECT_NEAR(changed(collectives::Algorithm::kRing), share, 0.05) << p;
    EXPECT_EQ(changed(collectives::Algorithm::kRecursiveDoubling), 0) << p;
    EXPECT_EQ(changed(collectives::Algorithm::kDirect), 0) << p;
  }
}

TEST(CollectiveBits, ReproducibleGroupsUseRankOrderWhateverTheSize) {
  collectives::GroupOptions options;
  options.reproducible = true;
  options.chooser = [](collectives::Primitive, int64_t) {
    return collectives::AlgorithmChoice{collectives::Algorithm::kRing, 0};
  };
  CollectiveWorld world(4, options);
  EXPECT_EQ(world.group(0).Choose(collectives::Primitive::kAllReduce, 1 << 20).algorithm,
            collectives::Algorithm::kDirect);
  EXPECT_EQ(world.group(0).Choose(collectives::Primitive::kAllGather, 1 << 20).algorithm,
            collectives::Algorithm::kRing);
}

// ---- Uneven counts, partial transfers ---------------------------------------------------------

TEST(CollectiveUneven, VariantsWithCountsMoveEveryBlockToItsPlace) {
  const std::vector<int64_t> counts = {3, 0, 5, 1};
  const int64_t total = 9;
  for (const uint64_t jitter : {0, 1, 2}) {
    CollectiveWorld world(4, {}, {.capacity = 4096, .partial_seed = jitter});
    std::vector<std::vector<int32_t>> mine(4), all(4, std::vector<int32_t>(total, -1)),
        back(4, std::vector<int32_t>(5, -1)), at_root(4, std::vector<int32_t>(total, -1));
    std::vector<int32_t> expected;
    for (int r = 0; r < 4; ++r) {
      for (int64_t i = 0; i < counts[r]; ++i) {
        mine[r].push_back(static_cast<int32_t>(10 * r + i));
        expected.push_back(mine[r].back());
      }
    }
    ASSERT_TRUE(world
                    .RunAll([&](collectives::Group& g) {
                      const auto r = static_cast<size_t>(g.rank());
                      (void)g.AllGatherV(mine[r].data(), all[r].data(), counts,
                                         collectives::DataType::kI32);
                      (void)g.GatherV(mine[r].data(), at_root[r].data(), counts,
                                      collectives::DataType::kI32, 3);
                      return g.ScatterV(all[r].data(), back[r].data(), counts,
                                        collectives::DataType::kI32, 1);
                    })
                    .ok());
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(all[r], expected);
      EXPECT_TRUE(std::equal(mine[r].begin(), mine[r].end(), back[r].begin()));
      EXPECT_EQ(back[r][counts[r] == 5 ? 4 : counts[r]], counts[r] == 5 ? mine[r][4] : -1);
    }
    EXPECT_EQ(at_root[3], expected);
    EXPECT_EQ(at_root[0], std::vector<int32_t>(total, -1));
  }
}

TEST(CollectiveUneven, AllToAllWithCounts) {
  for (const collectives::Algorithm algorithm :
       collectives::AlgorithmsFor(collectives::Primitive::kAllToAll)) {
    if (algorithm == collectives::Algorithm::kBruck) continue;  // needs equal counts
    const auto count = [](int i, int j) { return static_cast<int64_t>((3 * i + 5 * j) % 4); };
    CollectiveWorld world(5, {}, {.capacity = 4096, .partial_seed = 9});
    std::vector<std::vector<int64_t>> in(5), out(5), expected(5), send(5), receive(5);
    for (int i = 0; i < 5; ++i) {
      for (int j = 0; j < 5; ++j) {
        send[i].push_back(count(i, j));
        receive[i].push_back(count(j, i));
        for (int64_t k = 0; k < count(i, j); ++k) in[i].push_back(100 * i + 10 * j + k);
        for (int64_t k = 0; k < count(j, i); ++k) expected[i].push_back(100 * j + 10 * i + k);
      }
      out[i].resize(expected[i].size());
    }
    ASSERT_TRUE(world
                    .RunAll([&](collectives::Group& g) {
                      const auto r = static_cast<size_t>(g.rank());
                      collectives::CallOptions call;
                      call.choice = collectives::AlgorithmChoice{algorithm, 0};
                      return g.AllToAllV(in[r].data(), send[r], out[r].data(), receive[r],
                                         collectives::DataType::kI64, call);
                    })
                    .ok());
    EXPECT_EQ(out, expected) << collectives::AlgorithmName(algorithm);
  }
}

// Transfers stop at every byte, through queues smaller than a message.
TEST(CollectiveUneven, LargeMessagesThroughSmallQueuesInRandomParts) {
  for (const collectives::Algorithm algorithm :
       collectives::AlgorithmsFor(collectives::Primitive::kAllReduce)) {
    for (const uint64_t seed : {11, 12, 13}) {
      CollectiveWorld world(4, {}, {.capacity = 4096, .partial_seed = seed});
      std::vector<collectives::Vector> x;
      for (int r = 0; r < 4; ++r) {
        x.emplace_back(collectives::DataType::kBF16, 20011, 1);
        collectives::FillExact(collectives::ReduceOp::kSum, r, &x.back());
      }
      collectives::CallOptions call;
      call.choice = collectives::AlgorithmChoice{algorithm, 2048};
      const absl::Status status = world.RunAll([&](collectives::Group& g) {
        return g.AllReduce(x[g.rank()].data(), x[g.rank()].data(), 20011,
                           collectives::DataType::kBF16, collectives::ReduceOp::kSum, call);
      });
      ASSERT_TRUE(status.ok()) << collectives::AlgorithmName(algorithm) << ": " << status;
      for (int64_t i = 0; i < 20011; ++i) {
        ASSERT_EQ(x[3].Get(i), collectives::ExactResult(collectives::ReduceOp::kSum,
                                                        collectives::DataType::kBF16, 4, i))
            << collectives::AlgorithmName(algorithm) << " at " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tandem
