// One reliable connection: frames in, messages on a queue pair out, and the other way round.
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
// ABSL_ATTRIBUTE_HOT marks, here and in rdma/endpoint.h, every function that a small frame passes
// through. The linker puts them side by side, which saves misses of the instruction cache.
//
// Thread safety: none; for the endpoint's thread.
#ifndef TANDEM_RDMA_CONNECTION_H_
#define TANDEM_RDMA_CONNECTION_H_

#include <rdma/rdma_cma.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/frame.h"
#include "rdma/fifo.h"
#include "rdma/memory.h"
#include "rdma/ring.h"
#include "rdma/wire.h"
#include "transport/recycle_pool.h"

namespace tandem {

// Receive buffers that are posted together.
inline constexpr uint32_t kRdmaReceiveBatch = 16;

// Registered bytes for a received message of up to kBytes, which one thread takes without a lock.
struct RdmaSmallBlock final : public BufferBlock {
  static constexpr size_t kBytes = 512;
  void Recycle() override { pool->Give(this); }
  Buffer bytes;
  RecyclePool<RdmaSmallBlock>* pool = nullptr;
  RdmaSmallBlock* next = nullptr;
};

// What all connections of an endpoint share.
struct RdmaShared {
  std::shared_ptr<RdmaMemory> memory;
  std::shared_ptr<RdmaWaker> waker;
  RecyclePool<RdmaSmallBlock>* small_blocks = nullptr;
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
  uint64_t inlined = 0;               // messages that the processor gave to the device whole
  uint64_t lent = 0, copied_out = 0;  // frames received in the ring: used there, copied
  uint64_t gives = 0;                 // messages that carried nothing but credits and slots
};

// What the endpoint makes of a message that has arrived.
struct RdmaDelivery {
  enum class Kind { kFrame, kGarbage, kGoodbye };
  Kind kind = Kind::kFrame;
  Frame frame;
  absl::Status why;  // kGarbage
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
  RdmaHello Grant() const { return ring_->Grant(shared_.shape); }
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
  size_t in_flight() const { return queue_.size() + frames_posted_; }
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
  // A frame of more bytes than this is offered instead of written into the ring. An offer costs a
  // round trip; the ring may cost a copy, since a receiver that has lent out half of its ring
  // copies frames out of it. This is the size at which the copy takes as long as the round trip.
  size_t rendezvous_bytes() const { return rendezvous_bytes_; }

 private:
  struct Outgoing {
    Frame frame;
    bool goodbye = false;
  };
  // A posted work request; they complete in order.
  struct Work {
    enum class Kind { kMessage, kFrame, kGoodbye, kBind, kInvalidate, kRead, kProbe };
    Kind kind = Kind::kMessage;
    uint64_t number = 0;            // kRead: of the arrival; kInvalidate: index of the offer
    Clock::time_point posted = {};  // kProbe
  };
  // A frame that may not be delivered yet: it is still being read, or one before it is.
  struct Arrival {
    RdmaDelivery delivery;
    bool offered = false;
    RdmaMessage offer;
    int part = 0;  // next to be read
    size_t offset = 0;
    int reading = 0;  // reads posted and not done
    bool done() const { return !offered || (part == offer.parts && reading == 0); }
  };
  struct Key {
    ibv_mw* window = nullptr;
    ibv_mr* region = nullptr;  // where there are no windows
    uint32_t key = 0;
  };
  struct Offer {
    bool used = false;
    uint32_t token = 0;
    int keys_left = 0;
    Frame frame;
    Key keys[kMaxFrameParts];
  };
  struct Control {
    enum class Kind { kDone, kInvalidate };
    Kind kind = Kind::kDone;
    uint32_t token = 0;  // kDone
    uint64_t offer = 0;  // kInvalidate
    uint32_t key = 0;
  };

  RdmaConnection(const RdmaShared& shared, rdma_cm_id* id, RdmaPathCounters* counters)
      : shared_(shared), counters_(counters), id_(id) {}
  absl::Status Init();
  absl::Status CreateQueuePair();
  void StopQueuePair();

