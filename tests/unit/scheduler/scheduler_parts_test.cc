// The objects that the scheduler's core is made of, each by itself.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/incarnation.h"
#include "scheduler/failure/failure_judge.h"
#include "scheduler/failure/liveness_monitor.h"
#include "scheduler/failure/overdue_watch.h"
#include "scheduler/failure/stall_watch.h"
#include "scheduler/observe/summary.h"
#include "scheduler/reports.h"
#include "scheduler/state/barriers.h"
#include "scheduler/state/checkpoint_queue.h"
#include "scheduler/state/commands.h"
#include "scheduler/state/effects.h"
#include "scheduler/state/membership.h"
#include "tests/unit/scheduler/scheduler_test_job.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

// One server (connection 1) and two workers (11, 12), registered and numbered at time 0.
class PartsTest : public ::testing::Test {
 protected:
  PartsTest() : plan_(TestPlan(2, 1)), members_(plan_) {
    Register(1, Register::SERVER, 0);
    Register(11, Register::WORKER, 0);
    Register(12, Register::WORKER, 1);
    members_.Number();
  }
  void Register(uint64_t connection, Register::Role role, int index) {
    const Control message = RegisterMessage(role, index, connection, 1);
    EXPECT_TRUE(members_.Register(At(0), connection, message.register_()).ok());
  }
  // All nodes are heard, and go on, at this time.
  void AllMove(double at) {
    for (scheduler::Node& node : members_.nodes()) {
      Beat beat;
      beat.set_progress(node.progress + 1);
      beat.set_step(node.step + 1);
      beat.set_activity("at work");
      node.OnBeat(At(at), beat);
      life_.OnHeard(At(at), &node, &effects_);
    }
  }

  const job::ResolvedJob plan_;
  const scheduler::SchedulerTimes times_;
  scheduler::Membership members_;
  scheduler::SchedulerEffects effects_;
  scheduler::LivenessMonitor life_{times_, &members_};
};

// A release with a part of a character could not be read by any worker.
BarrierEnter Reports(ProgramValues::Reduction reduction, double weight, double value) {
  BarrierEnter enter;
  enter.set_name("program 1");
  enter.mutable_values()->set_reduction(reduction);
  enter.mutable_values()->set_weight(weight);
  (*enter.mutable_values()->mutable_value())["x"] = value;
  return enter;
}

// The values are reduced in the order of ranks, whoever comes first.
TEST(BarriersTest, ValuesOfProgramsAreReduced) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  struct Case {
    ProgramValues::Reduction reduction;
    double weights[3], values[3], want;
  };
  for (const Case& c : {Case{ProgramValues::MEAN, {1, 3, 0}, {2, 6, kNan}, 5},
                        {ProgramValues::MEAN, {}, {}, kNan},
                        {ProgramValues::SUM, {1, 1, 1}, {.1, .2, .3}, .1 + .2 + .3},
                        {ProgramValues::MIN, {1, 1, 1}, {4, -2, 9}, -2},
                        {ProgramValues::MAX, {1, 1, 1}, {4, -2, 9}, 9},
                        {ProgramValues::MAX, {1, 1, 1}, {4, kNan, 9}, kNan}}) {
    scheduler::Barriers barriers(3);
    for (const int rank : {2, 0, 1}) {
      ASSERT_TRUE(
          barriers.Enter(At(0), rank, Reports(c.reduction, c.weights[rank], c.values[rank])).ok());
    }
    const double reduced = barriers.Release("program 1").value().at("x");
    EXPECT_TRUE(reduced == c.want || (std::isnan(reduced) && std::isnan(c.want)))
        << reduced << ", expected " << c.want;
  }
}

