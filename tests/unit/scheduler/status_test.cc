// The status of a job: what it says of nodes, waits, shards, tables and checkpoints at each moment
// of a job, and that strangers who ask cannot harm.
#include "scheduler/status.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "scheduler/scheduler_core.h"
#include "tests/unit/scheduler/scheduler_test_job.h"

namespace tandem {
namespace {

using nlohmann::json;
using scheduler::SchedulerCore;
using scheduler::SchedulerEvent;

// Server 0 is on connection 1, workers on 11 and 12; their incarnations are these numbers.
class StatusTest : public ::testing::Test {
 protected:
  StatusTest() {
    job::ResolvedJob plan = TestPlan(/*workers=*/2, /*servers=*/1, /*shards_per_server=*/2);
    plan.job.mutable_checkpoint()->set_every_seconds(600);
    plan.tables[0].admission.set_kind(Admission::PROBABILITY);
    plan.tables[0].admission.set_probability(0.5);
    SchedulerCore::Options options;
    options.models.checkpoint_folder = "/out/model";
    options.estimate = {1000, 500};
    core_ = std::make_unique<SchedulerCore>(plan, options);
    Step(SchedulerEvent());
  }

  void Step(const SchedulerEvent& event) {
    effects_.Clear();
    core_->Step(now_, event, &effects_);
  }
  void Send(uint64_t connection, const Control& control) {
    Step(FromNode(connection, connection, control));
  }
  void Run(absl::Duration time) {
    const absl::Time end = now_ + time;
    while (now_ < end) {
      now_ += absl::Milliseconds(100);
      Step(SchedulerEvent());
    }
  }
  void Register() {
    Send(1, RegisterMessage(Register::SERVER, 0, 1, 2));
    Send(11, RegisterMessage(Register::WORKER, 0, 11, 1));
    Send(12, RegisterMessage(Register::WORKER, 1, 12, 1));
  }
  void Start() {
    Register();
    for (const uint64_t connection : {1, 11, 12}) {
      Control control;
      control.mutable_command_done()->set_id(core_->view().number());
      Send(connection, control);
    }
  }
  void Beat(uint64_t connection, uint64_t step, const std::string& activity, EndpointId waits_for) {
    Control control;
    control.mutable_beat()->set_progress(step);
    control.mutable_beat()->set_step(step);
    control.mutable_beat()->set_activity(activity);
    control.mutable_beat()->set_waits_for(waits_for.Pack());
    control.mutable_beat()->set_resident_bytes(connection * 100);
    Send(connection, control);
  }
  json Node(const std::string& name) {
    const json status = core_->Status();
    for (const json& node : status["nodes"]) {
      if (node["name"] == name) return node;
    }
    return nullptr;
  }

