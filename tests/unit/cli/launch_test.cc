// Which rank of a launch a process is, by the variables of launchers, and which roles are its own.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/launch/deal_roles.h"
#include "cli/launch/host_list.h"
#include "cli/launch/role_commands.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/launch_environment.h"

namespace tandem {
namespace {

using cli::DealRoles;
using node::FindLaunch;
using node::Launch;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Variables = std::map<std::string, std::string>;

constexpr int kParent = 4711;

absl::StatusOr<Launch> Find(const Variables& variables) {
  return FindLaunch(
      [&variables](const char* name) {
        const auto it = variables.find(name);
        return it == variables.end() ? nullptr : it->second.c_str();
      },
      kParent);
}

Variables Join(Variables a, const Variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

// What each launcher sets, in a launch of rank 2 of 4 over two hosts.
const Variables kTorch = {{"RANK", "2"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_RANK", "0"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "n07"},
                          {"MASTER_PORT", "29400"},
                          {"TORCHELASTIC_RUN_ID", "none"},
                          {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"OMPI_MCA_orte_hnp_uri", "17755.0;tcp://10.0.0.1:36833"},
                            {"PMIX_RANK", "2"},
                            {"PMIX_NAMESPACE", "1775566849"}};
const Variables kMpich = {
    {"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kTandem = {{"TANDEM_RANK", "2"},
                           {"TANDEM_WORLD_SIZE", "4"},
                           {"TANDEM_LOCAL_RANK", "0"},
                           {"TANDEM_LOCAL_SIZE", "2"}};
const Variables kSlurm = {{"SLURM_PROCID", "2"},
                          {"SLURM_NTASKS", "4"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                          {"SLURM_JOB_ID", "77"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_NUM_NODES", "2"},
                          {"SLURM_STEP_NODELIST", "n[07-09],m1"},
                          {"SLURM_LAUNCH_NODE_IPADDR", "10.9.9.9"}};
const Variables kKubernetes = {
    {"JOB_COMPLETION_INDEX", "2"}, {"TANDEM_WORLD_SIZE", "4"}, {"HOSTNAME", "clicks-2"}};

struct Case {
  std::string family;
  Variables variables;
  std::string first_host;
  int here = 2;  // ranks on this host
};

class LaunchTest : public ::testing::TestWithParam<Case> {};

TEST_P(LaunchTest, EachFamilyIsRead) {
  const absl::StatusOr<Launch> launch = Find(GetParam().variables);
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->family, GetParam().family);
  EXPECT_EQ(launch->rank, 2);
  EXPECT_EQ(launch->size, 4);
  EXPECT_FALSE(launch->one_host);
  EXPECT_EQ(launch->first_host, GetParam().first_host);
  EXPECT_EQ(launch->first_here, 2);
  EXPECT_EQ(launch->size_here, GetParam().here);
  EXPECT_THAT(launch->others, IsEmpty());
  EXPECT_EQ(launch->DebugString(), "rank 2 of 4, from " + GetParam().family);
}

// Alone, a family names itself; after another one that says the same it adds nothing.
INSTANTIATE_TEST_SUITE_P(
    All, LaunchTest,
    ::testing::Values(Case{"Tandem", kTandem, ""},
                      Case{"Tandem", {{"TANDEM_RANK", "2"}, {"TANDEM_WORLD_SIZE", "4"}}, "", 1},
                      Case{"torch", kTorch, "n07"}, Case{"Open MPI", kOpenMpi, ""},
                      Case{"PMI", kMpich, ""}, Case{"Slurm", kSlurm, "n07"},
                      Case{"Kubernetes", kKubernetes, "clicks-0", 1},
                      Case{"Open MPI", Join(kOpenMpi, kSlurm), ""}),
    [](const auto& test) {
      std::string name = test.param.family + std::to_string(test.index);
      name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
      return name;
    });

// mpirun in an allocation of Slurm: srun has started one daemon of mpirun on each host.
// srun --mpi=pmi2 sets both families; only Slurm's names the launch and the hosts.
TEST(FindLaunchTest, PmiOfSlurmIsCompletedBySlurm) {
  const auto launch = Find(Join(kSlurm, {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}));
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->family, "PMI");
  EXPECT_EQ(launch->first_host, "n07");
  EXPECT_FALSE(launch->one_host);
  EXPECT_EQ(launch->id, Find(kSlurm)->id);
  EXPECT_FALSE(launch->id.empty());
}

TEST(FindLaunchTest, AFamilyThatDiffersIsNamedAndIgnored) {
  Variables slurm = kSlurm;
  slurm["SLURM_PROCID"] = "1";
  slurm["SLURM_NTASKS"] = "2";
  const absl::StatusOr<Launch> launch = Find(Join(kOpenMpi, slurm));
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->DebugString(), "rank 2 of 4, from Open MPI; Slurm says rank 1 of 2, ignored");
}

TEST(FindLaunchTest, WithoutALauncherAProcessIsAlone) {
  const absl::StatusOr<Launch> launch = Find({});
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->size, 1);
  EXPECT_TRUE(launch->one_host);
  EXPECT_THAT(launch->DebugString(), HasSubstr("no launcher"));
}

TEST(FindLaunchTest, RanksOfThisHostAreFoundOrThisRankIsAlone) {
  const auto here = [](Variables variables) {
    const absl::StatusOr<Launch> launch = Find(variables);
    return launch.ok() ? std::make_pair(launch->first_here, launch->size_here)
                       : std::make_pair(-1, -1);
  };
  Variables torch = kTorch;
  torch["LOCAL_RANK"] = "1";  // rank 2 is the second of [1, 3)
  EXPECT_EQ(here(torch), std::make_pair(1, 2));
  for (const char* impossible : {"2", "3", "x", "-1"}) {
    torch["LOCAL_RANK"] = impossible;
    EXPECT_EQ(here(torch), std::make_pair(2, 1)) << impossible;
  }
  Variables slurm = kSlurm;
  slurm["SLURM_STEP_TASKS_PER_NODE"] = "2,1(x2)";
  EXPECT_EQ(here(slurm), std::make_pair(2, 1));
  slurm["SLURM_STEP_NUM_NODES"] = "1";  // all ranks
  EXPECT_EQ(here(slurm), std::make_pair(0, 4));
  EXPECT_EQ(here({}), std::make_pair(0, 1));
}

TEST(FindLaunchTest, TasksOnANodeOfSlurm) {
  EXPECT_EQ(node::TasksOnNode("4(x3),2", 2), 4);
  EXPECT_EQ(node::TasksOnNode("4(x3),2", 3), 2);
  EXPECT_EQ(node::TasksOnNode("4(x3),2", 4), 0);
  EXPECT_EQ(node::TasksOnNode("7", 0), 7);
  EXPECT_EQ(node::TasksOnNode("", 0), 0);
  EXPECT_EQ(node::TasksOnNode("2(xy)", 0), 0);
}

// Slurm sets these for the batch script itself. Only srun starts the ranks.
TEST(FindLaunchTest, ABatchScriptIsNoRank) {
  const absl::StatusOr<Launch> launch =
      Find({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "77"}});
  ASSERT_TRUE(launch.ok()) << launch.status();
  EXPECT_EQ(launch->size, 1);
}

TEST(FindLaunchTest, AllRanksOnOneHostAreSeen) {
  Variables mpi = kOpenMpi, torch = kTorch, pmi = kMpich, slurm = kSlurm;
  mpi["OMPI_COMM_WORLD_LOCAL_SIZE"] = "4";
  torch["LOCAL_WORLD_SIZE"] = "4";
  pmi["MPI_LOCALNRANKS"] = "4";
  slurm["SLURM_STEP_NUM_NODES"] = "1";
  for (const Variables& variables : {mpi, torch, pmi, slurm}) {
    const absl::StatusOr<Launch> launch = Find(variables);
    ASSERT_TRUE(launch.ok()) << launch.status();
    EXPECT_TRUE(launch->one_host) << launch->family;
    EXPECT_NE(launch->id, "") << launch->family;
  }
}

// The id is that of the launch, not of the rank, and changes with each launch.
TEST(FindLaunchTest, RanksOfOneLaunchHaveOneId) {
  Variables first = kSlurm, again = kSlurm;
  first["SLURM_PROCID"] = "0";
  again["SLURM_RESTART_COUNT"] = "1";
  EXPECT_EQ(Find(first)->id, Find(kSlurm)->id);
  EXPECT_NE(Find(again)->id, Find(kSlurm)->id);
  Variables rank0 = kOpenMpi, other = kOpenMpi;
  rank0["OMPI_COMM_WORLD_RANK"] = rank0["PMIX_RANK"] = "0";
  other["PMIX_NAMESPACE"] = "2";
  EXPECT_EQ(Find(rank0)->id, Find(kOpenMpi)->id);
  EXPECT_NE(Find(other)->id, Find(kOpenMpi)->id);
  Variables restarted = kTorch;
  restarted["TORCHELASTIC_RESTART_COUNT"] = "1";
  EXPECT_EQ(Find(restarted)->id, Find(kTorch)->id) << "nodes may count restarts differently";
  Variables here = Join(kTorch, {{"LOCAL_WORLD_SIZE", "4"}});
  restarted["LOCAL_WORLD_SIZE"] = "4";
  EXPECT_NE(Find(restarted)->id, Find(here)->id) << "on one host the port may be the same";
  EXPECT_NE(node::PortOfLaunch(Find(again)->id), node::PortOfLaunch(Find(first)->id));
}

TEST(FindLaunchTest, WrongVariablesAreNamed) {
  Variables text = kTorch, above = kOpenMpi;
  text["RANK"] = "two";
  above["OMPI_COMM_WORLD_RANK"] = "4";
  EXPECT_EQ(Find(text).status().message(), "RANK=two: expected a number, 0 or more");
  EXPECT_EQ(Find(above).status().message(),
            "OMPI_COMM_WORLD_RANK=4: expected a rank below OMPI_COMM_WORLD_SIZE=4");
  EXPECT_THAT(std::string(Find({{"JOB_COMPLETION_INDEX", "1"}}).status().message()),
              HasSubstr("TANDEM_WORLD_SIZE, the number of ranks, is not"));
}

TEST(HostListTest, TheFirstHostIsRead) {
  EXPECT_EQ(node::FirstOfHostList("n1"), "n1");
  EXPECT_EQ(node::FirstOfHostList("n1,n2"), "n1");
  EXPECT_EQ(node::FirstOfHostList("n[07-09,11],m1"), "n07");
  EXPECT_EQ(node::FirstOfHostList("rack[2,4]-ib"), "rack2-ib");
  EXPECT_EQ(node::FirstOfHostList("n[1-3"), "");
  EXPECT_EQ(node::FirstOfHostList(""), "");
}

TEST(HostFileTest, HostsAndSlotsAreRead) {
  const auto hosts = cli::ParseHostFile("hosts", "# two\na slots=2\n\nuser@b  slots=3 # fast\nc\n");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  ASSERT_EQ(hosts->size(), 3u);
  EXPECT_EQ((*hosts)[1].host, "user@b");
  EXPECT_EQ((*hosts)[1].slots, 3);
  EXPECT_EQ((*hosts)[2].slots, 1);
  const auto list = cli::ParseHostList("a:2,b");
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ((*list)[0].slots, 2);
  EXPECT_EQ((*list)[1].host, "b");
}

// ssh takes aliases as they are, and IPv6 addresses without brackets.
TEST(HostFileTest, AliasesAndAddressesOfSshAreRead) {
  const auto names = [](const absl::StatusOr<std::vector<cli::HostSlots>>& hosts) {
    std::vector<std::string> out;
    if (!hosts.ok()) return std::vector<std::string>{std::string(hosts.status().message())};
    for (const cli::HostSlots& host : *hosts) {
      out.push_back(absl::StrCat(host.host, " ", host.slots));
    }
    return out;
  };
  EXPECT_THAT(names(cli::ParseHostList("GPU_1.lab:2,me@10.0.0.7,[fd00::1]:3,me@[fe80::1%eth0]")),
              ElementsAre("GPU_1.lab 2", "me@10.0.0.7 1", "fd00::1 3", "me@fe80::1%eth0 1"));
  EXPECT_THAT(names(cli::ParseHostFile("hosts", "gpu-1\nfd00::1 slots=2\nme@[fd00::2] slots=3\n")),
              ElementsAre("gpu-1 1", "fd00::1 2", "me@fd00::2 3"));
  EXPECT_THAT(names(cli::ParseHostList("a,fd00::1:2")),
              ElementsAre(HasSubstr("'fd00::1:2', expected HOST:SLOTS; hint: an IPv6 address is in "
                                    "brackets")));
  for (const char* wrong : {"[fd00::1", "[a]:2", "me@", "me@[]:2", "[fd00::1]x:2"}) {
    EXPECT_THAT(names(cli::ParseHostList(wrong)), ElementsAre(HasSubstr("-H "))) << wrong;
  }
  EXPECT_THAT(names(cli::ParseHostFile("hosts", "a:2\n")),
              ElementsAre("hosts:1: 'a:2' is not the name of a host"));
  EXPECT_THAT(names(cli::ParseHostFile("hosts", "fd00::1\n[fd00::1]\n")),
              ElementsAre(HasSubstr("host fd00::1 is there twice")));
}

TEST(HostFileTest, WrongLinesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"a slots=0", "hosts:1: host a has '0' slots, expected 1 to 4096"},
      {"a slots=x", "hosts:1: host a has 'x' slots"},
      {"a\nb\na slots=2", "hosts:3: host a is there twice"},
      {"a 2", "hosts:1: 'a 2', expected HOST slots=NUMBER"},
      {"a slots=2 b", "expected HOST slots=NUMBER"},
      {"-oProxyCommand=x", "is not the name of a host"},
      {"# nothing\n", "hosts: there is no host"},
  };
  for (const auto& [text, expected] : cases) {
    const auto hosts = cli::ParseHostFile("hosts", text);
    EXPECT_THAT(std::string(hosts.status().message()), HasSubstr(expected)) << text;
  }
  EXPECT_THAT(std::string(cli::ParseHostList("a:0").status().message()), HasSubstr("'0' slots"));
  EXPECT_THAT(std::string(cli::ParseHostList("a,,b").status().message()),
              HasSubstr("name of a host"));
}

