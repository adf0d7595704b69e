#include "rdma/queues.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tandem::rdma {
namespace {

// Completion events that are acknowledged together, because acknowledging takes a lock.
constexpr unsigned kUnackedEvents = 64;

absl::Status Refused(int error, absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(error)));
}

}  // namespace

RdmaQueues::RdmaQueues(const RdmaOptions& options, uint32_t receives_per_peer)
    : receives_per_peer_(receives_per_peer),
      sends_per_peer_(static_cast<uint32_t>(options.send_depth)),
      message_bytes_(options.message_bytes),
      min_peers_(options.min_peers),
      max_peers_(options.max_peers) {
  to_post_.reserve(kRdmaReceiveBatch);
}

RdmaQueues::~RdmaQueues() {
  if (srq_ != nullptr) ibv_destroy_srq(srq_);
  if (cq_ != nullptr) {
    if (unacked_ > 0) ibv_ack_cq_events(cq_, unacked_);
    ibv_destroy_cq(cq_);
  }
  if (channel_ != nullptr) ibv_destroy_comp_channel(channel_);
}

absl::Status RdmaQueues::Create(RdmaMemory* memory, const std::string& name) {
  memory_ = memory;
  const ibv_device_attr& device = memory->attributes();
  const auto per_peer = static_cast<int>(receives_per_peer_ + sends_per_peer_);
  max_peers_ = std::min({max_peers_, device.max_cqe / per_peer,
                         device.max_srq_wr / static_cast<int>(receives_per_peer_)});
  if (max_peers_ < min_peers_ || device.max_srq < 1) {
    return absl::UnimplementedError(
        absl::StrCat(name, ": its queues are too small: ", device.max_cqe, " completions and ",
                     device.max_srq_wr, " shared receives are enough for ", std::max(max_peers_, 0),
                     " peers, at least ", min_peers_, " are required (each takes ", per_peer,
                     " and ", receives_per_peer_, ")"));
  }
  channel_ = ibv_create_comp_channel(memory->context());
  if (channel_ == nullptr) return Refused(errno, "completion channel");
  cq_ = ibv_create_cq(memory->context(), max_peers_ * per_peer, nullptr, channel_, 0);
  if (cq_ == nullptr) {
    const int error = errno;
    return Refused(error, absl::StrCat("completion queue of ", max_peers_ * per_peer));
  }
  ibv_srq_init_attr attributes = {};
  attributes.attr.max_wr = static_cast<uint32_t>(max_peers_) * receives_per_peer_;
  attributes.attr.max_sge = 1;
  srq_ = ibv_create_srq(memory->pd(), &attributes);
  if (srq_ == nullptr) return Refused(errno, "shared receive queue");
  fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  return absl::OkStatus();
}

// ---- completions ----

bool RdmaQueues::Poll() {
  if (polled_ > 0) return true;
  polled_ = ibv_poll_cq(cq_, kCompletionsAtOnce, completions_);
  TANDEM_CHECK(polled_ >= 0);
  return polled_ > 0;
}

void RdmaQueues::Arm() {
  if (armed_) return;
  TANDEM_CHECK(ibv_req_notify_cq(cq_, 0) == 0);
  armed_ = true;
}

void RdmaQueues::OnEvents() {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(channel_, &cq, &context) == 0) {
    armed_ = false;
    if (++unacked_ >= kUnackedEvents) ibv_ack_cq_events(cq_, std::exchange(unacked_, 0));
  }
}

// ---- receive buffers ----

absl::Status RdmaQueues::AddReceives(size_t connected) {
  if (connected < groups_.size()) return absl::OkStatus();
  const size_t bytes = receives_per_peer_ * message_bytes_;
  Group group{memory_->Alloc(bytes), 0};
  const ibv_mr* const region = memory_->Find(group.bytes.data(), bytes);
  if (region == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the system refuses to register ", bytes,
        " bytes to receive into; is the locked-memory limit (ulimit -l) high enough?"));
  }
  group.key = region->lkey;
  const uint64_t first = groups_.size() * receives_per_peer_;
  groups_.push_back(std::move(group));
  for (uint32_t i = 0; i < receives_per_peer_; ++i) Post(first + i);
  Flush();
  return absl::OkStatus();
}

void RdmaQueues::Post(uint64_t number) {
  to_post_.push_back(number);
  if (to_post_.size() == kRdmaReceiveBatch) Flush();
}

// Posts several buffers in one call, because each call may write to a register of the device.
void RdmaQueues::Flush() {
  if (to_post_.empty()) return;
  ibv_recv_wr requests[kRdmaReceiveBatch] = {};
  ibv_sge pieces[kRdmaReceiveBatch];
  for (size_t i = 0; i < to_post_.size(); ++i) {
    const uint64_t number = to_post_[i];
    pieces[i] = {reinterpret_cast<uintptr_t>(At(number)), static_cast<uint32_t>(message_bytes_),
                 groups_[number / receives_per_peer_].key};
    requests[i].wr_id = kReceiveBit | number;
    requests[i].sg_list = &pieces[i];
    requests[i].num_sge = 1;
    requests[i].next = i + 1 < to_post_.size() ? &requests[i + 1] : nullptr;
  }
  ibv_recv_wr* bad = nullptr;
  TANDEM_CHECK(ibv_post_srq_recv(srq_, requests, &bad) == 0);
  to_post_.clear();
}

}  // namespace tandem::rdma
