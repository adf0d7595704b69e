#include "transport/zmq_sockets.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/exhaustion.h"
#include "base/status_macros.h"
#include "transport/tcp_address.h"

namespace tandem::transport {
namespace {

constexpr int kMaxSockets = 1 << 16;  // sockets of one context; a connection takes three
// How long a connection may take to say what it is. libzmq then closes it.
constexpr int kHandshakeMs = 10'000;
// libzmq must keep a broken DEALER, because its received frames are still to be read, but must
// never reconnect it. No option does that, so the reconnect interval is very long.
constexpr int kNeverReconnectMs = 500'000'000;

absl::Status NoSocket(absl::string_view what) {
  const std::string hint = zmq_errno() == EMFILE ? absl::StrCat("; ", FileLimitHint()) : "";
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", ZmqError(), hint));
}

int Milliseconds(absl::Duration d) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(d), 0, 1'000'000'000));
}

// Makes a socket with an unbounded queue, without reconnecting, which refuses parts beyond the
// options' bounds.
absl::StatusOr<void*> NewZmqSocket(const ZmqOptions& options, int type, bool ipv6) {
  void* const socket = zmq_socket(options.context->handle(), type);
  if (socket == nullptr) return NoSocket("new ZeroMQ socket");
  const auto set = [socket](int option, auto value) {
    TANDEM_CHECK(zmq_setsockopt(socket, option, &value, sizeof value) == 0);
  };
  set(ZMQ_IPV6, ipv6 ? 1 : 0);
  set(ZMQ_SNDHWM, 0);  // bounded by Flow
  set(ZMQ_RCVHWM, options.send_queue_frames);
  set(ZMQ_MAXMSGSIZE, static_cast<int64_t>(options.max_part_bytes));
  set(ZMQ_LINGER, Milliseconds(options.linger));
  set(ZMQ_RECONNECT_IVL, kNeverReconnectMs);
  set(ZMQ_HEARTBEAT_IVL, Milliseconds(options.heartbeat_interval));
  set(ZMQ_HEARTBEAT_TIMEOUT, Milliseconds(options.silence_timeout));
  set(ZMQ_HANDSHAKE_IVL, kHandshakeMs);
  return socket;
}

// Encrypts all connections of a socket. The same pair of keys serves both ends.
void SetCurve(const ZmqOptions& options, void* socket, int type, const JobKeys& keys) {
  constexpr int64_t kMaxOverhead = 64;  // of one encrypted part: 33 bytes
  const int64_t most = static_cast<int64_t>(options.max_part_bytes) + kMaxOverhead;
  TANDEM_CHECK(zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &most, sizeof most) == 0);
  const auto set = [socket](int option, const std::string& key) {
    TANDEM_CHECK(zmq_setsockopt(socket, option, key.c_str(), key.size() + 1) == 0);
  };
  if (type == ZMQ_ROUTER) {
    const int on = 1;
    TANDEM_CHECK(zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &on, sizeof on) == 0);
  } else {
    set(ZMQ_CURVE_SERVERKEY, keys.curve_public());
    set(ZMQ_CURVE_PUBLICKEY, keys.curve_public());
  }
  set(ZMQ_CURVE_SECRETKEY, keys.curve_secret());
}

// The clients of the socket show the password of the endpoint, or the socket shows it.
void SetPassword(void* socket, int type, const JobKeys& keys, const std::string& endpoint) {
  constexpr absl::string_view kUser = "tandem";
  if (type == ZMQ_ROUTER) {
    const int on = 1;
    TANDEM_CHECK(zmq_setsockopt(socket, ZMQ_PLAIN_SERVER, &on, sizeof on) == 0);
    return;
  }
  const auto set = [socket](int option, absl::string_view text) {
    TANDEM_CHECK(zmq_setsockopt(socket, option, text.data(), text.size()) == 0);
  };
  set(ZMQ_PLAIN_USERNAME, kUser);
  set(ZMQ_PLAIN_PASSWORD, keys.PasswordOf(endpoint));
}

void SetKeys(const ZmqOptions& options, void* socket, int type, bool encrypted,
             const std::string& endpoint) {
  const JobKeys& keys = *options.keys;
  encrypted ? SetCurve(options, socket, type, keys) : SetPassword(socket, type, keys, endpoint);
  if (type != ZMQ_ROUTER) return;
  TANDEM_CHECK(zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, endpoint.data(), endpoint.size()) == 0);
}

// Makes a socket on which `socket` reports these events.
absl::StatusOr<void*> NewZmqMonitor(ZmqContext& context, void* socket, int zmq_events) {
  const std::string name = absl::StrCat("inproc://monitor-", context.NextNumber());
  if (zmq_socket_monitor(socket, name.c_str(), zmq_events) != 0) return NoSocket("socket monitor");
  void* const monitor = zmq_socket(context.handle(), ZMQ_PAIR);
  if (monitor == nullptr) return NoSocket("socket monitor");
  const int none = 0;
  // No bound: an I/O thread that cannot store an event would wait until this thread reads some.
  TANDEM_CHECK(zmq_setsockopt(monitor, ZMQ_RCVHWM, &none, sizeof none) == 0);
  TANDEM_CHECK(zmq_setsockopt(monitor, ZMQ_LINGER, &none, sizeof none) == 0);
  TANDEM_CHECK(zmq_connect(monitor, name.c_str()) == 0);
  // libzmq announces an event only after the reader has found the pipe empty once, so read it now.
  ForMonitorEvents(monitor, [](int, uint32_t) { return true; });
  return monitor;
}

