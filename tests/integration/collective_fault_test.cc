// Four processes in an all-reduce, one of which is killed, stopped, or leaves in order, at any step
// of it: every survivor must name that rank.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/random.h"
#include "collectives/errors.h"
#include "collectives/group.h"
#include "collectives/rendezvous/connect_links.h"
#include "collectives/rendezvous/coordinator.h"
#include "collectives/rendezvous/coordinator_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/transport/transport_links.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 4;
constexpr int64_t kCount = 200000;
constexpr absl::Duration kBeat = absl::Milliseconds(200);
constexpr absl::Duration kLimit = absl::Seconds(60);  // of anything here; a failure if reached

enum class Fault { kKill, kStop, kLeave };
const char* Name(Fault fault) {
  return fault == Fault::kKill ? "kill -9" : fault == Fault::kStop ? "SIGSTOP" : "orderly exit";
}

struct Scenario {
  Fault fault = Fault::kKill;
  int victim = 0;
  collectives::Algorithm algorithm = collectives::Algorithm::kRing;
  collectives::LinkChoice links = collectives::LinkChoice::kAuto;
  int operations = 0;  // before the one in which it happens
  int looks = 0;       // at that one, by the victim, before it happens
};

// ---- What a rank's process does -----------------------------------------------

struct Member {
  std::unique_ptr<collectives::CoordinatorClient> client;
  absl::StatusOr<collectives::LinkPorts> ports = absl::UnknownError("not open");
  std::unique_ptr<collectives::Group> group;

  // An end in order: what was written to links over ZeroMQ leaves before their endpoint does, and
  // only then comes the goodbye.
  void Leave() {
    group.reset();
    ports = absl::UnknownError("closed");
    client.reset();
  }
};

absl::Status MakeGroup(const Scenario& scenario, Member* member) {
  const collectives::GroupMembership membership = member->client->membership();
  collectives::ConnectOptions connect;
  connect.links = scenario.links;
  connect.watch = member->client.get();
  auto links =
      collectives::ConnectLinks(membership, *member->ports, connect, MonotonicNow() + kLimit);
  if (!links.ok()) return links.status();
  collectives::GroupOptions options;
  options.watch = member->client.get();
  options.deadline = kLimit;
  member->group = std::make_unique<collectives::Group>(membership.rank, *std::move(links), options);
  return absl::OkStatus();
}

// Rank r contributes r + 1 everywhere.
absl::StatusOr<collectives::Work> Sum(const Scenario& scenario, int rank, collectives::Group& group,
                                      std::vector<float>* x) {
  x->assign(kCount, static_cast<float>(rank + 1));
  collectives::CallOptions call;
  call.choice = collectives::AlgorithmChoice{scenario.algorithm, 64 << 10};
  return group.AllReduce(x->data(), x->data(), kCount, collectives::DataType::kF32,
                         collectives::ReduceOp::kSum, call);
}

[[noreturn]] void BeTheVictim(const Scenario& scenario, Member* member, std::vector<float>* x) {
  const auto work = Sum(scenario, scenario.victim, *member->group, x);
  for (int i = 0; i < scenario.looks && work.ok(); ++i) (void)member->group->Test(*work);
  if (scenario.fault == Fault::kKill) raise(SIGKILL);
  if (scenario.fault == Fault::kStop) raise(SIGSTOP);
  member->Leave();
  _exit(0);
}

// The operation in which it happens; or the one after, if this was done before.
absl::Status LoseTheVictim(const Scenario& scenario, int rank, Member* member,
                           std::vector<float>* x) {
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = member->group->Wait(Sum(scenario, rank, *member->group, x));
    if (!status.ok()) return status;
  }
  return absl::InternalError("two sums without a rank");
}

[[noreturn]] void RunRank(const Scenario& scenario, int rank, int commands, int report) {
  char address[256] = "";
  ssize_t got = read(commands, address, sizeof address - 1);
  if (got <= 0) _exit(3);
  Member member;
  member.ports = collectives::LinkPorts::Open("127.0.0.1", scenario.links);
  if (!member.ports.ok()) _exit(3);
  collectives::JoinOptions join;
  join.coordinator = std::string(address, static_cast<size_t>(got));
  join.rank = rank;
  join.ranks = kRanks;
  join.member = member.ports->member();
  auto client = collectives::CoordinatorClient::Join(join, MonotonicNow() + kLimit);
  // From the rendezvous on, whatever fails must name the victim.
  absl::Status failure = client.status();
  std::vector<float> x;
  if (client.ok()) {
    member.client = *std::move(client);
    failure = MakeGroup(scenario, &member);
  }
  for (int i = 0; failure.ok() && i < scenario.operations; ++i) {
    failure = member.group->Wait(Sum(scenario, rank, *member.group, &x));
  }
  if (failure.ok() && rank == scenario.victim) BeTheVictim(scenario, &member, &x);
  if (failure.ok()) failure = LoseTheVictim(scenario, rank, &member, &x);
  std::string text = failure.ToString();
  if (const auto lost = collectives::LostPeer(failure); lost.has_value()) {
    text = absl::StrCat("LOST ", *lost, ": ", failure.message());
  }
  absl::StrAppend(&text, "\n");
  (void)!write(report, text.data(), text.size());
  member.Leave();
  _exit(0);
}

