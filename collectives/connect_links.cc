#include "collectives/connect_links.h"

#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <list>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "collectives/errors.h"
#include "collectives/links/tcp_link.h"
#include "collectives/message_stream.h"
#include "proto/collectives.pb.h"

namespace tandem {
namespace {

constexpr size_t kMaxHelloBytes = 256;
constexpr size_t kMaxNewcomers = 1024;
constexpr absl::Duration kLook = absl::Milliseconds(50);
constexpr absl::Duration kAsk = absl::Milliseconds(250);

std::string RandomName() {
  char bytes[12];
  TANDEM_CHECK(getrandom(bytes, sizeof bytes, 0) == sizeof bytes);
  return absl::StrCat("tandem-links-", absl::BytesToHexString({bytes, sizeof bytes}));
}

// One call of ConnectLinks.
class Connector {
 public:
  Connector(const Membership& membership, LinkPorts& ports, const ConnectOptions& options,
            absl::Time deadline)
      : group_(membership),
        ports_(ports),
        options_(options),
        deadline_(deadline),
        links_(membership.members.size()) {}

  absl::StatusOr<std::vector<std::unique_ptr<Link>>> Run();

 private:
  // A connection that is not a link yet.
  struct Attempt {
    int peer = -1;  // -1: a newcomer who has not said who it is
    std::unique_ptr<MessageStream> tcp;
    UnixLink local;
    ShmLink::Rings rings;  // made by us; peer >= 0 and local
    bool over = false;
    int fd() const { return tcp != nullptr ? tcp->fd() : local.fd(); }
  };

  absl::Status CheckChoice() const;
  absl::Status ConnectTo(int peer);
  absl::Status ConnectTcp(int peer);
  absl::Status ConnectShm(int peer);
  absl::Status Verdict();  // asks, now and then, after those who do not come
  void Wait();
  void AcceptNewcomers();
  absl::Status Serve(Attempt& attempt);
  absl::Status ServeTcp(Attempt& attempt);
  absl::Status ServeLocal(Attempt& attempt);
  absl::Status FallBack(Attempt& attempt, absl::string_view why);
  void AdmitTcp(Attempt& attempt, const rendezvous::LinkHello& hello);
  void AdmitShm(Attempt& attempt, UnixMessage message);
  std::string Refusal(const rendezvous::LinkHello& hello) const;
  std::string RefusalOfShm(const rendezvous::LinkHello& hello, const UnixMessage& message) const;
  void TcpLinked(Attempt& attempt, int peer);
  rendezvous::LinkHello HelloTo(int peer) const;
  std::vector<int> Missing() const;
  absl::Status Late() const;
  void Log(absl::string_view line) const {
    if (options_.log) options_.log(line);
  }

