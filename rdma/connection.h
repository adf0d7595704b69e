// RdmaConnection: one reliable connection. The connection turns frames into messages on a queue
// pair, and messages into frames. For each frame it chooses the path, and it passes messages to its
// parts: the work requests of the queue pair (rdma/send_queue.h), frames that the peer reads
// (rdma/offers.h), and frames of the peer (rdma/inbox.h).
//
// The size of a frame decides how it travels (docs/RDMA.md):
//   small   one SEND, copied at both ends; inline if the device can. The device reports only every
//           eighth one as done: a report costs more than it is worth, and covers all before it
//   medium  one RDMA WRITE with immediate into a slot of the peer's ring. The device gathers the
//           parts from where they lie, and the receiver uses them in the slot: no copy
//   large   offered: the peer gets keys to exactly these parts, reads them into buffers of its own
//           and reports it; then the keys are taken back. A ring for such frames would be too large
// Frames arrive in the order in which they were sent, on whatever path.
//
// Flow control: the peer grants a number of messages in flight and a set of slots. Used credits and
// slots are given back in the head of its next message, of any kind. If it has no message to send,
// it sends one that only gives back, and only if there is something to give. So the number of such
// messages is bounded, and the receiver posts buffers for all of them: its device never answers
// "receiver not ready", which would cost a timeout.
//
// ABSL_ATTRIBUTE_HOT marks every function that a small frame passes through, here, in the parts of
// a connection and in rdma/endpoint.h. The linker puts these functions side by side, which
// checkpoints misses of the instruction cache.
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

// The objects and settings that all connections of an endpoint share.
struct RdmaShared {
  std::shared_ptr<RdmaMemory> memory;
  std::shared_ptr<RdmaWaker> waker;
  transport::RecyclePool<RdmaSmallBlock>* small_blocks = nullptr;
  ibv_cq* cq = nullptr;
  ibv_srq* srq = nullptr;
  RdmaHello shape;              // grant for each peer, without address and key
  uint32_t send_depth = 0;      // work requests of a queue pair
  size_t max_part_bytes = 0;    // limit for parts that a peer sends
  size_t rendezvous_bytes = 0;  // larger frames are offered; 0: measured, see below
  bool lend_all = false;        // RdmaOptions::lend_all
};

struct RdmaPathCounters {
  uint64_t small = 0, ring = 0, offered = 0;  // frames sent on each path
  uint64_t staged = 0;                        // bytes copied because they were not registered
  uint64_t inlined = 0;                       // messages copied whole into the device's queue
  RdmaInbox::Counters received;
  uint64_t gives = 0;  // messages that only gave back credits and slots
};

class RdmaConnection {
 public:
  using Clock = std::chrono::steady_clock;

  // Makes a connection: gives `id` a queue pair and its peer a ring. `id` must know its device. The
  // connection owns `id` if this succeeds. RESOURCE_EXHAUSTED: the system lacks the resources.
  static absl::StatusOr<std::unique_ptr<RdmaConnection>> New(const RdmaShared& shared,
                                                             rdma_cm_id* id,
                                                             RdmaPathCounters* counters);
  // Does not tell the peer.
  ~RdmaConnection();
  RdmaConnection(const RdmaConnection&) = delete;
  RdmaConnection& operator=(const RdmaConnection&) = delete;

  // The number of receive buffers that the endpoint must have for each peer.
  static uint32_t ReceivesPerPeer(const RdmaHello& shape);

  rdma_cm_id* id() const { return id_; }
  uint32_t qp_number() const { return id_->qp->qp_num; }
  RdmaHello Grant() const { return inbox_.Grant(); }
  void SetPeer(const RdmaHello& peer);
  // From now on queued frames are sent. Also starts a measurement, so SetPeer must come before.
  absl::Status Open();
  // Revokes the peer's key to our ring, and ends the connection on both sides.
  void Disconnect();

  // Posts the frame, or queues it until it can be posted. An error ends this connection.
  ABSL_ATTRIBUTE_HOT absl::Status Send(Frame&& frame);
  void QueueFrame(Frame&& frame);
  void QueueGoodbye();
  // Posts everything that can be posted. An error ends this connection.
  ABSL_ATTRIBUTE_HOT absl::Status Pump();
  // The number of frames that are queued or in flight.
  size_t in_flight() const { return queue_.size() + in_slots_.size() + offers_.size(); }
  // Whether the peer's device has acknowledged our goodbye, and with it everything before.
  bool goodbye_left() const { return goodbye_left_; }

  // The device reports a work request of this connection as done; all requests before it are done,
  // too. An error ends this connection.
  absl::Status OnSent(const ibv_wc& wc, std::vector<RdmaDelivery>* out);
  // A message has come, in a receive buffer (`bytes`) or in the slot that `wc` names. An error is a
  // fault of the peer and ends this connection.
  ABSL_ATTRIBUTE_HOT absl::Status OnReceived(const ibv_wc& wc, absl::Span<const uint8_t> bytes,
                                             std::vector<RdmaDelivery>* out);

  // Gives back credits and slots if the peer may soon need them.
  ABSL_ATTRIBUTE_HOT absl::Status GiveBack();
  // Asks whether the peer is alive: posts a write of no bytes, which the peer's device acknowledges
  // without its process. Does nothing if a request is in flight, because its acknowledgement gives
  // the same answer.
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
  // True: the frame was sent, and its content is gone.
  ABSL_ATTRIBUTE_HOT absl::StatusOr<bool> TrySendFrame(Frame* frame);
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

  // State towards the peer.
  RdmaHello peer_;
  uint32_t credits_ = 0;
  uint64_t free_slots_ = 0;
  // Frames with more bytes than this are offered; smaller ones are written into the ring. An offer
  // costs a round trip. The ring may cost a copy, because a receiver copies frames out once half of
  // its ring is lent out. At the chosen size the copy takes as long as the round trip.
  size_t rendezvous_bytes_ = 0;
  Fifo<Outgoing> queue_;
  Fifo<Frame> in_slots_;  // frames of RdmaWork::kFrame: kept alive until done
};

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_CONNECTION_H_
