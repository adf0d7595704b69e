// The coordinator: ranks meet, a failure gets one name on all of them and the right one, survivors
// go on. First its decisions alone, event by event; then with processes that are killed, stopped,
// or leave, at every stage.
#include "base/clock.h"
#include "collectives/rendezvous/coordinator.h"

#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/random.h"
#include "collectives/errors.h"
#include "collectives/group.h"
#include "collectives/links/tcp_socket.h"
#include "collectives/rendezvous/connect_links.h"
#include "collectives/rendezvous/coordinator_client.h"
#include "collectives/rendezvous/coordinator_core.h"
#include "collectives/rendezvous/message_stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"
#include "tests/unit/transport/scarce_system.h"
#include "tests/unit/transport/transport_links.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- Decisions --------------------------------------------------------------

// Drives the core with a clock of its own; ranks are named by their connections.
class CoreTest : public ::testing::Test {
 protected:
  static constexpr absl::Duration kBeat = absl::Seconds(1);

  void Connect(collectives::ConnectionId id) { core_.OnConnect(id, now_); }
  void Say(collectives::ConnectionId id, const rendezvous::ToCoordinator& message) {
    core_.OnMessage(id, message, now_, &effects_);
    Collect();
  }
  void Join(collectives::ConnectionId id, int rank, int ranks, const std::string& host = "h",
            int64_t deadline_ms = 60'000) {
    Connect(id);
    rendezvous::ToCoordinator message;
    message.mutable_join()->set_version(collectives::CoordinatorCore::kVersion);
    message.mutable_join()->set_group("g");
    message.mutable_join()->set_rank(rank);
    message.mutable_join()->set_ranks(ranks);
    message.mutable_join()->set_deadline_ms(deadline_ms);
    message.mutable_join()->mutable_member()->set_host(host);
    message.mutable_join()->mutable_member()->set_about(absl::StrCat("process ", id));
    Say(id, message);
  }
  // Connections 10, 11, ... as ranks 0, 1, ...
  void Meet(int ranks) {
    for (int r = 0; r < ranks; ++r) Join(10 + static_cast<collectives::ConnectionId>(r), r, ranks);
    told_.clear();
  }
  void Accuse(collectives::ConnectionId by, int rank, const std::string& why) {
    rendezvous::ToCoordinator message;
    message.mutable_accusation()->set_rank(rank);
    message.mutable_accusation()->set_why(why);
    Say(by, message);
  }
  void Abort(collectives::ConnectionId by, const std::string& why) {
    rendezvous::ToCoordinator message;
    message.mutable_abort()->set_why(why);
    Say(by, message);
  }
  void Goodbye(collectives::ConnectionId id) {
    rendezvous::ToCoordinator message;
    message.mutable_goodbye();
    Say(id, message);
  }
  void Close(collectives::ConnectionId id) {
    core_.OnClose(id, "", &effects_);
    Collect();
  }
  // Time passes in ticks; `beating` show that they live.
  void Pass(absl::Duration time, const std::vector<collectives::ConnectionId>& beating) {
    rendezvous::ToCoordinator beat;
    beat.mutable_beat();
    for (const absl::Time end = now_ + time; now_ < end;) {
      now_ += kBeat / 4;
      for (const collectives::ConnectionId id : beating) Say(id, beat);
      core_.OnTick(now_, &effects_);
      Collect();
    }
  }
  // What a connection was told since the last question, but beats: "lost 1: why", ...
  std::vector<std::string> Told(collectives::ConnectionId id) {
    return std::exchange(told_[id], {});
  }

  void Collect() {
    for (const collectives::CoordinatorEffects::Send& send : effects_.sends) {
      const std::string text = Describe(send.message);
      if (!text.empty()) told_[send.to].push_back(text);
      if (send.message.has_welcome()) welcome_[send.to] = send.message.welcome();
    }
    closed_.insert(closed_.end(), effects_.closes.begin(), effects_.closes.end());
    log_.insert(log_.end(), effects_.log.begin(), effects_.log.end());
    effects_ = {};
  }
  static std::string Describe(const rendezvous::FromCoordinator& message) {
    if (message.has_welcome()) {
      return absl::StrCat("welcome ", message.welcome().rank(), " of ",
                          message.welcome().members_size());
    }
    if (message.has_refusal()) return absl::StrCat("refused: ", message.refusal().why());
    if (!message.has_verdict()) return "";
    const rendezvous::Verdict& v = message.verdict();
    return absl::StrCat(v.kind() == rendezvous::Verdict::LOST ? "lost " : "aborted ", v.rank(),
                        ": ", v.why());
  }

  collectives::CoordinatorCore core_{collectives::CoordinatorCoreOptions{.beat = kBeat, .seed = 7}};
  collectives::CoordinatorEffects effects_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  std::map<collectives::ConnectionId, std::vector<std::string>> told_;
  std::map<collectives::ConnectionId, rendezvous::Welcome> welcome_;
  std::vector<collectives::ConnectionId> closed_;
  std::vector<std::string> log_;
};

constexpr char kKilled[] = "killed: its connection closed without goodbye";

TEST_F(CoreTest, RanksMeetAndGetOneTable) {
  Join(5, 1, 2, "host a");
  EXPECT_THAT(Told(5), IsEmpty());
  Join(6, 0, 2, "host b");
  EXPECT_THAT(Told(5), ElementsAre("welcome 1 of 2"));
  EXPECT_THAT(Told(6), ElementsAre("welcome 0 of 2"));
  EXPECT_EQ(welcome_[5].members(0).host(), "host b");
  EXPECT_EQ(welcome_[5].members(1).host(), "host a");
  EXPECT_EQ(welcome_[5].token(), welcome_[6].token());
  EXPECT_EQ(welcome_[5].token().size(), 16u);
}

TEST_F(CoreTest, AnyRanksAreGivenHostByHostAroundThoseAskedFor) {
  Join(1, -1, 5, "a");
  Join(2, -1, 5, "b");
  Join(3, 1, 5, "b");
  Join(4, -1, 5, "a");
  Join(5, -1, 5, "b");
  EXPECT_EQ(welcome_[3].rank(), 1);
  EXPECT_EQ(welcome_[1].rank(), 0);
  EXPECT_EQ(welcome_[4].rank(), 2);
  EXPECT_EQ(welcome_[2].rank(), 3);
  EXPECT_EQ(welcome_[5].rank(), 4);
}

TEST_F(CoreTest, TwoGroupsOfOneNameHaveTokensOfTheirOwn) {
  Meet(2);
  Join(20, 0, 2);
  Join(21, 1, 2);
  EXPECT_THAT(Told(20), ElementsAre("welcome 0 of 2"));
  EXPECT_NE(welcome_[10].token(), welcome_[20].token());
  EXPECT_EQ(core_.groups(), 2u);
}

