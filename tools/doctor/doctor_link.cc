#include "tools/doctor/doctor_link.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace tandem::doctor {
namespace {

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

absl::StatusOr<Addresses> Resolve(const std::string& host, const std::string& port, int flags) {
  addrinfo hints = {}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat(host, ":", port, ": ", gai_strerror(error)));
  }
  return Addresses(list, [](addrinfo* all) { freeaddrinfo(all); });
}

// Waits until `fd` has one of `events`. False: the deadline has passed.
bool WaitFor(int fd, short events, absl::Time deadline) {
  for (;;) {
    const absl::Duration left = std::max(absl::ZeroDuration(), deadline - MonotonicNow());
    pollfd waiting = {fd, events, 0};
    const int64_t ms = absl::ToInt64Milliseconds(left) + (left > absl::ZeroDuration() ? 1 : 0);
    const int ready = poll(&waiting, 1, static_cast<int>(std::min<int64_t>(ms, 1'000'000)));
    if (ready > 0) return true;
    if (ready == 0 && MonotonicNow() >= deadline) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

absl::Status Late(const char* what) { return absl::DeadlineExceededError(what); }

absl::Status ConnectionError(int error) {
  const std::string text = std::strerror(error);
  if (error == ECONNREFUSED) return absl::FailedPreconditionError(text);
  return absl::UnavailableError(text);
}

}  // namespace

absl::StatusOr<std::pair<std::string, std::string>> SplitHostPort(absl::string_view address) {
  absl::string_view rest = address;
  absl::ConsumePrefix(&rest, "tcp://");
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos || colon == 0 || colon + 1 == rest.size()) {
    return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not HOST:PORT"));
  }
  absl::string_view host = rest.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return std::make_pair(std::string(host), std::string(rest.substr(colon + 1)));
}

// ---- DoctorLink ----

std::string DoctorLink::PeerHost() const {
  sockaddr_storage peer = {};
  socklen_t size = sizeof peer;
  auto* const at = reinterpret_cast<sockaddr*>(&peer);
  char host[NI_MAXHOST] = "";
  if (getpeername(socket_.get(), at, &size) == 0) {
    (void)getnameinfo(at, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  }
  return host;
}

absl::StatusOr<DoctorLink> DoctorLink::Connect(const std::string& address, absl::Time deadline) {
  TANDEM_ASSIGN_OR_RETURN(const auto names, SplitHostPort(address));
  TANDEM_ASSIGN_OR_RETURN(const Addresses all, Resolve(names.first, names.second, 0));
  absl::Status why = absl::UnavailableError("no address");
  for (const addrinfo* at = all.get(); at != nullptr; at = at->ai_next) {
    OwnedFd fd(socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int yes = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0) return DoctorLink(std::move(fd));
    int error = errno;
    if (error == EINPROGRESS) {
      if (!WaitFor(fd.get(), POLLOUT, deadline)) return Late("no answer to the connection");
      socklen_t size = sizeof error;
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == 0) return DoctorLink(std::move(fd));
    }
    why = ConnectionError(error);
  }
  return why;
}

absl::StatusOr<std::string> DoctorLink::ReadSome(size_t most, absl::Time deadline) {
  std::string bytes(most, '\0');
  for (;;) {
    const ssize_t n = recv(socket_.get(), bytes.data(), most, 0);
    if (n > 0) {
      bytes.resize(static_cast<size_t>(n));
      return bytes;
    }
    if (n == 0) return absl::UnavailableError("it has closed the connection");
    if (errno != EAGAIN && errno != EINTR) return ConnectionError(errno);
    if (!WaitFor(socket_.get(), POLLIN, deadline)) return Late("nothing was said in time");
  }
}

absl::StatusOr<std::string> DoctorLink::ReadAll(size_t bytes, absl::Time deadline) {
  std::string all;
  while (all.size() < bytes) {
    TANDEM_ASSIGN_OR_RETURN(const std::string some, ReadSome(bytes - all.size(), deadline));
    all += some;
  }
  return all;
}

absl::Status DoctorLink::Write(absl::string_view bytes, absl::Time deadline) {
  while (!bytes.empty()) {
    const ssize_t n = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
      continue;
    }
    if (n < 0 && errno != EAGAIN && errno != EINTR) return ConnectionError(errno);
    if (!WaitFor(socket_.get(), POLLOUT, deadline)) return Late("it does not read");
  }
  return absl::OkStatus();
}

absl::Status DoctorLink::Send(const nlohmann::json& message, absl::Time deadline) {
  const std::string text = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kDoctorMessageBytes) {
    return absl::ResourceExhaustedError("the message is too long");
  }
  const auto size = static_cast<uint32_t>(text.size());
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(size >> shift));
  return Write(bytes + text, deadline);
}

absl::StatusOr<nlohmann::json> DoctorLink::Receive(absl::Time deadline) {
  TANDEM_ASSIGN_OR_RETURN(const std::string head, ReadAll(sizeof(uint32_t), deadline));
  uint32_t size = 0;
  for (size_t i = 0; i < head.size(); ++i) {
    size |= static_cast<uint32_t>(static_cast<uint8_t>(head[i])) << (8 * i);
  }
  if (size > kDoctorMessageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", size, " bytes, at most ", kDoctorMessageBytes, " are taken"));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadAll(size, deadline));
  nlohmann::json message = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!message.is_object()) return absl::InvalidArgumentError("a message that is no JSON object");
  return message;
}

absl::StatusOr<nlohmann::json> DoctorLink::Ask(const nlohmann::json& message, absl::Time deadline) {
  TANDEM_RETURN_IF_ERROR(Send(message, deadline));
  return Receive(deadline);
}

// ---- DoctorListener ----

absl::StatusOr<DoctorListener> DoctorListener::Bind(const std::string& address) {
  TANDEM_ASSIGN_OR_RETURN(auto names, SplitHostPort(address));
  if (names.second == "*") names.second = "0";
  TANDEM_ASSIGN_OR_RETURN(const Addresses all, Resolve(names.first, names.second, AI_PASSIVE));
  OwnedFd fd(socket(all->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int yes = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_storage bound = {};
  socklen_t size = sizeof bound;
  if (bind(fd.get(), all->ai_addr, all->ai_addrlen) != 0 || listen(fd.get(), 64) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return absl::UnavailableError(absl::StrCat(address, ": ", std::strerror(errno)));
  }
  const int port = bound.ss_family == AF_INET6
                       ? ntohs(reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port)
                       : ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  return DoctorListener(std::move(fd), port);
}

absl::StatusOr<DoctorLink> DoctorListener::Accept(absl::Time deadline) {
  if (!WaitFor(socket_.get(), POLLIN, deadline)) return absl::NotFoundError("nobody came");
  OwnedFd fd(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) return absl::NotFoundError(std::strerror(errno));
  const int yes = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return DoctorLink(std::move(fd));
}

// ---- fields ----

std::string TextOf(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

double NumberOf(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return 0;
  const double value = found->get<double>();
  return std::isfinite(value) ? value : 0;
}

bool FlagOf(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

}  // namespace tandem::doctor
