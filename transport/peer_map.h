// PeerMap finds the transport peer of an endpoint. PeerMap connects to endpoints whose address a
// view gives, answers others on the connection over which they last spoke, and keeps frames that a
// full send queue refuses ("parked" frames).
//
// Parked frames belong to their connection. When the connection is lost, they are lost together
// with the frames in flight, and the next send connects again. So no frame for one process reaches
// its successor, and no frame overtakes another. A sender that must not lose a frame sends it
// again, as after any loss.
//
// Thread safety: none; only the transport's thread uses it.
#ifndef TANDEM_TRANSPORT_PEER_MAP_H_
#define TANDEM_TRANSPORT_PEER_MAP_H_

#include <deque>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "proto/endpoint.h"
#include "proto/outgoing.h"
#include "transport/transport.h"

namespace tandem::transport {

class PeerMap {
 public:
  // `transport` must outlive the map.
  explicit PeerMap(Transport& transport) : transport_(transport) {}

  // Sets where an endpoint listens. The first send connects, and so does the next send after a lost
  // connection. Returns true if the endpoint had another address before; the connection to the old
  // address is closed.
  bool SetAddress(EndpointId endpoint, const std::string& address);

  // Sends the frame, or parks it if the peer's queue is full. NOT_FOUND: there is no address, and
  // the endpoint has not spoken yet. UNAVAILABLE: no transport reaches it, or this process has no
  // resources for a connection. RESOURCE_EXHAUSTED: too many frames are parked; this frame is
  // dropped (its sender will send it again).
  absl::Status Send(Outgoing outgoing);

  // Updates the map. Call it for every event of the transport, before processing the event. Returns
  // the endpoint to which this side's connection was just lost; role kNone if there is none.
  EndpointId OnEvent(const TransportEvent& event);

  // The endpoint that SetAddress named for this address; role kNone if there is none.
  EndpointId EndpointAt(const std::string& address) const;

 private:
  struct Entry {
    std::string address;
    PeerId connected = 0;  // this side's connection to the endpoint
    PeerId heard_on = 0;   // the endpoint's connection to this side
    std::deque<Frame> parked;
    PeerId way() const { return connected != 0 ? connected : heard_on; }  // 0: none
  };
  absl::Status SendNow(Entry* entry, Frame frame);
  void Flush(Entry* entry);

  Transport& transport_;
  std::map<EndpointId, Entry> entries_;
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_PEER_MAP_H_
