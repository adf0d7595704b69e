// Transport over RDMA: InfiniBand and RoCE v2, by libibverbs and librdmacm.
//
// An endpoint listens at an address of one device and reaches others from there; every peer has a
// reliable connection and a ring of its own (rdma/connection.h). One completion queue and one
// shared receive queue serve all peers of an endpoint. Its thread sleeps on the completion channel,
// after having looked for a while whether something comes at once: longer if that has paid off
// lately.
//
// A peer's end is seen by the connection manager at once if its process dies, by retries that are
// used up (about half a second) if its host vanishes while something is under way, and by probes,
// writes of nothing, if nothing is.
//
// Security: a peer gets a key to its own ring, to nothing else, and for the time of a transfer one
// to exactly the parts of a frame that is offered to it. Whatever it writes is checked like any
// frame; the header of a frame is copied before it is checked. Keys are taken back when it goes.
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

// The RDMA devices of this process, the registered memory of each, and a thread for what endpoints
// leave behind: frames that are still under way when a transport is destroyed are sent on for up to
// its `linger`. Whoever lets go of the context last waits for that. Any thread.
class RdmaContext {
 public:
  // UNIMPLEMENTED: built without libibverbs or librdmacm. UNAVAILABLE: no device.
  static absl::StatusOr<std::shared_ptr<RdmaContext>> New();
  virtual ~RdmaContext() = default;
};

struct RdmaOptions {
  std::shared_ptr<RdmaContext> context = nullptr;  // required
  // HOST: an address that a device has, or * for the first that is usable. '*' as port: any free
  // one.
  std::string bind = "rdma://*:*";
  int send_queue_frames = 1024;  // per peer: frames accepted and not yet at the peer's device
  size_t max_part_bytes = kMaxPartBytes;
  // At most, and fewer if the device's queues are smaller; but if they have no room for min_peers,
  // there is no endpoint.
  int max_peers = 64, min_peers = 1;
  absl::Duration connect_deadline = absl::Seconds(10);
  absl::Duration connect_retry = absl::Milliseconds(50);
  absl::Duration linger = absl::Seconds(5);        // see RdmaContext
  absl::Duration goodbye_wait = absl::Seconds(1);  // for a peer that was said goodbye to
  absl::Duration probe_interval = absl::Seconds(1);
  // An answer of the peer's device is missed after 4 us * 2^this, and given up after seven times
  // that: half a second. More where devices are emulated by a busy machine.
  int ack_timeout = 14;
  transport::SpinMode spin = transport::SpinMode::kWhenCoresAreFree;
  // The ring of each peer, and messages outside it.
  int small_slots = 16, large_slots = 4;
  size_t small_slot_bytes = 64 << 10, large_slot_bytes = (1 << 20) + (64 << 10);
  // Frames are used in the ring even if all of it is lent out then: for a reader that is sent no
  // more than it has read. Otherwise half of it is kept free, by copying.
  bool lend_all = false;
  size_t message_bytes = 4096;
  int credits = 64;             // messages under way to this endpoint, per peer
  int send_depth = 64;          // work requests under way, per peer
  size_t rendezvous_bytes = 0;  // frames above this are offered to be read; 0: measured
};

// How frames went, over all peers; and what the memory of the device had to do, over all endpoints.
struct RdmaCounters {
  uint64_t small = 0, ring = 0, offered = 0;
  uint64_t staged_bytes = 0, inlined = 0, lent = 0, copied_out = 0, gives = 0;
  uint64_t sleeps = 0;  // waits that asked the kernel
  uint64_t registrations = 0, allocations = 0, refusals = 0;
};

class RdmaTransport : public transport::WaitableTransport {
 public:
  virtual RdmaCounters rdma_counters() const = 0;
  // "rxe0 port 1, RoCE v2, MTU 4096".
  virtual const std::string& device() const = 0;
};

// INVALID_ARGUMENT: options that contradict each other or a malformed address. UNAVAILABLE: no
// usable device at the address, or the address is taken. UNIMPLEMENTED: the device cannot do what
// this needs (iWARP has no write with immediate), or not for min_peers. RESOURCE_EXHAUSTED: the
// system refuses to lock so much memory.
absl::StatusOr<std::unique_ptr<RdmaTransport>> NewRdmaTransport(const RdmaOptions& options);

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_RDMA_TRANSPORT_H_
