// Sockets of libzmq as a ZeroMQ transport wants them, and their monitors.
//
// Thread safety: a socket and its monitor belong to one thread at a time.
#ifndef TANDEM_TRANSPORT_ZMQ_SOCKETS_H_
#define TANDEM_TRANSPORT_ZMQ_SOCKETS_H_

#include <zmq.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/zmq_transport.h"

namespace tandem {

// What libzmq says of the last error of this thread.
std::string ZmqError();

int Milliseconds(absl::Duration d);

// A socket that does not bound its queue, reconnect or take parts beyond the options' bounds.
// RESOURCE_EXHAUSTED: the context has no more sockets, or the process no more files.
absl::StatusOr<void*> NewZmqSocket(const ZmqOptions& options, int type);

// A socket on which `socket` reports these events; ForMonitorEvents reads them.
absl::StatusOr<void*> NewZmqMonitor(ZmqContext& context, void* socket, int zmq_events);

// Readable when the socket may have news.
int SocketFd(void* socket);

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

}  // namespace tandem

#endif  // TANDEM_TRANSPORT_ZMQ_SOCKETS_H_
