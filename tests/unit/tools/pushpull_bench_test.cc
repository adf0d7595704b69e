// The benchmark of push and pull, tiny: it runs, checks what it reads, and gives the same rows
// twice. What it measures is nobody's affair here.
#include "tools/bench/pushpull_bench.h"

#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace tandem {
namespace {

bench::PushPullBenchOptions Tiny() {
  bench::PushPullBenchOptions options;
  options.rows = 2000;
  options.keys = {10, 700};
  options.repetitions = 2;
  options.trips = 3;
  return options;
}

TEST(PushPullBenchTest, TinyRunAgreesWithItself) {
  std::string checksums[2];
  for (std::string& checksum : checksums) {
    std::ostringstream out;
    ASSERT_TRUE(bench::RunPushPullBench(Tiny(), out).ok());
    EXPECT_NE(out.str().find("pull in-place zmq     700"), std::string::npos) << out.str();
    EXPECT_NE(out.str().find("push merged   shm     700"), std::string::npos) << out.str();
    checksum = out.str().substr(out.str().find("checksum"));
  }
  EXPECT_EQ(checksums[0], checksums[1]);
}

TEST(PushPullBenchTest, WithAnsweringSidesPinnedAndManyInFlight) {
  bench::PushPullBenchOptions options = Tiny();
  options.pin = true;
  options.in_flight = 2;
  std::ostringstream out;
  ASSERT_TRUE(bench::RunPushPullBench(options, out).ok());
  EXPECT_NE(out.str().find("answering sides pinned"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("push copied   shm     700"), std::string::npos) << out.str();
  EXPECT_EQ(out.str().find("in-place"), std::string::npos) << out.str();
}

TEST(PushPullBenchTest, RefusesMoreKeysThanRows) {
  bench::PushPullBenchOptions options = Tiny();
  options.keys = {2001};
  std::ostringstream out;
  EXPECT_TRUE(absl::IsInvalidArgument(bench::RunPushPullBench(options, out)));
}

}  // namespace
}  // namespace tandem
