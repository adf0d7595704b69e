// The queues that all connections of an endpoint share: one of completions, which the endpoint looks at
// or sleeps on, and one of receive buffers, from which the device takes one for each message.
//
// They have room for everything that all peers together can have under way, so they never overflow.
// Where the device's queues are smaller than that, fewer peers are taken.
//
// Thread safety: none; for the endpoint's thread.
#ifndef TANDEM_RDMA_QUEUES_H_
#define TANDEM_RDMA_QUEUES_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "rdma/memory.h"
#include "rdma/rdma_transport.h"

namespace tandem::rdma {

// Receive buffers that are posted together.
inline constexpr uint32_t kRdmaReceiveBatch = 16;

class RdmaQueues {
 public:
  static constexpr int kCompletionsAtOnce = 16;

  // A peer takes so many receive buffers of options.message_bytes, and options.send_depth requests.
  RdmaQueues(const RdmaOptions& options, uint32_t receives_per_peer);
  ~RdmaQueues();  // no queue pair uses them any more
  RdmaQueues(const RdmaQueues&) = delete;
  RdmaQueues& operator=(const RdmaQueues&) = delete;

  // Makes them on the device of `memory`, which is called `device` in errors. UNIMPLEMENTED: it has
  // no room for options.min_peers. RESOURCE_EXHAUSTED: the system gives no more.
  absl::Status Create(RdmaMemory* memory, const std::string& device);
  int max_peers() const { return max_peers_; }
  ibv_cq* cq() const { return cq_; }
  ibv_srq* srq() const { return srq_; }

  // ---- completions ----

  // True if there are some to handle: left from before, or new ones.
  ABSL_ATTRIBUTE_HOT bool Poll();
  // Those; valid until the next Poll. At most kCompletionsAtOnce.
  absl::Span<const ibv_wc> Take() {
    return {completions_, static_cast<size_t>(std::exchange(polled_, 0))};
  }
  // To sleep: Arm(), then Poll() once more, since a completion may have come before; then wait for
  // fd() to be readable, and call OnEvents().
  void Arm();
  int fd() const { return channel_->fd; }  // does not block
  void OnEvents();

  // ---- receive buffers ----

  // Posts buffers for one more peer than `connected`, unless those of one that has left are there.
  // RESOURCE_EXHAUSTED: the system does not register so much.
  absl::Status AddReceives(size_t connected);
  static bool IsReceive(const ibv_wc& wc) { return (wc.wr_id & kReceiveBit) != 0; }
  // The buffer that a receive has filled, and when it is read: gives it to the device again.
  absl::Span<const uint8_t> Received(const ibv_wc& wc) const {
    return {At(wc.wr_id & ~kReceiveBit), message_bytes_};
  }
  ABSL_ATTRIBUTE_HOT void PostAgain(const ibv_wc& wc) { Post(wc.wr_id & ~kReceiveBit); }

 private:
  static constexpr uint64_t kReceiveBit = uint64_t{1} << 63;  // in wr_id; the rest: buffer's number
  const uint8_t* At(uint64_t number) const {
    return groups_[number / receives_per_peer_].bytes.data() +
           number % receives_per_peer_ * message_bytes_;
  }
  ABSL_ATTRIBUTE_HOT void Post(uint64_t number);
  void Flush();

  const uint32_t receives_per_peer_, sends_per_peer_;
  const size_t message_bytes_;
  const int min_peers_;
  int max_peers_;
  RdmaMemory* memory_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_srq* srq_ = nullptr;
  ibv_wc completions_[kCompletionsAtOnce];
  int polled_ = 0;        // of these: taken from the queue and not handled yet
  bool armed_ = false;    // the next completion makes the channel readable
  unsigned unacked_ = 0;  // completion events read and not acknowledged yet
  // Receive buffers: of message_bytes each, in groups of receives_per_peer_.
  struct Group {
    Buffer bytes;
    uint32_t key = 0;
  };
  std::vector<Group> groups_;
  std::vector<uint64_t> to_post_;
};

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_QUEUES_H_
