// Transport between objects of one process, for tests and for whole clusters in one process. Frames
// pass by reference; they are decoded and checked as if they had come from a wire.
//
// Thread safety: each endpoint is used by one thread, as any Transport; the network itself is
// locked by one mutex, so endpoints may live on different threads.
#ifndef TANDEM_TRANSPORT_IN_PROCESS_H_
#define TANDEM_TRANSPORT_IN_PROCESS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/frame.h"
#include "transport/transport.h"

namespace tandem::transport {

struct InProcessOptions {
  std::string address = "";      // "inproc:name"; empty: a free one
  int send_queue_frames = 1024;  // per peer: frames sent and not yet polled by the other side
  absl::Duration connect_deadline = absl::Seconds(10);
};

// Which endpoints exist. A handle: copies name the same network, which lives as long as any handle
// or endpoint of it.
class InProcessNetwork {
 public:
  InProcessNetwork();

  // ALREADY_EXISTS: the address is taken. INVALID_ARGUMENT: malformed address or no queue.
  absl::StatusOr<std::unique_ptr<Transport>> NewTransport(const InProcessOptions& options) const;

  // What a SIGKILL does: the endpoint is gone without a goodbye, its peers get kPeerLost, and the
  // object that is left says NOT_FOUND to every Send. NOT_FOUND: nobody has this address.
  absl::Status Kill(const std::string& address) const;

  // Hands an endpoint a message as from a stranger that connects, sends these parts, and stays.
  absl::Status Inject(const std::string& address, Frame raw) const;

 private:
  friend class InProcessTransport;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_IN_PROCESS_H_
