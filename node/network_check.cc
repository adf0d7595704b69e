#include "node/network_check.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/owned_fd.h"
#include "base/status_macros.h"
#include "transport/tcp_address.h"

namespace tandem::node {
namespace {

constexpr absl::Duration kAnswerWithin = absl::Milliseconds(300);

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// `at.host`: a name or a number; `flags`: for getaddrinfo.
absl::StatusOr<AddressList> Resolve(const transport::TcpAddress& at, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const char* const host = at.host == "*" ? "0.0.0.0" : at.host.c_str();
  const char* const port = at.port == "*" ? "0" : at.port.c_str();
  const int failed = getaddrinfo(host, port, &hints, &found);
  if (failed == 0) return AddressList(found, &freeaddrinfo);
  return absl::InvalidArgumentError(
      absl::StrCat("host '", at.host, "' is not known: ", gai_strerror(failed)));
}

// True when one of `events` has come in time.
bool WaitFor(int fd, short events) {
  pollfd wait = {fd, events, 0};
  return poll(&wait, 1, static_cast<int>(absl::ToInt64Milliseconds(kAnswerWithin))) == 1;
}

// Returns 0 if it connected, ETIMEDOUT if there was no answer, or another errno.
int Connect(const addrinfo& to, int fd) {
  if (connect(fd, to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!WaitFor(fd, POLLOUT)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

// ZeroMQ, in any program, greets each new connection with this byte.
bool GreetsAsZmq(int fd) {
  unsigned char first = 0;
  return WaitFor(fd, POLLIN) && recv(fd, &first, 1, MSG_DONTWAIT) == 1 && first == 0xff;
}

// What connecting to the addresses of a host has shown.
struct Probe {
  absl::Status known;      // not OK: the host is not
  bool connected = false;  // to one of them
  bool greeted = false;    // as ZeroMQ does
  int error = 0;           // of the first one that failed
};

Probe ProbeAddress(const transport::TcpAddress& at) {
  Probe probe;
  const absl::StatusOr<AddressList> list = Resolve(at, 0);
  probe.known = list.status();
  if (!list.ok()) return probe;
  for (const addrinfo* to = list->get(); to != nullptr && !probe.connected; to = to->ai_next) {
    const OwnedFd fd(socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int failed = Connect(*to, fd.get());
    probe.connected = failed == 0;
    probe.greeted = probe.connected && GreetsAsZmq(fd.get());
    if (probe.error == 0) probe.error = failed;
  }
  return probe;
}

}  // namespace

absl::Status CheckBind(const std::string& bind, const std::string& advertise) {
  const transport::TcpAddress given = transport::SplitTcpAddress(bind);
  if (!given.valid()) return absl::OkStatus();
  if (given.AllHosts() && advertise.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--bind ", bind,
        ": listens on all addresses of this host, so others do not know by which "
        "one to reach it; hint: --advertise HOST, or bind the address of one network"));
  }
  const auto refused = [&bind](const absl::Status& why) {
    return absl::Status(why.code(), absl::StrCat("--bind ", bind, ": ", why.message()));
  };
  const absl::StatusOr<std::string> where = transport::ResolveToBind(bind);
  if (!where.ok()) return refused(where.status());
  const auto list = Resolve(transport::SplitTcpAddress(*where), AI_PASSIVE | AI_NUMERICHOST);
  if (!list.ok()) return refused(list.status());
  const OwnedFd fd(socket((*list)->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return refused(absl::InvalidArgumentError(std::strerror(errno)));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), (*list)->ai_addr, (*list)->ai_addrlen) == 0 && listen(fd.get(), 1) == 0) {
    return absl::OkStatus();
  }
  if (errno != EADDRINUSE) return refused(absl::InvalidArgumentError(std::strerror(errno)));
  const bool any = given.port == "*" || given.port == "0";
  return refused(absl::UnavailableError(
      absl::StrCat(std::strerror(EADDRINUSE),
                   any ? ": no port is free; hint: sysctl net.ipv4.ip_local_port_range"
                       : "; hint: another port, or * for any free one")));
}

absl::Status CheckAddresses(const RoleFlags& flags) {
  TANDEM_RETURN_IF_ERROR(CheckBind(flags.bind, flags.advertise));
  const transport::TcpAddress scheduler = transport::SplitTcpAddress(flags.scheduler);
  if (!scheduler.valid()) return absl::OkStatus();
  const absl::Status known = Resolve(scheduler, 0).status();
  if (known.ok()) return known;
  return absl::InvalidArgumentError(absl::StrCat("--scheduler: ", known.message()));
}

absl::Status CheckLoopback() {
  const auto failed = [](int error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the processes of a run connect through 127.0.0.1, which cannot be reached: ",
                     std::strerror(error),
                     "; hint: ip link set lo up; if it is up: ip addr add 127.0.0.1/8 dev lo"));
  };
  const OwnedFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid()) return absl::OkStatus();  // another limit, which other checks report
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  const auto address = reinterpret_cast<sockaddr*>(&at);
  if (::bind(listener.get(), address, size) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), address, &size) != 0) {
    return failed(errno);
  }
  const OwnedFd fd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::OkStatus();
  addrinfo to = {};
  to.ai_addr = address;
  to.ai_addrlen = size;
  const int error = Connect(to, fd.get());
  return error == 0 || error == ETIMEDOUT ? absl::OkStatus() : failed(error);
}

std::string WhyNoAnswer(const std::string& address) {
  constexpr char kHint[] = "; hint: is it running?";
  const transport::TcpAddress at = transport::SplitTcpAddress(address);
  if (!at.valid()) return absl::StrCat("no answer", kHint);
  const Probe probe = ProbeAddress(at);
  if (!probe.known.ok()) return std::string(probe.known.message());
  if (probe.greeted) {
    return "a program with ZeroMQ answers there, but a scheduler writes only after all nodes "
           "have registered; hint: start the other nodes; or is the scheduler stopped?";
  }
  if (probe.connected) {
    return "something else answers there, not a scheduler; hint: correct the address";
  }
  return absl::StrCat(std::strerror(probe.error), kHint);
}

bool AnswersAsZmq(const std::string& address) {
  const transport::TcpAddress at = transport::SplitTcpAddress(address);
  return at.valid() && ProbeAddress(at).greeted;
}

bool IsRefused(const std::string& address) {
  const transport::TcpAddress at = transport::SplitTcpAddress(address);
  if (!at.valid()) return false;
  const Probe probe = ProbeAddress(at);
  return probe.known.ok() && !probe.connected && probe.error == ECONNREFUSED;
}

}  // namespace tandem::node