TEST(BarriersTest, ProgramsReportTheSameNames) {
  scheduler::Barriers barriers(2);
  ASSERT_TRUE(barriers.Enter(At(0), 0, Reports(ProgramValues::SUM, 1, 2)).ok());
  ASSERT_TRUE(barriers.Enter(At(0), 0, Reports(ProgramValues::SUM, 1, 2)).ok()) << "it repeats";
  BarrierEnter alone;
  alone.set_name("program 1");
  EXPECT_EQ(barriers.Enter(At(0), 1, alone).status().message(),
            "worker 1 waits in job.barrier(), and worker 0 reports the sum of x; all workers make "
            "these calls in the same order, with the same names");
  EXPECT_EQ(barriers.Enter(At(0), 1, Reports(ProgramValues::MEAN, 1, 2)).status().message(),
            "worker 1 reports the mean of x, and worker 0 reports the sum of x; all workers make "
            "these calls in the same order, with the same names");
  EXPECT_THAT(barriers.Enter(At(0), 1, Reports(ProgramValues::SUM, -1, 2)).status().message(),
              HasSubstr("a report of weight -1, expected 0 or more"));
  EXPECT_THAT(barriers.Enter(At(0), 1, Reports(ProgramValues::REDUCTION_UNSPECIFIED, 1, 2))
                  .status()
                  .message(),
              HasSubstr("without a reduction"));
}

// The result of an evaluation comes with the release of the barrier at its end.
TEST(BarriersTest, RankZeroGivesTheResultOfAnEvaluation) {
  scheduler::Barriers barriers(2);
  BarrierEnter enter;
  enter.set_name("evaluated 0");
  ASSERT_TRUE(barriers.Enter(At(0), 1, enter).ok());
  enter.set_evaluation_json("{}");
  ASSERT_TRUE(barriers.Enter(At(0), 0, enter).ok());
  EXPECT_EQ(barriers.Release("evaluated 0").evaluation_json(), "{}");
  EXPECT_EQ(barriers.Released("evaluated 0").evaluation_json(), "{}");
}

TEST(BarriersTest, AFailureIsCutBetweenTwoCharacters) {
  scheduler::Barriers barriers(1);
  BarrierEnter enter;
  enter.set_name("checkpoint 1");
  enter.set_action(BarrierEnter::CHECKPOINT);
  enter.set_path("/model");
  enter.set_may_fail(true);
  std::string failure = "x";
  for (int i = 0; i < 4000; ++i) failure += "\xc3\xbc";
  enter.set_failure(failure);
  ASSERT_TRUE(barriers.Enter(At(0), 0, enter).ok());
  EXPECT_EQ(barriers.Release(enter.name()).failure(),
            absl::StrCat("worker 0: ", failure.substr(0, 4095)));
}

// ---- servers of workers -----------------------------------------------------------------------

// Workers without an index, and their servers in another order: each gets the number of its own.
TEST(ServersOfWorkersTest, AreNumberedAndNamedAfterTheirWorkers) {
  job::ResolvedJob plan = TestPlan(2, 1);
  plan.workers_serve = true;
  scheduler::Membership members(plan);
  const auto add = [&](Register::Role role, uint64_t incarnation) {
    const uint64_t connection = incarnation ^ (IsServerOfWorker(incarnation) ? 1u << 20 : 0u);
    return members
        .Register(At(0), connection, RegisterMessage(role, -1, incarnation, 1).register_())
        .status();
  };
  EXPECT_TRUE(add(Register::SERVER, ServerOfWorker(22)).ok());
  EXPECT_TRUE(add(Register::WORKER, 21).ok());
  EXPECT_TRUE(add(Register::SERVER, 5).ok());
  EXPECT_THAT(add(Register::SERVER, 6).message(), HasSubstr("all 1 servers are registered"));
  EXPECT_TRUE(add(Register::SERVER, ServerOfWorker(21)).ok());
  EXPECT_FALSE(members.complete());
  EXPECT_THAT(members.Missing(), ::testing::ElementsAre("worker 1"));
  EXPECT_TRUE(add(Register::WORKER, 22).ok());
  ASSERT_TRUE(members.complete());
  members.Number();
  EXPECT_EQ(members.server(0)->incarnation, 5u);
  EXPECT_EQ(members.server(1)->incarnation, ServerOfWorker(21));
  EXPECT_EQ(members.server(2)->incarnation, ServerOfWorker(22));
  EXPECT_EQ(members.server(2)->Name(), "worker 1");
}

