// Every policy, one row a case, as the literature words the four decisions.
#include "policies/policy.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/clocks.h"
#include "policies/kinds.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr int kTokenGap = 2, kUpperBound = 9, kAgeCutoff = 8;

std::unique_ptr<policies::UpdatePolicy> Make(Policy::Kind kind, int number = 0,
                                             Policy::AsyncScale scale = Policy::ONE) {
  Policy config;
  config.set_kind(kind);
  config.set_bound(number);
  config.set_delay(number);
  config.set_backups(number);
  config.set_batches(number);
  config.set_token_gap(kTokenGap);
  config.set_compensation(number);
  config.set_upper_bound(kUpperBound);
  config.set_switch_step(number);
  config.set_age_decay(number / 16.0);
  config.set_age_cutoff(kAgeCutoff);
  config.set_max_delay(number);
  config.set_full_rate_delay(number);
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
  p.holds = p.skips = p.drops = true;
  p.read_bound = 0;
  return p;
}

policies::Properties InBatches(int64_t batch, bool counts_reads) {
  policies::Properties p;
  p.holds = true;
  p.batch = batch;
  p.counts_reads = p.drops = counts_reads;
  return p;
}
policies::Properties ByWorker(int64_t workers) {
  policies::Properties p = InBatches(workers, false);
  p.fold_by_worker = true;
  return p;
}
policies::Properties CountsApplied(bool drops) {
  policies::Properties p;
  p.counts_applied = true;
  p.drops = drops;
  return p;
}
policies::Properties Gated() {
  policies::Properties p;
  p.drops = true;
  return p;
}
policies::Properties FreshBatches(int64_t batch) {
  policies::Properties p = InBatches(batch, false);
  p.counts_applied = p.drops = true;
  return p;
}
policies::Properties Compensated() {
  policies::Properties p;
  p.rows_as_read = true;
  return p;
}
policies::Properties Paced() {
  policies::Properties p = Bounded(kUpperBound);
  p.measures_steps = true;
  return p;
}

policies::Properties Kept(int64_t bound) {
  policies::Properties p = Bounded(bound);
  p.keeps_rows = true;
  return p;
}
policies::Properties Switching(int64_t step) {
  policies::Properties p;
  p.holds = step > 0;
  p.switch_step = step;
  return p;
}
policies::Properties Stored() {
  policies::Properties p;
  p.order_free = p.store = true;
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
  EXPECT_EQ(p.fold_by_worker, want.fold_by_worker);
  EXPECT_EQ(p.counts_applied, want.counts_applied);
  EXPECT_EQ(p.delay, want.delay);
  EXPECT_EQ(p.clock_bound, want.clock_bound);
  EXPECT_EQ(p.read_bound, want.read_bound);
  EXPECT_EQ(p.drops, want.drops);
  EXPECT_EQ(p.skips, want.skips);
  EXPECT_EQ(p.switch_step, want.switch_step);
  EXPECT_EQ(p.rows_as_read, want.rows_as_read);
  EXPECT_EQ(p.store, want.store);
  EXPECT_EQ(p.keeps_rows, want.keeps_rows);
  EXPECT_EQ(p.cache_rows, want.cache_rows);
  EXPECT_EQ(p.counts_reads, want.counts_reads);
  EXPECT_EQ(p.measures_steps, want.measures_steps);
  EXPECT_EQ(p.mean_square_decay, want.mean_square_decay);
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
            policies::Properties()},
        Row{Policy::K_BATCH_ASYNC, 3, "K_BATCH_ASYNC(3)", policies::Arrival::kHold,
            InBatches(3, false)},
        Row{Policy::GBA, 3, "GBA(3)", policies::Arrival::kHold, InBatches(3, true)},
        Row{Policy::DC_ASGD, 2, "DC_ASGD(2)", policies::Arrival::kApply, Compensated()},
        Row{Policy::DSSP, 4, "DSSP(4, 9)", policies::Arrival::kApply, Paced()},
        Row{Policy::SYNC_SWITCH, 3, "SYNC_SWITCH(3)", policies::Arrival::kHold, Switching(3)},
        Row{Policy::SYNC_SWITCH, 0, "SYNC_SWITCH(0)", policies::Arrival::kApply, Switching(0)},
        Row{Policy::ESSP, 4, "ESSP(4)", policies::Arrival::kApply, Kept(4)},
        Row{Policy::COSINE_GATE, 4, "COSINE_GATE(0.25, 8)", policies::Arrival::kApply, Gated()},
        Row{Policy::RINGMASTER, 3, "RINGMASTER(3)", policies::Arrival::kApply, CountsApplied(true)},
        Row{Policy::RINGLEADER, 0, "RINGLEADER", policies::Arrival::kHold, ByWorker(4)},
        Row{Policy::DELAY_ADAPTIVE, 3, "DELAY_ADAPTIVE(3)", policies::Arrival::kApply,
            policies::Properties()},
        Row{Policy::RENNALA, 3, "RENNALA(3)", policies::Arrival::kHold, FreshBatches(3)},
        Row{Policy::ORDERED_MOMENTUM, 0, "ORDERED_MOMENTUM", policies::Arrival::kApply,
            CountsApplied(false)},
        Row{Policy::KEY_VALUE, 0, "KEY_VALUE", policies::Arrival::kDrop, Stored()}));

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
  EXPECT_EQ(policy->Ticks(At(3, {4, 5, 4, 3}), {2, 3}, {1}), 0);
  EXPECT_EQ(policy->Ticks(At(3, {4, 5, 4, 4}), {2, 4}, {1}), 1);
}

