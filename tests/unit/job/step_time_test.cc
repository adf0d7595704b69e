// Step times: which entry holds, that the distributions are what they are called, and that a step
// takes as long in every run.
#include "job/step_time.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kSteps = 20000;
constexpr uint64_t kSeed = 3;

// An entry with its defaults, as Resolve leaves them.
SlowWorkers Entry(const std::string& text) {
  SlowWorkers entry;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &entry)) << text;
  return entry;
}

std::vector<double> Draw(const std::string& entry, uint64_t seed = kSeed, int rank = 0) {
  const job::StepTimes times(Entry(entry), seed, rank, /*workers=*/4, {});
  std::vector<double> seconds;
  for (int step = 0; step < kSteps; ++step) {
    seconds.push_back(absl::ToDoubleSeconds(times.Of(step)));
  }
  return seconds;
}

double MeanOf(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double DeviationOf(std::vector<double> values) {
  const double mean = MeanOf(values);
  for (double& value : values) value = (value - mean) * (value - mean);
  return std::sqrt(MeanOf(values));
}

double ShareBelow(const std::vector<double>& values, double limit) {
  double below = 0;
  for (const double value : values) below += value < limit;
  return below / static_cast<double>(values.size());
}

TEST(StepTimesTest, WhoHasNoneIsNotSlowedDown) {
  const job::StepTimes none;
  EXPECT_FALSE(none.any());
  EXPECT_EQ(none.Of(7), absl::ZeroDuration());
}

TEST(StepTimesTest, TheLastEntryHoldsThatNamesAWorkerOrNobody) {
  Job job;
  EXPECT_EQ(job::StepTimeOf(job, 0), -1);
  *job.mutable_fault_injection()->add_slow_workers() = Entry("mean_seconds: 1");
  *job.mutable_fault_injection()->add_slow_workers() = Entry("worker: [1, 2] mean_seconds: 2");
  *job.mutable_fault_injection()->add_slow_workers() = Entry("worker: 2 mean_seconds: 3");
  EXPECT_EQ(job::StepTimeOf(job, 0), 0);
  EXPECT_EQ(job::StepTimeOf(job, 1), 1);
  EXPECT_EQ(job::StepTimeOf(job, 2), 2);
  *job.mutable_fault_injection()->add_slow_workers() = Entry("mean_seconds: 4");
  EXPECT_EQ(job::StepTimeOf(job, 2), 3);
}

TEST(StepTimesTest, ConstantIsConstant) {
  const std::vector<double> seconds = Draw("distribution: CONSTANT mean_seconds: 0.25");
  EXPECT_EQ(std::set<double>(seconds.begin(), seconds.end()), std::set<double>({0.25}));
}

// Within four deviations of a mean of so many draws.
TEST(StepTimesTest, ExponentialHasItsMeanAndNoMemory) {
  const std::vector<double> seconds = Draw("distribution: EXPONENTIAL mean_seconds: 2");
  EXPECT_NEAR(MeanOf(seconds), 2, 4 * 2 / std::sqrt(kSteps));
  EXPECT_NEAR(DeviationOf(seconds), 2, 0.1);
  for (const double limit : {0.5, 2.0, 6.0}) {
    EXPECT_NEAR(ShareBelow(seconds, limit), 1 - std::exp(-limit / 2), 0.015) << limit;
  }
}

TEST(StepTimesTest, LognormalKeepsTheMean) {
  for (const double sigma : {0.2, 0.5, 1.0}) {
    const std::vector<double> seconds =
        Draw(absl::StrCat("distribution: LOGNORMAL mean_seconds: 2 sigma: ", sigma));
    const double deviation = 2 * std::sqrt(std::exp(sigma * sigma) - 1);
    EXPECT_NEAR(MeanOf(seconds), 2, 4 * deviation / std::sqrt(kSteps)) << sigma;
    std::vector<double> logarithms;
    for (const double value : seconds) logarithms.push_back(std::log(value));
    EXPECT_NEAR(DeviationOf(logarithms), sigma, 0.02 * sigma);
    EXPECT_NEAR(ShareBelow(seconds, 2 * std::exp(-sigma * sigma / 2)), 0.5, 0.015);
  }
}

TEST(StepTimesTest, AShareOfTheStepsIsSlow) {
  const std::vector<double> seconds =
      Draw("distribution: CONSTANT mean_seconds: 2 slow_share: 0.1 slow_factor: 5");
  EXPECT_EQ(std::set<double>(seconds.begin(), seconds.end()), std::set<double>({2, 10}));
  EXPECT_NEAR(1 - ShareBelow(seconds, 5), 0.1, 0.01);
  const std::vector<double> all =
      Draw("distribution: CONSTANT mean_seconds: 2 slow_share: 1 slow_factor: 5");
  EXPECT_EQ(MeanOf(all), 10);
}

// Which steps are slow does not depend on what they would take otherwise.
TEST(StepTimesTest, TheSameStepsAreSlowUnderEachDistribution) {
  const std::vector<double> base = Draw("distribution: LOGNORMAL mean_seconds: 2 sigma: 0.5");
  const std::vector<double> slow =
      Draw("distribution: LOGNORMAL mean_seconds: 2 sigma: 0.5 slow_share: 0.1 slow_factor: 4");
  int larger = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    if (slow[i] == base[i]) continue;
    ++larger;
    ASSERT_NEAR(slow[i], 4 * base[i], 1e-8);
  }
  EXPECT_NEAR(larger, kSteps / 10, kSteps / 100);
}

