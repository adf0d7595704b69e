#include "rdma/inbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem::rdma {
namespace {

// Bytes of one read: devices limit the size of a message.
constexpr size_t kReadBytes = size_t{4} << 20;

}  // namespace

RdmaInbox::RdmaInbox(const Options& options, std::shared_ptr<RdmaMemory> memory,
                     transport::RecyclePool<RdmaSmallBlock>* small_blocks, RdmaSendQueue* queue,
                     Fifo<RdmaControl>* control, Counters* counters)
    : options_(options),
      memory_(std::move(memory)),
      small_blocks_(small_blocks),
      queue_(queue),
      control_(control),
      counters_(counters),
      granted_(options.shape.credits) {
  arrivals_.Reserve(granted_);
}

absl::Status RdmaInbox::Open(std::shared_ptr<RdmaWaker> waker) {
  TANDEM_ASSIGN_OR_RETURN(ring_, RdmaRing::New(memory_, options_.shape, std::move(waker)));
  return absl::OkStatus();
}

void RdmaInbox::Revoke() {
  if (ring_ != nullptr) ring_->Revoke();
}

void RdmaInbox::GiveBack(RdmaMessage* head) {
  head->credits = static_cast<uint16_t>(owed_);
  granted_ += std::exchange(owed_, 0);
  head->freed = ring_->GrantReleased();
}

absl::Status RdmaInbox::UseCredit() {
  if (granted_ == 0) return RdmaViolation("more messages than it may send");
  --granted_;
  return absl::OkStatus();
}

void RdmaInbox::OnFrame(const RdmaMessage& message, absl::Span<const uint8_t> bytes, int slot,
                        Frame* frame) {
  if (slot < 0) return CopyFrame(message, bytes, frame);
  const bool more_parts = message.TotalBytes() > message.PartOffset(1);
  if (more_parts && (options_.lend_all || ring_->MayLend(slot))) {
    ++counters_->lent;
    LendFrame(message, bytes, slot, frame);
  } else {
    ++counters_->copied_out;
    CopyFrame(message, bytes, frame);
    ring_->Release(slot);
  }
}

Buffer RdmaInbox::CopyBytes(absl::Span<const uint8_t> bytes) {
  if (bytes.size() > RdmaSmallBlock::kBytes) return CopyToBuffer(*memory_, bytes);
  RdmaSmallBlock* const block = small_blocks_->Take();
  if (block->bytes.empty()) block->bytes = memory_->Alloc(RdmaSmallBlock::kBytes);
  std::memcpy(block->bytes.mutable_data(), bytes.data(), bytes.size());
  return Buffer(block, block->bytes.mutable_data(), bytes.size());
}

void RdmaInbox::CopyFrame(const RdmaMessage& message, absl::Span<const uint8_t> bytes,
                          Frame* frame) {
  const Buffer copy = CopyBytes(bytes.subspan(message.HeadBytes()));
  frame->parts = message.parts;
  size_t at = 0;
  for (int i = 0; i < frame->parts; ++i) {
    if (message.part_bytes[i] == 0 || message.part_key[i] != 0) continue;
    frame->part[i] = copy.Slice(at, message.part_bytes[i]);
    at += PadTo8(message.part_bytes[i]);
  }
}

// Fills the frame with parts that stay in the slot. Part 0, the header, is copied. A header is
// checked once and then trusted, but the peer could still write into the slot.
void RdmaInbox::LendFrame(const RdmaMessage& message, absl::Span<const uint8_t> bytes, int slot,
                          Frame* frame) {
  frame->parts = message.parts;
  if (message.part_bytes[0] > 0) {
    frame->part[0] = CopyBytes(bytes.subspan(message.PartOffset(0), message.part_bytes[0]));
  }
  const Buffer whole = ring_->Lend(slot);
  for (int i = 1; i < frame->parts; ++i) {
    if (message.part_bytes[i] == 0) continue;
    frame->part[i] = whole.Slice(message.PartOffset(i), message.part_bytes[i]);
  }
}

