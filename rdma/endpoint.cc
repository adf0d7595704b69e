#include "rdma/endpoint.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "rdma/memory.h"
#include "rdma/ring.h"
#include "transport/waitable.h"

namespace tandem::rdma {
RdmaHello GrantOf(const RdmaOptions& options) {
  RdmaHello hello;
  hello.small_slots = static_cast<uint16_t>(options.small_slots);
  hello.large_slots = static_cast<uint16_t>(options.large_slots);
  hello.small_slot_bytes = static_cast<uint32_t>(options.small_slot_bytes);
  hello.large_slot_bytes = static_cast<uint32_t>(options.large_slot_bytes);
  hello.credits = static_cast<uint16_t>(options.credits);
  hello.message_bytes = static_cast<uint32_t>(options.message_bytes);
  return hello;
}

namespace {

constexpr auto kContinueFor = absl::Milliseconds(10);

// The settings that connections share; Start adds the parts that depend on the device.
RdmaShared SharedOf(const RdmaOptions& options) {
  RdmaShared shared;
  shared.shape = GrantOf(options);
  shared.send_depth = static_cast<uint32_t>(options.send_depth);
  shared.max_part_bytes = options.max_part_bytes;
  shared.rendezvous_bytes = options.rendezvous_bytes;
  shared.lend_all = options.lend_all;
  return shared;
}

}  // namespace

// ---- setting up ----

RdmaEndpoint::RdmaEndpoint(const RdmaOptions& options)
    : options_(options),
      shared_(SharedOf(options)),
      epoll_fd_(epoll_create1(EPOLL_CLOEXEC)),
      queues_(options, RdmaConnection::ReceivesPerPeer(shared_.shape)),
      connector_(&options_, &shared_, &queues_, &peers_, &paths_),
      spin_(options.spin) {
  TANDEM_CHECK(epoll_fd_.valid());
  shared_.waker = std::make_shared<RdmaWaker>();
  shared_.small_blocks = small_blocks_.get();
  deliveries_.reserve(static_cast<size_t>(options.credits));
  ids_.reserve(static_cast<size_t>(options.max_peers));
}

RdmaEndpoint::~RdmaEndpoint() {
  while (!peers_.empty()) Drop(peers_.all().begin()->first);
  connector_.StopListening();
}

absl::Status RdmaEndpoint::Start() {
  TANDEM_RETURN_IF_ERROR(connector_.Bind());
  auto* const context = static_cast<RdmaContextImpl*>(options_.context.get());
  TANDEM_ASSIGN_OR_RETURN(shared_.memory, context->Memory(connector_.verbs()));
  TANDEM_RETURN_IF_ERROR(queues_.Create(shared_.memory.get(), connector_.device()));
  shared_.cq = queues_.cq();
  shared_.srq = queues_.srq();
  const auto watch = [this](int fd, uint64_t key) {
    epoll_event event = {.events = EPOLLIN, .data = {.u64 = key}};
    TANDEM_CHECK(epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
  };
  watch(shared_.waker->fd(), kWakeKey);
  watch(queues_.fd(), kCompletionKey);
  watch(connector_.fd(), kManagerKey);
  return connector_.Listen();
}

absl::StatusOr<transport::PeerId> RdmaEndpoint::Connect(const std::string& text) {
  TANDEM_ASSIGN_OR_RETURN(const RdmaAddress address, ParseRdmaAddress(text));
  if (address.host == "*" || address.port == "*") {
    return absl::InvalidArgumentError(
        absl::StrCat("connect ", text, ": expected a host and a port, not '*'"));
  }
  auto peer = std::make_unique<RdmaPeer>();
  TANDEM_ASSIGN_OR_RETURN(peer->to, ResolveRdmaAddress(address));
  const transport::PeerId id = peer->id = peers_.NewId();
  peer->reported = true;
  peer->address = text;
  peer->connect_deadline = transport::WaitableTransport::After(options_.connect_deadline);
  peer->retry_at = Clock::now();
  peers_.ScheduleAt(peer->retry_at);
  peers_.Add(std::move(peer));
  return id;
}

// ---- sending ----

absl::Status RdmaEndpoint::Send(transport::PeerId id, Frame&& frame) {
  RdmaPeer* const peer = peers_.Find(id);
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
    peers_.Break(peer, std::move(sent));
    return absl::NotFoundError(absl::StrCat("peer ", id, " is gone"));
  }
  ++counters_.frames_sent;
  counters_.bytes_sent += bytes;
  return absl::OkStatus();
}

void RdmaEndpoint::Close(transport::PeerId id) {
  RdmaPeer* const peer = peers_.Find(id);
  if (peer == nullptr || !peer->live()) return;
  if (peer->state == RdmaPeer::State::kConnecting && peer->pending.empty()) return Drop(id);
  const bool connected = peer->state == RdmaPeer::State::kOpen;
  peer->state = RdmaPeer::State::kClosing;
  peer->close_deadline = transport::WaitableTransport::After(options_.linger);
  peers_.ScheduleAt(peer->close_deadline);
  if (!connected) return;  // the goodbye follows when it is connected
  peer->connection->QueueGoodbye();
  if (absl::Status sent = peer->connection->Pump(); !sent.ok()) peers_.Break(peer, std::move(sent));
}

// ---- receiving ----

void RdmaEndpoint::DrainCompletions(int at_most) {
  for (int left = at_most; left > 0 && queues_.Poll(); left -= RdmaQueues::kCompletionsAtOnce) {
    worked_ = true;
    const absl::Span<const ibv_wc> done = queues_.Take();
    for (const ibv_wc& wc : done) OnCompletion(wc);
    if (done.size() < RdmaQueues::kCompletionsAtOnce) break;
  }
}

void RdmaEndpoint::OnCompletion(const ibv_wc& wc) {
  RdmaPeer* const peer = peers_.FindQueuePair(wc.qp_num);
  if (RdmaQueues::IsReceive(wc)) {
    OnReceive(wc, peer);
    queues_.PostAgain(wc);
  } else if (peer != nullptr && !peer->gone) {
    absl::Status done = peer->connection->OnSent(wc, &deliveries_);
    for (RdmaDelivery& delivery : deliveries_) Deliver(peer, &delivery);
    deliveries_.clear();
    if (!done.ok()) peers_.Break(peer, std::move(done));
  }
}

void RdmaEndpoint::OnReceive(const ibv_wc& wc, RdmaPeer* peer) {
  if (peer == nullptr || peer->gone) return;
  if (wc.status != IBV_WC_SUCCESS) {
    return peers_.Break(peer, absl::UnavailableError(absl::StrCat("the connection broke: ",
                                                                  ibv_wc_status_str(wc.status))));
  }
  absl::Status taken;
  // The first message may come before the connection manager reports that the peer is connected.
  if (peer->state == RdmaPeer::State::kAccepting) taken = connector_.OnAccepted(peer);
  if (taken.ok()) taken = peer->connection->OnReceived(wc, queues_.Received(wc), &deliveries_);
  for (RdmaDelivery& delivery : deliveries_) Deliver(peer, &delivery);
  deliveries_.clear();
  if (taken.ok()) return;
  if (absl::IsInvalidArgument(taken)) {
    peer->reported = true;
    if (peer->state == RdmaPeer::State::kOpen)
      Emit(transport::TransportEvent::Kind::kGarbage, peer->id, taken);
  }
  peers_.Break(peer, std::move(taken));
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
    return Emit(transport::TransportEvent::Kind::kGarbage, peer->id, std::move(parsed).status());
  }
  ++counters_.frames_received;
  counters_.bytes_received += bytes;
  transport::TransportEvent& event = events_->emplace_back();
  event.peer = peer->id;
  event.frame = *std::move(parsed);
}

