#include "rdma/endpoint.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "rdma/memory.h"
#include "rdma/ring.h"

namespace tandem {
namespace {

constexpr uint64_t kReceiveBit = uint64_t{1} << 63;  // in wr_id; the rest is the buffer's number
constexpr int kBacklog = 128;
constexpr auto kGoOnFor = absl::Milliseconds(10);

}  // namespace

// ---- setting up ----

std::string RdmaEndpoint::Error(absl::string_view what, int error) {
  return absl::StrCat(what, ": ", std::strerror(error));
}

RdmaEndpoint::RdmaEndpoint(const RdmaOptions& options)
    : options_(options), epoll_fd_(epoll_create1(EPOLL_CLOEXEC)), spin_(options.spin) {
  TANDEM_CHECK(epoll_fd_.valid());
  shared_.waker = std::make_shared<RdmaWaker>();
  shared_.small_blocks = small_blocks_.get();
  RdmaHello& shape = shared_.shape;
  shape.small_slots = static_cast<uint16_t>(options.small_slots);
  shape.large_slots = static_cast<uint16_t>(options.large_slots);
  shape.small_slot_bytes = static_cast<uint32_t>(options.small_slot_bytes);
  shape.large_slot_bytes = static_cast<uint32_t>(options.large_slot_bytes);
  shape.credits = static_cast<uint16_t>(options.credits);
  shape.message_bytes = static_cast<uint32_t>(options.message_bytes);
  shared_.send_depth = static_cast<uint32_t>(options.send_depth);
  shared_.max_part_bytes = options.max_part_bytes;
  shared_.rendezvous_bytes = options.rendezvous_bytes;
  shared_.lend_all = options.lend_all;
  receives_per_peer_ = RdmaConnection::ReceivesPerPeer(shape);
  to_post_.reserve(kRdmaReceiveBatch);
  deliveries_.reserve(static_cast<size_t>(options.credits));
  ids_.reserve(static_cast<size_t>(options.max_peers));
}

RdmaEndpoint::~RdmaEndpoint() {
  while (!peers_.empty()) Drop(peers_.begin()->first);
  if (listener_ != nullptr) rdma_destroy_id(listener_);
  if (shared_.srq != nullptr) ibv_destroy_srq(shared_.srq);
  if (shared_.cq != nullptr) {
    if (unacked_ > 0) ibv_ack_cq_events(shared_.cq, unacked_);
    ibv_destroy_cq(shared_.cq);
  }
  if (channel_ != nullptr) ibv_destroy_comp_channel(channel_);
  if (manager_ != nullptr) rdma_destroy_event_channel(manager_);
}

absl::Status RdmaEndpoint::Start() {
  TANDEM_ASSIGN_OR_RETURN(RdmaAddress address, ParseRdmaAddress(options_.bind));
  if (address.host == "*") {
    TANDEM_ASSIGN_OR_RETURN(address.host, FirstRdmaHost());
  }
  manager_ = rdma_create_event_channel();
  if (manager_ == nullptr) {
    return absl::UnavailableError(Error("no connection manager (module rdma_ucm)", errno));
  }
  TANDEM_RETURN_IF_ERROR(Listen(address));
  TANDEM_RETURN_IF_ERROR(CheckDevice());
  auto* const context = static_cast<RdmaContextImpl*>(options_.context.get());
  TANDEM_ASSIGN_OR_RETURN(shared_.memory, context->Memory(listener_->verbs));
  TANDEM_RETURN_IF_ERROR(CreateQueues());
  const auto watch = [this](int fd, uint64_t key) {
    epoll_event event = {.events = EPOLLIN, .data = {.u64 = key}};
    TANDEM_CHECK(epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
    return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  };
  watch(shared_.waker->fd(), kWakeKey);
  watch(channel_->fd, kCompletionKey);
  watch(manager_->fd, kManagerKey);
  if (rdma_listen(listener_, kBacklog) != 0) {
    return absl::UnavailableError(Error(absl::StrCat("listen at ", address_), errno));
  }
  return absl::OkStatus();
}

absl::Status RdmaEndpoint::Listen(const RdmaAddress& address) {
  TANDEM_ASSIGN_OR_RETURN(own_, ResolveRdmaAddress(address));
  TANDEM_CHECK(rdma_create_id(manager_, &listener_, nullptr, RDMA_PS_TCP) == 0);
  if (rdma_bind_addr(listener_, own_.get()) != 0) {
    return absl::UnavailableError(
        Error(absl::StrCat("bind ", options_.bind, ": no RDMA device there, or taken"), errno));
  }
  if (listener_->verbs == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("bind ", options_.bind, ": no RDMA device has this address"));
  }
  const char* const open = absl::StrContains(address.host, ":") ? "[" : "";
  const char* const shut = *open == '[' ? "]" : "";
  address_ =
      absl::StrCat("rdma://", open, address.host, shut, ":", ntohs(rdma_get_src_port(listener_)));
  return absl::OkStatus();
}

absl::Status RdmaEndpoint::CheckDevice() {
  ibv_context* const device = listener_->verbs;
  const char* const name = ibv_get_device_name(device->device);
  if (device->device->transport_type == IBV_TRANSPORT_IWARP) {
    return absl::UnimplementedError(absl::StrCat(
        name, " is an iWARP device, which has no RDMA write with immediate: use ZeroMQ (tcp://)"));
  }
  ibv_port_attr port = {};
  if (ibv_query_port(device, listener_->port_num, &port) != 0 || port.state != IBV_PORT_ACTIVE) {
    return absl::UnavailableError(absl::StrCat(name, " port ", listener_->port_num,
                                               " is not active (ip link set ... up; ibv_devinfo)"));
  }
  device_ = absl::StrCat(name, " port ", listener_->port_num,
                         port.link_layer == IBV_LINK_LAYER_ETHERNET ? ", RoCE" : ", InfiniBand",
                         ", MTU ", 128 << port.active_mtu);
  return absl::OkStatus();
}

// The queues have room for everything that all peers together can have under way, so they never
// overflow. Where the device's queues are smaller than that, fewer peers are taken.
absl::Status RdmaEndpoint::CreateQueues() {
  const ibv_device_attr& device = shared_.memory->attributes();
  const auto per_peer = static_cast<int>(receives_per_peer_ + shared_.send_depth);
  max_peers_ = std::min({options_.max_peers, device.max_cqe / per_peer,
                         device.max_srq_wr / static_cast<int>(receives_per_peer_)});
  if (max_peers_ < options_.min_peers || device.max_srq < 1) {
    return absl::UnimplementedError(
        absl::StrCat(device_, ": its queues are too small: ", device.max_cqe, " completions and ",
                     device.max_srq_wr, " shared receives are enough for ", std::max(max_peers_, 0),
                     " peers, and an endpoint may have ", options_.min_peers, " (each takes ",
                     per_peer, " and ", receives_per_peer_, ")"));
  }
  channel_ = ibv_create_comp_channel(listener_->verbs);
  if (channel_ == nullptr) return absl::ResourceExhaustedError(Error("completion channel", errno));
  shared_.cq = ibv_create_cq(listener_->verbs, max_peers_ * per_peer, nullptr, channel_, 0);
  if (shared_.cq == nullptr) {
    return absl::ResourceExhaustedError(
        Error(absl::StrCat("completion queue of ", max_peers_ * per_peer), errno));
  }
  ibv_srq_init_attr attributes = {};
  attributes.attr.max_wr = static_cast<uint32_t>(max_peers_) * receives_per_peer_;
  attributes.attr.max_sge = 1;
  shared_.srq = ibv_create_srq(shared_.memory->pd(), &attributes);
  if (shared_.srq == nullptr) {
    return absl::ResourceExhaustedError(Error("shared receive queue", errno));
  }
  return absl::OkStatus();
}

// Posts receive buffers for one more peer, unless those of a peer that has left are still there.
absl::Status RdmaEndpoint::AddReceives() {
  size_t connected = 0;
  for (const auto& [id, peer] : peers_) connected += peer->connection != nullptr ? 1 : 0;
  if (connected < groups_.size()) return absl::OkStatus();
  const size_t bytes = receives_per_peer_ * options_.message_bytes;
  Group group{shared_.memory->Alloc(bytes), 0};
  const ibv_mr* const region = shared_.memory->Find(group.bytes.data(), bytes);
  if (region == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the system refuses to register ", bytes,
        " bytes to receive into; is the locked-memory limit (ulimit -l) high enough?"));
  }
  group.key = region->lkey;
  const uint64_t first = groups_.size() * receives_per_peer_;
  groups_.push_back(std::move(group));
  for (uint32_t i = 0; i < receives_per_peer_; ++i) PostReceive(first + i);
  FlushReceives();
  return absl::OkStatus();
}

