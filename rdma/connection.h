// One reliable connection: frames in, messages on a queue pair out, and the other way round. It chooses
// the way of each frame and deals messages out to its parts: the work requests of the queue pair
// (rdma/send_queue.h), frames that the peer is to read (rdma/offers.h), frames of the peer
// (rdma/inbox.h).
//
// How a frame travels depends on its size (docs/RDMA.md):
//   small   one SEND, copied at both ends, inline where the device can. The device reports only
//           every eighth as done: a report costs more than it is worth, and it covers all before it
//   medium  one RDMA WRITE with immediate into a slot of the peer's ring. The device gathers the
//           parts from where they lie, and the receiver uses them in the slot: no copy
//   large   offered: the peer gets keys to exactly these parts, reads them into buffers of its own
//           and says so; then the keys are taken back. A ring for such frames would be too large
// Frames arrive in the order sent, whichever way each takes.
//
// Flow control: the peer says how many messages may be under way and which slots are free, and
// gives both back in the head of whatever message it sends next. A message that only gives back is
// sent when there is something to give, so the number of such messages is bounded, and the receiver
// posts buffers for all of them: its device never answers "receiver not ready", which would cost a
// timeout.
//
// ABSL_ATTRIBUTE_HOT marks, here, in its parts and in rdma/endpoint.h, every function that a small frame passes
// through. The linker puts them side by side, which saves misses of the instruction cache.
//
// Thread safety: none; for the endpoint's thread.
#ifndef TANDEM_RDMA_CONNECTION_H_
#define TANDEM_RDMA_CONNECTION_H_

#include <rdma/rdma_cma.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/frame.h"
#include "rdma/fifo.h"
#include "rdma/inbox.h"
#include "rdma/memory.h"
#include "rdma/offers.h"
#include "rdma/queues.h"
#include "rdma/ring.h"
#include "rdma/send_queue.h"
#include "rdma/wire.h"
#include "transport/recycle_pool.h"

namespace tandem::rdma {

// What all connections of an endpoint share.
struct RdmaShared {
  std::shared_ptr<RdmaMemory> memory;
  std::shared_ptr<RdmaWaker> waker;
  transport::RecyclePool<RdmaSmallBlock>* small_blocks = nullptr;
  ibv_cq* cq = nullptr;
  ibv_srq* srq = nullptr;
  RdmaHello shape;              // what this endpoint grants each peer, without address and key
  uint32_t send_depth = 0;      // work requests of a queue pair
  size_t max_part_bytes = 0;    // of what a peer sends
  size_t rendezvous_bytes = 0;  // frames above this are offered; 0: as measured, see below
  bool lend_all = false;        // RdmaOptions::lend_all
};

struct RdmaPathCounters {
  uint64_t small = 0, ring = 0, offered = 0;  // frames sent each way
  uint64_t staged = 0;                        // bytes copied because they were not registered
  uint64_t inlined = 0;  // messages that the processor gave to the device whole
  RdmaInbox::Counters received;
  uint64_t gives = 0;  // messages that carried nothing but credits and slots
};

class RdmaConnection {
 public:
  using Clock = std::chrono::steady_clock;

  // Takes `id`, which knows its device, if it succeeds; gives it a queue pair and this peer a ring.
  // RESOURCE_EXHAUSTED: the system does not give what that takes.
  static absl::StatusOr<std::unique_ptr<RdmaConnection>> New(const RdmaShared& shared,
                                                             rdma_cm_id* id,
                                                             RdmaPathCounters* counters);
  ~RdmaConnection();  // without a word to the peer
  RdmaConnection(const RdmaConnection&) = delete;
  RdmaConnection& operator=(const RdmaConnection&) = delete;

  // Receive buffers that the endpoint must have for this peer.
  static uint32_t ReceivesPerPeer(const RdmaHello& shape);

  rdma_cm_id* id() const { return id_; }
  uint32_t qp_number() const { return id_->qp->qp_num; }
  RdmaHello Grant() const { return inbox_.Grant(); }
  void SetPeer(const RdmaHello& peer);
  // From now on what is queued is sent. Also starts a measurement, so needs SetPeer.
  absl::Status Open();
  // Revokes the peer's key to our ring, and ends the connection on both sides.
  void Disconnect();

