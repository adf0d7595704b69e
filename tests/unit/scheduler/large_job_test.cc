// Control messages of a job with 1,000 workers, 400 tables, 100 servers and 40,000 ranges, from the
// start to the end: each fits one frame and adds up to what its senders have counted. Then the
// largest messages that any job can have, and checkpoints of earlier versions.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/frame.h"
#include "proto/histogram.h"
#include "proto/range_map.h"
#include "proto/serialize.h"
#include "scheduler/observe/summary.h"
#include "scheduler/scheduler_core.h"
#include "server/shard_core.h"
#include "tests/unit/scheduler/scheduler_test_job.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr int kWorkers = 1000, kTables = 400, kServers = 100;
constexpr int kFrozen = 1;  // the id of a table

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

job::ResolvedJob Plan(int workers, int tables, int servers) {
  job::ResolvedJob plan = TestPlan(workers, servers);
  plan.job.mutable_cluster()->set_ranges_per_shard(1);
  plan.job.mutable_train()->set_max_inflight_pushes(4);
  for (int t = 1; t < tables; ++t) {
    plan.tables.push_back(TestTable(absl::StrCat("a_table_with_a_long_name_", t), 1000000));
    plan.tables.back().id = static_cast<uint32_t>(t);
    plan.groups[0].tables.push_back(static_cast<uint32_t>(t));
  }
  for (job::TablePlan& table : plan.tables) {
    table.optimizer.set_kind(Optimizer::SGD);
    table.optimizer.set_learning_rate(1);
  }
  if (tables > kFrozen) plan.tables[kFrozen].frozen = true;
  return plan;
}

// The message after it has travelled in a frame. `most`: bytes.
Control AfterTravel(const Control& control, size_t most) {
  HeapBufferSource buffers;
  const absl::StatusOr<ParsedFrame> frame =
      DecodeFrame(EncodeControlFrame(buffers, FrameHeader(), control));
  EXPECT_TRUE(frame.ok()) << frame.status();
  if (!frame.ok()) return Control();
  EXPECT_LE(frame->body.size(), most);
  const absl::StatusOr<Control> parsed = frame->ParseControl();
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *parsed : Control();
}

// The report of a shard on which worker r has made r + 1 updates of each table, at widely spread
// ages.
ShardReport ReportOfShard(const job::ResolvedJob& plan, int server) {
  HeapBufferSource buffers;
  const auto made = server::ShardCore::New(plan, EndpointId::Shard(server, 0), 99, buffers);
  EXPECT_TRUE(made.ok()) << made.status();
  const server::ShardCore& shard = **made;
  for (const auto& table : shard.tables()) {
    for (int rank = 0; rank < plan.workers(); ++rank) {
      const auto count = [rank](server::UpdateStats* stats) {
        stats->arrived += static_cast<uint64_t>(rank) + 1;
        stats->applied += static_cast<uint64_t>(rank) + 1;
        stats->age.Add(int64_t{1} << (10 + rank % 20));
        stats->version_staleness.Add(rank % 7);
      };
      count(&table->stats.total);
      if (table->plan->frozen) continue;
      EXPECT_NE(table->over_tables, nullptr);
      count(&(*table->over_tables)[static_cast<size_t>(rank)]);
    }
  }
  return shard.Report();
}

Control ProgressOf(int rank) {
  Control control;
  Progress& progress = *control.mutable_progress();
  progress.set_step(40);
  progress.set_samples(100 + rank);
  progress.set_trained_steps(40);
  progress.mutable_trains_at()->set_step(40);
  progress.mutable_trains_at()->set_rows(1000);
  for (const char* kind : {"pull", "rows", "push", "ack", "collective"}) {
    (*progress.mutable_bytes())[kind] = uint64_t{1} << 40;
  }
  for (int t = 0; t < kTables; ++t) progress.add_updates(static_cast<uint64_t>(rank) + 1);
  return control;
}

constexpr uint64_t kOfAllRanks = uint64_t{kWorkers} * (kWorkers + 1) / 2;

