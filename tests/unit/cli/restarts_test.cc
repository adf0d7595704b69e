// Tests which failures are followed by a new attempt, and what restarts are counted as.
#include "cli/launch/restarts.h"

#include <string>

#include "absl/strings/substitute.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using cli::AttemptFailure;
using cli::Restarts;
using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1000);

AttemptFailure Killed() {
  AttemptFailure failure;
  failure.text = "worker 1 (pid 7) was ended by signal 9 (Killed)";
  failure.began = true;
  return failure;
}

AttemptFailure Raised(int64_t step, const std::string& error = "KeyError: 'id'") {
  AttemptFailure failure;
  failure.text = "worker 0: " + error;
  failure.error = error;
  failure.step = step;
  failure.began = true;
  return failure;
}

TEST(RestartsTest, AKilledProcessIsReplacedAsOftenAsTheJobSays) {
  Restarts restarts(2);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(restarts.Allow(kNow, Killed()));
    restarts.Begin(kNow, Killed(), 100, 20);
    restarts.OnSaved();
  }
  EXPECT_FALSE(restarts.Allow(kNow + absl::Minutes(59), Killed()));
  EXPECT_THAT(restarts.why_not(), HasSubstr("2 times within an hour"));
  EXPECT_THAT(restarts.why_not(), HasSubstr("cluster.max_restarts"));
}

TEST(RestartsTest, OnlyTheLastHourCounts) {
  Restarts restarts(1);
  restarts.Begin(kNow, Killed(), 0, 0);
  restarts.OnSaved();
  EXPECT_TRUE(restarts.Allow(kNow + absl::Minutes(61), Killed()));
  EXPECT_EQ(restarts.ForScheduler(kNow + absl::Minutes(61)).left, 1);
  EXPECT_EQ(restarts.ForScheduler(kNow).left, 0);
  EXPECT_EQ(restarts.ForScheduler(kNow).left_again, kNow + absl::Hours(1));
}

// A process that grows until it is killed, each time after longer than an hour allows to count.
TEST(RestartsTest, WithoutANewerCheckpointItEnds) {
  Restarts restarts(2);
  absl::Time now = kNow;
  for (int i = 0; i < 2; ++i, now += absl::Hours(2)) {
    ASSERT_TRUE(restarts.Allow(now, Killed()));
    restarts.Begin(now, Killed(), 100, 20);
  }
  EXPECT_FALSE(restarts.Allow(now, Killed()));
  EXPECT_THAT(restarts.why_not(), HasSubstr("2 times without a newer checkpoint"));
  restarts.OnSaved();
  EXPECT_TRUE(restarts.Allow(now, Killed()));
}

TEST(RestartsTest, AJobThatEndsIsNotBegunAgain) {
  Restarts restarts(3);
  AttemptFailure failure = Killed();
  failure.ending = true;
  EXPECT_FALSE(restarts.Allow(kNow, failure));
}

TEST(RestartsTest, ZeroMeansNever) {
  Restarts restarts(0);
  EXPECT_FALSE(restarts.Allow(kNow, Killed()));
  EXPECT_EQ(restarts.why_not(), "") << "the user has asked for it";
}

TEST(RestartsTest, WhatWouldComeAgainIsNotTriedAgain) {
  Restarts restarts(3);
  AttemptFailure diverged = Raised(7, "the loss is nan");
  diverged.comes_again = true;
  EXPECT_FALSE(restarts.Allow(kNow, diverged));
}

TEST(RestartsTest, AnErrorIsTriedOnceAtAStep) {
  Restarts restarts(10);
  ASSERT_TRUE(restarts.Allow(kNow, Raised(40)));
  restarts.Begin(kNow, Raised(40), 20, 20);
  EXPECT_TRUE(restarts.Allow(kNow, Raised(50))) << "another step";
  EXPECT_TRUE(restarts.Allow(kNow, Raised(40, "out of memory"))) << "another error";
  EXPECT_FALSE(restarts.Allow(kNow, Raised(51)));
  EXPECT_THAT(restarts.why_not(), HasSubstr("the same error at step 51 twice"));
}

