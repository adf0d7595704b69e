// ShmTransport is a transport between processes on one host through shared memory
// (transport/shm_channel.h describes the protocol).
//
// In steady state a frame costs no allocation and no system call. The receiver looks into its rings
// for a while (transport/spin.h) before it sleeps, and the sender rings the doorbell only if the
// receiver sleeps. Small frames are copied through the ring. Large parts from Alloc() are written
// once and read in place; other large parts are copied once, into shared memory. As long as a
// received buffer exists, its sender cannot reuse the buffer's block.
//
// Addresses have the form shm:<boot id of the host>/<name>, where the name is that of an abstract
// Unix socket. So a peer must run on the same host, in the same network namespace and as the same
// user. No file system contains any name, so no exit leaves anything behind, and the end of a
// process is seen at once by the end of its sockets.
//
// If a peer breaks the rules of the ring, kGarbage and the loss of its link follow. A record that
// is merely not a frame causes only kGarbage. A link is also lost when the system has no shared
// memory or descriptor left for a large part. kPeerLost then carries ABORTED or RESOURCE_EXHAUSTED,
// and the next connection can use another transport.
#ifndef TANDEM_TRANSPORT_SHM_TRANSPORT_H_
#define TANDEM_TRANSPORT_SHM_TRANSPORT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "transport/shm_channel.h"
#include "transport/spin.h"
#include "transport/waitable.h"

namespace tandem::transport {

struct ShmOptions {
  std::string address = "";      // empty: any free address
  int send_queue_frames = 1024;  // per peer: frames sent and not yet read by the peer
  absl::Duration connect_deadline = absl::Seconds(10);
  // If nobody listens at an address: zero to give up at once, otherwise how often to retry until
  // the deadline.
  absl::Duration connect_retry = absl::Milliseconds(50);
  // How often a busy endpoint looks for new and dead peers.
  absl::Duration socket_interval = absl::Milliseconds(10);
  SpinMode spin = SpinMode::kWhenCoresAreFree;  // before sleeping
};

class ShmTransport : public WaitableTransport {
 public:
  virtual ShmStats stats() const = 0;
};

// INVALID_ARGUMENT: bad options or address. UNAVAILABLE: the address is taken. UNIMPLEMENTED: this
// kernel (Linux before 5.1) or sandbox has no memory that other processes can only read.
// RESOURCE_EXHAUSTED: no memory or descriptor is left.
absl::StatusOr<std::unique_ptr<ShmTransport>> NewShmTransport(const ShmOptions& options);

// Checks an address that begins with "shm:". OK: an address on this host. FAILED_PRECONDITION: an
// address on another host. INVALID_ARGUMENT: not an address.
absl::Status CheckShmAddress(absl::string_view address);

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_SHM_TRANSPORT_H_