TEST(BackupWorkersTest, TheFirstNLessBCloseAStepAndTheRestIsDropped) {
  const auto policy = Make(Policy::BACKUP_WORKERS, 1);
  EXPECT_EQ(policy->Ticks(At(3, {4, 4, 3, 3}), {1, 2}, {1}), 0);
  EXPECT_EQ(policy->Ticks(At(3, {4, 4, 4, 3}), {1, 3}, {1}), 1);
  EXPECT_EQ(policy->OnArrival(At(4, {4, 4, 4, 4}), Of(3, 3)), policies::Arrival::kDrop);
  EXPECT_EQ(policy->OnArrival(At(4, {4, 4, 4, 5}), Of(3, 4)), policies::Arrival::kHold);
  EXPECT_TRUE(policy->MayServe(At(4, {4, 4, 4, 3}), 3, 3, 0)) << "late: reads what there is";
  EXPECT_FALSE(policy->MayServe(At(4, {4, 4, 4, 3}), 0, 5, 2));
}

// Nobody waits for a step for ever: not when some have run out of data, nor when all have skipped
// it.
TEST(BackupWorkersTest, WhoHasFinishedDoesNotStandForWhoHasNotCome) {
  const auto policy = Make(Policy::BACKUP_WORKERS, 1);
  policies::RangeProgress progress =
      At(3, {4, 5, 4, 3});  // 1 came and is through, 2 ended without data
  progress.workers[1].finished = progress.workers[2].finished = true;
  EXPECT_EQ(policy->Ticks(progress, {1, 2}, {1}), 0) << "2 of 3 are there, worker 3 has data";
  for (policies::WorkerProgress& worker : progress.workers) worker.finished = true;
  EXPECT_EQ(policy->Ticks(progress, {2, 1}, {1}), 1) << "nobody is to come";
  EXPECT_EQ(policy->Ticks(progress, {1, 0}, {0}), 1);
  EXPECT_EQ(policy->Ticks(progress, {0, 0}, {0}), 0);
}

TEST(BackupWorkersTest, FewerWorkersWithDataAreEnoughIfTheyAreAll) {
  const auto policy = Make(Policy::BACKUP_WORKERS, 1);
  policies::RangeProgress progress = At(3, {4, 3, 3, 3});
  progress.workers[1].finished = progress.workers[2].finished = true;
  EXPECT_EQ(policy->Ticks(progress, {1, 1}, {1}), 0) << "worker 3 is still to come";
  progress.workers[3].finished = true;
  EXPECT_EQ(policy->Ticks(progress, {1, 1}, {1}), 1);
  EXPECT_EQ(policy->Ticks(At(3, {7, 8, 7, 9}), {0, 0}, {4}), 4) << "skipped by all";
}

