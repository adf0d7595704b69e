// RdmaEndpoint: the object behind an RdmaTransport. The endpoint outlives the transport until its
// frames have left (RdmaContextImpl::SeeOff). For rdma/ only.
//
// The endpoint moves frames between its user and the connections, and ends connections. Its other
// decisions are when to look for work, when to sleep and which timers are due. Its parts: the peers
// (rdma/peers.h), the making of connections (rdma/connector.h), and the queues that connections
// share (rdma/queues.h).
//
// endpoint.cc       frames in and out, ends endpoint_time.cc  turns, timers and sleeping
//
// Thread safety: none, except for Wake() and Alloc(), which any thread may call.
#ifndef TANDEM_RDMA_ENDPOINT_H_
#define TANDEM_RDMA_ENDPOINT_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/owned_fd.h"
#include "rdma/connection.h"
#include "rdma/connector.h"
#include "rdma/context.h"
#include "rdma/peers.h"
#include "rdma/queues.h"
#include "rdma/rdma_transport.h"
#include "transport/recycle_pool.h"
#include "transport/spin.h"

namespace tandem::rdma {

// The grant that an endpoint with these options gives each peer, without address and key.
RdmaHello GrantOf(const RdmaOptions& options);

class RdmaEndpoint final : public RdmaLeftover {
 public:
  using Clock = RdmaPeer::Clock;

  explicit RdmaEndpoint(const RdmaOptions& options);
  ~RdmaEndpoint() override;
  absl::Status Start();
  // Called when the owner goes: takes no new peers and says goodbye to all. Returns the context,
  // which calls Continue until everything has left.
  std::shared_ptr<RdmaContextImpl> Retire();
  bool Continue() override;
  bool empty() const { return peers_.empty(); }

  absl::StatusOr<transport::PeerId> Connect(const std::string& address);
  ABSL_ATTRIBUTE_HOT absl::Status Send(transport::PeerId id, Frame&& frame);
  void Close(transport::PeerId id);
  ABSL_ATTRIBUTE_HOT void Poll(absl::Duration timeout,
                               std::vector<transport::TransportEvent>* events);
  void Wake();
  int wait_fd() const { return epoll_fd_.get(); }
  ABSL_ATTRIBUTE_HOT bool BeginWait(Clock::time_point* until);
  ABSL_ATTRIBUTE_HOT void EndWait(bool readable);
  const std::string& address() const { return connector_.address(); }
  const std::string& device() const { return connector_.device(); }
  transport::TransportCounters counters() const { return counters_; }
  RdmaCounters rdma_counters() const;
  Buffer Alloc(size_t bytes) { return shared_.memory->Alloc(bytes); }

 private:
  enum : uint64_t { kWakeKey, kCompletionKey, kManagerKey };  // keys of the epoll descriptors

  // Frames.
  ABSL_ATTRIBUTE_HOT void DrainCompletions(int at_most);
  ABSL_ATTRIBUTE_HOT void OnCompletion(const ibv_wc& wc);
  ABSL_ATTRIBUTE_HOT void OnReceive(const ibv_wc& wc, RdmaPeer* peer);
  ABSL_ATTRIBUTE_HOT void Deliver(RdmaPeer* peer, RdmaDelivery* delivery);
  void OnGoodbye(RdmaPeer* peer);
  void Emit(transport::TransportEvent::Kind kind, transport::PeerId id, absl::Status why);
  ABSL_ATTRIBUTE_HOT void EmitWritable();

  // Ends.
  ABSL_ATTRIBUTE_HOT void ReportGone();
  void Drop(transport::PeerId id);
  bool Finished(const RdmaPeer& peer) const;

  // Time.
  ABSL_ATTRIBUTE_HOT void Turn();
  ABSL_ATTRIBUTE_HOT void RunTimers(Clock::time_point now);
  void TickPeer(RdmaPeer* peer, Clock::time_point now);
  ABSL_ATTRIBUTE_HOT bool Wait(Clock::time_point now, Clock::time_point deadline);
  int Look(int timeout_ms);
  void OnManagerEvents();

  RdmaOptions options_;
  const transport::RecyclePool<RdmaSmallBlock>::Owner small_blocks_ =
      transport::RecyclePool<RdmaSmallBlock>::New();
  RdmaShared shared_;
  RdmaPathCounters paths_;
  const OwnedFd epoll_fd_;
  RdmaPeers peers_;
  RdmaQueues queues_;
  RdmaConnector connector_;
  std::vector<transport::PeerId> blocked_;
  std::vector<transport::PeerId> ids_;  // scratch
  std::vector<RdmaDelivery> deliveries_;
  std::vector<transport::TransportEvent>* events_ = nullptr;  // where events go during Poll
  transport::TransportCounters counters_;
  uint64_t sleeps_ = 0;
  bool worked_ = false;  // something has completed in this turn
  int unwatched_ = 0;    // turns since the clock was read
  transport::Spin spin_;
  bool asleep_ = false;
  Clock::time_point next_look_ = Clock::time_point::min();
  Clock::time_point leave_by_ = Clock::time_point::max();  // retired: when to give up
  std::atomic<bool> wake_requested_{false};
};

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_ENDPOINT_H_
