// Sockets of libzmq as a ZeroMQ transport wants them, each with the monitor that reports its events,
// and the epoll set in which a transport waits for all of its own.
//
// Thread safety: a set, a socket and its monitor belong to one thread at a time.
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

// What libzmq says of the last error of this thread.
std::string ZmqError();

struct MonitoredSocket {
  void* socket = nullptr;
  void* monitor = nullptr;  // ForMonitorEvents reads what it reports
};

class ZmqSocketSet {
 public:
  // `wake_fd` is in the set, too, as `wake_key`, and outlives it.
  ZmqSocketSet(const ZmqOptions& options, int wake_fd, uint64_t wake_key);

  // A socket that does not bound its queue, reconnect or take parts beyond the options' bounds, and
  // a monitor for `zmq_events`; in the set as `key` and `key` + 1. `address`: where it will bind or
  // connect to, a number and no name. RESOURCE_EXHAUSTED: the context has no more sockets, or the
  // process no more files.
  absl::StatusOr<MonitoredSocket> Open(int type, int zmq_events, uint64_t key,
                                       const std::string& address);
  // Sends what is queued for up to `linger`, in the background. Does nothing if there is none.
  void Close(MonitoredSocket* socket, absl::Duration linger);

  // Readable when a socket may have news.
  int fd() const { return epoll_fd_.get(); }
  // Calls on_ready(key) for some that may have news, at most after `timeout_ms` (-1: whenever there
  // are any). Returns how many, or less than 0 if it was interrupted.
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

// Frees the address that `socket` is bound to, and waits until it is free, up to `patience`. libzmq
// closes in the background; until then others could still connect to what no longer exists.
void UnbindZmq(const MonitoredSocket& socket, const std::string& address, absl::Duration patience);

// Calls on_event(event number) for each waiting event of a monitor, until it returns false.
template <typename F>
void ForMonitorEvents(void* monitor, F on_event) {
  uint8_t head[6];  // u16 event, u32 value
  char address[256];
  while (zmq_recv(monitor, head, sizeof head, ZMQ_DONTWAIT) == sizeof head) {
    zmq_recv(monitor, address, sizeof address, ZMQ_DONTWAIT);
    uint16_t event;
    std::memcpy(&event, head, sizeof event);
    if (!on_event(event)) return;
  }
}

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_ZMQ_SOCKETS_H_
