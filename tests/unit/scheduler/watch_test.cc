// What the scheduler shows of a job by HTTP and in event files: metrics as Prometheus reads them,
// the pages, the bounded history, and TensorBoard's records.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/distribution.h"
#include "proto/histogram.h"
#include "proto/tensorboard.pb.h"
#include "scheduler/observe/counter_file.h"
#include "scheduler/observe/metrics_text.h"
#include "scheduler/observe/progress_history.h"
#include "scheduler/observe/status_board.h"
#include "scheduler/observe/summary.h"
#include "scheduler/observe/tensorboard.h"
#include "scheduler/observe/watch_pages.h"
#include "transport/job_keys.h"

namespace tandem {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// The values 0, 3, 3, 20 and 4000.
Distribution FiveValues() {
  Distribution d;
  Histogram histogram;
  for (const uint64_t value : {0, 3, 3, 20, 4000}) {
    histogram.Add(value);
    d.set_count(d.count() + 1);
    d.set_sum(d.sum() + static_cast<double>(value));
    d.set_max(std::max(d.max(), static_cast<double>(value)));
  }
  FillBuckets(histogram, &d);
  return d;
}

json Status() {
  json status = json::parse(R"({
    "job": "clicks", "state": "running", "build": {"version": "0.1.0"},
    "samples": 5000, "steps": 120, "bytes": {"pull": 10},
    "progress": {"epoch": 1, "done": 0.25, "samples_per_second": 350, "loss": 0.45},
    "eval": {"auc": 0.78, "data": "test", "text": "x"},
    "checkpoint": {"folder": "/out/model", "step": 100, "age_seconds": 65, "period_seconds": 600},
    "nodes": [
      {"name": "scheduler", "role": "scheduler", "host": "a", "state": "running",
       "memory_bytes": 21, "host_memory_bytes": 1000, "host_available_bytes": 400},
      {"name": "worker 0", "role": "worker", "host": "a", "state": "silent", "step": 7,
       "memory_bytes": 250, "memory_estimate_bytes": 300, "memory_used_bytes": 260,
       "memory_limit_bytes": 500, "host_memory_bytes": 1000,
       "host_available_bytes": 400, "holds_up_seconds": 4.5}],
    "missing": [], "reported": {"a \"name\"\n": 3, "undefined": null},
    "shards": [{"process": "server 0", "shard": 1, "ranges": 10, "rows": 12, "memory_bytes": 82}],
    "tables": {"ids": {"rows": 12, "memory_bytes": 82,
                       "updates": {"arrived": 24, "applied": 21, "dropped": 3},
                       "data_applied": {"share": 0.75, "label_1": 0.5, "label_0": 0.875}}},
    "by_worker": [{"samples": 5000, "steps": 120, "computed_seconds": 1.5,
                   "data_applied": {"share": 0.5}, "staleness_mean": {"ids": 1.25}}]})");
  status["tables"]["ids"]["version_staleness"] = scheduler::DistributionJson(FiveValues());
  status["tables"]["ids"]["clock_gap"] = scheduler::DistributionJson(Distribution());
  status["tables"]["ids"]["age"] = scheduler::DistributionJson(FiveValues(), 1e-6);
  return status;
}

std::string TextOf(const json& status) {
  scheduler::CounterFile counters("");
  return scheduler::MetricsText(status, &counters);
}

TEST(MetricsTextTest, HasTheFactsOfTheStatus) {
  const std::string text = TextOf(Status());
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const char* line : {
           "# TYPE tandem_samples_total counter",
           "tandem_samples_total 5000",
           "tandem_ready 1",
           "tandem_done_ratio 0.25",
           "tandem_training_loss 0.45",
           "tandem_evaluation{measure=\"auc\",data=\"test\"} 0.78",
           "tandem_checkpoint_age_seconds 65",
           "tandem_process_up{process=\"worker 0\",host=\"a\"} 0",
           "tandem_process_resident_bytes{process=\"worker 0\"} 250",
           "tandem_process_memory_used_bytes{process=\"worker 0\"} 260",
           "tandem_process_memory_limit_bytes{process=\"worker 0\"} 500",
           "tandem_process_holds_up_seconds{process=\"worker 0\"} 4.5",
           "tandem_host_available_bytes{host=\"a\"} 400",
           "tandem_shard_rows{process=\"server 0\",shard=\"1\"} 12",
           "tandem_updates_total{table=\"ids\",outcome=\"dropped\"} 3",
           "tandem_updates_arrived_total{table=\"ids\"} 24",
           "tandem_data_applied_ratio{table=\"ids\",label=\"all\"} 0.75",
           "tandem_data_applied_ratio{table=\"ids\",label=\"1\"} 0.5",
           "tandem_data_applied_ratio{table=\"ids\",label=\"0\"} 0.875",
           "tandem_worker_data_applied_ratio{worker=\"0\",label=\"all\"} 0.5",
           "tandem_worker_staleness_mean{worker=\"0\",table=\"ids\"} 1.25",
           "tandem_worker_seconds_total{worker=\"0\",part=\"computed\"} 1.5",
           "tandem_traffic_bytes_total{kind=\"pull\"} 10",
           "tandem_reported{name=\"a \\\"name\\\"\\n\"} 3",
       }) {
    EXPECT_THAT(lines, Contains(line));
  }
}

