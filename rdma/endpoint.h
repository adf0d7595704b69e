// One RDMA endpoint: what is behind an RdmaTransport, and goes on without it until its frames have
// left (RdmaContextImpl::SeeOff). For rdma/ only.
//
// endpoint.cc       setting up, frames in and out, ends
// endpoint_peers.cc connections being made
// endpoint_time.cc  turns, timers and sleeping
//
// Thread safety: none, but for Wake() and Alloc(), which any thread may call.
#ifndef TANDEM_RDMA_ENDPOINT_H_
#define TANDEM_RDMA_ENDPOINT_H_

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/owned_fd.h"
#include "rdma/address.h"
#include "rdma/connection.h"
#include "rdma/context.h"
#include "rdma/fifo.h"
#include "rdma/rdma_transport.h"
#include "rdma/wire.h"
#include "transport/recycle_pool.h"
#include "transport/spin.h"

namespace tandem {

// One peer of an endpoint, from the attempt to connect until it is dropped.
struct RdmaPeer {
  using Clock = std::chrono::steady_clock;
  enum class State {
    kConnecting,  // ours, on its way
    kAccepting,   // theirs, on its way
    kOpen,
    kClosing,  // we said goodbye, or will when it is connected
    kClosed,   // it said goodbye, and so have we; one side disconnects, see Finished
  };
  PeerId id = 0;
  State state = State::kConnecting;
  bool reported = false;  // the user knows of it
  bool blocked = false;   // a Send was refused: the user waits for kWritable
  bool connected = false;
  bool closed_first = false;  // we said goodbye before it did
  bool gone = false;          // lost, for the reason `why`; the next Poll reports it
  absl::Status why;
  std::unique_ptr<RdmaConnection> connection;
  // Ours only.
  std::string address;
  RdmaSocketAddress to;
  rdma_cm_id* attempt = nullptr;  // until it has a connection
  Fifo<Frame> pending;            // until it is connected
  Clock::time_point connect_deadline = Clock::time_point::max();
  Clock::time_point retry_at = Clock::time_point::max();
  Clock::time_point close_deadline = Clock::time_point::max();
  Clock::time_point probe_at = Clock::time_point::max();

  bool live() const { return !gone && (state == State::kConnecting || state == State::kOpen); }
  size_t in_flight() const {
    return pending.size() + (connection == nullptr ? 0 : connection->in_flight());
  }
};

class RdmaEndpoint final : public RdmaLeftover {
 public:
  using Clock = RdmaPeer::Clock;

  explicit RdmaEndpoint(const RdmaOptions& options);
  ~RdmaEndpoint() override;
  absl::Status Start();
  // The owner goes: takes no new peers, says goodbye to all. Returns the context, which runs GoOn
  // until everything has left.
  std::shared_ptr<RdmaContextImpl> Retire();
  bool GoOn() override;
  bool empty() const { return peers_.empty(); }

  absl::StatusOr<PeerId> Connect(const std::string& address);
  ABSL_ATTRIBUTE_HOT absl::Status Send(PeerId id, Frame&& frame);
  void Close(PeerId id);
  ABSL_ATTRIBUTE_HOT void Poll(absl::Duration timeout, std::vector<TransportEvent>* events);
  void Wake();
  int wait_fd() const { return epoll_fd_.get(); }
  ABSL_ATTRIBUTE_HOT bool BeginWait(Clock::time_point* until);
  ABSL_ATTRIBUTE_HOT void EndWait(bool readable);
  const std::string& address() const { return address_; }
  const std::string& device() const { return device_; }
  TransportCounters counters() const { return counters_; }
  RdmaCounters rdma_counters() const;
  Buffer Alloc(size_t bytes) { return shared_.memory->Alloc(bytes); }

 private:
  static constexpr int kCompletionsAtOnce = 16;
  enum : uint64_t { kWakeKey, kCompletionKey, kManagerKey };  // of what is slept on

  static Clock::duration ToClock(absl::Duration d) {
    return std::chrono::duration_cast<Clock::duration>(absl::ToChronoNanoseconds(d));
  }
  static Clock::time_point After(absl::Duration d) {
    return d > absl::Hours(24 * 365) ? Clock::time_point::max() : Clock::now() + ToClock(d);
  }
  static std::string Error(absl::string_view what, int error);

  // Setting up.
  absl::Status Listen(const RdmaAddress& address);
  absl::Status CheckDevice();
  absl::Status CreateQueues();
  absl::Status AddReceives();
  ABSL_ATTRIBUTE_HOT void PostReceive(uint64_t number);
  void FlushReceives();

