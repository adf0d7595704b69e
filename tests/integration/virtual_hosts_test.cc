// A job on hosts of its own: `tandem run --link-bytes-per-second` puts each process into a network
// namespace, and what they tell each other passes links that let so much through and no more.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
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
using ::testing::Not;
using ::testing::StartsWith;

constexpr absl::Duration kEnd = absl::Seconds(200);

class VirtualHostsTest : public ::testing::Test {
 protected:
  VirtualHostsTest() : job_(/*train_rows=*/3000, /*test_rows=*/500) {}

  // Skips where hosts cannot be made whoever asks: a first one, made by hand. What `tandem run` is
  // refused behind that is a failure.
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
    const RunResult by_hand = RunProgram(
        {"/usr/bin/env", "PATH=/usr/sbin:/sbin:/usr/bin:/bin", "unshare", "--net", "sh", "-ec",
         "ip link add one type veth peer name other; ip link add switch type bridge; "
         "ip link set one master switch up; "
         "tc qdisc add dev other root tbf rate 1mbit burst 20kb limit 1mb"});
    if (!by_hand.ok()) GTEST_SKIP() << "no host can be made here: " << by_hand.output;
  }

  RunResult Run(const std::string& name, const std::vector<std::string>& set,
                const std::vector<std::string>& flags) const {
    RunArguments arguments = job_.Arguments(name, set);
    arguments.flags = flags;
    return RunJob(arguments);
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
  ASSERT_TRUE(there.ok()) << there.DebugString();

  const auto want = ReadCheckpoint(job_.File("here/model"));
  const auto have = ReadCheckpoint(job_.File("there/model"));
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

TEST_F(VirtualHostsTest, ColocatedServers) {
  const RunResult run = Run("beside", {"dense.synchroniser=SERVERS"},
                            {"--link-bytes-per-second", "1e7", "--colocate-servers"});
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
  const RunResult run = Run(
      "sharded", {"cluster.servers=0", "table[0].placement=SHARDED", "table[1].placement=SHARDED"},
      {"--link-bytes-per-second", "1e7"});
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
  ASSERT_TRUE(job.WaitForStep(2, kEnd)) << job.Finish(absl::ZeroDuration()).DebugString();
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
  EXPECT_THAT(refusal({}, {"--colocate-servers"}),
              StartsWith("tandem run: --colocate-servers: without hosts"));
  EXPECT_THAT(
      refusal({"cluster.servers=4"}, {"--link-bytes-per-second", "1e7", "--colocate-servers"}),
      HasSubstr("4 servers beside 3 workers, expected at most as many"));
  EXPECT_THAT(refusal({}, {"--link-bytes-per-second", "5"}),
              HasSubstr("links of 5 bytes a second, expected at least 500000 with 6 hosts"));
  EXPECT_THAT(refusal({}, {"--link-bytes-per-second", "1e12"}),
              HasSubstr("expected at most 100000000000"));
  EXPECT_THAT(refusal({"cluster.transport=SHM"}, {"--link-bytes-per-second", "1e7"}),
              StartsWith("tandem run: cluster.transport: SHM, but each process is on a host of its "
                         "own"));
  EXPECT_THAT(refusal({"dense.link=SHM"}, {"--link-bytes-per-second", "1e7"}),
              StartsWith("tandem run: dense.link: SHM, but each process is on a host of its own"));
}

// What the model says stands beside each run: of one that lacks it, or if the study assumes
// something else by now, it is made again without the run.
TEST_F(VirtualHostsTest, AStudyKeepsItsModels) {
  const auto compare = [&](absl::string_view network) {
    WriteTextFile(
        job_.File("study.textproto"),
        absl::StrCat("job: \"job.textproto\" seed: 1 set: \"reproducible=false\" ",
                     "target { metric: \"samples_per_second\" } network { ", network, " }"));
    const RunResult result = RunProgram({ProgramPath("tandem"), "compare",
                                         job_.File("study.textproto"), "--out", job_.File("out")});
    EXPECT_TRUE(result.ok()) << result.DebugString();
    return result.output;
  };
  const std::string run = job_.File("out/runs/job-seed1/");
  const auto model = [&run] { return nlohmann::json::parse(ReadTextFile(run + "model.json")); };
  EXPECT_THAT(compare("bytes_per_second: 1e7"), HasSubstr("[1/1]"));
  const nlohmann::json first = model();
  const std::string summary = ReadTextFile(run + "summary.json");
  std::filesystem::remove(run + "model.json");
  EXPECT_THAT(compare("bytes_per_second: 1e7"), Not(HasSubstr("[1/1]")));
  EXPECT_EQ(model(), first);
  EXPECT_THAT(compare("bytes_per_second: 1e7 latency_seconds: 0.1"), Not(HasSubstr("[1/1]")));
  EXPECT_GT(model()["step_seconds"].get<double>(), first["step_seconds"].get<double>() + 0.1);
  EXPECT_EQ(ReadTextFile(run + "summary.json"), summary);
}

}  // namespace
}  // namespace tandem
