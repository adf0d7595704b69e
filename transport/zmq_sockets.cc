#include "transport/zmq_sockets.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tandem {
namespace {

constexpr int kMaxSockets = 1 << 16;  // of one context; a connection takes three
// libzmq must keep a broken DEALER (its received frames are still to be read) but never reconnect
// it.
constexpr int kNeverReconnectMs = 500'000'000;

absl::Status NoSocket(absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", ZmqError()));
}

}  // namespace

std::string ZmqError() { return zmq_strerror(zmq_errno()); }

int Milliseconds(absl::Duration d) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(d), 0, 1'000'000'000));
}

absl::StatusOr<void*> NewZmqSocket(const ZmqOptions& options, int type) {
  void* const socket = zmq_socket(options.context->handle(), type);
  if (socket == nullptr) return NoSocket("new ZeroMQ socket");
  const auto set = [socket](int option, auto value) {
    TANDEM_CHECK(zmq_setsockopt(socket, option, &value, sizeof value) == 0);
  };
  set(ZMQ_SNDHWM, 0);  // bounded by Flow
  set(ZMQ_RCVHWM, options.send_queue_frames);
  set(ZMQ_MAXMSGSIZE, static_cast<int64_t>(options.max_part_bytes));
  set(ZMQ_LINGER, Milliseconds(options.linger));
  set(ZMQ_RECONNECT_IVL, kNeverReconnectMs);
  set(ZMQ_HEARTBEAT_IVL, Milliseconds(options.heartbeat_interval));
  set(ZMQ_HEARTBEAT_TIMEOUT, Milliseconds(options.silence_timeout));
  return socket;
}

absl::StatusOr<void*> NewZmqMonitor(ZmqContext& context, void* socket, int zmq_events) {
  const std::string name = absl::StrCat("inproc://monitor-", context.NextNumber());
  if (zmq_socket_monitor(socket, name.c_str(), zmq_events) != 0) return NoSocket("socket monitor");
  void* const monitor = zmq_socket(context.handle(), ZMQ_PAIR);
  if (monitor == nullptr) return NoSocket("socket monitor");
  const int none = 0;
  // No bound: an I/O thread that cannot store an event would wait until we read some.
  TANDEM_CHECK(zmq_setsockopt(monitor, ZMQ_RCVHWM, &none, sizeof none) == 0);
  TANDEM_CHECK(zmq_setsockopt(monitor, ZMQ_LINGER, &none, sizeof none) == 0);
  TANDEM_CHECK(zmq_connect(monitor, name.c_str()) == 0);
  // libzmq announces an event only after its reader has once found the pipe empty, so read it now.
  ForMonitorEvents(monitor, [](int) { return true; });
  return monitor;
}

int SocketFd(void* socket) {
  int fd = -1;
  size_t size = sizeof fd;
  TANDEM_CHECK(zmq_getsockopt(socket, ZMQ_FD, &fd, &size) == 0);
  return fd;
}

ZmqContext::ZmqContext(int io_threads) : handle_(zmq_ctx_new()) {
  TANDEM_CHECK(handle_ != nullptr && io_threads > 0);
  TANDEM_CHECK(zmq_ctx_set(handle_, ZMQ_IO_THREADS, io_threads) == 0);
  const int limit = zmq_ctx_get(handle_, ZMQ_SOCKET_LIMIT);
  TANDEM_CHECK(zmq_ctx_set(handle_, ZMQ_MAX_SOCKETS, std::min(limit, kMaxSockets)) == 0);
}

ZmqContext::~ZmqContext() {
  while (zmq_ctx_term(handle_) != 0 && zmq_errno() == EINTR) {
  }
}

}  // namespace tandem
