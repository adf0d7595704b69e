#include "collectives/rendezvous/coordinator_client.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clip_text.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "collectives/errors.h"
#include "collectives/links/tcp_socket.h"
#include "collectives/rendezvous/coordinator_core.h"

namespace tandem::collectives {
namespace {

using rendezvous::FromCoordinator;
using rendezvous::ToCoordinator;

constexpr size_t kMaxAnswerBytes = size_t{48} << 20;  // the member table of the largest group
constexpr int kSilentBeats = 3;
// How often a wait may be interrupted.
constexpr absl::Duration kInterruptEvery = absl::Milliseconds(50);
// The coordinator's deadline is earlier than the client's by this much, so that its answer can say
// who is missing.
constexpr absl::Duration kAnswerTime = absl::Milliseconds(500);
// The longest time from the last heartbeat of a rank to its verdict here (silence, decision,
// delivery) is kVerdictBeats heartbeats plus kVerdictTime.
constexpr int kVerdictBeats = 2 * kSilentBeats;
constexpr absl::Duration kVerdictTime = absl::Seconds(2);

int64_t MillisecondsLeft(absl::Time deadline) {
  const absl::Duration left = deadline - MonotonicNow();
  const absl::Duration reserve = std::min(kAnswerTime, left / 10);
  return std::max<int64_t>(1, absl::ToInt64Milliseconds(std::min(left, absl::Hours(24)) - reserve));
}

}  // namespace

// ---- Joining and leaving ----------------------------------------------------

CoordinatorClient::CoordinatorClient(MessageStream stream)
    : stream_(std::move(stream)), heard_(MonotonicNow()), last_turn_(heard_) {}

absl::StatusOr<std::unique_ptr<CoordinatorClient>> CoordinatorClient::Join(
    const JoinOptions& options, absl::Time deadline) {
  TANDEM_ASSIGN_OR_RETURN(OwnedFd socket, ConnectTcpBy(options.coordinator, deadline));
  std::unique_ptr<CoordinatorClient> client(new CoordinatorClient(
      MessageStream(std::move(socket), kMaxAnswerBytes,
                    NewProof(transport::Proof::Side::kConnects, options.keys, kCoordinatorPlace))));
  client->thread_ = std::thread([c = client.get()] { c->Run(); });
  TANDEM_RETURN_IF_ERROR(client->JoinBy(options, deadline));
  return client;
}

absl::StatusOr<GroupMembership> CoordinatorClient::Meet(const JoinOptions& options,
                                                        absl::Time deadline) {
  TANDEM_ASSIGN_OR_RETURN(const auto client, Join(options, deadline));
  return client->membership();
}

absl::Status CoordinatorClient::JoinBy(const JoinOptions& options, absl::Time deadline) {
  ToCoordinator message;
  rendezvous::Join& join = *message.mutable_join();
  join.set_version(CoordinatorCore::kVersion);
  join.set_group(options.group);
  join.set_rank(options.rank);
  join.set_ranks(options.ranks);
  WriteMember(options.member, join.mutable_member());
  if (options.member.about.empty()) join.mutable_member()->set_about(AboutThisProcess());
  join.set_deadline_ms(MillisecondsLeft(deadline));
  absl::MutexLock lock(&mu_);
  Send(message);
  return WaitAnswer(deadline, options.interrupted);
}

absl::Status CoordinatorClient::WaitAnswer(absl::Time deadline,
                                           const std::function<absl::Status()>& interrupted) {
  while (!answered_ && connected_) {
    const absl::Time turn =
        interrupted ? std::min(deadline, MonotonicNow() + kInterruptEvery) : deadline;
    if (changed_.WaitUntil(&mu_, turn) && turn == deadline) break;
    if (interrupted) TANDEM_RETURN_IF_ERROR(interrupted());
  }
  if (answered_) return std::exchange(answer_, absl::OkStatus());
  if (!connected_) return verdict_;
  return absl::DeadlineExceededError("the coordinator does not answer");
}

void CoordinatorClient::Goodbye() {
  absl::MutexLock lock(&mu_);
  if (leaving_) return;
  ToCoordinator message;
  message.mutable_goodbye();
  Send(message);
  leaving_ = true;
  wake_.Wake();
}

CoordinatorClient::~CoordinatorClient() {
  Goodbye();
  thread_.join();
}

GroupMembership CoordinatorClient::membership() const {
  absl::MutexLock lock(&mu_);
  return membership_;
}

// ---- Failure ----------------------------------------------------------------

absl::Status CoordinatorClient::Verdict() {
  if (!has_verdict_.load(std::memory_order_acquire)) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  return verdict_;
}

void CoordinatorClient::ReportLinkFailure(int rank, absl::string_view why) {
  absl::MutexLock lock(&mu_);
  if (!connected_) return SetVerdict(PeerLostError(rank, why));
  ToCoordinator message;
  message.mutable_accusation()->set_rank(rank);
  message.mutable_accusation()->set_why(std::string(ClipText(why, CoordinatorCore::kMaxTextBytes)));
  Send(message);
}

void CoordinatorClient::Want(int rank) {
  absl::MutexLock lock(&mu_);
  ToCoordinator message;
  message.mutable_want()->set_rank(rank);
  Send(message);
}

void CoordinatorClient::ReportAbort(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  if (!connected_) return SetVerdict(why);
  ToCoordinator message;
  message.mutable_abort()->set_why(
      std::string(ClipText(why.message(), CoordinatorCore::kMaxTextBytes)));
  message.mutable_abort()->set_code(static_cast<int>(why.code()));
  Send(message);
}

absl::Status CoordinatorClient::WaitVerdict(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  while (verdict_.ok() && !changed_.WaitUntil(&mu_, deadline)) {
  }
  return verdict_;
}

absl::Status CoordinatorClient::Agree(const absl::Status& seen) {
  absl::Status verdict = Verdict();
  if (!verdict.ok()) return verdict;
  if (const absl::optional<int> lost = LostPeer(seen); lost.has_value()) {
    const std::string known = absl::StrCat("rank ", *lost, " is lost: ");
    ReportLinkFailure(*lost, absl::StripPrefix(seen.message(), known));
  } else {
    ReportAbort(seen);
  }
  absl::Duration beat;
  {
    absl::MutexLock lock(&mu_);
    beat = beat_;
  }
  verdict = WaitVerdict(MonotonicNow() + beat * kVerdictBeats + kVerdictTime);
  return verdict.ok() ? seen : verdict;
}

void CoordinatorClient::SetVerdict(absl::Status verdict) {
  if (!verdict_.ok()) return;  // the first verdict stays
  verdict_ = std::move(verdict);
  has_verdict_.store(true, std::memory_order_release);
  verdict_fd_.Wake();
  changed_.SignalAll();
}

// ---- Thread -----------------------------------------------------------------

void CoordinatorClient::Send(const ToCoordinator& message) {
  if (!connected_ || leaving_) return;
  stream_.Send(message);
  wake_.Wake();
}

void CoordinatorClient::Run() {
  for (;;) {
    pollfd polled[2] = {{wake_.fd(), POLLIN, 0}, {-1, POLLIN, 0}};
    absl::Duration wait;
    {
      absl::MutexLock lock(&mu_);
      if (connected_) polled[1].fd = stream_.fd();
      if (stream_.WantsWritable()) polled[1].events |= POLLOUT;
      wait = std::min(beat_, absl::Seconds(1));
    }
    (void)poll(polled, 2, static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1);
    if (polled[0].revents != 0) wake_.Clear();
    if (!Turn(MonotonicNow())) return;
  }
}

bool CoordinatorClient::Turn(absl::Time now) {
  absl::MutexLock lock(&mu_);
  const bool more = TakeTurn(now);
  changed_.SignalAll();
  return more;
}

// Reads everything that has come before it judges silence: messages that arrived count, even if
// this thread ran late. After a goodbye of the coordinator nothing more is checked. Flushing comes
// before the checks, because a leaving client must still send its goodbye.
bool CoordinatorClient::TakeTurn(absl::Time now) {
  if (!connected_) return !leaving_;
  const absl::Status ended = stream_.Receive();
  FromCoordinator message;
  for (;;) {
    const absl::StatusOr<bool> next = stream_.Next(&message);
    if (absl::IsUnauthenticated(next.status())) {
      answer_ = absl::UnauthenticatedError(
          absl::StrCat("the coordinator ", next.status().message(), "; hint: ", kTokenHint));
      answered_ = true;
    }
    if (!next.ok()) {
      LoseCoordinator(next.status().message());
      return !leaving_;
    }
    if (!*next) break;
    heard_ = now;
    Handle(message);
  }
  if (!connected_) return !leaving_;  // the coordinator has said goodbye
  // If this process was paused, the silence is its own: count from now.
  if (now - last_turn_ > beat_ * 2) heard_ = now;
  last_turn_ = now;
  const absl::Status flushed = stream_.Flush();
  if (leaving_) return flushed.ok() && stream_.WantsWritable();
  if (!ended.ok()) {
    LoseCoordinator(stream_.proving() ? absl::StrCat(ended.message(), "; hint: ", kTokenHint)
                                      : std::string(ended.message()));
  }
  if (now - heard_ > beat_ * kSilentBeats) LoseCoordinator("it stopped answering");
  return true;
}

void CoordinatorClient::Handle(const FromCoordinator& message) {
  switch (message.body_case()) {
    case FromCoordinator::kWelcome:
      return TakeWelcome(message.welcome());
    case FromCoordinator::kBeat: {
      ToCoordinator beat;
      beat.mutable_beat();
      return Send(beat);
    }
    case FromCoordinator::kVerdict:
      return TakeVerdict(message.verdict());
    case FromCoordinator::kRefusal: {
      const std::string& why = message.refusal().why();
      absl::Status refused = message.refusal().late() ? absl::DeadlineExceededError(why)
                                                      : absl::FailedPreconditionError(why);
      // This refusal is not an answer: the coordinator expels this rank.
      if (answered_) return SetVerdict(std::move(refused));
      answer_ = std::move(refused);
      answered_ = true;
      return;
    }
    // Not a verdict: the group may be well.
    case FromCoordinator::kGoodbye:
      connected_ = false;
      if (membership_.members.empty())
        SetVerdict(absl::UnavailableError("the coordinator has left"));
      return;
    default:
      return;
  }
}

void CoordinatorClient::TakeWelcome(const rendezvous::Welcome& welcome) {
  membership_ = GroupMembership();
  membership_.rank = welcome.rank();
  for (const rendezvous::Member& member : welcome.members()) {
    membership_.members.push_back(MemberFrom(member));
  }
  membership_.token = welcome.token();
  beat_ = absl::Milliseconds(std::max<int64_t>(1, welcome.beat_ms()));
  coordinator_rank_ = welcome.coordinator_rank();
  answered_ = true;
}

void CoordinatorClient::TakeVerdict(const rendezvous::Verdict& verdict) {
  const bool lost = verdict.kind() == rendezvous::Verdict::LOST;
  const bool known = verdict.code() > 0 && verdict.code() <= 16;
  absl::Status status =
      lost ? PeerLostError(verdict.rank(), verdict.why())
           : absl::Status(
                 known ? static_cast<absl::StatusCode>(verdict.code()) : absl::StatusCode::kAborted,
                 verdict.rank() == membership_.rank
                     ? verdict.why()
                     : absl::StrCat("rank ", verdict.rank(), " says: ", verdict.why()));
  if (membership_.members.empty()) {  // still in the rendezvous
    answer_ = status;
    answered_ = true;
  }
  SetVerdict(std::move(status));
}

void CoordinatorClient::LoseCoordinator(absl::string_view why) {
  connected_ = false;
  if (coordinator_rank_ >= 0 && coordinator_rank_ != membership_.rank) {
    return SetVerdict(PeerLostError(
        coordinator_rank_, absl::StrCat("its process ran the coordinator, which is gone: ", why)));
  }
  SetVerdict(absl::UnavailableError(absl::StrCat("the coordinator is gone: ", why)));
}

}  // namespace tandem::collectives
