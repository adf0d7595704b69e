// The engine: right sums over a bad network, bit by bit; and every way in which it can fail, named.
#include "collectives/legacy/engine.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"
#include "tests/unit/collective_mesh.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using Vectors = std::vector<std::vector<float>>;  // by rank

constexpr AllReduceAlgorithm kRing = AllReduceAlgorithm::kRing;
constexpr AllReduceAlgorithm kDirect = AllReduceAlgorithm::kDirect;

std::set<int64_t> InterestingCounts(int p) { return {0, 1, p - 1, p, p + 1, 1000}; }

// Small integers times one power of two: any order of additions gives the same sum, exactly, so a
// contribution that is lost, doubled or put elsewhere cannot hide in rounding.
Vectors ExactVectors(int ranks, int64_t count, Random& random) {
  Vectors vectors(static_cast<size_t>(ranks), std::vector<float>(static_cast<size_t>(count)));
  for (auto& vector : vectors) {
    for (float& x : vector) x = (static_cast<float>(random.Uniform(2001)) - 1000) * 0x1p-7f;
  }
  return vectors;
}

Vectors RandomVectors(int ranks, int64_t count, Random& random) {
  Vectors vectors(static_cast<size_t>(ranks), std::vector<float>(static_cast<size_t>(count)));
  for (auto& vector : vectors) {
    for (float& x : vector) x = static_cast<float>(random.Normal());
  }
  return vectors;
}

// The definition: a plain loop in rank order, starting from a copy of the first.
std::vector<float> RankOrderSum(const Vectors& vectors) {
  std::vector<float> sum = vectors[0];
  for (size_t rank = 1; rank < vectors.size(); ++rank) {
    for (size_t i = 0; i < sum.size(); ++i) {
      const volatile float added = sum[i] + vectors[rank][i];  // volatile: no fused arithmetic
      sum[i] = added;
    }
  }
  return sum;
}

int64_t DifferingBits(const std::vector<float>& a, const std::vector<float>& b) {
  int64_t differing = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    differing += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]);
  }
  return differing;
}

// Runs operation `number` on all ranks of the mesh, in place.
void AllReduce(Mesh& mesh, AllReduceAlgorithm algorithm, Vectors& vectors, uint64_t number = 0) {
  const auto schedules =
      AllReduceSchedules(algorithm, mesh.ranks(), static_cast<int64_t>(vectors[0].size()));
  mesh.Forget();
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    ASSERT_EQ(mesh.Start(rank, number, &schedules[rank], absl::MakeSpan(vectors[rank])),
              absl::OkStatus());
  }
  mesh.Run();
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    ASSERT_EQ(mesh.completed(rank).size(), 1u) << "rank " << rank;
    EXPECT_EQ(mesh.completed(rank)[0].operation, number);
    EXPECT_EQ(mesh.completed(rank)[0].status, absl::OkStatus());
  }
}

Vectors AllReduced(AllReduceAlgorithm algorithm, Vectors vectors) {
  Mesh mesh(static_cast<int>(vectors.size()), TestSeed());
  AllReduce(mesh, algorithm, vectors);
  return vectors;
}

// ---- The worked example -----------------------------------------------------

// Four ranks, rank r holds [r]: an all-reduce leaves [6] everywhere.
TEST(AllReduceExample, FourRanksEachWithItsOwnNumber) {
  for (const AllReduceAlgorithm algorithm : kAllReduceAlgorithms) {
    EXPECT_EQ(AllReduced(algorithm, {{0}, {1}, {2}, {3}}), (Vectors{{6}, {6}, {6}, {6}}));
  }
}

// Every rank holds [0, 1, 2, 3]: element r becomes 4r.
TEST(AllReduceExample, FourRanksWithTheSameVector) {
  const std::vector<float> same = {0, 1, 2, 3}, sum = {0, 4, 8, 12};
  for (const AllReduceAlgorithm algorithm : kAllReduceAlgorithms) {
    EXPECT_EQ(AllReduced(algorithm, {same, same, same, same}), (Vectors{sum, sum, sum, sum}));
  }
}

// ---- Right sums -------------------------------------------------------------

