// RdmaSendQueue: the sending half of a queue pair, with its work requests and the memory from which
// messages are sent.
//
// Requests complete in the order in which they were posted. A report pieces of one request means
// that all requests before it are done, too. Reporting a small message takes longer than sending
// it, so only one in eight is reported.
//
// A message is written to the place that PlaceFor() returns and then posted; there is one place for
// each work request. The device copies an inline message when it is posted, so all inline messages
// share one place.
//
// Thread safety: none; for the endpoint's thread.
#ifndef TANDEM_RDMA_SEND_QUEUE_H_
#define TANDEM_RDMA_SEND_QUEUE_H_

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "base/buffer.h"
#include "proto/frame.h"
#include "rdma/fifo.h"
#include "rdma/memory.h"

namespace tandem::rdma {

// A message that goes before all frames.
struct RdmaControl {
  enum class Kind { kDone, kInvalidate };
  Kind kind = Kind::kDone;
  uint32_t token = 0;  // kDone: the peer's frame that was read
  uint64_t offer = 0;  // kInvalidate: a key of our offer with this index
  uint32_t key = 0;
};

// A posted work request.
struct RdmaWork {
  enum class Kind { kMessage, kFrame, kGoodbye, kBind, kInvalidate, kRead, kProbe };
  Kind kind = Kind::kMessage;
  uint64_t number = 0;  // kRead: number of the arrival; kInvalidate: index of the offer
  std::chrono::steady_clock::time_point posted = {};  // kProbe
};

class RdmaSendQueue {
 public:
  static constexpr uint32_t kWantedPieces = 2 * kMaxFrameParts;

  // At most `depth` requests are in flight.
  explicit RdmaSendQueue(uint32_t depth) : depth_(depth) { work_.Reserve(depth); }

  // Gives `id` a queue pair. `id` must know its device; `id` and `memory` must outlive the queue's
  // use. RESOURCE_EXHAUSTED: the system has none left.
  absl::Status Create(rdma_cm_id* id, const RdmaMemory& memory, ibv_cq* cq, ibv_srq* srq);
  // Ends all requests in flight, so that no device touches our memory any more.
  void Stop();
  // Takes memory for messages of up to this size.
  void Stage(RdmaMemory* memory, size_t message_bytes);
  // RESOURCE_EXHAUSTED: the system has refused to register that memory, so nothing may be posted.
  absl::Status Staged() const;

  // Whether `requests` requests can be posted so that some room is left for control messages.
  bool HasRoom(uint32_t requests) const {
    return work_.size() + requests + kControlReserve <= depth_;
  }
  bool HasRoomForControl() const { return work_.size() < depth_; }
  uint32_t max_pieces() const { return max_pieces_; }  // of one request

  // Where to write the next message of this size.
  ABSL_ATTRIBUTE_HOT uint8_t* PlaceFor(size_t bytes);
  // The same for the head of a gathered message, which is never inline.
  uint8_t* NextPlace() { return Place(next_place_); }
  uint32_t local_key() const { return region_->lkey; }  // for all places

  // Sends the message at PlaceFor(bytes). Counts it in *inlined if the device has copied it whole.
  // An error ends the connection; so does an error of Post.
  ABSL_ATTRIBUTE_HOT absl::Status PostMessage(size_t bytes, RdmaWork::Kind kind, uint64_t* inlined);
  ABSL_ATTRIBUTE_HOT absl::Status Post(ibv_send_wr* request, const RdmaWork& work);

  // Whether the device will report some request anyway.
  bool AwaitsReport() const { return signalled_ > work_.front_number(); }
  // The device reports request `number` as done: calls done(work) for it and for all before it.
  template <typename F>
  void Complete(uint64_t number, F done) {
    while (work_.front_number() <= number) done(work_.Pop());
  }

 private:
  static constexpr uint32_t kControlReserve = 16;
  uint8_t* Place(uint32_t place) {  // place: 0 to depth
    return staging_.mutable_data() + place * message_bytes_;
  }

  const uint32_t depth_;
  ibv_qp* qp_ = nullptr;
  uint32_t max_inline_ = 0, max_pieces_ = 0;
  Fifo<RdmaWork> work_;
  uint64_t signalled_ = 0;  // the device will report all requests below this
  Buffer staging_;
  ibv_mr* region_ = nullptr;
  size_t message_bytes_ = 0;
  uint32_t next_place_ = 0;  // place of the next work request
};

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_SEND_QUEUE_H_
