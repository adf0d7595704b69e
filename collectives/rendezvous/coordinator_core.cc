#include "collectives/rendezvous/coordinator_core.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/clip_text.h"

namespace tandem::collectives {
namespace {

constexpr int kMaxStrangerLines = 100;

}  // namespace

using rendezvous::FromCoordinator;
using rendezvous::ToCoordinator;
using rendezvous::Verdict;

struct CoordinatorCore::Rank {
  enum class State { kHere, kLeft, kLost };
  int rank = -1;  // -1: any rank, until the group begins
  ConnectionId connection = 0;
  rendezvous::Member member;
  State state = State::kHere;
  std::string why;       // why it is no longer here
  bool gave_up = false;  // has accused a rank or aborted
  bool has_coordinator = false;

  bool here() const { return state == State::kHere; }
};

struct CoordinatorCore::Group {
  enum class Phase { kRendezvous, kFailedRendezvous, kRunning };
  std::string name;
  Phase phase = Phase::kRendezvous;
  int ranks = 0;
  std::vector<Rank> members;  // kRunning: ordered by rank
  absl::Time deadline = absl::InfiniteFuture();
  // kFailedRendezvous: the answer to ranks that come too late, and how many of them have not come
  // yet.
  FromCoordinator failure;
  int to_tell = 0;
  // The fields below are used in kRunning.
  std::string token;
  std::vector<Accusation> accusations;
  absl::Time judge_at = absl::InfiniteFuture();
  bool decided = false;