TEST_F(CoreTest, JoinsThatDoNotFitAreRefusedAndTheOthersMeet) {
  Join(1, 0, 3);
  Join(2, 0, 3);
  EXPECT_THAT(Told(2),
              ElementsAre("refused: asks for rank 0 of group 'g', which is taken by process 1"));
  Join(3, 1, 2);
  EXPECT_THAT(Told(3),
              ElementsAre("refused: asks for 2 ranks in group 'g', the other members for 3"));
  Join(4, 3, 3);
  EXPECT_THAT(Told(4), ElementsAre("refused: asks for rank 3 of 3, which is invalid"));
  Join(5, 1, 3, std::string(10'000, 'x'));
  EXPECT_THAT(Told(5), ElementsAre("refused: sent a name of 10000 bytes, at most 512 are allowed"));
  Join(6, 1, 1 << 30);
  EXPECT_THAT(Told(6), ElementsAre("refused: asks for rank 1 of 1073741824, which is invalid"));
  Connect(7);
  rendezvous::ToCoordinator old;
  old.mutable_join()->set_version(99);
  Say(7, old);
  EXPECT_THAT(Told(7), ElementsAre("refused: uses protocol version 99, expected 1"));
  Connect(8);
  Abort(8, "I am nobody");
  EXPECT_THAT(Told(8), ElementsAre("refused: its first message was not a join"));
  EXPECT_THAT(closed_, ElementsAre(2, 3, 4, 5, 6, 7, 8));
  Join(9, 1, 3);
  Join(10, 2, 3);
  EXPECT_THAT(Told(1), ElementsAre("welcome 0 of 3"));
}

TEST_F(CoreTest, AConnectionThatSaysNothingIsClosed) {
  Connect(1);
  Pass(absl::Seconds(11), {});
  EXPECT_THAT(Told(1), ElementsAre("refused: did not join in time"));
}

TEST_F(CoreTest, StrangersDoNotFillTheLog) {
  for (collectives::ConnectionId id = 1; id <= 500; ++id) {
    Connect(id);
    Close(id);
  }
  EXPECT_EQ(log_.size(), 100u);
  EXPECT_THAT(log_.back(), HasSubstr("closed; more connections like this are not logged"));
  Meet(2);
  EXPECT_THAT(log_.back(), HasSubstr("group 'g' of 2 begins"));
}

TEST_F(CoreTest, ARendezvousThatIsLateNamesWhoIsMissing) {
  Join(1, 0, 4, "h", 2000);
  Join(2, 2, 4);
  Pass(absl::Seconds(3), {1, 2});
  const std::string why = "refused: group 'g': ranks 1, 3 of 4 have not come in time";
  EXPECT_THAT(Told(1), ElementsAre(why));
  EXPECT_THAT(Told(2), ElementsAre(why));
  EXPECT_EQ(core_.groups(), 0u);
}

TEST_F(CoreTest, ARankKilledWhileOthersWaitEndsTheRendezvousForAll) {
  Join(1, 0, 3);
  Join(2, 1, 3);
  Close(2);
  const std::string why = absl::StrCat("lost 1: ", kKilled, " (process 2)");
  EXPECT_THAT(Told(1), ElementsAre(why));
  Join(3, 2, 3);  // comes late and is told, and does not wait
  EXPECT_THAT(Told(3), ElementsAre(why));
  for (int r = 0; r < 3; ++r)
    Join(10 + static_cast<collectives::ConnectionId>(r), r, 3);  // started again
  EXPECT_THAT(Told(10), ElementsAre("welcome 0 of 3"));
}

TEST_F(CoreTest, ARankStoppedWhileOthersWaitEndsTheRendezvousForAll) {
  Join(1, 0, 3);
  Join(2, 1, 3);
  Pass(absl::Seconds(4), {1});
  EXPECT_THAT(Told(1), ElementsAre(HasSubstr("lost 1: stopped answering")));
}

TEST_F(CoreTest, AKilledRankIsNamedAtOnceToAllAndOnce) {
  Meet(3);
  Close(11);
  EXPECT_THAT(Told(10), ElementsAre(absl::StrCat("lost 1: ", kKilled)));
  EXPECT_THAT(Told(12), ElementsAre(absl::StrCat("lost 1: ", kKilled)));
  Accuse(10, 1, "link failed");
  Close(12);
  Pass(absl::Seconds(10), {10});
  EXPECT_THAT(Told(10), IsEmpty());
}

TEST_F(CoreTest, ASilentRankIsLostAfterThreeBeats) {
  Meet(3);
  Pass(absl::Milliseconds(2900), {10, 12});
  EXPECT_THAT(Told(10), IsEmpty());
  Pass(absl::Milliseconds(600), {10, 12});
  EXPECT_THAT(Told(10), ElementsAre(HasSubstr("lost 1: stopped answering")));
  EXPECT_THAT(Told(12), ElementsAre(HasSubstr("lost 1: stopped answering")));
}

TEST_F(CoreTest, APauseOfTheCoordinatorBlamesNobody) {
  Meet(2);
  Pass(absl::Seconds(1), {10, 11});
  now_ += absl::Minutes(5);
  Pass(absl::Milliseconds(500), {});
  EXPECT_THAT(Told(10), IsEmpty());
  Pass(absl::Seconds(5), {10});
  EXPECT_THAT(Told(10), ElementsAre(HasSubstr("lost 1: stopped answering")));
}

// Rank 2 is killed. Rank 1 sees its link end and gives up; rank 0 sees rank 1's end. Their words
// come before the news of rank 2.
TEST_F(CoreTest, TheTrueCauseIsWaitedFor) {
  Meet(3);
  Accuse(11, 2, "connection reset");
  Accuse(10, 1, "connection closed");
  Pass(absl::Milliseconds(500), {10, 11});
  EXPECT_THAT(Told(10), IsEmpty());
  Close(12);
  EXPECT_THAT(Told(10), ElementsAre(absl::StrCat("lost 2: ", kKilled)));
  EXPECT_THAT(Told(11), ElementsAre(absl::StrCat("lost 2: ", kKilled)));
}

// Rank 2 is stopped; rank 1 gives up on it and its process ends in an error.
TEST_F(CoreTest, ARankThatEndsBecauseItGaveUpIsNotTheCause) {
  Meet(4);
  Accuse(11, 2, "waited in vain");
  Close(11);
  Accuse(10, 1, "connection reset");
  Pass(absl::Seconds(5), {10, 13});
  EXPECT_THAT(Told(10), ElementsAre(HasSubstr("lost 2: stopped answering")));
}

// All live and beat; a chain of waits ends at rank 3, who accuses nobody.
TEST_F(CoreTest, BlameFallsOnTheRankThatAccusesNobody) {
  Meet(4);
  Accuse(10, 1, "waited in vain");
  Accuse(11, 2, "waited in vain");
  Accuse(12, 3, "waited 30s for it");
  Pass(absl::Seconds(5), {10, 11, 12, 13});
  EXPECT_THAT(Told(13), ElementsAre("lost 3: rank 2 says: waited 30s for it"));
}

TEST_F(CoreTest, TheMostAccusedIsBlamed) {
  Meet(5);
  Accuse(10, 3, "a");
  Accuse(11, 4, "b");
  Accuse(12, 4, "c");
  Pass(absl::Seconds(5), {10, 11, 12, 13, 14});
  EXPECT_THAT(Told(10), ElementsAre("lost 4: rank 1 says: b"));
}

TEST_F(CoreTest, ARankThatLeftInOrderIsNamedWhenItIsWanted) {
  Meet(3);
  Goodbye(11);
  EXPECT_THAT(Told(10), IsEmpty());  // that alone is no failure
  Accuse(10, 1, "connection closed");
  EXPECT_THAT(Told(10), ElementsAre("lost 1: left in order"));
  EXPECT_THAT(Told(12), ElementsAre("lost 1: left in order"));
}

// Somebody who only waits says so: that names who has left, and nobody else.
TEST_F(CoreTest, ARankThatLeftIsNamedToThoseWhoWaitForIt) {
  Meet(3);
  rendezvous::ToCoordinator want;
  want.mutable_want()->set_rank(1);
  Say(10, want);
  EXPECT_THAT(Told(10), IsEmpty());
  Goodbye(11);
  Say(10, want);
  EXPECT_THAT(Told(10), ElementsAre("lost 1: left in order"));
  EXPECT_THAT(Told(12), ElementsAre("lost 1: left in order"));
}

TEST_F(CoreTest, TheWishMayComeBeforeTheGoodbye) {
  Meet(3);
  Accuse(10, 1, "connection closed");
  Goodbye(11);
  EXPECT_THAT(Told(12), ElementsAre("lost 1: left in order"));
}

TEST_F(CoreTest, WhenAllLeaveInOrderNothingHasFailedAndNothingIsKept) {
  Meet(3);
  for (const collectives::ConnectionId id : {11, 10, 12}) Goodbye(id);
  Pass(absl::Seconds(1), {});
  for (const collectives::ConnectionId id : {11, 10, 12}) EXPECT_THAT(Told(id), IsEmpty());
  EXPECT_EQ(core_.groups(), 0u);
}

TEST_F(CoreTest, AnAbortNamesWhoAndWhyAtOnce) {
  Meet(3);
  Abort(11, "ranks disagree");
  for (const collectives::ConnectionId id : {10, 11, 12}) {
    EXPECT_THAT(Told(id), ElementsAre("aborted 1: ranks disagree"));
  }
}

// A part of a UTF-8 character would make the message invalid. Here the character that begins at
// byte 511 does not fit.
TEST_F(CoreTest, LongTextsAreCutBetweenCharacters) {
  const auto accents = [](size_t count) {
    return absl::StrJoin(std::vector<std::string>(count, "\xc3\xa9"), "");
  };
  rendezvous::ToCoordinator join;
  join.mutable_join()->set_version(collectives::CoordinatorCore::kVersion);
  join.mutable_join()->set_group(absl::StrCat("g", accents(250)));
  join.mutable_join()->set_ranks(2);
  join.mutable_join()->set_deadline_ms(60'000);
  for (const collectives::ConnectionId id : {1, 2}) {
    Connect(id);
    Say(id, join);
  }
  EXPECT_THAT(Told(2), ElementsAre(absl::StrCat("refused: asks for rank 0 of group 'g",
                                                accents((511 - 27) / 2))));
  Meet(3);
  Abort(11, absl::StrCat("x", accents(300)));
  EXPECT_THAT(Told(10), ElementsAre(absl::StrCat("aborted 1: x", accents((511 - 1) / 2))));
}

TEST_F(CoreTest, NonsenseFromAMemberCostsItTheGroup) {
  Meet(3);
  Accuse(11, 17, "who?");
  EXPECT_THAT(Told(10), ElementsAre("lost 1: it accused rank 17 of 3"));
  EXPECT_THAT(closed_, ElementsAre(11));
}

// Whatever happens in whatever order: each member gets at most one verdict a group, the first one,
// and all of a group the same; and nothing is kept once all are gone.
TEST_F(CoreTest, AnyOrderOfEventsGivesOneVerdict) {
  SCOPED_TRACE(absl::StrCat("rerun with --seed=", TestSeed()));
  Random random(TestSeed());
  for (int run = 0; run < 300; ++run) {
    const collectives::ConnectionId first = 100 + 10 * static_cast<collectives::ConnectionId>(run);
    for (int r = 0; r < 5; ++r) Join(first + static_cast<collectives::ConnectionId>(r), r, 5);
    told_.clear();
    std::vector<collectives::ConnectionId> living;
    for (collectives::ConnectionId id = first; id < first + 5; ++id) living.push_back(id);
    for (int event = 0; event < 12 && !living.empty(); ++event) {
      const size_t who = random.Uniform(living.size());
      const collectives::ConnectionId id = living[who];
      const int other = static_cast<int>((id - first + 1 + random.Uniform(4)) % 5);
      switch (random.Uniform(5)) {
        case 0:
          Close(id);
          living.erase(living.begin() + static_cast<int64_t>(who));
          break;
        case 1:
          Goodbye(id);
          living.erase(living.begin() + static_cast<int64_t>(who));
          break;
        case 2:
          Accuse(id, other, "in vain");
          break;
        case 3:
          Abort(id, "no more");
          break;
        default:
          Pass(absl::Seconds(random.Uniform(3)), living);
      }
    }
    Pass(absl::Seconds(5), living);
    std::string verdict;
    for (const auto& [id, texts] : told_) {
      ASSERT_LE(texts.size(), 1u) << absl::StrJoin(texts, "; ");
      if (verdict.empty()) verdict = texts.empty() ? "" : texts[0];
      for (const std::string& text : texts) EXPECT_EQ(text, verdict);
    }
    for (const collectives::ConnectionId id : living) Close(id);
    Pass(absl::Seconds(1), {});
    ASSERT_EQ(core_.groups(), 0u);
  }
}

// ---- Processes --------------------------------------------------------------

constexpr absl::Duration kTestBeat = absl::Milliseconds(200);
constexpr absl::Duration kLong = absl::Seconds(60);  // far more than anything here takes
constexpr int kRanks = 4;

enum class Stage { kConnecting, kOperating };
enum class End { kKill, kStop, kExit };

struct Fate {
  Stage stage = Stage::kOperating;
  End end = End::kKill;
  int victim = 0;
};

// The processes of a group, forked before this one has threads; each gets the coordinator's address
// through a pipe and says how it went in one line.
class Ranks {
 public:
  using Main = std::function<std::string(int rank, const std::string& coordinator)>;
  explicit Ranks(const Main& main, int ranks = kRanks) {
    for (int rank = 0; rank < ranks; ++rank) Fork(rank, main);
  }
  ~Ranks() {
    for (const Child& child : children_) {
      kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
    }
  }
  void Begin(const std::string& coordinator) { Begin(coordinator, 0, children_.size()); }
  void Begin(const std::string& coordinator, size_t first, size_t last) {
    const std::string line = coordinator + "\n";
    for (size_t i = first; i < last; ++i) {
      TANDEM_CHECK(write(children_[i].in.get(), line.data(), line.size()) ==
                   static_cast<ssize_t>(line.size()));
    }
  }
  pid_t pid(int rank) const { return children_[static_cast<size_t>(rank)].pid; }
  // The line of a rank; "" if it ended without, "?" if it says nothing for very long.
  std::string Line(int rank) { return ReadLine(children_[static_cast<size_t>(rank)].out.get()); }

 private:
  struct Child {
    pid_t pid = 0;
    OwnedFd in, out;
  };
  static std::string ReadLine(int fd) {
    std::string line;
    for (;;) {
      pollfd waiting = {fd, POLLIN, 0};
      if (poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(kLong))) <= 0) return "?";
      char c;
      if (read(fd, &c, 1) != 1 || c == '\n') return line;
      line.push_back(c);
    }
  }
  void Fork(int rank, const Main& main) {
    int in[2], out[2];
    TANDEM_CHECK(pipe(in) == 0 && pipe(out) == 0);
    const pid_t pid = fork();
    TANDEM_CHECK(pid >= 0);
    if (pid == 0) {
      children_.clear();  // nobody is kept alive by our copies of descriptors
      close(in[1]);
      close(out[0]);
      const std::string line = main(rank, ReadLine(in[0])) + "\n";
      _exit(write(out[1], line.data(), line.size()) == static_cast<ssize_t>(line.size()) ? 0 : 1);
    }
    close(in[0]);
    close(out[1]);
    children_.push_back({pid, OwnedFd(in[1]), OwnedFd(out[0])});
  }
  std::vector<Child> children_;
};

struct Ready {
  collectives::LinkPorts ports;
  std::unique_ptr<collectives::CoordinatorClient> client;
};

absl::StatusOr<Ready> Meet(int rank, int ranks, const std::string& coordinator,
                           collectives::LinkChoice choice = collectives::LinkChoice::kAuto) {
  Ready ready;
  auto ports = collectives::LinkPorts::Open("127.0.0.1", choice);
  if (!ports.ok()) return ports.status();
  ready.ports = *std::move(ports);
  collectives::JoinOptions options;
  options.coordinator = coordinator;
  options.rank = rank;
  options.ranks = ranks;
  options.member = ready.ports.member();
  auto client = collectives::CoordinatorClient::Join(options, MonotonicNow() + kLong);
  if (!client.ok()) return client.status();
  ready.client = *std::move(client);
  return ready;
}

absl::StatusOr<std::unique_ptr<collectives::Group>> JoinGroup(Ready& ready,
                                                              collectives::LinkChoice choice) {
  const collectives::GroupMembership members = ready.client->membership();
  collectives::ConnectOptions options;
  options.links = choice;
  options.watch = ready.client.get();
  auto links = collectives::ConnectLinks(members, ready.ports, options, MonotonicNow() + kLong);
  if (!links.ok()) return links.status();
  collectives::GroupOptions group;
  group.watch = ready.client.get();
  group.host_of_rank = members.HostOfRank();
  return std::make_unique<collectives::Group>(members.rank, *std::move(links), group);
}

absl::StatusOr<float> Sum(collectives::Group& group, int count, float mine) {
  std::vector<float> data(static_cast<size_t>(count), mine);
  const absl::Status status = group.Wait(group.AllReduce(
      data.data(), data.data(), count, collectives::DataType::kF32, collectives::ReduceOp::kSum));
  if (!status.ok()) return status;
  for (const float value : data) {
    if (value != data[0]) return absl::InternalError("not all equal");
  }
  return data[0];
}

void MeetTheEnd(End end) {
  if (end == End::kKill) raise(SIGKILL);
  if (end == End::kStop) raise(SIGSTOP);
}

// A rank that computes until something fails. Its line has the rank that it names, and why.
std::string Survive(const Fate& fate, collectives::LinkChoice choice, int rank,
                    const std::string& coordinator) {
  const bool victim = rank == fate.victim;
  auto ready = Meet(rank, kRanks, coordinator, choice);
  if (!ready.ok()) return absl::StrCat("did not meet: ", ready.status().ToString());
  if (victim && fate.stage == Stage::kConnecting) {
    MeetTheEnd(fate.end);
    return "left";
  }
  absl::Status failed;
  {
    auto group = JoinGroup(*ready, choice);
    failed = group.status();
    for (int i = 0; failed.ok(); ++i) {
      if (victim && i == 5) {
        MeetTheEnd(fate.end);
        return "left";
      }
      failed = Sum(**group, i % 2 == 0 ? 3 : 100'000, 1).status();
    }
  }
  const absl::optional<int> lost = collectives::LostPeer(failed);
  if (!lost.has_value()) return absl::StrCat("names nobody: ", failed.ToString());
  return absl::StrCat("lost ", *lost, ", ", failed.message());
}

class FateTest : public ::testing::TestWithParam<std::tuple<Stage, End, collectives::LinkChoice>> {
 protected:
  void SetUp() override {
    const std::string missing = MissingInChildren(std::get<2>(GetParam()));
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

std::string FateName(
    const ::testing::TestParamInfo<std::tuple<Stage, End, collectives::LinkChoice>>& fate) {
  const char* const stages[] = {"Connecting", "Operating"};
  const char* const ends[] = {"Kill", "Stop", "Exit"};
  const char* const links[] = {"Auto", "Tcp", "Shm", "Rdma", "Zmq"};
  return absl::StrCat(stages[static_cast<int>(std::get<0>(fate.param))],
                      ends[static_cast<int>(std::get<1>(fate.param))],
                      links[static_cast<int>(std::get<2>(fate.param))]);
}

INSTANTIATE_TEST_SUITE_P(All, FateTest,
                         ::testing::Combine(::testing::Values(Stage::kConnecting,
                                                              Stage::kOperating),
                                            ::testing::Values(End::kKill, End::kStop, End::kExit),
                                            ::testing::Values(collectives::LinkChoice::kAuto,
                                                              collectives::LinkChoice::kTcp,
                                                              collectives::LinkChoice::kRdma,
                                                              collectives::LinkChoice::kZmq)),
                         FateName);

// Every other rank names the victim and says how it ended.
TEST_P(FateTest, SurvivorsNameTheVictim) {
  const auto [stage, end, choice] = GetParam();
  for (int victim = 0; victim < kRanks; ++victim) {
    const Fate fate = {stage, end, victim};
    const collectives::LinkChoice links = choice;
    Ranks ranks([&](int rank, const std::string& coordinator) {
      return Survive(fate, links, rank, coordinator);
    });
    auto coordinator = collectives::Coordinator::Start({.beat = kTestBeat, .log = nullptr});
    ASSERT_TRUE(coordinator.ok()) << coordinator.status();
    ranks.Begin((*coordinator)->address());
    const char* const how[] = {"killed", "stopped answering", "left in order"};
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      const std::string line = ranks.Line(rank);
      EXPECT_THAT(line, HasSubstr(absl::StrCat("lost ", victim, ", "))) << "rank " << rank;
      EXPECT_THAT(line, HasSubstr(how[static_cast<int>(end)])) << "rank " << rank;
    }
  }
}

// Rank 3 never comes. The others wait for it together when one of them is killed or stopped.
TEST(RendezvousTest, ARankThatDiesWhileOthersWaitIsNamed) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    Ranks ranks(
        [](int rank, const std::string& coordinator) {
          return Meet(rank, kRanks, coordinator).status().ToString();
        },
        kRanks - 1);
    absl::Mutex mu;
    int came = 0;
    auto coordinator =
        collectives::Coordinator::Start({.beat = kTestBeat, .log = [&](absl::string_view line) {
                                           absl::MutexLock lock(&mu);
                                           came += absl::StrContains(line, "joins as rank");
                                         }});
    ASSERT_TRUE(coordinator.ok()) << coordinator.status();
    ranks.Begin((*coordinator)->address());
    const auto all_wait = [&] { return came == kRanks - 1; };
    {
      absl::MutexLock lock(&mu);
      ASSERT_TRUE(mu.AwaitWithTimeout(absl::Condition(&all_wait), kLong));
    }
    kill(ranks.pid(1), signal);
    for (const int rank : {0, 2}) {
      EXPECT_THAT(ranks.Line(rank), HasSubstr("rank 1 is lost: ")) << "signal " << signal;
    }
  }
}

// Ranks disagree about what they do: both names are in the answer of all.
TEST(AgreementTest, AMismatchIsTheSameErrorOnAllRanks) {
  Ranks ranks([](int rank, const std::string& coordinator) -> std::string {
    auto ready = Meet(rank, kRanks, coordinator);
    if (!ready.ok()) return ready.status().ToString();
    auto group = JoinGroup(*ready, collectives::LinkChoice::kAuto);
    if (!group.ok()) return group.status().ToString();
    return Sum(**group, rank == 2 ? 11 : 10, 1).status().ToString();
  });
  auto coordinator = collectives::Coordinator::Start({.beat = kTestBeat, .log = nullptr});
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  ranks.Begin((*coordinator)->address());
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string line = ranks.Line(rank);
    EXPECT_THAT(line, HasSubstr("INVALID_ARGUMENT"));
    EXPECT_THAT(line, HasSubstr("ranks disagree"));
    EXPECT_THAT(line, HasSubstr("rank 2"));
  }
}

