// Transport over ZeroMQ: TCP between hosts, ipc:// on one host.
//
// One ROUTER takes incoming connections, one DEALER is made for each Connect. A frame is one
// multi-part message; buffers go out, and large parts come in, without being copied. A connection
// is never silently re-made: when it breaks the peer is lost, and connecting again gives a new
// PeerId, so no frame meant for a dead process reaches its successor.
//
// How a peer's end is seen: a closed connection by the socket monitors (and PING probes, because
// only a send tells that a ROUTER has lost a peer), at once; a host that vanished without a word by
// ZMTP heartbeats, after `silence_timeout`; an orderly end by a GOODBYE frame, which is answered by
// one.
//
// A part above `max_part_bytes` makes libzmq drop the sender's connection before it is buffered, so
// its sender is reported as lost, not as garbage.
#ifndef TANDEM_TRANSPORT_ZMQ_TRANSPORT_H_
#define TANDEM_TRANSPORT_ZMQ_TRANSPORT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/endpoint.h"
#include "proto/frame.h"
#include "transport/waitable.h"

namespace tandem::transport {

// The I/O threads that any number of ZeroMQ transports share. The last transport or holder that
// lets go of it waits, up to the transports' `linger`, for frames that are still being sent.
class ZmqContext {
 public:
  explicit ZmqContext(int io_threads);
  ~ZmqContext();
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;

  void* handle() const { return handle_; }
  // Before the first socket, with which libzmq starts its threads and aborts where it gets none.
  // RESOURCE_EXHAUSTED: it would get none. Any thread.
  absl::Status MayStart();
  // A number not given before, to name things inside the context. Any thread.
  uint64_t NextNumber() { return next_number_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void* const handle_;
  const int io_threads_;
  std::atomic<bool> started_{false};
  std::atomic<uint64_t> next_number_{1};
};

struct ZmqOptions {
  std::shared_ptr<ZmqContext> context = nullptr;  // required
  std::string bind = "tcp://127.0.0.1:*";  // '*' as port: any free one (transport/tcp_address.h)
  std::string advertised_host = "";        // host of address(); needed if `bind` names all hosts
  EndpointId self = {};                    // sender of PING and GOODBYE frames
  uint64_t incarnation = 0;
  int send_queue_frames = 1024;  // per peer: frames accepted and not yet in the kernel
  size_t max_part_bytes = kMaxPartBytes;
  absl::Duration connect_deadline = absl::Seconds(10);
  absl::Duration connect_retry = absl::Milliseconds(50);
  // After Close or the destructor: how long frames already queued are still sent, in the
  // background.
  absl::Duration linger = absl::Seconds(5);
  // How long the peer has to answer a GOODBYE; the destructor waits for that. Ending a connection
  // while the peer still sends can cost frames it has not read yet.
  absl::Duration goodbye_wait = absl::Seconds(1);
  absl::Duration ping_interval = absl::Seconds(1);
  absl::Duration heartbeat_interval = absl::Seconds(1);
  // Longer than the 8 s after which missing beats declare a process dead, so that a stopped process
  // is first reported as what it is. Must exceed the time one part takes on the wire.
  absl::Duration silence_timeout = absl::Seconds(10);
};

// INVALID_ARGUMENT: options that contradict each other or a malformed address; UNAVAILABLE: the
// address cannot be bound.
absl::StatusOr<std::unique_ptr<WaitableTransport>> NewZmqTransport(const ZmqOptions& options);

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_ZMQ_TRANSPORT_H_
