#include "transport/peer_map.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::transport {
namespace {
constexpr size_t kMaxParked = 4096;        // frames parked for an endpoint
constexpr size_t kMaxEndpoints = 1 << 17;  // senders choose their names, so their number is bounded
}  // namespace

bool PeerMap::SetAddress(EndpointId endpoint, const std::string& address) {
  Entry& entry = entries_[endpoint];
  if (entry.address == address) return false;
  const bool moved = !entry.address.empty();
  entry.address = address;
  if (moved) entry.parked.clear();
  if (entry.connected != 0) transport_.Close(std::exchange(entry.connected, 0));
  return moved;
}

absl::Status PeerMap::SendNow(Entry* entry, Frame frame) {
  if (entry->connected == 0 && !entry->address.empty()) {
    absl::StatusOr<PeerId> peer = transport_.Connect(entry->address);
    // A process without descriptors left cannot connect. No kWritable would follow, so the frame
    // must not be parked.
    if (absl::IsResourceExhausted(peer.status())) {
      return absl::UnavailableError(peer.status().message());
    }
    if (!peer.ok()) return peer.status();
    entry->connected = *peer;
  }
  if (entry->way() == 0) {
    return absl::NotFoundError("its address is unknown, and it has not connected");
  }
  return transport_.Send(entry->way(), std::move(frame));
}

absl::Status PeerMap::Send(Outgoing outgoing) {
  Entry& entry = entries_[outgoing.to];
  if (entry.parked.empty()) {
    const absl::Status sent = SendNow(&entry, outgoing.frame);
    if (!absl::IsResourceExhausted(sent)) return sent;
  }
  if (entry.parked.size() >= kMaxParked) {
    return absl::ResourceExhaustedError(
        absl::StrCat(outgoing.to.DebugString(), ": ", kMaxParked, " frames already wait for it"));
  }
  entry.parked.push_back(std::move(outgoing.frame));
  return absl::OkStatus();
}

void PeerMap::Flush(Entry* entry) {
  while (!entry->parked.empty()) {
    if (absl::IsResourceExhausted(SendNow(entry, entry->parked.front()))) return;
    entry->parked.pop_front();
  }
}

EndpointId PeerMap::OnEvent(const TransportEvent& event) {
  EndpointId lost;
  switch (event.kind) {
    case TransportEvent::Kind::kFrame: {
      if (entries_.size() >= kMaxEndpoints && entries_.count(event.frame.header.sender) == 0) break;
      Entry& entry = entries_[event.frame.header.sender];
      if (event.peer == entry.connected || event.peer == entry.heard_on) break;
      // An endpoint that asks this one has connected again, perhaps before its loss was seen.
      // Parked frames belonged to the old connection, whose queue no longer reports room.
      if (entry.connected == 0) entry.parked.clear();
      entry.heard_on = event.peer;
      break;
    }
    case TransportEvent::Kind::kWritable:
      for (auto& [id, entry] : entries_) {
        if (entry.way() == event.peer) Flush(&entry);
      }
      break;
    case TransportEvent::Kind::kPeerLost:
    case TransportEvent::Kind::kPeerClosed:
      for (auto& [id, entry] : entries_) {
        if (entry.way() == event.peer) entry.parked.clear();
        if (entry.connected == event.peer) {
          entry.connected = 0;
          lost = id;
        }
        if (entry.heard_on == event.peer) entry.heard_on = 0;
      }
      break;
    case TransportEvent::Kind::kGarbage:
      break;
  }
  return lost;
}

EndpointId PeerMap::EndpointAt(const std::string& address) const {
  for (const auto& [id, entry] : entries_) {
    if (entry.address == address) return id;
  }
  return EndpointId();
}

}  // namespace tandem::transport