  // Posts the frame, or queues it until it can be posted. An error is the end of this connection.
  ABSL_ATTRIBUTE_HOT absl::Status Send(Frame&& frame);
  void QueueFrame(Frame&& frame);
  void QueueGoodbye();
  // Posts what can be posted. An error is the end of this connection.
  ABSL_ATTRIBUTE_HOT absl::Status Pump();
  // Frames queued or under way.
  size_t in_flight() const { return queue_.size() + in_slots_.size() + offers_.size(); }
  // Whether the peer's device has acknowledged our goodbye, and so everything before it.
  bool goodbye_left() const { return goodbye_left_; }

  // The device reports a work request of this connection as done, which means all before it too. An
  // error is the end of this connection.
  absl::Status OnSent(const ibv_wc& wc, std::vector<RdmaDelivery>* out);
  // A message is here: in a receive buffer (`bytes`), or in the slot that `wc` names. An error is
  // the end of this connection, by the peer's fault.
  ABSL_ATTRIBUTE_HOT absl::Status OnReceived(const ibv_wc& wc, absl::Span<const uint8_t> bytes,
                                             std::vector<RdmaDelivery>* out);

  // Gives back credits and slots if the peer may soon miss them.
  ABSL_ATTRIBUTE_HOT absl::Status GiveBack();
  // Asks whether the peer is alive: posts a write of no bytes, which the peer's device acknowledges
  // by itself. Does nothing if a request is under way, whose acknowledgement says the same.
  absl::Status Probe();

 private:
  struct Outgoing {
    Frame frame;
    bool goodbye = false;
  };

  RdmaConnection(const RdmaShared& shared, rdma_cm_id* id, RdmaPathCounters* counters);

  // Sending.
  ABSL_ATTRIBUTE_HOT RdmaMessage NewMessage(RdmaMessageKind kind);
  ABSL_ATTRIBUTE_HOT absl::Status PostMessage(size_t bytes, RdmaWork::Kind kind) {
    return requests_.PostMessage(bytes, kind, &counters_->inlined);
  }
  absl::StatusOr<bool> TrySend(Outgoing* next);
  ABSL_ATTRIBUTE_HOT absl::StatusOr<bool> TrySendFrame(Frame* frame);  // takes it if true
  absl::Status SendGoodbye();
  ABSL_ATTRIBUTE_HOT absl::Status SendSmall(const Frame& frame, size_t bytes);
  int FreeSlotFor(size_t bytes) const;
  absl::Status SendToSlot(Frame&& frame, int slot);
  absl::Status WriteGathered(Frame&& frame, int slot, const RdmaMessage& message);
  absl::Status WriteStaged(const Frame& frame, int slot, const RdmaMessage& message);
  absl::Status PostWrite(absl::Span<ibv_sge> pieces, int slot, Frame&& frame);
  absl::Status SendOffer(Frame* frame);
  absl::Status PumpControl();
  void Finish(const RdmaWork& work, std::vector<RdmaDelivery>* out);
  void OnProbe(Clock::time_point posted);

  // Receiving.
  ABSL_ATTRIBUTE_HOT absl::Status OnMessage(absl::Span<const uint8_t> bytes, int slot,
                                            std::vector<RdmaDelivery>* out);
  ABSL_ATTRIBUTE_HOT absl::Status TakeBack(const RdmaMessage& message);

  const RdmaShared shared_;
  RdmaPathCounters* const counters_;
  rdma_cm_id* id_;
  bool open_ = false, goodbye_left_ = false;
  Fifo<RdmaControl> control_;
  RdmaSendQueue requests_;
  RdmaInbox inbox_;
  RdmaOffers offers_;

  // Towards the peer.
  RdmaHello peer_;
  uint32_t credits_ = 0;
  uint64_t free_slots_ = 0;
  // A frame of more bytes than this is offered instead of written into the ring. An offer costs a
  // round trip; the ring may cost a copy, since a receiver that has lent out half of its ring
  // copies frames out of it. This is the size at which the copy takes as long as the round trip.
  size_t rendezvous_bytes_ = 0;
  Fifo<Outgoing> queue_;
  Fifo<Frame> in_slots_;  // of RdmaWork::kFrame: kept alive
};

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_CONNECTION_H_