// The coordinator lives in rank 0 and goes with it.
TEST(AgreementTest, ACoordinatorThatDiesInARankNamesThatRank) {
  for (const End end : {End::kKill, End::kStop}) {
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    OwnedFd address_in(pipe_ends[0]), address_out(pipe_ends[1]);
    Ranks ranks(
        [&](int rank, std::string address) -> std::string {
          absl::StatusOr<std::unique_ptr<collectives::Coordinator>> coordinator =
              absl::UnknownError("");
          if (rank == 0) {
            coordinator =
                collectives::Coordinator::Start({.beat = kTestBeat, .own_rank = 0, .log = nullptr});
            if (!coordinator.ok()) return coordinator.status().ToString();
            address = (*coordinator)->address();
            TANDEM_CHECK(write(address_out.get(), address.data(), address.size()) > 0);
          }
          auto ready = Meet(rank, 3, address);
          if (!ready.ok()) return ready.status().ToString();
          auto group = JoinGroup(*ready, collectives::LinkChoice::kAuto);
          absl::Status failed = group.status();
          for (int i = 0; failed.ok(); ++i) {
            if (rank == 0 && i == 5) MeetTheEnd(end);
            failed = Sum(**group, 100, 1).status();
          }
          return failed.ToString();
        },
        3);
    // Rank 0 begins, and says where the others find it.
    ranks.Begin("unknown yet", 0, 1);
    std::string address(100, '\0');
    const ssize_t n = read(address_in.get(), address.data(), address.size());
    ASSERT_GT(n, 0);
    ranks.Begin(address.substr(0, static_cast<size_t>(n)), 1, 3);
    for (const int rank : {1, 2}) {
      EXPECT_THAT(ranks.Line(rank),
                  HasSubstr("rank 0 is lost: its process ran the coordinator, which is gone"));
    }
  }
}