TEST(EsspTest, IsSspWithRowsThatAreKept) {
  Policy config;
  config.set_kind(Policy::ESSP);
  config.set_bound(2);
  config.set_cache_rows(500);
  const auto policy = *policies::NewUpdatePolicy(config, 4);
  EXPECT_EQ(policy->name(), "ESSP(2, 500 rows)");
  EXPECT_EQ(policy->properties().cache_rows, 500);
  EXPECT_TRUE(policy->MayStart(5, 3));
  EXPECT_FALSE(policy->MayStart(6, 3));
  EXPECT_TRUE(policy->MayServe(At(9, {3, 5, 5, 5}), 1, 5, 0));
  EXPECT_FALSE(policy->MayServe(At(9, {2, 5, 5, 5}), 1, 5, 0));
  EXPECT_FALSE(policy->MayServe(At(9, {4, 5, 5, 5}), 0, 5, 0));
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

TEST(CosineGateTest, WeighsByAgeUpToTheCutoff) {
  const policies::RangeProgress now = At(20, {5, 0, 0, 0});
  const auto factor = [&](int number, int64_t age) {
    return Make(Policy::COSINE_GATE, number)->OnApply(now, Of(0, 4, 20 - age)).factor;
  };
  EXPECT_EQ(factor(0, 0), 1.0f);
  EXPECT_FLOAT_EQ(factor(0, 4), 0.5f) << "half the cutoff";
  EXPECT_FLOAT_EQ(factor(0, 2), 0.853553391f);
  EXPECT_EQ(factor(0, 8), 0.0f);
  EXPECT_EQ(factor(0, 20), 0.0f);
  EXPECT_EQ(factor(0, -1), 1.0f) << "as if read after it came";
  EXPECT_EQ(factor(4, 0), 1.0f);
  EXPECT_FLOAT_EQ(factor(4, 4), 0.5f * std::exp(-1.0f));
  EXPECT_FLOAT_EQ(
      Make(Policy::COSINE_GATE, 0, Policy::INVERSE_WORKERS)->OnApply(now, Of(0, 4, 16)).factor,
      0.125f);
}

TEST(RingmasterTest, DropsGradientsOfTheMaximumDelayWithoutATick) {
  const auto policy = Make(Policy::RINGMASTER, 3);
  const policies::RangeProgress now = At(20, {5, 0, 0, 0});
  const auto factor = [&](int64_t delay) {
    return policy->OnApply(now, Of(0, 4, 20 - delay)).factor;
  };
  EXPECT_EQ(factor(0), 1.0f);
  EXPECT_EQ(factor(2), 1.0f);
  EXPECT_EQ(factor(3), 0.0f);
  EXPECT_EQ(factor(20), 0.0f);
  EXPECT_EQ(Make(Policy::RINGMASTER, 3, Policy::INVERSE_WORKERS)->OnApply(now, Of(0, 4, 20)).factor,
            0.25f);
  EXPECT_EQ(policy->Ticks(now, {}, {.steps = 1, .applied = 1}), 1);
  EXPECT_EQ(policy->Ticks(now, {}, {.steps = 1, .applied = 0}), 0) << "dropped";
  EXPECT_EQ(policy->Ticks(now, {}, {.steps = 7, .applied = 0}), 0) << "without samples";
  EXPECT_TRUE(policy->MayStart(1000, 0));
  EXPECT_TRUE(policy->MayServe(now, 0, 5, 0));
  EXPECT_FALSE(policy->MayServe(now, 0, 6, 0)) << "its own write is missing";
}

TEST(RingleaderTest, WaitsForNobodyAndClosesWhenItHasAllWorkers) {
  const auto policy = Make(Policy::RINGLEADER);
  EXPECT_TRUE(policy->MayStart(1000, 0));
  policies::RangeProgress progress = At(2, {5, 0, 0, 0});
  progress.workers[0].applied = 0;  // all it has pushed is in the open group
  EXPECT_TRUE(policy->MayServe(progress, 0, 5, 0));
  EXPECT_FALSE(policy->MayServe(progress, 0, 6, 0)) << "its last push is still on its way";
  EXPECT_TRUE(policy->MayServe(progress, 0, 6, 1));
  EXPECT_EQ(policy->Ticks(progress, {1, 100}, {1}), 0) << "not of all workers";
  EXPECT_EQ(policy->Ticks(progress, {1, 4, true}, {1}), 1);
  policies::Update nothing = Of(0, 5);
  nothing.samples = 0;
  EXPECT_EQ(policy->OnArrival(progress, nothing), policies::Arrival::kApply);
  nothing.skipped = true;
  EXPECT_EQ(policy->OnArrival(progress, nothing), policies::Arrival::kApply) << "no gradient";
}

TEST(DelayAdaptiveTest, LowersTheRateOfGradientsBeyondTheDelay) {
  const auto policy = Make(Policy::DELAY_ADAPTIVE, 4);
  const policies::RangeProgress now = At(20, {5, 0, 0, 0});
  const auto at = [&](int64_t delay) { return policy->OnApply(now, Of(0, 4, 20 - delay)); };
  EXPECT_EQ(at(0).rate, 1.0f);
  EXPECT_EQ(at(4).rate, 1.0f);
  EXPECT_EQ(at(5).rate, 0.8f);
  EXPECT_EQ(at(16).rate, 0.25f);
  EXPECT_EQ(at(16).factor, 1.0f) << "Adam would not feel it";
  EXPECT_EQ(policy->Ticks(now, {}, {.steps = 7, .applied = 1}), 7);
  EXPECT_TRUE(policy->MayStart(1000, 0));
  EXPECT_TRUE(policy->MayServe(now, 0, 6, 1));
  EXPECT_FALSE(policy->MayServe(now, 0, 7, 1));
}

// The scale of all updates is no judgement of one of them.
TEST(TransformTest, ShareLeavesOutTheCommonScale) {
  const policies::RangeProgress now = At(20, {5, 0, 0, 0});
  const auto share = [&](Policy::Kind kind, int64_t delay) {
    return Make(kind, 4, Policy::INVERSE_WORKERS)->OnApply(now, Of(0, 4, 20 - delay)).share();
  };
  for (const auto kind : {Policy::ASP, Policy::SSP, Policy::ESSP, Policy::DSSP, Policy::DC_ASGD,
                          Policy::SYNC_SWITCH}) {
    EXPECT_EQ(share(kind, 8), 1.0f) << Policy::Kind_Name(kind);
  }
  EXPECT_EQ(share(Policy::RINGMASTER, 3), 1.0f);
  EXPECT_EQ(share(Policy::RINGMASTER, 4), 0.0f);
  EXPECT_EQ(share(Policy::DELAY_ADAPTIVE, 8), 0.5f);
  EXPECT_EQ(share(Policy::STALENESS_AWARE, 8), 0.125f);
  EXPECT_EQ(share(Policy::COSINE_GATE, 0), 1.0f);
  EXPECT_FLOAT_EQ(share(Policy::COSINE_GATE, 4), 0.5f * std::exp(-1.0f));
}

TEST(InBatchesTest, WaitForNobodyAndCloseWhenFull) {
  for (const auto kind : {Policy::K_BATCH_ASYNC, Policy::GBA, Policy::RENNALA}) {
    const auto policy = Make(kind, 3);
    EXPECT_TRUE(policy->MayStart(1000, 0));
    policies::RangeProgress progress = At(2, {5, 0, 0, 0});
    progress.workers[0].applied = 0;  // all it has pushed is in an open batch
    EXPECT_TRUE(policy->MayServe(progress, 0, 5, 0));
    EXPECT_FALSE(policy->MayServe(progress, 0, 6, 0)) << "its last push is still on its way";
    EXPECT_TRUE(policy->MayServe(progress, 0, 6, 1));
    EXPECT_EQ(policy->Ticks(progress, {1, 2}, {1}), 0);
    EXPECT_EQ(policy->Ticks(progress, {1, 3}, {1}), 1);
    EXPECT_EQ(policy->Ticks(progress, {0, 0}, {7}), 0) << "an empty push over several is no batch";
    policies::Update nothing = Of(0, 5);
    nothing.samples = 0;
    EXPECT_EQ(policy->OnArrival(progress, nothing), policies::Arrival::kApply) << "nor part of one";
  }
}

TEST(InBatchesTest, WhatIsLeftIsClosedWhenNobodyHasData) {
  for (const auto kind : {Policy::K_BATCH_ASYNC, Policy::GBA, Policy::RENNALA}) {
    const auto policy = Make(kind, 3);
    policies::RangeProgress progress = At(2, {5, 1, 1, 1});
    for (int rank = 0; rank < 3; ++rank)
      progress.workers[static_cast<size_t>(rank)].finished = true;
    EXPECT_EQ(policy->Ticks(progress, {1, 1}, {1}), 0);
    progress.workers[3].finished = true;
    EXPECT_EQ(policy->Ticks(progress, {1, 1}, {1}), 1);
    EXPECT_EQ(policy->Ticks(progress, {0, 0}, {0}), 0);
  }
}

// Reads 0 to 2 have token 0, 3 to 5 token 1, ...: in the step of batch 4 token 2 is old enough to
// count nothing if the gap may be 1, not if it may be 2.
TEST(GbaTest, TokensThatAreTooOldCountNothing) {
  const auto policy = Make(Policy::GBA, 3);
  const auto factor = [&](int64_t version, int64_t read_number) {
    policies::Update update = Of(1, 0);
    update.read_number = read_number;
    return policy->OnApply(At(version, {1, 1, 1, 1}), update).factor;
  };
  EXPECT_EQ(factor(4, 14), 1.0f);
  EXPECT_EQ(factor(4, 6), 1.0f) << "token 2";
  EXPECT_EQ(factor(4, 5), 0.0f) << "token 1";
  EXPECT_EQ(factor(2, 0), 1.0f);
  EXPECT_EQ(factor(3, 2), 0.0f);
  EXPECT_EQ(factor(3, 30), 1.0f) << "ahead of its batch";
  EXPECT_EQ(factor(1000, -1), 1.0f) << "not counted";
}

TEST(RennalaTest, DropsGradientsOfOlderVersionsAndCountsOthersInFull) {
  const auto policy = Make(Policy::RENNALA, 3);
  const policies::RangeProgress now = At(20, {5, 0, 0, 0});
  EXPECT_EQ(policy->OnArrival(now, Of(0, 4, 20)), policies::Arrival::kHold);
  EXPECT_EQ(policy->OnArrival(now, Of(0, 4, 21)), policies::Arrival::kHold) << "of another copy";
  EXPECT_EQ(policy->OnArrival(now, Of(0, 4, 19)), policies::Arrival::kDrop);
  policies::Update nothing = Of(0, 4, 19);
  nothing.samples = 0;
  EXPECT_EQ(policy->OnArrival(now, nothing), policies::Arrival::kApply);
  nothing.skipped = true;
  nothing.version_read = 20;
  EXPECT_EQ(policy->OnArrival(now, nothing), policies::Arrival::kApply) << "no gradient";
  EXPECT_EQ(policy->OnApply(now, Of(0, 4, 20)).factor, 1.0f);
}

// With four workers updates 0 to 3 are group 0, and gradients of the rows after 1 to 4 updates
// belong to group 1.
TEST(OrderedMomentumTest, CountsInGroupsHowLateAGradientIs) {
  const auto policy = Make(Policy::ORDERED_MOMENTUM);
  const auto at = [&](int64_t version, int64_t version_read) {
    return policy->OnApply(At(version, {1, 1, 1, 1}), Of(1, 0, version_read));
  };
  EXPECT_EQ(at(0, 0).groups_late, 0);
  EXPECT_EQ(at(3, 0).groups_late, 0);
  EXPECT_EQ(at(4, 0).groups_late, 1);
  EXPECT_EQ(at(4, 1).groups_late, 0);
  EXPECT_EQ(at(7, 4).groups_late, 0);
  EXPECT_EQ(at(11, 4).groups_late, 1);
  EXPECT_EQ(at(11, 0).groups_late, 2);
  EXPECT_EQ(at(2, 1).groups_late, 0) << "its group has not begun";
  EXPECT_TRUE(at(0, 0).begins_group);
  EXPECT_FALSE(at(3, 0).begins_group);
  EXPECT_TRUE(at(8, 0).begins_group);
  EXPECT_EQ(at(11, 0).share(), 1.0f);
  const policies::RangeProgress now = At(4, {1, 1, 1, 1});
  EXPECT_EQ(policy->Ticks(now, {}, {.steps = 1, .applied = 1}), 1);
  EXPECT_EQ(policy->Ticks(now, {}, {.steps = 3, .applied = 0}), 0) << "without samples";
  EXPECT_EQ(
      Make(Policy::ORDERED_MOMENTUM, 0, Policy::INVERSE_WORKERS)->OnApply(now, Of(0, 0)).factor,
      0.25f);
  EXPECT_EQ(Make(Policy::ASP)->OnApply(now, Of(0, 0)).groups_late, -1);
}

TEST(DcAsgdTest, AsksForRowsAsReadUnlessLambdaIsNought) {
  EXPECT_EQ(Make(Policy::DC_ASGD, 2)->OnApply(At(5, {1, 1, 1, 1}), Of(0, 0)).compensation, 2.0f);
  EXPECT_EQ(Make(Policy::DC_ASGD, 2, Policy::INVERSE_WORKERS)
                ->OnApply(At(5, {1, 1, 1, 1}), Of(0, 0))
                .factor,
            0.25f);
  EXPECT_FALSE(Make(Policy::DC_ASGD, 0)->properties().rows_as_read);
  Policy config;
  config.set_kind(Policy::DC_ASGD);
  config.set_compensation(0.5);
  config.set_mean_square_decay(0.9);
  const auto adaptive = *policies::NewUpdatePolicy(config, 4);
  EXPECT_EQ(adaptive->name(), "DC_ASGD(0.5, adaptive 0.9)");
  EXPECT_EQ(adaptive->properties().mean_square_decay, 0.9);
}

// Workers 0 and 1; 1 is the slowest, with a step time of 100 and a push just now. Bound 4, at most
// 9.
TEST(DsspTest, RunsOnIfALaterWaitIsShorter) {
  const auto policy = Make(Policy::DSSP, 4);
  const auto may_serve = [&](int64_t step, int64_t min, policies::WorkerPace own,
                             policies::WorkerPace slowest) {
    policies::RangeProgress progress = At(20, {step, min, step, step});
    progress.paces = {own, slowest, {}, {}};
    return policy->MayServe(progress, 0, step, 0);
  };
  const policies::WorkerPace slow = {1000, 100};
  EXPECT_TRUE(may_serve(5, 1, {}, {})) << "within the lower bound";
  EXPECT_FALSE(may_serve(6, 1, {}, slow)) << "its own pace is not known";
  EXPECT_FALSE(may_serve(6, 1, {1000, 30}, {})) << "nor the other's";
  // Both have pushed just now: 100 to wait. After steps of 30 it is 70, 40, 10.
  EXPECT_TRUE(may_serve(6, 1, {1000, 30}, slow));
  // 10 before the slowest pushes: nothing is shorter. Steps of 30 end 20, 50, 80 after a push.
  EXPECT_FALSE(may_serve(6, 1, {1090, 30}, slow)) << "within the five steps to the upper bound";
  EXPECT_FALSE(may_serve(11, 1, {1000, 30}, slow)) << "never beyond the upper bound";
  // At the upper bound one step is left: it ends when the slowest has just pushed.
  EXPECT_TRUE(may_serve(10, 1, {1040, 60}, slow));
  EXPECT_FALSE(may_serve(10, 1, {1040, 70}, slow)) << "60 to wait now, 90 then";
  EXPECT_TRUE(policy->MayStart(10, 1));
  EXPECT_FALSE(policy->MayStart(11, 1));
}

TEST(SyncSwitchTest, StepsBeforeTheSwitchAreThoseOfBsp) {
  const auto policy = Make(Policy::SYNC_SWITCH, 5);
  EXPECT_TRUE(policy->MayServe(At(3, {3, 3, 3, 3}), 0, 3, 0));
  EXPECT_FALSE(policy->MayServe(At(3, {4, 4, 4, 3}), 0, 4, 3)) << "depth changes nothing";
  EXPECT_EQ(policy->Ticks(At(3, {4, 5, 4, 3}), {2, 3}, {1}), 0);
  EXPECT_EQ(policy->Ticks(At(3, {4, 5, 4, 4}), {2, 4}, {1}), 1);
  policies::RangeProgress progress = At(3, {4, 4, 4, 3});
  progress.workers[3].finished = true;
  EXPECT_EQ(policy->Ticks(progress, {1, 3}, {1}), 1) << "who has no data is not waited for";
  for (policies::WorkerProgress& worker : progress.workers) worker.finished = true;
  EXPECT_EQ(policy->Ticks(progress, {1, 3}, {1}), 1) << "nobody is to come";
  EXPECT_EQ(policy->Ticks(progress, {0, 0}, {0}), 0);
}

TEST(SyncSwitchTest, BehindTheSwitchNobodyWaits) {
  const auto policy = Make(Policy::SYNC_SWITCH, 5, Policy::INVERSE_WORKERS);
  EXPECT_FALSE(policy->MayServe(At(4, {5, 5, 5, 4}), 0, 5, 0)) << "the switch is for all";
  EXPECT_FALSE(policy->MayServe(At(4, {5, 5, 5, 4}), 0, 7, 3)) << "for reads ahead, too";
  EXPECT_TRUE(policy->MayServe(At(5, {5, 5, 5, 5}), 0, 5, 0));
  EXPECT_TRUE(policy->MayServe(At(9, {9, 5, 5, 5}), 0, 9, 0));
  EXPECT_FALSE(policy->MayServe(At(9, {9, 5, 5, 5}), 0, 10, 0)) << "its own write is missing";
  EXPECT_TRUE(policy->MayServe(At(9, {9, 5, 5, 5}), 0, 10, 1));
  EXPECT_EQ(policy->OnArrival(At(5, {6, 5, 5, 5}), Of(0, 5)), policies::Arrival::kApply);
  EXPECT_EQ(policy->Ticks(At(5, {6, 5, 5, 5}), {0, 0}, {1}), 1);
  EXPECT_EQ(policy->Ticks(At(6, {6, 5, 5, 5}), {0, 0}, {0}), 0);
  EXPECT_EQ(policy->OnApply(At(4, {5, 5, 5, 5}), Of(0, 4)).factor, 1.0f);
  EXPECT_EQ(policy->OnApply(At(5, {6, 5, 5, 5}), Of(0, 5)).factor, 0.25f);
}

// What workers push without rows behind the switch, such as the end of an epoch, comes to one range
// before it has switched and to another afterwards: the version of both is the same in the end.
TEST(SyncSwitchTest, TheVersionFollowsFromTheStepsAlone) {
  const auto policy = Make(Policy::SYNC_SWITCH, 5);
  const auto after = [&](const std::vector<std::pair<int, int64_t>>& pushes) {
    policies::RangeProgress progress = At(4, {4, 4, 4, 4});
    for (const auto& [rank, steps] : pushes) {
      progress.workers[static_cast<size_t>(rank)].admitted = steps;
      for (;;) {
        const int64_t ticks = policy->Ticks(progress, {0, 0}, {1});
        if (ticks == 0) break;
        progress.version += ticks;
      }
    }
    return progress.version;
  };
  const int64_t version = after({{0, 5}, {1, 5}, {2, 5}, {3, 5}, {0, 6}, {1, 7}, {2, 6}, {3, 6}});
  EXPECT_EQ(version, 5 + 1 + 2 + 1 + 1);
  EXPECT_EQ(after({{0, 5}, {0, 6}, {1, 5}, {1, 7}, {2, 5}, {2, 6}, {3, 5}, {3, 6}}), version);
}

// Those that apply each update by itself move the version by each step, also an empty push's.
TEST(TicksTest, OnePerStepWhereNothingIsHeld) {
  for (const auto kind :
       {Policy::ASP, Policy::SSP, Policy::STALENESS_AWARE, Policy::DC_ASGD, Policy::COSINE_GATE}) {
    EXPECT_EQ(Make(kind)->Ticks(At(0, {7, 0, 0, 0}), {}, {7}), 7);
    EXPECT_EQ(Make(kind)->Ticks(At(7, {7, 0, 0, 0}), {}, {0}), 0);
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

TEST(RangeProgressTest, TheClockOfKeptRowsCountsWorkersWithoutData) {
  policies::RangeProgress progress;
  progress.workers = {{1, 9, 9, false}, {1, 5, 4, true}};
  EXPECT_EQ(progress.MinApplied(), 4);
  EXPECT_EQ(progress.MinClock(), 9);
  EXPECT_EQ(progress.Admitted(), 14);
}

// ---- clocks -----------------------------------------------------------------------------------

// The numbers that Clocks keeps, and the same numbers by a look at each worker.
class KeptAndPlain {
 public:
  KeptAndPlain(int workers, const policies::Properties& properties, Random* random)
      : properties_(properties), random_(*random), clocks_(workers, properties, &kept_) {
    plain_.workers.resize(static_cast<size_t>(workers));
  }

  // A push of some worker, and what the policy makes of it. Now and then another range comes in its
  // place.
  void Step() {
    if (random_.Bernoulli(0.005)) return Replace();
    const size_t rank = random_.Uniform(plain_.workers.size());
    policies::WorkerProgress& worker = plain_.workers[rank];
    worker.admitted += 1 + static_cast<int64_t>(random_.Uniform(2));
    worker.finished = random_.Bernoulli(0.1);
    clocks_.Admit(static_cast<int>(rank), worker.admitted, worker.finished);
    const bool by_step = properties_.holds && properties_.batch == 0;
    if (by_step && random_.Bernoulli(0.3)) {
      plain_.version += 1 + static_cast<int64_t>(random_.Uniform(3));
      kept_.version = plain_.version;
    }
    if (properties_.batch > 0 && random_.Bernoulli(0.7)) return;  // the batch stays open
    clocks_.ShowApplied();
    if (!properties_.holds) {
      worker.applied = worker.admitted;
      return;
    }
    const bool switched = properties_.switch_step > 0 && plain_.version >= properties_.switch_step;
    for (policies::WorkerProgress& w : plain_.workers) {
      w.applied = switched || !by_step ? w.admitted : std::min(w.admitted, plain_.version);
    }
  }

  void Compare() const {
    ASSERT_EQ(kept_.clocks, &clocks_);
    ASSERT_EQ(kept_, plain_);
    ASSERT_EQ(kept_.MinClock(), plain_.MinClock());
    ASSERT_EQ(kept_.MinApplied(), plain_.MinApplied());
    ASSERT_EQ(kept_.MinAdmitted(), plain_.MinAdmitted());
    ASSERT_EQ(kept_.MinAdmittedLive(), plain_.MinAdmittedLive());
    ASSERT_EQ(kept_.Live(), plain_.Live());
    ASSERT_EQ(kept_.Slowest(), plain_.Slowest());
    ASSERT_EQ(kept_.Admitted(), plain_.Admitted());
    ASSERT_EQ(kept_.AdmittedBeyond(properties_.switch_step),
              plain_.AdmittedBeyond(properties_.switch_step));
    ASSERT_EQ(FrontOf(kept_, properties_), FrontOf(plain_, properties_));
  }

 private:
  void Replace() {
    plain_.version = static_cast<int64_t>(random_.Uniform(30));
    for (policies::WorkerProgress& worker : plain_.workers) {
      worker.admitted = static_cast<int64_t>(random_.Uniform(40));
      worker.applied = static_cast<int64_t>(random_.Uniform(40));
      worker.finished = random_.Bernoulli(0.2);
    }
    kept_.version = plain_.version;
    kept_.workers = plain_.workers;
    clocks_.Reset();
  }

  const policies::Properties properties_;
  Random& random_;
  policies::RangeProgress kept_, plain_;
  policies::Clocks clocks_;
};

TEST(ClocksTest, AreThoseOfALookAtEachWorker) {
  Random random(TestSeed());
  policies::Properties held;
  held.holds = true;
  for (const policies::Properties& properties :
       {Bounded(2), Paced(), held, Switching(20), InBatches(3, false)}) {
    for (const int workers : {1, 2, 3, 7, 64, 100}) {
      KeptAndPlain both(workers, properties, &random);
      for (int i = 0; i < 2000 && !testing::Test::HasFatalFailure(); ++i) {
        both.Step();
        both.Compare();
      }
    }
  }
}

// Closed steps, the smallest clock and the slowest worker can end the wait of any worker.
TEST(FrontTest, HasWhatReadsOfThePolicyWaitFor) {
  policies::RangeProgress progress = At(7, {4, 3, 5});
  EXPECT_EQ(FrontOf(progress, Bounded(2)), (policies::Front{0, 3, 0}));
  EXPECT_EQ(FrontOf(progress, Synchronous(0)), (policies::Front{7, 3, 0}));
  EXPECT_EQ(FrontOf(progress, Switching(9)), (policies::Front{7, 3, 0}));
  EXPECT_EQ(FrontOf(progress, Switching(5)), (policies::Front{5, 3, 0}));
  EXPECT_EQ(FrontOf(progress, InBatches(2, true)), (policies::Front{0, 3, 0}));
  EXPECT_EQ(FrontOf(progress, Paced()), (policies::Front{0, 3, 1}));
}

TEST(NewUpdatePolicyTest, RefusesAPolicyThatLacksAField) {
  const auto refusal = [](Policy::Kind kind) {
    Policy config;
    config.set_kind(kind);
    return std::string(policies::NewUpdatePolicy(config, 2).status().message());
  };
  EXPECT_THAT(refusal(Policy::POLICY_UNSPECIFIED), HasSubstr("is not a policy"));
  EXPECT_THAT(refusal(Policy::SSP), HasSubstr("SSP without a bound"));
  EXPECT_THAT(refusal(Policy::FIXED_DELAY), HasSubstr("without a delay"));
  EXPECT_THAT(refusal(Policy::BACKUP_WORKERS), HasSubstr("without backups"));
  EXPECT_THAT(refusal(Policy::K_BATCH_ASYNC), HasSubstr("without batches"));
  EXPECT_THAT(refusal(Policy::GBA), HasSubstr("without batches"));
  EXPECT_THAT(refusal(Policy::RENNALA), HasSubstr("without batches"));
  EXPECT_THAT(refusal(Policy::DC_ASGD), HasSubstr("without a compensation"));
  EXPECT_THAT(refusal(Policy::DSSP), HasSubstr("without a bound"));
  EXPECT_THAT(refusal(Policy::SYNC_SWITCH), HasSubstr("without a switch_step"));
  EXPECT_THAT(refusal(Policy::COSINE_GATE), HasSubstr("without an age_decay"));
  EXPECT_THAT(refusal(Policy::RINGMASTER), HasSubstr("without a max_delay"));
  EXPECT_THAT(refusal(Policy::DELAY_ADAPTIVE), HasSubstr("without a full_rate_delay"));
}

}  // namespace
}  // namespace tandem
