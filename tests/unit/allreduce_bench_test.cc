// The all-reduce benchmark, tiny: over both transports it runs, its results are right, and bad
// options are refused.
#include "tests/bench/allreduce_bench.h"

#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

class AllReduceBenchTest : public testing::TestWithParam<const char*> {};

TEST_P(AllReduceBenchTest, RunsTinyWithoutWrongElements) {
  std::ostringstream out;
  ASSERT_EQ(RunAllReduceBench({.transport = GetParam(),
                               .ranks = 3,
                               .min_bytes = 4,
                               .max_bytes = 64 << 10,
                               .warmup = 1,
                               .repetitions = 3},
                              out),
            absl::OkStatus());
  int rows = 0;
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("ring ", 0) != 0 && line.rfind("direct ", 0) != 0) continue;
    ++rows;
    EXPECT_THAT(line, testing::EndsWith(" 0")) << "wrong elements";
  }
  EXPECT_EQ(rows, 2 * 8) << out.str();
}

INSTANTIATE_TEST_SUITE_P(All, AllReduceBenchTest, testing::Values("inproc", "zmq"));

TEST(AllReduceBenchOptionsTest, BadOnesAreRefused) {
  std::ostringstream out;
  EXPECT_EQ(RunAllReduceBench({.transport = "pigeon"}, out).message(),
            "transport 'pigeon': want inproc or zmq");
  EXPECT_THAT(std::string(RunAllReduceBench({.ranks = 0}, out).message()), HasSubstr("0 ranks"));
  EXPECT_THAT(std::string(RunAllReduceBench({.min_bytes = 8, .max_bytes = 4}, out).message()),
              HasSubstr("sizes 8 to 4"));
}

}  // namespace
}  // namespace tandem
