// This folder, transport/, moves frames between endpoints. A Transport is one endpoint. One thread
// uses it; other threads may call only Wake() and Alloc(). Implementations, all of which pass
// tests/unit/transport/transport_conformance_test.cc:
//
//   zmq_transport.h           ZeroMQ: TCP between hosts
//   shm_transport.h           shared memory, on one host
//   rdma/rdma_transport.h     RDMA verbs, between hosts that have a device
//   multi_transport.h         several of these; chooses the best one for each peer
//   in_process.h              within one process, for tests
//
// Every implementation guarantees:
//
//   (1) frames between two peers arrive whole, unchanged, in the order sent, at most once;
//   (2) a send queue is bounded: when it is full, Send returns RESOURCE_EXHAUSTED and sends
//       nothing, and a kWritable event follows when there is room again;
//   (3) the death of a peer causes one kPeerLost event within 3 s, and an orderly Close causes one
//       kPeerClosed event;
//   (4) bytes that are not a frame cause a kGarbage event, never a crash, and do not disturb other
//       peers;
//   (5) buffers of received frames return to the transport when they are dropped, on any thread,
//       even after the transport is destroyed.
//
// Not here: the meaning of frames (proto/frame.h), the addresses of endpoints (views), retries
// (client/).
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

// A connection to or from one other endpoint. This transport numbers its peers and never reuses a
// number.
using PeerId = uint64_t;

struct TransportEvent {
  enum class Kind { kFrame, kPeerLost, kPeerClosed, kWritable, kGarbage };
  Kind kind = Kind::kFrame;
  PeerId peer = 0;
  ParsedFrame frame;  // kFrame: decoded and checked
  absl::Status why;   // kPeerLost, kGarbage: the reason
};

// The log line for an event: for bytes that are not a frame, and for a connection that this process
// gave up because its system had no memory or descriptors left. Empty: nothing to log.
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

  // The address to which others can connect, for example "tcp://10.0.0.1:41231".
  virtual const std::string& address() const = 0;

  // Starts a connection. Frames that are sent before it is established are queued. If the peer does
  // not answer within the connect deadline, kPeerLost follows. INVALID_ARGUMENT if the address is
  // malformed.
  virtual absl::StatusOr<PeerId> Connect(const std::string& address) = 0;

  // Queues the frame. NOT_FOUND: the peer does not exist (any more). RESOURCE_EXHAUSTED: see (2).
  virtual absl::Status Send(PeerId peer, Frame frame) = 0;

  // Says goodbye and forgets the peer. Frames queued before are still delivered if the peer lives.
  virtual void Close(PeerId peer) = 0;

  // Appends events. Waits up to `timeout` if there are none. Returns early on Wake().
  virtual void Poll(absl::Duration timeout, std::vector<TransportEvent>* events) = 0;

  // Ends a Poll in progress, or the next one. Thread safety: any thread.
  virtual void Wake() = 0;

  virtual TransportCounters counters() const = 0;
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_TRANSPORT_H_
