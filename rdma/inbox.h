// The receiving half of one connection: what the peer may send (credits and slots of a ring), and its
// frames in the order in which it sent them, whichever way each came.
//
// A frame in a receive buffer is copied. One in a slot of the ring is used there, as long as the ring
// can spare the slot (rdma/ring.h). One that is offered is read from the peer's memory, and frames
// that come meanwhile wait behind it.
//
// Thread safety: none; for the endpoint's thread.
#ifndef TANDEM_RDMA_INBOX_H_
#define TANDEM_RDMA_INBOX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "proto/frame.h"
#include "rdma/fifo.h"
#include "rdma/memory.h"
#include "rdma/ring.h"
#include "rdma/send_queue.h"
#include "rdma/wire.h"
#include "transport/recycle_pool.h"

namespace tandem::rdma {

// Registered bytes for a received message of up to kBytes, which one thread takes without a lock.
struct RdmaSmallBlock final : public BufferBlock {
  static constexpr size_t kBytes = 512;
  void Recycle() override { pool->Give(this); }
  Buffer bytes;
  transport::RecyclePool<RdmaSmallBlock>* pool = nullptr;
  RdmaSmallBlock* next = nullptr;
};

// What the endpoint makes of a message that has arrived.
struct RdmaDelivery {
  enum class Kind { kFrame, kGarbage, kGoodbye };
  Kind kind = Kind::kFrame;
  Frame frame;
  absl::Status why;  // kGarbage
};

class RdmaInbox {
 public:
  struct Options {
    RdmaHello shape;        // what the peer is granted, without address and key
    bool lend_all = false;  // RdmaOptions::lend_all
  };
  struct Counters {
    uint64_t lent = 0, copied_out = 0;  // frames received in the ring: used there, copied
  };

  // All outlive the inbox. Reads are posted to `queue`; `control` is told what has been read.
  RdmaInbox(const Options& options, std::shared_ptr<RdmaMemory> memory,
            transport::RecyclePool<RdmaSmallBlock>* small_blocks, RdmaSendQueue* queue,
            Fifo<RdmaControl>* control, Counters* counters);
  // Makes the ring. RESOURCE_EXHAUSTED: the system refuses to register so much.
  absl::Status Open(std::shared_ptr<RdmaWaker> waker);
  RdmaHello Grant() const { return ring_->Grant(options_.shape); }
  // Takes the peer's key to the ring back.
  void Revoke();

  // Writes into the head of a message that goes to the peer all credits and slots that are free.
  ABSL_ATTRIBUTE_HOT void GiveBack(RdmaMessage* head);
  // Whether the peer may soon miss what could be given back.
  bool PeerIsShort() const { return 2 * owed_ >= options_.shape.credits || ring_->PeerIsShort(); }

  // The message that the peer says it has written into a slot; INVALID_ARGUMENT if it may not have.
  absl::StatusOr<absl::Span<uint8_t>> Take(uint32_t slot, size_t bytes) {
    return ring_->Take(slot, bytes);
  }
  void Release(int slot) { ring_->Release(slot); }
  // A message that needs a credit has come; INVALID_ARGUMENT if the peer has none.
  absl::Status UseCredit();

  // Where to put a frame, garbage or a goodbye that has come: straight into `out`, unless an earlier
  // frame is still being read; then it queues behind that one.
  ABSL_ATTRIBUTE_HOT RdmaDelivery* Arrive(std::vector<RdmaDelivery>* out);
  // A frame in a message; slot -1: in a receive buffer.
  ABSL_ATTRIBUTE_HOT void OnFrame(const RdmaMessage& message, absl::Span<const uint8_t> bytes,
                                  int slot, Frame* frame);
  // A frame that is offered. An error is the end of the connection; also of PumpReads.
  absl::Status OnOffer(const RdmaMessage& message, absl::Span<const uint8_t> bytes,
                       std::vector<RdmaDelivery>* out);
  bool reading() const { return offers_ > 0; }
  // Posts reads as far as there is room.
  absl::Status PumpReads();
  // A read of arrival `number` is done.
  void OnRead(uint64_t number, std::vector<RdmaDelivery>* out);

 private:
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
  ABSL_ATTRIBUTE_HOT Buffer CopyBytes(absl::Span<const uint8_t> bytes);
  ABSL_ATTRIBUTE_HOT void CopyFrame(const RdmaMessage& message, absl::Span<const uint8_t> bytes,
                                    Frame* frame);
  void LendFrame(const RdmaMessage& message, absl::Span<const uint8_t> bytes, int slot,
                 Frame* frame);
  void DeliverReady(std::vector<RdmaDelivery>* out);
  absl::Status PostRead(uint64_t number, Arrival* arrival);

  const Options options_;
  const std::shared_ptr<RdmaMemory> memory_;
  transport::RecyclePool<RdmaSmallBlock>* const small_blocks_;
  RdmaSendQueue* const queue_;
  Fifo<RdmaControl>* const control_;
  Counters* const counters_;
  std::shared_ptr<RdmaRing> ring_;
  uint32_t granted_ = 0;  // messages the peer may still send
  uint32_t owed_ = 0;     // messages taken from it whose credits we have not given back yet
  Fifo<Arrival> arrivals_;
  int offers_ = 0;  // arrivals that are offers
};

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_INBOX_H_
