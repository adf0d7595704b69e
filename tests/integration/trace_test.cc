// `tandem run --trace N`: what workers and servers did, in files that Perfetto can show: on each
// track slices lie one in another or apart.
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

using ::testing::IsSupersetOf;

struct Traced {
  std::set<std::string> lanes, names;  // lanes without their number
  int64_t process = 0;
};

// Refuses tracks whose slices overlap.
Traced ReadTrace(const std::string& path) {
  const auto json = nlohmann::json::parse(ReadTextFile(path));
  Traced traced;
  std::map<int, std::vector<std::pair<double, double>>> tracks;
  for (const auto& e : json["traceEvents"]) {
    traced.process = e["pid"];
    if (e["name"] == "thread_name") {
      const std::vector<std::string> words =
          absl::StrSplit(e["args"]["name"].get<std::string>(), ' ');
      traced.lanes.insert(words[0]);
    }
    if (e["ph"] != "X") continue;
    traced.names.insert(e["name"]);
    const double start = e["ts"], end = start + e["dur"].get<double>();
    EXPECT_GE(end, start);
    tracks[e["tid"]].emplace_back(start, end);
  }
  constexpr double kRounding = 0.01;  // microseconds
  for (const auto& [track, slices] : tracks) {
    std::vector<double> open;
    for (const auto& [start, end] : slices) {  // in the order of their starts
      while (!open.empty() && open.back() <= start + kRounding) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(end, open.back() + kRounding) << path << ", track " << track;
      }
      open.push_back(end);
    }
  }
  return traced;
}

TEST(TraceTest, WorkersAndServersTellWhatTheyDid) {
  const SmallJob job(/*train_rows=*/2000, /*test_rows=*/200);
  RunArguments arguments = job.Arguments(
      "traced", {"train.max_steps=12", "train.prefetch_steps=2", "cluster.workers=2"});
  arguments.flags = {"--trace", "6"};
  const RunResult run = RunJob(arguments);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  std::set<int64_t> processes;
  for (int w = 0; w < 2; ++w) {
    const Traced worker = ReadTrace(absl::StrCat(arguments.out, "/trace-", w, ".json"));
    EXPECT_THAT(worker.lanes, IsSupersetOf({"compute", "pull", "push", "read", "evaluation"}));
    EXPECT_THAT(worker.names, IsSupersetOf({"compute 5", "read 0", "score"}));
    EXPECT_EQ(worker.names.count("compute 6"), 0u) << "six steps were asked for";
    EXPECT_EQ(worker.lanes.count("checkpoint"), w == 0 ? 1u : 0u) << "rank 0 writes the dense part";
    processes.insert(worker.process);
  }
  for (int s = 0; s < 2; ++s) {
    const Traced server = ReadTrace(absl::StrCat(arguments.out, "/trace-server-", s, ".json"));
    EXPECT_THAT(server.names, IsSupersetOf({"pull 0 of worker 0", "push 5 of worker 1",
                                            "worker 0 evaluates", "checkpoint"}));
    EXPECT_EQ(server.names.count("push 6 of worker 1"), 0u);
    processes.insert(server.process);
  }
  EXPECT_EQ(processes.size(), 4u) << "traces may be put into one file";
}

}  // namespace
}  // namespace tandem