// One whose worker is not of the job is waited for in vain, and does not end the scheduler.
TEST(ServersOfWorkersTest, AStrangersServerDoesNotMakeTheJobWhole) {
  job::ResolvedJob plan = TestPlan(1, 0);
  plan.workers_serve = true;
  scheduler::Membership members(plan);
  const auto add = [&](uint64_t connection, Register::Role role, uint64_t incarnation) {
    return members
        .Register(At(0), connection, RegisterMessage(role, -1, incarnation, 1).register_())
        .ok();
  };
  EXPECT_TRUE(add(1, Register::WORKER, 21));
  EXPECT_TRUE(add(2, Register::SERVER, ServerOfWorker(99)));
  EXPECT_FALSE(members.complete());
  EXPECT_THAT(members.Missing(), ::testing::ElementsAre("tables on workers"));
}

// ---- commands ---------------------------------------------------------------------------------

TEST_F(PartsTest, ACommandIsDoneWhenAllHaveAnswered) {
  scheduler::Commands commands;
  const Command report = commands.New(Command::REPORT);
  commands.Await(At(0), report, /*servers=*/1, /*shards=*/2, /*workers=*/0, "end");
  const Command checkpoint = commands.New(Command::CHECKPOINT, "/a");
  EXPECT_GT(checkpoint.id(), report.id());
  commands.Await(At(0), checkpoint, 0, 0, /*workers=*/2);
  EXPECT_TRUE(commands.ServersAreBusy());
  EXPECT_EQ(commands.Describe(checkpoint.id()), "CHECKPOINT /a");
  ASSERT_EQ(commands.Repeat(*members_.worker(1)).size(), 1u);
  EXPECT_EQ(commands.Repeat(*members_.worker(1))[0].path(), "/a");

  commands.OnDone(*members_.worker(0), checkpoint.id());
  EXPECT_FALSE(commands.TakeAnswered().has_value());
  EXPECT_EQ(commands.pending().at(checkpoint.id()).MissingNames(), "worker 1");
  EXPECT_TRUE(commands.Repeat(*members_.worker(0)).empty());
  commands.OnDone(*members_.server(0), checkpoint.id());  // not asked: changes nothing
  commands.OnDone(*members_.worker(1), checkpoint.id());
  EXPECT_EQ(commands.TakeAnswered()->command.path(), "/a");

  commands.OnDone(*members_.server(0), report.id());
  commands.OnReport(0, 1);
  EXPECT_FALSE(commands.TakeAnswered().has_value()) << "shard 0 has not reported";
  EXPECT_TRUE(commands.ServersAreBusy());
  commands.OnReport(0, 0);
  EXPECT_EQ(commands.TakeAnswered()->barrier, "end");
  EXPECT_FALSE(commands.ServersAreBusy());
  EXPECT_EQ(commands.Describe(checkpoint.id()), "a command") << "it is over";
}

TEST(CheckpointQueueTest, APauseWaitsForWhatIsUnderWayAndHoldsUpTheRest) {
  using Answer = scheduler::CheckpointQueue::Answer;
  scheduler::CheckpointQueue checkpoints;
  EXPECT_EQ(checkpoints.Add("/a"), Answer::kStart);
  EXPECT_TRUE(checkpoints.PauseFor("best"));
  EXPECT_FALSE(checkpoints.paused()) << "not yet";
  EXPECT_EQ(checkpoints.Add("/b"), Answer::kQueued);
  checkpoints.Finish();
  EXPECT_EQ(checkpoints.TakeBarrier(), "") << "what was asked for before comes first";
  checkpoints.Finish();
  EXPECT_EQ(checkpoints.TakeBarrier(), "best");
  EXPECT_FALSE(checkpoints.PauseFor("best"));
  EXPECT_TRUE(checkpoints.paused());
  EXPECT_EQ(checkpoints.Add("/c"), Answer::kQueued) << "nothing is under way, and nothing may be";
  EXPECT_TRUE(checkpoints.Resume());
  EXPECT_EQ(checkpoints.current(), "/c");
  checkpoints.Finish();
  EXPECT_FALSE(checkpoints.PauseFor("best"));
  EXPECT_FALSE(checkpoints.Resume()) << "nothing was asked for";
  EXPECT_EQ(checkpoints.Add("/d"), Answer::kStart);
}