// The scheduler of the large job, and its nodes: servers on connections 1 to 100, workers from 1001
// on. Their incarnations are these numbers.
class LargeJobTest : public ::testing::Test {
 protected:
  LargeJobTest() : plan_(Plan(kWorkers, kTables, kServers)) {
    core_ = std::make_unique<scheduler::SchedulerCore>(plan_);
    report_.mutable_shard_report()->MergeFrom(ReportOfShard(plan_, 0));
  }

  static uint64_t Server(int index) { return 1 + static_cast<uint64_t>(index); }
  static uint64_t Worker(int rank) { return 1001 + static_cast<uint64_t>(rank); }
  void Send(uint64_t node, const Control& control, uint64_t connection = 0) {
    effects_.Clear();
    core_->Step(At(1), FromNode(connection == 0 ? node : connection, node, control), &effects_);
  }
  void Register() {
    for (int s = 0; s < kServers; ++s) {
      Send(Server(s), RegisterMessage(Register::SERVER, s, Server(s), 1));
    }
    for (int w = 0; w < kWorkers; ++w) {
      Send(Worker(w), RegisterMessage(Register::WORKER, w, Worker(w), 1));
    }
  }
  void Done(uint64_t node, uint64_t id) {
    Control control;
    control.mutable_command_done()->set_id(id);
    Send(node, control);
  }
  void Start() {
    Register();
    for (int s = 0; s < kServers; ++s) Done(Server(s), 1);
    for (int w = 0; w < kWorkers; ++w) Done(Worker(w), 1);
  }
  // Enters all workers into a barrier, and lets the servers answer the command that follows. The
  // release is in effects_.
  void Pass(BarrierEnter::Action action, const std::string& path, bool servers_report) {
    Control control;
    BarrierEnter& enter = *control.mutable_barrier_enter();
    enter.set_name(BarrierEnter::Action_Name(action));
    enter.set_parties(kWorkers);
    enter.set_action(action);
    enter.set_path(path);
    for (int w = 0; w < kWorkers; ++w) Send(Worker(w), control);
    ASSERT_EQ(effects_.sends.size(), size_t{kServers});
    const uint64_t id = effects_.sends[0].control->command().id();
    for (int s = 0; s < kServers; ++s) {
      if (servers_report) {
        report_.mutable_shard_report()->set_server(static_cast<uint32_t>(s));
        Send(Server(s), report_);
      }
      Done(Server(s), id);
    }
  }
  const Control* MessageTo(uint64_t connection) const {
    for (const auto& send : effects_.sends) {
      if (send.connection == connection) return send.control.get();
    }
    return nullptr;
  }

  const job::ResolvedJob plan_;
  std::unique_ptr<scheduler::SchedulerCore> core_;
  scheduler::SchedulerEffects effects_;
  Control report_;  // of a server
};

TEST_F(LargeJobTest, AllNodesShareOneView) {
  Register();
  ASSERT_EQ(effects_.sends.size(), size_t{kServers + kWorkers});
  const std::shared_ptr<const Control> view = effects_.sends[0].control;
  for (const auto& send : effects_.sends) ASSERT_EQ(send.control, view);
  const Control seen = AfterTravel(*view, size_t{2} << 20);
  EXPECT_EQ(seen.view().range_size(), kTables * kServers);
  EXPECT_EQ(seen.view().worker_size(), kWorkers);
  EXPECT_TRUE(RangeMap::FromView(seen.view(), plan_.sizes()).ok());
  // So do those that come back.
  Send(Worker(5), RegisterMessage(Register::WORKER, 5, Worker(5), 1), /*connection=*/5000);
  ASSERT_FALSE(effects_.sends.empty());
  EXPECT_EQ(effects_.sends[0].control, view);
}

