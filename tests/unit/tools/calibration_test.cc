// What a live run's summary says of its steps, for the run that is to foretell others.
#include "tools/sim/command/calibration.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job.h"

namespace tandem {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

job::ResolvedJob Plan(int workers, int batch) {
  std::string text = R"(
    data { format: CRITEO train: "train.tsv" }
    table { name: "ids" dim: 4 }
    policy { kind: ASP }
    dense { optimizer { learning_rate: 0.1 } }
    model { mlp { hidden: 4 } }
  )";
  absl::StrAppend(&text, "cluster { workers: ", workers, " servers: 1 }",
                  " train { batch_size: ", batch, " }");
  const auto parsed = job::ParseJob(text, "job.textproto", {});
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  const auto plan = job::Resolve(*parsed);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// Two workers: 100 steps of 32 rows in 0.2 s, 50 in 0.3.
constexpr char kTwo[] = R"({"workers": 2, "servers": 1, "policy": {"ids": "ASP"},
  "samples": 4800, "seconds": 3, "paused_seconds": 1, "by_worker": [
  {"steps": 100, "samples": 3200, "computed_seconds": 0.2, "shortest_read_seconds": 0.0004},
  {"steps": 50, "samples": 1600, "computed_seconds": 0.3, "shortest_read_seconds": 0.0002}]})";

class CalibrationTest : public ::testing::Test {
 protected:
  CalibrationTest() {
    std::string folder = ::testing::TempDir() + "calibrationXXXXXX";
    folder_ = mkdtemp(folder.data());
  }
  ~CalibrationTest() override { std::filesystem::remove_all(folder_); }
  absl::StatusOr<sim::Calibration> Read(const std::string& summary, const job::ResolvedJob& plan) {
    EXPECT_TRUE(WriteFileAtomically(folder_ + "/summary.json", summary).ok());
    return sim::ReadCalibration(folder_, plan);
  }
  std::string folder_;
};

TEST_F(CalibrationTest, EachWorkerHasItsOwnSteps) {
  const auto read = Read(kTwo, Plan(2, 32));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->compute_seconds, ElementsAre(DoubleEq(0.002), DoubleEq(0.006)));
  EXPECT_THAT(read->latency_seconds, ::testing::Optional(DoubleEq(0.0001)));
  EXPECT_DOUBLE_EQ(read->samples_per_second, 2400);
  EXPECT_EQ(read->differs, "");
  EXPECT_EQ(read->untold, "");
}

TEST_F(CalibrationTest, OtherNumbersOfWorkersLendTheMeanAndOtherBatchesTimeByTheRow) {
  const auto three = Read(kTwo, Plan(3, 32));
  ASSERT_TRUE(three.ok()) << three.status();
  const double mean = 0.5 / 150;
  EXPECT_THAT(three->compute_seconds, ElementsAre(DoubleEq(mean), DoubleEq(mean), DoubleEq(mean)));
  EXPECT_EQ(three->differs, "2 workers");
  const auto half = Read(kTwo, Plan(2, 16));
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_THAT(half->compute_seconds, ElementsAre(DoubleEq(0.001), DoubleEq(0.003)));
  // 32 rows of 36 are a full batch with a short one at the end.
  const auto nearly = Read(kTwo, Plan(2, 36));
  ASSERT_TRUE(nearly.ok()) << nearly.status();
  EXPECT_THAT(nearly->compute_seconds, ElementsAre(DoubleEq(0.002), DoubleEq(0.006)));
}

TEST_F(CalibrationTest, TheTimeOfRestartsIsNamed) {
  for (const char* more : {"\"restarts\": [{}]", "\"resumed\": 1"}) {
    const auto read = Read(
        absl::StrReplaceAll(kTwo, {{"\"servers\": 1", absl::StrCat("\"servers\": 1, ", more)}}),
        Plan(2, 32));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->differs, "restarts");
    EXPECT_FALSE(read->same_job);
  }
}

