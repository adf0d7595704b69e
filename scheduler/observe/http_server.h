// A small HTTP server for pages that are made on request: GET and HEAD, one request a connection.
// Boost.Beast reads requests and writes responses; this class owns the sockets.
//
// One thread serves all connections and waits for none of them; only the handler may block.
// Everything that a client may choose is bounded: connections, bytes of a request, and the time
// until a response is read. When there are too many connections, the oldest one is closed. So slow,
// silent or malicious clients delay nobody, and each costs at most one response in memory.
//
// Thread safety: Start and the destructor on one thread. The handler is called on the server's
// thread.
#ifndef TANDEM_SCHEDULER_OBSERVE_HTTP_SERVER_H_
#define TANDEM_SCHEDULER_OBSERVE_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::scheduler {

struct HttpRequest {
  std::string path;           // "/status.json", without what follows a question mark
  std::string authorization;  // the header of that name; empty: none
  std::string host;           // likewise
};
struct HttpResponse {
  int code = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

class HttpServer {
 public:
  static constexpr size_t kMaxConnections = 64;
  static constexpr size_t kMaxRequestBytes = 8192;

  using Handler = std::function<HttpResponse(const HttpRequest& request)>;

  // Listens at HOST:PORT; port 0: any free one. INVALID_ARGUMENT: a malformed address, or a host
  // that is not of this machine. UNAVAILABLE: the port is taken.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           Handler handler);
  virtual ~HttpServer() = default;

  // "http://127.0.0.1:41231".
  virtual const std::string& url() const = 0;
};

// Whether HOST:PORT names a loopback address, so that only processes of this host can connect.
bool IsLoopback(absl::string_view address);

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_OBSERVE_HTTP_SERVER_H_