  // Connections.
  void OnManagerEvents();
  void OnManagerEvent(const rdma_cm_event& event, absl::Span<const uint8_t> data);
  void OnRequest(rdma_cm_id* id, absl::Span<const uint8_t> data);
  absl::Status Accept(rdma_cm_id** id_in, absl::Span<const uint8_t> data);
  void OnAttempt(RdmaPeer* peer, const rdma_cm_event& event, absl::Span<const uint8_t> data);
  absl::Status ContinueAttempt(RdmaPeer* peer, const rdma_cm_event& event,
                               absl::Span<const uint8_t> data);
  absl::Status StartAttempt(RdmaPeer* peer);
  absl::Status Request(RdmaPeer* peer);
  absl::Status OnConnected(RdmaPeer* peer, absl::Span<const uint8_t> data);
  absl::Status OnAccepted(RdmaPeer* peer);
  void GiveUpAttempt(RdmaPeer* peer);
  void SetOptions(rdma_cm_id* id);
  rdma_conn_param Parameters(const uint8_t* hello);

  // Frames.
  ABSL_ATTRIBUTE_HOT bool PollQueue();
  ABSL_ATTRIBUTE_HOT void DrainCompletions(int at_most);
  ABSL_ATTRIBUTE_HOT void OnCompletion(const ibv_wc& wc);
  ABSL_ATTRIBUTE_HOT void OnReceive(const ibv_wc& wc, RdmaPeer* peer);
  ABSL_ATTRIBUTE_HOT void Deliver(RdmaPeer* peer, RdmaDelivery* delivery);
  void OnGoodbye(RdmaPeer* peer);
  void Emit(TransportEvent::Kind kind, PeerId id, absl::Status why);
  ABSL_ATTRIBUTE_HOT void EmitWritable();

  // Ends.
  ABSL_ATTRIBUTE_HOT RdmaPeer* Find(PeerId id);
  void Break(RdmaPeer* peer, absl::Status why);
  ABSL_ATTRIBUTE_HOT void ReportGone();
  void Drop(PeerId id);
  bool Finished(const RdmaPeer& peer) const;

  // Time.
  ABSL_ATTRIBUTE_HOT void Turn();
  ABSL_ATTRIBUTE_HOT void RunTimers(Clock::time_point now);
  void TickPeer(RdmaPeer* peer, Clock::time_point now);
  void ScheduleAt(Clock::time_point at) { next_timer_ = std::min(next_timer_, at); }
  ABSL_ATTRIBUTE_HOT bool Wait(Clock::time_point now, Clock::time_point deadline);
  int Look(int timeout_ms);
  void OnCompletionEvent();

  RdmaOptions options_;
  const RecyclePool<RdmaSmallBlock>::Owner small_blocks_ = RecyclePool<RdmaSmallBlock>::New();
  RdmaShared shared_;
  std::string address_, device_;
  RdmaSocketAddress own_;
  rdma_event_channel* manager_ = nullptr;
  rdma_cm_id* listener_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  const OwnedFd epoll_fd_;
  uint32_t receives_per_peer_ = 0;
  int max_peers_ = 0;

  // Receive buffers: of message_bytes each, in groups of receives_per_peer_.
  struct Group {
    Buffer bytes;
    uint32_t key = 0;
  };
  std::vector<Group> groups_;
  std::vector<uint64_t> to_post_;

  PeerId next_peer_ = 1;
  absl::flat_hash_map<PeerId, std::unique_ptr<RdmaPeer>> peers_;
  absl::flat_hash_map<uint32_t, RdmaPeer*> by_queue_pair_;  // those with a connection
  std::vector<PeerId> gone_, blocked_;
  std::vector<PeerId> ids_;  // scratch
  std::vector<RdmaDelivery> deliveries_;
  std::vector<TransportEvent>* events_ = nullptr;  // sink, during Poll
  TransportCounters counters_;
  RdmaPathCounters paths_;
  uint64_t sleeps_ = 0;
  bool worked_ = false;  // something completed in this turn
  int unwatched_ = 0;    // turns since the clock was read
  ibv_wc completions_[kCompletionsAtOnce];
  int polled_ = 0;        // of these: taken from the queue and not handled yet
  bool armed_ = false;    // the next completion makes the channel readable
  unsigned unacked_ = 0;  // completion events read and not acknowledged yet
  Spin spin_;
  bool asleep_ = false;
  Clock::time_point next_timer_ = Clock::time_point::min();
  Clock::time_point next_look_ = Clock::time_point::min();
  Clock::time_point leave_by_ = Clock::time_point::max();  // retired: when to give up
  std::atomic<bool> wake_requested_{false};
};

}  // namespace tandem

#endif  // TANDEM_RDMA_ENDPOINT_H_
