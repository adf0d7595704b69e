// CoordinatorCore: the decisions of the coordinator of collective groups, without sockets, threads
// or a clock (coordinator.h is its shell). The decisions are: who belongs to a group, and why a
// group has failed.
//
// Rendezvous. Ranks join a group by its name. When all ranks have come, each gets the table of
// members. The rendezvous fails for all of them at the earliest deadline, or as soon as a rank that
// had come is lost. The error says which ranks are missing or which rank was lost.
//
// Failure. Each group gets one verdict, the same for all members:
//   (1) A connection ends without a goodbye: that rank is lost, at once. Exception: the rank had
//       given up before. Then the rank may have ended because of that, and rule (3) decides.
//   (2) A rank is silent for three heartbeats: that rank is lost ("stopped answering").
//   (3) An accusation ("link to 2 failed", "waited for 2 in vain") is kept for the time that (2)
//       takes, until (1) or (2) explains it. After that time the coordinator decides. Ranks that
//       accuse somebody themselves are not the cause, since they gave up because of another rank.
//       Among the others the rank with the most accusations is lost.
//   (4) A rank left in order and had not given up: that rank is the cause once it is accused or
//       wanted.
//   (5) An abort (ranks disagree, or the caller's wish) names the rank that reports it and the
//       reason, at once.
//
// Bounds: the lengths of names and tables and the numbers of groups and ranks are limited. A
// message against the protocol is refused, and its sender is disconnected.
#ifndef TANDEM_COLLECTIVES_RENDEZVOUS_COORDINATOR_CORE_H_
#define TANDEM_COLLECTIVES_RENDEZVOUS_COORDINATOR_CORE_H_

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

// The effects of an event: the core appends to them, the shell carries them out and clears them.
struct CoordinatorEffects {
  struct Send {
    ConnectionId to;
    rendezvous::FromCoordinator message;
  };
  std::vector<Send> sends;
  std::vector<ConnectionId> closes;  // after their last messages have left
  std::vector<std::string> log;      // one line for each event
};

struct CoordinatorCoreOptions {
  absl::Duration beat = absl::Seconds(1);
  int silent_beats = 3;
  absl::Duration join_within = absl::Seconds(10);  // for a new connection
  int own_rank = -1;                               // the rank of this process; -1: none
  uint64_t seed = 0;                               // for tokens; must not be guessable
};

class CoordinatorCore {
 public:
  static constexpr uint32_t kVersion = 1;
  static constexpr int kMaxRanks = 1 << 14;
  static constexpr size_t kMaxGroups = 1 << 12;
  static constexpr size_t kMaxTextBytes = 512;
  static constexpr int kMaxDevices = 64;  // of one rank

  explicit CoordinatorCore(const CoordinatorCoreOptions& options);
  ~CoordinatorCore();

  void OnConnect(ConnectionId from, absl::Time now);
  void OnMessage(ConnectionId from, const rendezvous::ToCoordinator& message, absl::Time now,
                 CoordinatorEffects* effects);
  // The connection has ended, whichever side ended it. `why`: the reason if the peer did not end
  // it.
  void OnClose(ConnectionId from, absl::string_view why, CoordinatorEffects* effects);
  // Call it a few times in each heartbeat. After a pause of this process no rank counts as silent
  // because of the pause.
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
    Group* group = nullptr;  // null before it has joined
    size_t index = 0;        // index in group->members
  };

  void Join(ConnectionId from, const rendezvous::Join& join, absl::Time now, CoordinatorEffects* e);
  std::string CheckJoin(const rendezvous::Join& join) const;
  Group* RendezvousOf(const rendezvous::Join& join, absl::Time now);
  void Begin(Group& group, CoordinatorEffects* e);
  void NumberMembers(Group& group);
  void FailRendezvous(Group& group, rendezvous::FromCoordinator why, CoordinatorEffects* e);
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

  void TickGroup(Group& group, absl::Time now, CoordinatorEffects* e);
  void ForgetEmptyGroups(absl::Time now);
  void Welcome(Group& group, CoordinatorEffects* e);
  void Tell(const Group& group, const rendezvous::FromCoordinator& message, CoordinatorEffects* e);
  void Expel(Group& group, Rank& rank, absl::string_view why, CoordinatorEffects* e);
  void Refuse(ConnectionId to, absl::string_view why, CoordinatorEffects* e);
  void LogStranger(std::string line, CoordinatorEffects* e);
  void Drop(ConnectionId connection, CoordinatorEffects* e);
  std::string NewToken();

  const CoordinatorCoreOptions options_;
  Random random_;
  std::map<ConnectionId, Connection> connections_;
  std::vector<std::unique_ptr<Group>> groups_;
  int strangers_ = 0;  // lines about connections that did not join
  absl::Time last_tick_ = absl::InfinitePast();
  absl::Time last_beat_ = absl::InfinitePast();
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_RENDEZVOUS_COORDINATOR_CORE_H_