// Readable when the socket may have events.
int SocketFd(void* socket) {
  int fd = -1;
  size_t size = sizeof fd;
  TANDEM_CHECK(zmq_getsockopt(socket, ZMQ_FD, &fd, &size) == 0);
  return fd;
}

}  // namespace

std::string ZmqError() { return zmq_strerror(zmq_errno()); }

ZmqSocketSet::ZmqSocketSet(const ZmqOptions& options, int wake_fd, uint64_t wake_key)
    : options_(options), epoll_fd_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_fd_.valid()) throw std::system_error(errno, std::generic_category(), "epoll");
  Watch(wake_fd, wake_key);
}

void ZmqSocketSet::Watch(int fd, uint64_t key) {
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = key}};
  TANDEM_CHECK(epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
}

absl::StatusOr<MonitoredSocket> ZmqSocketSet::Open(int type, int zmq_events, uint64_t key,
                                                   const std::string& address, bool encrypted,
                                                   const std::string& endpoint) {
  TANDEM_ASSIGN_OR_RETURN(void* const socket,
                          NewZmqSocket(options_, type, SplitTcpAddress(address).IsIpv6()));
  if (options_.keys != nullptr) SetKeys(options_, socket, type, encrypted, endpoint);
  const absl::StatusOr<void*> monitor = NewZmqMonitor(*options_.context, socket, zmq_events);
  if (!monitor.ok()) {
    zmq_close(socket);
    return monitor.status();
  }
  Watch(SocketFd(socket), key);
  Watch(SocketFd(*monitor), key + 1);
  return MonitoredSocket{socket, *monitor};
}

void ZmqSocketSet::Close(MonitoredSocket* socket, absl::Duration linger) {
  if (socket->socket == nullptr) return;
  for (void* const s : {socket->socket, socket->monitor}) {
    epoll_ctl(epoll_fd_.get(), EPOLL_CTL_DEL, SocketFd(s), nullptr);
  }
  zmq_socket_monitor(socket->socket, nullptr, 0);
  zmq_close(socket->monitor);
  const int linger_ms = Milliseconds(linger);
  zmq_setsockopt(socket->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
  zmq_close(socket->socket);
  *socket = MonitoredSocket();
}

void UnbindZmq(const MonitoredSocket& socket, const std::string& address, absl::Duration patience) {
  if (zmq_unbind(socket.socket, address.c_str()) != 0) return;  // the socket was never bound
  const auto deadline = WaitableTransport::After(patience);
  bool closed = false;
  while (!closed && WaitableTransport::Clock::now() < deadline) {
    zmq_pollitem_t item = {socket.monitor, 0, ZMQ_POLLIN, 0};
    zmq_poll(&item, 1, 10);
    ForMonitorEvents(socket.monitor, [&closed](int event, uint32_t) {
      closed = event == ZMQ_EVENT_CLOSED;
      return !closed;
    });
  }
}

ZmqContext::ZmqContext(int io_threads) : handle_(zmq_ctx_new()), io_threads_(io_threads) {
  TANDEM_CHECK(handle_ != nullptr && io_threads > 0);
  TANDEM_CHECK(zmq_ctx_set(handle_, ZMQ_IO_THREADS, io_threads) == 0);
  const int limit = zmq_ctx_get(handle_, ZMQ_SOCKET_LIMIT);
  TANDEM_CHECK(zmq_ctx_set(handle_, ZMQ_MAX_SOCKETS, std::min(limit, kMaxSockets)) == 0);
}

absl::Status ZmqContext::MayStart() {
  // a thread that has ended may still be counted for a moment
  constexpr int kReaper = 1, kGate = 1, kSpare = 1;
  if (started_.load()) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(CanStartThreads(io_threads_ + kReaper + kGate + kSpare));
  started_.store(true);
  return absl::OkStatus();
}

absl::Status ZmqContext::Guard(ZmqGate::Door door) {
  const absl::MutexLock lock(&mutex_);
  if (gate_ == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(gate_, ZmqGate::Open(handle_));
  }
  gate_->Admit(std::move(door));
  return absl::OkStatus();
}

void ZmqContext::Unguard(const std::string& endpoint) {
  const absl::MutexLock lock(&mutex_);
  if (gate_ != nullptr) gate_->Forget(endpoint);
}

ZmqContext::~ZmqContext() {
  // No endpoint is left that accepts connections. Frames that are still being sent need no gate.
  gate_.reset();
  while (zmq_ctx_term(handle_) != 0 && zmq_errno() == EINTR) {
  }
}

}  // namespace tandem::transport