  bool Empty() const {
    return std::none_of(members.begin(), members.end(), [](const Rank& r) { return r.here(); });
  }
};

CoordinatorCore::CoordinatorCore(const CoordinatorCoreOptions& options)
    : options_(options), random_(options.seed) {}
CoordinatorCore::~CoordinatorCore() = default;

// ---- Events -----------------------------------------------------------------

void CoordinatorCore::OnConnect(ConnectionId from, absl::Time now) {
  connections_[from] = {.since = now, .heard = now};
}

void CoordinatorCore::OnMessage(ConnectionId from, const ToCoordinator& message, absl::Time now,
                                CoordinatorEffects* e) {
  const auto it = connections_.find(from);
  if (it == connections_.end()) return;
  Connection& connection = it->second;
  connection.heard = now;
  if (connection.group == nullptr) {
    if (message.has_join()) return Join(from, message.join(), now, e);
    return Refuse(from, "its first message was not a join", e);
  }
  Group& group = *connection.group;
  Rank& rank = group.members[connection.index];
  switch (message.body_case()) {
    case ToCoordinator::kBeat:
      return;
    case ToCoordinator::kGoodbye:
      return Leave(group, rank, e);
    case ToCoordinator::kAccusation:
      return Accuse(group, rank, message.accusation(), now, e);
    case ToCoordinator::kAbort:
      return Abort(group, rank, message.abort(), e);
    case ToCoordinator::kWant:
      return Want(group, message.want(), e);
    default:
      return Expel(group, rank, "it sent an unknown message", e);
  }
}

void CoordinatorCore::OnClose(ConnectionId from, absl::string_view why, CoordinatorEffects* e) {
  const auto it = connections_.find(from);
  if (it == connections_.end()) return;
  const Connection connection = it->second;
  connections_.erase(it);
  if (connection.group == nullptr) {
    return LogStranger(absl::StrCat("connection ", from, " ended before it joined: ",
                                    why.empty() ? absl::string_view("closed") : why),
                       e);
  }
  Rank& rank = connection.group->members[connection.index];
  rank.connection = 0;
  if (!rank.here()) return;
  Lose(*connection.group, rank,
       why.empty() ? absl::string_view("killed: its connection closed without goodbye") : why, e);
}

void CoordinatorCore::OnTick(absl::Time now, CoordinatorEffects* e) {
  // Messages that came while this process was paused have not been read yet. So the pause must not
  // count as silence.
  const absl::Duration pause = now - std::max(last_tick_, absl::UnixEpoch());
  if (last_tick_ != absl::InfinitePast() && pause > options_.beat) {
    for (auto& [id, connection] : connections_) connection.heard += pause;
  }
  last_tick_ = now;
  std::vector<ConnectionId> silent_strangers;
  for (const auto& [id, connection] : connections_) {
    const bool late = now - connection.since > options_.join_within;
    if (connection.group == nullptr && late) silent_strangers.push_back(id);
  }
  for (const ConnectionId id : silent_strangers) Refuse(id, "did not join in time", e);
  for (size_t i = 0; i < groups_.size(); ++i) TickGroup(*groups_[i], now, e);
  ForgetEmptyGroups(now);
  if (now - last_beat_ < options_.beat) return;
  last_beat_ = now;
  FromCoordinator beat;
  beat.mutable_beat();
  for (const auto& [id, connection] : connections_) {
    if (connection.group != nullptr) e->sends.push_back({id, beat});
  }
}

void CoordinatorCore::TickGroup(Group& group, absl::Time now, CoordinatorEffects* e) {
  for (size_t i = 0; i < group.members.size(); ++i) {
    Rank& rank = group.members[i];
    const auto it = connections_.find(rank.connection);
    if (!rank.here() || it == connections_.end()) continue;
    const absl::Duration silent = now - it->second.heard;
    if (silent <= options_.beat * options_.silent_beats) continue;
    const ConnectionId connection = rank.connection;
    Lose(group, rank,
         absl::StrCat("stopped answering: silent for ",
                      absl::FormatDuration(absl::Trunc(silent, absl::Milliseconds(1)))),
         e);
    Drop(connection, e);
  }
  if (group.phase == Group::Phase::kRendezvous && now >= group.deadline) {
    FromCoordinator late;
    late.mutable_refusal()->set_late(true);
    late.mutable_refusal()->set_why(absl::StrCat("group '", group.name, "': ", Missing(group)));
    FailRendezvous(group, std::move(late), e);
  }
  if (group.phase == Group::Phase::kRunning && now >= group.judge_at) Judge(group, e);
}

// Removes groups that nobody is in any more. A failed rendezvous stays until its deadline, so that
// ranks that come late get the same error.
void CoordinatorCore::ForgetEmptyGroups(absl::Time now) {
  const auto over = [&](const std::unique_ptr<Group>& group) {
    if (!group->Empty()) return false;
    if (group->phase == Group::Phase::kFailedRendezvous && now < group->deadline) return false;
    for (auto& [id, connection] : connections_) {
      if (connection.group == group.get()) connection.group = nullptr;
    }
    return true;
  };
  groups_.erase(std::remove_if(groups_.begin(), groups_.end(), over), groups_.end());
}

// ---- Rendezvous -------------------------------------------------------------

std::string CoordinatorCore::CheckJoin(const rendezvous::Join& join) const {
  const rendezvous::Member& member = join.member();
  if (join.version() != kVersion) {
    return absl::StrCat("uses protocol version ", join.version(), ", expected ", kVersion);
  }
  if (join.ranks() < 1 || join.ranks() > kMaxRanks || join.rank() < -1 ||
      join.rank() >= join.ranks()) {
    return absl::StrCat("asks for rank ", join.rank(), " of ", join.ranks(), ", which is invalid");
  }
  for (const std::string* text :
       {&join.group(), &member.host(), &member.tcp_address(), &member.unix_name(), &member.about(),
        &member.rdma_address(), &member.zmq_address()}) {
    if (text->size() > kMaxTextBytes)
      return absl::StrCat("sent a name of ", text->size(), " bytes, at most ", kMaxTextBytes,
                          " are allowed");
  }
  for (const std::string& device : member.device()) {
    if (device.size() <= kMaxTextBytes / 8 && member.device_size() <= kMaxDevices) continue;
    return absl::StrCat("names ", member.device_size(), " GPUs, at most ", kMaxDevices,
                        " are allowed");
  }
  return join.deadline_ms() > 0 ? "" : "its deadline has already passed";
}

// Finds the group that a new rank belongs to, or makes it. A failed rendezvous counts only for
// ranks that have not heard of the failure: if the rank's number was there already, the rank starts
// a new attempt.
CoordinatorCore::Group* CoordinatorCore::RendezvousOf(const rendezvous::Join& join,
                                                      absl::Time now) {
  for (const auto& group : groups_) {
    if (group->phase == Group::Phase::kRendezvous && group->name == join.group())
      return group.get();
    if (group->phase != Group::Phase::kFailedRendezvous || group->name != join.group()) continue;
    const auto same = [&](const Rank& r) { return r.rank >= 0 && r.rank == join.rank(); };
    const bool told = std::any_of(group->members.begin(), group->members.end(), same);
    if (!told && group->to_tell > 0 && now < group->deadline) return group.get();
  }
  if (groups_.size() >= kMaxGroups) return nullptr;
  groups_.push_back(std::make_unique<Group>());
  groups_.back()->name = join.group();
  groups_.back()->ranks = join.ranks();
  return groups_.back().get();
}

// The order matters: everything that can refuse the rank comes first, so that a refused rank leaves
// no trace in the group. A rank that comes to a failed rendezvous is counted and told the failure.
// Only a rank that is really accepted can shorten the deadline or complete the group.
void CoordinatorCore::Join(ConnectionId from, const rendezvous::Join& join, absl::Time now,
                           CoordinatorEffects* e) {
  Connection& connection = connections_[from];
  if (std::string wrong = CheckJoin(join); !wrong.empty()) return Refuse(from, wrong, e);
  Group* const group = RendezvousOf(join, now);
  if (group == nullptr) return Refuse(from, "there are too many groups", e);
  if (join.ranks() != group->ranks) {
    return Refuse(from,
                  absl::StrCat("asks for ", join.ranks(), " ranks in group '", group->name,
                               "', the other members for ", group->ranks),
                  e);
  }
  for (const Rank& other : group->members) {
    if (join.rank() < 0 || other.rank != join.rank()) continue;
    return Refuse(from,
                  absl::StrCat("asks for rank ", join.rank(), " of group '", group->name,
                               "', which is taken by ", other.member.about()),
                  e);
  }
  Rank rank;
  rank.rank = join.rank();
  rank.connection = from;
  rank.member = join.member();
  connection.group = group;
  connection.index = group->members.size();
  group->members.push_back(std::move(rank));
  // The rendezvous has failed before this rank came: tell it why.
  if (group->phase == Group::Phase::kFailedRendezvous) {
    --group->to_tell;
    e->sends.push_back({from, group->failure});
    group->members.back().state = Rank::State::kLeft;
    return Drop(from, e);
  }
  const int64_t max_ms = absl::ToInt64Milliseconds(absl::Hours(24));
  group->deadline = std::min(
      group->deadline, now + absl::Milliseconds(std::min<int64_t>(join.deadline_ms(), max_ms)));
  e->log.push_back(absl::StrCat("group '", group->name, "': ", join.member().about(), " joins as ",
                                join.rank() < 0 ? "any rank" : absl::StrCat("rank ", join.rank()),
                                ", ", group->members.size(), " of ", group->ranks,
                                " ranks are here"));
  if (static_cast<int>(group->members.size()) == group->ranks) Begin(*group, e);
}

// Gives every member its rank. Ranks that members asked for stay. The other ranks are given out
// host by host, in the order of arrival, so that ranks of one host are neighbours if possible.
void CoordinatorCore::NumberMembers(Group& group) {
  std::vector<Rank> by_rank(group.members.size());
  std::vector<bool> taken(group.members.size(), false);
  std::vector<std::string> hosts;
  for (Rank& member : group.members) {
    if (member.rank >= 0) {
      taken[member.rank] = true;
      by_rank[member.rank] = std::move(member);
    } else if (std::find(hosts.begin(), hosts.end(), member.member.host()) == hosts.end()) {
      hosts.push_back(member.member.host());
    }
  }
  int next = 0;
  for (const std::string& host : hosts) {
    for (Rank& member : group.members) {
      if (member.connection == 0 || member.rank >= 0 || member.member.host() != host) continue;
      while (taken[next]) ++next;
      member.rank = next;
      by_rank[next++] = std::move(member);
      member.connection = 0;
    }
  }
  group.members = std::move(by_rank);
}

void CoordinatorCore::Begin(Group& group, CoordinatorEffects* e) {
  NumberMembers(group);
  for (Rank& rank : group.members) rank.has_coordinator = rank.rank == options_.own_rank;
  group.phase = Group::Phase::kRunning;
  group.deadline = absl::InfiniteFuture();
  Welcome(group, e);
  e->log.push_back(absl::StrCat("group '", group.name, "' of ", group.ranks, " begins"));
}

void CoordinatorCore::Welcome(Group& group, CoordinatorEffects* e) {
  group.token = NewToken();
  FromCoordinator message;
  rendezvous::Welcome& welcome = *message.mutable_welcome();
  welcome.set_token(group.token);
  welcome.set_beat_ms(absl::ToInt64Milliseconds(options_.beat));
  welcome.set_coordinator_rank(-1);
  for (size_t i = 0; i < group.members.size(); ++i) {
    const Rank& rank = group.members[i];
    *welcome.add_members() = rank.member;
    if (rank.has_coordinator) welcome.set_coordinator_rank(rank.rank);
    connections_[rank.connection].group = &group;
    connections_[rank.connection].index = i;
  }
  for (const Rank& rank : group.members) {
    welcome.set_rank(rank.rank);
    e->sends.push_back({rank.connection, message});
  }
}

std::string CoordinatorCore::NewToken() {
  std::string token(16, '\0');
  for (size_t i = 0; i < token.size(); i += 8) {
    const uint64_t bits = random_.Next64();
    std::memcpy(&token[i], &bits, 8);
  }
  return token;
}

std::string CoordinatorCore::Missing(const Group& group) const {
  std::vector<bool> here(static_cast<size_t>(group.ranks), false);
  int any = 0;
  for (const Rank& rank : group.members) {
    if (rank.rank >= 0) here[rank.rank] = true;
    any += rank.rank < 0;
  }
  std::vector<int> missing;
  for (int r = 0; r < group.ranks; ++r) {
    if (!here[r]) missing.push_back(r);
  }
  const size_t came = group.members.size();
  if (any > 0) {
    return absl::StrCat(came, " of ", group.ranks, " ranks have come in time");
  }
  return absl::StrCat(missing.size() == 1 ? "rank " : "ranks ", absl::StrJoin(missing, ", "),
                      " of ", group.ranks, missing.size() == 1 ? " has" : " have",
                      " not come in time");
}

void CoordinatorCore::FailRendezvous(Group& group, FromCoordinator why, CoordinatorEffects* e) {
  e->log.push_back(absl::StrCat("group '", group.name, "' does not begin: ",
                                why.has_refusal() ? why.refusal().why() : why.verdict().why()));
  group.phase = Group::Phase::kFailedRendezvous;
  group.failure = std::move(why);
  group.to_tell = group.ranks - static_cast<int>(group.members.size());
  Tell(group, group.failure, e);
  for (Rank& rank : group.members) {
    if (!rank.here()) continue;
    rank.state = Rank::State::kLeft;
    Drop(rank.connection, e);
  }
}

// ---- Failure ----------------------------------------------------------------

// A rank is waited for. That alone is no failure, unless the wanted rank has left in order.
void CoordinatorCore::Want(Group& group, const rendezvous::Want& want, CoordinatorEffects* e) {
  if (group.phase != Group::Phase::kRunning || want.rank() < 0 || want.rank() >= group.ranks)
    return;
  const Rank& wanted = group.members[static_cast<size_t>(want.rank())];
  if (wanted.state == Rank::State::kLeft && !wanted.gave_up) {
    DecideLost(group, wanted, wanted.why, e);
  }
}

void CoordinatorCore::Abort(Group& group, Rank& rank, const rendezvous::Abort& abort,
                            CoordinatorEffects* e) {
  rank.gave_up = true;
  if (group.phase != Group::Phase::kRunning) return;
  Verdict verdict;
  verdict.set_kind(Verdict::ABORTED);
  verdict.set_rank(rank.rank);
  verdict.set_why(abort.why());
  verdict.set_code(abort.code());
  Decide(group, std::move(verdict), e);
}

// Handles a goodbye. During the rendezvous it counts as a loss, because the others still wait for
// this rank. In a running group the rank only leaves; but if it was accused before, the accusation
// is explained now and decides the verdict.
void CoordinatorCore::Leave(Group& group, Rank& rank, CoordinatorEffects* e) {
  const ConnectionId connection = rank.connection;
  if (group.phase == Group::Phase::kRendezvous) {
    Lose(group, rank, "left before the group had begun", e);
    return Drop(connection, e);
  }
  rank.state = Rank::State::kLeft;
  rank.why = "left in order";
  e->log.push_back(absl::StrCat("group '", group.name, "': rank ", rank.rank, " says goodbye"));
  const auto wants_it = [&](const Accusation& a) { return a.against == rank.rank; };
  if (!group.decided && !rank.gave_up &&
      std::any_of(group.accusations.begin(), group.accusations.end(), wants_it)) {
    DecideLost(group, rank, rank.why, e);
  }
  Drop(connection, e);
}

// Handles a rank that ended or was silent. A rank that has given up before gets no verdict here.
// Maybe it ended because of another rank; Judge decides later.
void CoordinatorCore::Lose(Group& group, Rank& rank, absl::string_view why, CoordinatorEffects* e) {
  rank.state = Rank::State::kLost;
  rank.why = std::string(why);
  e->log.push_back(absl::StrCat("group '", group.name, "': rank ", rank.rank, " (",
                                rank.member.about(), ") is lost: ", why));
  if (group.phase == Group::Phase::kRendezvous) {
    FromCoordinator message;
    message.mutable_verdict()->set_kind(Verdict::LOST);
    message.mutable_verdict()->set_rank(rank.rank);
    message.mutable_verdict()->set_why(absl::StrCat(why, " (", rank.member.about(), ")"));
    return FailRendezvous(group, std::move(message), e);
  }
  if (group.phase != Group::Phase::kRunning || group.decided || rank.gave_up) return;
  DecideLost(group, rank, why, e);
}

void CoordinatorCore::Expel(Group& group, Rank& rank, absl::string_view why,
                            CoordinatorEffects* e) {
  const ConnectionId connection = rank.connection;
  Lose(group, rank, why, e);
  Refuse(connection, why, e);
}

void CoordinatorCore::Accuse(Group& group, Rank& by, const rendezvous::Accusation& accusation,
                             absl::Time now, CoordinatorEffects* e) {
  const int against = accusation.rank();
  if (group.phase != Group::Phase::kRunning || group.decided) return;
  if (against < 0 || against >= group.ranks || against == by.rank) {
    return Expel(group, by, absl::StrCat("it accused rank ", against, " of ", group.ranks), e);
  }
  by.gave_up = true;
  e->log.push_back(absl::StrCat("group '", group.name, "': rank ", by.rank, " reports about rank ",
                                against, ": ", accusation.why()));
  if (group.accusations.size() < 16u * static_cast<size_t>(group.ranks)) {
    group.accusations.push_back(
        {by.rank, against, std::string(ClipText(accusation.why(), kMaxTextBytes))});
  }
  // One heartbeat longer than it takes to notice a silent rank: if one is the true cause, TickGroup
  // finds it first.
  group.judge_at = std::min(group.judge_at, now + options_.beat * (options_.silent_beats + 1));
  const Rank& accused = group.members[against];
  if (accused.state == Rank::State::kLeft && !accused.gave_up) {
    DecideLost(group, accused, accused.why, e);
  }
}

// Decides by accusations, because no closed connection and no silence has explained them in time. A
// rank that has given up itself is not the cause. Among the others the rank with the most
// accusations is lost. If every accused rank has given up, the first accusation decides. Requires
// at least one accusation.
void CoordinatorCore::Judge(Group& group, CoordinatorEffects* e) {
  group.judge_at = absl::InfiniteFuture();
  if (group.decided || group.accusations.empty()) return;
  const Accusation* worst = nullptr;
  int most = 0;
  for (const Accusation& accusation : group.accusations) {
    if (group.members[accusation.against].gave_up) continue;
    const int votes = static_cast<int>(
        std::count_if(group.accusations.begin(), group.accusations.end(),
                      [&](const Accusation& a) { return a.against == accusation.against; }));
    if (votes <= most) continue;
    most = votes;
    worst = &accusation;
  }
  if (worst == nullptr) worst = &group.accusations.front();
  const Rank& rank = group.members[worst->against];
  const std::string why =
      rank.here() ? absl::StrCat("rank ", worst->by, " says: ", worst->why) : rank.why;
  DecideLost(group, rank, why, e);
}

void CoordinatorCore::DecideLost(Group& group, const Rank& rank, absl::string_view why,
                                 CoordinatorEffects* e) {
  Verdict verdict;
  verdict.set_kind(Verdict::LOST);
  verdict.set_rank(rank.rank);
  verdict.set_why(std::string(why));
  Decide(group, std::move(verdict), e);
}

void CoordinatorCore::Decide(Group& group, Verdict verdict, CoordinatorEffects* e) {
  if (group.decided) return;
  group.decided = true;
  group.judge_at = absl::InfiniteFuture();
  verdict.set_why(std::string(ClipText(verdict.why(), kMaxTextBytes)));
  e->log.push_back(
      absl::StrCat("group '", group.name, "' has failed: rank ", verdict.rank(),
                   verdict.kind() == Verdict::LOST ? " is lost: " : " gave up: ", verdict.why()));
  FromCoordinator message;
  *message.mutable_verdict() = std::move(verdict);
  Tell(group, message, e);
}

// ---- Messages to the members ------------------------------------------------

void CoordinatorCore::Tell(const Group& group, const FromCoordinator& message,
                           CoordinatorEffects* e) {
  for (const Rank& rank : group.members) {
    if (rank.here() && rank.connection != 0) e->sends.push_back({rank.connection, message});
  }
}

// Strangers may connect again and again, and must not fill the log.
void CoordinatorCore::LogStranger(std::string line, CoordinatorEffects* e) {
  if (++strangers_ > kMaxStrangerLines) return;
  if (strangers_ == kMaxStrangerLines) line += "; more connections like this are not logged";
  e->log.push_back(std::move(line));
}

void CoordinatorCore::Refuse(ConnectionId to, absl::string_view why, CoordinatorEffects* e) {
  LogStranger(absl::StrCat("connection ", to, " refused: ", why), e);
  FromCoordinator message;
  message.mutable_refusal()->set_why(std::string(ClipText(why, kMaxTextBytes)));
  e->sends.push_back({to, std::move(message)});
  Drop(to, e);
}

// Ends the coordinator's interest in a connection and asks the shell to close it. A member without
// a connection keeps its state, which decides how it counts.
void CoordinatorCore::Drop(ConnectionId connection, CoordinatorEffects* e) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  if (it->second.group != nullptr) it->second.group->members[it->second.index].connection = 0;
  connections_.erase(it);
  e->closes.push_back(connection);
}

}  // namespace tandem::collectives
