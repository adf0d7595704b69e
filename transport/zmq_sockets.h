// Sockets of libzmq with the settings that a ZeroMQ transport needs, each with a monitor that
// reports its events, and the epoll set in which a transport waits for all its sockets.
//
// Thread safety: a set, a socket and its monitor may be used by one thread at a time.
#ifndef TANDEM_TRANSPORT_ZMQ_SOCKETS_H_
#define TANDEM_TRANSPORT_ZMQ_SOCKETS_H_

#include <sys/epoll.h>
#include <zmq.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/owned_fd.h"
#include "transport/zmq_transport.h"

namespace tandem::transport {

// libzmq's text for the last error of this thread.
std::string ZmqError();

struct MonitoredSocket {
  void* socket = nullptr;
  void* monitor = nullptr;  // reports events, which ForMonitorEvents reads
};

class ZmqSocketSet {
 public:
  // `wake_fd` is in the set, too, with the key `wake_key`, and must outlive the set.
  ZmqSocketSet(const ZmqOptions& options, int wake_fd, uint64_t wake_key);

  // Opens a socket with an unbounded queue, without reconnecting, which refuses parts beyond the
  // options' bounds, and a monitor for `zmq_events`. The set contains both, with the keys `key` and
  // `key` + 1. `address`: where the socket will bind or connect, as a number and not a name.
  // `encrypted`: if there are keys, whether they encrypt the socket's connections. `endpoint`: the
  // number of the endpoint that accepts them (ZmqGate).
  // RESOURCE_EXHAUSTED: the context has no more sockets, or the process no more files.
  absl::StatusOr<MonitoredSocket> Open(int type, int zmq_events, uint64_t key,
                                       const std::string& address, bool encrypted,
                                       const std::string& endpoint);
  // Closes a socket. Queued messages are sent for up to `linger`, in the background. Does nothing
  // if there is no socket.
  void Close(MonitoredSocket* socket, absl::Duration linger);

  // Readable when a socket may have events.
  int fd() const { return epoll_fd_.get(); }
  // Calls on_ready(key) for sockets that may have events, after at most `timeout_ms` (-1: waits
  // without limit). Returns their number, or less than 0 if it was interrupted.
  template <typename F>
  int Wait(int timeout_ms, F on_ready) {
    epoll_event ready[64];
    const int count = epoll_wait(epoll_fd_.get(), ready, 64, timeout_ms);
    for (int i = 0; i < count; ++i) on_ready(ready[i].data.u64);
    return count;
  }

 private:
  void Watch(int fd, uint64_t key);

  const ZmqOptions options_;
  const OwnedFd epoll_fd_;
};

// Frees the address to which `socket` is bound, and waits up to `patience` until it is free. libzmq
// closes in the background; without the wait, others could still connect to an endpoint that no
// longer exists.
void UnbindZmq(const MonitoredSocket& socket, const std::string& address, absl::Duration patience);

// Calls on_event(number, value) for each waiting event of a monitor, until on_event returns false.
template <typename F>
void ForMonitorEvents(void* monitor, F on_event) {
  uint8_t head[6];  // u16 event, u32 value
  char address[256];
  while (zmq_recv(monitor, head, sizeof head, ZMQ_DONTWAIT) == sizeof head) {
    zmq_recv(monitor, address, sizeof address, ZMQ_DONTWAIT);
    uint16_t event;
    uint32_t value;
    std::memcpy(&event, head, sizeof event);
    std::memcpy(&value, head + sizeof event, sizeof value);
    if (!on_event(event, value)) return;
  }
}

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_ZMQ_SOCKETS_H_
