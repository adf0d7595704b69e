// Objects that a ZeroMQ transport shares with libzmq's I/O threads: the count of waiting frames,
// the owner of their memory until they are sent, and the owner of received parts. The I/O threads
// call only Flow::Done, SendRecord::FreePart and what these call; the transport's thread calls the
// rest. ReceivedPart returns on the thread that drops the last reference.
#ifndef TANDEM_TRANSPORT_ZMQ_PARTS_H_
#define TANDEM_TRANSPORT_ZMQ_PARTS_H_

#include <zmq.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/buffer.h"
#include "base/wake_fd.h"
#include "proto/frame.h"
#include "transport/recycle_pool.h"
#include "transport/tsan_order.h"

namespace tandem::transport {

// Counts the frames of one peer that were accepted and are not yet in the kernel. libzmq's own
// high-water marks are switched off, because they cannot say when one particular peer of a ROUTER
// is writable again.
class Flow {
 public:
  Flow(int bound, std::shared_ptr<WakeFd> waker)
      : bound_(bound), low_(bound / 2), waker_(std::move(waker)) {}

  // For the owner: true if one more frame may be queued. Otherwise the owner is woken when half of
  // the frames have left. The second look closes a gap: Done() wakes the owner only if it sees
  // blocked_, and frames may have left between the first look and the store.
  bool HasRoom() {
    if (in_flight_.load() < bound_) return true;
    blocked_.store(true);
    if (in_flight_.load() >= bound_) return false;  // Done() will see blocked_ at `low_`
    blocked_.store(false);
    return true;
  }
  void Add() { in_flight_.fetch_add(1); }
  void Done() {  // any thread
    if (in_flight_.fetch_sub(1) - 1 == low_ && blocked_.load()) waker_->Wake();
  }
  bool Unblock() {
    if (in_flight_.load() > low_) return false;
    blocked_.store(false);
    return true;
  }
  int in_flight() const { return in_flight_.load(); }

 private:
  const int bound_, low_;
  const std::shared_ptr<WakeFd> waker_;
  std::atomic<int> in_flight_{0};
  std::atomic<bool> blocked_{false};
};

// Keeps a frame's buffers alive until libzmq has sent or dropped all its parts.
struct SendRecord {
  RecyclePool<SendRecord>* pool = nullptr;
  SendRecord* next = nullptr;
  Frame frame;
  std::shared_ptr<Flow> flow;
  std::atomic<int> parts_left{0};

  void PartDone() {
    if (parts_left.fetch_sub(1, std::memory_order_acq_rel) == 1) Release();
  }
  void Release() {
    frame = Frame();
    const std::shared_ptr<Flow> done = std::move(flow);
    pool->Give(this);
    done->Done();
  }
  // libzmq calls this function, usually on an I/O thread.
  static void FreePart(void*, void* record) {
    TakeOver(record);
    static_cast<SendRecord*>(record)->PartDone();
  }
};

// A received part that stays where libzmq stored it.
class ReceivedPart final : public BufferBlock {
 public:
  ReceivedPart() { zmq_msg_init(&message); }
  ~ReceivedPart() override { zmq_msg_close(&message); }

  RecyclePool<ReceivedPart>* pool = nullptr;
  ReceivedPart* next = nullptr;
  zmq_msg_t message;

 private:
  void Recycle() override {
    zmq_msg_close(&message);
    zmq_msg_init(&message);
    pool->Give(this);
  }
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_ZMQ_PARTS_H_