  const Membership& group_;
  LinkPorts& ports_;
  const ConnectOptions& options_;
  const absl::Time deadline_;
  std::vector<std::unique_ptr<Link>> links_;
  std::list<Attempt> attempts_;
  absl::Time ask_at_ = absl::Now() + kAsk;
};

absl::StatusOr<std::vector<std::unique_ptr<Link>>> Connector::Run() {
  TANDEM_RETURN_IF_ERROR(CheckChoice());
  for (int peer = 0; peer < group_.rank; ++peer) TANDEM_RETURN_IF_ERROR(ConnectTo(peer));
  while (!Missing().empty()) {
    TANDEM_RETURN_IF_ERROR(Verdict());
    if (absl::Now() >= deadline_) return Late();
    Wait();
    AcceptNewcomers();
    for (Attempt& attempt : attempts_) {
      if (!attempt.over) TANDEM_RETURN_IF_ERROR(Serve(attempt));
    }
    attempts_.remove_if([](const Attempt& attempt) { return attempt.over; });
  }
  return std::move(links_);
}

absl::Status Connector::CheckChoice() const {
  for (int peer = 0; peer < group_.ranks(); ++peer) {
    if (options_.links != LinkChoice::kShm || peer == group_.rank) continue;
    if (group_.SameHost(peer, group_.rank) && !group_.members[peer].unix_name.empty()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", peer, " (", group_.members[peer].about,
                     ") does not share memory with rank ", group_.rank));
  }
  return absl::OkStatus();
}

absl::Status Connector::Verdict() {
  if (options_.watch == nullptr) return absl::OkStatus();
  if (const absl::Time now = absl::Now(); now >= ask_at_) {
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

absl::Status Connector::ConnectTo(int peer) {
  const GroupMember& member = group_.members[peer];
  const bool local = group_.SameHost(peer, group_.rank) && !member.unix_name.empty();
  if (options_.links == LinkChoice::kTcp || !local) return ConnectTcp(peer);
  const absl::Status shm = ConnectShm(peer);
  if (shm.ok() || options_.links == LinkChoice::kShm) return shm;
  Log(absl::StrCat("no shared memory with rank ", peer, ", taking TCP: ", shm.message()));
  return ConnectTcp(peer);
}

absl::Status Connector::ConnectTcp(int peer) {
  const std::string& address = group_.members[peer].tcp_address;
  for (;;) {
    TANDEM_RETURN_IF_ERROR(Verdict());
    absl::StatusOr<OwnedFd> socket =
        ConnectTcpBy(address, std::min(deadline_, absl::Now() + kLook));
    if (socket.ok()) {
      Attempt& attempt = attempts_.emplace_back();
      attempt.peer = peer;
      attempt.tcp = std::make_unique<MessageStream>(*std::move(socket), kMaxHelloBytes);
      attempt.tcp->Send(HelloTo(peer));
      (void)attempt.tcp->Flush();  // a failure shows when the answer is read
      return absl::OkStatus();
    }
    if (!absl::IsUnavailable(socket.status())) return socket.status();
    if (absl::Now() >= deadline_) return Late();
  }
}

absl::Status Connector::ConnectShm(int peer) {
  Attempt attempt;
  attempt.peer = peer;
  // The name exists since before the group met: whoever has none now has gone.
  TANDEM_ASSIGN_OR_RETURN(attempt.local,
                          UnixLink::ConnectBy(group_.members[peer].unix_name,
                                              std::min(deadline_, absl::Now() + kLook)));
  TANDEM_ASSIGN_OR_RETURN(attempt.rings, ShmLink::NewRings(options_.shm_capacity));
  const int fds[] = {attempt.rings[0].get(), attempt.rings[1].get()};
  TANDEM_RETURN_IF_ERROR(attempt.local.Send(HelloTo(peer).SerializeAsString(), fds));
  attempts_.push_back(std::move(attempt));
  return absl::OkStatus();
}

// ---- Waiting, and being connected to ----------------------------------------

void Connector::Wait() {
  std::vector<pollfd> polled = {{ports_.tcp().fd(), POLLIN, 0}, {ports_.local().fd(), POLLIN, 0}};
  for (const Attempt& attempt : attempts_) polled.push_back({attempt.fd(), POLLIN, 0});
  if (options_.watch != nullptr) polled.push_back({options_.watch->fd(), POLLIN, 0});
  const absl::Duration left = std::min(kLook, deadline_ - absl::Now());
  (void)poll(polled.data(), polled.size(),
             static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(left))) + 1);
}

void Connector::AcceptNewcomers() {
  while (attempts_.size() < kMaxNewcomers + links_.size()) {
    absl::StatusOr<OwnedFd> socket = ports_.tcp().Accept();
    if (!socket.ok()) break;
    attempts_.emplace_back().tcp =
        std::make_unique<MessageStream>(*std::move(socket), kMaxHelloBytes);
  }
  while (attempts_.size() < kMaxNewcomers + links_.size()) {
    absl::StatusOr<UnixLink> local = ports_.local().Accept();
    if (absl::IsPermissionDenied(local.status())) Log(local.status().message());
    if (!local.ok()) break;
    attempts_.emplace_back().local = *std::move(local);
  }
}

absl::Status Connector::Serve(Attempt& attempt) {
  return attempt.tcp != nullptr ? ServeTcp(attempt) : ServeLocal(attempt);
}

// Looks for the answer of a peer, or the hello of a newcomer.
absl::Status Connector::ServeTcp(Attempt& attempt) {
  const absl::Status ended = attempt.tcp->Receive();
  rendezvous::LinkHello hello;
  rendezvous::LinkReply reply;
  const bool ours = attempt.peer >= 0;
  absl::StatusOr<bool> next = ours ? attempt.tcp->Next(&reply) : attempt.tcp->Next(&hello);
  if (next.ok() && !*next) {
    if (ended.ok()) return absl::OkStatus();
    next = ended;  // nothing will come
  }
  if (!ours) {
    if (next.ok()) {
      AdmitTcp(attempt, hello);
    } else {
      Log(absl::StrCat("refused a stranger: ", next.status().message()));
    }
    attempt.over = true;
    return absl::OkStatus();
  }
  attempt.over = true;
  if (next.ok() && reply.welcome()) {
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
    return absl::StrCat("a link from rank ", hello.from(), " to rank ", hello.to(),
                        " has no place at rank ", group_.rank);
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
    Log(absl::StrCat("refused a stranger: ", reply.refusal()));
  } else if (sent.ok()) {
    TcpLinked(attempt, hello.from());
  }
}

absl::Status Connector::ServeLocal(Attempt& attempt) {
  absl::StatusOr<UnixMessage> message = attempt.local.Receive();
  if (absl::IsNotFound(message.status())) return absl::OkStatus();
  attempt.over = true;
  if (attempt.peer < 0) {
    if (message.ok()) {
      AdmitShm(attempt, *std::move(message));
    } else {
      Log(absl::StrCat("refused a stranger: ", message.status().message()));
    }
    return absl::OkStatus();
  }
  if (!message.ok()) return FallBack(attempt, message.status().message());
  rendezvous::LinkReply reply;
  if (!reply.ParseFromString(message->bytes)) return FallBack(attempt, "its answer is none");
  if (!reply.welcome()) return FallBack(attempt, reply.refusal());
  absl::StatusOr<ShmLink::Mapped> mapped = ShmLink::Map(attempt.rings, true);
  if (!mapped.ok()) return FallBack(attempt, mapped.status().message());
  links_[attempt.peer] = std::make_unique<ShmLink>(std::move(attempt.local), *std::move(mapped));
  return absl::OkStatus();
}

absl::Status Connector::FallBack(Attempt& attempt, absl::string_view why) {
  if (options_.links == LinkChoice::kShm) return PeerLostError(attempt.peer, why);
  Log(absl::StrCat("no shared memory with rank ", attempt.peer, ", taking TCP: ", why));
  return ConnectTcp(attempt.peer);
}

std::string Connector::RefusalOfShm(const rendezvous::LinkHello& hello,
                                    const UnixMessage& message) const {
  if (message.fds.size() != 2) return "a hello without rings";
  if (options_.links == LinkChoice::kTcp) return "takes TCP only";
  return Refusal(hello);
}

void Connector::AdmitShm(Attempt& attempt, UnixMessage message) {
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
  reply.set_refusal(refusal.substr(0, kMaxHelloBytes));
  const absl::Status sent = attempt.local.Send(reply.SerializeAsString());
  if (!refusal.empty()) {
    Log(absl::StrCat("refused shared memory: ", refusal));
  } else if (sent.ok()) {
    links_[hello.from()] = std::make_unique<ShmLink>(std::move(attempt.local), *std::move(mapped));
  }
}

}  // namespace

absl::StatusOr<LinkPorts> LinkPorts::Open(absl::string_view host) {
  LinkPorts ports;
  TANDEM_ASSIGN_OR_RETURN(ports.tcp_, TcpListener::Bind(absl::StrCat(host, ":0")));
  ports.local_name_ = RandomName();
  TANDEM_ASSIGN_OR_RETURN(ports.local_, UnixListener::Bind(ports.local_name_));
  return ports;
}

GroupMember LinkPorts::member() const {
  GroupMember member;
  member.host = HostIdentity();
  member.tcp_address = tcp_.address();
  member.unix_name = local_name_;
  member.about = AboutThisProcess();
  return member;
}

absl::StatusOr<std::vector<std::unique_ptr<Link>>> ConnectLinks(const Membership& membership,
                                                                LinkPorts& ports,
                                                                const ConnectOptions& options,
                                                                absl::Time deadline) {
  return Connector(membership, ports, options, deadline).Run();
}

}  // namespace tandem