// A read over limited links takes as long as its bytes do: to take that for the time of a frame
// would be to count them twice.
TEST_F(CalibrationTest, LimitedLinksDoNotTellWhatAFrameTakes) {
  const std::string limited = absl::StrReplaceAll(
      kTwo, {{"\"samples\": 4800",
              R"("network": {"bytes_per_second": 1e7, "hosts": []}, "samples": 4800)"}});
  const auto read = Read(limited, Plan(2, 32));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->latency_seconds.has_value());
  EXPECT_EQ(read->untold, "limited links, which do not tell what a frame takes");
  EXPECT_EQ(read->differs, read->untold);
  EXPECT_THAT(read->compute_seconds, ElementsAre(DoubleEq(0.002), DoubleEq(0.006)));
  const auto three = Read(limited, Plan(3, 32));
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_THAT(three->differs, ::testing::StartsWith("2 workers and limited links"));
}

TEST_F(CalibrationTest, TablesAreThoseOfTheRun) {
  const std::string tables = R"("tables": {"ids": {"rows": 10, "memory_bytes": 800},
    "copies": {"rows": 10, "memory_bytes": 1600, "placement": "replicated"}, "odd": 3})";
  const auto read =
      Read(absl::StrReplaceAll(kTwo, {{"\"samples\": 4800", tables + ", \"samples\": 4800"}}),
           Plan(2, 32));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->tables.size(), 2u);
  EXPECT_EQ(read->tables.at("ids").rows, 10);
  EXPECT_EQ(read->tables.at("ids").bytes, 800);
  EXPECT_EQ(read->tables.at("copies").bytes, 800) << "of one copy";
}

// A file may say anything.
TEST_F(CalibrationTest, OddNumbersAreNone) {
  for (const auto& [is, odd] : std::vector<std::pair<std::string, std::string>>{
           {"\"workers\": 2", "\"workers\": \"2\""},
           {"\"seconds\": 3", "\"seconds\": null"},
           {"\"paused_seconds\": 1", "\"paused_seconds\": []"},
           {"\"policy\": {\"ids\": \"ASP\"}", "\"policy\": 7, \"tables\": null"},
           {"0.0002", "-1e300"}}) {
    const auto read = Read(absl::StrReplaceAll(kTwo, {{is, odd}}), Plan(2, 32));
    ASSERT_TRUE(read.ok()) << odd << ": " << read.status();
    EXPECT_THAT(read->compute_seconds, ElementsAre(DoubleEq(0.002), DoubleEq(0.006))) << odd;
  }
  for (const char* const huge : {"1e308", "-2", "1e400"}) {
    const auto read = Read(absl::StrReplaceAll(kTwo, {{"0.2", huge}}), Plan(2, 32));
    if (!read.ok()) continue;  // no number at all
    for (const double seconds : read->compute_seconds) EXPECT_LT(seconds, 1);
  }
}

TEST_F(CalibrationTest, WhatTellsNothingIsRefusedByName) {
  const job::ResolvedJob plan = Plan(2, 32);
  const auto why = [&](const std::string& summary) {
    return std::string(Read(summary, plan).status().message());
  };
  EXPECT_THAT(sim::ReadCalibration(folder_, plan).status().message(), HasSubstr("no summary.json"));
  EXPECT_THAT(why("{"), HasSubstr("not one of a run"));
  EXPECT_THAT(why("[]"), HasSubstr("not one of a run"));
  EXPECT_THAT(why(R"({"by_worker": [3]})"), HasSubstr("not one of a run"));
  EXPECT_THAT(why(R"({"by_worker": [], "simulated": {}})"), HasSubstr("is a simulated run"));
  EXPECT_THAT(why(R"({"by_worker": [], "failed": {}})"), HasSubstr("its run failed"));
  EXPECT_THAT(why(R"({"by_worker": [{"steps": "x", "samples": 1}]})"),
              HasSubstr("nothing of how long steps computed"));
}

}  // namespace
}  // namespace tandem