  absl::Time now_ = absl::UnixEpoch();
  std::unique_ptr<SchedulerCore> core_;
  scheduler::SchedulerEffects effects_;
};

TEST_F(StatusTest, NamesWhoIsMissingBeforeTheStart) {
  Send(1, RegisterMessage(Register::SERVER, 0, 1, 2));
  const json status = core_->Status();
  EXPECT_EQ(status["state"], "registering");
  EXPECT_EQ(status["missing"], json({"worker 0", "worker 1"}));
  EXPECT_EQ(Node("server 0")["state"], "registered");
  EXPECT_EQ(Node("server 0")["host"], "h1");
  EXPECT_EQ(Node("server 0")["pid"], 101);
  EXPECT_FALSE(status.contains("progress"));
  EXPECT_EQ(status["checkpoint"]["folder"], "/out/model");
  EXPECT_FALSE(status["checkpoint"].contains("step"));
}

TEST_F(StatusTest, SaysWhomANodeWaitsForAndForHowLong) {
  Start();
  Beat(1, 5, "serves", EndpointId());
  Beat(11, 5, "waits for worker 1", EndpointId::Worker(1));
  Beat(12, 5, "computes", EndpointId());
  Run(absl::Milliseconds(500));
  EXPECT_EQ(Node("worker 0")["state"], "running") << "a short wait is a part of a step";
  Run(absl::Seconds(2));
  const json waiting = Node("worker 0");
  EXPECT_EQ(waiting["state"], "waiting");
  EXPECT_EQ(waiting["waits_for"], "worker 1");
  EXPECT_NEAR(waiting["wait_seconds"].get<double>(), 2.5, 0.2);
  EXPECT_EQ(waiting["memory_bytes"], 1100);
  EXPECT_EQ(waiting["memory_estimate_bytes"], 500);
  EXPECT_EQ(Node("server 0")["memory_estimate_bytes"], 1000);
  EXPECT_EQ(Node("worker 1")["state"], "running");
}

TEST_F(StatusTest, SaysWhoseConnectionIsLostAndWhoIsAtABarrier) {
  Start();
  Control control;
  control.mutable_barrier_enter()->set_name("epoch/1");
  Send(11, control);
  Run(absl::Seconds(2));
  EXPECT_EQ(Node("worker 0")["waits_for"], "worker 1");
  EXPECT_EQ(Node("worker 0")["activity"], "at a barrier");
  SchedulerEvent lost;
  lost.kind = SchedulerEvent::Kind::kLost;
  lost.connection = 12;
  lost.why = absl::UnavailableError("reset");
  Step(lost);
  EXPECT_EQ(Node("worker 1")["state"], "lost");
}

TEST_F(StatusTest, HasProgressShardsAndTables) {
  Start();
  Control control;
  control.mutable_progress()->set_step(7);
  control.mutable_progress()->set_trained_steps(7);
  control.mutable_progress()->set_samples(70);
  control.mutable_progress()->set_loss_sum(35);
  control.mutable_progress()->set_loss_samples(70);
  Send(11, control);
  Send(12, control);
  control.mutable_shard_report()->set_shard(1);
  TableReport& table = *control.mutable_shard_report()->add_table();
  table.set_table("emb");
  table.set_rows(12);
  table.set_bytes(480);
  table.set_sent(6);
  table.set_applied(5);
  table.set_dropped(1);
  table.mutable_samples()->set_sent(40);
  table.mutable_samples()->set_applied(30);
  table.mutable_samples()->set_positives_sent(8);
  table.mutable_samples()->set_positives_applied(2);
  table.mutable_version_staleness()->set_count(2);
  table.mutable_version_staleness()->set_sum(3);
  table.mutable_version_staleness()->set_max(2);
  *table.add_worker()->mutable_version_staleness() = table.version_staleness();
  *table.mutable_worker(0)->mutable_samples() = table.samples();
  table.add_worker();
  table.mutable_row_counts()->set_admitted(12);
  table.mutable_row_counts()->set_refused(11);
  control.mutable_shard_report()->set_memory_bytes(1500);
  control.mutable_shard_report()->set_memory_limit(2000);
  Send(1, control);
  Run(absl::Seconds(2));
  const json status = core_->Status();
  EXPECT_EQ(Node("server 0")["memory_used_bytes"], 1500);
  EXPECT_EQ(Node("server 0")["memory_limit_bytes"], 2000);
  EXPECT_FALSE(Node("worker 0").contains("memory_limit_bytes"));
  EXPECT_EQ(status["state"], "running");
  EXPECT_EQ(status["samples"], 140);
  EXPECT_EQ(status["progress"]["loss"], 0.5);
  EXPECT_EQ(status["progress"]["min_step"], 7);
  ASSERT_EQ(status["shards"].size(), 2u);
  EXPECT_EQ(status["shards"][1], json({{"process", "server 0"},
                                       {"shard", 1},
                                       {"ranges", 2},
                                       {"rows", 12},
                                       {"memory_bytes", 480}}));
  EXPECT_EQ(status["tables"]["emb"]["rows"], 12);
  EXPECT_EQ(status["tables"]["emb"]["updates"]["dropped"], 1);
  EXPECT_EQ(status["tables"]["emb"]["row_counts"]["admitted"], 12);
  EXPECT_EQ(status["progress"]["tables"]["emb"]["row_counts"]["refused"], 11);
  EXPECT_EQ(status["tables"]["emb"]["version_staleness"]["mean"], 1.5);
  const json counted = {{"share", 0.75}, {"label_1", 0.25}, {"label_0", 28.0 / 32}};
  EXPECT_EQ(status["by_worker"][0]["data_applied"], counted);
  EXPECT_EQ(status["by_worker"][1]["data_applied"], json::object()) << "it has sent nothing";
  json of_table = counted;
  of_table["by_worker"] = {0.75, nullptr};
  EXPECT_EQ(status["tables"]["emb"]["data_applied"], of_table);
  EXPECT_EQ(status["progress"]["data_applied_share"], 0.75);
  EXPECT_EQ(status["by_worker"][0]["staleness_mean"]["emb"], 1.5);
  EXPECT_EQ(status["by_worker"][1]["samples"], 70);
}

TEST_F(StatusTest, SaysHowTheLastCheckpointWent) {
  Start();
  Control ask;
  ask.mutable_user_request()->set_kind(UserRequest::CHECKPOINT);
  Send(90, ask);
  ASSERT_EQ(effects_.sends.back().control->user_answer().checkpoints(), 1);
  EXPECT_EQ(core_->Status()["checkpoint"]["writing"], true);
  const uint64_t command = effects_.sends.front().control->command().id();
  Control enter;
  enter.mutable_barrier_enter()->set_name("checkpoint/1");
  enter.mutable_barrier_enter()->set_action(BarrierEnter::CHECKPOINT);
  enter.mutable_barrier_enter()->set_path("/out/model/step-40");
  enter.mutable_barrier_enter()->set_value(40);
  Send(11, enter);
  Send(12, enter);
  Control done;
  done.mutable_command_done()->set_id(effects_.sends.back().control->command().id());
  Send(1, done);
  done.mutable_command_done()->set_id(command);
  Send(11, done);
  Send(12, done);
  const json checkpoint = core_->Status()["checkpoint"];
  EXPECT_EQ(checkpoint["ended"], 1);
  EXPECT_EQ(checkpoint["step"], 40);
  EXPECT_EQ(checkpoint["writing"], false);
  EXPECT_EQ(checkpoint["period_seconds"], 600);
}

TEST_F(StatusTest, AFailedJobSaysWhy) {
  Start();
  SchedulerEvent abort;
  abort.kind = SchedulerEvent::Kind::kAbort;
  abort.text = "enough";
  Step(abort);
  const json status = core_->Status();
  EXPECT_EQ(status["state"], "failing");
  EXPECT_EQ(status["failed"]["reason"], "enough");
}

// What a stranger sends changes nothing of the job, whatever the moment.
TEST_F(StatusTest, RequestsOfStrangersHarmNobody) {
  Control nonsense;
  nonsense.mutable_user_request()->set_kind(static_cast<UserRequest::Kind>(-7));
  Control answer;  // only the scheduler sends these
  answer.mutable_user_answer()->set_text(std::string(100000, '{'));
  for (const bool started : {false, true}) {
    if (started) Start();
    for (const Control& control : {nonsense, answer}) {
      for (uint64_t connection = 90; connection < 190; ++connection) Send(connection, control);
    }
    Run(absl::Seconds(1));
    EXPECT_FALSE(core_->done());
    EXPECT_TRUE(core_->result().ok()) << core_->result();
  }
  EXPECT_EQ(core_->Status()["state"], "running");
}

}  // namespace
}  // namespace tandem