TEST_F(LargeJobTest, AReportOfAServerIsSmall) {
  const ShardReport& report = report_.shard_report();
  EXPECT_EQ(Serialize(AfterTravel(report_, size_t{1} << 20)), Serialize(report_));
  ASSERT_EQ(report.table_size(), kTables);
  ASSERT_EQ(report.worker_size(), kWorkers);
  EXPECT_EQ(report.table(7).worker_size(), 0) << "there are too many pairs";
  EXPECT_EQ(report.table(7).applied(), kOfAllRanks);
  EXPECT_EQ(report.worker(3).applied(), 4u * (kTables - 1)) << "of all tables but the frozen one";
  EXPECT_EQ(report.waited_size(), kWorkers);
  EXPECT_EQ(report.waiting_size(), 0);
  AfterTravel(ProgressOf(999), 2048);
}

TEST_F(LargeJobTest, TheJobStartsReportsCheckpointsAndEnds) {
  Start();
  for (int w = 0; w < kWorkers; ++w) Send(Worker(w), ProgressOf(w));
  Pass(BarrierEnter::LAST_CHECKPOINT, "/out/model", /*servers_report=*/true);
  const Control* release = MessageTo(Worker(0));
  ASSERT_NE(release, nullptr);
  const std::string folder = release->barrier_release().path();

  // The record of the checkpoint goes to rank 0, and a resumed run counts on from it.
  Pass(BarrierEnter::CHECKPOINT, folder, /*servers_report=*/false);
  release = MessageTo(Worker(0));
  ASSERT_NE(release, nullptr);
  EXPECT_TRUE(MessageTo(Worker(1))->barrier_release().record().empty());
  RunRecord record;
  const Control seen = AfterTravel(*release, size_t{4} << 20);
  ASSERT_TRUE(record.ParseFromString(seen.barrier_release().record()));
  ASSERT_EQ(record.worker_size(), kWorkers);
  const scheduler::JobReport before = scheduler::JobBook(plan_, record).Total(At(0));
  EXPECT_EQ(before.samples, 100 * kWorkers + kWorkers * (kWorkers - 1) / 2);
  EXPECT_EQ(before.updates_sent.at(plan_.tables[9].name), kOfAllRanks);
  EXPECT_EQ(before.tables[9].applied(), kServers * kOfAllRanks);
  ASSERT_EQ(before.updates_of.size(), size_t{kWorkers});
  EXPECT_EQ(before.updates_of[3].applied(), 4u * (kTables - 1) * kServers);

  const nlohmann::json status = core_->Status();
  Control answer;
  answer.mutable_user_answer()->set_text(status.dump());
  AfterTravel(answer, size_t{4} << 20);
  EXPECT_EQ(status["by_worker"][3]["staleness_mean"], nlohmann::json::object({{"*", 3.0}}));
  EXPECT_FALSE(status["by_worker"][3].contains("staleness"));

  Pass(BarrierEnter::END, "", /*servers_report=*/true);
  const scheduler::JobReport& report = core_->report();
  EXPECT_EQ(report.tables[9].applied(), kServers * kOfAllRanks);
  const nlohmann::json summary = scheduler::SummaryJson(plan_, report, "test");
  EXPECT_EQ(summary["updates"]["applied"], kTables * kServers * kOfAllRanks);
  EXPECT_EQ(summary["by_worker"][3]["updates"], 4 * (kTables - 1) * kServers);
  EXPECT_EQ(summary["by_worker"][3]["staleness"]["version_staleness"]["mean"], 3.0);
  EXPECT_EQ(summary["by_worker"][3]["waited_seconds"], 0.0);
  EXPECT_FALSE(summary["by_worker"][3].contains("waited_for"));
  ASSERT_EQ(summary["left_out"].size(), 2u);
  EXPECT_THAT(summary["left_out"][0].get<std::string>(),
              HasSubstr("staleness.TABLE.by_worker: the job has 400000 pairs"));
  EXPECT_THAT(summary["left_out"][1].get<std::string>(),
              HasSubstr("by_worker.waited_for: the job has 1000 workers"));
  EXPECT_LT(summary.dump().size(), size_t{8} << 20);
}

