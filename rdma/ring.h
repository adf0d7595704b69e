// RdmaRing: the receiving end of one connection. A ring has slots of registered memory that exactly
// one peer may write. The peer's key is made for this peer and taken back when the peer leaves.
//
// The peer writes a message into a slot that was granted to it, and names the slot. Large parts are
// handed out where they lie. The slot is granted again when the last reference to them is dropped;
// slots may come back in any order. Once half of the slots of a size are lent out this way,
// messages are copied out instead, so that a reader who keeps its frames does not stop the peer.
//
// Thread safety: none; for the endpoint's thread. Only buffers may be dropped on any thread.
#ifndef TANDEM_RDMA_RING_H_
#define TANDEM_RDMA_RING_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/wake_fd.h"
#include "rdma/memory.h"
#include "rdma/wire.h"

namespace tandem::rdma {

// Ends the sleep of an endpoint's thread. Any thread may call Wake(), which makes a system call
// only if the endpoint's thread sleeps or is about to sleep.
class RdmaWaker {
 public:
  int fd() const { return wake_.fd(); }
  void Wake() {
    if (asleep_.load()) wake_.Wake();
  }
  void Clear() { wake_.Clear(); }  // by the endpoint's thread, when fd() is readable
  // Between BeforeSleep and AfterSleep the endpoint's thread looks for work once more, then sleeps
  // on fd().
  void BeforeSleep() { asleep_.store(true); }
  // A thread that sees this store late makes an unnecessary system call, which does no harm.
  void AfterSleep() { asleep_.store(false, std::memory_order_relaxed); }

 private:
  WakeFd wake_;
  std::atomic<bool> asleep_{false};
};

class RdmaRing : public std::enable_shared_from_this<RdmaRing> {
 public:
  // Makes a ring. Only the sizes and numbers of slots in `shape` count. RESOURCE_EXHAUSTED: the
  // system refuses to register that much memory.
  static absl::StatusOr<std::shared_ptr<RdmaRing>> New(std::shared_ptr<RdmaMemory> memory,
                                                       const RdmaHello& shape,
                                                       std::shared_ptr<RdmaWaker> waker);
  ~RdmaRing();

  // Adds the address and the key of this ring to `hello`.
  RdmaHello Grant(RdmaHello hello) const;
  // From now on the peer cannot write any more. Lent buffers stay valid.
  void Revoke();

  // The peer says that it has written `slot`. Returns its bytes, or INVALID_ARGUMENT if the peer
  // was not allowed to write there. The slot belongs to the endpoint until Lend or Release.
  absl::StatusOr<absl::Span<uint8_t>> Take(uint32_t slot, size_t bytes);
  bool MayLend(int slot) const;
  // A reference to the whole slot. When its last slice is dropped, the slot is released.
  Buffer Lend(int slot);
  void Release(int slot);

  // Slots that are released and not yet granted again.
  uint64_t released() const { return released_.load(); }
  // Grants the released slots again; the caller tells the peer.
  uint64_t GrantReleased();
  // Whether the peer has few slots left of some size and could get more.
  bool PeerIsShort() const;

 private:
  struct Slot final : public BufferBlock {
    void Recycle() override;
    std::shared_ptr<RdmaRing> ring;  // set while the slot is lent
    int index = 0;
  };
  RdmaRing() = default;
  uint64_t SizeMask(int slot) const;  // all slots of the same size

  std::shared_ptr<RdmaMemory> memory_;
  std::shared_ptr<RdmaWaker> waker_;
  RdmaHello shape_;
  Buffer bytes_;
  ibv_mr* remote_ = nullptr;
  uint64_t small_mask_ = 0, large_mask_ = 0;
  uint64_t granted_ = 0;           // the peer may write these
  std::atomic<uint64_t> lent_{0};  // somebody holds buffers in these
  std::atomic<uint64_t> released_{0};
  std::unique_ptr<Slot[]> slots_;
};

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_RING_H_
