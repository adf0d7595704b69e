// A job on hosts of its own: `tandem run --link-bytes-per-second` puts each process into a network
// namespace, and what they tell each other passes links that let so much through and no more.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kEnd = absl::Seconds(200);

class VirtualHostsTest : public ::testing::Test {
 protected:
  VirtualHostsTest() : job_(/*train_rows=*/3000, /*test_rows=*/500) {}

  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
    const bool has_tc = access("/sbin/tc", X_OK) == 0 || access("/usr/sbin/tc", X_OK) == 0;
    if (!has_tc) GTEST_SKIP() << "there is no program tc";
  }

  RunResult Run(const std::string& name, const std::vector<std::string>& set,
                const std::vector<std::string>& flags) const {
    RunArguments arguments = job_.Arguments(name, set);
    arguments.flags = flags;
    return RunJob(arguments);
  }
  // A kernel without namespaces, bridges or token buckets: nothing can be tested.
  static bool Lacks(const RunResult& run) {
    return run.exit_code == 2 && run.output.find("hosts with limited links: ") != std::string::npos;
  }

  // By host: sent, received.
  static std::map<std::string, std::pair<int64_t, int64_t>> Traffic(const RunResult& run) {
    std::map<std::string, std::pair<int64_t, int64_t>> hosts;
    for (const auto& host : run.summary["network"]["hosts"]) {
      hosts[host["host"]] = {host["sent_bytes"], host["received_bytes"]};
    }
    return hosts;
  }
  // How one process reaches another: "shared memory", "ZeroMQ", ...
  static std::string By(const RunResult& run, const std::string& from, const std::string& to) {
    for (const auto& path : run.summary["paths"]) {
      if (path["from"] == from &&
          absl::string_view(path["to"].get<std::string>()).substr(0, to.size()) == to) {
        return path["by"];
      }
    }
    return "";
  }

  SmallJob job_;
};

TEST_F(VirtualHostsTest, SameBitsThroughTheLinks) {
  const RunResult here = Run("here", {}, {});
  ASSERT_TRUE(here.ok()) << here.DebugString();
  EXPECT_FALSE(here.summary.contains("network"));
  // So slow that the servers' bytes take longer than the whole run would without.
  constexpr double kRate = 5e5;
  const absl::Time begin = MonotonicNow();
  const RunResult there = Run("there", {}, {"--link-bytes-per-second", absl::StrCat(kRate)});
  const double seconds = absl::ToDoubleSeconds(MonotonicNow() - begin);
  if (Lacks(there)) GTEST_SKIP() << there.output;
  ASSERT_TRUE(there.ok()) << there.DebugString();

  const auto want = ReadSavedModel(job_.File("here/model"));
  const auto have = ReadSavedModel(job_.File("there/model"));
  ASSERT_TRUE(want.ok() && have.ok());
  EXPECT_EQ(Difference(*want, *have), "");

  // The rows, gradients and sums of the job went over the wires, counted where they end.
  EXPECT_EQ(there.summary["network"]["bytes_per_second"], kRate);
  const auto traffic = Traffic(there);
  ASSERT_EQ(traffic.size(), 6u)
      << there.summary["network"].dump();  // scheduler, 3 workers, 2 servers
  int64_t to_servers = 0, from_servers = 0;
  for (const auto& [host, bytes] : traffic) {
    if (absl::string_view(host).substr(0, 6) != "server") continue;
    from_servers += bytes.first;
    to_servers += bytes.second;
    // No more than the links let through from the first to the last moment: never earlier.
    EXPECT_LE(static_cast<double>(std::max(bytes.first, bytes.second)), kRate * seconds + 2e5);
  }
  const auto& bytes = there.summary["bytes"];
  EXPECT_GT(to_servers, bytes["pull"].get<int64_t>() + bytes["push"].get<int64_t>());
  EXPECT_GT(from_servers, bytes["rows"].get<int64_t>());
  EXPECT_EQ(By(there, "worker 0", "server 0"), "ZeroMQ");
}