// The sum over the outcomes is the number of updates.
TEST(MetricsTextTest, AnUpdateHasOneOutcome) {
  EXPECT_THAT(TextOf(Status()), Not(HasSubstr("outcome=\"arrived\"")));
}

// A run that resumes from a checkpoint has smaller counts than before. Its next scheduler finds the
// counters in the file.
TEST(MetricsTextTest, CountersDoNotFallOverARestart) {
  const std::string path = absl::StrCat(testing::TempDir(), "/watch_test.", getpid(), ".counters");
  json status = Status();
  status["restarts"] = {{"count", 2}, {"seconds", 3.5}, {"steps_again", 7}};
  scheduler::CounterFile before(path);
  const std::string text = scheduler::MetricsText(status, &before);
  json resumed = status;
  resumed["samples"] = 1024;
  resumed["restarts"]["count"] = 1;
  resumed["nodes"][1]["step"] = 1;
  resumed["by_worker"][0]["samples"] = 1024;
  resumed["tables"]["ids"]["updates"] = {{"arrived", 2}, {"applied", 2}, {"dropped", 0}};
  for (const char* kind : {"version_staleness", "age"}) {
    resumed["tables"]["ids"][kind] = scheduler::DistributionJson(Distribution());
  }
  scheduler::CounterFile after(path);
  std::vector<std::string> differ;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const std::vector<std::string> later =
      absl::StrSplit(scheduler::MetricsText(resumed, &after), '\n');
  for (const std::string& line : later) {
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) differ.push_back(line);
  }
  EXPECT_THAT(differ, ::testing::ElementsAre("tandem_restarts_total 1",
                                             "tandem_process_step{process=\"worker 0\"} 1"));
  resumed["samples"] = 6000;
  EXPECT_THAT(scheduler::MetricsText(resumed, &after), HasSubstr("tandem_samples_total 6000\n"));
  std::filesystem::remove(path);
}

// `row_counts` of a table with rules by which rows come and go.
json CountsOfRows() {
  return {{"candidates", 7},     {"looked_up", 40},        {"found", 30},
          {"found_share", 0.75}, {"admitted", 12},         {"evicted", 6},
          {"refused", 9},        {"to_fresh_rows", 2},     {"sampled", 4},
          {"came_back", 1},      {"came_back_share", 0.25}};
}

TEST(MetricsTextTest, OnlyTablesWithRulesHaveCountsOfRows) {
  const std::vector<const char*> expected = {
      "tandem_table_candidates{table=\"ids\"} 7",
      "# TYPE tandem_ids_looked_up_total counter",
      "tandem_ids_looked_up_total{table=\"ids\"} 40",
      "tandem_ids_found_total{table=\"ids\"} 30",
      "tandem_ids_refused_total{table=\"ids\"} 9",
      "tandem_rows_admitted_total{table=\"ids\"} 12",
      "tandem_rows_evicted_total{table=\"ids\"} 6",
      "tandem_evicted_rows_sampled_total{table=\"ids\"} 4",
      "tandem_evicted_rows_back_total{table=\"ids\"} 1",
      "tandem_updates_to_fresh_rows_total{table=\"ids\"} 2",
  };
  json status = Status();
  for (const bool rules : {false, true}) {
    if (rules) status["tables"]["ids"]["row_counts"] = CountsOfRows();
    const std::vector<std::string> lines = absl::StrSplit(TextOf(status), '\n');
    for (const char* line : expected) {
      EXPECT_EQ(std::count(lines.begin(), lines.end(), line), rules ? 1 : 0) << line;
    }
  }
}

