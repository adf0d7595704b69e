// Tests of the replacement of a worker that has died: which deaths allow it, and how the scheduler
// brings a new process into the job.
#include "scheduler/replacements.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/failure/may_replace.h"
#include "tests/unit/scheduler/scheduler_test_job.h"

namespace tandem {
namespace {

using scheduler::SchedulerEvent;
using scheduler::SchedulerNotice;
using scheduler::WorkerDeath;
using ::testing::HasSubstr;

// Three workers and two servers, under ASP, with the dense part on servers.
job::ResolvedJob Plan() {
  job::ResolvedJob plan = TestPlan(3, 2, 1, /*dense_blocks=*/4);
  plan.groups[0].policy.set_kind(Policy::ASP);
  plan.job.mutable_train()->set_max_inflight_pushes(2);
  return plan;
}

// ---- which deaths -----------------------------------------------------------------------------

struct PlanCase {
  std::function<void(job::ResolvedJob*)> change;
  std::string why;
};

TEST(MayReplaceTest, NotEveryJobAllowsIt) {
  EXPECT_TRUE(scheduler::MayReplaceWorkers(Plan()).ok());
  const PlanCase cases[] = {
      {[](job::ResolvedJob* p) { p->job.set_reproducible(true); }, "reproducible"},
      {[](job::ResolvedJob* p) { p->job.mutable_staleness()->set_record_order(true); }, "replay"},
      {[](job::ResolvedJob* p) { p->job.mutable_cluster()->set_workers(1); }, "no other worker"},
      {[](job::ResolvedJob* p) { p->job.mutable_train()->set_evaluate_only(true); }, "not train"},
      {[](job::ResolvedJob* p) { p->job.mutable_data()->set_format(Data::PROGRAM); }, "program"},
      {[](job::ResolvedJob* p) { p->job.mutable_model()->mutable_script(); }, "module"},
      {[](job::ResolvedJob* p) { p->dense_table = -1; }, "have the dense parameters"},
      {[](job::ResolvedJob* p) { p->workers_serve = true; }, "have rows of tables"},
      {[](job::ResolvedJob* p) { p->job.mutable_dense()->set_device(Dense::CUDA); }, "GPUs"},
      {[](job::ResolvedJob* p) { p->lockstep = true; }, "each step together"},
      {[](job::ResolvedJob* p) { p->groups[0].properties.skips = true; }, "skip steps"},
      {[](job::ResolvedJob* p) { p->groups[0].properties.measures_steps = true; }, "pace"},
      {[](job::ResolvedJob* p) { p->groups[0].properties.holds = true; }, "collects"},
  };
  for (const PlanCase& one : cases) {
    job::ResolvedJob plan = Plan();
    one.change(&plan);
    EXPECT_THAT(scheduler::MayReplaceWorkers(plan).message(), HasSubstr(one.why));
  }
  // A batch of updates of any workers and steps waits, but no step does.
  job::ResolvedJob batches = Plan();
  batches.groups[0].properties.holds = true;
  batches.groups[0].properties.batch = 4;
  EXPECT_TRUE(scheduler::MayReplaceWorkers(batches).ok());
}

TEST(MayReplaceTest, NotEveryMomentAllowsIt) {
  WorkerDeath allowed;
  allowed.left = 1;
  allowed.running = allowed.place_known = true;
  EXPECT_TRUE(scheduler::MayReplaceWorker(Plan(), allowed).ok());
  const std::pair<std::function<void(WorkerDeath*)>, std::string> cases[] = {
      {[](WorkerDeath* d) { d->left = 0; }, "cluster.max_restarts"},
      {[](WorkerDeath* d) { d->running = false; }, "does not train"},
      {[](WorkerDeath* d) { d->comes_again = true; }, "come again"},
      {[](WorkerDeath* d) { d->other_vacant = true; }, "another worker"},
      {[](WorkerDeath* d) { d->other_failed = true; }, "another process"},
      {[](WorkerDeath* d) { d->barrier = "epoch 0"; }, "barrier epoch 0"},
      {[](WorkerDeath* d) { d->commits = true; }, "writing a checkpoint"},
      {[](WorkerDeath* d) { d->place_known = false; }, "its place"},
  };
  for (const auto& [change, why] : cases) {
    WorkerDeath death = allowed;
    change(&death);
    EXPECT_THAT(scheduler::MayReplaceWorker(Plan(), death).message(), HasSubstr(why));
  }
  job::ResolvedJob plan = Plan();
  plan.lockstep = true;
  EXPECT_FALSE(scheduler::MayReplaceWorker(plan, allowed).ok());
}

// ---- the scheduler ----------------------------------------------------------------------------

// Servers on connections 1 and 2, workers on 11 to 13; incarnations are the connections' numbers.
class ReplacementTest : public ::testing::Test {
 protected:
  explicit ReplacementTest(int replacements = 1) : plan_(Plan()) {
    scheduler::SchedulerCore::Options options;
    options.replacements = replacements;
    options.models.checkpoint_folder = "/model";
    core_ = std::make_unique<scheduler::SchedulerCore>(plan_, options);
    for (const uint64_t server : {1, 2}) {
      Say(server, RegisterMessage(Register::SERVER, static_cast<int>(server) - 1, server, 1));
    }
    for (const uint64_t worker : {11, 12, 13}) {
      Say(worker, RegisterMessage(Register::WORKER, static_cast<int>(worker) - 11, worker, 1));
    }
    for (const uint64_t node : {1, 2, 11, 12, 13}) Done(node, 1);
    EXPECT_EQ(Notices(SchedulerNotice::Kind::kStarted).size(), 1u);
  }

