// Every policy, one row a case, as the literature words the four decisions.
#include "policies/policy.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

std::unique_ptr<UpdatePolicy> Make(Policy::Kind kind, int number = 0,
                                   Policy::AsyncScale scale = Policy::ONE) {
  Policy config;
  config.set_kind(kind);
  config.set_bound(number);
  config.set_delay(number);
  config.set_async_scale(scale);
  auto policy = NewUpdatePolicy(config, /*workers=*/4);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *std::move(policy);
}

// Progress at version `version` with workers that have so many steps admitted (all applied).
RangeProgress At(int64_t version, const std::vector<int64_t>& admitted) {
  RangeProgress progress;
  progress.version = version;
  for (const int64_t steps : admitted) progress.workers.push_back({1, steps, steps, false});
  return progress;
}

struct Row {
  Policy::Kind kind;
  int number;
  std::string name;
  Arrival arrival;
  bool lockstep;
  int64_t delay;
};

class PolicyTest : public ::testing::TestWithParam<Row> {};

TEST_P(PolicyTest, NameArrivalAndKind) {
  const auto policy = Make(GetParam().kind, GetParam().number);
  EXPECT_EQ(policy->name(), GetParam().name);
  EXPECT_EQ(policy->OnArrival(At(0, {1, 0, 0, 0}), 0, 0), GetParam().arrival);
  EXPECT_EQ(policy->Lockstep(), GetParam().lockstep);
  EXPECT_EQ(policy->Delay(), GetParam().delay);
  EXPECT_EQ(policy->Scale(At(0, {1, 0, 0, 0}), 0, 0), 1.0f);
}

INSTANTIATE_TEST_SUITE_P(All, PolicyTest,
                         ::testing::Values(Row{Policy::BSP, 0, "BSP", Arrival::kHold, true, 0},
                                           Row{Policy::FIXED_DELAY, 3, "FIXED_DELAY(3)",
                                               Arrival::kHold, true, 3},
                                           Row{Policy::SSP, 4, "SSP(4)", Arrival::kApply, false, 0},
                                           Row{Policy::ASP, 0, "ASP", Arrival::kApply, false, 0}));

TEST(BspTest, ReadsOfStepKWaitForVersionK) {
  for (const auto& policy : {Make(Policy::BSP), Make(Policy::FIXED_DELAY, 2)}) {
    EXPECT_TRUE(policy->MayServe(At(3, {3, 3, 3, 3}), 0, 3, 0));
    EXPECT_FALSE(policy->MayServe(At(3, {4, 4, 4, 3}), 0, 4, 0));
    EXPECT_FALSE(policy->MayServe(At(3, {4, 4, 4, 3}), 0, 4, 3)) << "depth changes nothing";
    EXPECT_TRUE(policy->MayStart(100, 0)) << "its reads wait instead";
  }
}

TEST(BspTest, ClosesWhenTheLastWorkerHasCome) {
  const auto policy = Make(Policy::BSP);
  EXPECT_FALSE(policy->MayClose(At(3, {4, 5, 4, 3})));
  EXPECT_TRUE(policy->MayClose(At(3, {4, 5, 4, 4})));
}

TEST(AspTest, WaitsForNobodyButSeesItsOwnWrites) {
  const auto policy = Make(Policy::ASP);
  EXPECT_TRUE(policy->MayStart(1000, 0));
  EXPECT_TRUE(policy->MayServe(At(9, {5, 0, 0, 0}), 0, 5, 0));
  EXPECT_FALSE(policy->MayServe(At(9, {5, 0, 0, 0}), 0, 6, 0));
  EXPECT_TRUE(policy->MayServe(At(9, {5, 0, 0, 0}), 0, 6, 1));
  EXPECT_FALSE(policy->MayServe(At(9, {5, 0, 0, 0}), 0, 7, 1));
}

TEST(SspTest, StartAndServeKeepTheBound) {
  const auto policy = Make(Policy::SSP, 2);
  EXPECT_TRUE(policy->MayStart(5, 3));
  EXPECT_FALSE(policy->MayStart(6, 3));
  EXPECT_TRUE(policy->MayServe(At(9, {5, 3, 3, 3}), 0, 5, 0));
  EXPECT_FALSE(policy->MayServe(At(9, {6, 3, 3, 3}), 0, 6, 0)) << "another is too far behind";
  EXPECT_FALSE(policy->MayServe(At(9, {4, 3, 3, 3}), 0, 5, 0)) << "its own write is missing";
  EXPECT_TRUE(policy->MayServe(At(9, {4, 3, 3, 3}), 0, 5, 1));
}

TEST(SspTest, WorkersWithoutDataHoldNobodyBack) {
  const auto policy = Make(Policy::SSP, 1);
  RangeProgress progress = At(9, {9, 2, 9, 9});
  EXPECT_FALSE(policy->MayServe(progress, 0, 9, 0));
  progress.workers[1].finished = true;
  EXPECT_TRUE(policy->MayServe(progress, 0, 9, 0));
}

TEST(AsyncScaleTest, OneOverTheWorkersWhereAskedFor) {
  const RangeProgress progress = At(0, {1, 0, 0, 0});
  EXPECT_EQ(Make(Policy::ASP, 0, Policy::INVERSE_WORKERS)->Scale(progress, 0, 0), 0.25f);
  EXPECT_EQ(Make(Policy::SSP, 3, Policy::INVERSE_WORKERS)->Scale(progress, 0, 0), 0.25f);
}

TEST(RangeProgressTest, SlowestAndSmallest) {
  RangeProgress progress = At(3, {5, 3, 4});
  EXPECT_EQ(progress.MinClock(), 3);
  EXPECT_EQ(progress.MinAdmitted(), 3);
  EXPECT_EQ(progress.Slowest(), 1);
  progress.workers[1].finished = true;
  EXPECT_EQ(progress.MinClock(), 4);
  EXPECT_EQ(progress.MinAdmitted(), 3) << "a step that all close needs even those without data";
  EXPECT_EQ(progress.Slowest(), 2);
  for (WorkerProgress& worker : progress.workers) worker.finished = true;
  EXPECT_EQ(progress.MinClock(), kInfiniteClock);
}

TEST(NewUpdatePolicyTest, RefusesWhatIsNotResolved) {
  Policy config;
  EXPECT_EQ(NewUpdatePolicy(config, 2).status().code(), absl::StatusCode::kInvalidArgument);
  config.set_kind(Policy::SSP);
  EXPECT_THAT(std::string(NewUpdatePolicy(config, 2).status().message()),
              ::testing::HasSubstr("bound"));
  config.set_kind(Policy::FIXED_DELAY);
  EXPECT_THAT(std::string(NewUpdatePolicy(config, 2).status().message()),
              ::testing::HasSubstr("delay"));
}

}  // namespace
}  // namespace tandem
