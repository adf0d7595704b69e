#include "collectives/rendezvous/connect_links.h"

#include <poll.h>

#include <algorithm>
#include <list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/clip_text.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "collectives/errors.h"
#include "collectives/links/tcp_link.h"
#include "collectives/rendezvous/message_stream.h"
#include "proto/collectives.pb.h"

namespace tandem::collectives {
namespace {

constexpr size_t kMaxHelloBytes = 256;
constexpr size_t kMaxNewcomers = 1024;
constexpr absl::Duration kHelloWithin = absl::Seconds(10);  // for a newcomer
constexpr int kMaxRefusals = 16;  // lines about newcomers; a flood of them must not fill the log
constexpr absl::Duration kLook = absl::Milliseconds(50);  // longest sleep between two looks
constexpr absl::Duration kAsk = absl::Milliseconds(250);  // between questions to the coordinator

// One call of ConnectLinks, in one thread. Wherever it waits, it also looks for the coordinator's
// verdict, so that all ranks give up together and for the same reason.
//
//   1. Check that the requested kind of link is possible at all. Faults that are known without
//      trying are reported here, with the reason, before any rank waits for another.
//   2. Connect to every lower rank, by the best kind that both sides offer. In each pair only the
//      higher rank connects, so two attempts never cross.
//   3. Until no rank is missing: sleep until a socket has news, accept new connections, and move
//      each attempt one step forward. A new peer says who it is in its first message (a hello with
//      the token of the group) and gets a welcome or a refusal. An attempt of this rank gets such
//      an answer. After a refusal or a failure the next kind of link to that peer is tried, if any.
class Connector {
 public:
  Connector(const GroupMembership& membership, LinkPorts& ports, const ConnectOptions& options,
            absl::Time deadline)
      : group_(membership),
        ports_(ports),
        options_(options),
        deadline_(deadline),
        incarnation_(HashName(membership.token)),
        links_(membership.members.size()),
        why_(membership.members.size()) {}

  absl::StatusOr<std::vector<std::unique_ptr<Link>>> Run();

 private:
  // A connection that may become a link: this rank's connection to a lower rank, or a new one from
  // a peer.
  struct Attempt {
    int peer = -1;  // -1: a new peer that has not said who it is
    absl::Time since = MonotonicNow();
    std::unique_ptr<MessageStream> tcp;
    transport::UnixLink local;
    ShmLink::Rings rings;                   // shared memory made by this rank, if peer >= 0
    std::unique_ptr<TransportLink> framed;  // over RDMA or ZeroMQ; peer >= 0
    size_t way = 0;                         // index into WaysTo(peer), if peer >= 0
    bool over = false;                      // became a link, or failed
    int fd() const { return tcp != nullptr ? tcp->fd() : local.fd(); }
  };

