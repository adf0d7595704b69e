// The store benchmark runs tiny, so that it cannot rot; its numbers mean nothing here, its checks
// do.
#include "tools/bench/store_bench.h"

#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

bench::StoreBenchOptions Tiny() {
  bench::StoreBenchOptions options;
  options.rows = 3000;
  options.batch_keys = 500;
  options.repetitions = 2;
  options.batches = 3;
  options.seed = TestSeed();
  return options;
}

std::string Report(const bench::StoreBenchOptions& options) {
  std::ostringstream out;
  const absl::Status status = bench::RunStoreBench(options, out);
  EXPECT_TRUE(status.ok()) << status;
  return out.str();
}

std::string ChecksumLine(const std::string& report) {
  return report.substr(report.find("checksum"));
}

TEST(StoreBenchTest, ReportsEveryMeasure) {
  const std::string report = Report(Tiny());
  for (const char* want : {"machine:", "rowwise_adagrad", "batch 500", "gather ", "pull ", "push ",
                           "pull / gather:", "push / gather:", "checksum "}) {
    EXPECT_THAT(report, HasSubstr(want));
  }
}

// Other row lengths and optimizers take the other code paths of gather and store.
TEST(StoreBenchTest, TheChecksumIsThatOfTheKnobs) {
  for (const int dim : {16, 10}) {
    bench::StoreBenchOptions options = Tiny();
    options.dim = dim;
    options.optimizer = dim == 16 ? Optimizer::ROWWISE_ADAGRAD : Optimizer::ADAM;
    const std::string first = ChecksumLine(Report(options));
    EXPECT_EQ(ChecksumLine(Report(options)), first);
    options.seed += 1;
    EXPECT_NE(ChecksumLine(Report(options)), first);
  }
}

TEST(StoreBenchTest, KnobsOutOfRangeAreRefused) {
  std::ostringstream out;
  bench::StoreBenchOptions options = Tiny();
  options.batch_keys = options.rows + 1;
  EXPECT_EQ(bench::RunStoreBench(options, out).code(), absl::StatusCode::kInvalidArgument);
  options = Tiny();
  options.dim = 0;
  EXPECT_EQ(bench::RunStoreBench(options, out).code(), absl::StatusCode::kInvalidArgument);
  options = Tiny();
  options.rows = -1;
  EXPECT_EQ(bench::RunStoreBench(options, out).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