TEST(CheckpointQueueTest, OneAtATimeAndNoneAfterTheEnd) {
  scheduler::CheckpointQueue checkpoints;
  EXPECT_EQ(checkpoints.Add("/a"), scheduler::CheckpointQueue::Answer::kStart);
  EXPECT_EQ(checkpoints.Add("/a"), scheduler::CheckpointQueue::Answer::kQueued)
      << "the first may be past this moment";
  EXPECT_EQ(checkpoints.Add("/a"), scheduler::CheckpointQueue::Answer::kMerged);
  EXPECT_EQ(checkpoints.Add("/b"), scheduler::CheckpointQueue::Answer::kQueued);
  EXPECT_TRUE(checkpoints.CloseFor("end"));
  EXPECT_EQ(checkpoints.Add("/b"), scheduler::CheckpointQueue::Answer::kClosed);
  for (const char* const folder : {"/a", "/a", "/b"}) {
    EXPECT_TRUE(checkpoints.HoldsUp("end"));
    EXPECT_EQ(checkpoints.TakeBarrier(), "");
    EXPECT_EQ(checkpoints.current(), folder);
    checkpoints.Finish();
  }
  EXPECT_FALSE(checkpoints.HoldsUp("end"));
  EXPECT_EQ(checkpoints.TakeBarrier(), "end");
  EXPECT_EQ(checkpoints.TakeBarrier(), "") << "once";
  EXPECT_FALSE(checkpoints.CloseFor("end"));
}

// ---- watches ----------------------------------------------------------------------------------

TEST_F(PartsTest, SilenceIsReportedOnceAndThenDeath) {
  for (double at = 1; at < 7.5; at += 0.5) {
    members_.worker(0)->heard = members_.server(0)->heard = At(at);
    EXPECT_FALSE(life_.Check(At(at), &effects_).has_value());
  }
  ASSERT_EQ(effects_.notices.size(), 1u);
  EXPECT_EQ(effects_.notices[0].node, "worker 1");
  const auto death = life_.Check(At(8), &effects_);
  ASSERT_TRUE(death.has_value());
  EXPECT_EQ(death->node(), "worker 1");
  EXPECT_TRUE(members_.worker(1)->gone);
}

TEST_F(PartsTest, AConnectionHasAMomentToComeBack) {
  members_.Forget(12);
  members_.worker(1)->lost_since = At(1);
  members_.worker(1)->lost_why = "broken pipe";
  EXPECT_FALSE(life_.Check(At(2.9), &effects_).has_value());
  const auto death = life_.Check(At(3), &effects_);
  ASSERT_TRUE(death.has_value());
  EXPECT_EQ(death->reason(), "connection lost (broken pipe)");
}