  void Step(const SchedulerEvent& event) {
    effects_.Clear();
    core_->Step(now_, event, &effects_);
    for (const SchedulerNotice& notice : effects_.notices) notices_.push_back(notice);
  }
  void Say(uint64_t connection, Control control, uint64_t incarnation = 0) {
    Step(FromNode(connection, incarnation == 0 ? connection : incarnation, std::move(control)));
  }
  // Time passes, in which the nodes that live send heartbeats.
  void Pass(absl::Duration time) {
    constexpr absl::Duration kTick = absl::Milliseconds(100);
    for (absl::Duration passed; passed < time; passed += kTick) {
      now_ += kTick;
      Control beat;
      beat.mutable_beat()->set_progress(++beats_);
      for (const uint64_t node : live_) Say(node, beat);
      Step(SchedulerEvent());
    }
  }
  void Done(uint64_t connection, uint64_t id) {
    Control control;
    control.mutable_command_done()->set_id(id);
    Say(connection, control);
  }
  // The worker is between two steps: it has finished `step` steps, each of ten samples.
  void Trains(uint64_t connection, int64_t step, uint64_t updates = 0) {
    Control control;
    Progress& progress = *control.mutable_progress();
    progress.set_step(step);
    progress.set_samples(10 * step);
    progress.mutable_trains_at()->set_step(step);
    progress.mutable_trains_at()->set_rows(10 * step);
    progress.set_evaluations(4);
    progress.add_updates(updates);
    Say(connection, control);
  }
  void Exits(int rank, int64_t pid) {
    SchedulerEvent event;
    event.kind = SchedulerEvent::Kind::kExited;
    event.rank = rank;
    event.pid = pid;
    event.text = "was ended by signal 9 (Killed)";
    Step(event);
  }
  void Enter(uint64_t connection, const std::string& name,
             BarrierEnter::Action action = BarrierEnter::NONE, const std::string& path = "",
             bool may_fail = false, bool absent_may_be_replaced = false) {
    Control control;
    BarrierEnter& enter = *control.mutable_barrier_enter();
    enter.set_name(name);
    enter.set_action(action);
    enter.set_path(path);
    enter.set_may_fail(may_fail);
    enter.set_absent_may_be_replaced(absent_may_be_replaced);
    Say(connection, control);
  }
  // As a worker that has trained its rows of the epoch, and waits for the others.
  void EndsEpoch(uint64_t connection) {
    Enter(connection, "epoch 0", BarrierEnter::NONE, "", false, /*absent_may_be_replaced=*/true);
  }
  // The server has marked a checkpoint, and its shard reports.
  void Marks(uint64_t server, uint64_t mark) {
    Control control;
    control.mutable_shard_report()->set_server(static_cast<uint32_t>(server) - 1);
    Say(server, control);
    Done(server, mark);
  }
  // The server has forgotten the worker, of which its shard has `least` to `most` steps.
  void Forgets(uint64_t server, int64_t least, int64_t most, int worker = 1) {
    Control control;
    ShardReport& report = *control.mutable_shard_report();
    report.set_server(static_cast<uint32_t>(server) - 1);
    report.mutable_forgotten()->set_worker(worker);
    report.mutable_forgotten()->set_min_step(least);
    report.mutable_forgotten()->set_max_step(most);
    Say(server, control);
    Done(server, forget_);
  }
  std::vector<Control> SentTo(uint64_t connection) const {
    std::vector<Control> controls;
    for (const auto& send : effects_.sends) {
      if (send.connection == connection) controls.push_back(*send.control);
    }
    return controls;
  }
  std::vector<SchedulerNotice> Notices(SchedulerNotice::Kind kind) const {
    std::vector<SchedulerNotice> found;
    for (const SchedulerNotice& notice : notices_) {
      if (notice.kind == kind) found.push_back(notice);
    }
    return found;
  }
  bool failed() const { return !core_->result().ok(); }
  // Worker 1 has trained 7 steps by its last report, and dies.
  void WorkerOneDies() {
    Trains(12, 4, 40);
    Trains(12, 7, 70);
    live_.erase(12);
    Exits(1, 112);
    ASSERT_FALSE(failed()) << core_->result();
    for (const uint64_t server : {1, 2}) {
      ASSERT_EQ(SentTo(server).size(), 1u);
      EXPECT_EQ(SentTo(server)[0].command().kind(), Command::FORGET_WORKER);
      EXPECT_EQ(SentTo(server)[0].command().worker(), 1);
      forget_ = SentTo(server)[0].command().id();
    }
  }
  void Comes(uint64_t connection, int rank = 1) {
    live_.insert(connection);
    Say(connection, RegisterMessage(Register::WORKER, rank, connection, 1));
  }
  // Worker 1 dies when all ranges have 6 of its steps, and connection 22 is its new process.
  void WorkerOneIsReplaced() {
    WorkerOneDies();
    Forgets(1, 6, 6);
    Forgets(2, 6, 6);
    Comes(22);
    for (const uint64_t node : {1, 2, 22}) Done(node, 2);
    ASSERT_EQ(SentTo(22).size(), 2u);
    EXPECT_EQ(SentTo(22)[1].command().kind(), Command::START);
  }