void RdmaEndpoint::PostReceive(uint64_t number) {
  to_post_.push_back(number);
  if (to_post_.size() == kRdmaReceiveBatch) FlushReceives();
}

// Posts several buffers in one call: each call may write to a register of the device.
void RdmaEndpoint::FlushReceives() {
  if (to_post_.empty()) return;
  ibv_recv_wr requests[kRdmaReceiveBatch] = {};
  ibv_sge pieces[kRdmaReceiveBatch];
  for (size_t i = 0; i < to_post_.size(); ++i) {
    const uint64_t number = to_post_[i];
    const Group& group = groups_[number / receives_per_peer_];
    const uint8_t* const at =
        group.bytes.data() + number % receives_per_peer_ * options_.message_bytes;
    pieces[i] = {reinterpret_cast<uintptr_t>(at), static_cast<uint32_t>(options_.message_bytes),
                 group.key};
    requests[i].wr_id = kReceiveBit | number;
    requests[i].sg_list = &pieces[i];
    requests[i].num_sge = 1;
    requests[i].next = i + 1 < to_post_.size() ? &requests[i + 1] : nullptr;
  }
  ibv_recv_wr* bad = nullptr;
  TANDEM_CHECK(ibv_post_srq_recv(shared_.srq, requests, &bad) == 0);
  to_post_.clear();
}