TEST(AllReduceTest, IsExactOverANetworkThatDelaysReordersDuplicatesAndDrops) {
  const MeshFaults faults{.drop = 0.05, .duplicate = 0.05, .reorder = true};
  for (const AllReduceAlgorithm algorithm : kAllReduceAlgorithms) {
    for (int p = 1; p <= 17; ++p) {
      for (const int64_t count : InterestingCounts(p)) {
        SCOPED_TRACE(absl::StrCat(AllReduceAlgorithmName(algorithm), " p=", p, " count=", count,
                                  " --seed=", TestSeed()));
        Random random(TestSeed() * 1000 + static_cast<uint64_t>(p));
        Mesh mesh(p, random.Next64(), faults);
        Vectors vectors = ExactVectors(p, count, random);
        const std::vector<float> want = RankOrderSum(vectors);
        AllReduce(mesh, algorithm, vectors);
        for (const auto& have : vectors) EXPECT_EQ(DifferingBits(have, want), 0);
      }
    }
  }
}

TEST(AllReduceTest, AllRanksEndWithTheSameBits) {
  Random random(TestSeed());
  for (const AllReduceAlgorithm algorithm : kAllReduceAlgorithms) {
    for (const int p : {2, 5, 8}) {
      const Vectors sums = AllReduced(algorithm, RandomVectors(p, 1001, random));
      for (const auto& sum : sums) EXPECT_EQ(DifferingBits(sum, sums[0]), 0);
    }
  }
}

TEST(AllReduceTest, DirectIsTheRankOrderLoopBitForBit) {
  Random random(TestSeed());
  for (const int p : {1, 2, 3, 4, 8, 16}) {
    const Vectors vectors = RandomVectors(p, 4099, random);
    EXPECT_EQ(DifferingBits(AllReduced(kDirect, vectors)[0], RankOrderSum(vectors)), 0) << p;
  }
}

// All-reduces the vectors in two halves, which moves every block boundary.
std::vector<float> ReducedInTwo(AllReduceAlgorithm algorithm, const Vectors& vectors) {
  const size_t cut = vectors[0].size() / 2;
  Vectors front, back;
  for (const auto& v : vectors) {
    front.emplace_back(v.begin(), v.begin() + static_cast<int64_t>(cut));
    back.emplace_back(v.begin() + static_cast<int64_t>(cut), v.end());
  }
  std::vector<float> sum = AllReduced(algorithm, front)[0];
  const std::vector<float> rest = AllReduced(algorithm, back)[0];
  sum.insert(sum.end(), rest.begin(), rest.end());
  return sum;
}

