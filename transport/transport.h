// Moves frames between endpoints. One Transport is one endpoint, used by one thread; only Wake() and
// Alloc() may be called from others. Implementations, all of which pass
// tests/unit/transport_conformance_test.cc:
//   zmq_transport.h           ZeroMQ: TCP between hosts
//   shm_transport.h           shared memory, on one host
//   rdma/rdma_transport.h     RDMA verbs, between hosts that have a device
//   multi_transport.h         several of these: for each peer the best way that reaches it
//   in_process.h              within one process, for tests
//
// What every implementation promises:
//   (1) frames between two peers arrive whole, unchanged, in the order sent, at most once;
//   (2) a send queue is bounded: beyond the bound Send returns RESOURCE_EXHAUSTED and sends
//       nothing, and a kWritable event follows when there is room;
//   (3) the death of a peer gives one kPeerLost event within 3 s, an orderly Close one kPeerClosed;
//   (4) bytes that are not a frame give a kGarbage event, never a crash, and other peers go on;
//   (5) buffers of received frames return to the transport when dropped, on any thread, even after
//       the transport is gone.
// Not here: what frames mean (proto/frame.h), who an endpoint is (views), retries (the client).
#ifndef TANDEM_TRANSPORT_TRANSPORT_H_
#define TANDEM_TRANSPORT_TRANSPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/buffer.h"
#include "proto/frame.h"

namespace tandem::transport {

// A connection to (or from) one other endpoint, numbered by this transport; never reused.
using PeerId = uint64_t;

struct TransportEvent {
  enum class Kind { kFrame, kPeerLost, kPeerClosed, kWritable, kGarbage };
  Kind kind = Kind::kFrame;
  PeerId peer = 0;
  ParsedFrame frame;  // kFrame: decoded and checked
  absl::Status why;   // kPeerLost, kGarbage
};

// The line that an event is worth in a log: of bytes that are no frame, or of a connection that this
// process gave up because its system had nothing left for it. Empty: none.
inline std::string TroubleIn(const TransportEvent& event) {
  const bool given_up = event.kind == TransportEvent::Kind::kPeerLost &&
                        (absl::IsAborted(event.why) || absl::IsResourceExhausted(event.why));
  const bool garbage = event.kind == TransportEvent::Kind::kGarbage;
  return garbage || given_up ? event.why.ToString() : "";
}

struct TransportCounters {
  uint64_t frames_sent = 0, frames_received = 0;
  uint64_t bytes_sent = 0, bytes_received = 0;
};

class Transport : public BufferSource {
 public:
  ~Transport() override = default;

  // Where others can connect to, e.g. "tcp://10.0.0.1:41231".
  virtual const std::string& address() const = 0;

  // Starts a connection; frames sent before it stands are queued. A peer that never answers gives
  // kPeerLost after the connect deadline. INVALID_ARGUMENT if the address is malformed.
  virtual absl::StatusOr<PeerId> Connect(const std::string& address) = 0;

  // Queues the frame. NOT_FOUND: no such peer (any more). RESOURCE_EXHAUSTED: see (2).
  virtual absl::Status Send(PeerId peer, Frame frame) = 0;

  // Says goodbye, then forgets the peer. Frames queued before are still delivered if it lives.
  virtual void Close(PeerId peer) = 0;

  // Appends what has happened; waits up to `timeout` if nothing has. Returns early on Wake().
  virtual void Poll(absl::Duration timeout, std::vector<TransportEvent>* events) = 0;

  // Ends a Poll in progress, or the next one. Any thread.
  virtual void Wake() = 0;

  virtual TransportCounters counters() const = 0;
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_TRANSPORT_H_
