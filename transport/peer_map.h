// Finds the transport peer of an endpoint: connects to endpoints whose address a view gives,
// answers others on the connection they last spoke on, and parks what a full send queue refuses.
//
// What is parked belongs to its connection: when that is lost, parked frames are lost with those in
// flight, and the next send connects again. So no frame meant for one process reaches its successor,
// and none overtakes another. Who must not lose a frame sends it again, as after any loss.
//
// Thread safety: none; the transport's thread.
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
  // `transport` outlives the map.
  explicit PeerMap(Transport& transport) : transport_(transport) {}

  // Where an endpoint listens. A connection is made at the first send, and again at the next one if
  // it was lost. True if it listened elsewhere before: the connection to there is closed.
  bool SetAddress(EndpointId endpoint, const std::string& address);

  // Sends, or parks if the peer's queue is full. NOT_FOUND: no address, and it has not spoken yet.
  // UNAVAILABLE: nothing reaches it, or nothing is left to make a connection of.
  // RESOURCE_EXHAUSTED: too much is parked; the frame is dropped (its asker will ask again).
  absl::Status Send(Outgoing outgoing);

  // Keeps the map true; call for every event of the transport, before looking at it. Returns the
  // endpoint to which our connection has just been lost; role kNone if none has.
  EndpointId OnEvent(const TransportEvent& event);

  // The endpoint that SetAddress was told of; role kNone if none.
  EndpointId EndpointAt(const std::string& address) const;

 private:
  struct Entry {
    std::string address;
    PeerId connected = 0;  // our connection to it
    PeerId heard_on = 0;   // its connection to us
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