TEST(AllReduceTest, SplittingTheBufferKeepsTheBitsOfDirect) {
  Random random(TestSeed());
  for (const int p : {4, 8, 16}) {
    const Vectors vectors = RandomVectors(p, 10'000, random);
    EXPECT_EQ(DifferingBits(AllReduced(kDirect, vectors)[0], ReducedInTwo(kDirect, vectors)), 0);
  }
}

// Shows that the comparison above has teeth: for ring, splitting changes 30, 50 and 65 % of the
// bits.
TEST(AllReduceTest, SplittingTheBufferChangesTheBitsOfRing) {
  Random random(TestSeed());
  const std::vector<std::pair<int, double>> expected = {{4, .30}, {8, .50}, {16, .65}};
  for (const auto& [p, share] : expected) {
    const Vectors vectors = RandomVectors(p, 10'000, random);
    const double differing = static_cast<double>(
        DifferingBits(AllReduced(kRing, vectors)[0], ReducedInTwo(kRing, vectors)));
    EXPECT_NEAR(differing / 10'000, share, .07) << "p=" << p;
  }
}

TEST(AllReduceTest, SeveralOperationsInFlightOverABadNetwork) {
  const int p = 4, operations = 60, window = 3;
  const MeshFaults faults{.drop = 0.1, .duplicate = 0.1, .reorder = true};
  Random random(TestSeed());
  Mesh mesh(p, random.Next64(), faults, {.max_in_flight = window});
  std::vector<Vectors> data;
  std::vector<std::vector<float>> want;
  std::vector<std::vector<Schedule>> schedules;
  for (int n = 0; n < operations; ++n) {
    data.push_back(ExactVectors(p, n % 13, random));
    want.push_back(RankOrderSum(data.back()));
    schedules.push_back(AllReduceSchedules(n % 2 ? kRing : kDirect, p, n % 13));
  }
  // Each rank starts operations as soon as it may, at its own pace.
  std::vector<int> next(p);
  const auto start_some = [&] {
    for (int rank = 0; rank < p; ++rank) {
      if (next[rank] == operations || random.Bernoulli(.5)) continue;
      const int n = next[rank];
      const absl::Status status = mesh.Start(rank, static_cast<uint64_t>(n), &schedules[n][rank],
                                             absl::MakeSpan(data[n][rank]));
      if (status.ok()) ++next[rank];
      ASSERT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
    }
  };
  for (int step = 0; step < 1'000'000; ++step) {
    start_some();
    const bool more = mesh.Step();
    if (!more && next == std::vector<int>(p, operations)) break;
  }
  for (int rank = 0; rank < p; ++rank) {
    ASSERT_EQ(mesh.completed(rank).size(), static_cast<size_t>(operations));
    for (const auto& done : mesh.completed(rank)) EXPECT_EQ(done.status, absl::OkStatus());
    for (int n = 0; n < operations; ++n) EXPECT_EQ(DifferingBits(data[n][rank], want[n]), 0);
  }
}

TEST(AllReduceTest, EarlySegmentsBeyondTheBoundAreDroppedAndAskedForLater) {
  Mesh mesh(2, TestSeed(), {}, {.max_early_bytes = 100});
  const auto schedules = AllReduceSchedules(kDirect, 2, 1000);
  Vectors vectors = {std::vector<float>(1000, 1), std::vector<float>(1000, 2)};
  ASSERT_EQ(mesh.Start(0, 0, &schedules[0], absl::MakeSpan(vectors[0])), absl::OkStatus());
  while (!mesh.in_flight().empty()) mesh.Step();  // rank 1 has not started: no room for it
  const absl::Time before = mesh.now();
  ASSERT_EQ(mesh.Start(1, 0, &schedules[1], absl::MakeSpan(vectors[1])), absl::OkStatus());
  mesh.Run();
  EXPECT_EQ(vectors[0], std::vector<float>(1000, 3));
  EXPECT_EQ(vectors[1], std::vector<float>(1000, 3));
  EXPECT_LT(mesh.now() - before, absl::Seconds(1)) << "it knows that it dropped, and asks at once";
}

// A source that counts the buffers in use.
class CountingSource final : public BufferSource {
 public:
  Buffer Alloc(size_t bytes) override {
    auto* block = new Block(this, bytes);
    return Buffer(block, block->data(), bytes);
  }
  int live = 0;

 private:
  class Block final : public BufferBlock {
   public:
    Block(CountingSource* source, size_t bytes) : source_(source), words_(bytes / 8 + 1) {
      ++source_->live;
    }
    uint8_t* data() { return reinterpret_cast<uint8_t*>(words_.data()); }

   private:
    void Recycle() override {
      --source_->live;
      delete this;
    }
    CountingSource* const source_;
    std::vector<uint64_t> words_;
  };
};

bool IsFinishedFrame(const Mesh::InFlight& in_flight) {
  const auto parsed = DecodeFrame(in_flight.frame);
  return parsed.ok() && parsed->header.flags == static_cast<uint8_t>(SegmentKind::kFinished);
}

// Sent segments are kept for ranks that ask again; no longer than needed, and not without bound.
TEST(KeptSegmentsTest, AreDroppedWhenTheirReceiverHasFinished) {
  const int p = 4, buffers_an_operation = p * 2 * (p - 1) * 2;  // header and values of a message
  for (const AllReduceAlgorithm algorithm : kAllReduceAlgorithms) {
    CountingSource source;
    Mesh mesh(p, TestSeed(), {}, {}, &source);
    for (uint64_t number = 0; number < 10; ++number) {
      Vectors vectors(p, std::vector<float>(8, 1));
      AllReduce(mesh, algorithm, vectors, number);
      // Ring is told at once by frames of its own, direct by the segments of the next operation.
      EXPECT_EQ(source.live, algorithm == kRing ? 0 : buffers_an_operation) << number;
    }
  }
}

TEST(KeptSegmentsTest, AreBoundedEvenIfTheWordNeverComes) {
  const int p = 4, window = 2, buffers_an_operation = p * 2 * (p - 1) * 2;
  CountingSource source;
  Mesh mesh(p, TestSeed(), {}, {.max_in_flight = window}, &source);
  const auto schedules = AllReduceSchedules(kRing, p, 8);
  Vectors vectors(p, std::vector<float>(8, 1));
  for (uint64_t number = 0; number < 20; ++number) {
    for (int rank = 0; rank < p; ++rank) {
      ASSERT_EQ(mesh.Start(rank, number, &schedules[rank], absl::MakeSpan(vectors[rank])),
                absl::OkStatus());
    }
    while (!mesh.in_flight().empty()) {
      auto& frames = mesh.in_flight();
      frames.erase(std::remove_if(frames.begin(), frames.end(), IsFinishedFrame), frames.end());
      if (!frames.empty()) mesh.Step();
    }
    EXPECT_LE(source.live, 2 * window * buffers_an_operation);
    EXPECT_GT(source.live, 0) << "the word did come";
  }
}

// ---- Failing ----------------------------------------------------------------

struct ThreeRanks {
  explicit ThreeRanks(AllReduceAlgorithm algorithm, int64_t count = 6)
      : mesh(3, TestSeed()),
        schedules(AllReduceSchedules(algorithm, 3, count)),
        vectors(3, std::vector<float>(static_cast<size_t>(count), 1)) {}
  void Start(int rank, absl::Duration deadline = absl::Hours(1)) {
    ASSERT_EQ(mesh.Start(rank, 0, &schedules[rank], absl::MakeSpan(vectors[rank]), deadline),
              absl::OkStatus());
  }
  absl::Status Result(int rank) {
    EXPECT_EQ(mesh.completed(rank).size(), 1u);
    return mesh.completed(rank).empty() ? absl::OkStatus() : mesh.completed(rank)[0].status;
  }
  Mesh mesh;
  std::vector<Schedule> schedules;
  Vectors vectors;
};

TEST(EngineFailureTest, ALostPeerEndsTheOperationOnAllSurvivorsWithItsName) {
  for (const AllReduceAlgorithm algorithm : kAllReduceAlgorithms) {
    ThreeRanks t(algorithm);
    for (int rank = 0; rank < 3; ++rank) t.Start(rank);
    t.mesh.Kill(2);
    for (int i = 0; i < 20; ++i) t.mesh.Step();
    EXPECT_EQ(t.mesh.engine(0).running(), 1) << "waits for rank 2";
    t.mesh.Lose(0, 2, "connection reset");
    t.mesh.Run();
    EXPECT_EQ(t.Result(0), absl::UnavailableError("rank 2 is lost: connection reset"));
    EXPECT_EQ(t.Result(1),
              absl::UnavailableError("rank 0 gave up: rank 2 is lost: connection reset"));
    EXPECT_EQ(t.mesh.Start(0, 1, &t.schedules[0], absl::MakeSpan(t.vectors[0])).code(),
              absl::StatusCode::kUnavailable)
        << "a group that has failed starts nothing more";
  }
}

TEST(EngineFailureTest, ARankThatMissedTheBadNewsHearsThemWhenItAsks) {
  ThreeRanks t(kDirect);
  for (int rank = 0; rank < 3; ++rank) t.Start(rank);
  t.mesh.in_flight().clear();
  t.mesh.Lose(0, 2, "killed");
  t.mesh.in_flight().clear();  // the news are lost too
  EXPECT_EQ(t.mesh.engine(1).running(), 1);
  t.mesh.Kill(2);
  t.mesh.Run();
  EXPECT_EQ(t.Result(1), absl::UnavailableError("rank 0 gave up: rank 2 is lost: killed"));
}

TEST(EngineFailureTest, TheDeadlineNamesWhomItWaitedForForWhatAndSinceWhen) {
  ThreeRanks t(kDirect);
  t.mesh.Kill(2);  // without a word
  t.Start(0, absl::Seconds(5));
  t.Start(1, absl::Seconds(60));
  while (!t.mesh.in_flight().empty()) t.mesh.Step();
  const absl::Time heard = absl::UnixEpoch() + absl::Milliseconds(1);
  ASSERT_LT(t.mesh.now(), heard);
  t.mesh.Run();
  EXPECT_EQ(t.Result(0).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(t.Result(0).message()),
              testing::MatchesRegex("operation 0 on rank 0: not done after 5s: waits "
                                    "4\\.99[0-9]*s for rank 2 \\(message 0, elements "
                                    "\\[0, 2\\)\\) in step 1 of 2"));
  EXPECT_THAT(std::string(t.Result(1).message()),
              HasSubstr("rank 0 gave up: operation 0 on rank 0: not done after 5s"));
}

// The deadline is one for the whole operation: progress does not start it again.
TEST(EngineFailureTest, ProgressDoesNotProlongTheDeadline) {
  ThreeRanks t(kRing, 3);
  const absl::Time start = t.mesh.now();
  for (int rank = 0; rank < 3; ++rank) t.Start(rank, absl::Seconds(10));
  while (t.mesh.completed(0).empty()) {
    t.mesh.Pass(absl::Seconds(3));  // each message takes three seconds: some come, not all
    t.mesh.TickAll();
    t.mesh.Step();
  }
  EXPECT_EQ(t.Result(0).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(t.mesh.now() - start, absl::Seconds(13));
}

TEST(EngineFailureTest, RanksWithDifferentCountsAreBothNamed) {
  for (const AllReduceAlgorithm algorithm : kAllReduceAlgorithms) {
    ThreeRanks t(algorithm, 6);
    const auto other = AllReduceSchedules(algorithm, 3, 7);
    std::vector<float> seven(7);
    ASSERT_EQ(t.mesh.Start(1, 0, &other[1], absl::MakeSpan(seven)), absl::OkStatus());
    t.Start(0);
    t.Start(2);
    t.mesh.Run();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(t.Result(rank).code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(t.Result(rank).message()), HasSubstr("rank 1 has 7"));
      EXPECT_THAT(std::string(t.Result(rank).message()),
                  testing::AnyOf(HasSubstr("rank 0 has 6"), HasSubstr("rank 2 has 6")));
    }
  }
}

TEST(EngineFailureTest, ARankWithNothingToReduceIsNoticedToo) {
  ThreeRanks t(kDirect, 6);
  const auto empty = AllReduceSchedules(kDirect, 3, 0);
  ASSERT_EQ(t.mesh.Start(1, 0, &empty[1], {}), absl::OkStatus());
  EXPECT_EQ(t.mesh.engine(1).running(), 1) << "an all-reduce of nothing waits for the others too";
  t.Start(0);
  t.Start(2);
  t.mesh.Run();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(std::string(t.Result(rank).message()), HasSubstr("rank 1 has 0"));
  }
}

TEST(EngineFailureTest, WrongCallsAreRefused) {
  ThreeRanks t(kDirect);
  const auto start = [&](uint64_t number, const Schedule& schedule, size_t count) {
    return std::string(
        t.mesh.Start(0, number, &schedule, absl::MakeSpan(t.vectors[0]).first(count)).message());
  };
  EXPECT_EQ(start(1, t.schedules[0], 6), "operation 1 on rank 0: the next one is number 0");
  EXPECT_EQ(start(0, t.schedules[0], 5),
            "operation 0: schedule of rank 0 of 3 for 6 elements, on rank 0 of 3 with 5");
  EXPECT_EQ(start(0, t.schedules[1], 6),
            "operation 0: schedule of rank 1 of 3 for 6 elements, on rank 0 of 3 with 6");
  for (uint64_t number = 0; number < 4; ++number) EXPECT_EQ(start(number, t.schedules[0], 6), "");
  EXPECT_EQ(start(4, t.schedules[0], 6),
            "operation 4 on rank 0: operation 0 is not complete, and at most 4 may run");
}

// ---- Segments that should not be --------------------------------------------

class BadSegmentTest : public testing::Test {
 protected:
  BadSegmentTest() : t_(kDirect) {
    header_.kind = FrameKind::kSegment;
    header_.sender = EndpointId::Worker(1);
    header_.samples = 6;
  }
  // What rank 0 says of a segment of `floats` values from rank `from`.
  std::string Give(int from, size_t floats) {
    Frame frame = EncodeDataFrame(source_, header_, {}, Buffer(), source_.Alloc(floats * 4));
    const auto parsed = DecodeFrame(std::move(frame));
    EXPECT_EQ(parsed.status(), absl::OkStatus());
    return std::string(t_.mesh.Give(0, from, *parsed).message());
  }
  ThreeRanks t_;
  HeapBufferSource source_;
  FrameHeader header_;
};

TEST_F(BadSegmentTest, EachIsRefusedWithTheNameOfItsSenderAndHarmsNothing) {
  t_.Start(0);
  EXPECT_EQ(Give(1, 3), "operation 0: message 0 from rank 1 has 12 bytes, want 8");
  EXPECT_EQ(Give(7, 2), "segment from rank 7 to rank 0 in a group of 3");
  EXPECT_EQ(Give(0, 2), "segment from rank 0 to rank 0 in a group of 3");
  EXPECT_EQ(Give(-1, 2), "segment from rank -1 to rank 0 in a group of 3");
  header_.request = 5;
  EXPECT_EQ(
      Give(1, 2),
      "segment of operation 5 from rank 1: rank 0 is at 1, and a rank may be at most 4 ahead");
  header_.request = UINT64_MAX;
  EXPECT_THAT(Give(2, 2), HasSubstr("from rank 2: rank 0 is at 1"));
  header_.request = 0;
  header_.step = 2;
  EXPECT_THAT(Give(1, 2), HasSubstr("message 2 from rank 1, which should send 2"));
  header_.step = -1;
  EXPECT_THAT(Give(1, 2), HasSubstr("message -1 from rank 1"));
  header_.flags = static_cast<uint8_t>(SegmentKind::kAsk);
  EXPECT_THAT(Give(2, 0), HasSubstr("rank 2 asks for message -1 of operation 0"));
  header_.flags = 77;
  EXPECT_EQ(Give(1, 0), "segment of unknown kind 77 from rank 1");
  header_.flags = 0;
  header_.first_step = 1000;
  EXPECT_THAT(Give(1, 2), HasSubstr("rank 1 says that it has finished operations below 1000"));
  header_.first_step = 0;
  header_.group = 3;
  EXPECT_EQ(Give(2, 2), "segment from rank 2 is of group 3, this is group 0");
  header_.kind = FrameKind::kAck;
  EXPECT_EQ(Give(2, 0), "frame of kind 4 from rank 2 is no segment");

  t_.Start(1);
  t_.Start(2);
  t_.mesh.Run();
  EXPECT_EQ(t_.vectors[0], std::vector<float>(6, 3)) << "the operation goes on regardless";
}

TEST_F(BadSegmentTest, ABadSegmentBeforeTheStartEndsTheOperationWithTheNameOfItsSender) {
  EXPECT_EQ(Give(1, 3), "") << "what it should be is not known yet";
  t_.Start(0);
  EXPECT_EQ(t_.Result(0).message(), "operation 0: message 0 from rank 1 has 12 bytes, want 8");
}

TEST_F(BadSegmentTest, TheTextOfAnAbortIsBoundedAndMadePrintable) {
  t_.Start(0);
  header_.flags = static_cast<uint8_t>(SegmentKind::kAbort);
  header_.step = 4242;
  Buffer text = source_.Alloc(1 << 20);
  std::memset(text.mutable_data(), '\n', text.size());
  const auto parsed = DecodeFrame(EncodeDataFrame(source_, header_, {}, Buffer(), text));
  ASSERT_EQ(parsed.status(), absl::OkStatus());
  EXPECT_EQ(t_.mesh.Give(0, 2, *parsed), absl::OkStatus());
  EXPECT_EQ(t_.Result(0), absl::UnknownError("rank 2 gave up: " + std::string(1024, '?')));
}

// Whatever frame comes, from whomever, whenever: a status at most, never a crash.
TEST_F(BadSegmentTest, RandomHeadersNeverCrash) {
  Random random(TestSeed());
  for (int round = 0; round < 300; ++round) {
    ThreeRanks t(random.Bernoulli(.5) ? kRing : kDirect);
    for (int i = 0; i < 30; ++i) {
      if (i == 10) {
        (void)t.mesh.Start(0, 0, &t.schedules[0], absl::MakeSpan(t.vectors[0]));
      }
      const auto small = [&] { return static_cast<int64_t>(random.Uniform(6)) - 1; };
      header_.flags = static_cast<uint8_t>(random.Uniform(i < 25 ? 3 : 5));  // aborts end it all
      header_.request = static_cast<uint64_t>(small());
      header_.step = small();
      header_.first_step = random.Bernoulli(.8) ? 0 : small();
      header_.samples = random.Bernoulli(.9) ? 6 : random.Uniform(9);
      const auto parsed = DecodeFrame(
          EncodeDataFrame(source_, header_, {}, Buffer(), source_.Alloc(random.Uniform(5) * 4)));
      ASSERT_EQ(parsed.status(), absl::OkStatus());
      (void)t.mesh.Give(0, static_cast<int>(small()), *parsed);
      t.mesh.TickAll();
      t.mesh.Pass(absl::Milliseconds(300));
    }
  }
}

TEST(WaitingForTest, SaysWhatTheOldestOperationWaitsFor) {
  ThreeRanks t(kRing, 6);
  EXPECT_EQ(t.mesh.engine(0).WaitingFor(t.mesh.now()), "");
  t.Start(0);
  EXPECT_EQ(t.mesh.engine(0).WaitingFor(t.mesh.now() + absl::Seconds(3)),
            "operation 0: waits 3s for rank 2 (message 0, elements [4, 6)) in step 1 of 4");
}

}  // namespace
}  // namespace tandem