// A full disk may be empty the next time, but the rows of a table will need as much again.
TEST_F(PartsTest, ALackOfMemoryForRowsComesAgain) {
  Failure failure =
      scheduler::FailureOf("server 0", "no memory", absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(scheduler::ComesAgain(failure));
  failure.set_memory_full(true);
  scheduler::FailureJudge judge(times_, &members_);
  const auto cause = judge.OnReport(At(1), members_.server(0), failure, &effects_);
  ASSERT_TRUE(cause.has_value());
  EXPECT_TRUE(scheduler::ComesAgain(*cause));
}

TEST_F(PartsTest, AVictimsWordWaitsForTheCause) {
  scheduler::FailureJudge judge(times_, &members_);
  const Failure said =
      scheduler::FailureOf("worker 0", "server 0 is gone", absl::StatusCode::kUnavailable);
  EXPECT_FALSE(judge.OnReport(At(1), members_.worker(0), said, &effects_).has_value());
  EXPECT_TRUE(judge.holds());
  EXPECT_FALSE(judge.Check(At(2)).has_value());
  members_.server(0)->lost_since = At(2.5);
  members_.server(0)->lost_why = "reset";
  EXPECT_FALSE(judge.Check(At(2.5)).has_value()) << "a second connection of it";
  members_.server(0)->connected = false;
  EXPECT_EQ(judge.Check(At(2.5))->node(), "server 0");

  // Without another cause its own word stands; a failure that blames nobody else stands at once.
  scheduler::FailureJudge second(times_, &members_);
  members_.server(0)->lost_since.reset();
  members_.server(0)->connected = true;
  members_.server(0)->gone = false;
  for (scheduler::Node& node : members_.nodes()) node.heard = At(6);
  EXPECT_FALSE(second.OnReport(At(6), members_.worker(0), said, &effects_).has_value());
  for (scheduler::Node& node : members_.nodes()) node.heard = At(9);
  EXPECT_EQ(second.Check(At(9))->node(), "worker 0");
  const Failure own = scheduler::FailureOf("worker 1", "no such file", absl::StatusCode::kNotFound);
  EXPECT_EQ(second.OnReport(At(9), members_.worker(1), own, &effects_)->reason(), "no such file");
}

// The structured field counts, whatever the text says.
TEST_F(PartsTest, AStallIsNamedByWhomBeatsWaitFor) {
  scheduler::Barriers barriers(2);
  scheduler::Commands commands;
  scheduler::CheckpointQueue checkpoints;
  scheduler::StallWatch stalls(times_, absl::Seconds(60), /*files_hold_up=*/false, &members_,
                               &barriers, &commands, &checkpoints);
  AllMove(0);
  Beat victim, root;
  victim.set_activity("waits for server 0");  // not what the scheduler goes by
  victim.set_waits_for(EndpointId::Worker(1).Pack());
  root.set_activity("computing step 1");
  absl::optional<Failure> failure;
  for (int second = 1; second < 12; ++second) {
    AllMove(second);
    members_.worker(0)->step_at = members_.worker(1)->step_at = At(0);
    members_.worker(0)->OnBeat(At(0), victim);
    members_.worker(1)->OnBeat(At(0), root);
    failure = stalls.Check(At(second), &effects_);
    EXPECT_FALSE(failure.has_value());
  }
  ASSERT_EQ(effects_.notices.size(), 1u);
  EXPECT_EQ(effects_.notices[0].node, "worker 1");
  EXPECT_THAT(effects_.notices[0].text, HasSubstr("waited for by worker 0"));
  failure = stalls.Check(At(61), &effects_);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
}

// A connection breaks between the reports of a mark and its answer, and a report of an earlier
// moment has come. The mark is repeated, and needs all its reports again.
TEST_F(PartsTest, AMarkIsDoneWithItsReports) {
  scheduler::Commands commands;
  const Command mark = commands.New(Command::MARK, "/a");
  commands.Await(At(0), mark, /*servers=*/1, /*shards=*/2, /*workers=*/0, "mark");
  commands.OnReport(0, 0);
  commands.OnDone(*members_.server(0), mark.id());
  EXPECT_FALSE(commands.TakeAnswered().has_value()) << "shard 1 has not reported";
  ASSERT_EQ(commands.Repeat(*members_.server(0)).size(), 1u);
  commands.OnReport(0, 1);
  commands.OnDone(*members_.server(0), mark.id());
  EXPECT_FALSE(commands.TakeAnswered().has_value()) << "the report of shard 0 may be an old one";
  commands.OnReport(0, 0);
  EXPECT_TRUE(commands.TakeAnswered().has_value());
}

TEST_F(PartsTest, WhatTakesLongIsSaidAndEndsAtItsLimit) {
  scheduler::Barriers barriers(2);
  scheduler::Commands commands;
  scheduler::OverdueWatch overdue(times_, scheduler::JobLimits(plan_.job), &members_, &barriers,
                                  &commands);
  BarrierEnter enter;
  enter.set_name("epoch 0");
  ASSERT_TRUE(barriers.Enter(At(0), 0, enter).ok());
  commands.Await(At(0), commands.New(Command::CHECKPOINT, "/a"), 0, 0, /*workers=*/2);
  const Command checkpoint = commands.New(Command::CHECKPOINT, "/a/step-1");
  commands.Await(At(0), checkpoint, /*servers=*/1, 1, 0, "checkpoint");
  overdue.CheckBarriers(At(4.9), &effects_);
  EXPECT_FALSE(overdue.CheckCommands(At(4.9), &effects_).has_value());
  EXPECT_TRUE(effects_.warnings.empty());
  overdue.CheckBarriers(At(5), &effects_);
  EXPECT_FALSE(overdue.CheckCommands(At(5), &effects_).has_value());
  EXPECT_THAT(effects_.warnings,
              ::testing::ElementsAre(HasSubstr("barrier \"epoch 0\": 1 of 2 have entered"),
                                     "CHECKPOINT not done after 5.0 s by server 0"));
  EXPECT_FALSE(overdue.CheckCommands(At(600), &effects_).has_value()) << "of the disk";
  commands.Await(At(600), commands.New(Command::MARK, "/a/step-2"), /*servers=*/1, 1, 0, "mark");
  EXPECT_FALSE(overdue.CheckCommands(At(650), &effects_).has_value());
  EXPECT_THAT(effects_.warnings,
              ::testing::Contains("CHECKPOINT not done after 650.0 s by worker 0, worker 1"))
      << "a requested checkpoint is reported late";
  const auto failure = overdue.CheckCommands(At(1200), &effects_);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->node(), "server 0") << "workers wait for it";
}