TEST_F(VirtualHostsTest, ServersBesideWorkers) {
  const RunResult run = Run("beside", {"dense.synchroniser=SERVERS"},
                            {"--link-bytes-per-second", "1e7", "--servers-beside-workers"});
  if (Lacks(run)) GTEST_SKIP() << run.output;
  ASSERT_TRUE(run.ok()) << run.DebugString();
  const auto traffic = Traffic(run);
  EXPECT_EQ(traffic.size(), 4u);
  EXPECT_EQ(traffic.count("worker 0, server 0"), 1u);
  EXPECT_EQ(traffic.count("worker 1, server 1"), 1u);
  EXPECT_EQ(traffic.count("worker 2"), 1u);
  EXPECT_EQ(By(run, "worker 0", "server 0"), "shared memory");
  EXPECT_EQ(By(run, "worker 0", "server 1"), "ZeroMQ");
  EXPECT_EQ(By(run, "worker 2", "server 0"), "ZeroMQ");
}

// Rows on the workers, gradients among them, and nothing in shared memory.
TEST_F(VirtualHostsTest, WithoutServers) {
  const RunResult run =
      Run("sharded",
          {"cluster.servers=0", "table[0].synchroniser=SHARDED", "table[1].synchroniser=SHARDED"},
          {"--link-bytes-per-second", "1e7"});
  if (Lacks(run)) GTEST_SKIP() << run.output;
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_EQ(Traffic(run).size(), 4u);
  ASSERT_FALSE(run.summary["paths"].empty());
  for (const auto& path : run.summary["paths"]) {
    // "worker 1" to "server 1 shard 0": the rows that it holds itself.
    const std::string from = path["from"], to = path["to"];
    const bool itself =
        absl::StrContains(to, absl::StrCat("server ", from.substr(from.size() - 1), " "));
    EXPECT_EQ(path["by"] == "shared memory", itself) << path.dump();
  }
}

TEST_F(VirtualHostsTest, NothingIsLeftOfAStoppedRun) {
  RunArguments arguments = job_.Arguments("stopped", {"train.epochs=100000"});
  arguments.flags = {"--link-bytes-per-second", "1e7"};
  RunningJob job(arguments);
  if (!job.WaitForStep(2, kEnd)) {
    const RunResult early = job.Finish(absl::ZeroDuration());
    ASSERT_TRUE(Lacks(early)) << early.DebugString();
    GTEST_SKIP() << early.output;
  }
  const pid_t worker = job.WaitForRole("worker-0", kEnd);
  ASSERT_GT(worker, 0);
  char ours[64] = "", its[64] = "";
  ASSERT_GT(readlink("/proc/self/ns/net", ours, sizeof ours - 1), 0);
  ASSERT_GT(readlink(absl::StrCat("/proc/", worker, "/ns/net").c_str(), its, sizeof its - 1), 0);
  EXPECT_STRNE(ours, its);
  job.driver().Signal(SIGKILL);  // what is there of it then goes with its last process
  EXPECT_TRUE(job.WaitForNobody(absl::Seconds(50)));
}

TEST_F(VirtualHostsTest, Refusals) {
  const auto refusal = [&](const std::vector<std::string>& set,
                           const std::vector<std::string>& flags) {
    const RunResult run = Run("refused", set, flags);
    EXPECT_EQ(run.exit_code, 2) << run.DebugString();
    return run.output;
  };
  EXPECT_THAT(refusal({}, {"--servers-beside-workers"}),
              StartsWith("tandem run: --servers-beside-workers: without hosts"));
  EXPECT_THAT(refusal({"cluster.servers=4"},
                      {"--link-bytes-per-second", "1e7", "--servers-beside-workers"}),
              HasSubstr("4 servers beside 3 workers, expected at most as many"));
  EXPECT_THAT(refusal({}, {"--link-bytes-per-second", "5"}),
              HasSubstr("links of 5 bytes a second, expected at least 100000"));
}

}  // namespace
}  // namespace tandem