  const job::ResolvedJob plan_;
  std::unique_ptr<scheduler::SchedulerCore> core_;
  scheduler::SchedulerEffects effects_;
  std::vector<SchedulerNotice> notices_;
  absl::Time now_ = absl::UnixEpoch() + absl::Seconds(100);
  uint64_t forget_ = 0;
  std::set<uint64_t> live_ = {1, 2, 11, 12, 13};
  uint64_t beats_ = 0;
};

class ManyReplacementsTest : public ReplacementTest {
 protected:
  ManyReplacementsTest() : ReplacementTest(10) {}
};

TEST_F(ReplacementTest, ANewProcessGoesOnWhereARangeLacksAStep) {
  WorkerOneDies();
  ASSERT_EQ(Notices(SchedulerNotice::Kind::kVacant).size(), 1u);
  EXPECT_EQ(Notices(SchedulerNotice::Kind::kVacant)[0].node, "worker 1");
  EXPECT_THAT(Notices(SchedulerNotice::Kind::kVacant)[0].text, HasSubstr("signal 9"));
  Pass(absl::Seconds(1));
  Comes(22);
  EXPECT_TRUE(SentTo(22).empty()) << "the servers have not answered";
  Forgets(1, 6, 8);
  EXPECT_TRUE(SentTo(22).empty());
  Forgets(2, 7, 7);

  // Step 6 is missing somewhere. The last place at or before it is that of step 4.
  ASSERT_EQ(SentTo(22).size(), 1u);
  const View view = SentTo(22)[0].view();
  EXPECT_EQ(view.number(), 2u);
  EXPECT_EQ(view.worker(1).incarnation(), 22u);
  EXPECT_EQ(view.worker(1).start().position().step(), 4);
  EXPECT_EQ(view.worker(1).start().position().rows(), 40);
  EXPECT_EQ(view.worker(1).start().first_step(), 6);
  EXPECT_EQ(view.worker(1).start().first_new_step(), 8);
  EXPECT_EQ(view.worker(1).start().evaluations(), 4);
  EXPECT_FALSE(view.worker(0).has_start());
  EXPECT_EQ(SentTo(1)[0].view().worker(1).incarnation(), 22u);
  EXPECT_EQ(SentTo(11)[0].view().number(), 2u);

  Done(22, 2);
  Done(1, 2);
  EXPECT_TRUE(SentTo(22).empty()) << "server 1 may still refuse its frames";
  Done(2, 2);
  ASSERT_EQ(SentTo(22).size(), 2u);
  EXPECT_EQ(SentTo(22)[1].command().kind(), Command::START);
  EXPECT_FALSE(failed());
}

// The counts of the dead process up to the place join those of the new process, which counts the
// steps after it.
TEST_F(ReplacementTest, EachStepIsCountedOnce) {
  WorkerOneDies();
  Forgets(1, 6, 8);
  Forgets(2, 7, 7);
  Comes(22);
  for (const uint64_t node : {1, 2, 22}) Done(node, 2);
  Control control;
  Progress& progress = *control.mutable_progress();
  progress.set_step(9);
  progress.set_samples(50);  // of steps 4 to 8
  progress.add_updates(50);
  Pass(absl::Seconds(3));
  Say(22, control);
  const auto replaced = Notices(SchedulerNotice::Kind::kReplaced);
  ASSERT_EQ(replaced.size(), 1u);
  EXPECT_EQ(replaced[0].step, 6);
  EXPECT_EQ(replaced[0].steps_again, 2);
  EXPECT_NEAR(replaced[0].seconds, 3, 0.01);
  Trains(11, 1, 10);
  Trains(13, 1, 10);
  const nlohmann::json status = core_->Status();
  EXPECT_EQ(status["samples"], 90 + 10 + 10) << status.dump();
}

TEST_F(ReplacementTest, TheDeadProcessDoesNotComeBack) {
  WorkerOneDies();
  Forgets(1, 6, 6);
  Forgets(2, 6, 6);
  Control beat;
  beat.mutable_beat();
  Say(77, beat, /*incarnation=*/12);
  ASSERT_EQ(SentTo(77).size(), 1u);
  EXPECT_THAT(SentTo(77)[0].failure().reason(), HasSubstr("another process"));
  Say(78, RegisterMessage(Register::WORKER, 1, 12, 1));
  EXPECT_TRUE(SentTo(78)[0].has_failure());
  // A process that does not ask for this rank gets no place, either.
  Say(79, RegisterMessage(Register::WORKER, 0, 79, 1));
  EXPECT_TRUE(SentTo(79)[0].has_failure());
  EXPECT_FALSE(failed());
  // The message that comes last on its old connection is from a stranger.
  Say(12, beat, /*incarnation=*/12);
  EXPECT_TRUE(SentTo(12)[0].has_failure());
  EXPECT_FALSE(failed());
}

TEST_F(ReplacementTest, ADeathAtABarrierEndsTheJob) {
  Trains(12, 4);
  Enter(11, "evaluation 1");
  Exits(1, 112);
  EXPECT_TRUE(failed());
  EXPECT_EQ(core_->result().message(), "worker 1: was ended by signal 9 (Killed)");
}

// The others have trained their rows of the epoch, and wait for the worker that dies. They wait for
// its new process.
TEST_F(ReplacementTest, TheEndOfTheEpochWaitsForTheNewProcess) {
  Trains(12, 4);
  for (const uint64_t worker : {11, 13}) EndsEpoch(worker);
  WorkerOneDies();
  ASSERT_FALSE(failed());
  Forgets(1, 6, 6);
  Forgets(2, 6, 6);
  Comes(22);
  for (const uint64_t node : {1, 2, 22}) Done(node, 2);
  EXPECT_TRUE(SentTo(11).empty()) << "the barrier is not complete";
  EndsEpoch(22);
  ASSERT_EQ(SentTo(11).size(), 1u);
  EXPECT_EQ(SentTo(11)[0].barrier_release().name(), "epoch 0");
  EXPECT_EQ(SentTo(22).size(), 1u);
  EXPECT_FALSE(failed());
}

// The worker has ended the epoch, too: nothing says where a new process would begin.
TEST_F(ReplacementTest, ADeathInTheEndOfTheEpochEndsTheJob) {
  Trains(12, 4);
  for (const uint64_t worker : {11, 12}) EndsEpoch(worker);
  Exits(1, 112);
  EXPECT_TRUE(failed());
}

// After a barrier the workers may be in the next epoch, whose places are not known yet.
TEST_F(ReplacementTest, ADeathRightAfterABarrierEndsTheJob) {
  Trains(12, 4);
  for (const uint64_t worker : {11, 12, 13}) EndsEpoch(worker);
  Exits(1, 112);
  EXPECT_TRUE(failed());
}

TEST_F(ReplacementTest, ASecondDeathMeanwhileEndsTheJob) {
  Trains(13, 4);
  WorkerOneDies();
  Exits(2, 113);
  EXPECT_TRUE(failed());
  EXPECT_THAT(core_->result().message(), HasSubstr("worker 2"));
}

TEST_F(ReplacementTest, WithoutANewProcessTheJobEnds) {
  WorkerOneDies();
  Pass(absl::Seconds(59));
  ASSERT_FALSE(failed());
  Pass(absl::Seconds(1));
  EXPECT_THAT(core_->result().message(),
              HasSubstr("worker 1: was ended by signal 9 (Killed); no new process"));
}

TEST_F(ReplacementTest, WithoutAPlaceBeforeTheMissingStepTheJobEnds) {
  WorkerOneDies();
  Forgets(1, 3, 8);
  Forgets(2, 7, 7);
  EXPECT_THAT(core_->result().message(), HasSubstr("no place at or before step 3"));
}

// A new process that fails before it trains leaves the job no worse than the death did.
TEST_F(ReplacementTest, AFailureOfTheNewProcessIsNoReasonToEndTheRun) {
  WorkerOneDies();
  Forgets(1, 6, 6);
  Forgets(2, 6, 6);
  Comes(22);
  Control control;
  control.mutable_failure()->set_reason("train.tsv: no such file");
  control.mutable_failure()->set_code(static_cast<int>(absl::StatusCode::kNotFound));
  Say(22, control);
  EXPECT_EQ(core_->result().message(),
            "worker 1: was ended by signal 9 (Killed); its new process failed: train.tsv: no such "
            "file");
  const auto notices = Notices(SchedulerNotice::Kind::kFailed);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_FALSE(notices[0].comes_again);
}

TEST_F(ReplacementTest, ANewProcessMayEndBeforeItRegisters) {
  WorkerOneDies();
  Exits(1, 112);
  ASSERT_FALSE(failed()) << "the end of the dead process is known";
  Exits(1, 122);
  EXPECT_EQ(core_->result().message(),
            "worker 1: was ended by signal 9 (Killed); its new process was ended by signal 9 "
            "(Killed)");
}

// A server reports that it must end, perhaps because of another process. Worker 1 dies meanwhile.
TEST_F(ReplacementTest, AFailureOfAnotherProcessIsNotForgotten) {
  Control control;
  control.mutable_failure()->set_reason("cannot reach worker 0");
  control.mutable_failure()->set_code(static_cast<int>(absl::StatusCode::kUnavailable));
  Trains(12, 4);
  Say(1, control);
  ASSERT_FALSE(failed()) << "the cause may be another process";
  Exits(1, 112);
  EXPECT_TRUE(failed());
  EXPECT_TRUE(Notices(SchedulerNotice::Kind::kVacant).empty());
}

// The new process sends heartbeats, but does not open its data.
TEST_F(ReplacementTest, ANewProcessThatHangsEndsTheJob) {
  WorkerOneDies();
  Forgets(1, 6, 6);
  Forgets(2, 6, 6);
  Comes(22);
  for (const uint64_t server : {1, 2}) Done(server, 2);
  Pass(absl::Seconds(655));
  ASSERT_FALSE(failed()) << core_->result();
  Pass(absl::Seconds(10));
  EXPECT_THAT(core_->result().message(),
              HasSubstr("worker 1: was ended by signal 9 (Killed); view 2 of its new process not "
                        "acknowledged by worker 1, 660"));
}

TEST_F(ReplacementTest, AServerThatDoesNotLearnOfTheNewProcessEndsTheJob) {
  WorkerOneDies();
  Forgets(1, 6, 6);
  Forgets(2, 6, 6);
  Comes(22);
  for (const uint64_t node : {1, 22}) Done(node, 2);
  Pass(absl::Seconds(665));
  EXPECT_THAT(core_->result().message(), HasSubstr("not acknowledged by server 1, 660"));
}

TEST_F(ReplacementTest, OnlySoManyAreReplaced) {
  WorkerOneIsReplaced();
  Trains(22, 8);
  Exits(1, 122);
  EXPECT_TRUE(failed());
}

TEST_F(ReplacementTest, OnlyThoseOfTheLastHourCount) {
  WorkerOneIsReplaced();
  Trains(22, 8);
  Pass(absl::Hours(1));
  Exits(1, 122);
  EXPECT_FALSE(failed()) << core_->result();
  EXPECT_EQ(Notices(SchedulerNotice::Kind::kVacant).size(), 2u);
}

TEST_F(ManyReplacementsTest, EachReplacementIsReported) {
  Trains(13, 4);
  WorkerOneIsReplaced();
  live_.erase(13);
  Exits(2, 113);
  ASSERT_FALSE(failed()) << core_->result();
  forget_ = SentTo(1)[0].command().id();
  Forgets(1, 5, 5, 2);
  Forgets(2, 5, 5, 2);
  Comes(23, 2);
  for (const uint64_t node : {1, 2, 23}) Done(node, 3);
  Trains(23, 6);
  Trains(22, 7);
  const auto replaced = Notices(SchedulerNotice::Kind::kReplaced);
  ASSERT_EQ(replaced.size(), 2u);
  EXPECT_EQ(replaced[0].node, "worker 2");
  EXPECT_EQ(replaced[1].node, "worker 1");
}

// The dead process could read this file. A restart may find it again.
TEST_F(ReplacementTest, ANewProcessThatCannotReadItsDataIsNoReasonToEndTheRun) {
  Control control;
  control.mutable_failure()->set_reason("train.tsv: no such file");
  control.mutable_failure()->set_code(static_cast<int>(absl::StatusCode::kNotFound));
  WorkerOneIsReplaced();
  Trains(22, 6);
  Say(22, control);
  EXPECT_THAT(core_->result().message(), HasSubstr("its new process failed: train.tsv"));
  const auto notices = Notices(SchedulerNotice::Kind::kFailed);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_FALSE(notices[0].comes_again);
}

// A worker reports an error, which may pass. The same error a second time does not.
TEST_F(ManyReplacementsTest, AnErrorIsTriedOnceMore) {
  Control control;
  control.mutable_failure()->set_reason("cannot read train.tsv: Input/output error");
  control.mutable_failure()->set_code(static_cast<int>(absl::StatusCode::kInternal));
  control.mutable_failure()->set_step(4);
  Trains(12, 4);
  Say(12, control);
  ASSERT_FALSE(failed()) << core_->result();
  ASSERT_EQ(Notices(SchedulerNotice::Kind::kVacant).size(), 1u);
  EXPECT_EQ(Notices(SchedulerNotice::Kind::kVacant)[0].step, 4);
  forget_ = SentTo(1)[0].command().id();
  live_.erase(12);
  Exits(1, 112);
  EXPECT_FALSE(failed()) << "its exit is known";
  Forgets(1, 4, 4);
  Forgets(2, 4, 4);
  Comes(22);
  for (const uint64_t node : {1, 2, 22}) Done(node, 2);
  Say(22, control);
  EXPECT_TRUE(failed());
}

// The end of an earlier process says nothing about the present one.
TEST_F(ReplacementTest, AnOldExitIsIgnored) {
  Trains(12, 4);
  Exits(1, 4711);
  EXPECT_TRUE(Notices(SchedulerNotice::Kind::kVacant).empty());
  EXPECT_FALSE(failed());
}

// A checkpoint is marked, and its files are being written. Worker 1 has none to write.
TEST_F(ReplacementTest, ACheckpointGoesOnWithoutTheDeadWorker) {
  SchedulerEvent request;
  request.kind = SchedulerEvent::Kind::kCheckpoint;
  request.text = "/model";
  Step(request);
  const uint64_t command = SentTo(12)[0].command().id();
  for (const uint64_t worker : {11, 12, 13}) {
    Enter(worker, "mark", BarrierEnter::MARK, "/model");
  }
  const uint64_t mark = SentTo(1)[0].command().id();
  for (const uint64_t server : {1, 2}) Marks(server, mark);
  Enter(11, "files", BarrierEnter::CHECKPOINT, "/model/step-0", /*may_fail=*/true);
  WorkerOneDies();
  Enter(13, "files", BarrierEnter::CHECKPOINT, "/model/step-0", /*may_fail=*/true);
  ASSERT_EQ(SentTo(1).size(), 1u) << "all have entered";
  EXPECT_EQ(SentTo(1)[0].command().kind(), Command::CHECKPOINT);
  const uint64_t files = SentTo(1)[0].command().id();
  for (const uint64_t server : {1, 2}) Done(server, files);
  for (const uint64_t worker : {11, 13}) Done(worker, command);
  EXPECT_EQ(Notices(SchedulerNotice::Kind::kCheckpointed).size(), 1u);
  // The new process is asked for nothing.
  Forgets(1, 6, 6);
  Forgets(2, 6, 6);
  Comes(22);
  for (const uint64_t node : {1, 2, 22}) Done(node, 2);
  EXPECT_EQ(SentTo(22).size(), 2u);
  EXPECT_FALSE(failed());
}

// Rank 0 would have to commit the checkpoint.
TEST_F(ReplacementTest, ACheckpointNeedsWorkerZero) {
  SchedulerEvent request;
  request.kind = SchedulerEvent::Kind::kCheckpoint;
  request.text = "/model";
  Step(request);
  for (const uint64_t worker : {11, 12, 13}) {
    Trains(worker, 4);
    Enter(worker, "mark", BarrierEnter::MARK, "/model");
  }
  const uint64_t mark = SentTo(1)[0].command().id();
  for (const uint64_t server : {1, 2}) Marks(server, mark);
  Exits(0, 111);
  EXPECT_TRUE(failed());
}

// Before the mark, the new process takes part in the checkpoint.
TEST_F(ReplacementTest, ARequestedCheckpointWaitsForTheNewProcess) {
  SchedulerEvent request;
  request.kind = SchedulerEvent::Kind::kCheckpoint;
  request.text = "/model";
  Step(request);
  const uint64_t command = SentTo(12)[0].command().id();
  WorkerOneDies();
  Forgets(1, 6, 6);
  Forgets(2, 6, 6);
  Comes(22);
  for (const uint64_t node : {1, 2, 22}) Done(node, 2);
  ASSERT_EQ(SentTo(22).size(), 3u);
  EXPECT_EQ(SentTo(22)[2].command().id(), command);
}

// The others would stop at once, and wait for the new process.
TEST_F(ReplacementTest, ACheckpointIsAskedForWhenTheNewProcessHasCaughtUp) {
  WorkerOneDies();
  SchedulerEvent request;
  request.kind = SchedulerEvent::Kind::kCheckpoint;
  request.text = "/model";
  Step(request);
  EXPECT_TRUE(SentTo(11).empty());
  Forgets(1, 6, 6);
  Forgets(2, 6, 6);
  Comes(22);
  for (const uint64_t node : {1, 2, 22}) Done(node, 2);
  EXPECT_EQ(SentTo(22).size(), 2u) << "view and START";
  Trains(22, 6);
  EXPECT_TRUE(SentTo(11).empty()) << "it reads the rows that the dead process has read";
  Trains(22, 7);
  for (const uint64_t worker : {11, 22}) {
    ASSERT_EQ(SentTo(worker).size(), 1u);
    EXPECT_EQ(SentTo(worker)[0].command().kind(), Command::CHECKPOINT);
  }
}

class NoReplacementTest : public ReplacementTest {
 protected:
  NoReplacementTest() : ReplacementTest(0) {}
};

// Nobody would start the process.
TEST_F(NoReplacementTest, WithoutASupervisorADeathEndsTheJob) {
  Trains(12, 4);
  Exits(1, 112);
  EXPECT_TRUE(failed());
}

}  // namespace
}  // namespace tandem