// Steps, offsets and names of checkpoints differ each time.
TEST(RestartsTest, AnErrorIsTheSameWithOtherNumbers) {
  Restarts restarts(10);
  const char kText[] = "/m/step-$0.00c0ffee00000000-$1/ids.0000-1999.range: write at offset $2";
  const auto raised = [&kText](int64_t step, int attempt) {
    return Raised(step, absl::Substitute(kText, step, attempt, 4096 * step));
  };
  ASSERT_TRUE(restarts.Allow(kNow, raised(40, 1)));
  restarts.Begin(kNow, raised(40, 1), 20, 20);
  EXPECT_FALSE(restarts.Allow(kNow, raised(41, 2)));
}

// The error may come to another role, at another file.
TEST(RestartsTest, TheSecondFullDiskEndsTheRunUnlessACheckpointHadRoom) {
  AttemptFailure full = Killed();
  full.no_room = true;
  Restarts restarts(10);
  ASSERT_TRUE(restarts.Allow(kNow, full));
  restarts.Begin(kNow, full, 100, 20);
  EXPECT_TRUE(restarts.Allow(kNow, Killed()));
  EXPECT_FALSE(restarts.Allow(kNow, full));
  EXPECT_THAT(restarts.why_not(), HasSubstr("full a second time"));
  restarts.OnSaved();
  EXPECT_TRUE(restarts.Allow(kNow, full));
}

// A kill has no step: a process may be killed at the same step by chance.
TEST(RestartsTest, KillsAreAllCountedAlike) {
  Restarts restarts(3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(restarts.Allow(kNow, Killed()));
    restarts.Begin(kNow, Killed(), 0, 0);
  }
}

TEST(RestartsTest, ARoleThatCannotStartIsNotTriedAgain) {
  Restarts restarts(3);
  AttemptFailure failure = Killed();
  failure.began = false;
  EXPECT_FALSE(restarts.Allow(kNow, failure)) << "the first start";
  restarts.Begin(kNow, Killed(), 0, 0);
  EXPECT_TRUE(restarts.Allow(kNow, failure)) << "killed while the next attempt starts";
  failure.comes_again = true;
  EXPECT_FALSE(restarts.Allow(kNow, failure)) << "a role has not come";
}

// A process that was replaced counts, but the run has lost nothing that a checkpoint would save.
TEST(RestartsTest, AReplacedProcessCountsAsARestart) {
  Restarts restarts(2);
  restarts.Begin(kNow, Killed(), 100, 20);
  restarts.BeginReplacement(kNow, "worker 1", "was ended by signal 9 (Killed)");
  EXPECT_EQ(restarts.ForScheduler(kNow).left, 0);
  restarts.OnReplaced("worker 1", 1.5, 140, 3);
  EXPECT_FALSE(restarts.Allow(kNow, Killed()));
  EXPECT_TRUE(restarts.Allow(kNow + absl::Hours(2), Killed())) << "one restart since a checkpoint";
  EXPECT_EQ(restarts.OnRecovered(2.5), 20) << "of the restart of all roles";
  const nlohmann::json summary = restarts.Summary();
  ASSERT_EQ(summary.size(), 2u);
  EXPECT_FALSE(summary[0].contains("replaced"));
  EXPECT_EQ(summary[0]["seconds"], 2.5);
  EXPECT_EQ(summary[1]["replaced"], "worker 1");
  EXPECT_EQ(summary[1]["why"], "worker 1: was ended by signal 9 (Killed)");
  EXPECT_EQ(summary[1]["seconds"], 1.5);
  EXPECT_EQ(summary[1]["step"], 140);
  EXPECT_EQ(summary[1]["steps_again"], 3);
}

// All roles start again because the new process has failed, or because another role has died.
TEST(RestartsTest, AReplacementThatFailsIsNoRestartOfItsOwn) {
  Restarts restarts(1);
  restarts.BeginReplacement(kNow, "worker 1", "was ended by signal 9 (Killed)");
  ASSERT_TRUE(restarts.Allow(kNow, Killed()));
  restarts.Begin(kNow, Killed(), 100, 20);
  ASSERT_EQ(restarts.count(), 1);
  EXPECT_FALSE(restarts.Summary()[0].contains("replaced"));
  EXPECT_FALSE(restarts.Allow(kNow, Killed()));
}