// ---- The test -----------------------------------------------------------------

struct Child {
  pid_t pid = -1;
  int commands = -1, report = -1;
};

Child Fork(const Scenario& scenario, int rank) {
  int commands[2], report[2];
  EXPECT_EQ(pipe(commands), 0);
  EXPECT_EQ(pipe(report), 0);
  Child child{fork(), commands[1], report[0]};
  if (child.pid == 0) {
    alarm(static_cast<unsigned>(absl::ToInt64Seconds(2 * kLimit)));
    close(commands[1]);
    close(report[0]);
    RunRank(scenario, rank, commands[0], report[1]);
  }
  close(commands[0]);
  close(report[1]);
  return child;
}

std::string ReadAll(int fd) {
  std::string out;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(fd, buffer, sizeof buffer)) > 0;)
    out.append(buffer, static_cast<size_t>(n));
  return out;
}

void Play(const Scenario& scenario) {
  SCOPED_TRACE(absl::StrCat(Name(scenario.fault), " of rank ", scenario.victim, " in ",
                            collectives::AlgorithmName(scenario.algorithm), ", operation ",
                            scenario.operations, ", after ", scenario.looks, " looks", " over ",
                            collectives::NameOf(scenario.links)));
  std::array<Child, kRanks> children;
  for (int r = 0; r < kRanks; ++r) children[r] = Fork(scenario, r);
  collectives::CoordinatorOptions options;
  options.beat = kBeat;
  const auto coordinator = collectives::Coordinator::Start(options);
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  const std::string& address = (*coordinator)->address();
  for (const Child& child : children) {
    ASSERT_EQ(write(child.commands, address.data(), address.size()),
              static_cast<ssize_t>(address.size()));
    close(child.commands);
  }
  for (int r = 0; r < kRanks; ++r) {
    if (r == scenario.victim) continue;
    EXPECT_THAT(ReadAll(children[r].report),
                HasSubstr(absl::StrCat("LOST ", scenario.victim, ": ")))
        << "rank " << r;
  }
  kill(children[scenario.victim].pid, SIGKILL);
  for (const Child& child : children) {
    EXPECT_EQ(waitpid(child.pid, nullptr, 0), child.pid);
    close(child.report);
  }
}

class AnyRank : public ::testing::TestWithParam<Fault> {
 protected:
  // Scenarios of one fault over these links in turns.
  void PlayAll(const std::vector<collectives::LinkChoice>& links, int scenarios, uint64_t seed);
};

// Three survivors a scenario; twelve scenarios a fault make 108 over the three faults.
void AnyRank::PlayAll(const std::vector<collectives::LinkChoice>& links, int scenarios,
                      uint64_t seed) {
  Random random(static_cast<uint64_t>(GetParam()) + seed);
  const collectives::Algorithm algorithms[] = {collectives::Algorithm::kRing,
                                               collectives::Algorithm::kDirect,
                                               collectives::Algorithm::kRecursiveDoubling};
  for (int i = 0; i < scenarios; ++i) {
    Scenario scenario;
    scenario.fault = GetParam();
    scenario.victim = i % kRanks;
    scenario.algorithm = algorithms[i % 3];
    scenario.links = links[static_cast<size_t>(i) % links.size()];
    scenario.operations = static_cast<int>(random.Uniform(3));
    scenario.looks = static_cast<int>(random.Uniform(60));
    Play(scenario);
    if (HasFailure()) return;
  }
}

TEST_P(AnyRank, IsNamedByAllSurvivors) {
  PlayAll({collectives::LinkChoice::kAuto, collectives::LinkChoice::kTcp}, 12, 1);
}

TEST_P(AnyRank, IsNamedOverZeroMq) { PlayAll({collectives::LinkChoice::kZmq}, 8, 11); }

TEST_P(AnyRank, IsNamedOverRdma) {
  if (const std::string missing = MissingInChildren(collectives::LinkChoice::kRdma);
      !missing.empty()) {
    GTEST_SKIP() << missing;
  }
  PlayAll({collectives::LinkChoice::kRdma}, 4, 21);
}

INSTANTIATE_TEST_SUITE_P(Faults, AnyRank,
                         ::testing::Values(Fault::kKill, Fault::kStop, Fault::kLeave));

}  // namespace
}  // namespace tandem
