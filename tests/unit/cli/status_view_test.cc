// What `tandem status` prints: of a job that starts, of one that runs, and of one that has ended.
#include "cli/status_view.h"

#include <string>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Lines(const json& status) { return absl::StrJoin(cli::StatusLines(status), "\n"); }

json Running() {
  return json::parse(R"status({
    "job": "clicks", "state": "running",
    "policy": {"ids": "SSP(4)"},
    "progress": {"epoch": 1, "epoch_fraction": 0.41, "min_step": 1200, "samples": 5000,
                 "samples_per_second": 35100, "loss": 0.45, "staleness_mean": 1.2,
                 "staleness_max": 5, "seconds_left": 42},
    "checkpoint": {"folder": "/out/model", "step": 1000, "age_seconds": 65, "period_seconds": 600,
                   "writing": false, "ended": 1},
    "nodes": [
      {"name": "scheduler", "role": "scheduler", "host": "a", "pid": 10, "state": "running",
       "memory_bytes": 21000000, "activity": ""},
      {"name": "worker 0", "role": "worker", "host": "b", "pid": 1234, "state": "waiting",
       "step": 1200, "waits_for": "worker 1", "wait_seconds": 3.24, "activity": "pulls",
       "memory_bytes": 250000000, "memory_estimate_bytes": 262144000,
       "memory_limit_bytes": 1500000000}],
    "missing": [],
    "shards": [{"process": "server 0", "shard": 1, "ranges": 10, "rows": 1234567,
                "memory_bytes": 82100000}],
    "tables": {"ids": {"rows": 1234567, "memory_bytes": 82100000,
                       "updates": {"arrived": 2400, "dropped": 3},
                       "version_staleness": {"count": 2400, "mean": 1.204, "max": 5},
                       "clock_gap": {"count": 2400, "mean": 0.5, "max": 4}}}})status");
}

TEST(StatusViewTest, ARunningJob) {
  const std::string text = Lines(Running());
  EXPECT_THAT(text, HasSubstr("clicks: running\nepoch 1 41%, step 1,200 | 35,100 samples/s"));
  EXPECT_THAT(text, HasSubstr("checkpoint: step 1,000, 1:05 ago, one every 10:00; in /out/model"));
  EXPECT_THAT(text, HasSubstr("waits for worker 1, 3.2 s"));
  EXPECT_THAT(text, HasSubstr("server 0 shard 1      10  1,234,567  82.1 MB"));
  EXPECT_THAT(text, HasSubstr("UPDATES  DROPPED  VERSION STALENESS  MAX  CLOCK GAP\n"
                              "ids    SSP(4)  1,234,567  82.1 MB    2,400        3               "
                              "1.20    5          4"));
  EXPECT_THAT(text, HasSubstr("250 MB    262 MB  1.5 GB  waits for"));
}

// Only tables with rules by which rows come and go, in a running job and at its end.
TEST(StatusViewTest, CountsOfRowsFollowTheTables) {
  EXPECT_THAT(Lines(Running()), Not(HasSubstr("CANDIDATES")));
  json status = Running();
  status["tables"]["plain"] = status["tables"]["ids"];
  json& counts = status["tables"]["ids"]["row_counts"];
  counts = {{"candidates", 1234},  {"admitted", 50}, {"evicted", 6},      {"refused", 9},
            {"found_share", 0.75}, {"sampled", 0},   {"to_fresh_rows", 2}};
  const std::string row = "ids         1,234        50        6        9  75.0%";
  EXPECT_THAT(Lines(status),
              HasSubstr("\n\nTABLE  CANDIDATES  ADMITTED  EVICTED  REFUSED  FOUND  CAME BACK  TO "
                        "FRESH ROWS\n" +
                        row + "                         2"));
  counts["came_back_share"] = 0.125;
  EXPECT_THAT(Lines(status), HasSubstr(row + "      12.5%              2"));
  EXPECT_THAT(absl::StrJoin(cli::EndedLines({{"tables", status["tables"]}}), "\n"),
              HasSubstr(row + "      12.5%              2"));
  status["tables"]["ids"]["row_counts"] = 7;
  EXPECT_THAT(Lines(status), HasSubstr("clicks")) << "of another version, it does no harm";
}

TEST(StatusViewTest, AJobThatStartsNamesWhoIsMissing) {
  const std::string text = Lines(json::parse(
      R"({"job": "clicks", "state": "registering", "nodes": [], "missing": ["worker 1"],
          "checkpoint": {"folder": ""}, "shards": [], "tables": {}})"));
  EXPECT_THAT(text, HasSubstr("clicks: registering\n"));
  EXPECT_THAT(text, HasSubstr("worker 1"));
  EXPECT_THAT(text, HasSubstr("has not registered"));
  EXPECT_THAT(text, HasSubstr("this run writes none"));
}

// The text of an older or newer scheduler: fields that are absent or of another kind do no harm.
TEST(StatusViewTest, ACheckpointWithoutRoomHasAWayOut) {
  json status = Running();
  EXPECT_EQ(cli::RoomText(status["checkpoint"]), "");
  status["checkpoint"]["waits_for_room"] = {{"seconds", 65}, {"missing_bytes", 1200}};
  EXPECT_THAT(Lines(status),
              HasSubstr("; NO ROOM for one for 1:05, 1,200 bytes missing; hint: free "
                        "space, or tandem stop --now to end without it; in "));
}
TEST(StatusViewTest, AnythingIsShown) {
  EXPECT_THAT(Lines(json::object()), HasSubstr("PROCESS"));
  json odd = Running();
  odd["nodes"].push_back({{"name", 7}, {"step", "x"}, {"memory_bytes", nullptr}});
  odd["tables"]["ids"] = json::array();
  odd["missing"] = {7};
  EXPECT_THAT(Lines(odd), HasSubstr("clicks"));
}

TEST(StatusViewTest, ARunThatHasEnded) {
  json summary = {{"job", "clicks"},
                  {"samples", 5000},
                  {"steps", 1200},
                  {"seconds", 3.21},
                  {"samples_per_second", 1557.6},
                  {"training_loss", 0.45},
                  {"eval", {{"auc", 0.78}, {"data", "test"}}}};
  EXPECT_EQ(cli::EndedLines(summary)[0], "clicks: finished");
  EXPECT_EQ(cli::EndedLines(summary)[1],
            "5,000 samples, 1,200 steps in 3.2 s | 1,557 samples/s | training loss 0.4500");
  EXPECT_THAT(cli::EndedLines(summary)[2], HasSubstr("test data: AUC 0.7800"));
  summary["restarts"] = {{{"why", "killed"}}, {{"why", "killed"}}};
  EXPECT_THAT(cli::EndedLines(summary), ::testing::Contains("restarts: 2"));
  summary["stopped"] = {{"checkpointed_step", 4310}};
  EXPECT_EQ(cli::EndedLines(summary)[0], "clicks: stopped, checkpoint at step 4,310");
  summary["stopped"] = {{"checkpointed_step", -1}};  // at once
  EXPECT_EQ(cli::EndedLines(summary)[0], "clicks: stopped, there is no checkpoint");
  summary["failed"] = {{"node", "worker 1"}, {"reason", "NaN"}};
  EXPECT_EQ(cli::EndedLines(summary)[0], "clicks: failed: worker 1: NaN");
  EXPECT_EQ(cli::EndOf(summary), "failed");
}

}  // namespace
}  // namespace tandem