// A server that loads a large checkpoint has no time limit while it makes progress.
TEST_F(PartsTest, AServerThatLoadsIsOverdueOnceItMakesNoProgress) {
  scheduler::Barriers barriers(2);
  scheduler::Commands commands;
  scheduler::OverdueWatch overdue(times_, scheduler::JobLimits(plan_.job), &members_, &barriers,
                                  &commands);
  for (scheduler::Node& node : members_.nodes()) {
    if (node.role == Role::kWorker) node.acknowledged_view = 1;
  }
  members_.server(0)->moved_at = At(500);
  EXPECT_FALSE(overdue.CheckAcknowledgements(At(600), At(0), &effects_).has_value());
  EXPECT_THAT(effects_.warnings,
              ::testing::ElementsAre("view 1 not acknowledged for 600.0 s by server 0"));
  EXPECT_FALSE(overdue.CheckAcknowledgements(At(1099), At(0), &effects_).has_value());
  const auto failure = overdue.CheckAcknowledgements(At(1100), At(0), &effects_);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->node(), "server 0");
  members_.worker(1)->acknowledged_view = 0;
  members_.worker(1)->moved_at = At(1100);
  EXPECT_TRUE(overdue.CheckAcknowledgements(At(1100), At(500), &effects_).has_value())
      << "workers load nothing before they acknowledge";
}

TEST_F(PartsTest, ANoteOfWorkerZeroReachesTheUser) {
  scheduler::Reports reports(plan_, scheduler::SchedulerTimes(), scheduler::JobLimits(plan_.job),
                             RunRecord());
  Control control;
  control.mutable_worker_note()->set_text("has read 7 rows again");
  EXPECT_TRUE(reports.Add(At(0), *members_.worker(0), control, &effects_).ok());
  EXPECT_THAT(effects_.warnings, ::testing::ElementsAre("worker 0 has read 7 rows again"));
  EXPECT_FALSE(reports.Add(At(0), *members_.worker(1), control, &effects_).ok());
  control.mutable_worker_note()->set_text(std::string(1001, 'x'));
  EXPECT_FALSE(reports.Add(At(0), *members_.worker(0), control, &effects_).ok());
  EXPECT_EQ(effects_.warnings.size(), 1u);
}

TEST_F(PartsTest, ReportsArePassedOnOnceAnInterval) {
  scheduler::SchedulerTimes times;
  times.shard_reports = absl::Seconds(2);
  scheduler::Reports reports(plan_, times, scheduler::JobLimits(plan_.job), RunRecord());
  reports.Start(At(0));
  Control control;
  control.mutable_progress()->set_samples(10);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(reports.Add(At(0.2), *members_.worker(rank), control, &effects_).ok());
  }
  EXPECT_TRUE(reports.Add(At(0.8), *members_.worker(0), control, &effects_).ok());
  EXPECT_FALSE(reports.Add(At(0.8), *members_.server(0), control, &effects_).ok());
  control.mutable_shard_report()->set_server(3);
  EXPECT_FALSE(reports.Add(At(0.8), *members_.server(0), control, &effects_).ok());
  reports.Tick(At(0.9), &effects_);
  EXPECT_TRUE(effects_.notices.empty());
  reports.Tick(At(1.4), &effects_);
  EXPECT_TRUE(effects_.notices.empty()) << "worker 1 may still report";
  reports.Tick(At(1.5), &effects_);
  reports.Tick(At(1.6), &effects_);
  ASSERT_EQ(effects_.notices.size(), 1u);
  EXPECT_EQ(effects_.notices[0].progress.samples, 20);
  EXPECT_FALSE(reports.AskShards(At(1.9), /*servers_are_busy=*/false));
  EXPECT_FALSE(reports.AskShards(At(2), /*servers_are_busy=*/true));
  EXPECT_TRUE(reports.AskShards(At(2), /*servers_are_busy=*/false));
  EXPECT_FALSE(reports.AskShards(At(2), /*servers_are_busy=*/false));
}

