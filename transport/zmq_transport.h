// ZmqTransport is a transport over ZeroMQ: TCP between hosts, ipc:// on one host.
//
// One ROUTER accepts incoming connections, and each Connect makes one DEALER. A frame is one
// multi-part message. Outgoing buffers and large incoming parts are not copied. A connection is
// never re-established silently: when it breaks, the peer is lost, and connecting again gives a new
// PeerId. So no frame for a dead process reaches its successor.
//
// The end of a peer is seen in one of three ways:
// - A closed connection: at once, by the socket monitors and by PING probes. Probes are needed
//   because only a send tells which peer a ROUTER has lost.
// - A host that vanished without closing: by ZMTP heartbeats, after `silence_timeout`.
// - An orderly end: by a GOODBYE frame, which is answered with a GOODBYE frame.
//
// An endpoint that asks for a password has a random number, and its address ends with it:
// tcp://10.0.0.1:41231#1f2e... (job_keys.h). A process that listens later at the same port has
// another number. So a peer with the old address does not get through to the new process, and a
// stranger at the port hears a password that opens nothing else.
//
// A peer without the keys of the job, or with other keys, is refused in libzmq's handshake
// (zmq_gate.h). The side that connects loses the peer with UNAUTHENTICATED. The side that accepts
// gets a kGarbage event of peer 0, at most one a minute. A peer that has the password but no proof
// is ignored, because this side cannot close the connection.
//
// When a part exceeds `max_part_bytes`, libzmq drops the sender's connection before it buffers the
// part. So the sender is reported as lost, not as garbage.
//
// Threads: libzmq sockets may not be shared, so every socket belongs to the transport's one thread.
// Other threads may call Wake(), which only writes to an eventfd, and Alloc(), which uses the heap,
// and may drop buffers. libzmq's I/O threads only release sent frames (zmq_parts.h).
#ifndef TANDEM_TRANSPORT_ZMQ_TRANSPORT_H_
#define TANDEM_TRANSPORT_ZMQ_TRANSPORT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/endpoint.h"
#include "proto/frame.h"
#include "transport/job_keys.h"
#include "transport/waitable.h"
#include "transport/zmq_gate.h"

namespace tandem::transport {

// The I/O threads that any number of ZeroMQ transports share. The last transport or holder that
// releases the context waits for frames that are still being sent, up to the transports' `linger`.
class ZmqContext {
 public:
  explicit ZmqContext(int io_threads);
  ~ZmqContext();
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;

  void* handle() const { return handle_; }
  // Call it before the first socket: then libzmq starts its threads, and it aborts the process if
  // it gets none. RESOURCE_EXHAUSTED: there would be no threads for it. Thread safety: any thread.
  absl::Status MayStart();
  // Call Guard before an endpoint with keys accepts connections: only processes with the same keys
  // get through their handshake (transport/zmq_gate.h). Call Unguard when the endpoint has gone.
  // RESOURCE_EXHAUSTED: there is no thread or file left for that. Thread safety: any thread.
  absl::Status Guard(ZmqGate::Door door);
  void Unguard(const std::string& endpoint);
  // A number not given before, for names inside the context. Thread safety: any thread.
  uint64_t NextNumber() { return next_number_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void* const handle_;
  const int io_threads_;
  std::atomic<bool> started_{false};
  std::atomic<uint64_t> next_number_{1};
  absl::Mutex mutex_;
  std::unique_ptr<ZmqGate> gate_ ABSL_GUARDED_BY(mutex_);  // null before the first keys
};

struct ZmqOptions {
  std::shared_ptr<ZmqContext> context = nullptr;  // required
  // '*' as port: any free one (transport/tcp_address.h). With keys it may end with the number of
  // the endpoint; without, the number is random.
  std::string bind = "tcp://127.0.0.1:*";
  std::string advertised_host = "";  // host of address(); needed if `bind` names all hosts
  EndpointId self = {};              // sender of PING and GOODBYE frames
  uint64_t incarnation = 0;
  // The keys of the job. Null: anybody may connect, and nothing is encrypted.
  std::shared_ptr<const JobKeys> keys = nullptr;
  // With keys: encrypts all connections. If false, only the connections of this endpoint to
  // `encrypted_peer`, the scheduler, are encrypted. On all others the side that connects shows a
  // password (transport/zmq_gate.h), and then both ends prove that they have the keys
  // (transport/proof.h).
  bool encrypted = true;
  std::string encrypted_peer = "";
  int send_queue_frames = 1024;  // per peer: frames accepted and not yet in the kernel
  size_t max_part_bytes = kMaxPartBytes;
  absl::Duration connect_deadline = absl::Seconds(10);
  absl::Duration connect_retry = absl::Milliseconds(50);
  // How long queued frames are still sent after Close or the destructor, in the background.
  absl::Duration linger = absl::Seconds(5);
  // How long the peer has to answer a GOODBYE; the destructor waits for that. If a connection ends
  // while the peer still sends, frames that the peer has not read yet can be lost.
  absl::Duration goodbye_wait = absl::Seconds(1);
  absl::Duration ping_interval = absl::Seconds(1);
  absl::Duration heartbeat_interval = absl::Seconds(1);
  // Longer than the time after which missing heartbeats declare a process dead
  // (job/silence_times.h). So the scheduler reports a stopped process first, with the right reason.
  // Must exceed the time that one part takes on the wire.
  absl::Duration silence_timeout = absl::Seconds(10);
};

// INVALID_ARGUMENT: contradictory options or a malformed address. UNAVAILABLE: the address cannot
// be bound.
absl::StatusOr<std::unique_ptr<WaitableTransport>> NewZmqTransport(const ZmqOptions& options);

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_ZMQ_TRANSPORT_H_
