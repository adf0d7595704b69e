#include "rdma/send_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tandem::rdma {
namespace {

constexpr uint32_t kSignalEvery = 8;  // the device reports one message in this many as done

}  // namespace

absl::Status RdmaSendQueue::Create(rdma_cm_id* id, const RdmaMemory& memory, ibv_cq* cq,
                                   ibv_srq* srq) {
  max_pieces_ =
      std::min<uint32_t>(kWantedPieces, static_cast<uint32_t>(memory.attributes().max_sge));
  int error = 0;
  // A device does not say how many bytes it takes inline: try sizes until it accepts one.
  for (const uint32_t inline_bytes : {512u, 256u, 128u, 0u}) {
    ibv_qp_init_attr attributes = {};
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.srq = srq;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap.max_send_wr = depth_;
    attributes.cap.max_send_sge = max_pieces_;
    attributes.cap.max_inline_data = inline_bytes;
    if (rdma_create_qp(id, memory.pd(), &attributes) == 0) {
      max_inline_ = inline_bytes;
      qp_ = id->qp;
      return absl::OkStatus();
    }
    error = errno;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the device gives no queue pair: ", std::strerror(error)));
}

void RdmaSendQueue::Stop() {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(qp_, &attributes, IBV_QP_STATE);  // the state may be set already
}

void RdmaSendQueue::Stage(RdmaMemory* memory, size_t message_bytes) {
  message_bytes_ = message_bytes;
  staging_ = memory->Alloc((size_t{depth_} + 1) * message_bytes);
  region_ = memory->Find(staging_.data(), staging_.size());
}

absl::Status RdmaSendQueue::Staged() const {
  if (region_ != nullptr) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the system refuses to register ", staging_.size(),
                   " bytes to send from; is the locked-memory limit (ulimit -l) high enough?"));
}

uint8_t* RdmaSendQueue::PlaceFor(size_t bytes) {
  return Place(bytes <= max_inline_ ? depth_ : next_place_);
}

absl::Status RdmaSendQueue::Post(ibv_send_wr* request, const RdmaWork& work) {
  TANDEM_CHECK(work_.size() < depth_);
  request->wr_id = work_.next_number();
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(qp_, request, &bad); error != 0) {
    return absl::UnavailableError(absl::StrCat("ibv_post_send: ", std::strerror(error)));
  }
  work_.Push(work);
  if ((request->send_flags & IBV_SEND_SIGNALED) != 0) signalled_ = work_.next_number();
  if (++next_place_ == depth_) next_place_ = 0;
  return absl::OkStatus();
}

// Only the place of a small message in staging memory depends on its report, and that place is
// needed again `depth` requests later. So the device is asked to report only one message in
// kSignalEvery.
absl::Status RdmaSendQueue::PostMessage(size_t bytes, RdmaWork::Kind kind, uint64_t* inlined) {
  ibv_sge piece = {reinterpret_cast<uintptr_t>(PlaceFor(bytes)), static_cast<uint32_t>(bytes),
                   region_->lkey};
  ibv_send_wr request = {};
  request.opcode = IBV_WR_SEND;
  request.sg_list = &piece;
  request.num_sge = 1;
  const bool tell =
      kind != RdmaWork::Kind::kMessage || work_.next_number() - signalled_ + 1 >= kSignalEvery;
  if (tell) request.send_flags |= IBV_SEND_SIGNALED;
  if (bytes <= max_inline_) {
    request.send_flags |= IBV_SEND_INLINE;
    ++*inlined;
  }
  return Post(&request, {.kind = kind});
}

}  // namespace tandem::rdma
