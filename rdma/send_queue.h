// The sending half of a queue pair: work requests, and the memory that messages are sent from.
//
// Requests complete in the order in which they were posted, and the device's word that one is done
// means that all before it are. So small messages, which it would take longer to report than to
// send, are reported one in eight.
//
// A message is written where PlaceFor() says and then posted; there is one place a work request. The
// device copies an inline message while it is posted, so all of those share one place.
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

// What is to be sent before any frame.
struct RdmaControl {
  enum class Kind { kDone, kInvalidate };
  Kind kind = Kind::kDone;
  uint32_t token = 0;  // kDone: the peer's frame that has been read
  uint64_t offer = 0;  // kInvalidate: a key of this offer of ours
  uint32_t key = 0;
};

// A posted work request.
struct RdmaWork {
  enum class Kind { kMessage, kFrame, kGoodbye, kBind, kInvalidate, kRead, kProbe };
  Kind kind = Kind::kMessage;
  uint64_t number = 0;  // kRead: of the arrival; kInvalidate: index of the offer
  std::chrono::steady_clock::time_point posted = {};  // kProbe
};

class RdmaSendQueue {
 public:
  static constexpr uint32_t kWantedPieces = 2 * kMaxFrameParts;

  // At most `depth` requests are under way.
  explicit RdmaSendQueue(uint32_t depth) : depth_(depth) { work_.Reserve(depth); }

  // Gives `id`, which knows its device, a queue pair; `id` and `memory` outlive the queue's use.
  // RESOURCE_EXHAUSTED: the system has none left.
  absl::Status Create(rdma_cm_id* id, const RdmaMemory& memory, ibv_cq* cq, ibv_srq* srq);
  // Ends all requests that are under way, so that no device touches our memory any more.
  void Stop();
  // Takes memory for messages of up to this size.
  void Stage(RdmaMemory* memory, size_t message_bytes);
  // RESOURCE_EXHAUSTED: the system has not registered that memory, so nothing may be posted.
  absl::Status Staged() const;

  // Whether requests can be posted and leave some room for control messages.
  bool HasRoom(uint32_t requests) const {
    return work_.size() + requests + kControlReserve <= depth_;
  }
  bool HasRoomForControl() const { return work_.size() < depth_; }
  uint32_t max_pieces() const { return max_pieces_; }  // of one request

  // Where to write the next message of so many bytes.
  ABSL_ATTRIBUTE_HOT uint8_t* PlaceFor(size_t bytes);
  // The same for the head of one that is gathered, which is not inline.
  uint8_t* NextPlace() { return Place(next_place_); }
  uint32_t local_key() const { return region_->lkey; }  // of all places

  // Sends what lies at PlaceFor(bytes); counts in *inlined if the device has taken it whole. An error
  // is the end of the connection; also of Post.
  ABSL_ATTRIBUTE_HOT absl::Status PostMessage(size_t bytes, RdmaWork::Kind kind, uint64_t* inlined);
  ABSL_ATTRIBUTE_HOT absl::Status Post(ibv_send_wr* request, const RdmaWork& work);

  // Whether the device will report something without being asked for more.
  bool AwaitsReport() const { return signalled_ > work_.front_number(); }
  // The device reports request `number` as done: calls done(work) for it and all before it.
  template <typename F>
  void Complete(uint64_t number, F done) {
    while (work_.front_number() <= number) done(work_.Pop());
  }

 private:
  static constexpr uint32_t kControlReserve = 16;
  uint8_t* Place(uint32_t place) {  // of depth + 1
    return staging_.mutable_data() + place * message_bytes_;
  }

  const uint32_t depth_;
  ibv_qp* qp_ = nullptr;
  uint32_t max_inline_ = 0, max_pieces_ = 0;
  Fifo<RdmaWork> work_;
  uint64_t signalled_ = 0;  // the device will report all requests with a smaller number
  Buffer staging_;
  ibv_mr* region_ = nullptr;
  size_t message_bytes_ = 0;
  uint32_t next_place_ = 0;  // of the next work request
};

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_SEND_QUEUE_H_
