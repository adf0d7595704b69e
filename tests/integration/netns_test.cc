// Several hosts: the roles started by hand in three network namespaces, each with an address of its
// own and nothing but a switch between them, train the same bits as `tandem run` on one machine.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/run_job.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kStart = absl::Seconds(60);
constexpr absl::Duration kEnd = absl::Seconds(100);

// Three hosts and a switch, each a network namespace; the machine's own network is not touched.
class Hosts {
 public:
  Hosts() : prefix_(absl::StrCat(kPrefix, getpid(), "-")) {
    RemoveLeftOvers();
    ok_ = Ip({"netns", "add", Space("switch")}) &&
          Ip({"-n", Space("switch"), "link", "add", "br0", "type", "bridge"}) &&
          Ip({"-n", Space("switch"), "link", "set", "br0", "up"});
    for (int host = 1; host <= 3; ++host) ok_ = ok_ && AddHost(host);
  }
  ~Hosts() {
    for (int host = 1; host <= 3; ++host) Ip({"netns", "delete", Space(absl::StrCat(host))});
    Ip({"netns", "delete", Space("switch")});  // its devices go with it
  }
  bool ok() const { return ok_; }
  const std::string& why() const { return why_; }
  static std::string Address(int host) { return absl::StrCat("10.77.1.", host); }

  // argv of a program on `host`.
  std::vector<std::string> On(int host, const std::vector<std::string>& argv) const {
    std::vector<std::string> all = {kIp, "netns", "exec", Space(absl::StrCat(host))};
    all.insert(all.end(), argv.begin(), argv.end());
    return all;
  }

 private:
  static constexpr char kIp[] = "/sbin/ip";
  static constexpr char kPrefix[] = "tandem-test-";

  // Of a test that was killed: its process, whose number is in the name, is gone.
  void RemoveLeftOvers() {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/run/netns", error)) {
      const std::string name = entry.path().filename().string();
      absl::string_view rest = name;
      int pid = 0;
      if (!absl::ConsumePrefix(&rest, kPrefix)) continue;
      if (!absl::SimpleAtoi(rest.substr(0, rest.find('-')), &pid)) continue;
      if (pid == getpid() || kill(pid, 0) != 0) Ip({"netns", "delete", name});
    }
  }

  std::string Space(const std::string& name) const { return prefix_ + name; }

  bool AddHost(int host) {
    const std::string space = Space(absl::StrCat(host)), port = absl::StrCat("port", host);
    return Ip({"netns", "add", space}) &&
           Ip({"link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", port, "netns",
               Space("switch")}) &&
           Ip({"-n", Space("switch"), "link", "set", port, "master", "br0"}) &&
           Ip({"-n", Space("switch"), "link", "set", port, "up"}) &&
           Ip({"-n", space, "addr", "add", Address(host) + "/24", "dev", "eth0"}) &&
           Ip({"-n", space, "link", "set", "eth0", "up"}) &&
           Ip({"-n", space, "link", "set", "lo", "up"});
  }

  bool Ip(std::vector<std::string> arguments) {
    if (access(kIp, X_OK) != 0) {
      why_ = "there is no /sbin/ip";
      return false;
    }
    arguments.insert(arguments.begin(), kIp);
    const RunResult result = RunProgram(arguments, kStart);
    if (!result.ok() && why_.empty()) why_ = result.output;
    return result.ok();
  }

  const std::string prefix_;
  bool ok_ = false;
  std::string why_;
};

class NetnsTest : public ::testing::Test {
 protected:
  static std::vector<std::string> Settings() {
    return {"data.train=" + SourcePath("configs/data/example_train.csv"),
            "data.test=" + SourcePath("configs/data/example_test.csv"), "reproducible=true",
            "dense.algorithm=DIRECT", "train.epochs=2"};
  }
  std::string JobFile() const { return SourcePath("configs/delimited.textproto"); }

  // A role of the job, on `host`, with its output in ROLE.txt.
  std::unique_ptr<ChildProcess> Start(const Hosts& hosts, int host, const std::string& name,
                                      const std::string& program,
                                      std::vector<std::string> flags) const {
    std::vector<std::string> argv = {ProgramPath(program), "--job", JobFile()};
    for (const std::string& set : Settings()) argv.insert(argv.end(), {"--set", set});
    argv.insert(argv.end(), flags.begin(), flags.end());
    return std::make_unique<ChildProcess>(hosts.On(host, argv), folder_.File(name + ".txt"),
                                          environment_);
  }