  absl::Status CheckChoice() const;
  std::string Unreachable(int peer, LinkChoice choice) const;
  std::vector<LinkChoice> WaysTo(int peer) const;
  absl::Status ConnectTo(int peer, size_t first_way);
  absl::Status ConnectOnce(int peer, LinkChoice choice, Attempt* attempt);
  absl::Status ConnectTcp(int peer, Attempt* attempt);
  absl::Status ConnectShm(int peer, Attempt* attempt);
  absl::Status ConnectFramed(TransportHub* hub, const std::string& address, int peer,
                             Attempt* attempt);
  void NoteWhy(int peer, LinkChoice taken);
  // The coordinator's verdict, or OK. From time to time also tells the coordinator which ranks are
  // still missing.
  absl::Status Verdict();
  void Wait();
  void AcceptNewcomers();
  void AcceptFramed(TransportHub* hub, LinkChoice choice);
  absl::Status Serve(Attempt& attempt);
  absl::Status ServeTcp(Attempt& attempt);
  absl::Status ServeLocal(Attempt& attempt);
  absl::Status ServeFramed(Attempt& attempt);
  absl::Status FallBack(Attempt& attempt, absl::string_view why);
  void AdmitTcp(Attempt& attempt, const rendezvous::LinkHello& hello);
  void AdmitShm(Attempt& attempt, transport::UnixMessage message);
  std::string Refusal(const rendezvous::LinkHello& hello) const;
  std::string RefusalOfShm(const rendezvous::LinkHello& hello,
                           const transport::UnixMessage& message) const;
  bool Takes(LinkChoice choice) const {
    const bool open = choice == LinkChoice::kTcp || choice == LinkChoice::kRdma;
    if (open && ports_.security().encrypts()) return false;
    return options_.links == LinkChoice::kAuto || options_.links == choice;
  }
  // `address`: of the rank that accepts. Its proof is worth nothing at another port.
  std::unique_ptr<MessageStream> NewTcp(OwnedFd socket, transport::Proof::Side side,
                                        const std::string& address) const {
    return std::make_unique<MessageStream>(
        std::move(socket), kMaxHelloBytes,
        NewProof(side, ports_.security().keys, absl::StrCat(kLinkPlace, address)));
  }
  void LogRefusal(absl::string_view why) {
    if (++refusals_ <= kMaxRefusals) Log(absl::StrCat("refused a connection: ", why));
  }
  void TcpLinked(Attempt& attempt, int peer);
  rendezvous::LinkHello HelloTo(int peer) const;
  std::vector<int> Missing() const;
  absl::Status Late() const;
  void Log(absl::string_view line) const {
    if (options_.log) options_.log(line);
  }