  // Sending.
  bool HasRoom(uint32_t requests) const;               // leaves some for control messages
  uint8_t* Staging(uint32_t place);                    // of send_depth + 1
  ABSL_ATTRIBUTE_HOT uint8_t* PlaceFor(size_t bytes);  // where to write the next message
  ABSL_ATTRIBUTE_HOT absl::Status Post(ibv_send_wr* request, const Work& work);
  ABSL_ATTRIBUTE_HOT absl::Status PostMessage(size_t bytes, Work::Kind kind);
  ABSL_ATTRIBUTE_HOT RdmaMessage NewMessage(RdmaMessageKind kind);
  absl::StatusOr<bool> TrySend(Outgoing* next);
  ABSL_ATTRIBUTE_HOT absl::StatusOr<bool> TrySendFrame(Frame* frame);  // takes it if true
  absl::Status SendGoodbye();
  ABSL_ATTRIBUTE_HOT absl::Status SendSmall(const Frame& frame, size_t bytes);
  int FreeSlotFor(size_t bytes) const;
  absl::Status SendToSlot(Frame&& frame, int slot);
  absl::Status WriteGathered(Frame&& frame, int slot, const RdmaMessage& message);
  absl::Status WriteStaged(const Frame& frame, int slot, const RdmaMessage& message);
  absl::Status PostWrite(absl::Span<ibv_sge> pieces, int slot, Frame&& frame);
  absl::StatusOr<bool> TryOffer(Frame* frame);
  absl::Status MakeKey(const Buffer& part, Key* key);
  absl::Status StageParts(Frame* frame);
  absl::Status PumpControl();
  void Finish(const Work& work, std::vector<RdmaDelivery>* out);

  // Receiving.
  ABSL_ATTRIBUTE_HOT absl::Status OnMessage(absl::Span<const uint8_t> bytes, int slot,
                                            std::vector<RdmaDelivery>* out);
  ABSL_ATTRIBUTE_HOT absl::Status TakeBack(const RdmaMessage& message);
  ABSL_ATTRIBUTE_HOT void OnFrame(const RdmaMessage& message, absl::Span<const uint8_t> bytes,
                                  int slot, Frame* frame);
  absl::Status OnOffer(const RdmaMessage& message, absl::Span<const uint8_t> bytes,
                       std::vector<RdmaDelivery>* out);
  absl::Status OnDone(uint32_t token);
  ABSL_ATTRIBUTE_HOT Buffer CopyBytes(absl::Span<const uint8_t> bytes);
  ABSL_ATTRIBUTE_HOT void CopyFrame(const RdmaMessage& message, absl::Span<const uint8_t> bytes,
                                    Frame* frame);
  void LendFrame(const RdmaMessage& message, absl::Span<const uint8_t> bytes, int slot,
                 Frame* frame);
  ABSL_ATTRIBUTE_HOT RdmaDelivery* Arrive(std::vector<RdmaDelivery>* out);
  void DeliverReady(std::vector<RdmaDelivery>* out);
  absl::Status PumpReads();
  absl::Status PostRead(uint64_t number, Arrival* arrival);
  void OnRead(uint64_t number, std::vector<RdmaDelivery>* out);
  void OnProbe(Clock::time_point posted);
  void KeyGone(uint64_t offer);

  const RdmaShared shared_;
  RdmaPathCounters* const counters_;
  rdma_cm_id* id_;
  std::shared_ptr<RdmaRing> ring_;
  Buffer staging_;  // messages that are sent, but for those in slots
  ibv_mr* staging_mr_ = nullptr;
  uint32_t max_inline_ = 0, max_pieces_ = 0;
  bool open_ = false, goodbye_left_ = false;

  // Towards the peer.
  RdmaHello peer_;
  uint32_t credits_ = 0;
  uint64_t free_slots_ = 0;
  size_t rendezvous_bytes_ = 0;
  Fifo<Outgoing> queue_;
  Fifo<Work> work_;
  uint64_t signalled_ = 0;     // the device will report all requests with a smaller number
  uint32_t staging_next_ = 0;  // place of the next work request, of send_depth
  Fifo<Frame> in_slots_;       // of Work::kFrame: kept alive
  Fifo<Control> control_;
  size_t frames_posted_ = 0;
  Offer offers_[kMaxRdmaOffers];
  std::vector<ibv_mw*> windows_;  // free ones
  uint32_t next_token_ = 1;

  // From the peer.
  uint32_t granted_ = 0;  // messages it may still send
  uint32_t owed_ = 0;     // messages taken from it whose credits we have not given back yet
  Fifo<Arrival> arrivals_;
  int offers_here_ = 0;  // arrivals that are offers
};

}  // namespace tandem

#endif  // TANDEM_RDMA_CONNECTION_H_