// What connects and does not speak the protocol is named in the log, and the others meet.
TEST(StrangerTest, GarbageIsRefusedAndOthersGoOn) {
  absl::Mutex mu;
  std::vector<std::string> log;
  const auto keep = [&](absl::string_view line) {
    absl::MutexLock lock(&mu);
    log.emplace_back(line);
  };
  auto coordinator = collectives::Coordinator::Start({.beat = kTestBeat, .log = keep});
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  const std::string address = (*coordinator)->address();
  Random random(TestSeed());
  std::vector<OwnedFd> strangers;
  for (int i = 0; i < 50; ++i) {
    auto socket = collectives::ConnectTcpBy(address, MonotonicNow() + kLong);
    ASSERT_TRUE(socket.ok()) << socket.status();
    std::string garbage = i == 0 ? "GET / HTTP/1.1\r\n\r\n" : std::string(random.Uniform(100), 0);
    for (size_t b = 0; i > 0 && b < garbage.size(); ++b) {
      garbage[b] = static_cast<char>(random.Next64());
    }
    (void)!send(socket->get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    if (i % 2 == 0) strangers.push_back(*std::move(socket));
  }
  std::thread other([&] {
    auto ready = Meet(1, 2, address);
    EXPECT_TRUE(ready.ok()) << ready.status();
  });
  auto ready = Meet(0, 2, address);
  EXPECT_TRUE(ready.ok()) << ready.status();
  other.join();
  const auto named = [&] {
    const auto tells = [](const std::string& s) {
      return absl::StrContains(s, "it sent a message of");
    };
    return std::any_of(log.begin(), log.end(), tells);
  };
  absl::MutexLock lock(&mu);
  EXPECT_TRUE(mu.AwaitWithTimeout(absl::Condition(&named), kLong));
}

TEST(StrangerTest, NewcomersWaitUntilThereIsAFile) {
  absl::Mutex mu;
  std::vector<std::string> log;
  const auto keep = [&](absl::string_view line) {
    absl::MutexLock lock(&mu);
    log.emplace_back(line);
  };
  auto coordinator = collectives::Coordinator::Start({.beat = kTestBeat, .log = keep});
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  const std::string& address = (*coordinator)->address();
  const OwnedFd stranger(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  const auto waits = [&] { return !log.empty(); };
  {
    const NoDescriptorsLeft none;
    ASSERT_EQ(connect(stranger.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    absl::MutexLock lock(&mu);
    EXPECT_TRUE(mu.AwaitWithTimeout(absl::Condition(&waits), kLong));
  }
  auto ready = Meet(0, 1, address);
  EXPECT_TRUE(ready.ok()) << ready.status();
  absl::MutexLock lock(&mu);
  const auto tells = [](const std::string& s) { return absl::StrContains(s, "newcomers wait: "); };
  EXPECT_EQ(std::count_if(log.begin(), log.end(), tells), 1);
}

// Strangers at the door of a rank: refused, named, and the links are made all the same.
TEST(StrangerTest, LinksOfOthersAreRefused) {
  collectives::GroupMembership members;
  members.token = "0123456789abcdef";
  std::vector<collectives::LinkPorts> ports;
  for (int rank = 0; rank < 2; ++rank) {
    auto open = collectives::LinkPorts::Open();
    ASSERT_TRUE(open.ok()) << open.status();
    ports.push_back(*std::move(open));
    members.members.push_back(ports.back().member());
  }
  const auto raw = [&](const std::string& bytes) {
    auto socket = collectives::ConnectTcpBy(ports[0].tcp().address(), MonotonicNow() + kLong);
    TANDEM_CHECK_OK(socket.status());
    TANDEM_CHECK(send(socket->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0);
    return *std::move(socket);
  };
  const auto hello = [](const std::string& token, int from, int to) {
    rendezvous::LinkHello message;
    message.set_token(token);
    message.set_from(from);
    message.set_to(to);
    const std::string bytes = message.SerializeAsString();
    return std::string{static_cast<char>(bytes.size()), 0, 0, 0} + bytes;
  };
  std::vector<OwnedFd> strangers;
  strangers.push_back(raw("GET / HTTP/1.1\r\n\r\n"));
  strangers.push_back(raw("\x02"));
  strangers.push_back(raw(hello("another token...", 1, 0)));
  strangers.push_back(raw(hello(members.token, 17, 0)));
  strangers.push_back(raw(hello(members.token, 0, 0)));
  auto local = transport::UnixLink::Connect(members.members[0].unix_name);
  ASSERT_TRUE(local.ok()) << local.status();
  ASSERT_TRUE(local->Send("nonsense").ok());

  std::vector<std::string> log;
  const auto connect = [&](int rank) {
    collectives::GroupMembership mine = members;
    mine.rank = rank;
    collectives::ConnectOptions options;
    if (rank == 0) options.log = [&](absl::string_view line) { log.emplace_back(line); };
    return collectives::ConnectLinks(mine, ports[static_cast<size_t>(rank)], options,
                                     MonotonicNow() + kLong);
  };
  std::thread other([&] { EXPECT_TRUE(connect(1).ok()); });
  const auto links = connect(0);
  other.join();
  ASSERT_TRUE(links.ok()) << links.status();
  EXPECT_EQ((*links)[1]->kind(), "shm");
  EXPECT_THAT(log, ::testing::Contains(HasSubstr("not of this group")));
  EXPECT_THAT(log, ::testing::Contains(HasSubstr("refused a connection")));
}

// Over ZeroMQ or RDMA: who greets with another token, or in the place of another rank, is refused
// and named, and the links are made all the same.
class FramedStrangerTest : public ::testing::TestWithParam<collectives::LinkChoice> {};

TEST_P(FramedStrangerTest, GreetingsOfOthersAreRefused) {
  collectives::GroupMembership members;
  members.token = "0123456789abcdef";
  std::vector<collectives::LinkPorts> ports;
  for (int i = 0; i < 3; ++i) {
    auto open = collectives::LinkPorts::Open("127.0.0.1", GetParam());
    if (!open.ok()) GTEST_SKIP() << open.status().message();
    ports.push_back(*std::move(open));
    if (i < 2) members.members.push_back(ports.back().member());
  }
  const auto hub = [&](size_t i) {
    return GetParam() == collectives::LinkChoice::kRdma ? ports[i].rdma() : ports[i].zmq();
  };
  std::vector<std::unique_ptr<collectives::TransportLink>> strangers;
  const auto greet = [&](const std::string& greeting) {
    auto link = hub(2)->Connect(hub(0)->address(), 1, greeting);
    TANDEM_CHECK_OK(link.status());
    strangers.push_back(*std::move(link));
  };
  const auto hello = [](const std::string& token, int from, int to) {
    rendezvous::LinkHello message;
    message.set_token(token);
    message.set_from(from);
    message.set_to(to);
    return message.SerializeAsString();
  };
  greet("\xff not a hello");
  greet(hello("another token...", 1, 0));
  greet(hello(members.token, 17, 0));
  std::vector<std::string> log;
  const auto connect = [&](int rank) {
    collectives::GroupMembership mine = members;
    mine.rank = rank;
    collectives::ConnectOptions options;
    options.links = GetParam();
    if (rank == 0) options.log = [&](absl::string_view line) { log.emplace_back(line); };
    return collectives::ConnectLinks(mine, ports[static_cast<size_t>(rank)], options,
                                     MonotonicNow() + kLong);
  };
  absl::StatusOr<std::vector<std::unique_ptr<collectives::Link>>> links[2];
  std::thread rank0([&] { links[0] = connect(0); });
  // The stranger comes first.
  const auto all_know = [&] {
    return std::all_of(strangers.begin(), strangers.end(),
                       [](const auto& link) { return link->answer().has_value(); });
  };
  for (const absl::Time limit = MonotonicNow() + kLong; !all_know() && MonotonicNow() < limit;) {
    (void)hub(2)->Poll();
  }
  links[1] = connect(1);
  rank0.join();
  for (const auto& made : links) ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*links[0])[1]->kind(), (*links[1])[0]->kind());
  EXPECT_THAT(
      log, ::testing::UnorderedElementsAre(HasSubstr("not a hello"), HasSubstr("not of this group"),
                                           HasSubstr("unexpected link")));
}

INSTANTIATE_TEST_SUITE_P(All, FramedStrangerTest,
                         ::testing::Values(collectives::LinkChoice::kZmq,
                                           collectives::LinkChoice::kRdma),
                         [](const auto& choice) {
                           return choice.param == collectives::LinkChoice::kZmq ? "Zmq" : "Rdma";
                         });

// Both sides of a pair in this process; the kinds of link they get.
std::pair<std::string, std::string> KindsOf(
    collectives::LinkChoice first, collectives::LinkChoice second,
    const std::function<void(collectives::GroupMembership*)>& change,
    const collectives::GroupSecurity& security = {}) {
  collectives::GroupMembership members;
  members.token = "0123456789abcdef";
  std::vector<collectives::LinkPorts> ports;
  for (const collectives::LinkChoice choice : {first, second}) {
    auto open = collectives::LinkPorts::Open("127.0.0.1", choice, security);
    TANDEM_CHECK_OK(open.status());
    ports.push_back(*std::move(open));
    members.members.push_back(ports.back().member());
  }
  change(&members);
  std::string kinds[2];
  const auto connect = [&](int rank, collectives::LinkChoice choice) {
    collectives::GroupMembership mine = members;
    mine.rank = rank;
    collectives::ConnectOptions options;
    options.links = choice;
    auto links = collectives::ConnectLinks(mine, ports[static_cast<size_t>(rank)], options,
                                           MonotonicNow() + kLong);
    kinds[rank] = links.ok() ? std::string((*links)[static_cast<size_t>(1 - rank)]->kind())
                             : std::string(links.status().message());
  };
  std::thread other([&] { connect(1, second); });
  connect(0, first);
  other.join();
  return {kinds[0], kinds[1]};
}

TEST(ConnectLinksTest, SharedMemoryOnOneHostTcpWhereThereIsNoRdma) {
  if (collectives::LinkPorts::Open("127.0.0.1", collectives::LinkChoice::kRdma).ok())
    GTEST_SKIP() << "there is a device";
  using Kinds = std::pair<std::string, std::string>;
  const auto as_is = [](collectives::GroupMembership*) {};
  const auto two_hosts = [](collectives::GroupMembership* m) { m->members[1].host = "elsewhere"; };
  const auto name_is_gone = [](collectives::GroupMembership* m) {
    m->members[0].unix_name = "nobody-has-this-name";
  };
  EXPECT_EQ(KindsOf(collectives::LinkChoice::kAuto, collectives::LinkChoice::kAuto, as_is),
            Kinds("shm", "shm"));
  EXPECT_EQ(KindsOf(collectives::LinkChoice::kShm, collectives::LinkChoice::kShm, as_is),
            Kinds("shm", "shm"));
  EXPECT_EQ(KindsOf(collectives::LinkChoice::kTcp, collectives::LinkChoice::kTcp, as_is),
            Kinds("tcp", "tcp"));
  EXPECT_EQ(KindsOf(collectives::LinkChoice::kAuto, collectives::LinkChoice::kAuto, two_hosts),
            Kinds("tcp", "tcp"));
  // One that cannot or will not: TCP for both.
  EXPECT_EQ(KindsOf(collectives::LinkChoice::kTcp, collectives::LinkChoice::kAuto, as_is),
            Kinds("tcp", "tcp"));
  EXPECT_EQ(KindsOf(collectives::LinkChoice::kAuto, collectives::LinkChoice::kAuto, name_is_gone),
            Kinds("tcp", "tcp"));
  EXPECT_THAT(
      KindsOf(collectives::LinkChoice::kShm, collectives::LinkChoice::kShm, two_hosts).first,
      HasSubstr("does not share memory"));
}

// A group whose processes have a token.
collectives::GroupSecurity NewSecurity(bool encrypted = false) {
  const std::string token = transport::JobKeys::NewToken();
  return {std::make_shared<transport::JobKeys>(*transport::JobKeys::FromToken(token)), encrypted};
}

TEST(ConnectLinksTest, LinksWithATokenAreProvenOrEncrypted) {
  using Kinds = std::pair<std::string, std::string>;
  const auto as_is = [](collectives::GroupMembership*) {};
  const auto two_hosts = [](collectives::GroupMembership* m) { m->members[1].host = "elsewhere"; };
  const auto automatic = collectives::LinkChoice::kAuto, tcp = collectives::LinkChoice::kTcp,
             zmq = collectives::LinkChoice::kZmq;
  EXPECT_EQ(KindsOf(tcp, tcp, as_is, NewSecurity()), Kinds("tcp", "tcp"));
  EXPECT_EQ(KindsOf(zmq, zmq, as_is, NewSecurity()), Kinds("zmq", "zmq"));
  EXPECT_EQ(KindsOf(automatic, automatic, as_is, NewSecurity(true)), Kinds("shm", "shm"));
  EXPECT_EQ(KindsOf(automatic, automatic, two_hosts, NewSecurity(true)), Kinds("zmq", "zmq"));
  for (const auto choice : {tcp, collectives::LinkChoice::kRdma}) {
    const absl::Status refused =
        collectives::LinkPorts::Open("127.0.0.1", choice, NewSecurity(true)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused));
    EXPECT_THAT(refused.message(), HasSubstr("cannot be encrypted; expected ZeroMQ, shared"));
  }
}

// The token of the group travels over the network in the clear.
TEST(ConnectLinksTest, TheTokenOfTheGroupIsNotEnough) {
  const collectives::GroupSecurity security = NewSecurity();
  auto ports = collectives::LinkPorts::Open("127.0.0.1", collectives::LinkChoice::kTcp, security);
  ASSERT_TRUE(ports.ok()) << ports.status();
  collectives::GroupMembership members;
  members.token = "0123456789abcdef";
  members.members = {ports->member(), collectives::GroupMember()};
  rendezvous::LinkHello hello;
  hello.set_token(members.token);
  hello.set_from(1);
  collectives::MessageStream stranger(
      *collectives::ConnectTcpBy(ports->tcp().address(), MonotonicNow() + kLong), 256);
  stranger.Send(hello);
  ASSERT_TRUE(stranger.Flush().ok());
  collectives::ConnectOptions options;
  options.links = collectives::LinkChoice::kTcp;
  std::vector<std::string> log;
  options.log = [&](absl::string_view line) { log.emplace_back(line); };
  options.interrupted = [&] {
    return log.empty() ? absl::OkStatus() : absl::CancelledError("refused");
  };
  const auto links = collectives::ConnectLinks(members, *ports, options, MonotonicNow() + kLong);
  EXPECT_TRUE(absl::IsCancelled(links.status())) << links.status();
  EXPECT_THAT(log, ::testing::ElementsAre(HasSubstr("refused a connection: has no token")));
}

TEST(CoordinatorTokenTest, OnlyProcessesWithTheTokenJoin) {
  const auto keys = NewSecurity().keys;
  absl::Mutex mu;
  std::vector<std::string> log;
  collectives::CoordinatorOptions listen;
  listen.keys = keys;
  listen.log = [&](absl::string_view line) {
    absl::MutexLock lock(&mu);
    log.emplace_back(line);
  };
  const auto coordinator = collectives::Coordinator::Start(listen);
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  const auto join = [&](const std::string& address,
                        const std::shared_ptr<const transport::JobKeys>& own) {
    collectives::JoinOptions options;
    options.coordinator = address;
    options.keys = own;
    return collectives::CoordinatorClient::Join(options, MonotonicNow() + kLong).status();
  };
  EXPECT_TRUE(join((*coordinator)->address(), keys).ok());
  EXPECT_THAT(join((*coordinator)->address(), nullptr).ToString(),
              HasSubstr("this process has no token; hint: give all processes the same"));
  EXPECT_THAT(join((*coordinator)->address(), NewSecurity().keys).ToString(),
              HasSubstr("UNAUTHENTICATED: the coordinator has another token; hint: give all"));
  {
    absl::MutexLock lock(&mu);
    EXPECT_THAT(log, ::testing::Contains(HasSubstr("ended before it joined: the peer has no")));
  }
  const auto open = collectives::Coordinator::Start();
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_THAT(join((*open)->address(), keys).ToString(),
              HasSubstr("the same TANDEM_TOKEN, or none"));
}

TEST(ConnectLinksTest, ZeroMqWhereItIsWanted) {
  using Kinds = std::pair<std::string, std::string>;
  const auto as_is = [](collectives::GroupMembership*) {};
  EXPECT_EQ(KindsOf(collectives::LinkChoice::kZmq, collectives::LinkChoice::kZmq, as_is),
            Kinds("zmq", "zmq"));
  const auto without = [](collectives::GroupMembership* m) {
    for (collectives::GroupMember& member : m->members) member.zmq_address.clear();
  };
  EXPECT_THAT(KindsOf(collectives::LinkChoice::kZmq, collectives::LinkChoice::kZmq, without).second,
              HasSubstr("no ZeroMQ endpoint"));
}

TEST(ConnectLinksTest, RdmaBetweenHostsWhereBothHaveIt) {
  if (const auto ports = collectives::LinkPorts::Open("127.0.0.1", collectives::LinkChoice::kRdma);
      !ports.ok()) {
    GTEST_SKIP() << ports.status().message();
  }
  using Kinds = std::pair<std::string, std::string>;
  const auto as_is = [](collectives::GroupMembership*) {};
  const auto two_hosts = [](collectives::GroupMembership* m) { m->members[1].host = "elsewhere"; };
  const auto one_without = [&](collectives::GroupMembership* m) {
    two_hosts(m);
    m->members[0].rdma_address.clear();
  };
  const auto not_reached = [&](collectives::GroupMembership* m) {
    two_hosts(m);
    m->members[0].rdma_address = "rdma://203.0.113.7:9";
  };
  EXPECT_EQ(KindsOf(collectives::LinkChoice::kAuto, collectives::LinkChoice::kAuto, as_is),
            Kinds("shm", "shm"));
  EXPECT_EQ(KindsOf(collectives::LinkChoice::kRdma, collectives::LinkChoice::kRdma, as_is),
            Kinds("rdma", "rdma"));
  EXPECT_EQ(KindsOf(collectives::LinkChoice::kAuto, collectives::LinkChoice::kAuto, two_hosts),
            Kinds("rdma", "rdma"));
  EXPECT_EQ(KindsOf(collectives::LinkChoice::kAuto, collectives::LinkChoice::kAuto, one_without),
            Kinds("tcp", "tcp"));
  EXPECT_EQ(KindsOf(collectives::LinkChoice::kAuto, collectives::LinkChoice::kAuto, not_reached),
            Kinds("tcp", "tcp"));
  const auto both_without = [](collectives::GroupMembership* m) {
    for (collectives::GroupMember& member : m->members) member.rdma_address.clear();
  };
  EXPECT_THAT(
      KindsOf(collectives::LinkChoice::kRdma, collectives::LinkChoice::kRdma, both_without).second,
      HasSubstr("no RDMA there"));
}

TEST(ConnectLinksTest, RanksThatDoNotComeAreNamedAtTheDeadline) {
  auto ports = collectives::LinkPorts::Open();
  ASSERT_TRUE(ports.ok());
  collectives::GroupMembership members;
  members.token = "0123456789abcdef";
  members.members.assign(3, ports->member());
  const auto links =
      collectives::ConnectLinks(members, *ports, {}, MonotonicNow() + absl::Milliseconds(50));
  EXPECT_EQ(links.status(),
            absl::DeadlineExceededError("rank 0 has no link to ranks 1, 2 in time"));
}

TEST(CoordinatorClientTest, WithoutACoordinatorTheDeadlineHolds) {
  collectives::JoinOptions options;
  options.coordinator = "127.0.0.1:1";
  const auto client =
      collectives::CoordinatorClient::Join(options, MonotonicNow() + absl::Milliseconds(50));
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable) << client.status();
}

// A coordinator that takes connections and never answers.
TEST(CoordinatorClientTest, ASilentCoordinatorDoesNotHoldAJoinBeyondItsDeadline) {
  auto listener = collectives::TcpListener::Bind("127.0.0.1:0");
  ASSERT_TRUE(listener.ok());
  collectives::JoinOptions options;
  options.coordinator = listener->address();
  const auto client =
      collectives::CoordinatorClient::Join(options, MonotonicNow() + absl::Milliseconds(50));
  EXPECT_EQ(client.status(), absl::DeadlineExceededError("the coordinator does not answer"));
}

TEST(CoordinatorClientTest, WhenTheCoordinatorEndsInOrderGroupsGoOnWithoutIt) {
  auto coordinator = collectives::Coordinator::Start({.beat = kTestBeat, .log = nullptr});
  ASSERT_TRUE(coordinator.ok());
  auto ready = Meet(0, 1, (*coordinator)->address());
  ASSERT_TRUE(ready.ok()) << ready.status();
  *coordinator = nullptr;
  EXPECT_TRUE(ready->client->WaitVerdict(MonotonicNow() + kTestBeat).ok());
  const absl::Status seen = collectives::PeerLostError(3, "connection reset");
  EXPECT_EQ(ready->client->Agree(seen), seen);
}

// ---- Rendezvous without judgement: groups of which somebody else says who is lost
// ------------------

TEST(MeetTest, AddressesAreExchangedAndNothingIsKept) {
  std::vector<std::string> lines;
  absl::Mutex mutex;
  const auto log = [&](absl::string_view line) {
    absl::MutexLock lock(&mutex);
    lines.emplace_back(line);
  };
  const auto coordinator = collectives::Coordinator::Start({.beat = kTestBeat, .log = log});
  ASSERT_TRUE(coordinator.ok());
  // Twice under one name: what is over stands in nobody's way.
  for (int round = 0; round < 2; ++round) {
    std::vector<absl::StatusOr<collectives::GroupMembership>> met(3, absl::UnknownError(""));
    std::vector<std::thread> ranks;
    for (int r = 0; r < 3; ++r) {
      ranks.emplace_back([&, r] {
        collectives::JoinOptions options;
        options.coordinator = (*coordinator)->address();
        options.rank = r;
        options.ranks = 3;
        options.member.tcp_address = absl::StrCat("address of ", r);
        met[static_cast<size_t>(r)] =
            collectives::CoordinatorClient::Meet(options, MonotonicNow() + kLong);
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (int r = 0; r < 3; ++r) {
      const absl::StatusOr<collectives::GroupMembership>& membership = met[static_cast<size_t>(r)];
      ASSERT_TRUE(membership.ok()) << membership.status();
      EXPECT_EQ(membership->rank, r);
      ASSERT_EQ(membership->ranks(), 3);
      EXPECT_EQ(membership->members[2].tcp_address, "address of 2");
      EXPECT_EQ(membership->token, met[0]->token);
    }
  }
  absl::SleepFor(4 * kTestBeat);  // longer than silence would take to show
  absl::MutexLock lock(&mutex);
  for (const std::string& line : lines) {
    EXPECT_FALSE(absl::StrContains(line, "lost") || absl::StrContains(line, "failed")) << line;
  }
}

TEST(MeetTest, WaitsEndWhenTheyAreInterrupted) {
  const auto coordinator = collectives::Coordinator::Start({.beat = kTestBeat, .log = nullptr});
  ASSERT_TRUE(coordinator.ok());
  const absl::Status over = absl::CancelledError("the job has failed");
  int asked = 0;
  collectives::JoinOptions options;
  options.coordinator = (*coordinator)->address();
  options.rank = 0;
  options.ranks = 2;
  options.interrupted = [&] { return ++asked < 3 ? absl::OkStatus() : over; };
  EXPECT_EQ(collectives::CoordinatorClient::Meet(options, absl::InfiniteFuture()).status(), over);

  auto ports = collectives::LinkPorts::Open();
  ASSERT_TRUE(ports.ok());
  collectives::GroupMembership members;
  members.token = "0123456789abcdef";
  members.members.assign(2, ports->member());
  asked = 0;
  collectives::ConnectOptions connect;
  connect.interrupted = options.interrupted;
  EXPECT_EQ(collectives::ConnectLinks(members, *ports, connect, absl::InfiniteFuture()).status(),
            over);
}

}  // namespace
}  // namespace tandem
