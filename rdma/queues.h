// RdmaQueues: the queues that all connections of an endpoint share. There is one queue of
// completions, which the endpoint polls or sleeps on. There is one queue of receive buffers, from
// which the device takes one buffer for each message.
//
// The queues have room for everything that all peers together can have in flight, so they never
// overflow. If the device's queues are too small for that, the endpoint takes fewer peers.
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

// The number of receive buffers that are posted together.
inline constexpr uint32_t kRdmaReceiveBatch = 16;

class RdmaQueues {
 public:
  static constexpr int kCompletionsAtOnce = 16;

  // Each peer takes receives_per_peer buffers of options.message_bytes, and options.send_depth
  // requests.
  RdmaQueues(const RdmaOptions& options, uint32_t receives_per_peer);
  // Requires that no queue pair uses the queues any more.
  ~RdmaQueues();
  RdmaQueues(const RdmaQueues&) = delete;
  RdmaQueues& operator=(const RdmaQueues&) = delete;

  // Makes the queues on the device of `memory`, which errors call `device`. UNIMPLEMENTED: the
  // device has no room for options.min_peers. RESOURCE_EXHAUSTED: the system lacks resources.
  absl::Status Create(RdmaMemory* memory, const std::string& device);
  int max_peers() const { return max_peers_; }
  ibv_cq* cq() const { return cq_; }
  ibv_srq* srq() const { return srq_; }

  // ---- completions ----

  // True if there are completions to handle: older ones or new ones.
  ABSL_ATTRIBUTE_HOT bool Poll();
  // The completions that Poll has found, at most kCompletionsAtOnce. Valid until the next Poll.
  absl::Span<const ibv_wc> Take() {
    return {completions_, static_cast<size_t>(std::exchange(polled_, 0))};
  }
  // To sleep: call Arm(), then Poll() once more, since a completion may have come before Arm().
  // Then wait until fd() is readable, and call OnEvents().
  void Arm();
  int fd() const { return channel_->fd; }  // does not block
  void OnEvents();

  // ---- receive buffers ----

  // Posts buffers for one more peer than `connected`, unless a peer that has left has freed its
  // buffers. RESOURCE_EXHAUSTED: the system refuses to register that much memory.
  absl::Status AddReceives(size_t connected);
  static bool IsReceive(const ibv_wc& wc) { return (wc.wr_id & kReceiveBit) != 0; }
  // Received returns the buffer that a receive has filled. When it has been read, PostAgain gives
  // it back to the device.
  absl::Span<const uint8_t> Received(const ibv_wc& wc) const {
    return {At(wc.wr_id & ~kReceiveBit), message_bytes_};
  }
  ABSL_ATTRIBUTE_HOT void PostAgain(const ibv_wc& wc) { Post(wc.wr_id & ~kReceiveBit); }

 private:
  // Marks receives in wr_id; the other bits are the number of the buffer.
  static constexpr uint64_t kReceiveBit = uint64_t{1} << 63;
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
  int polled_ = 0;        // completions in completions_ that nobody has taken
  bool armed_ = false;    // the next completion makes the channel readable
  unsigned unacked_ = 0;  // completion events that are not acknowledged yet
  // Receive buffers, each of message_bytes, in groups of receives_per_peer_.
  struct Group {
    Buffer bytes;
    uint32_t key = 0;
  };
  std::vector<Group> groups_;
  std::vector<uint64_t> to_post_;
};

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_QUEUES_H_