// ---- sending ----

absl::Status RdmaEndpoint::Send(PeerId id, Frame&& frame) {
  RdmaPeer* const peer = Find(id);
  if (peer == nullptr || !peer->live()) {
    return absl::NotFoundError(absl::StrCat("no peer ", id, " (any more)"));
  }
  TANDEM_CHECK(frame.parts >= 1 && frame.parts <= kMaxFrameParts);
  if (peer->in_flight() >= static_cast<size_t>(options_.send_queue_frames)) {
    if (!std::exchange(peer->blocked, true)) blocked_.push_back(id);
    return absl::ResourceExhaustedError(
        absl::StrCat("peer ", id, ": ", options_.send_queue_frames, " frames are queued"));
  }
  const size_t bytes = frame.TotalBytes();
  if (peer->state == RdmaPeer::State::kConnecting) {
    peer->pending.Push(std::move(frame));
  } else if (absl::Status sent = peer->connection->Send(std::move(frame)); !sent.ok()) {
    Break(peer, std::move(sent));
    return absl::NotFoundError(absl::StrCat("peer ", id, " is gone"));
  }
  ++counters_.frames_sent;
  counters_.bytes_sent += bytes;
  return absl::OkStatus();
}

void RdmaEndpoint::Close(PeerId id) {
  RdmaPeer* const peer = Find(id);
  if (peer == nullptr || !peer->live()) return;
  if (peer->state == RdmaPeer::State::kConnecting && peer->pending.empty()) return Drop(id);
  const bool connected = peer->state == RdmaPeer::State::kOpen;
  peer->state = RdmaPeer::State::kClosing;
  peer->close_deadline = After(options_.linger);
  ScheduleAt(peer->close_deadline);
  if (!connected) return;  // goodbye when it is
  peer->connection->QueueGoodbye();
  if (absl::Status sent = peer->connection->Pump(); !sent.ok()) Break(peer, std::move(sent));
}

// ---- receiving ----

// True if there are completions to handle: some left from before, or new ones from the queue.
bool RdmaEndpoint::PollQueue() {
  if (polled_ > 0) return true;
  polled_ = ibv_poll_cq(shared_.cq, kCompletionsAtOnce, completions_);
  TANDEM_CHECK(polled_ >= 0);
  return polled_ > 0;
}