// Handles a goodbye of the peer: nothing more comes from it. We answer with a goodbye of our own.
// The side that said goodbye first disconnects when it has the answer, so that neither goodbye is
// cut off.
void RdmaEndpoint::OnGoodbye(RdmaPeer* peer) {
  if (peer->state == RdmaPeer::State::kOpen) {
    if (peer->reported)
      Emit(transport::TransportEvent::Kind::kPeerClosed, peer->id, absl::OkStatus());
    peer->connection->QueueGoodbye();
    if (absl::Status sent = peer->connection->Pump(); !sent.ok()) return peers_.Break(peer, sent);
  }
  if (peer->state == RdmaPeer::State::kClosing) {
    // We have everything that the peer sent. The peer has everything that we sent once its device
    // acknowledges our goodbye.
    peer->close_deadline =
        std::min(peer->close_deadline, transport::WaitableTransport::After(options_.goodbye_wait));
  } else {
    peer->close_deadline = transport::WaitableTransport::After(options_.goodbye_wait);
  }
  peer->closed_first = peer->state == RdmaPeer::State::kClosing;
  peer->state = RdmaPeer::State::kClosed;
  peers_.ScheduleAt(peer->close_deadline);
}

// Whether both goodbyes have arrived and this end must disconnect.
bool RdmaEndpoint::Finished(const RdmaPeer& peer) const {
  const bool retired = leave_by_ != Clock::time_point::max();
  return peer.state == RdmaPeer::State::kClosed && (peer.closed_first || retired) &&
         peer.connection->goodbye_left();
}

