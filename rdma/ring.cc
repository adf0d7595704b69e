#include "rdma/ring.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tandem::rdma {

namespace {

uint64_t LowBits(int count) { return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }
uint64_t Bit(int slot) { return uint64_t{1} << slot; }

}  // namespace

absl::StatusOr<std::shared_ptr<RdmaRing>> RdmaRing::New(std::shared_ptr<RdmaMemory> memory,
                                                        const RdmaHello& shape,
                                                        std::shared_ptr<RdmaWaker> waker) {
  std::shared_ptr<RdmaRing> ring(new RdmaRing);
  const size_t bytes = shape.RingBytes();
  ring->bytes_ = memory->Alloc(bytes);
  if (memory->Find(ring->bytes_.data(), bytes) != nullptr) {
    ring->remote_ = ibv_reg_mr(memory->pd(), ring->bytes_.mutable_data(), bytes,
                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  }
  if (ring->remote_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the system refuses to register a ring of ", bytes, " bytes: ", std::strerror(errno),
        "; is the locked-memory limit (ulimit -l) high enough?"));
  }
  ring->memory_ = std::move(memory);
  ring->waker_ = std::move(waker);
  ring->shape_ = shape;
  ring->granted_ = LowBits(shape.slots());
  ring->small_mask_ = LowBits(shape.small_slots);
  ring->large_mask_ = ring->granted_ & ~ring->small_mask_;
  ring->slots_ = std::make_unique<Slot[]>(static_cast<size_t>(shape.slots()));
  for (int i = 0; i < shape.slots(); ++i) ring->slots_[static_cast<size_t>(i)].index = i;
  return ring;
}

RdmaRing::~RdmaRing() { Revoke(); }

RdmaHello RdmaRing::Grant(RdmaHello hello) const {
  hello.ring_address = reinterpret_cast<uintptr_t>(bytes_.data());
  hello.ring_key = remote_->rkey;
  return hello;
}

void RdmaRing::Revoke() {
  if (remote_ != nullptr) TANDEM_CHECK(ibv_dereg_mr(std::exchange(remote_, nullptr)) == 0);
}

absl::StatusOr<absl::Span<uint8_t>> RdmaRing::Take(uint32_t slot, size_t bytes) {
  const int index = static_cast<int>(slot);
  if (slot >= static_cast<uint32_t>(shape_.slots()) || (granted_ & Bit(index)) == 0 ||
      bytes > shape_.SlotBytes(index)) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", bytes, " bytes in slot ", slot,
                                                   " of ", shape_.slots(),
                                                   ", which the peer may not write now"));
  }
  granted_ &= ~Bit(index);
  return absl::MakeSpan(bytes_.mutable_data() + shape_.SlotOffset(index), bytes);
}

uint64_t RdmaRing::SizeMask(int slot) const {
  return slot < shape_.small_slots ? small_mask_ : large_mask_;
}

bool RdmaRing::MayLend(int slot) const {
  const uint64_t same_size = SizeMask(slot);
  return 2 * (std::popcount(lent_.load() & same_size) + 1) <= std::popcount(same_size);
}

Buffer RdmaRing::Lend(int slot) {
  Slot& block = slots_[static_cast<size_t>(slot)];
  block.ring = shared_from_this();
  lent_.fetch_or(Bit(slot));
  return Buffer(&block, bytes_.mutable_data() + shape_.SlotOffset(slot), shape_.SlotBytes(slot));
}

void RdmaRing::Slot::Recycle() {
  const std::shared_ptr<RdmaRing> keep = std::move(ring);
  keep->lent_.fetch_and(~Bit(index));
  keep->Release(index);
}

void RdmaRing::Release(int slot) {
  released_.fetch_or(Bit(slot));
  waker_->Wake();
}

uint64_t RdmaRing::GrantReleased() {
  const uint64_t back = released_.load() == 0 ? 0 : released_.exchange(0);
  granted_ |= back;
  return back;
}

bool RdmaRing::PeerIsShort() const {
  const uint64_t back = released_.load();
  if (back == 0) return false;
  for (const uint64_t mask : {small_mask_, large_mask_}) {
    if ((back & mask) != 0 && 2 * std::popcount(granted_ & mask) < std::popcount(mask)) return true;
  }
  return false;
}

}  // namespace tandem::rdma
