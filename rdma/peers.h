// RdmaPeer: a peer of an endpoint, from the attempt to connect until it is dropped. RdmaPeers holds
// all of them, the list of lost ones that must still be reported, and the time of the next timer.
//
// Thread safety: none; for the endpoint's thread.
#ifndef TANDEM_RDMA_PEERS_H_
#define TANDEM_RDMA_PEERS_H_

#include <rdma/rdma_cma.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "rdma/address.h"
#include "rdma/connection.h"
#include "rdma/fifo.h"
#include "transport/transport.h"

namespace tandem::rdma {

struct RdmaPeer {
  using Clock = std::chrono::steady_clock;
  enum class State {
    kConnecting,  // we are connecting to it
    kAccepting,   // the peer is connecting to us
    kOpen,
    kClosing,  // we said goodbye, or will when it is connected
    // Both sides have said goodbye; one of them disconnects, see RdmaEndpoint::Finished.
    kClosed,
  };
  transport::PeerId id = 0;
  State state = State::kConnecting;
  bool reported = false;  // the user knows of this peer
  bool blocked = false;   // a Send was refused: the user waits for kWritable
  bool connected = false;
  bool closed_first = false;  // we said goodbye before the peer did
  bool gone = false;          // lost, because of `why`; the next Poll reports it
  absl::Status why;
  std::unique_ptr<RdmaConnection> connection;
  // Only for peers that we connect to.
  std::string address;
  RdmaSocketAddress to;
  rdma_cm_id* attempt = nullptr;  // until it has a connection
  Fifo<Frame> pending;            // frames that wait until it is connected
  Clock::time_point connect_deadline = Clock::time_point::max();
  Clock::time_point retry_at = Clock::time_point::max();
  Clock::time_point close_deadline = Clock::time_point::max();
  Clock::time_point probe_at = Clock::time_point::max();

  bool live() const { return !gone && (state == State::kConnecting || state == State::kOpen); }
  size_t in_flight() const {
    return pending.size() + (connection == nullptr ? 0 : connection->in_flight());
  }
};

class RdmaPeers {
 public:
  using Clock = RdmaPeer::Clock;
  using Map = absl::flat_hash_map<transport::PeerId, std::unique_ptr<RdmaPeer>>;

  transport::PeerId NewId() { return next_id_++; }
  void Add(std::unique_ptr<RdmaPeer> peer) {
    const transport::PeerId id = peer->id;
    peers_[id] = std::move(peer);
  }
  void Erase(transport::PeerId id) { peers_.erase(id); }

  bool empty() const { return peers_.empty(); }
  size_t size() const { return peers_.size(); }
  const Map& all() const { return peers_; }
  // The peer, or null if there is none (any more).
  ABSL_ATTRIBUTE_HOT RdmaPeer* Find(transport::PeerId id) const {
    const auto found = peers_.find(id);
    return found == peers_.end() ? nullptr : found->second.get();
  }

  // The peer with a connection whose queue pair has this number, or null.
  RdmaPeer* FindQueuePair(uint32_t number) const {
    const auto found = by_queue_pair_.find(number);
    return found == by_queue_pair_.end() ? nullptr : found->second;
  }
  void SetQueuePair(RdmaPeer* peer) { by_queue_pair_[peer->connection->qp_number()] = peer; }
  void DropConnection(RdmaPeer* peer) {
    if (peer->connection == nullptr) return;
    by_queue_pair_.erase(peer->connection->qp_number());
    peer->connection.reset();
  }
  size_t connections() const {
    return static_cast<size_t>(std::count_if(peers_.begin(), peers_.end(), [](const auto& p) {
      return p.second->connection != nullptr;
    }));
  }

  // Ends a peer without a goodbye. A later Poll reports and drops the peer.
  void Break(RdmaPeer* peer, absl::Status why) {
    if (std::exchange(peer->gone, true)) return;
    peer->why = std::move(why);
    gone_.push_back(peer->id);
  }
  std::vector<transport::PeerId>& gone() { return gone_; }

  // A timer is due at `at`; the earliest one counts.
  void ScheduleAt(Clock::time_point at) { next_timer_ = std::min(next_timer_, at); }
  Clock::time_point next_timer() const { return next_timer_; }
  void ClearTimer() { next_timer_ = Clock::time_point::max(); }

 private:
  transport::PeerId next_id_ = 1;
  Map peers_;
  absl::flat_hash_map<uint32_t, RdmaPeer*> by_queue_pair_;
  std::vector<transport::PeerId> gone_;
  Clock::time_point next_timer_ = Clock::time_point::min();
};

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_PEERS_H_
