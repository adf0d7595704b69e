// Transport between processes of one host through shared memory (transport/shm_channel.h says how).
//
// In steady state a frame costs no allocation and no system call: the receiver looks into its
// rings for a while (transport/spin.h) before it goes to sleep, and is only rung if it sleeps.
// Small frames are copied through the ring. Large parts from Alloc() are written once and read
// where they lie; other large parts are copied once, into shared memory. A received buffer keeps
// its sender's block from being used again until it is dropped.
//
// Addresses: shm:<boot id of the host>/<name>; the name is an abstract Unix socket. So a peer must
// run on the same host, in the same network namespace, as the same user. Nothing has a name in any
// file system, so nothing is left by any exit, and the end of a process is seen at once, by the end
// of its sockets.
//
// A link whose peer breaks the rules of the ring gives kGarbage and is lost; a record that is only
// no frame gives kGarbage. A link is lost, too, when the system has no shared memory or descriptor
// left for a large part: kPeerLost says so (ABORTED, RESOURCE_EXHAUSTED), and the next connection
// can take another way.
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
  std::string address = "";      // empty: a free one
  int send_queue_frames = 1024;  // per peer: frames sent and not yet read by the other side
  absl::Duration connect_deadline = absl::Seconds(10);
  // Nobody listens there: zero to give up at once, else how often to try until the deadline.
  absl::Duration connect_retry = absl::Milliseconds(50);
  // How often an endpoint that always has frames looks for newcomers and the dead.
  absl::Duration socket_interval = absl::Milliseconds(10);
  SpinMode spin = SpinMode::kWhenCoresAreFree;  // before sleeping
};

class ShmTransport : public WaitableTransport {
 public:
  virtual ShmStats stats() const = 0;
};

// INVALID_ARGUMENT: bad options or address; UNAVAILABLE: the address is taken; UNIMPLEMENTED: this
// kernel (Linux before 5.1) or sandbox has no memory that others can only read;
// RESOURCE_EXHAUSTED: no memory or descriptor is left.
absl::StatusOr<std::unique_ptr<ShmTransport>> NewShmTransport(const ShmOptions& options);

// Of a text that begins with "shm:": OK if it is an address on this host, FAILED_PRECONDITION if on
// another, INVALID_ARGUMENT if it is none.
absl::Status CheckShmAddress(absl::string_view address);

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_SHM_TRANSPORT_H_