// Two servers and two workers.
TEST(DealRolesTest, RolesAreDealtLikeCards) {
  EXPECT_TRUE(DealRoles(2, 2, 0, 3).scheduler);
  EXPECT_THAT(DealRoles(2, 2, 0, 3).servers, ElementsAre(0));
  EXPECT_THAT(DealRoles(2, 2, 0, 3).workers, ElementsAre(1));
  EXPECT_THAT(DealRoles(2, 2, 1, 3).servers, ElementsAre(1));
  EXPECT_THAT(DealRoles(2, 2, 2, 3).workers, ElementsAre(0));
  EXPECT_FALSE(DealRoles(2, 2, 2, 3).scheduler);
}

// LOCAL_RANK and LOCAL_WORLD_SIZE of the scripts that one rank of a launch starts, in a job with
// two servers and four workers.
std::vector<std::string> LocalRanks(const Launch& launch) {
  job::ResolvedJob plan;
  plan.job.mutable_cluster()->set_servers(2);
  plan.job.mutable_cluster()->set_workers(4);
  cli::RoleOptions options;
  options.out = "out";
  options.python = "train.py";
  options.workers_here = cli::WorkersHere(plan.server_processes(), plan.workers(),
                                          launch.first_here, launch.size_here, launch.size);
  const cli::RoleCommands commands(plan, options);
  std::vector<std::string> found;
  const cli::DealtRoles dealt =
      DealRoles(plan.server_processes(), plan.workers(), launch.rank, launch.size);
  for (const int worker : dealt.workers) {
    std::map<std::string, std::string> set;
    for (const auto& [name, value] : commands.Worker(worker, "tcp://h:1").environment) {
      set[name] = value;
    }
    found.push_back(absl::StrCat(set["LOCAL_RANK"], "/", set["LOCAL_WORLD_SIZE"]));
  }
  return found;
}

