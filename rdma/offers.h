// RdmaOffers: large frames of ours that the peer reads by itself. Each offer has a key to exactly
// its large parts. The key is made when the frame is offered and taken back when the peer reports
// that it has read the frame. Only then are the frame's buffers released.
//
// A key is a memory window of type 2. If the device has no windows, it is a registration of that
// part.
//
// Thread safety: none; for the endpoint's thread.
#ifndef TANDEM_RDMA_OFFERS_H_
#define TANDEM_RDMA_OFFERS_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/frame.h"
#include "rdma/fifo.h"
#include "rdma/memory.h"
#include "rdma/send_queue.h"
#include "rdma/wire.h"

namespace tandem::rdma {

class RdmaOffers {
 public:
  // All arguments outlive the offers. `control` gets the keys to invalidate; `staged` counts bytes
  // that had to be copied because they were not registered.
  RdmaOffers(RdmaMemory* memory, RdmaSendQueue* queue, Fifo<RdmaControl>* control, uint64_t* staged)
      : memory_(memory), queue_(queue), control_(control), staged_(staged) {}
  RdmaOffers(const RdmaOffers&) = delete;
  RdmaOffers& operator=(const RdmaOffers&) = delete;

  // Call DropWindows before the queue pair is destroyed, and DropRegions after it. Windows are
  // bound to the queue pair, and destroying it may wait for them (with Soft-RoCE for most of a
  // minute).
  void DropWindows();
  void DropRegions();

  // The number of offers that the peer has not read yet or whose keys are still valid.
  size_t size() const { return size_; }
  bool HasRoom() const { return size_ < kMaxRdmaOffers && queue_->HasRoom(kMaxFrameParts + 1); }
  // Takes the frame and makes its keys. Fills in all of *message except what it gives back. Returns
  // the frame, whose small parts travel in the message. An error ends the connection. Requires
  // HasRoom().
  absl::StatusOr<const Frame*> Add(Frame* frame, RdmaMessage* message);
  // The peer has read the frame of `token`. INVALID_ARGUMENT: no such frame was offered.
  absl::Status OnDone(uint32_t token);
  // One key of an offer has become invalid. When all keys are invalid, nobody can read the frame
  // any more, and its buffers are released.
  void KeyGone(uint64_t index);

 private:
  struct Key {
    ibv_mw* window = nullptr;
    ibv_mr* region = nullptr;  // if there are no windows
    uint32_t key = 0;
  };
  struct Offer {
    bool used = false;
    uint32_t token = 0;  // 0: its keys are being taken back
    int keys_left = 0;
    Frame frame;
    Key keys[kMaxFrameParts];
  };
  absl::Status MakeKey(const Buffer& part, Key* key);
  absl::Status StageParts(Frame* frame);

  RdmaMemory* const memory_;
  RdmaSendQueue* const queue_;
  Fifo<RdmaControl>* const control_;
  uint64_t* const staged_;
  Offer offers_[kMaxRdmaOffers];
  size_t size_ = 0;
  std::vector<ibv_mw*> windows_;  // free windows
  uint32_t next_token_ = 1;
};

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_OFFERS_H_