void RdmaEndpoint::DrainCompletions(int at_most) {
  for (int left = at_most; left > 0 && PollQueue(); left -= kCompletionsAtOnce) {
    worked_ = true;
    const int count = std::exchange(polled_, 0);
    for (int i = 0; i < count; ++i) OnCompletion(completions_[i]);
    if (count < kCompletionsAtOnce) break;
  }
}

void RdmaEndpoint::OnCompletion(const ibv_wc& wc) {
  const auto known = by_queue_pair_.find(wc.qp_num);
  RdmaPeer* const peer = known == by_queue_pair_.end() ? nullptr : known->second;
  if ((wc.wr_id & kReceiveBit) != 0) {
    OnReceive(wc, peer);
    PostReceive(wc.wr_id & ~kReceiveBit);
  } else if (peer != nullptr && !peer->gone) {
    absl::Status done = peer->connection->OnSent(wc, &deliveries_);
    for (RdmaDelivery& delivery : deliveries_) Deliver(peer, &delivery);
    deliveries_.clear();
    if (!done.ok()) Break(peer, std::move(done));
  }
}

void RdmaEndpoint::OnReceive(const ibv_wc& wc, RdmaPeer* peer) {
  if (peer == nullptr || peer->gone) return;
  if (wc.status != IBV_WC_SUCCESS) {
    return Break(peer, absl::UnavailableError(
                           absl::StrCat("the connection broke: ", ibv_wc_status_str(wc.status))));
  }
  absl::Status taken;
  // The first message may come before the connection manager's event that the peer is connected.
  if (peer->state == RdmaPeer::State::kAccepting) taken = OnAccepted(peer);
  const uint64_t number = wc.wr_id & ~kReceiveBit;
  const uint8_t* const at = groups_[number / receives_per_peer_].bytes.data() +
                            number % receives_per_peer_ * options_.message_bytes;
  if (taken.ok()) {
    taken = peer->connection->OnReceived(wc, {at, options_.message_bytes}, &deliveries_);
  }
  for (RdmaDelivery& delivery : deliveries_) Deliver(peer, &delivery);
  deliveries_.clear();
  if (taken.ok()) return;
  if (absl::IsInvalidArgument(taken)) {
    peer->reported = true;
    if (peer->state == RdmaPeer::State::kOpen)
      Emit(TransportEvent::Kind::kGarbage, peer->id, taken);
  }
  Break(peer, std::move(taken));
}

void RdmaEndpoint::Deliver(RdmaPeer* peer, RdmaDelivery* delivery) {
  if (delivery->kind == RdmaDelivery::Kind::kGoodbye) return OnGoodbye(peer);
  if (peer->state != RdmaPeer::State::kOpen) return;
  peer->reported = true;
  const size_t bytes = delivery->frame.TotalBytes();
  absl::StatusOr<ParsedFrame> parsed = delivery->kind == RdmaDelivery::Kind::kGarbage
                                           ? std::move(delivery->why)
                                           : DecodeFrame(std::move(delivery->frame));
  if (!parsed.ok()) {
    return Emit(TransportEvent::Kind::kGarbage, peer->id, std::move(parsed).status());
  }
  ++counters_.frames_received;
  counters_.bytes_received += bytes;
  TransportEvent& event = events_->emplace_back();
  event.peer = peer->id;
  event.frame = *std::move(parsed);
}

// The peer has said goodbye: nothing more comes from it. We answer with a goodbye of ours. The side
// that said it first disconnects once it has the answer, so that neither goodbye is cut off.
void RdmaEndpoint::OnGoodbye(RdmaPeer* peer) {
  if (peer->state == RdmaPeer::State::kOpen) {
    if (peer->reported) Emit(TransportEvent::Kind::kPeerClosed, peer->id, absl::OkStatus());
    peer->connection->QueueGoodbye();
    if (absl::Status sent = peer->connection->Pump(); !sent.ok()) return Break(peer, sent);
  }
  if (peer->state == RdmaPeer::State::kClosing) {
    // All it sent is here. What we sent is there once its device acknowledges our goodbye.
    peer->close_deadline = std::min(peer->close_deadline, After(options_.goodbye_wait));
  } else {
    peer->close_deadline = After(options_.goodbye_wait);
  }
  peer->closed_first = peer->state == RdmaPeer::State::kClosing;
  peer->state = RdmaPeer::State::kClosed;
  ScheduleAt(peer->close_deadline);
}