// Bounds are inclusive, counts are cumulative, and the last bucket has all.
TEST(MetricsTextTest, HistogramsCountEachValueOnce) {
  const std::string text = TextOf(Status());
  for (const auto& [bound, count] :
       {std::pair("0", 1), std::pair("2", 1), std::pair("3", 3), std::pair("15", 3),
        std::pair("31", 4), std::pair("2047", 4), std::pair("4095", 5), std::pair("+Inf", 5)}) {
    EXPECT_THAT(text, HasSubstr(absl::StrCat("tandem_version_staleness_bucket{table=\"ids\",le=\"",
                                             bound, "\"} ", count, "\n")));
  }
  EXPECT_THAT(text, HasSubstr("tandem_version_staleness_sum{table=\"ids\"} 4026\n"));
  EXPECT_THAT(text, HasSubstr("tandem_version_staleness_count{table=\"ids\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("tandem_clock_gap_count{table=\"ids\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("tandem_update_age_seconds_count{table=\"ids\"} 5\n"));
}

// A loss that is not a number must be visible. An interval without a loss, such as that of a
// program that reports none, must not look so.
TEST(MetricsTextTest, ALossThatIsNoNumberIsTold) {
  scheduler::JobProgress progress;
  progress.samples_per_second = 100;
  progress.loss = std::nan("");
  for (const bool has_loss : {false, true}) {
    progress.has_loss = has_loss;
    json status = Status();
    status["progress"] = scheduler::ProgressJson(progress);
    const std::string text = TextOf(status);
    EXPECT_EQ(absl::StrContains(text, "tandem_training_loss Nan"), has_loss) << text;
    EXPECT_EQ(absl::StrContains(text, "tandem_training_loss"), has_loss) << text;
  }
}

TEST(ProgressHistoryTest, IsBoundedAndCoversTheWholeJob) {
  scheduler::ProgressHistory history;
  for (int i = 0; i < 100000; ++i) {
    scheduler::JobProgress progress;
    progress.seconds = i;
    progress.loss = i % 2 == 0 ? 0.5 : std::nan("");
    history.Add(progress);
  }
  const json points = history.Json();
  const size_t count = points["seconds"].size();
  EXPECT_GE(count, scheduler::ProgressHistory::kMax / 2);
  EXPECT_LT(count, scheduler::ProgressHistory::kMax);
  EXPECT_EQ(points["loss"].size(), count);
  EXPECT_EQ(points["seconds"][0], 0);
  EXPECT_GT(points["seconds"][count - 1].get<double>(), 99000);
  EXPECT_TRUE(points["auc"][0].is_null());
}

// A board whose scheduler ticks on a thread of its own.
class WatchPagesTest : public ::testing::Test {
 protected:
  WatchPagesTest()
      : ticks_([this] {
          while (!stop_) {
            if (!stuck_ && board_.IsDue(MonotonicNow())) {
              auto snapshot = std::make_shared<scheduler::Snapshot>();
              *snapshot = {MonotonicNow(), Status(), json::object()};
              snapshot->status["state"] = state_.load();
              board_.Publish(std::move(snapshot));
              ++published_;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
        }) {}
  ~WatchPagesTest() override {
    stop_ = true;
    ticks_.join();
  }
  scheduler::HttpResponse Get(const std::string& path) { return pages_.Answer({path, "", host_}); }

  scheduler::StatusBoard board_;
  scheduler::CounterFile counters_{""};
  scheduler::WatchPages pages_{&board_, &counters_, scheduler::WatchPages::Audience::kThisHost, ""};
  std::string host_ = "127.0.0.1:80";
  std::atomic<bool> stop_{false}, stuck_{false};
  std::atomic<const char*> state_{"running"};
  std::atomic<int> published_{0};
  std::thread ticks_;
};

TEST_F(WatchPagesTest, ServesEachPath) {
  EXPECT_EQ(published_, 0) << "nobody looks";
  EXPECT_EQ(Get("/healthz").code, 200);
  EXPECT_EQ(Get("/readyz").code, 200);
  EXPECT_EQ(json::parse(Get("/status.json").body)["job"], "clicks");
  EXPECT_EQ(Get("/status.json").type, "application/json");
  EXPECT_THAT(Get("/metrics").body, HasSubstr("tandem_samples_total 5000\n"));
  EXPECT_THAT(Get("/").body, HasSubstr("<!doctype html>"));
  EXPECT_THAT(Get("/").body, HasSubstr("node.memory_limit_bytes"));
  EXPECT_EQ(Get("/../etc/passwd").code, 404);
  EXPECT_LE(published_, 2) << "one snapshot serves many requests";
}

TEST_F(WatchPagesTest, AsksForThePasswordWhereThereIsOne) {
  const std::string token(64, 'a');
  const std::string password =
      scheduler::WatchPages::PasswordOf(*transport::JobKeys::FromToken(token));
  EXPECT_EQ(password.size(), 32u);
  const scheduler::WatchPages guarded(&board_, &counters_,
                                      scheduler::WatchPages::Audience::kNetwork, password);
  const auto code = [&guarded](const std::string& path, const std::string& authorization) {
    return guarded.Answer({path, authorization, "node1:80"}).code;
  };
  EXPECT_EQ(code("/status.json", ""), 401);
  EXPECT_EQ(code("/", "Bearer " + token), 401);
  EXPECT_EQ(code("/metrics", "Basic no base64!"), 401);
  EXPECT_EQ(code("/metrics", "Bearer " + password), 200);
  EXPECT_EQ(code("/status.json", "Basic " + absl::Base64Escape("me:" + password)), 200);
  EXPECT_EQ(code("/healthz", ""), 200) << "it tells nothing about the job";
}

// A page of the network may have a name that leads to this host.
TEST_F(WatchPagesTest, OnThisHostOnlyItsOwnNamesAreServed) {
  for (const auto& [host, code] :
       std::vector<std::pair<std::string, int>>{{"", 200},
                                                {"localhost", 200},
                                                {"localhost:8080", 200},
                                                {"127.0.0.2:1", 200},
                                                {"[::1]:8080", 200},
                                                {"evil.example", 403},
                                                {"evil.example:80", 403},
                                                {"127.evil:80", 403},
                                                {"localhost.evil.example", 403}}) {
    host_ = host;
    EXPECT_EQ(Get("/status.json").code, code) << host;
    EXPECT_EQ(Get("/healthz").code, code) << host;
  }
}

// At the end of the job nobody may keep the scheduler waiting.
TEST_F(WatchPagesTest, AfterTheEndNobodyWaits) {
  stuck_ = true;
  board_.Close();
  const absl::Time begin = MonotonicNow();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Get("/status.json").code, 503);
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(60)) << "each would have taken two seconds";
}

TEST_F(WatchPagesTest, SaysWhenTheJobIsNotReadyAndWhenTheSchedulerHangs) {
  state_ = "registering";
  EXPECT_EQ(Get("/readyz").code, 503);
  EXPECT_EQ(Get("/readyz").body, "registering\n");
  stuck_ = true;
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));  // until the snapshot is old
  EXPECT_EQ(Get("/healthz").code, 503);
}

