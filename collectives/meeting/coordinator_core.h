// What the coordinator of collective groups decides, without sockets, threads or a clock
// (coordinator.h is its shell): who meets whom, why a group has failed, and who goes on after that.
//
// Meeting. Ranks of a group join by its name; when all are there each gets the table of members.
// The meeting fails for all at the first deadline, or as soon as one that had come is lost, and
// says which ranks are missing or which was lost.
//
// Failure. Each group gets one verdict, and all members the same:
//   (1) a connection that ends without goodbye: that rank is lost, at once, unless it had given up
//       itself before: then it may have ended because of that, and is judged as (3);
//   (2) silence for three beats: that rank is lost ("stopped answering");
//   (3) accusations ("link to 2 failed", "waited for 2 in vain") are kept until (1) or (2) explains
//       them, for the time that (2) takes; then the blame falls on the rank that most accuse among
//       those that accuse nobody themselves: one that gave up because of another is not the cause;
//   (4) a rank that left in order, and had not given up, is the cause once it is accused or wanted;
//   (5) an abort (ranks disagree, or the caller's wish) names the rank that says it and why, at once.
//
// Shrinking. After a verdict the members ask for it; when all that live have asked, or at the first
// deadline those who have, they become a group of their own, numbered in the old order.
//
// Bounds: names, tables and numbers of groups and ranks; a message against the protocol is refused
// and costs its sender the connection.
#ifndef TANDEM_COLLECTIVES_MEETING_COORDINATOR_CORE_H_
#define TANDEM_COLLECTIVES_MEETING_COORDINATOR_CORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "proto/collectives.pb.h"

namespace tandem::collectives {

using ConnectionId = uint64_t;

// What an event brings about; the core appends, the shell empties.
struct CoordinatorEffects {
  struct Send {
    ConnectionId to;
    rendezvous::FromCoordinator message;
  };
  std::vector<Send> sends;
  std::vector<ConnectionId> closes;  // once what was sent has left
  std::vector<std::string> log;      // one line an event
};

struct CoordinatorCoreOptions {
  absl::Duration beat = absl::Seconds(1);
  int silent_beats = 3;
  absl::Duration join_within = absl::Seconds(10);  // of a new connection
  int own_rank = -1;                               // whose process this is; -1: nobody's
  uint64_t seed = 0;                               // of tokens; not to be guessed
};

class CoordinatorCore {
 public:
  static constexpr uint32_t kVersion = 1;
  static constexpr int kMaxRanks = 1 << 14;
  static constexpr size_t kMaxGroups = 1 << 12;
  static constexpr size_t kMaxTextBytes = 512;

  explicit CoordinatorCore(const CoordinatorCoreOptions& options);
  ~CoordinatorCore();

  void OnConnect(ConnectionId from, absl::Time now);
  void OnMessage(ConnectionId from, const rendezvous::ToCoordinator& message, absl::Time now,
                 CoordinatorEffects* effects);
  // The connection has ended, by whichever side; `why` if it was not the peer's doing.
  void OnClose(ConnectionId from, absl::string_view why, CoordinatorEffects* effects);
  // To be called a few times a beat. After a pause of this process nobody is held silent for it.
  void OnTick(absl::Time now, CoordinatorEffects* effects);

  size_t groups() const { return groups_.size(); }

 private:
  struct Rank;
  struct Accusation {
    int by, against;
    std::string why;
  };
  struct Group;
  struct Connection {
    absl::Time since, heard;
    Group* group = nullptr;  // null until it has joined
    size_t index = 0;        // in group->members
  };

  void Join(ConnectionId from, const rendezvous::Join& join, absl::Time now, CoordinatorEffects* e);
  std::string CheckJoin(const rendezvous::Join& join) const;
  Group* MeetingOf(const rendezvous::Join& join, absl::Time now);
  void Begin(Group& group, CoordinatorEffects* e);
  void NumberMembers(Group& group);
  void FailMeeting(Group& group, rendezvous::FromCoordinator why, CoordinatorEffects* e);
  std::string Missing(const Group& group) const;

  void Accuse(Group& group, Rank& by, const rendezvous::Accusation& accusation, absl::Time now,
              CoordinatorEffects* e);
  void Want(Group& group, const rendezvous::Want& want, CoordinatorEffects* e);
  void Abort(Group& group, Rank& rank, const rendezvous::Abort& abort, CoordinatorEffects* e);
  void Leave(Group& group, Rank& rank, CoordinatorEffects* e);
  void Lose(Group& group, Rank& rank, absl::string_view why, CoordinatorEffects* e);
  void Judge(Group& group, CoordinatorEffects* e);
  void DecideLost(Group& group, const Rank& rank, absl::string_view why, CoordinatorEffects* e);
  void Decide(Group& group, rendezvous::Verdict verdict, CoordinatorEffects* e);
  void AskToShrink(Group& group, Rank& rank, const rendezvous::Shrink& ask, absl::Time now,
                   CoordinatorEffects* e);
  void TryShrink(Group& group, CoordinatorEffects* e);
  void Shrink(Group& group, CoordinatorEffects* e);

  void TickGroup(Group& group, absl::Time now, CoordinatorEffects* e);
  void ForgetEmptyGroups(absl::Time now);
  void Welcome(Group& group, CoordinatorEffects* e);
  void Tell(const Group& group, const rendezvous::FromCoordinator& message, CoordinatorEffects* e);
  void Expel(Group& group, Rank& rank, absl::string_view why, CoordinatorEffects* e);
  void Refuse(ConnectionId to, absl::string_view why, CoordinatorEffects* e);
  void Drop(ConnectionId connection, CoordinatorEffects* e);
  std::string NewToken();

  const CoordinatorCoreOptions options_;
  Random random_;
  std::map<ConnectionId, Connection> connections_;
  std::vector<std::unique_ptr<Group>> groups_;
  absl::Time last_tick_ = absl::InfinitePast();
  absl::Time last_beat_ = absl::InfinitePast();
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_MEETING_COORDINATOR_CORE_H_
