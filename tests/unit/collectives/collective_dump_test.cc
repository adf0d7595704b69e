// Dumps: written and read back, and what several of them say together, on records made by hand.
// Traces: what Perfetto needs is there.
#include "collectives/dump.h"

#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

collectives::OperationRecord Record(uint64_t number, int64_t count = 1000) {
  collectives::OperationRecord r;
  r.number = number;
  r.count = count;
  r.called = r.begun = absl::FromUnixMicros(1'000'000 + static_cast<int64_t>(number) * 100);
  r.finished = r.begun + absl::Microseconds(50);
  return r;
}

collectives::OperationRecord Stuck(uint64_t number, int waits_for) {
  collectives::OperationRecord r = Record(number);
  r.failed = true;
  r.last_wait_rank = waits_for;
  return r;
}

collectives::GroupDump Dump(int rank, std::vector<collectives::OperationRecord> records) {
  collectives::GroupDump dump;
  dump.rank = rank;
  dump.ranks = 3;
  dump.host = "a";
  dump.written = absl::FromUnixMicros(5'000'000);
  dump.records = std::move(records);
  return dump;
}

TEST(DumpTest, WrittenAndReadBack) {
  collectives::GroupDump dump = Dump(2, {Record(7), Stuck(8, 1)});
  dump.records[1].finished = absl::InfiniteFuture();
  dump.status = "rank 1 is lost: \"gone\"";
  const std::string folder = absl::StrCat(testing::TempDir(), "/dumps_back.", getpid());
  ASSERT_EQ(collectives::WriteDump(folder, dump), absl::OkStatus());
  const auto all = collectives::ReadDumps(folder);
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 1u);
  EXPECT_EQ(collectives::DumpText((*all)[0]), collectives::DumpText(dump));
  EXPECT_EQ((*all)[0].records[1].finished, absl::InfiniteFuture());
}

TEST(DumpTest, WhatIsNoDumpIsRefused) {
  EXPECT_THAT(std::string(collectives::ParseDump("").status().message()), HasSubstr("line 1"));
  EXPECT_THAT(std::string(collectives::ParseDump("{\"group\": 3}").status().message()),
              HasSubstr("line 1"));
  std::string text = collectives::DumpText(Dump(0, {Record(0)}));
  text += "{\"number\": -";
  EXPECT_THAT(std::string(collectives::ParseDump(text).status().message()), HasSubstr("line 3"));
  EXPECT_EQ(collectives::ReadDumps("/nonexistent/folder").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(CompareDumpsTest, WhoNeverEntered) {
  const std::vector<collectives::GroupDump> dumps = {Dump(0, {Record(417), Stuck(418, 2)}),
                                                     Dump(1, {Record(417), Stuck(418, 2)}),
                                                     Dump(2, {Record(417)})};
  EXPECT_THAT(
      collectives::CompareDumps(dumps),
      ElementsAre("rank 2 never entered allreduce #418; its last was allreduce #417 (finished)",
                  "allreduce #418 did not finish on ranks 0, 1: they waited for rank 2"));
}

TEST(CompareDumpsTest, WhoDisagrees) {
  std::vector<collectives::GroupDump> dumps = {Dump(0, {Record(0), Record(1)}),
                                               Dump(1, {Record(0), Record(1)}),
                                               Dump(2, {Record(0), Record(1, 999)})};
  EXPECT_THAT(collectives::CompareDumps(dumps),
              ElementsAre("ranks disagree on #1: rank 0 is in allreduce of 1000 f32, sum, ring; "
                          "rank 2 in allreduce of 999 f32, sum, ring"));
}

TEST(CompareDumpsTest, WhoIsMissingAndWhoIsSlow) {
  std::vector<collectives::OperationRecord> waits = {Record(0), Record(1), Record(2)};
  for (collectives::OperationRecord& r : waits) {
    r.waited_rank = 1;
    r.waited = absl::Milliseconds(2);
  }
  const std::vector<collectives::GroupDump> dumps = {Dump(0, waits),
                                                     Dump(1, {Record(0), Record(1), Record(2)})};
  EXPECT_THAT(
      collectives::CompareDumps(dumps),
      ElementsAre("rank 2 left no dump",
                  "straggler: rank 1 was waited for longest in 3 of 3 operations, 6ms in all"));
}

// Messages between two ranks do not shift what all ranks do.
TEST(CompareDumpsTest, SendsAreNoCollectives) {
  collectives::OperationRecord send = Record(0);
  send.primitive = collectives::Primitive::kPointToPoint;
  const std::vector<collectives::GroupDump> dumps = {Dump(0, {send, Record(1)}),
                                                     Dump(1, {Record(0)}), Dump(2, {Record(0)})};
  EXPECT_THAT(collectives::CompareDumps(dumps), ElementsAre("nothing unusual"));
}

TEST(TraceTest, EventsAndLanes) {
  collectives::Trace trace("worker 1", 1, /*max_events=*/3);
  trace.Add({"forward", "compute", absl::FromUnixMicros(10), absl::Microseconds(5), "compute"});
  trace.Add({"bucket 4", "allreduce", absl::FromUnixMicros(12), absl::Microseconds(5), "dense"});
  trace.Add({"backward", "compute", absl::FromUnixMicros(20), absl::Microseconds(5), "compute"});
  trace.Add({"too many", "compute", absl::FromUnixMicros(30), absl::Microseconds(5), "compute"});
  const auto json = nlohmann::json::parse(trace.ToJson());
  EXPECT_EQ(json["otherData"]["events_left_out"], 1);
  std::vector<std::string> lanes, names;
  for (const auto& e : json["traceEvents"]) {
    if (e["name"] == "thread_name") lanes.push_back(e["args"]["name"]);
    if (e["ph"] == "X") names.push_back(e["name"]);
  }
  EXPECT_THAT(lanes, ElementsAre("compute", "dense"));
  EXPECT_THAT(names, UnorderedElementsAre("forward", "bucket 4", "backward"));
}

TEST(TraceTest, SlicesOfATrackNest) {
  collectives::Trace trace("worker 1", 1);
  const auto add = [&](const char* name, int64_t start, int64_t end) {
    trace.Add({name, "", absl::FromUnixMicros(start), absl::Microseconds(end - start), "pull"});
  };
  add("inner", 12, 18);  // is told before the one around it, as tasks in tasks are
  add("outer", 10, 20);
  add("overlaps", 15, 25);
  add("after both", 25, 30);
  add("at once", 25, 28);
  const auto json = nlohmann::json::parse(trace.ToJson());
  std::map<int, std::string> tracks;
  std::map<std::string, std::string> track_of;
  for (const auto& e : json["traceEvents"]) {
    if (e["name"] == "thread_name") tracks[e["tid"]] = e["args"]["name"];
    if (e["ph"] == "X") track_of[e["name"]] = tracks[e["tid"]];
  }
  const std::map<std::string, std::string> expected = {{"outer", "pull"},
                                                       {"inner", "pull"},
                                                       {"overlaps", "pull 2"},
                                                       {"after both", "pull"},
                                                       {"at once", "pull"}};
  EXPECT_EQ(track_of, expected);
}

}  // namespace
}  // namespace tandem
