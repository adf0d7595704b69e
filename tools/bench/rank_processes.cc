#include "tools/bench/rank_processes.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "collectives/errors.h"
#include "collectives/links/in_memory_link.h"
#include "collectives/links/tcp_link.h"
#include "collectives/links/tcp_socket.h"
#include "collectives/rendezvous/connect_links.h"

namespace tandem::bench {
namespace {

using Links = std::vector<std::unique_ptr<collectives::Link>>;

// The parts from which a process makes its end of a link after the fork. The link itself must not
// exist before the fork: its copy in another process would say goodbye for it.
struct LinkParts {
  OwnedFd tcp;
  transport::UnixLink shm;  // over RDMA and ZeroMQ: carries the peer's address
  std::shared_ptr<collectives::ShmLink::Rings> rings;
  bool maker = false;
  std::unique_ptr<collectives::Link> memory;
};

bool IsFramed(absl::string_view link) { return link == "rdma" || link == "zmq"; }

absl::StatusOr<std::array<LinkParts, 2>> NewParts(const RankOptions& options) {
  std::array<LinkParts, 2> ends;
  if (options.link == "tcp") {
    TANDEM_ASSIGN_OR_RETURN(auto pair, collectives::TcpPair());
    ends[0].tcp = std::move(pair.first);
    ends[1].tcp = std::move(pair.second);
  } else if (options.link == "shm") {
    TANDEM_ASSIGN_OR_RETURN(auto sockets, transport::UnixLink::Pair());
    TANDEM_ASSIGN_OR_RETURN(collectives::ShmLink::Rings rings,
                            collectives::ShmLink::NewRings(options.ring_bytes));
    ends[0].shm = std::move(sockets.first);
    ends[1].shm = std::move(sockets.second);
    ends[0].rings = ends[1].rings = std::make_shared<collectives::ShmLink::Rings>(std::move(rings));
    ends[0].maker = true;
  } else if (IsFramed(options.link)) {
    TANDEM_ASSIGN_OR_RETURN(auto sockets, transport::UnixLink::Pair());
    ends[0].shm = std::move(sockets.first);
    ends[1].shm = std::move(sockets.second);
  } else {
    collectives::InMemoryLinkOptions memory;
    memory.capacity = size_t{1} << 20;
    collectives::InMemoryLink::Pair pair = collectives::InMemoryLink::NewPair(memory);
    ends[0].memory = std::move(pair[0]);
    ends[1].memory = std::move(pair[1]);
  }
  return ends;
}

absl::StatusOr<std::unique_ptr<collectives::Link>> MakeLink(LinkParts parts) {
  if (parts.memory != nullptr) return std::move(parts.memory);
  if (parts.tcp.valid()) return std::make_unique<collectives::TcpLink>(std::move(parts.tcp));
  TANDEM_ASSIGN_OR_RETURN(collectives::ShmLink::Mapped rings,
                          collectives::ShmLink::Map(*parts.rings, parts.maker));
  return std::make_unique<collectives::ShmLink>(std::move(parts.shm), std::move(rings));
}

using Mesh = std::vector<std::vector<LinkParts>>;  // [rank][peer]

absl::StatusOr<Mesh> NewMesh(const RankOptions& options) {
  Mesh mesh(static_cast<size_t>(options.ranks));
  for (auto& row : mesh) row.resize(mesh.size());
  for (size_t a = 0; a < mesh.size(); ++a) {
    for (size_t b = a + 1; b < mesh.size(); ++b) {
      TANDEM_ASSIGN_OR_RETURN(auto ends, NewParts(options));
      mesh[a][b] = std::move(ends[0]);
      mesh[b][a] = std::move(ends[1]);
    }
  }
  return mesh;
}

constexpr absl::Duration kMeet = absl::Seconds(60);

// Endpoints cannot be made before the fork. Each rank opens its own and tells the others its
// address.
absl::StatusOr<Links> ConnectFramed(int rank, collectives::LinkChoice choice,
                                    std::vector<LinkParts> parts) {
  const absl::Time deadline = MonotonicNow() + kMeet;
  TANDEM_ASSIGN_OR_RETURN(collectives::LinkPorts ports,
                          collectives::LinkPorts::Open("127.0.0.1", choice));
  collectives::GroupMembership group;
  group.rank = rank;
  group.token = "ranks of one benchmark";
  group.members.resize(parts.size());
  const collectives::GroupMember own = ports.member();
  const std::string& address =
      choice == collectives::LinkChoice::kRdma ? own.rdma_address : own.zmq_address;
  for (size_t r = 0; r < parts.size(); ++r) {
    group.members[r] = own;
    if (static_cast<int>(r) == rank) continue;
    TANDEM_RETURN_IF_ERROR(parts[r].shm.Send(address));
  }
  for (size_t r = 0; r < parts.size(); ++r) {
    if (static_cast<int>(r) == rank) continue;
    TANDEM_ASSIGN_OR_RETURN(const transport::UnixMessage told, parts[r].shm.ReceiveBy(deadline));
    collectives::GroupMember& member = group.members[r];
    (choice == collectives::LinkChoice::kRdma ? member.rdma_address : member.zmq_address) =
        told.bytes;
  }
  collectives::ConnectOptions connect;
  connect.links = choice;
  return collectives::ConnectLinks(group, ports, connect, deadline);
}

absl::Status RunRank(const RankOptions& options, int rank, std::vector<LinkParts> parts,
                     const RankBody& body) {
  if (IsFramed(options.link)) {
    TANDEM_ASSIGN_OR_RETURN(const collectives::LinkChoice choice,
                            collectives::LinkChoiceOf(options.link));
    TANDEM_ASSIGN_OR_RETURN(Links links, ConnectFramed(rank, choice, std::move(parts)));
    return body(rank, std::move(links));
  }
  Links links(parts.size());
  for (size_t r = 0; r < parts.size(); ++r) {
    if (static_cast<int>(r) == rank) continue;
    TANDEM_ASSIGN_OR_RETURN(links[r], MakeLink(std::move(parts[r])));
  }
  return body(rank, std::move(links));
}

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

absl::Status RunThreads(const RankOptions& options, Mesh mesh, const RankBody& body) {
  std::vector<absl::Status> statuses(mesh.size());
  std::vector<std::thread> threads;
  for (size_t r = 1; r < mesh.size(); ++r) {
    threads.emplace_back([&options, &statuses, &body, r, parts = std::move(mesh[r])]() mutable {
      statuses[r] = RunRank(options, static_cast<int>(r), std::move(parts), body);
    });
  }
  statuses[0] = RunRank(options, 0, std::move(mesh[0]), body);
  for (std::thread& thread : threads) thread.join();
  return TheCause(statuses);
}

struct Child {
  pid_t pid = -1;
  OwnedFd why;  // the child writes its error here
};

[[noreturn]] void BeChild(const RankOptions& options, int rank, pid_t parent, int why, Mesh mesh,
                          const RankBody& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent died in between
  std::vector<LinkParts> own = std::move(mesh[static_cast<size_t>(rank)]);
  mesh.clear();  // closes the ends of other ranks, so that their end is noticed
  const absl::Status status = RunRank(options, rank, std::move(own), body);
  if (status.ok()) _exit(0);
  const std::string text = absl::StrCat(collectives::LostPeer(status).has_value() ? "L" : "-",
                                        "rank ", rank, ": ", status.message());
  (void)!write(why, text.data(), text.size());
  _exit(1);
}

absl::Status Ended(const Child& child, int rank) {
  const std::optional<int> status = WaitForEnd(child.pid);
  if (status.has_value() && WIFEXITED(*status) && WEXITSTATUS(*status) == 0) {
    return absl::OkStatus();
  }
  char text[4096];
  const ssize_t n = read(child.why.get(), text, sizeof text);
  if (n > 1) {
    const absl::string_view why(text + 1, static_cast<size_t>(n - 1));
    return text[0] == 'L' ? collectives::PeerLostError(rank, why) : absl::InternalError(why);
  }
  return absl::InternalError(
      !status.has_value() ? absl::StrCat("rank ", rank, " ended (its exit status is not known)")
      : WIFSIGNALED(*status)
          ? absl::StrCat("rank ", rank, " was ended by signal ", strsignal(WTERMSIG(*status)))
          : absl::StrCat("rank ", rank, " has failed"));
}

absl::Status RunProcesses(const RankOptions& options, Mesh mesh, const RankBody& body) {
  std::vector<Child> children(mesh.size());
  const pid_t parent = getpid();
  absl::Status started;
  for (size_t r = 1; r < mesh.size() && started.ok(); ++r) {
    int ends[2];
    if (pipe(ends) != 0) {
      started = absl::ResourceExhaustedError(absl::StrCat("pipe: ", std::strerror(errno)));
      break;
    }
    children[r].why = OwnedFd(ends[0]);
    const OwnedFd write_end(ends[1]);
    children[r].pid = fork();
    if (children[r].pid == 0) {
      BeChild(options, static_cast<int>(r), parent, write_end.get(), std::move(mesh), body);
    }
    if (children[r].pid < 0) {
      started = absl::ResourceExhaustedError(absl::StrCat("fork: ", std::strerror(errno)));
    }
  }
  std::vector<absl::Status> statuses(mesh.size());
  std::vector<LinkParts> own = std::move(mesh[0]);
  mesh.clear();
  statuses[0] = started.ok() ? RunRank(options, 0, std::move(own), body) : started;
  for (size_t r = 1; r < children.size(); ++r) {
    if (children[r].pid < 0) continue;
    if (!started.ok()) kill(children[r].pid, SIGKILL);
    statuses[r] = Ended(children[r], static_cast<int>(r));
  }
  return TheCause(statuses);
}

}  // namespace

absl::Status RunRanks(const RankOptions& options, const RankBody& body) {
  const std::string& link = options.link;
  if (link != "shm" && link != "tcp" && link != "memory" && !IsFramed(link)) {
    return absl::InvalidArgumentError(
        absl::StrCat("link '", link, "': want shm, tcp, rdma, zmq or memory"));
  }
  if (options.ranks < 1 || options.ranks > 256) {
    return absl::InvalidArgumentError(absl::StrCat(options.ranks, " ranks, want 1 to 256"));
  }
  TANDEM_ASSIGN_OR_RETURN(Mesh mesh, NewMesh(options));
  if (link == "memory") return RunThreads(options, std::move(mesh), body);
  return RunProcesses(options, std::move(mesh), body);
}

}  // namespace tandem::bench