TEST(StepTimesTest, AStepTakesAsLongInEveryRunAndNoOtherWorkersOrSeedsTime) {
  const std::string entry = "distribution: EXPONENTIAL mean_seconds: 1";
  const std::vector<double> seconds = Draw(entry);
  EXPECT_EQ(Draw(entry), seconds);
  // In any order, as after a resume.
  const job::StepTimes times(Entry(entry), kSeed, 0, 4, {});
  for (int step = kSteps - 1; step >= 0; step -= 7) {
    ASSERT_EQ(absl::ToDoubleSeconds(times.Of(step)), seconds[static_cast<size_t>(step)]);
  }
  // Neither the same numbers nor numbers that go with them.
  for (const std::vector<double>& other : {Draw(entry, kSeed, 1), Draw(entry, kSeed + 1, 0)}) {
    double product = 0, next = 0;
    for (size_t i = 0; i + 1 < seconds.size(); ++i) {
      product += (seconds[i] - 1) * (other[i] - 1);
      next += (seconds[i] - 1) * (seconds[i + 1] - 1);
    }
    EXPECT_NEAR(product / kSteps, 0, 0.04);
    EXPECT_NEAR(next / kSteps, 0, 0.04);
  }
}

TEST(StepTimesTest, NoStepIsLongerThanAnHour) {
  const std::vector<double> seconds =
      Draw("distribution: LOGNORMAL mean_seconds: 3000 sigma: 4 slow_share: 1 slow_factor: 1000");
  for (const double value : seconds) ASSERT_LE(value, job::kLongestServiceSeconds);
  EXPECT_LT(ShareBelow(seconds, job::kLongestServiceSeconds), 1);
}

TEST(StepTimesTest, ATraceIsReadRoundAndRoundFromAPlaceOfEachWorker) {
  const SlowWorkers entry = Entry("distribution: TRACE trace: \"t\"");
  const auto trace =
      std::make_shared<const std::vector<double>>(std::vector<double>{1, 2, 3, 4, 5});
  const auto of = [&](int rank, int workers) {
    const job::StepTimes times(entry, kSeed, rank, workers, trace);
    std::vector<double> seconds;
    for (int step = 0; step < 7; ++step) {
      seconds.push_back(absl::ToDoubleSeconds(times.Of(step)));
    }
    return seconds;
  };
  EXPECT_THAT(of(0, 2), ElementsAre(1, 2, 3, 4, 5, 1, 2));
  EXPECT_THAT(of(1, 2), ElementsAre(3, 4, 5, 1, 2, 3, 4));
  EXPECT_THAT(of(9, 10), ElementsAre(5, 1, 2, 3, 4, 5, 1));  // more workers than lines
}

TEST(ServiceTraceTest, OneNumberALine) {
  for (const char* text : {"0.5\n1e-3\n2\n", "0.5\n1e-3\n2", "0.5\r\n 1e-3\r\n2\r\n"}) {
    const absl::StatusOr<std::vector<double>> seconds = job::ParseServiceTrace(text, "t");
    ASSERT_TRUE(seconds.ok()) << seconds.status();
    EXPECT_THAT(*seconds, ElementsAre(0.5, 0.001, 2));
  }
}

TEST(ServiceTraceTest, WhatIsNoTraceIsRefusedByLine) {
  const auto refusal = [](const std::string& text) {
    const absl::StatusOr<std::vector<double>> seconds = job::ParseServiceTrace(text, "t.txt");
    EXPECT_EQ(seconds.status().code(), absl::StatusCode::kInvalidArgument) << text;
    const std::string message(seconds.status().message());
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  };
  EXPECT_EQ(refusal("1\n2\nfast\n"),
            "t.txt:3: \"fast\", expected seconds from 0 to 3600, such as 0.025; a trace has one "
            "number a line and nothing else");
  for (const char* line : {"0,5", "1 2", "-1", "nan", "inf", "1e999", "3601", "", "0x1g", "# 1"}) {
    EXPECT_THAT(refusal(absl::StrCat("1\n", line, "\n2\n")), StartsWith("t.txt:2: ")) << line;
  }
  for (const char* text : {"", "\n"}) EXPECT_THAT(refusal(text), HasSubstr("an empty file"));
  EXPECT_LT(refusal(std::string(1 << 20, 'x')).size(), 200u);
}

TEST(StepTimesTest, ARunSaysWhoIsSlow) {
  Job job;
  *job.mutable_fault_injection()->add_slow_workers() =
      Entry("distribution: CONSTANT mean_seconds: 0.02");
  *job.mutable_fault_injection()->add_slow_workers() = Entry(
      "worker: [1, 3] distribution: EXPONENTIAL mean_seconds: 0.1 slow_share: 0.05 slow_factor: 5");
  *job.mutable_fault_injection()->add_slow_workers() =
      Entry("worker: 2 distribution: TRACE trace: \"t.txt\"");
  EXPECT_EQ(job::DescribeStepTimes(job),
            "all workers CONSTANT 0.02 s; workers 1, 3 EXPONENTIAL 0.1 s, a share of 0.05 of the "
            "steps x 5; worker 2 TRACE t.txt");
}

}  // namespace
}  // namespace tandem
