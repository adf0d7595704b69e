// The store benchmark runs tiny, so that it cannot rot; its numbers mean nothing here, its checks
// do.
#include "tools/bench/store_bench.h"

#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"
#include "tools/bench/stream_run.h"

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

// The numbers of the last line of a stream, from the seconds to the memory of the process.
std::vector<double> LastLine(const bench::StoreBenchOptions& options) {
  const std::string report = Report(options);
  const std::vector<std::string> lines = absl::StrSplit(report, '\n', absl::SkipWhitespace());
  std::vector<double> numbers;
  for (const absl::string_view word : absl::StrSplit(lines.back(), ' ', absl::SkipWhitespace())) {
    double number = -1;
    EXPECT_TRUE(absl::SimpleAtod(word, &number)) << report;
    numbers.push_back(number);
  }
  EXPECT_EQ(numbers.size(), 7u) << report;
  numbers.resize(7);
  return numbers;
}

TEST(StoreBenchTest, AStreamKeepsSoManyRows) {
  bench::StoreBenchOptions options = Tiny();
  options.stream = 20'000;
  options.max_rows = 700;
  options.stream_batches = 40;
  const std::vector<double> lru = LastLine(options);
  EXPECT_GT(lru[1], 0);  // updates a second
  EXPECT_GT(lru[3], 0);  // evictions a second
  EXPECT_EQ(lru[4], 700);
  options.eviction = Eviction::AGE;
  options.versions = 2;
  const std::vector<double> age = LastLine(options);
  EXPECT_GT(age[3], 0);
  options.eviction = Eviction::NONE;
  const std::vector<double> all = LastLine(options);
  EXPECT_EQ(all[3], 0);
  EXPECT_GT(all[4], 2000);
  EXPECT_LT(age[4], all[4]);
  options.stream = 300;  // the law has no other ids
  EXPECT_LE(LastLine(options)[4], 300);
}

// The frequencies of the first numbers are those of the law.
TEST(StoreBenchTest, TheStreamFollowsZipfsLaw) {
  constexpr int kDraws = 200'000, kCount = 1000;
  for (const double skew : {0.6, 1.0, 1.3}) {
    const bench::ZipfNumbers numbers(kCount, skew);
    Random random(TestSeed());
    std::vector<int> drawn(kCount + 1);
    for (int i = 0; i < kDraws; ++i) ++drawn.at(static_cast<size_t>(numbers.Draw(&random)));
    double all = 0;
    for (int k = 1; k <= kCount; ++k) all += std::pow(k, -skew);
    for (const int k : {1, 2, 3, 10}) {
      const double want = kDraws * std::pow(k, -skew) / all;
      EXPECT_NEAR(drawn[static_cast<size_t>(k)], want, 6 * std::sqrt(want)) << skew << " " << k;
    }
    EXPECT_EQ(drawn[0], 0);
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
  options = Tiny();
  options.stream = -5;
  EXPECT_EQ(bench::RunStoreBench(options, out).code(), absl::StatusCode::kInvalidArgument);
  options.stream = 100;
  options.max_rows = 0;
  EXPECT_EQ(bench::RunStoreBench(options, out).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
