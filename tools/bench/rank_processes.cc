#include "tools/bench/rank_processes.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/errors.h"
#include "collectives/links/tcp_socket.h"
#include "collectives/rendezvous/connect_links.h"
#include "collectives/rendezvous/coordinator.h"
#include "collectives/rendezvous/coordinator_client.h"
#include "node/job_token.h"
#include "transport/unix_link.h"

namespace tandem::bench {
namespace {

constexpr absl::Duration kRendezvousTime = absl::Seconds(60);

// Chooses the error to report. An error that only says that another rank went away explains less
// than that rank's own error.
absl::Status TheCause(const std::vector<absl::Status>& by_rank) {
  absl::Status cause;
  for (const absl::Status& status : by_rank) {
    if (status.ok()) continue;
    if (cause.ok() ||
        (collectives::LostPeer(cause).has_value() && !collectives::LostPeer(status).has_value())) {
      cause = status;
    }
  }
  return cause;
}

struct Child {
  pid_t pid = -1;
  transport::UnixLink talk;  // carries the coordinator's address there, and an error back
};

[[noreturn]] void BeChild(const RankOptions& options, int rank, pid_t parent,
                          transport::UnixLink talk, const RankBody& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent died in between
  const absl::Time deadline = MonotonicNow() + kRendezvousTime;
  const auto coordinator = talk.ReceiveBy(deadline);
  const absl::Status status = coordinator.ok()
                                  ? RunRank(options, coordinator->bytes, rank, deadline, body)
                                  : coordinator.status();
  if (status.ok()) _exit(0);
  const std::string text = absl::StrCat(collectives::LostPeer(status).has_value() ? "L" : "-",
                                        "rank ", rank, ": ", status.message());
  (void)talk.Send(text.substr(0, transport::UnixLink::kMaxMessageBytes));
  _exit(1);
}

absl::Status Ended(Child& child, int rank) {
  const std::optional<int> status = WaitForEnd(child.pid);
  if (status.has_value() && WIFEXITED(*status) && WEXITSTATUS(*status) == 0) {
    return absl::OkStatus();
  }
  if (const auto text = child.talk.Receive(); text.ok()) {
    const std::string why = text->bytes.substr(1);
    return text->bytes[0] == 'L' ? collectives::PeerLostError(rank, why) : absl::InternalError(why);
  }
  return absl::InternalError(
      !status.has_value() ? absl::StrCat("rank ", rank, " ended (its exit status is not known)")
      : WIFSIGNALED(*status)
          ? absl::StrCat("rank ", rank, " was ended by signal ", strsignal(WTERMSIG(*status)))
          : absl::StrCat("rank ", rank, " has failed"));
}

// Forks the other ranks, by rank. Rank 0 has no child.
absl::Status Fork(const RankOptions& options, const RankBody& body, std::vector<Child>* children) {
  const pid_t parent = getpid();
  for (int rank = 1; rank < options.ranks; ++rank) {
    TANDEM_ASSIGN_OR_RETURN(auto talk, transport::UnixLink::Pair());
    Child& child = (*children)[static_cast<size_t>(rank)];
    child.talk = std::move(talk.first);
    child.pid = fork();
    if (child.pid == 0) BeChild(options, rank, parent, std::move(talk.second), body);
    if (child.pid < 0) {
      return absl::ResourceExhaustedError(absl::StrCat("fork: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

// Starts the coordinator, whose thread must not exist before the forks, and is rank 0.
absl::Status BeRankZero(const RankOptions& options, const RankBody& body,
                        std::vector<Child>& children,
                        std::unique_ptr<collectives::Coordinator>* coordinator) {
  collectives::CoordinatorOptions listen;
  listen.own_rank = 0;
  TANDEM_ASSIGN_OR_RETURN(listen.keys, node::FindKeys(/*folder=*/""));
  TANDEM_ASSIGN_OR_RETURN(*coordinator, collectives::Coordinator::Start(std::move(listen)));
  const std::string& address = (*coordinator)->address();
  for (size_t r = 1; r < children.size(); ++r) {
    TANDEM_RETURN_IF_ERROR(children[r].talk.Send(address));
  }
  return RunRank(options, address, 0, MonotonicNow() + kRendezvousTime, body);
}

}  // namespace

absl::Status RunRank(const RankOptions& options, const std::string& coordinator, int rank,
                     absl::Time deadline, const RankBody& body) {
  TANDEM_ASSIGN_OR_RETURN(const std::string host, collectives::LocalHostTowards(coordinator));
  TANDEM_ASSIGN_OR_RETURN(const collectives::LinkChoice choice,
                          collectives::LinkChoiceOf(options.link));
  collectives::GroupSecurity security;
  TANDEM_ASSIGN_OR_RETURN(security.keys, node::FindKeys(/*folder=*/""));
  TANDEM_ASSIGN_OR_RETURN(collectives::LinkPorts ports,
                          collectives::LinkPorts::Open(host, choice, security));
  collectives::JoinOptions join;
  join.coordinator = coordinator;
  join.group = "bench";
  join.rank = rank;
  join.ranks = options.ranks;
  join.keys = security.keys;
  join.member = ports.member();
  TANDEM_ASSIGN_OR_RETURN(const auto client, collectives::CoordinatorClient::Join(join, deadline));
  const collectives::GroupMembership membership = client->membership();
  collectives::ConnectOptions connect;
  connect.links = choice;
  connect.watch = client.get();
  TANDEM_ASSIGN_OR_RETURN(auto links,
                          collectives::ConnectLinks(membership, ports, connect, deadline));
  collectives::GroupOptions group;
  group.host_of_rank = membership.HostOfRank();
  group.watch = client.get();
  return body(membership.rank, std::move(links), group);
}

absl::Status RunRanks(const RankOptions& options, const RankBody& body) {
  if (options.ranks < 1 || options.ranks > 256) {
    return absl::InvalidArgumentError(absl::StrCat(options.ranks, " ranks, expected 1 to 256"));
  }
  std::vector<Child> children(static_cast<size_t>(options.ranks));
  std::vector<absl::Status> statuses(children.size());
  std::unique_ptr<collectives::Coordinator> coordinator;
  const absl::Status started = Fork(options, body, &children);
  statuses[0] = started.ok() ? BeRankZero(options, body, children, &coordinator) : started;
  for (size_t r = 1; r < children.size(); ++r) {
    if (children[r].pid < 0) continue;
    if (coordinator == nullptr) kill(children[r].pid, SIGKILL);
    statuses[r] = Ended(children[r], static_cast<int>(r));
  }
  return TheCause(statuses);
}

}  // namespace tandem::bench
