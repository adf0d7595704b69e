// RdmaConnector: makes connections through librdmacm, started by this side or by a peer.
//
// A connection is made in phases; each begins with the event that ends the phase before. Our side
// resolves the address, then the route, then sends a request with its hello. The other side makes a
// queue pair and a ring, and accepts with a hello of its own. Then both sides are told that the
// connection is established. A failed attempt is repeated until its deadline.
//
// Thread safety: none; for the endpoint's thread.
#ifndef TANDEM_RDMA_CONNECTOR_H_
#define TANDEM_RDMA_CONNECTOR_H_

#include <rdma/rdma_cma.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rdma/address.h"
#include "rdma/connection.h"
#include "rdma/peers.h"
#include "rdma/queues.h"
#include "rdma/rdma_transport.h"

namespace tandem::rdma {

class RdmaConnector {
 public:
  // All arguments outlive the connector. `shared` must be complete when the first connection is
  // made.
  RdmaConnector(const RdmaOptions* options, const RdmaShared* shared, RdmaQueues* queues,
                RdmaPeers* peers, RdmaPathCounters* counters)
      : options_(options), shared_(shared), queues_(queues), peers_(peers), counters_(counters) {}
  // Requires that no connection made here is left.
  ~RdmaConnector();
  RdmaConnector(const RdmaConnector&) = delete;
  RdmaConnector& operator=(const RdmaConnector&) = delete;

  // Binds the address of the options. UNAVAILABLE: no device has the address, or its port is not
  // active. UNIMPLEMENTED: the device lacks a feature that this transport needs.
  absl::Status Bind();
  const std::string& address() const { return address_; }
  const std::string& device() const { return device_; }
  ibv_context* verbs() const { return listener_->verbs; }
  // From now on, until StopListening, peers may connect.
  absl::Status Listen();
  void StopListening();

  int fd() const { return channel_->fd; }  // readable: call Next; does not block
  // Handles the events of connections that are being made, until an event of an existing connection
  // comes; `event` says which. False: there are no more events.
  struct Event {
    transport::PeerId peer = 0;
    rdma_cm_event_type type = RDMA_CM_EVENT_DISCONNECTED;
  };
  bool Next(Event* event);

  // Begins an attempt to connect to a peer.
  absl::Status Start(RdmaPeer* peer);
  void GiveUp(RdmaPeer* peer);
  // Prepares the next attempt after a failed one.
  void RetryLater(RdmaPeer* peer, absl::Status why);
  // A peer that connected to us is established: an event said so, or its first message has come.
  absl::Status OnAccepted(RdmaPeer* peer);

 private:
  absl::Status CheckDevice();
  void SetOptions(rdma_cm_id* id);
  rdma_conn_param Parameters(const uint8_t* hello);
  void OnRequest(rdma_cm_id* id, absl::Span<const uint8_t> data);
  absl::Status Accept(rdma_cm_id** id_in, absl::Span<const uint8_t> data);
  void OnAttempt(RdmaPeer* peer, const rdma_cm_event& event, absl::Span<const uint8_t> data);
  absl::Status ContinueAttempt(RdmaPeer* peer, const rdma_cm_event& event,
                               absl::Span<const uint8_t> data);
  absl::Status Request(RdmaPeer* peer);
  absl::Status OnConnected(RdmaPeer* peer, absl::Span<const uint8_t> data);

  const RdmaOptions* const options_;
  const RdmaShared* const shared_;
  RdmaQueues* const queues_;
  RdmaPeers* const peers_;
  RdmaPathCounters* const counters_;
  std::string address_, device_;
  RdmaSocketAddress own_;
  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* listener_ = nullptr;
};

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_CONNECTOR_H_