// Both goodbyes have arrived, and it is this end that has to disconnect.
bool RdmaEndpoint::Finished(const RdmaPeer& peer) const {
  const bool retired = leave_by_ != Clock::time_point::max();
  return peer.state == RdmaPeer::State::kClosed && (peer.closed_first || retired) &&
         peer.connection->goodbye_left();
}

void RdmaEndpoint::Emit(TransportEvent::Kind kind, PeerId id, absl::Status why) {
  TransportEvent& event = events_->emplace_back();
  event.kind = kind;
  event.peer = id;
  event.why = std::move(why);
}

void RdmaEndpoint::EmitWritable() {
  if (blocked_.empty()) return;
  const auto low = static_cast<size_t>(options_.send_queue_frames / 2);
  for (size_t i = 0; i < blocked_.size();) {
    RdmaPeer* const peer = Find(blocked_[i]);
    if (peer != nullptr && peer->live() && peer->in_flight() > low) {
      ++i;
      continue;
    }
    if (peer != nullptr) {
      peer->blocked = false;
      if (peer->live()) Emit(TransportEvent::Kind::kWritable, peer->id, absl::OkStatus());
    }
    blocked_.erase(blocked_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// ---- ends ----

RdmaPeer* RdmaEndpoint::Find(PeerId id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

// Ends a peer without a goodbye; the next turn of Poll says so.
void RdmaEndpoint::Break(RdmaPeer* peer, absl::Status why) {
  if (std::exchange(peer->gone, true)) return;
  peer->why = std::move(why);
  gone_.push_back(peer->id);
}

void RdmaEndpoint::ReportGone() {
  for (size_t i = 0; i < gone_.size(); ++i) {
    RdmaPeer* const peer = Find(gone_[i]);
    if (peer == nullptr) continue;
    const bool lost = peer->reported && (peer->state == RdmaPeer::State::kOpen ||
                                         peer->state == RdmaPeer::State::kConnecting);
    if (lost) Emit(TransportEvent::Kind::kPeerLost, peer->id, peer->why);
    Drop(peer->id);
  }
  gone_.clear();
}

void RdmaEndpoint::Drop(PeerId id) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  RdmaPeer& peer = *found->second;
  if (peer.connection != nullptr) peer.connection->Disconnect();
  GiveUpAttempt(&peer);
  peers_.erase(found);
}

// ---- leaving ----

std::shared_ptr<RdmaContextImpl> RdmaEndpoint::Retire() {
  rdma_destroy_id(std::exchange(listener_, nullptr));
  std::vector<PeerId> all;
  for (const auto& [id, peer] : peers_) all.push_back(id);
  for (const PeerId id : all) {
    Close(id);
    // The user never heard of peers that have only begun to connect: no goodbye is owed.
    RdmaPeer* const peer = Find(id);
    if (peer != nullptr && peer->state == RdmaPeer::State::kAccepting) Drop(id);
  }
  leave_by_ = After(options_.linger);
  return std::static_pointer_cast<RdmaContextImpl>(std::exchange(options_.context, nullptr));
}

bool RdmaEndpoint::GoOn() {
  std::vector<TransportEvent> ignored;
  Poll(kGoOnFor, &ignored);
  return !peers_.empty() && Clock::now() < leave_by_;
}

RdmaCounters RdmaEndpoint::rdma_counters() const {
  const RdmaMemoryStats memory = shared_.memory->stats();
  return {.small = paths_.small,
          .ring = paths_.ring,
          .offered = paths_.offered,
          .staged_bytes = paths_.staged,
          .inlined = paths_.inlined,
          .lent = paths_.lent,
          .copied_out = paths_.copied_out,
          .gives = paths_.gives,
          .sleeps = sleeps_,
          .registrations = memory.registrations,
          .allocations = memory.allocations,
          .refusals = memory.refusals};
}

}  // namespace tandem
