// The benchmarks of collectives, tiny: every collective runs over every link with right results,
// the file that is written can be read, and bad options are refused.
#include "tools/bench/collective_bench.h"

#include <csignal>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/bench/algorithm_bench.h"
#include "tools/bench/exact_pattern.h"
#include "tools/bench/rank_processes.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using Links = std::vector<std::unique_ptr<collectives::Link>>;

bench::CollectiveBenchOptions Tiny() {
  bench::CollectiveBenchOptions options;
  options.ranks = 3;
  options.max_bytes = 64 << 10;
  options.factor = 16;
  options.warmup = 1;
  options.repetitions = 2;
  options.max_operations = 2;
  return options;
}

struct Lines {
  int all = 0, right = 0;
};
Lines LinesOf(const std::string& table) {
  Lines lines;
  std::istringstream in(table);
  for (std::string line; std::getline(in, line);) {
    if (line.find(" out ") == std::string::npos && line.find(" in ") == std::string::npos) continue;
    ++lines.all;
    lines.right += line.size() > 2 && line.substr(line.size() - 2) == " 0";
  }
  return lines;
}

class CollectiveBenchTest : public testing::TestWithParam<const char*> {};

TEST_P(CollectiveBenchTest, EveryCollectiveByEveryAlgorithmIsRight) {
  std::vector<collectives::Primitive> primitives(std::begin(collectives::kPrimitives),
                                                 std::end(collectives::kPrimitives));
  primitives.push_back(collectives::Primitive::kPointToPoint);
  for (const collectives::Primitive primitive : primitives) {
    bench::CollectiveBenchOptions options = Tiny();
    options.primitive = primitive;
    options.link = GetParam();
    options.algorithms = {"all"};
    options.root = 1;
    std::ostringstream out;
    ASSERT_EQ(bench::RunCollectiveBench(options, out), absl::OkStatus()) << out.str();
    const Lines lines = LinesOf(out.str());
    const bool barrier = primitive == collectives::Primitive::kBarrier;
    const bool pairs = primitive == collectives::Primitive::kPointToPoint;
    const size_t algorithms = pairs ? 1 : collectives::AlgorithmsFor(primitive).size();
    EXPECT_EQ(lines.all, static_cast<int>(algorithms) * (barrier ? 1 : pairs ? 4 : 8)) << out.str();
    EXPECT_EQ(lines.right, lines.all) << out.str();
  }
}

INSTANTIATE_TEST_SUITE_P(All, CollectiveBenchTest, testing::Values("shm", "tcp", "zmq"),
                         [](const auto& test) { return std::string(test.param); });

TEST(CollectiveBenchJsonTest, OneObjectALine) {
  bench::CollectiveBenchOptions options = Tiny();
  options.ranks = 2;
  options.sizes = {4096};
  options.json = testing::TempDir() + "/collective_bench.json";
  std::ostringstream out;
  ASSERT_EQ(bench::RunCollectiveBench(options, out), absl::OkStatus());
  std::ifstream file(options.json);
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    EXPECT_THAT(line, HasSubstr(R"("collective": "allreduce", "link": "shm", "ranks": 2)"));
    EXPECT_THAT(line, HasSubstr(R"("bytes": 4096, "count": 1024)"));
    EXPECT_THAT(line, HasSubstr(R"("wrong": 0})"));
  }
  EXPECT_EQ(lines, 2);  // out of place, in place
}

TEST(CollectiveBenchDrawTest, SchedulesAreDrawn) {
  bench::CollectiveBenchOptions options = Tiny();
  options.algorithms = {"ring"};
  options.min_bytes = 24;
  std::ostringstream out;
  ASSERT_EQ(DrawAlgorithms(options, out), absl::OkStatus());
  EXPECT_THAT(out.str(), HasSubstr("allreduce by ring, 6 elements:"));
  EXPECT_THAT(out.str(), HasSubstr("+> 1"));
}

TEST(CollectiveBenchChooserTest, ExplainsAndMeasuresRegret) {
  bench::CollectiveBenchOptions options = Tiny();
  options.max_bytes = 256;
  options.calibrate = options.explain = true;
  std::ostringstream explained, measured;
  ASSERT_EQ(bench::RunCollectiveBench(options, explained), absl::OkStatus());
  EXPECT_THAT(explained.str(), HasSubstr("rules: allreduce:"));
  EXPECT_THAT(explained.str(), HasSubstr("recursive_doubling"));
  // Of three ranks with 16 floats: root and one that sends to all; a ring of blocks of 6, 5 and 5.
  EXPECT_THAT(explained.str(), HasSubstr("sent/received/memory"));
  EXPECT_THAT(explained.str(), HasSubstr(" naive 128/128/0"));
  EXPECT_THAT(explained.str(), HasSubstr(" one_shot 128/128/0"));
  EXPECT_THAT(explained.str(), HasSubstr(" ring 88/88/0"));
  options.explain = false;
  ASSERT_EQ(MeasureRegret(options, measured), absl::OkStatus());
  EXPECT_THAT(measured.str(), HasSubstr("regret: median"));
}

