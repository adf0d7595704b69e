// Schedules of the learning rate: each kind beside the figures of PyTorch's scheduler, the warm-up,
// the borders, and refused messages.
#include "optim/schedule.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

tandem::Schedule Config(const std::string& text) {
  tandem::Schedule config;
  TANDEM_CHECK(google::protobuf::TextFormat::ParseFromString(text, &config));
  return config;
}

std::unique_ptr<optim::Schedule> Make(const std::string& text) {
  auto schedule = optim::Schedule::New(Config(text));
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return std::move(schedule).value();
}

std::string Refusal(const std::string& text) {
  const auto schedule = optim::Schedule::New(Config(text));
  return schedule.ok() ? "accepted" : std::string(schedule.status().message());
}

struct Case {
  const char* schedule;
  std::vector<std::pair<int64_t, double>> factors;  // at a sample clock
};

// Figures of torch 1.13 with a rate of 1, a step of the scheduler for each sample: StepLR(30, .1),
// ExponentialLR(.9 ** .1), PolynomialLR(100, 2), CosineAnnealingLR(100, .1),
// CosineAnnealingWarmRestarts(10, 2, .1), LinearLR(.2, 1, 10).
TEST(ScheduleTest, AgreesWithTorch) {
  const Case kCases[] = {
      {"kind: STEP every_samples: 30 factor: 0.1", {{0, 1}, {25, 1}, {39, 0.1}, {70, 0.01}}},
      {"kind: EXPONENTIAL every_samples: 10 factor: 0.9",
       {{0, 1}, {7, 0.9289016976853713}, {39, 0.663049247964481}, {100, 0.3486784401000021}}},
      {"kind: POLYNOMIAL total_samples: 100 power: 2",
       {{1, 0.9801}, {25, 0.5625}, {70, 0.09}, {99, 0.0001}, {100, 0}, {150, 0}}},
      {"kind: COSINE total_samples: 100 end_factor: 0.1",
       {{0, 1},
        {1, 0.9997779521645792},
        {41, 0.6755459977176531},
        {99, 0.10022204783542078},
        {100, 0.1},
        {1000, 0.1}}},
      {"kind: COSINE restart_samples: 10 restart_growth: 2 end_factor: 0.1",
       {{0, 1},
        {7, 0.2854966364683872},
        {10, 1},
        {25, 0.23180194846605365},
        {39, 0.8921826845200139},
        {70, 1},
        {100, 0.7222075445642904}}},
      {"warmup_samples: 10 warmup_factor: 0.2",
       {{0, 0.2}, {1, 0.28}, {7, 0.76}, {10, 1}, {25, 1}}},
  };
  for (const Case& c : kCases) {
    const auto schedule = Make(c.schedule);
    for (const auto& [clock, factor] : c.factors) {
      EXPECT_NEAR(schedule->FactorAt(clock), factor, 1e-7) << c.schedule << " at " << clock;
    }
  }
}

TEST(ScheduleTest, AShapeBeginsAtTheEndOfItsWarmup) {
  const auto cosine = Make("kind: COSINE warmup_samples: 20 total_samples: 100");
  EXPECT_FLOAT_EQ(cosine->FactorAt(0), 0);
  EXPECT_FLOAT_EQ(cosine->FactorAt(10), 0.5);
  EXPECT_FLOAT_EQ(cosine->FactorAt(20), 1);
  EXPECT_FLOAT_EQ(cosine->FactorAt(60), 0.5);
  EXPECT_NEAR(cosine->FactorAt(100), 0, 1e-7);
  const auto root = Make("kind: INVERSE_SQRT warmup_samples: 100");
  EXPECT_FLOAT_EQ(root->FactorAt(50), 0.5);
  EXPECT_FLOAT_EQ(root->FactorAt(100), 1);
  EXPECT_FLOAT_EQ(root->FactorAt(400), 0.5);
  const auto points = Make(
      "kind: POINTS point { samples: 10 factor: 2 } point { samples: 20 factor: 4 } "
      "point { samples: 40 factor: 0 }");
  EXPECT_FLOAT_EQ(points->FactorAt(0), 2);
  EXPECT_FLOAT_EQ(points->FactorAt(15), 3);
  EXPECT_FLOAT_EQ(points->FactorAt(20), 4);
  EXPECT_FLOAT_EQ(points->FactorAt(25), 3);
  EXPECT_FLOAT_EQ(points->FactorAt(99), 0);
}

// The logarithm that finds the cycle is rounded; its borders must not be.
TEST(ScheduleTest, EachCycleBeginsAtItsBorder) {
  const auto schedule = Make("kind: COSINE restart_samples: 7 restart_growth: 3 end_factor: 0.5");
  int64_t border = 0;
  for (int64_t length = 7; border < int64_t{1} << 40; border += length, length *= 3) {
    EXPECT_FLOAT_EQ(schedule->FactorAt(border), 1) << border;
    if (border > 0) {
      EXPECT_LT(schedule->FactorAt(border - 1), 0.53) << border;
    }
  }
}

TEST(ScheduleTest, AConstantRateNeedsNoSchedule) {
  EXPECT_EQ(Make(""), nullptr);
  EXPECT_EQ(Make("kind: CONSTANT"), nullptr);
}

TEST(ScheduleTest, RefusesFieldsOfOtherKindsAndMissingOnes) {
  EXPECT_EQ(Refusal("kind: STEP every_samples: 5"), "factor: STEP needs it");
  EXPECT_EQ(Refusal("kind: EXPONENTIAL factor: 0.5"), "every_samples: EXPONENTIAL needs it");
  EXPECT_EQ(Refusal("kind: POLYNOMIAL"), "total_samples: POLYNOMIAL needs it");
  EXPECT_EQ(Refusal("kind: INVERSE_SQRT"), "warmup_samples: INVERSE_SQRT needs it");
  EXPECT_EQ(Refusal("kind: POINTS"), "point: POINTS needs it");
  EXPECT_EQ(Refusal("kind: COSINE total_samples: 9 restart_samples: 3"),
            "total_samples: not for COSINE with restart_samples, which has no end; remove it");
  EXPECT_EQ(Refusal("kind: STEP every_samples: 5 factor: 0.5 power: 2"),
            "power: not for STEP; remove it");
  EXPECT_EQ(Refusal("kind: POINTS warmup_samples: 4 point { factor: 1 }"),
            "warmup_samples: not for POINTS; remove it");
  EXPECT_THAT(Refusal("kind: COSINE warmup_samples: 10 total_samples: 10"),
              HasSubstr("must be above warmup_samples, which is 10"));
  EXPECT_THAT(Refusal("kind: POINTS point { samples: 5 } point { samples: 5 }"),
              HasSubstr("must be in rising order"));
}

}  // namespace
}  // namespace tandem
