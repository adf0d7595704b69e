// Every policy, one row a case, as the literature words the four decisions.
#include "policies/policy.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/kinds.h"

namespace tandem {
namespace {

std::unique_ptr<policies::UpdatePolicy> Make(Policy::Kind kind, int number = 0,
                                             Policy::AsyncScale scale = Policy::ONE) {
  Policy config;
  config.set_kind(kind);
  config.set_bound(number);
  config.set_delay(number);
  config.set_backups(number);
  config.set_async_scale(scale);
  auto policy = policies::NewUpdatePolicy(config, /*workers=*/4);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *std::move(policy);
}

// Progress at version `version` with workers that have so many steps admitted (all applied).
policies::RangeProgress At(int64_t version, const std::vector<int64_t>& admitted) {
  policies::RangeProgress progress;
  progress.version = version;
  for (const int64_t steps : admitted) progress.workers.push_back({1, steps, steps, false});
  return progress;
}

policies::Update Of(int rank, int64_t step, int64_t version_read = 0) {
  policies::Update update;
  update.rank = rank;
  update.step = step;
  update.samples = 1;
  update.version_read = version_read;
  return update;
}

struct Row {
  Policy::Kind kind;
  int number;
  std::string name;
  policies::Arrival arrival;  // of step 0 at version 0
  policies::Properties properties;
};

policies::Properties Synchronous(int64_t delay) {
  policies::Properties p;
  p.lockstep = p.order_free = p.holds = true;
  p.delay = p.read_bound = delay;
  p.clock_bound = 0;
  return p;
}
policies::Properties Bounded(int64_t bound) {
  policies::Properties p;
  p.clock_bound = p.read_bound = bound;
  return p;
}
policies::Properties Backups() {
  policies::Properties p;
  p.holds = p.skips = true;
  p.read_bound = 0;
  return p;
}

class PolicyTest : public ::testing::TestWithParam<Row> {};

TEST_P(PolicyTest, NameArrivalAndProperties) {
  const auto policy = Make(GetParam().kind, GetParam().number);
  EXPECT_EQ(policy->name(), GetParam().name);
  EXPECT_EQ(policy->OnArrival(At(0, {1, 0, 0, 0}), Of(0, 0)), GetParam().arrival);
  EXPECT_EQ(policy->OnApply(At(0, {1, 0, 0, 0}), Of(0, 0)).factor, 1.0f);
  const policies::Properties p = policy->properties(), want = GetParam().properties;
  EXPECT_EQ(p.lockstep, want.lockstep);
  EXPECT_EQ(p.order_free, want.order_free);
  EXPECT_EQ(p.holds, want.holds);
  EXPECT_EQ(p.batch, want.batch);
  EXPECT_EQ(p.delay, want.delay);
  EXPECT_EQ(p.clock_bound, want.clock_bound);
  EXPECT_EQ(p.read_bound, want.read_bound);
  EXPECT_EQ(p.skips, want.skips);
}

INSTANTIATE_TEST_SUITE_P(
    All, PolicyTest,
    ::testing::Values(
        Row{Policy::BSP, 0, "BSP", policies::Arrival::kHold, Synchronous(0)},
        Row{Policy::FIXED_DELAY, 3, "FIXED_DELAY(3)", policies::Arrival::kHold, Synchronous(3)},
        Row{Policy::SSP, 4, "SSP(4)", policies::Arrival::kApply, Bounded(4)},
        Row{Policy::ASP, 0, "ASP", policies::Arrival::kApply, policies::Properties()},
        Row{Policy::BACKUP_WORKERS, 1, "BACKUP_WORKERS(1)", policies::Arrival::kHold, Backups()},
        Row{Policy::STALENESS_AWARE, 0, "STALENESS_AWARE", policies::Arrival::kApply,
            policies::Properties()}));

// Every kind that a job can name has a row above.
TEST(PolicyKindsTest, AllAreListed) {
  EXPECT_EQ(policies::PolicyKinds().size(),
            static_cast<size_t>(Policy::Kind_descriptor()->value_count() - 1));
}

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
  EXPECT_EQ(policy->Ticks(At(3, {4, 5, 4, 3}), {2, 3}, 1), 0);
  EXPECT_EQ(policy->Ticks(At(3, {4, 5, 4, 4}), {2, 4}, 1), 1);
}

TEST(BackupWorkersTest, TheFirstNLessBCloseAStepAndTheRestIsDropped) {
  const auto policy = Make(Policy::BACKUP_WORKERS, 1);
  EXPECT_EQ(policy->Ticks(At(3, {4, 4, 3, 3}), {1, 2}, 1), 0);
  EXPECT_EQ(policy->Ticks(At(3, {4, 4, 4, 3}), {1, 3}, 1), 1);
  EXPECT_EQ(policy->OnArrival(At(4, {4, 4, 4, 4}), Of(3, 3)), policies::Arrival::kDrop);
  EXPECT_EQ(policy->OnArrival(At(4, {4, 4, 4, 5}), Of(3, 4)), policies::Arrival::kHold);
  EXPECT_TRUE(policy->MayServe(At(4, {4, 4, 4, 3}), 3, 3, 0)) << "late: reads what there is";
  EXPECT_FALSE(policy->MayServe(At(4, {4, 4, 4, 3}), 0, 5, 2));
}

// Nobody waits for a step for ever: not when some have run out of data, nor when all have skipped it.
TEST(BackupWorkersTest, WhoHasFinishedDoesNotStandForWhoHasNotCome) {
  const auto policy = Make(Policy::BACKUP_WORKERS, 1);
  policies::RangeProgress progress =
      At(3, {4, 5, 4, 3});  // 1 came and is through, 2 ended without data
  progress.workers[1].finished = progress.workers[2].finished = true;
  EXPECT_EQ(policy->Ticks(progress, {1, 2}, 1), 0) << "2 of 3 are there, worker 3 has data";
  for (policies::WorkerProgress& worker : progress.workers) worker.finished = true;
  EXPECT_EQ(policy->Ticks(progress, {2, 1}, 1), 1) << "nobody is to come";
  EXPECT_EQ(policy->Ticks(progress, {1, 0}, 0), 1);
  EXPECT_EQ(policy->Ticks(progress, {0, 0}, 0), 0);
}

TEST(BackupWorkersTest, FewerWorkersWithDataAreEnoughIfTheyAreAll) {
  const auto policy = Make(Policy::BACKUP_WORKERS, 1);
  policies::RangeProgress progress = At(3, {4, 3, 3, 3});
  progress.workers[1].finished = progress.workers[2].finished = true;
  EXPECT_EQ(policy->Ticks(progress, {1, 1}, 1), 0) << "worker 3 is still to come";
  progress.workers[3].finished = true;
  EXPECT_EQ(policy->Ticks(progress, {1, 1}, 1), 1);
  EXPECT_EQ(policy->Ticks(At(3, {7, 8, 7, 9}), {0, 0}, 4), 4) << "skipped by all";
}

TEST(StalenessAwareTest, DividesTheStepByTheStaleness) {
  const auto policy = Make(Policy::STALENESS_AWARE);
  const policies::RangeProgress now = At(9, {5, 0, 0, 0});
  EXPECT_EQ(policy->OnApply(now, Of(0, 4, 9)).factor, 1.0f);
  EXPECT_EQ(policy->OnApply(now, Of(0, 4, 8)).factor, 1.0f);
  EXPECT_EQ(policy->OnApply(now, Of(0, 4, 7)).factor, 0.5f);
  EXPECT_EQ(policy->OnApply(now, Of(0, 4, 1)).factor, 0.125f);
  EXPECT_EQ(
      Make(Policy::STALENESS_AWARE, 0, Policy::INVERSE_WORKERS)->OnApply(now, Of(0, 4, 7)).factor,
      0.125f);
}

// Those that apply each update by itself move the version by each step, also an empty push's.
TEST(TicksTest, OnePerStepWhereNothingIsHeld) {
  for (const auto kind : {Policy::ASP, Policy::SSP, Policy::STALENESS_AWARE}) {
    EXPECT_EQ(Make(kind)->Ticks(At(0, {7, 0, 0, 0}), {}, 7), 7);
    EXPECT_EQ(Make(kind)->Ticks(At(7, {7, 0, 0, 0}), {}, 0), 0);
  }
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
  policies::RangeProgress progress = At(9, {9, 2, 9, 9});
  EXPECT_FALSE(policy->MayServe(progress, 0, 9, 0));
  progress.workers[1].finished = true;
  EXPECT_TRUE(policy->MayServe(progress, 0, 9, 0));
}

TEST(AsyncScaleTest, OneOverTheWorkersWhereAskedFor) {
  const policies::RangeProgress progress = At(0, {1, 0, 0, 0});
  for (const auto kind : {Policy::ASP, Policy::SSP}) {
    EXPECT_EQ(Make(kind, 3, Policy::INVERSE_WORKERS)->OnApply(progress, Of(0, 0)).factor, 0.25f);
  }
}

TEST(RangeProgressTest, SlowestAndSmallest) {
  policies::RangeProgress progress = At(3, {5, 3, 4});
  EXPECT_EQ(progress.MinClock(), 3);
  EXPECT_EQ(progress.MinAdmitted(), 3);
  EXPECT_EQ(progress.Slowest(), 1);
  progress.workers[1].finished = true;
  EXPECT_EQ(progress.MinClock(), 4);
  EXPECT_EQ(progress.MinAdmitted(), 3) << "a step that all close needs even those without data";
  EXPECT_EQ(progress.MinAdmittedLive(), 4);
  EXPECT_EQ(progress.Live(), 2);
  EXPECT_EQ(progress.Slowest(), 2);
  for (policies::WorkerProgress& worker : progress.workers) worker.finished = true;
  EXPECT_EQ(progress.MinClock(), policies::kInfiniteClock);
}

TEST(NewUpdatePolicyTest, RefusesWhatIsNotResolved) {
  Policy config;
  EXPECT_EQ(policies::NewUpdatePolicy(config, 2).status().code(),
            absl::StatusCode::kInvalidArgument);
  config.set_kind(Policy::SSP);
  EXPECT_THAT(std::string(policies::NewUpdatePolicy(config, 2).status().message()),
              ::testing::HasSubstr("bound"));
  config.set_kind(Policy::FIXED_DELAY);
  EXPECT_THAT(std::string(policies::NewUpdatePolicy(config, 2).status().message()),
              ::testing::HasSubstr("delay"));
  config.set_kind(Policy::BACKUP_WORKERS);
  EXPECT_THAT(std::string(policies::NewUpdatePolicy(config, 2).status().message()),
              ::testing::HasSubstr("backups"));
}

}  // namespace
}  // namespace tandem