  // Where the scheduler says that it is.
  static std::string AddressOf(ChildProcess* scheduler) {
    if (!scheduler->WaitForOutput("}\n", kStart)) return "";
    const std::string output = scheduler->Output();
    const auto first = nlohmann::json::parse(output.substr(0, output.find('\n')), nullptr, false);
    return first.is_object() ? first.value("address", "") : "";
  }

  TemporaryFolder folder_;
  std::map<std::string, std::string> environment_ = {{"TANDEM_TOKEN", std::string(64, 'd')}};
};

TEST_F(NetnsTest, SameBitsAsOneMachine) {
  if (geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  const Hosts hosts;
  if (!hosts.ok()) GTEST_SKIP() << "no network namespaces here: " << hosts.why();

  RunArguments here;
  here.job = JobFile();
  here.set = Settings();
  here.out = folder_.File("here");
  const RunResult expected = RunJob(here);
  ASSERT_TRUE(expected.ok()) << expected.DebugString();

  // One role listens on its own address, another on all and says by which it is reached.
  const std::string there = folder_.File("there");
  const auto scheduler = Start(hosts, 1, "scheduler", "tandem-scheduler",
                               {"--bind", "tcp://" + Hosts::Address(1) + ":*", "--out", there});
  const std::string address = AddressOf(scheduler.get());
  ASSERT_THAT(address, HasSubstr("tcp://" + Hosts::Address(1) + ":")) << scheduler->Output();
  std::vector<std::unique_ptr<ChildProcess>> nodes;
  for (int i = 0; i < 2; ++i) {
    const int host = 2 + i;
    std::vector<std::string> flags = {"--scheduler", address, "--index", absl::StrCat(i), "--bind"};
    if (i == 0) flags.insert(flags.end(), {"tcp://" + Hosts::Address(host) + ":*"});
    if (i == 1) {
      flags.insert(flags.end(), {"tcp://0.0.0.0:*", "--advertise", Hosts::Address(host)});
    }
    const std::string index = absl::StrCat(i);
    nodes.push_back(Start(hosts, host, "server-" + index, "tandem-server", flags));
    nodes.push_back(Start(hosts, host, "worker-" + index, "tandem-worker", flags));
  }
  EXPECT_TRUE(scheduler->WaitFor(kEnd)) << scheduler->Output();
  EXPECT_EQ(scheduler->exit_code(), 0) << scheduler->Output();
  for (const auto& node : nodes) {
    EXPECT_TRUE(node->WaitFor(kStart)) << node->Output();
    EXPECT_EQ(node->exit_code(), 0) << node->Output();
  }

  const auto want = ReadCheckpoint(here.out + "/model");
  const auto have = ReadCheckpoint(there + "/model");
  ASSERT_TRUE(want.ok()) << want.status();
  ASSERT_TRUE(have.ok()) << have.status();
  EXPECT_GT(want->size(), 2u);  // two tables and the dense part
  EXPECT_EQ(Difference(*want, *have), "");
  const auto summary = nlohmann::json::parse(ReadTextFile(there + "/summary.json"));
  EXPECT_EQ(summary["eval"], expected.summary["eval"]);
  EXPECT_EQ(summary["samples"], expected.summary["samples"]);
}

// Two workers on each of two hosts sum within the hosts, then across: as one machine does but for
// the order of additions.
TEST_F(NetnsTest, HierarchicalAllReduceAcrossHosts) {
  if (geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  const Hosts hosts;
  if (!hosts.ok()) GTEST_SKIP() << "no network namespaces here: " << hosts.why();
  const std::vector<std::string> set = {"cluster.workers=4", "cluster.servers=1",
                                        "reproducible=false", "dense.bucket_bytes=-1",
                                        "dense.optimizer={kind: SGD learning_rate: 0.1}"};
  const auto here = [&](const std::string& name, const std::string& more) {
    RunArguments arguments;
    arguments.job = JobFile();
    arguments.set = Settings();
    arguments.set.insert(arguments.set.end(), set.begin(), set.end());
    arguments.set.push_back(more);
    arguments.out = folder_.File(name);
    const RunResult run = RunJob(arguments);
    EXPECT_TRUE(run.ok()) << run.DebugString();
    return ReadCheckpoint(arguments.out + "/model");
  };
  const auto want = here("here", "train.epochs=2"), begun = here("begun", "train.epochs=1");
  ASSERT_TRUE(want.ok() && begun.ok());

  std::vector<std::string> flags;
  for (const std::string& one : set) flags.insert(flags.end(), {"--set", one});
  flags.insert(flags.end(), {"--set", "dense.algorithm=HIERARCHICAL", "--bind"});
  const auto on = [&](int host) {
    std::vector<std::string> out = flags;
    out.push_back("tcp://" + Hosts::Address(host) + ":*");
    return out;
  };
  const std::string there = folder_.File("there");
  std::vector<std::string> more = on(1);
  more.insert(more.end(), {"--out", there});
  const auto scheduler = Start(hosts, 1, "scheduler", "tandem-scheduler", more);
  const std::string address = AddressOf(scheduler.get());
  ASSERT_NE(address, "") << scheduler->Output();
  std::vector<std::unique_ptr<ChildProcess>> nodes;
  for (int i = -1; i < 4; ++i) {  // the server, then workers
    const int host = i < 2 ? 2 : 3;
    more = on(host);
    more.insert(more.end(), {"--scheduler", address, "--index", absl::StrCat(std::max(0, i))});
    nodes.push_back(Start(hosts, host, absl::StrCat("node-", i),
                          i < 0 ? "tandem-server" : "tandem-worker", more));
  }
  EXPECT_TRUE(scheduler->WaitFor(kEnd)) << scheduler->Output();
  EXPECT_EQ(scheduler->exit_code(), 0) << scheduler->Output();
  const auto have = ReadCheckpoint(there + "/model");
  ASSERT_TRUE(have.ok()) << have.status();
  EXPECT_LT(DenseDistance(*want, *have), 1e-3 * DenseDistance(*want, *begun));
  const auto summary = nlohmann::json::parse(ReadTextFile(there + "/summary.json"));
  EXPECT_EQ(summary["collectives"]["choices"][0]["algorithm"], "hierarchical");
  int within = 0, across = 0;
  for (const auto& path : summary["paths"]) {
    if (path.value("for", "") != "dense gradients") continue;
    ++(path["by"] == "shared memory" ? within : across);
  }
  EXPECT_EQ(within, 2);
  EXPECT_EQ(across, 4);
}

TEST_F(NetnsTest, KilledHostIsNamedByAll) {
  if (geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
  const Hosts hosts;
  if (!hosts.ok()) GTEST_SKIP() << "no network namespaces here: " << hosts.why();
  environment_ = {};
  const auto scheduler = Start(hosts, 1, "scheduler", "tandem-scheduler",
                               {"--bind", "tcp://" + Hosts::Address(1) + ":*", "--insecure",
                                "--set", "train.epochs=1000000"});
  const std::string address = AddressOf(scheduler.get());
  ASSERT_NE(address, "");
  std::vector<std::unique_ptr<ChildProcess>> nodes;
  for (int i = 0; i < 4; ++i) {
    const bool server = i < 2;
    nodes.push_back(Start(
        hosts, 2 + i % 2, absl::StrCat("node-", i), server ? "tandem-server" : "tandem-worker",
        {"--scheduler", address, "--index", absl::StrCat(i % 2), "--set", "train.epochs=1000000",
         "--bind", absl::StrCat("tcp://", Hosts::Address(2 + i % 2), ":*")}));
  }
  ASSERT_TRUE(scheduler->WaitForOutput("\"loss\"", kStart)) << scheduler->Output();
  nodes[1]->Signal(SIGKILL);
  EXPECT_TRUE(scheduler->WaitFor(absl::Seconds(10)));
  EXPECT_EQ(scheduler->exit_code(), 1);
  EXPECT_THAT(scheduler->Output(), HasSubstr("\"node\":\"server 1\""));
  for (const int i : {0, 2, 3}) {
    EXPECT_TRUE(nodes[i]->WaitFor(absl::Seconds(10))) << i;
    EXPECT_EQ(nodes[i]->exit_code(), 1);
    EXPECT_THAT(nodes[i]->Output(), HasSubstr("server 1: connection lost")) << i;
  }
}

}  // namespace
}  // namespace tandem