TEST(CollectiveBenchOptionsTest, BadOnesAreRefused) {
  std::ostringstream out;
  const auto error = [&](const std::function<void(bench::CollectiveBenchOptions*)>& change) {
    bench::CollectiveBenchOptions options = Tiny();
    change(&options);
    return std::string(bench::RunCollectiveBench(options, out).message());
  };
  EXPECT_THAT(error([](auto* o) { o->link = "pigeon"; }),
              HasSubstr("'pigeon': expected shm, rdma"));
  EXPECT_THAT(error([](auto* o) { o->ranks = 0; }),
              HasSubstr("--ranks 0 with --root 0: expected 1 ranks or more"));
  EXPECT_THAT(error([](auto* o) { o->root = 3; }), HasSubstr("root 3"));
  EXPECT_THAT(error([](auto* o) {
                o->ranks = 1;
                o->explain = true;
              }),
              HasSubstr("one rank has no links"));
  EXPECT_THAT(error([](auto* o) { o->type = "f8"; }), HasSubstr("'f8'"));
  EXPECT_THAT(error([](auto* o) { o->op = "bit_or"; }), HasSubstr("does not exist for f32"));
  EXPECT_THAT(error([](auto* o) { o->min_bytes = 1 << 20; }),
              HasSubstr("--min 1048576, --max 65536"));
  EXPECT_THAT(error([](auto* o) { o->algorithms = {"pairwise"}; }),
              HasSubstr("algorithm pairwise does not implement"));
  EXPECT_THAT(error([](auto* o) { o->algorithms = {"magic"}; }), HasSubstr("magic"));
}

// The check has teeth: what is moved by one, or off by one unit, is counted.
TEST(ExactPatternTest, CountsWhatIsWrong) {
  const bench::ExactPattern pattern =
      bench::ExactPattern::OfRank(collectives::ReduceOp::kSum, collectives::DataType::kF32, 1);
  std::vector<float> have(10'000);
  pattern.Fill(5, 10'000, have.data());
  EXPECT_EQ(pattern.CountWrong(5, 10'000, have.data()), 0);
  EXPECT_EQ(pattern.CountWrong(5 + bench::ExactPattern::kPeriod, 10'000, have.data()), 0);
  EXPECT_GT(pattern.CountWrong(6, 10'000, have.data()), 5'000);
  have[0] += .125f;
  have[9'999] += .125f;
  EXPECT_EQ(pattern.CountWrong(5, 10'000, have.data()), 2);
}

// The rank that failed is named with its reason, not one that only lost it.
TEST(RankProcessesTest, TheCauseIsReported) {
  for (const char* link : {"shm", "tcp"}) {
    const auto fails = [](int rank, Links links,
                          const collectives::GroupOptions& options) -> absl::Status {
      collectives::Group group(rank, std::move(links), options);
      if (rank == 1) return absl::InternalError("no more paper");
      return group.Wait(group.Barrier());
    };
    EXPECT_THAT(std::string(bench::RunRanks({link, 3}, fails).message()),
                HasSubstr("no more paper"))
        << link;
  }
}

TEST(RankProcessesTest, ADeadRankIsReported) {
  const auto dies = [](int rank, Links, const collectives::GroupOptions&) -> absl::Status {
    if (rank == 1) raise(SIGKILL);
    return absl::OkStatus();
  };
  EXPECT_THAT(std::string(bench::RunRanks({"shm", 2}, dies).message()),
              HasSubstr("rank 1 was ended by signal Killed"));
}

// Of a rank whose end the system forgets, what it has said itself still counts.
TEST(RankProcessesTest, ARankWhoseEndIsNotToBeKnownHasNotEndedWell) {
  const auto ends = [](const absl::Status& of_rank_1) {
    const auto before = std::signal(SIGCHLD, SIG_IGN);
    const absl::Status end = bench::RunRanks(
        {"shm", 2}, [&of_rank_1](int rank, Links, const collectives::GroupOptions&) {
          return rank == 1 ? of_rank_1 : absl::OkStatus();
        });
    std::signal(SIGCHLD, before);
    return std::string(end.message());
  };
  EXPECT_THAT(ends(absl::InternalError("no more paper")), HasSubstr("no more paper"));
  EXPECT_THAT(ends(absl::OkStatus()), HasSubstr("rank 1 ended (its exit status is not known)"));
}

}  // namespace
}  // namespace tandem
