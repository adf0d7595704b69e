// RdmaInbox: the receiving half of one connection. The inbox knows what the peer may send (credits
// and slots of a ring), and delivers the peer's frames in the order in which they were sent, on
// whatever path each came.
//
// A frame in a receive buffer is copied. A frame in a slot of the ring is used there, as long as
// the ring can spare the slot (rdma/ring.h). An offered frame is read from the peer's memory, and
// later frames wait behind it.
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

// Registered memory for a received message of up to kBytes. One thread takes blocks without a lock.
struct RdmaSmallBlock final : public BufferBlock {
  static constexpr size_t kBytes = 512;
  void Recycle() override { pool->Give(this); }
  Buffer bytes;
  transport::RecyclePool<RdmaSmallBlock>* pool = nullptr;
  RdmaSmallBlock* next = nullptr;
};

// A message that has arrived, as the endpoint sees it.
struct RdmaDelivery {
  enum class Kind { kFrame, kGarbage, kGoodbye };
  Kind kind = Kind::kFrame;
  Frame frame;
  absl::Status why;  // kGarbage
};

class RdmaInbox {
 public:
  struct Options {
    RdmaHello shape;        // grant for the peer, without address and key
    bool lend_all = false;  // RdmaOptions::lend_all
  };
  struct Counters {
    uint64_t lent = 0, copied_out = 0;  // frames received in the ring: used there, copied
  };

  // All arguments outlive the inbox. Reads are posted to `queue`; `control` gets the messages that
  // report finished reads.
  RdmaInbox(const Options& options, std::shared_ptr<RdmaMemory> memory,
            transport::RecyclePool<RdmaSmallBlock>* small_blocks, RdmaSendQueue* queue,
            Fifo<RdmaControl>* control, Counters* counters);
  // Makes the ring. RESOURCE_EXHAUSTED: the system refuses to register that much memory.
  absl::Status Open(std::shared_ptr<RdmaWaker> waker);
  RdmaHello Grant() const { return ring_->Grant(options_.shape); }
  // Takes the peer's key to the ring back.
  void Revoke();

  // Writes all credits and slots that are free into the head of a message to the peer.
  ABSL_ATTRIBUTE_HOT void GiveBack(RdmaMessage* head);
  // Whether the peer may soon need the credits or slots that could be given back.
  bool PeerIsShort() const { return 2 * owed_ >= options_.shape.credits || ring_->PeerIsShort(); }

  // The message that the peer says it has written into a slot. INVALID_ARGUMENT: the peer was not
  // allowed to write there.
  absl::StatusOr<absl::Span<uint8_t>> Take(uint32_t slot, size_t bytes) {
    return ring_->Take(slot, bytes);
  }
  void Release(int slot) { ring_->Release(slot); }
  // Call it for a message that needs a credit. INVALID_ARGUMENT: the peer has none left.
  absl::Status UseCredit();

  // Where to put a frame, garbage or a goodbye that has come: straight into `out`; if an earlier
  // frame is still being read, into the queue behind it.
  ABSL_ATTRIBUTE_HOT RdmaDelivery* Arrive(std::vector<RdmaDelivery>* out);
  // Takes a frame that came in a message. slot -1: in a receive buffer.
  ABSL_ATTRIBUTE_HOT void OnFrame(const RdmaMessage& message, absl::Span<const uint8_t> bytes,
                                  int slot, Frame* frame);
  // Takes an offered frame. An error ends the connection; so does an error of PumpReads.
  absl::Status OnOffer(const RdmaMessage& message, absl::Span<const uint8_t> bytes,
                       std::vector<RdmaDelivery>* out);
  bool reading() const { return offers_ > 0; }
  // Posts reads as long as there is room.
  absl::Status PumpReads();
  // A read of arrival `number` is done.
  void OnRead(uint64_t number, std::vector<RdmaDelivery>* out);

 private:
  // A frame that must wait, because it or an earlier frame is still being read.
  struct Arrival {
    RdmaDelivery delivery;
    bool offered = false;
    RdmaMessage offer;
    int part = 0;  // the next one to read
    size_t offset = 0;
    int reading = 0;  // reads in flight
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
  uint32_t granted_ = 0;  // messages that the peer may still send
  uint32_t owed_ = 0;     // messages taken whose credits are not yet given back
  Fifo<Arrival> arrivals_;
  int offers_ = 0;  // arrivals that are offers
};                  // arrivals that are offers

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_INBOX_H_