TEST_F(LargeJobTest, AReportForEachPairIsRefused) {
  scheduler::JobBook book(plan_);
  ShardReport report = report_.shard_report();
  EXPECT_TRUE(book.AddShardReport(report).ok());
  report.mutable_table(5)->add_worker();
  EXPECT_EQ(book.AddShardReport(report).message(),
            "report with 1 workers of a table, expected at most 0");
  report = report_.shard_report();
  report.add_waiting();
  EXPECT_EQ(book.AddShardReport(report).message(),
            "report with 1 waits of workers, expected at most 0");
  report = report_.shard_report();
  report.add_worker();
  EXPECT_EQ(book.AddShardReport(report).message(),
            "report with 1001 workers over all tables, expected at most 1000");
  report = report_.shard_report();
  report.add_awaited(1);
  EXPECT_EQ(book.AddShardReport(report).message(),
            "report with 1001 workers that others waited for, expected at most 1000");
  *report.mutable_table(6) = report.table(5);
  EXPECT_EQ(book.AddShardReport(report).message(),
            absl::StrCat("report with table ", plan_.tables[5].name, " twice"));
  EXPECT_EQ(book.Total(At(0)).tables[5].applied(), kOfAllRanks) << "the first one stays";
}

// ---- the largest messages ---------------------------------------------------------------------

constexpr uint64_t kMaxOfBucket = (uint64_t{1} << 50) / kHistogramBuckets;

void Fill(Distribution* distribution) {
  distribution->set_count(uint64_t{1} << 50);
  distribution->set_sum(1e300);
  distribution->set_max(1e300);
  for (size_t b = 0; b < kHistogramBuckets; ++b) distribution->add_bucket(kMaxOfBucket);
}

template <typename Message>
void FillUpdates(Message* updates) {
  updates->set_sent(uint64_t{1} << 50);
  updates->set_applied(uint64_t{1} << 50);
  updates->set_merged(uint64_t{1} << 50);
  updates->set_dropped(uint64_t{1} << 50);
  for (Distribution* d : {updates->mutable_clock_gap(), updates->mutable_version_staleness(),
                          updates->mutable_age(), updates->mutable_row_staleness()}) {
    Fill(d);
  }
}

void FillRows(RowReport* rows) {
  rows->set_candidates(uint64_t{1} << 50);
  rows->set_looked_up(uint64_t{1} << 50);
  rows->set_found(uint64_t{1} << 50);
  rows->set_admitted(uint64_t{1} << 50);
  rows->set_evicted(uint64_t{1} << 50);
  rows->set_refused(uint64_t{1} << 50);
  rows->set_to_fresh_rows(uint64_t{1} << 50);
  rows->set_sampled(uint64_t{1} << 50);
  rows->set_came_back(uint64_t{1} << 50);
}

// Every list as long as the job allows, every number large.
ShardReport LargestReport(const job::ResolvedJob& plan) {
  ShardReport report;
  for (const job::TablePlan& table : plan.tables) {
    TableReport& out = *report.add_table();
    out.set_table(table.name);
    FillUpdates(&out);
    Fill(out.mutable_in_flight_depth());
    for (int rows = 0; rows < 33; ++rows) out.add_by_popularity()->set_sum(1e300);
    FillRows(out.mutable_row_counts());
    for (int w = 0; plan.CountsPairs() && w < plan.workers(); ++w) FillUpdates(out.add_worker());
  }
  for (int w = 0; w < plan.workers(); ++w) {
    if (!plan.CountsPairs()) FillUpdates(report.add_worker());
    if (plan.CountsWaitsInPairs()) {
      report.add_waiting()->mutable_seconds()->Resize(plan.workers(), 1e9);
    } else {
      report.add_waited(1e9);
      report.add_awaited(1e9);
    }
  }
  return report;
}