// A script computes on GPU LOCAL_RANK, modulo the GPUs that it sees.
TEST(LocalRankTest, ScriptsOfAHostHaveDifferentOnes) {
  Launch launch;
  EXPECT_THAT(LocalRanks(launch), ElementsAre("0/4", "1/4", "2/4", "3/4"));
  // Two agents on one host. If each sees two GPUs of its own (srun --gpus-per-task=2), its workers
  // differ modulo 2. If both see all four GPUs, the workers differ modulo 4.
  launch.size = launch.size_here = 2;
  EXPECT_THAT(LocalRanks(launch), ElementsAre("0/4", "1/4"));
  launch.rank = 1;
  EXPECT_THAT(LocalRanks(launch), ElementsAre("2/4", "3/4"));
  // Two agents on two hosts.
  launch.first_here = 1;
  launch.size_here = 1;
  EXPECT_THAT(LocalRanks(launch), ElementsAre("0/2", "1/2"));
}

TEST(DealRolesTest, EveryRoleIsDealtOnce) {
  for (int servers = 0; servers < 5; ++servers) {
    for (int workers = 1; workers < 5; ++workers) {
      for (int ranks = 1; ranks < 12; ++ranks) {
        std::vector<int> all_servers, all_workers;
        int schedulers = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const cli::DealtRoles dealt = DealRoles(servers, workers, rank, ranks);
          schedulers += dealt.scheduler ? 1 : 0;
          all_servers.insert(all_servers.end(), dealt.servers.begin(), dealt.servers.end());
          all_workers.insert(all_workers.end(), dealt.workers.begin(), dealt.workers.end());
          EXPECT_EQ(dealt.empty(), rank > 0 && rank >= servers + workers);
        }
        EXPECT_EQ(schedulers, 1);
        EXPECT_EQ(all_servers.size(), static_cast<size_t>(servers));
        EXPECT_EQ(all_workers.size(), static_cast<size_t>(workers));
        for (int s = 0; s < servers; ++s) EXPECT_THAT(all_servers, ::testing::Contains(s));
        for (int w = 0; w < workers; ++w) EXPECT_THAT(all_workers, ::testing::Contains(w));
      }
    }
  }
}

}  // namespace
}  // namespace tandem
