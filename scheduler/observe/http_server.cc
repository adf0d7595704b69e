#include "scheduler/observe/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/owned_fd.h"
#include "base/status_macros.h"
#include "base/wake_fd.h"
#include "transport/tcp_address.h"

namespace tandem::scheduler {
namespace {

namespace http = boost::beast::http;

constexpr absl::Duration kConnectionLasts = absl::Seconds(10);  // with one connection
constexpr int kBacklog = 64;

std::string Text(boost::beast::string_view view) { return {view.data(), view.size()}; }

// The response to `bytes`, a request that has arrived as a whole: its first line, headers, and an
// empty line. Whatever follows is ignored.
std::string Respond(const HttpServer::Handler& handler, const std::string& bytes) {
  http::request_parser<http::empty_body> parser;
  boost::beast::error_code error;
  parser.put(boost::asio::buffer(bytes), error);
  const http::request<http::empty_body>& request = parser.get();
  const bool valid = parser.is_header_done() && absl::StartsWith(Text(request.target()), "/");
  const bool head = request.method() == http::verb::head;
  HttpResponse made;
  if (!valid) {
    made = {.code = 400, .body = "expected a request such as GET /metrics HTTP/1.1\n"};
  } else if (request.method() != http::verb::get && !head) {
    made = {.code = 405, .body = "expected GET or HEAD\n"};
  } else {
    const std::string target = Text(request.target());
    made = handler({target.substr(0, target.find('?')), Text(request[http::field::authorization]),
                    Text(request[http::field::host])});
  }
  http::response<http::string_body> response(static_cast<http::status>(made.code), 11);
  response.set(http::field::content_type, made.type);
  response.set(http::field::cache_control, "no-store");
  response.set(http::field::connection, "close");
  if (made.code == 401) response.set(http::field::www_authenticate, "Basic realm=\"Tandem\"");
  if (made.code == 405) response.set(http::field::allow, "GET, HEAD");
  response.content_length(made.body.size());
  if (!head) response.body() = std::move(made.body);
  std::ostringstream text;
  text << response;
  return std::move(text).str();
}

struct Connection {
  OwnedFd fd;
  absl::Time since;
  std::string request;
  std::string response;  // once the request is complete
  size_t sent = 0;
};

class PollServer : public HttpServer {
 public:
  PollServer(OwnedFd listener, std::string url, Handler handler)
      : listener_(std::move(listener)),
        url_(std::move(url)),
        handler_(std::move(handler)),
        thread_([this] { Run(); }) {}
  ~PollServer() override {
    stop_.store(true);
    wake_.Wake();
    thread_.join();
  }
  const std::string& url() const override { return url_; }

 private:
  void Run() {
    std::vector<pollfd> wait;
    while (!stop_.load()) {
      wait = {{wake_.fd(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Connection& c : connections_) {
        wait.push_back({c.fd.get(), static_cast<short>(c.response.empty() ? POLLIN : POLLOUT), 0});
      }
      const int timeout = connections_.empty() ? -1 : 1000;
      if (poll(wait.data(), wait.size(), timeout) < 0 && errno != EINTR) return;
      size_t i = 2;  // of a connection in `wait`
      for (auto c = connections_.begin(); c != connections_.end(); ++i) {
        if (stop_.load()) return;
        const bool keep =
            MonotonicNow() - c->since < kConnectionLasts && (wait[i].revents == 0 || Move(&*c));
        c = keep ? std::next(c) : connections_.erase(c);
      }
      if (wait[1].revents != 0) Accept();
    }
  }

  void Accept() {
    OwnedFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) {
      // Without descriptors the connection stays in the queue of the system.
      if (errno == EMFILE || errno == ENFILE) absl::SleepFor(absl::Milliseconds(100));
      return;
    }
    // The oldest connection has not sent its request, or does not read its response.
    if (connections_.size() >= kMaxConnections) connections_.pop_front();
    connections_.push_back({std::move(fd), MonotonicNow(), "", "", 0});
  }

  // Reads or writes what is possible now. False: the connection is over.
  bool Move(Connection* c) {
    if (c->response.empty()) {
      char bytes[4096];
      const ssize_t n = recv(c->fd.get(), bytes, sizeof bytes, 0);
      if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EINTR);
      c->request.append(bytes, static_cast<size_t>(n));
      if (!absl::StrContains(c->request, "\r\n\r\n")) return c->request.size() < kMaxRequestBytes;
      c->response = Respond(handler_, c->request);
    }
    const ssize_t n =
        send(c->fd.get(), c->response.data() + c->sent, c->response.size() - c->sent, MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    c->sent += static_cast<size_t>(n);
    return c->sent < c->response.size();
  }

  const OwnedFd listener_;
  const std::string url_;
  const Handler handler_;
  std::list<Connection> connections_;  // the oldest first
  WakeFd wake_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(sockaddr_storage);
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

// `host`: a number.
absl::StatusOr<SocketAddress> ToSocketAddress(const std::string& host, const std::string& port) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV;
  const int failed = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (failed != 0) return absl::InvalidArgumentError(gai_strerror(failed));
  SocketAddress address;
  address.size = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return address;
}

absl::StatusOr<OwnedFd> Listen(const std::string& host, const std::string& port, int* bound) {
  TANDEM_ASSIGN_OR_RETURN(SocketAddress at, ToSocketAddress(host, port));
  OwnedFd fd(socket(at.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (fd.valid()) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd.valid() || bind(fd.get(), at.get(), at.size) != 0 || listen(fd.get(), kBacklog) != 0 ||
      getsockname(fd.get(), at.get(), &at.size) != 0) {
    const int error = errno;
    if (error != EADDRINUSE) return absl::InvalidArgumentError(std::strerror(error));
    return absl::UnavailableError(
        absl::StrCat(std::strerror(error), "; hint: another port, or 0 for any free one"));
  }
  const bool six = at.storage.ss_family == AF_INET6;
  *bound = ntohs(six ? reinterpret_cast<sockaddr_in6*>(&at.storage)->sin6_port
                     : reinterpret_cast<sockaddr_in*>(&at.storage)->sin_port);
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                              Handler handler) {
  const std::string tcp = absl::StrCat("tcp://", address);
  const auto refused = [&address](const absl::Status& why) {
    return absl::Status(why.code(), absl::StrCat("--http ", address, ": ", why.message()));
  };
  if (!transport::SplitTcpAddress(tcp).valid()) {
    return refused(absl::InvalidArgumentError("expected HOST:PORT, for example 127.0.0.1:8080"));
  }
  const absl::StatusOr<std::string> numeric = transport::ResolveToBind(tcp);
  if (!numeric.ok()) return refused(numeric.status());
  const transport::TcpAddress at = transport::SplitTcpAddress(*numeric);
  int port = 0;
  absl::StatusOr<OwnedFd> listener =
      Listen(at.host == "*" ? "0.0.0.0" : at.host, at.port == "*" ? "0" : at.port, &port);
  if (!listener.ok()) return refused(listener.status());
  const std::string url = absl::StrCat(
      "http://", transport::HostInAddress(transport::SplitTcpAddress(tcp).host), ":", port);
  return std::unique_ptr<HttpServer>(
      std::make_unique<PollServer>(*std::move(listener), url, std::move(handler)));
}

bool IsLoopback(absl::string_view address) {
  const absl::StatusOr<std::string> numeric =
      transport::ResolveToBind(absl::StrCat("tcp://", address));
  if (!numeric.ok()) return false;
  return transport::IsLoopbackHost(transport::SplitTcpAddress(*numeric).host);
}

}  // namespace tandem::scheduler
