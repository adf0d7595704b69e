// The HTTP server of the scheduler, over real sockets: what it answers, and that slow, silent and
// malicious clients harm nobody. Every wait is bounded; a test that passes needs a moment.
#include "scheduler/observe/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/owned_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using scheduler::HttpRequest;
using scheduler::HttpResponse;
using scheduler::HttpServer;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    auto made = HttpServer::Start("127.0.0.1:0", [](const HttpRequest& request) {
      if (request.path == "/large") return HttpResponse{.body = std::string(4 << 20, 'x')};
      return HttpResponse{
          .code = request.path == "/none" ? 404 : 200,
          .body = absl::StrCat(request.path, "|", request.authorization, "|", request.host)};
    });
    EXPECT_TRUE(made.ok()) << made.status();
    server_ = *std::move(made);
    const std::string& url = server_->url();
    EXPECT_THAT(url, StartsWith("http://127.0.0.1:"));
    EXPECT_TRUE(absl::SimpleAtoi(url.substr(url.rfind(':') + 1), &port_));
  }

  OwnedFd Connect() const {
    OwnedFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<uint16_t>(port_));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    const timeval bound = {60, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound);
    return fd;
  }
  static void Send(const OwnedFd& fd, const std::string& bytes) {
    (void)send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Everything until the server closes the connection.
  static std::string ReadAll(const OwnedFd& fd) {
    std::string all;
    char bytes[65536];
    for (ssize_t n; (n = recv(fd.get(), bytes, sizeof bytes, 0)) > 0;) {
      all.append(bytes, static_cast<size_t>(n));
    }
    return all;
  }
  std::string Ask(const std::string& request) const {
    const OwnedFd fd = Connect();
    Send(fd, request);
    return ReadAll(fd);
  }

  std::unique_ptr<HttpServer> server_;
  int port_ = 0;
};

TEST_F(HttpServerTest, AnswersRequests) {
  const std::string answer = Ask("GET /a?b=c HTTP/1.1\r\nHost: x\r\nAuthorization: me\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 7\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\n/a|me|x"));
  EXPECT_THAT(Ask("GET /none HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  const std::string head = Ask("HEAD /a HTTP/1.1\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("Content-Length: 4\r\n"));
  EXPECT_TRUE(absl::EndsWith(head, "\r\n\r\n")) << head;
  const std::string post = Ask("POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc");
  EXPECT_THAT(post, StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(post, HasSubstr("\r\nAllow: GET, HEAD\r\n"));
}

// As RFC 9112 has them: names in any case, values with or without spaces around them.
TEST_F(HttpServerTest, ReadsTheHeadersOfTheHandler) {
  const std::string answer =
      Ask("GET /a HTTP/1.0\r\nhOST:\tx:1 \r\nX-Host: y\r\nAUTHORIZATION:  a: b  \r\n\r\nHost: z");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\n/a|a: b|x:1"));
}

TEST_F(HttpServerTest, ALargeResponseArrivesWhole) {
  EXPECT_GT(Ask("GET /large HTTP/1.1\r\n\r\n").size(), size_t{4} << 20);
}

// Each range could be a copy of the page.
TEST_F(HttpServerTest, RangesAreIgnored) {
  for (const char* range : {"-,-,-,0-1", "9-1,5"}) {
    const std::string answer =
        Ask(absl::StrCat("GET /a HTTP/1.1\r\nRange: bytes=", range, "\r\n\r\n"));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(answer, HasSubstr("Content-Length: 4\r\n"));
    EXPECT_TRUE(absl::EndsWith(answer, "\r\n\r\n/a||")) << answer;
  }
}

TEST_F(HttpServerTest, GarbageAndLongRequestsEndTheirConnectionOnly) {
  for (const std::string& request :
       {std::string("\r\n\r\n"), std::string("\xff\x00\x00\r\n\r\n", 7), std::string("GET\r\n\r\n"),
        std::string("GET /a HTTP/9.9\r\n\r\n"), std::string("GET /a b HTTP/1.1\r\n\r\n"),
        std::string("GET a/a HTTP/1.1\r\n\r\n"), std::string(HttpServer::kMaxRequestBytes * 2, 'a'),
        "GET /" + std::string(7000, '%') + " HTTP/1.1\r\n\r\n"}) {
    const std::string answer = Ask(request);  // returns: the connection is closed
    EXPECT_EQ(answer.find("/a|"), std::string::npos) << request;
    EXPECT_EQ(absl::StartsWith(answer, "HTTP/1.1 400 Bad Request\r\n"), request.size() < 100)
        << request << answer;
  }
  EXPECT_THAT(Ask("GET /a HTTP/1.1\r\n\r\n"), HasSubstr("/a|"));
}

// Silent ones, and ones that send a byte and wait, are closed when others come.
TEST_F(HttpServerTest, ManySilentConnectionsDelayNobody) {
  std::vector<OwnedFd> silent;
  for (int i = 0; i < 500; ++i) {
    silent.push_back(Connect());
    if (i % 2 == 0) Send(silent.back(), "G");
  }
  EXPECT_THAT(Ask("GET /a HTTP/1.1\r\n\r\n"), HasSubstr("/a|"));
  EXPECT_EQ(ReadAll(silent.front()), "") << "the oldest ones are closed";
}

// A client that reads nothing keeps its own response waiting, and no other.
TEST_F(HttpServerTest, AClientThatDoesNotReadDelaysNobody) {
  std::vector<OwnedFd> lazy;
  for (int i = 0; i < 8; ++i) {
    lazy.push_back(Connect());
    Send(lazy.back(), "GET /large HTTP/1.1\r\n\r\n");
  }
  EXPECT_THAT(Ask("GET /a HTTP/1.1\r\n\r\n"), HasSubstr("/a|"));
}

TEST_F(HttpServerTest, SaysWhyItCannotListen) {
  const auto none = [](const HttpRequest&) { return HttpResponse(); };
  const auto taken = HttpServer::Start(absl::StrCat("127.0.0.1:", port_), none);
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(taken.status().message()), HasSubstr("in use; hint: another port"));
  for (const char* bad : {"8080", "no such host:80", "127.0.0.1:port", "192.0.2.1:80", ":80"}) {
    EXPECT_EQ(HttpServer::Start(bad, none).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

TEST(IsLoopbackTest, TellsAddressesOfThisHostFromOthers) {
  EXPECT_TRUE(scheduler::IsLoopback("127.0.0.1:80"));
  EXPECT_TRUE(scheduler::IsLoopback("[::1]:80"));
  for (const char* other :
       {"0.0.0.0:80", "*:80", "192.0.2.1:80", "[::]:80", "", "no such host:1"}) {
    EXPECT_FALSE(scheduler::IsLoopback(other)) << other;
  }
}

}  // namespace
}  // namespace tandem