TEST(CheckAddressTest, OnlyThisHostMaySeeAJobWithoutAPassword) {
  EXPECT_TRUE(scheduler::WatchPages::CheckAddress("127.0.0.1:0").ok());
  EXPECT_FALSE(scheduler::WatchPages::CheckAddress("0.0.0.0:80").ok());
}

// ---- TensorBoard ------------------------------------------------------------------------------

uint64_t LittleEndian(absl::string_view bytes) {
  uint64_t number = 0;
  for (size_t i = bytes.size(); i > 0; --i)
    number = number << 8 | static_cast<uint8_t>(bytes[i - 1]);
  return number;
}

std::vector<tensorboard::Event> ReadEvents(const std::string& path) {
  const std::string text = ReadWholeFile(path).value();
  std::vector<tensorboard::Event> events;
  for (size_t at = 0; at < text.size();) {
    const uint64_t size = LittleEndian(absl::string_view(text).substr(at, 8));
    EXPECT_EQ(LittleEndian(absl::string_view(text).substr(at + 8, 4)),
              scheduler::MaskedCrc32c(absl::string_view(text).substr(at, 8)));
    const absl::string_view data = absl::string_view(text).substr(at + 12, size);
    EXPECT_EQ(LittleEndian(absl::string_view(text).substr(at + 12 + size, 4)),
              scheduler::MaskedCrc32c(data));
    EXPECT_TRUE(events.emplace_back().ParseFromArray(data.data(), static_cast<int>(data.size())));
    at += 12 + size + 4;
  }
  return events;
}

// The known checksum of "123456789" is e3069283.
TEST(TensorBoardTest, TheChecksumIsCrc32c) {
  constexpr uint32_t kKnown = 0xe3069283;
  EXPECT_EQ(scheduler::MaskedCrc32c("123456789"), ((kKnown >> 15) | (kKnown << 17)) + 0xa282ead8u);
}