TEST(RestartsTest, AnErrorOfAReplacedWorkerIsKnown) {
  Restarts restarts(10);
  restarts.BeginReplacement(kNow, "worker 0", Raised(40).error, 40);
  restarts.OnReplaced("worker 0", 1.5, 40, 0);
  EXPECT_FALSE(restarts.Allow(kNow, Raised(41)));
  EXPECT_THAT(restarts.why_not(), HasSubstr("the same error at step 41 twice"));
  EXPECT_TRUE(restarts.Allow(kNow, Raised(50))) << "another step";
}

// The checkpoint of the next attempt turns out to be damaged: the restart costs more, and is still
// one restart.
TEST(RestartsTest, APassedOverCheckpointBelongsToItsRestart) {
  Restarts restarts(1);
  restarts.OnPassedOver(100);  // at the start of a resumed run
  EXPECT_EQ(restarts.count(), 0);
  restarts.Begin(kNow, Killed(), 100, 20);
  restarts.OnPassedOver(60);
  EXPECT_EQ(restarts.count(), 1);
  EXPECT_EQ(restarts.OnRecovered(2), 60);
  EXPECT_EQ(restarts.Summary()[0]["step"], 60);
  restarts.OnPassedOver(10);  // it has recovered: this is about nothing that is known
  EXPECT_EQ(restarts.Summary()[0]["step"], 60);
}

TEST(RestartsTest, CostsAddUpAndReachTheScheduler) {
  Restarts restarts(5);
  restarts.OnStarted(kNow - absl::Seconds(30), 12, "noon");
  restarts.Begin(kNow, Killed(), 100, 20);
  restarts.OnRecovered(2.5);
  restarts.Begin(kNow + absl::Seconds(9), Killed(), 140, 3);
  const auto flag =
      cli::ParseRestartsFlag(cli::RestartsFlag(restarts.ForScheduler(kNow + absl::Seconds(10))));
  ASSERT_TRUE(flag.ok()) << flag.status();
  EXPECT_EQ(flag->count, 2);
  EXPECT_EQ(flag->trains_since, kNow - absl::Seconds(42));
  EXPECT_EQ(flag->started, "noon");
  EXPECT_EQ(flag->seconds, 2.5);
  EXPECT_EQ(flag->steps_again, 23);
  EXPECT_EQ(flag->last, Killed().text);
  EXPECT_EQ(flag->down_since, kNow + absl::Seconds(9));
  EXPECT_EQ(flag->left, 3);
  const nlohmann::json summary = restarts.Summary();
  ASSERT_EQ(summary.size(), 2u);
  EXPECT_EQ(summary[0]["step"], 100);
  EXPECT_EQ(summary[0]["steps_again"], 20);
  EXPECT_EQ(summary[0]["seconds"], 2.5);
  EXPECT_FALSE(summary[1].contains("seconds")) << "not recovered yet";
}

// The time between the attempts is a part of the seconds of the run.
TEST(RestartsTest, TheFirstAttemptSaysSinceWhenTheRunTrains) {
  Restarts restarts(5);
  EXPECT_EQ(cli::ParseRestartsFlag(cli::RestartsFlag(restarts.ForScheduler(kNow)))->trains_since,
            absl::nullopt);
  restarts.OnStarted(kNow, 0, "noon");
  restarts.OnStarted(kNow + absl::Seconds(9), 4, "noon");
  EXPECT_EQ(restarts.ForScheduler(kNow).trains_since, kNow);
}

TEST(RestartsTest, AnotherFlagIsRefused) {
  for (const char* text : {"3", "{}", "[", R"({"count": "x"})"}) {
    EXPECT_EQ(cli::ParseRestartsFlag(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
  EXPECT_EQ(cli::ParseRestartsFlag("")->count, 0);
}

}  // namespace
}  // namespace tandem