  const GroupMembership& group_;
  LinkPorts& ports_;
  const ConnectOptions& options_;
  const absl::Time deadline_;
  const uint64_t incarnation_;  // stamped into the frames of this group
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::string> why_;
  std::list<Attempt> attempts_;
  int refusals_ = 0;
  absl::Time ask_at_ = MonotonicNow() + kAsk;
};

absl::StatusOr<std::vector<std::unique_ptr<Link>>> Connector::Run() {
  TANDEM_RETURN_IF_ERROR(CheckChoice());
  for (int peer = 0; peer < group_.rank; ++peer) TANDEM_RETURN_IF_ERROR(ConnectTo(peer, 0));
  while (!Missing().empty()) {
    TANDEM_RETURN_IF_ERROR(Verdict());
    if (MonotonicNow() >= deadline_) return Late();
    Wait();
    AcceptNewcomers();
    for (Attempt& attempt : attempts_) {
      if (!attempt.over) TANDEM_RETURN_IF_ERROR(Serve(attempt));
    }
    attempts_.remove_if([](const Attempt& attempt) { return attempt.over; });
  }
  if (options_.why != nullptr) *options_.why = std::move(why_);
  return std::move(links_);
}

// The reason why this kind of link to the peer is impossible, as far as is known without trying;
// empty if it may be possible.
std::string Connector::Unreachable(int peer, LinkChoice choice) const {
  const GroupMember& member = group_.members[peer];
  switch (choice) {
    case LinkChoice::kShm:
      if (!group_.SameHost(peer, group_.rank)) return "another host";
      return member.unix_name.empty() ? "that rank does not accept shared memory" : "";
    case LinkChoice::kRdma:
      if (ports_.rdma() == nullptr) {
        return absl::StrCat("no RDMA here: ", ports_.rdma_missing().message());
      }
      return member.rdma_address.empty() ? "no RDMA there" : "";
    case LinkChoice::kZmq:
      return ports_.zmq() == nullptr || member.zmq_address.empty() ? "no ZeroMQ endpoint" : "";
    default:
      return "";
  }
}

absl::Status Connector::CheckChoice() const {
  for (int peer = 0; peer < group_.ranks(); ++peer) {
    if (peer == group_.rank) continue;
    const std::string why = Unreachable(peer, options_.links);
    if (why.empty()) continue;
    const absl::string_view cannot = options_.links == LinkChoice::kShm
                                         ? "does not share memory with"
                                         : "cannot be reached by the requested link from";
    return absl::FailedPreconditionError(absl::StrCat("rank ", peer, " (",
                                                      group_.members[peer].about, ") ", cannot,
                                                      " rank ", group_.rank, ": ", why));
  }
  return absl::OkStatus();
}

absl::Status Connector::Verdict() {
  if (options_.interrupted) TANDEM_RETURN_IF_ERROR(options_.interrupted());
  if (options_.watch == nullptr) return absl::OkStatus();
  if (const absl::Time now = MonotonicNow(); now >= ask_at_) {
    ask_at_ = now + kAsk;
    for (const int rank : Missing()) options_.watch->Want(rank);
  }
  return options_.watch->Verdict();
}

std::vector<int> Connector::Missing() const {
  std::vector<int> missing;
  for (int r = 0; r < group_.ranks(); ++r) {
    if (r != group_.rank && links_[r] == nullptr) missing.push_back(r);
  }
  return missing;
}

absl::Status Connector::Late() const {
  const std::vector<int> missing = Missing();
  absl::Status late = absl::DeadlineExceededError(
      absl::StrCat("rank ", group_.rank, " has no link to rank", missing.size() > 1 ? "s " : " ",
                   absl::StrJoin(missing, ", "), " in time"));
  if (options_.watch == nullptr) return late;
  return options_.watch->Agree(PeerLostError(missing[0], late.message()));
}

// ---- Connecting -------------------------------------------------------------

rendezvous::LinkHello Connector::HelloTo(int peer) const {
  rendezvous::LinkHello hello;
  hello.set_token(group_.token);
  hello.set_from(group_.rank);
  hello.set_to(peer);
  return hello;
}

// The kinds of link to try, the best first.
std::vector<LinkChoice> Connector::WaysTo(int peer) const {
  if (options_.links != LinkChoice::kAuto) return {options_.links};
  std::vector<LinkChoice> ways;
  for (const LinkChoice way : {LinkChoice::kShm, LinkChoice::kRdma}) {
    if (Takes(way) && Unreachable(peer, way).empty()) ways.push_back(way);
  }
  ways.push_back(ports_.security().encrypts() ? LinkChoice::kZmq : LinkChoice::kTcp);
  return ways;
}

// Begins an attempt with the first kind that works, starting at `first_way`.
absl::Status Connector::ConnectTo(int peer, size_t first_way) {
  const std::vector<LinkChoice> ways = WaysTo(peer);
  for (size_t way = first_way;; ++way) {
    Attempt attempt;
    attempt.peer = peer;
    attempt.way = way;
    const absl::Status begun = ConnectOnce(peer, ways[way], &attempt);
    if (begun.ok()) attempts_.push_back(std::move(attempt));
    if (begun.ok() || way + 1 == ways.size()) return begun;
    Log(absl::StrCat("no ", NameOf(ways[way]), " with rank ", peer, ", taking ",
                     NameOf(ways[way + 1]), ": ", begun.message()));
    why_[peer] = std::string(begun.message());
  }
}

absl::Status Connector::ConnectOnce(int peer, LinkChoice choice, Attempt* attempt) {
  const GroupMember& member = group_.members[peer];
  switch (choice) {
    case LinkChoice::kShm:
      return ConnectShm(peer, attempt);
    case LinkChoice::kRdma:
      return ConnectFramed(ports_.rdma(), member.rdma_address, peer, attempt);
    case LinkChoice::kZmq:
      return ConnectFramed(ports_.zmq(), member.zmq_address, peer, attempt);
    default:
      return ConnectTcp(peer, attempt);
  }
}

absl::Status Connector::ConnectTcp(int peer, Attempt* attempt) {
  const std::string& address = group_.members[peer].tcp_address;
  for (;;) {
    TANDEM_RETURN_IF_ERROR(Verdict());
    absl::StatusOr<OwnedFd> socket =
        ConnectTcpBy(address, std::min(deadline_, MonotonicNow() + kLook));
    if (socket.ok()) {
      attempt->tcp = NewTcp(*std::move(socket), transport::Proof::Side::kConnects, address);
      attempt->tcp->Send(HelloTo(peer));
      (void)attempt->tcp->Flush();  // a failure shows when the answer is read
      return absl::OkStatus();
    }
    if (!absl::IsUnavailable(socket.status())) return socket.status();
    if (MonotonicNow() >= deadline_) return Late();
  }
}

absl::Status Connector::ConnectShm(int peer, Attempt* attempt) {
  // A rank opens its socket before it joins the group. If no socket has this name now, the process
  // is gone, and trying again is useless.
  TANDEM_ASSIGN_OR_RETURN(
      attempt->local, transport::UnixLink::ConnectBy(group_.members[peer].unix_name,
                                                     std::min(deadline_, MonotonicNow() + kLook)));
  TANDEM_ASSIGN_OR_RETURN(attempt->rings, ShmLink::NewRings(options_.shm_capacity));
  const int fds[] = {attempt->rings[0].get(), attempt->rings[1].get()};
  return attempt->local.Send(HelloTo(peer).SerializeAsString(), fds);
}

absl::Status Connector::ConnectFramed(TransportHub* hub, const std::string& address, int peer,
                                      Attempt* attempt) {
  TANDEM_ASSIGN_OR_RETURN(attempt->framed,
                          hub->Connect(address, incarnation_, HelloTo(peer).SerializeAsString()));
  return absl::OkStatus();
}

// Records, for the summary of the job, why this kind of link was taken: its own reason, or the
// reason against a better kind.
void Connector::NoteWhy(int peer, LinkChoice taken) {
  std::string& why = why_[peer];
  if (options_.links != LinkChoice::kAuto) {
    why = "requested explicitly";
  } else if (taken == LinkChoice::kShm) {
    why = "same host";
  } else if (why.empty()) {
    const bool no_rdma = taken == LinkChoice::kRdma || ports_.security().encrypts();
    why = Unreachable(peer, no_rdma ? LinkChoice::kShm : LinkChoice::kRdma);
  }
}

// ---- Waiting and accepting --------------------------------------------------

void Connector::Wait() {
  std::vector<pollfd> polled = {{ports_.tcp().fd(), POLLIN, 0}, {ports_.local().fd(), POLLIN, 0}};
  for (const Attempt& attempt : attempts_) {
    if (attempt.framed == nullptr) polled.push_back({attempt.fd(), POLLIN, 0});
  }
  bool may_sleep = true;
  for (TransportHub* const hub : {ports_.rdma(), ports_.zmq()}) {
    if (hub == nullptr) continue;
    may_sleep = hub->PrepareToSleep() && may_sleep;
    polled.push_back({hub->fd(), POLLIN, 0});
  }
  if (options_.watch != nullptr) polled.push_back({options_.watch->fd(), POLLIN, 0});
  const absl::Duration left = std::min(kLook, deadline_ - MonotonicNow());
  const int64_t ms = std::max<int64_t>(0, absl::ToInt64Milliseconds(left)) + 1;
  (void)poll(polled.data(), polled.size(), may_sleep ? static_cast<int>(ms) : 0);
  for (TransportHub* const hub : {ports_.rdma(), ports_.zmq()}) {
    if (hub == nullptr) continue;
    hub->WakeUp();
    (void)hub->Poll();
  }
}

void Connector::AcceptNewcomers() {
  // Silent strangers must not keep the place of ranks that come later.
  const absl::Time now = MonotonicNow();
  attempts_.remove_if([now](const Attempt& attempt) {
    return attempt.peer < 0 && now - attempt.since > kHelloWithin;
  });
  while (attempts_.size() < kMaxNewcomers + links_.size()) {
    absl::StatusOr<OwnedFd> socket = ports_.tcp().Accept();
    if (!socket.ok()) break;
    attempts_.emplace_back().tcp = NewTcp(*std::move(socket), transport::Proof::Side::kAccepts,
                                          group_.members[group_.rank].tcp_address);
  }
  while (attempts_.size() < kMaxNewcomers + links_.size()) {
    absl::StatusOr<transport::UnixLink> local = ports_.local().Accept();
    if (absl::IsPermissionDenied(local.status())) LogRefusal(local.status().message());
    if (!local.ok()) break;
    attempts_.emplace_back().local = *std::move(local);
  }
  AcceptFramed(ports_.rdma(), LinkChoice::kRdma);
  AcceptFramed(ports_.zmq(), LinkChoice::kZmq);
}

void Connector::AcceptFramed(TransportHub* hub, LinkChoice choice) {
  if (hub == nullptr) return;
  while (const auto newcomer = hub->NextNewcomer()) {
    rendezvous::LinkHello hello;
    rendezvous::LinkReply reply;
    if (!hello.ParseFromString(newcomer->greeting)) {
      reply.set_refusal("not a hello");
    } else if (!Takes(choice)) {
      reply.set_refusal(absl::StrCat("this rank accepts ", NameOf(options_.links), " only"));
    } else {
      reply.set_refusal(Refusal(hello));
    }
    reply.set_welcome(reply.refusal().empty());
    if (reply.welcome()) {
      links_[hello.from()] = hub->Admit(*newcomer, incarnation_, reply.SerializeAsString());
    } else {
      LogRefusal(reply.refusal());
      hub->Refuse(*newcomer, reply.SerializeAsString());
    }
  }
}

absl::Status Connector::Serve(Attempt& attempt) {
  if (attempt.framed != nullptr) return ServeFramed(attempt);
  return attempt.tcp != nullptr ? ServeTcp(attempt) : ServeLocal(attempt);
}

absl::Status Connector::ServeFramed(Attempt& attempt) {
  const absl::optional<std::string>& answer = attempt.framed->answer();
  if (!answer.has_value() && attempt.framed->failure().ok()) return absl::OkStatus();
  attempt.over = true;
  if (!answer.has_value()) return FallBack(attempt, attempt.framed->failure().message());
  rendezvous::LinkReply reply;
  if (!reply.ParseFromString(*answer)) return FallBack(attempt, "its answer is invalid");
  if (!reply.welcome()) return FallBack(attempt, reply.refusal());
  NoteWhy(attempt.peer, WaysTo(attempt.peer)[attempt.way]);
  links_[attempt.peer] = std::move(attempt.framed);
  return absl::OkStatus();
}

// Reads the answer of a peer that this rank connected to, or the hello of a new peer.
//
// The hello of a new peer leads to a link or is refused, and never fails the group: a stranger must
// not be able to stop it. Only an attempt of this rank can fail the group; TCP is the last kind, so
// there is nothing left to try.
absl::Status Connector::ServeTcp(Attempt& attempt) {
  const absl::Status ended = attempt.tcp->Receive();
  rendezvous::LinkHello hello;
  rendezvous::LinkReply reply;
  const bool ours = attempt.peer >= 0;
  absl::StatusOr<bool> next = ours ? attempt.tcp->Next(&reply) : attempt.tcp->Next(&hello);
  if (next.ok() && !*next) {
    if (ended.ok()) return absl::OkStatus();
    next = ended;  // the connection has ended: no message will come
  }
  if (!ours) {
    if (next.ok()) {
      AdmitTcp(attempt, hello);
    } else {
      LogRefusal(next.status().message());
    }
    attempt.over = true;
    return absl::OkStatus();
  }
  attempt.over = true;
  if (next.ok() && reply.welcome()) {
    NoteWhy(attempt.peer, LinkChoice::kTcp);
    TcpLinked(attempt, attempt.peer);
    return absl::OkStatus();
  }
  const std::string why = next.ok() ? absl::StrCat("it refused the link: ", reply.refusal())
                                    : std::string(next.status().message());
  absl::Status failed = PeerLostError(attempt.peer, why);
  return options_.watch != nullptr ? options_.watch->Agree(failed) : failed;
}

void Connector::TcpLinked(Attempt& attempt, int peer) {
  auto [socket, rest] = attempt.tcp->Release();
  links_[peer] = std::make_unique<TcpLink>(
      std::move(socket),
      absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(rest.data()), rest.size()));
}

std::string Connector::Refusal(const rendezvous::LinkHello& hello) const {
  if (hello.token() != group_.token) return "not of this group";
  if (hello.to() != group_.rank || hello.from() <= group_.rank || hello.from() >= group_.ranks()) {
    return absl::StrCat("unexpected link from rank ", hello.from(), " to rank ", hello.to(),
                        " at rank ", group_.rank);
  }
  return "";
}

void Connector::AdmitTcp(Attempt& attempt, const rendezvous::LinkHello& hello) {
  rendezvous::LinkReply reply;
  reply.set_refusal(Refusal(hello));
  reply.set_welcome(reply.refusal().empty());
  attempt.tcp->Send(reply);
  const absl::Status sent = attempt.tcp->Flush();
  if (!reply.refusal().empty()) {
    LogRefusal(reply.refusal());
  } else if (sent.ok()) {
    TcpLinked(attempt, hello.from());
  }
}

absl::Status Connector::ServeLocal(Attempt& attempt) {
  absl::StatusOr<transport::UnixMessage> message = attempt.local.Receive();
  if (absl::IsNotFound(message.status())) return absl::OkStatus();
  attempt.over = true;
  if (attempt.peer < 0) {
    if (message.ok()) {
      AdmitShm(attempt, *std::move(message));
    } else {
      LogRefusal(message.status().message());
    }
    return absl::OkStatus();
  }
  if (!message.ok()) return FallBack(attempt, message.status().message());
  rendezvous::LinkReply reply;
  if (!reply.ParseFromString(message->bytes)) return FallBack(attempt, "its answer is invalid");
  if (!reply.welcome()) return FallBack(attempt, reply.refusal());
  absl::StatusOr<ShmLink::Mapped> mapped = ShmLink::Map(attempt.rings, true);
  if (!mapped.ok()) return FallBack(attempt, mapped.status().message());
  NoteWhy(attempt.peer, LinkChoice::kShm);
  links_[attempt.peer] = std::make_unique<ShmLink>(std::move(attempt.local), *std::move(mapped));
  return absl::OkStatus();
}

absl::Status Connector::FallBack(Attempt& attempt, absl::string_view why) {
  const std::vector<LinkChoice> ways = WaysTo(attempt.peer);
  if (attempt.way + 1 == ways.size()) {
    absl::Status failed = PeerLostError(attempt.peer, why);
    return options_.watch != nullptr ? options_.watch->Agree(failed) : failed;
  }
  Log(absl::StrCat("no ", NameOf(ways[attempt.way]), " with rank ", attempt.peer, ", taking ",
                   NameOf(ways[attempt.way + 1]), ": ", why));
  why_[attempt.peer] = std::string(why);
  return ConnectTo(attempt.peer, attempt.way + 1);
}

std::string Connector::RefusalOfShm(const rendezvous::LinkHello& hello,
                                    const transport::UnixMessage& message) const {
  if (message.fds.size() != 2) return "the hello has no shared memory";
  if (!Takes(LinkChoice::kShm)) {
    return absl::StrCat("this rank accepts ", NameOf(options_.links), " only");
  }
  return Refusal(hello);
}

void Connector::AdmitShm(Attempt& attempt, transport::UnixMessage message) {
  rendezvous::LinkHello hello;
  std::string refusal =
      hello.ParseFromString(message.bytes) ? RefusalOfShm(hello, message) : "not a hello";
  absl::StatusOr<ShmLink::Mapped> mapped = absl::UnavailableError("");
  if (refusal.empty()) {
    mapped = ShmLink::Map({std::move(message.fds[0]), std::move(message.fds[1])}, false);
    refusal = std::string(mapped.status().message());
  }
  rendezvous::LinkReply reply;
  reply.set_welcome(refusal.empty());
  reply.set_refusal(std::string(ClipText(refusal, kMaxHelloBytes)));
  const absl::Status sent = attempt.local.Send(reply.SerializeAsString());
  if (!refusal.empty()) {
    LogRefusal(absl::StrCat("shared memory: ", refusal));
  } else if (sent.ok()) {
    links_[hello.from()] = std::make_unique<ShmLink>(std::move(attempt.local), *std::move(mapped));
  }
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Link>>> ConnectLinks(const GroupMembership& membership,
                                                                LinkPorts& ports,
                                                                const ConnectOptions& options,
                                                                absl::Time deadline) {
  return Connector(membership, ports, options, deadline).Run();
}

}  // namespace tandem::collectives