// A worker that has not reported yet would be at step 0. The notice comes when all have reported,
// or after a few intervals, and covers all of the time before.
TEST_F(PartsTest, TheFirstNoticeWaitsForAllWorkers) {
  for (const bool reports_at_last : {true, false}) {
    effects_.Clear();
    scheduler::Reports reports(plan_, scheduler::SchedulerTimes(), scheduler::JobLimits(plan_.job),
                               RunRecord());
    reports.Start(At(0));
    Control control;
    control.mutable_progress()->set_samples(30);
    control.mutable_progress()->set_step(3);
    for (double now = 0.1; now < 2.95; now += 0.1) {
      EXPECT_TRUE(reports.Add(At(now), *members_.worker(0), control, &effects_).ok());
      reports.Tick(At(now), &effects_);
    }
    EXPECT_TRUE(effects_.notices.empty());
    if (reports_at_last) {
      EXPECT_TRUE(reports.Add(At(2.95), *members_.worker(1), control, &effects_).ok());
    }
    for (double now = 3; now < 5.6; now += 0.1) reports.Tick(At(now), &effects_);
    ASSERT_FALSE(effects_.notices.empty());
    const scheduler::JobProgress& first = effects_.notices[0].progress;
    EXPECT_EQ(first.min_step, reports_at_last ? 3 : 0);
    EXPECT_NEAR(first.samples_per_second, first.samples / 2.9, 1);  // until the last report
    EXPECT_LT(first.seconds, reports_at_last ? 4 : 5.6);
  }
}

// While all workers evaluate, the speed and the time left say nothing.
TEST_F(PartsTest, ANoticeSaysThatTheWorkersEvaluate) {
  scheduler::Reports reports(plan_, scheduler::SchedulerTimes(), scheduler::JobLimits(plan_.job),
                             RunRecord());
  reports.Start(At(0));
  Control control;
  const auto report = [&](double now, int64_t samples, double paused) {
    control.mutable_progress()->set_samples(samples);
    control.mutable_progress()->set_epoch_fraction(0.01 * static_cast<double>(samples));
    control.mutable_progress()->set_paused_seconds(paused);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(reports.Add(At(now), *members_.worker(rank), control, &effects_).ok());
    }
    effects_.notices.clear();
    reports.Tick(At(now), &effects_);
    EXPECT_EQ(effects_.notices.size(), 1u);
    return scheduler::ProgressJson(effects_.notices[0].progress);
  };
  for (int second = 1; second < 30; ++second) report(second, second, 0);
  nlohmann::json progress = report(30, 30, 0);
  EXPECT_EQ(progress["samples_per_second"], 2);
  EXPECT_TRUE(progress.contains("seconds_left"));
  EXPECT_FALSE(progress.contains("evaluating"));
  BarrierRelease release;
  release.set_name("evaluation 0");
  reports.OnRelease(release, &effects_);
  progress = report(31, 30, 1);
  EXPECT_EQ(progress["evaluating"], true);
  EXPECT_FALSE(progress.contains("samples_per_second"));
  EXPECT_FALSE(progress.contains("seconds_left"));
  release.set_name("evaluated 0");
  reports.OnRelease(release, &effects_);
  progress = report(32, 31, 1);
  EXPECT_EQ(progress["samples_per_second"], 2);
  EXPECT_FALSE(progress.contains("evaluating"));
}

}  // namespace
}  // namespace tandem