// An offered frame is queued as an arrival before its reads are posted: frames behind it must wait
// for it. Memory for all parts is taken before anything is queued, so that a failure leaves nothing
// half done.
absl::Status RdmaInbox::OnOffer(const RdmaMessage& message, absl::Span<const uint8_t> bytes,
                                std::vector<RdmaDelivery>* out) {
  if (++offers_ > kMaxRdmaOffers) return RdmaViolation("too many frames offered at once");
  Arrival arrival;
  arrival.offered = true;
  arrival.offer = message;
  CopyFrame(message, bytes, &arrival.delivery.frame);
  bool any = false;
  for (int i = 0; i < message.parts; ++i) {
    if (message.part_key[i] == 0) continue;
    any = true;
    Buffer& part = arrival.delivery.frame.part[i] = memory_->Alloc(message.part_bytes[i]);
    if (memory_->Find(part.data(), part.size()) == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the system refuses to register ", part.size(),
                       " bytes to read into; is the locked-memory limit (ulimit -l) high enough?"));
    }
  }
  if (!any) return RdmaViolation("it offered a frame without large parts");
  arrivals_.Push(std::move(arrival));
  TANDEM_RETURN_IF_ERROR(PumpReads());
  DeliverReady(out);
  return absl::OkStatus();
}

absl::Status RdmaInbox::PumpReads() {
  if (offers_ == 0) return absl::OkStatus();
  for (uint64_t n = arrivals_.front_number(); n < arrivals_.next_number(); ++n) {
    Arrival& arrival = arrivals_.At(n);
    while (arrival.offered && arrival.part < arrival.offer.parts) {
      if (arrival.offer.part_key[arrival.part] == 0 ||
          arrival.offset == arrival.offer.part_bytes[arrival.part]) {
        ++arrival.part;
        arrival.offset = 0;
        continue;
      }
      if (!queue_->HasRoom(1)) return absl::OkStatus();
      TANDEM_RETURN_IF_ERROR(PostRead(n, &arrival));
    }
  }
  return absl::OkStatus();
}

absl::Status RdmaInbox::PostRead(uint64_t number, Arrival* arrival) {
  const int part = arrival->part;
  Buffer& to = arrival->delivery.frame.part[part];
  const size_t bytes = std::min(kReadBytes, to.size() - arrival->offset);
  ibv_sge piece = {reinterpret_cast<uintptr_t>(to.data()) + arrival->offset,
                   static_cast<uint32_t>(bytes), memory_->Find(to.data(), to.size())->lkey};
  ibv_send_wr request = {};
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = IBV_SEND_SIGNALED;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.wr.rdma.remote_addr = arrival->offer.part_address[part] + arrival->offset;
  request.wr.rdma.rkey = arrival->offer.part_key[part];
  arrival->offset += bytes;
  ++arrival->reading;
  return queue_->Post(&request, {.kind = RdmaWork::Kind::kRead, .number = number});
}

void RdmaInbox::OnRead(uint64_t number, std::vector<RdmaDelivery>* out) {
  Arrival& arrival = arrivals_.At(number);
  --arrival.reading;
  if (!arrival.done()) return;
  control_->Push({RdmaControl::Kind::kDone, arrival.offer.token, 0, 0});
  DeliverReady(out);
}

RdmaDelivery* RdmaInbox::Arrive(std::vector<RdmaDelivery>* out) {
  if (!arrivals_.empty()) return &arrivals_.Push(Arrival()).delivery;
  ++owed_;
  return &out->emplace_back();
}

void RdmaInbox::DeliverReady(std::vector<RdmaDelivery>* out) {
  while (!arrivals_.empty() && arrivals_.front().done()) {
    Arrival arrival = arrivals_.Pop();
    ++owed_;
    offers_ -= arrival.offered ? 1 : 0;
    out->push_back(std::move(arrival.delivery));
  }
}

}  // namespace tandem::rdma