void RdmaEndpoint::Emit(transport::TransportEvent::Kind kind, transport::PeerId id,
                        absl::Status why) {
  transport::TransportEvent& event = events_->emplace_back();
  event.kind = kind;
  event.peer = id;
  event.why = std::move(why);
}

void RdmaEndpoint::EmitWritable() {
  if (blocked_.empty()) return;
  const auto low = static_cast<size_t>(options_.send_queue_frames / 2);
  for (size_t i = 0; i < blocked_.size();) {
    RdmaPeer* const peer = peers_.Find(blocked_[i]);
    if (peer != nullptr && peer->live() && peer->in_flight() > low) {
      ++i;
      continue;
    }
    if (peer != nullptr) {
      peer->blocked = false;
      if (peer->live())
        Emit(transport::TransportEvent::Kind::kWritable, peer->id, absl::OkStatus());
    }
    blocked_.erase(blocked_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// ---- ends of connections ----

void RdmaEndpoint::ReportGone() {
  std::vector<transport::PeerId>& gone = peers_.gone();
  for (size_t i = 0; i < gone.size(); ++i) {
    RdmaPeer* const peer = peers_.Find(gone[i]);
    if (peer == nullptr) continue;
    const bool lost = peer->reported && (peer->state == RdmaPeer::State::kOpen ||
                                         peer->state == RdmaPeer::State::kConnecting);
    if (lost) Emit(transport::TransportEvent::Kind::kPeerLost, peer->id, peer->why);
    Drop(peer->id);
  }
  gone.clear();
}

void RdmaEndpoint::Drop(transport::PeerId id) {
  RdmaPeer* const peer = peers_.Find(id);
  if (peer == nullptr) return;
  if (peer->connection != nullptr) peer->connection->Disconnect();
  connector_.GiveUp(peer);
  peers_.Erase(id);
}

// ---- end of the endpoint ----

std::shared_ptr<RdmaContextImpl> RdmaEndpoint::Retire() {
  connector_.StopListening();
  std::vector<transport::PeerId> all;
  for (const auto& [id, peer] : peers_.all()) all.push_back(id);
  for (const transport::PeerId id : all) {
    Close(id);
    // The user never heard of peers that have only begun to connect, so they get no goodbye.
    RdmaPeer* const peer = peers_.Find(id);
    if (peer != nullptr && peer->state == RdmaPeer::State::kAccepting) Drop(id);
  }
  leave_by_ = transport::WaitableTransport::After(options_.linger);
  return std::static_pointer_cast<RdmaContextImpl>(std::exchange(options_.context, nullptr));
}

bool RdmaEndpoint::Continue() {
  std::vector<transport::TransportEvent> ignored;
  Poll(kContinueFor, &ignored);
  return !peers_.empty() && Clock::now() < leave_by_;
}

RdmaCounters RdmaEndpoint::rdma_counters() const {
  const RdmaMemoryStats memory = shared_.memory->stats();
  return {.small = paths_.small,
          .ring = paths_.ring,
          .offered = paths_.offered,
          .staged_bytes = paths_.staged,
          .inlined = paths_.inlined,
          .lent = paths_.received.lent,
          .copied_out = paths_.received.copied_out,
          .gives = paths_.gives,
          .sleeps = sleeps_,
          .registrations = memory.registrations,
          .allocations = memory.allocations,
          .refusals = memory.refusals};
}

}  // namespace tandem::rdma
