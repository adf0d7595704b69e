// The coordinator: ranks meet, a failure gets one name on all of them and the right one, survivors
// go on. First its decisions alone, event by event; then with processes that are killed, stopped,
// or leave, at every stage.
#include "collectives/coordinator.h"

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
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/random.h"
#include "collectives/connect_links.h"
#include "collectives/coordinator_client.h"
#include "collectives/coordinator_core.h"
#include "collectives/errors.h"
#include "collectives/group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"

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

  void Connect(ConnectionId id) { core_.OnConnect(id, now_); }
  void Say(ConnectionId id, const rendezvous::ToCoordinator& message) {
    core_.OnMessage(id, message, now_, &effects_);
    Collect();
  }
  void Join(ConnectionId id, int rank, int ranks, const std::string& host = "h",
            int64_t deadline_ms = 60'000) {
    Connect(id);
    rendezvous::ToCoordinator message;
    message.mutable_join()->set_version(CoordinatorCore::kVersion);
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
    for (int r = 0; r < ranks; ++r) Join(10 + static_cast<ConnectionId>(r), r, ranks);
    told_.clear();
  }
  void Accuse(ConnectionId by, int rank, const std::string& why) {
    rendezvous::ToCoordinator message;
    message.mutable_accusation()->set_rank(rank);
    message.mutable_accusation()->set_why(why);
    Say(by, message);
  }
  void Abort(ConnectionId by, const std::string& why) {
    rendezvous::ToCoordinator message;
    message.mutable_abort()->set_why(why);
    Say(by, message);
  }
  void Goodbye(ConnectionId id) {
    rendezvous::ToCoordinator message;
    message.mutable_goodbye();
    Say(id, message);
  }
  void Shrink(ConnectionId id, int64_t ms = 60'000) {
    rendezvous::ToCoordinator message;
    message.mutable_shrink()->set_deadline_ms(ms);
    Say(id, message);
  }
  void Close(ConnectionId id) {
    core_.OnClose(id, "", &effects_);
    Collect();
  }
  // Time passes in ticks; `beating` show that they live.
  void Pass(absl::Duration time, const std::vector<ConnectionId>& beating) {
    rendezvous::ToCoordinator beat;
    beat.mutable_beat();
    for (const absl::Time end = now_ + time; now_ < end;) {
      now_ += kBeat / 4;
      for (const ConnectionId id : beating) Say(id, beat);
      core_.OnTick(now_, &effects_);
      Collect();
    }
  }
  // What a connection was told since the last question, but beats: "lost 1: why", ...
  std::vector<std::string> Told(ConnectionId id) { return std::exchange(told_[id], {}); }

  void Collect() {
    for (const CoordinatorEffects::Send& send : effects_.sends) {
      const std::string text = Describe(send.message);
      if (!text.empty()) told_[send.to].push_back(text);
      if (send.message.has_welcome()) welcome_[send.to] = send.message.welcome();
    }
    closed_.insert(closed_.end(), effects_.closes.begin(), effects_.closes.end());
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

  CoordinatorCore core_{CoordinatorCoreOptions{.beat = kBeat, .seed = 7}};
  CoordinatorEffects effects_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  std::map<ConnectionId, std::vector<std::string>> told_;
  std::map<ConnectionId, rendezvous::Welcome> welcome_;
  std::vector<ConnectionId> closed_;
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
              ElementsAre("refused: wants to be rank 0 of group 'g', which process 1 is already"));
  Join(3, 1, 2);
  EXPECT_THAT(Told(3), ElementsAre("refused: wants group 'g' to have 2 ranks, others want 3"));
  Join(4, 3, 3);
  EXPECT_THAT(Told(4), ElementsAre("refused: wants to be rank 3 of 3"));
  Join(5, 1, 3, std::string(10'000, 'x'));
  EXPECT_THAT(Told(5), ElementsAre("refused: sent a name of 10000 bytes"));
  Join(6, 1, 1 << 30);
  EXPECT_THAT(Told(6), ElementsAre("refused: wants to be rank 1 of 1073741824"));
  Connect(7);
  rendezvous::ToCoordinator old;
  old.mutable_join()->set_version(99);
  Say(7, old);
  EXPECT_THAT(Told(7), ElementsAre("refused: speaks version 99, this is 1"));
  Connect(8);
  Abort(8, "I am nobody");
  EXPECT_THAT(Told(8), ElementsAre("refused: did not join first"));
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

TEST_F(CoreTest, AMeetingThatIsLateNamesWhoIsMissing) {
  Join(1, 0, 4, "h", 2000);
  Join(2, 2, 4);
  Pass(absl::Seconds(3), {1, 2});
  const std::string why = "refused: group 'g': ranks 1, 3 of 4 have not come in time";
  EXPECT_THAT(Told(1), ElementsAre(why));
  EXPECT_THAT(Told(2), ElementsAre(why));
  EXPECT_EQ(core_.groups(), 0u);
}

TEST_F(CoreTest, ARankKilledWhileOthersWaitEndsTheMeetingForAll) {
  Join(1, 0, 3);
  Join(2, 1, 3);
  Close(2);
  const std::string why = absl::StrCat("lost 1: ", kKilled, " (process 2)");
  EXPECT_THAT(Told(1), ElementsAre(why));
  Join(3, 2, 3);  // comes late and is told, and does not wait
  EXPECT_THAT(Told(3), ElementsAre(why));
  for (int r = 0; r < 3; ++r) Join(10 + static_cast<ConnectionId>(r), r, 3);  // started again
  EXPECT_THAT(Told(10), ElementsAre("welcome 0 of 3"));
}

TEST_F(CoreTest, ARankStoppedWhileOthersWaitEndsTheMeetingForAll) {
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

TEST_F(CoreTest, TheWishMayComeBeforeTheGoodbye) {
  Meet(3);
  Accuse(10, 1, "connection closed");
  Goodbye(11);
  EXPECT_THAT(Told(12), ElementsAre("lost 1: left in order"));
}

TEST_F(CoreTest, WhenAllLeaveInOrderNothingHasFailedAndNothingIsKept) {
  Meet(3);
  for (const ConnectionId id : {11, 10, 12}) Goodbye(id);
  Pass(absl::Seconds(1), {});
  for (const ConnectionId id : {11, 10, 12}) EXPECT_THAT(Told(id), IsEmpty());
  EXPECT_EQ(core_.groups(), 0u);
}

TEST_F(CoreTest, AnAbortNamesWhoAndWhyAtOnce) {
  Meet(3);
  Abort(11, "ranks disagree");
  for (const ConnectionId id : {10, 11, 12}) {
    EXPECT_THAT(Told(id), ElementsAre("aborted 1: ranks disagree"));
  }
}

TEST_F(CoreTest, NonsenseFromAMemberCostsItTheGroup) {
  Meet(3);
  Accuse(11, 17, "who?");
  EXPECT_THAT(Told(10), ElementsAre("lost 1: it accused rank 17 of 3"));
  EXPECT_THAT(closed_, ElementsAre(11));
}

TEST_F(CoreTest, SurvivorsShrinkWithoutTheDead) {
  Meet(4);
  const std::string old_token = welcome_[10].token();
  Close(11);
  told_.clear();
  Shrink(13);
  Shrink(10);
  EXPECT_THAT(Told(10), IsEmpty());
  Shrink(12);
  EXPECT_THAT(Told(10), ElementsAre("welcome 0 of 3"));
  EXPECT_THAT(Told(12), ElementsAre("welcome 1 of 3"));
  EXPECT_THAT(Told(13), ElementsAre("welcome 2 of 3"));
  EXPECT_THAT(welcome_[10].previous_rank(), ElementsAre(0, 2, 3));
  ASSERT_EQ(welcome_[10].lost_size(), 1);
  EXPECT_EQ(welcome_[10].lost(0).rank(), 1);
  EXPECT_EQ(welcome_[10].lost(0).why(), kKilled);
  EXPECT_NE(welcome_[10].token(), old_token);
  Close(13);  // the new group fails, and shrinks, as any
  EXPECT_THAT(Told(12), ElementsAre(absl::StrCat("lost 2: ", kKilled)));
  Shrink(12);
  Shrink(10);
  EXPECT_THAT(Told(12), ElementsAre("welcome 1 of 2"));
}

TEST_F(CoreTest, ADeathDuringTheShrinkDoesNotHoldItUp) {
  Meet(4);
  Close(11);
  told_.clear();
  Shrink(10);
  Shrink(12);
  Close(13);
  EXPECT_THAT(Told(12), ElementsAre("welcome 1 of 2"));
  EXPECT_EQ(welcome_[12].lost_size(), 2);
}

TEST_F(CoreTest, AGoodbyeDuringTheShrinkDoesNotHoldItUp) {
  Meet(3);
  Close(11);
  Shrink(10);
  Goodbye(12);
  EXPECT_EQ(welcome_[10].members_size(), 1);
}

TEST_F(CoreTest, WhoDoesNotComeToTheShrinkInTimeIsLeftBehind) {
  Meet(3);
  Close(11);
  told_.clear();
  Shrink(10, 2000);
  Pass(absl::Seconds(3), {10, 12});
  EXPECT_THAT(Told(10), ElementsAre("welcome 0 of 1"));
  EXPECT_THAT(Told(12), ElementsAre(HasSubstr("refused: the group has gone on without it")));
}

TEST_F(CoreTest, AGroupThatHasNotFailedDoesNotShrink) {
  Meet(2);
  Shrink(10);
  EXPECT_THAT(Told(10), ElementsAre("refused: the group has not failed"));
}

// Whatever happens in whatever order: each member gets at most one verdict a group, the first one,
// and all of a group the same; and nothing is kept once all are gone.
TEST_F(CoreTest, AnyOrderOfEventsGivesOneVerdict) {
  SCOPED_TRACE(absl::StrCat("rerun with --seed=", TestSeed()));
  Random random(TestSeed());
  for (int run = 0; run < 300; ++run) {
    const ConnectionId first = 100 + 10 * static_cast<ConnectionId>(run);
    for (int r = 0; r < 5; ++r) Join(first + static_cast<ConnectionId>(r), r, 5);
    told_.clear();
    std::vector<ConnectionId> living;
    for (ConnectionId id = first; id < first + 5; ++id) living.push_back(id);
    for (int event = 0; event < 12 && !living.empty(); ++event) {
      const size_t who = random.Uniform(living.size());
      const ConnectionId id = living[who];
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
    for (const ConnectionId id : living) Close(id);
    Pass(absl::Seconds(1), {});
    ASSERT_EQ(core_.groups(), 0u);
  }
}

}  // namespace
}  // namespace tandem