TEST(TensorBoardTest, RecordsCanBeReadBack) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/watch_test.", getpid(), "/deep");
  const absl::Time now = absl::FromUnixSeconds(1700000000);
  auto file = scheduler::TensorBoardFile::Create(folder, now, /*first_step=*/5);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->AddProgress(now, {{"max_step", 7}, {"loss", 0.5}, {"epoch", 1}}).ok());
  EXPECT_TRUE((*file)->AddEvaluation(now, {{"step", 9}, {"auc", 0.75}, {"data", "test"}}).ok());
  EXPECT_TRUE((*file)->AddReported(now, 9, {{"recall", 0.25}}).ok());
  EXPECT_TRUE((*file)->AddTables(now, 9, Status()["tables"]).ok());
  const std::vector<tensorboard::Event> events = ReadEvents((*file)->path());
  std::filesystem::remove_all(std::filesystem::path(folder).parent_path());
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].session_log().status(), tensorboard::SessionLog::START);
  EXPECT_EQ(events[1].step(), 5);
  EXPECT_EQ(events[2].wall_time(), 1700000000);
  EXPECT_EQ(events[2].step(), 7);
  EXPECT_EQ(events[2].summary().value(0).tag(), "training/loss");
  EXPECT_EQ(events[2].summary().value(0).simple_value(), 0.5f);
  EXPECT_EQ(events[3].summary().value(0).tag(), "evaluation/test/auc");
  EXPECT_EQ(events[4].summary().value(0).tag(), "reported/recall");
  ASSERT_EQ(events[5].summary().value_size(), 2) << "an empty distribution has no histogram";
  const tensorboard::HistogramProto& histo = events[5].summary().value(0).histo();
  EXPECT_EQ(histo.num(), 5);
  EXPECT_EQ(histo.sum(), 4026);
  EXPECT_EQ(histo.max(), 4000);
  ASSERT_EQ(histo.bucket_size(), histo.bucket_limit_size());
  double all = 0, before = -1;
  for (int b = 0; b < histo.bucket_size(); ++b) {
    EXPECT_GT(histo.bucket_limit(b), before) << "limits ascend";
    before = histo.bucket_limit(b);
    all += histo.bucket(b);
  }
  EXPECT_EQ(all, 5);
  EXPECT_GE(histo.bucket_limit(histo.bucket_limit_size() - 1), 4000);
}

// Attempts of one second are read in their order.
TEST(TensorBoardTest, FilesOfASecondAreInOrder) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/watch_test.", getpid(), "/order");
  std::vector<std::string> paths;
  for (const int64_t micros : {999, 10'000, 700'000}) {
    const absl::Time now = absl::FromUnixMicros(1'700'000'000'000'000 + micros);
    const auto file = scheduler::TensorBoardFile::Create(folder, now, 0);
    ASSERT_TRUE(file.ok()) << file.status();
    paths.push_back((*file)->path());
  }
  EXPECT_TRUE(std::is_sorted(paths.begin(), paths.end()));
  std::filesystem::remove_all(std::filesystem::path(folder).parent_path());
}

TEST(TensorBoardTest, ATableWithRulesHasCountsOfRows) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/watch_test.", getpid(), "/rules");
  auto file = scheduler::TensorBoardFile::Create(folder, absl::FromUnixSeconds(1700000000), 0);
  ASSERT_TRUE(file.ok()) << file.status();
  const json tables = {{"ids", {{"rows", 12}, {"row_counts", CountsOfRows()}}}};
  EXPECT_TRUE((*file)->AddTables(absl::FromUnixSeconds(1700000000), 9, tables).ok());
  const std::vector<tensorboard::Event> events = ReadEvents((*file)->path());
  std::filesystem::remove_all(std::filesystem::path(folder).parent_path());
  ASSERT_EQ(events.size(), 3u);
  std::vector<std::pair<std::string, float>> values;
  for (const auto& value : events[2].summary().value()) {
    values.emplace_back(value.tag(), value.simple_value());
  }
  const std::vector<std::pair<std::string, float>> expected = {
      {"rows/ids", 12.0f},        {"candidates/ids", 7.0f},      {"admitted/ids", 12.0f},
      {"evicted/ids", 6.0f},      {"refused/ids", 9.0f},         {"to_fresh_rows/ids", 2.0f},
      {"found_share/ids", 0.75f}, {"came_back_share/ids", 0.25f}};
  EXPECT_EQ(values, expected);
}

TEST(TensorBoardTest, AFolderThatCannotBeMadeIsRefused) {
  const auto file = scheduler::TensorBoardFile::Create("/dev/null/x", absl::UnixEpoch(), 0);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("--tensorboard /dev/null/x"));
}

}  // namespace
}  // namespace tandem
