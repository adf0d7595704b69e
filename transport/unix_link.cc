#include "transport/unix_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace tandem::transport {
namespace {

constexpr int kNewcomers = 1024;
constexpr absl::Duration kRetry = absl::Milliseconds(5);
constexpr int kSocketType = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;

std::string SystemError() { return std::strerror(errno); }

absl::StatusOr<OwnedFd> NewSocket() {
  OwnedFd fd(socket(AF_UNIX, kSocketType, 0));
  if (!fd.valid()) return absl::ResourceExhaustedError(absl::StrCat("socket: ", SystemError()));
  return fd;
}

struct Address {
  sockaddr_un name = {};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

absl::StatusOr<Address> AddressOf(absl::string_view name) {
  if (name.empty() || name.size() > UnixLink::kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "socket name of ", name.size(), " bytes, expected 1 to ", UnixLink::kMaxNameBytes));
  }
  Address address;
  address.name.sun_family = AF_UNIX;  // a leading zero byte makes the name abstract
  std::memcpy(address.name.sun_path + 1, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

absl::Status CheckSameUser(int fd) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return absl::UnavailableError(absl::StrCat("peer credentials: ", SystemError()));
  }
  if (peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the process at the other end belongs to user ",
                                                  peer.uid, ", we are ", geteuid()));
}

// Takes over the descriptors of a message, even if something else is wrong with the message;
// otherwise they would leak.
std::vector<OwnedFd> TakeFds(msghdr* header) {
  std::vector<OwnedFd> fds;
  for (cmsghdr* c = CMSG_FIRSTHDR(header); c != nullptr; c = CMSG_NXTHDR(header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

// Returns false when the deadline has passed.
bool WaitReadable(int fd, absl::Time deadline) {
  const absl::Duration left = std::max(absl::ZeroDuration(), deadline - MonotonicNow());
  pollfd waiting = {.fd = fd, .events = POLLIN, .revents = 0};
  const int64_t ms = absl::ToInt64Milliseconds(left) + (left > absl::ZeroDuration());
  return poll(&waiting, 1, static_cast<int>(std::min<int64_t>(ms, 1'000'000'000))) > 0 ||
         MonotonicNow() < deadline;
}

}  // namespace

absl::StatusOr<UnixLink> UnixLink::Connect(absl::string_view name) {
  TANDEM_ASSIGN_OR_RETURN(const Address address, AddressOf(name));
  TANDEM_ASSIGN_OR_RETURN(OwnedFd fd, NewSocket());
  if (connect(fd.get(), address.get(), address.size) != 0) {
    return absl::UnavailableError(absl::StrCat("socket @", name, ": ", SystemError()));
  }
  TANDEM_RETURN_IF_ERROR(CheckSameUser(fd.get()));
  return UnixLink(std::move(fd));
}

absl::StatusOr<UnixLink> UnixLink::ConnectBy(absl::string_view name, absl::Time deadline) {
  for (;;) {
    absl::StatusOr<UnixLink> link = Connect(name);
    if (!absl::IsUnavailable(link.status()) || MonotonicNow() >= deadline) return link;
    absl::SleepFor(std::min(kRetry, deadline - MonotonicNow()));
  }
}

absl::StatusOr<std::pair<UnixLink, UnixLink>> UnixLink::Pair() {
  int fds[2];
  if (socketpair(AF_UNIX, kSocketType, 0, fds) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("socket pair: ", SystemError()));
  }
  return std::make_pair(UnixLink(OwnedFd(fds[0])), UnixLink(OwnedFd(fds[1])));
}

absl::Status UnixLink::Send(absl::string_view bytes, absl::Span<const int> fds) {
  TANDEM_CHECK(!bytes.empty() && bytes.size() <= kMaxMessageBytes && fds.size() <= kMaxFds);
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  iovec data = {.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  if (sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return absl::OkStatus();
  const std::string why = absl::StrCat("socket send: ", SystemError());
  const bool full = errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS;
  return full ? absl::ResourceExhaustedError(why) : absl::UnavailableError(why);
}

absl::StatusOr<UnixMessage> UnixLink::Receive() {
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  char bytes[kMaxMessageBytes];
  iovec data = {.iov_base = bytes, .iov_len = sizeof bytes};
  msghdr header = {};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t count;
  do {
    count = recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (count < 0 && errno == EINTR);
  if (count < 0 && errno == EAGAIN) return absl::NotFoundError("no message waits");
  if (count < 0) return absl::UnavailableError(absl::StrCat("socket: ", SystemError()));
  UnixMessage message;
  message.fds = TakeFds(&header);
  if (count == 0) return absl::UnavailableError("the peer has closed its end of the socket");
  if ((header.msg_flags & MSG_CTRUNC) != 0 && message.fds.size() < kMaxFds) {
    return absl::ResourceExhaustedError(
        "socket: no descriptor is left for those that the peer sends; hint: raise ulimit -n");
  }
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError("socket message that is too long");
  }
  message.bytes.assign(bytes, static_cast<size_t>(count));
  return message;
}

absl::StatusOr<UnixMessage> UnixLink::ReceiveBy(absl::Time deadline) {
  for (;;) {
    absl::StatusOr<UnixMessage> message = Receive();
    if (!absl::IsNotFound(message.status())) return message;
    if (!WaitReadable(socket_.get(), deadline)) {
      return absl::DeadlineExceededError("no message from the peer in time");
    }
  }
}

bool UnixLink::PeerIsGone() const {
  char byte;
  const ssize_t count = recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
}

bool UnixLink::PeerProcessIsDead() const {
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.pid > 0 && kill(peer.pid, 0) != 0 && errno == ESRCH;
}

absl::StatusOr<UnixListener> UnixListener::Bind(absl::string_view name) {
  TANDEM_ASSIGN_OR_RETURN(const Address address, AddressOf(name));
  TANDEM_ASSIGN_OR_RETURN(OwnedFd fd, NewSocket());
  if (bind(fd.get(), address.get(), address.size) != 0 || listen(fd.get(), kNewcomers) != 0) {
    return absl::UnavailableError(absl::StrCat("socket @", name, ": ", SystemError()));
  }
  return UnixListener(std::move(fd));
}

UnixListener::UnixListener(OwnedFd socket)
    : socket_(std::move(socket)), spare_(fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0)) {}

absl::StatusOr<UnixLink> UnixListener::Accept() {
  if (!spare_.valid()) spare_ = OwnedFd(fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0));
  const auto accept = [this] {
    return OwnedFd(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  };
  const auto nobody = [] { return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED; };
  OwnedFd fd = accept();
  if (!fd.valid() && !nobody()) {
    // No descriptor is left. A newcomer that stays in the queue would keep the socket readable and
    // wait in vain. So the spare descriptor is released to accept the newcomer, and the accepted
    // socket closes at once.
    const std::string why = absl::StrCat("accept: ", SystemError());
    spare_ = OwnedFd();
    if (accept().valid() || !nobody()) return absl::ResourceExhaustedError(why);
  }
  if (!fd.valid()) return absl::NotFoundError("no newcomer waits");
  TANDEM_RETURN_IF_ERROR(CheckSameUser(fd.get()));
  return UnixLink(std::move(fd));
}

}  // namespace tandem::transport