TEST(LargestMessagesTest, FitAFrame) {
  for (const auto& [workers, tables] :
       std::vector<std::pair<int, int>>{{1024, 1024}, {4, 1024}, {256, 16}, {1024, 4}}) {
    SCOPED_TRACE(absl::StrCat(workers, " workers, ", tables, " tables"));
    job::ResolvedJob plan = Plan(workers, tables, 1);
    for (job::TablePlan& table : plan.tables) table.eviction.set_kind(Eviction::AGE);
    Control control;
    *control.mutable_shard_report() = LargestReport(plan);
    scheduler::JobBook book(plan);
    ASSERT_TRUE(book.AddShardReport(AfterTravel(control, kMaxControlBytes).shard_report()).ok());
    Progress progress;
    Fill(progress.mutable_dense_staleness());
    progress.mutable_position()->mutable_place()->set_negative(std::string(6000, 'x'));
    progress.set_evaluation_json(std::string(1 << 20, ' '));
    for (int t = 0; t < tables; ++t) progress.add_updates(uint64_t{1} << 50);
    for (int rank = 0; rank < workers; ++rank) {
      ASSERT_TRUE(book.AddProgress(rank, progress).ok());
      progress.clear_evaluation_json();  // of rank 0
    }
    control.mutable_barrier_release()->set_record(Serialize(book.Record(At(1))));
    AfterTravel(control, kMaxControlBytes);
  }
}

// ---- records of earlier versions --------------------------------------------------------------

// An earlier version kept numbers for each pair in every job, and updates by the name of the table.
RunRecord OldRecord(const job::ResolvedJob& plan) {
  RunRecord record;
  for (int rank = 0; rank < plan.workers(); ++rank) {
    Progress& worker = *record.add_worker();
    Waiting& waiting = *record.add_waiting();
    for (const job::TablePlan& table : plan.tables) {
      (*worker.mutable_updates_sent())[table.name] = table.id + 1;
    }
    waiting.mutable_seconds()->Resize(plan.workers(), 0);
    waiting.set_seconds(0, 2);  // each worker has waited for worker 0
  }
  for (const job::TablePlan& table : plan.tables) {
    TableReport& out = *record.add_table();
    out.set_table(table.name);
    out.set_applied(static_cast<uint64_t>(10 * plan.workers()));
    Fill(out.add_by_popularity());
    for (int rank = 0; rank < plan.workers(); ++rank) {
      WorkerUpdates& worker = *out.add_worker();
      worker.set_sent(10);
      worker.mutable_age()->set_count(2);
      for (const uint64_t values : {0, 0, 1, 1}) worker.mutable_age()->add_bucket(values);
    }
  }
  return record;
}

TEST(OldRecordTest, ALargeJobAddsUpWhatItDoesNotKeep) {
  const job::ResolvedJob plan = Plan(300, 20, 1);
  const scheduler::JobReport report = scheduler::JobBook(plan, OldRecord(plan)).Total(At(0));
  EXPECT_EQ(report.updates_sent.at(plan.tables[4].name), 5u * 300);
  EXPECT_EQ(report.tables[4].applied(), 3000u);
  EXPECT_EQ(report.tables[4].worker_size(), 0);
  EXPECT_EQ(report.tables[4].by_popularity(0).count(), uint64_t{1} << 50);
  EXPECT_EQ(report.tables[4].by_popularity(0).bucket_size(), 0);
  ASSERT_EQ(report.updates_of.size(), 300u);
  EXPECT_EQ(report.updates_of[7].sent(), 10u * 19) << "of all tables but the frozen one";
  EXPECT_EQ(report.updates_of[7].age().count(), 2u * 19);
  EXPECT_EQ(report.updates_of[7].age().bucket(3), 19u);
  EXPECT_TRUE(report.waiting.empty());
  EXPECT_EQ(report.waited[7], 2);
  EXPECT_EQ(report.awaited[0], 600);
  EXPECT_EQ(report.awaited[7], 0);
}

TEST(OldRecordTest, ASmallJobKeepsAll) {
  const job::ResolvedJob plan = Plan(3, 2, 1);
  const scheduler::JobReport report = scheduler::JobBook(plan, OldRecord(plan)).Total(At(0));
  EXPECT_EQ(report.updates_sent.at(plan.tables[1].name), 6u);
  ASSERT_EQ(report.tables[0].worker_size(), 3);
  EXPECT_EQ(report.tables[0].worker(2).sent(), 10u);
  EXPECT_EQ(report.tables[0].worker(2).age().bucket(2), 1u);
  EXPECT_TRUE(report.updates_of.empty());
  EXPECT_EQ(report.waiting[2][0], 2);
}

}  // namespace
}  // namespace tandem
