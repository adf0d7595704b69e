// RdmaTransport: a transport over RDMA (InfiniBand and RoCE v2), by libibverbs and librdmacm.
//
// This header and devices.h are the interface of the folder rdma/; its other headers are internal.
//
// An endpoint listens at an address of one device and connects to others from there. Every peer has
// a reliable connection and a ring of its own (rdma/connection.h). One completion queue and one
// shared receive queue serve all peers of an endpoint. Before its thread sleeps on the completion
// channel, it looks for new completions for a while; that while is longer if looking has paid off
// lately.
//
// The end of a peer is noticed in three ways. If its process dies, the connection manager reports
// it at once. If its host vanishes while something is in flight, the retries are used up (about
// half a second). If nothing is in flight, probes notice it: writes of no bytes.
//
// Security: a peer gets a key to its own ring, and, for the time of a transfer, a key to exactly
// the parts of a frame that is offered to it. Everything that the peer writes is checked like any
// frame; the header of a frame is copied before it is checked. All keys are taken back when the
// peer leaves.
#ifndef TANDEM_RDMA_RDMA_TRANSPORT_H_
#define TANDEM_RDMA_RDMA_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/frame.h"
#include "transport/spin.h"
#include "transport/waitable.h"

namespace tandem::rdma {

// The RDMA devices of this process, the registered memory of each device, and a thread for
// destroyed endpoints. Frames that are in flight when a transport is destroyed are still sent, for
// up to the transport's `linger`. The destructor of the context waits for that. Any thread.
class RdmaContext {
 public:
  // UNIMPLEMENTED: built without libibverbs or librdmacm. UNAVAILABLE: there is no device, or no
  // library.
  static absl::StatusOr<std::shared_ptr<RdmaContext>> New();
  virtual ~RdmaContext() = default;
};

struct RdmaOptions {
  std::shared_ptr<RdmaContext> context = nullptr;  // required
  // HOST is an address of a device, or * for the first usable one. Port * means any free port.
  std::string bind = "rdma://*:*";
  int send_queue_frames = 1024;  // per peer: frames accepted and not yet at the peer's device
  size_t max_part_bytes = kMaxPartBytes;
  // At most this many peers; fewer if the device's queues are smaller. If they have no room for
  // min_peers, no endpoint is made.
  int max_peers = 64, min_peers = 1;
  absl::Duration connect_deadline = absl::Seconds(10);
  absl::Duration connect_retry = absl::Milliseconds(50);
  absl::Duration linger = absl::Seconds(5);        // see RdmaContext
  absl::Duration goodbye_wait = absl::Seconds(1);  // wait for the peer's answer to a goodbye
  absl::Duration probe_interval = absl::Seconds(1);
  // The device waits 4 us * 2^this for an answer of the peer's device, and gives up after seven
  // times that: half a second. Use more if a busy machine emulates the devices.
  int ack_timeout = 14;
  transport::SpinMode spin = transport::SpinMode::kWhenCoresAreFree;
  // The ring of each peer, and the messages outside the ring.
  int small_slots = 16, large_slots = 4;
  size_t small_slot_bytes = 64 << 10, large_slot_bytes = (1 << 20) + (64 << 10);
  // If true, frames are used in the ring even if all slots are lent out then. For a reader that
  // never gets more frames than it has read. If false, half of the ring is kept free, by copying.
  bool lend_all = false;
  size_t message_bytes = 4096;
  int credits = 64;             // messages in flight to this endpoint, per peer
  int send_depth = 64;          // work requests in flight, per peer
  size_t rendezvous_bytes = 0;  // larger frames are offered to be read; 0: measured
};

// How frames travelled, over all peers; and the work of the device's memory, over all endpoints.
struct RdmaCounters {
  uint64_t small = 0, ring = 0, offered = 0;
  uint64_t staged_bytes = 0, inlined = 0, lent = 0, copied_out = 0, gives = 0;
  uint64_t sleeps = 0;  // waits that asked the kernel
  uint64_t registrations = 0, allocations = 0, refusals = 0;
};

class RdmaTransport : public transport::WaitableTransport {
 public:
  virtual RdmaCounters rdma_counters() const = 0;
  // The device in words: "rxe0 port 1, RoCE v2, MTU 4096".
  virtual const std::string& device() const = 0;
};

// INVALID_ARGUMENT: options that contradict each other, or a malformed address. UNAVAILABLE: no
// usable device at the address, or the address is taken. UNIMPLEMENTED: the device lacks a needed
// feature (iWARP has no write with immediate), or has no room for min_peers. RESOURCE_EXHAUSTED:
// the system refuses to lock that much memory.
absl::StatusOr<std::unique_ptr<RdmaTransport>> NewRdmaTransport(const RdmaOptions& options);

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_RDMA_TRANSPORT_H_
