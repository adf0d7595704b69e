// A transport between objects of one process, for tests and for whole clusters in one process.
// Frames pass by reference, but are decoded and checked as if they had come over a network.
//
// Thread safety: one thread uses each endpoint, as for any Transport. One mutex guards the network,
// so endpoints may be used by different threads.
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
  std::string address = "";      // "inproc:name"; empty: any free address
  int send_queue_frames = 1024;  // per peer: frames sent and not yet polled by the peer
  absl::Duration connect_deadline = absl::Seconds(10);
};

// The set of endpoints that can reach each other. The class is a handle: copies refer to the same
// network, which lives as long as any handle or endpoint of it.
class InProcessNetwork {
 public:
  InProcessNetwork();

  // ALREADY_EXISTS: the address is taken. INVALID_ARGUMENT: a malformed address, or a queue without
  // room.
  absl::StatusOr<std::unique_ptr<Transport>> NewTransport(const InProcessOptions& options) const;

  // Simulates SIGKILL. The endpoint is gone without a goodbye, its peers get kPeerLost, and its
  // object returns NOT_FOUND from every Send. NOT_FOUND: no endpoint has this address.
  absl::Status Kill(const std::string& address) const;

  // Gives an endpoint a message as if a stranger connected, sent these parts, and stayed connected.
  absl::Status Inject(const std::string& address, Frame raw) const;

 private:
  friend class InProcessTransport;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_IN_PROCESS_H_
