#include "collectives/links/tcp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace tandem::collectives {
namespace {

constexpr int kNewcomers = 1024;
constexpr absl::Duration kRetry = absl::Milliseconds(20);

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Resolve(absl::string_view address, bool to_bind) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0 || colon + 1 == address.size()) {
    return absl::InvalidArgumentError(absl::StrCat("address '", address, "', expected host:port"));
  }
  absl::string_view host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_bind ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int error = getaddrinfo(std::string(host).c_str(),
                                std::string(address.substr(colon + 1)).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", address, "': ", gai_strerror(error)));
  }
  return AddressList(found, &freeaddrinfo);
}

absl::StatusOr<OwnedFd> NewSocket(int family) {
  OwnedFd fd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("socket: ", std::strerror(errno)));
  }
  return fd;
}

std::string BoundAddress(int fd) {
  sockaddr_storage name = {};
  socklen_t size = sizeof name;
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&name), size, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "";
  }
  const bool v6 = name.ss_family == AF_INET6;
  return v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

void Set(int fd, int level, int option, int value) {
  (void)setsockopt(fd, level, option, &value, sizeof value);
}

// Tries to connect once. UNAVAILABLE: nobody answers (yet).
absl::StatusOr<OwnedFd> ConnectOnce(const addrinfo& to, absl::Time deadline) {
  TANDEM_ASSIGN_OR_RETURN(OwnedFd fd, NewSocket(to.ai_family));
  TuneTcp(fd.get());
  if (connect(fd.get(), to.ai_addr, to.ai_addrlen) == 0) return fd;
  if (errno != EINPROGRESS) return absl::UnavailableError(std::strerror(errno));
  pollfd waiting = {.fd = fd.get(), .events = POLLOUT, .revents = 0};
  const int64_t ms = absl::ToInt64Milliseconds(deadline - MonotonicNow());  // may be infinite
  const int left = static_cast<int>(std::clamp<int64_t>(ms, -1, 1'000'000'000)) + 1;
  if (poll(&waiting, 1, left) <= 0) return absl::UnavailableError("no answer");
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return absl::UnavailableError(std::strerror(error));
  return fd;
}

// Whether the connection leads to itself. On loopback, if nobody listens on the port, the kernel
// may give the connection the same source and destination.
bool MetItself(int fd) {
  sockaddr_storage own = {}, other = {};
  socklen_t own_size = sizeof own, other_size = sizeof other;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_size) == 0 &&
         own_size == other_size && std::memcmp(&own, &other, own_size) == 0;
}

}  // namespace

void TuneTcp(int fd) {
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 3);
  Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 3);
  Set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

absl::Status ConnectionError(int error) {
  switch (error) {
    case ECONNRESET:
    case EPIPE:
      return absl::UnavailableError("connection reset by the peer");
    case ETIMEDOUT:
      return absl::UnavailableError("connection timed out: the peer's machine does not answer");
    default:
      return absl::UnavailableError(absl::StrCat("connection failed: ", std::strerror(error)));
  }
}

TcpListener::TcpListener(OwnedFd socket, std::string address)
    : socket_(std::move(socket)), address_(std::move(address)) {}

absl::StatusOr<TcpListener> TcpListener::Bind(absl::string_view address) {
  TANDEM_ASSIGN_OR_RETURN(const AddressList found, Resolve(address, true));
  TANDEM_ASSIGN_OR_RETURN(OwnedFd fd, NewSocket(found->ai_family));
  Set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  TuneTcp(fd.get());
  if (bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || listen(fd.get(), kNewcomers) != 0) {
    const std::string why = absl::StrCat("cannot listen on ", address, ": ", std::strerror(errno));
    return errno == EADDRINUSE ? absl::UnavailableError(why) : absl::InvalidArgumentError(why);
  }
  std::string bound = BoundAddress(fd.get());
  return TcpListener(std::move(fd), std::move(bound));
}

absl::StatusOr<OwnedFd> TcpListener::Accept() {
  for (;;) {
    OwnedFd fd(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      TuneTcp(fd.get());
      return fd;
    }
    if (errno == EAGAIN) return absl::NotFoundError("no newcomer waits");
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      return absl::ResourceExhaustedError(absl::StrCat("accept: ", std::strerror(errno)));
    }
    if (errno == EBADF || errno == EINVAL) {
      return absl::InternalError(absl::StrCat("accept: ", std::strerror(errno)));
      // All other errors concern only that connection: take the next one.
    }
  }
}

absl::StatusOr<OwnedFd> ConnectTcpBy(absl::string_view address, absl::Time deadline) {
  TANDEM_ASSIGN_OR_RETURN(const AddressList found, Resolve(address, false));
  for (;;) {
    absl::Status last = absl::UnavailableError("no address");
    for (const addrinfo* to = found.get(); to != nullptr; to = to->ai_next) {
      absl::StatusOr<OwnedFd> fd = ConnectOnce(*to, deadline);
      if (fd.ok() && !MetItself(fd->get())) return fd;
      last = fd.ok() ? absl::UnavailableError("nobody listens") : fd.status();
    }
    if (!absl::IsUnavailable(last) || MonotonicNow() >= deadline) {
      return absl::Status(last.code(),
                          absl::StrCat("cannot connect to ", address, ": ", last.message()));
    }
    absl::SleepFor(std::min(kRetry, deadline - MonotonicNow()));
  }
}

absl::StatusOr<std::string> LocalHostTowards(absl::string_view address) {
  TANDEM_ASSIGN_OR_RETURN(const AddressList found, Resolve(address, false));
  // Connecting a datagram socket sends nothing; the kernel only looks up the route.
  OwnedFd fd(socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no route to ", address, ": ", std::strerror(errno)));
  }
  const std::string own = BoundAddress(fd.get());
  return own.substr(0, own.rfind(':'));
}

absl::StatusOr<std::pair<OwnedFd, OwnedFd>> TcpPair() {
  TANDEM_ASSIGN_OR_RETURN(TcpListener listener, TcpListener::Bind("127.0.0.1:0"));
  const absl::Time deadline = MonotonicNow() + absl::Seconds(10);
  TANDEM_ASSIGN_OR_RETURN(OwnedFd connected, ConnectTcpBy(listener.address(), deadline));
  pollfd waiting = {.fd = listener.fd(), .events = POLLIN, .revents = 0};
  (void)poll(&waiting, 1, 10'000);
  TANDEM_ASSIGN_OR_RETURN(OwnedFd accepted, listener.Accept());
  return std::make_pair(std::move(connected), std::move(accepted));
}

}  // namespace tandem::collectives
