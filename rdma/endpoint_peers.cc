#include "rdma/endpoint.h"

#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem {
namespace {

constexpr int kAllCompletions = 1 << 16;
constexpr int kResolveMs = 2000;
// Finite (7 can mean for ever), so that a dead peer is always reported.
constexpr uint8_t kRetries = 6;
constexpr uint8_t kReadsAtOnce = 8;

}  // namespace

void RdmaEndpoint::SetOptions(rdma_cm_id* id) {
  auto timeout = static_cast<uint8_t>(options_.ack_timeout);
  // Older kernels do not have it and take a longer one.
  rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
}

rdma_conn_param RdmaEndpoint::Parameters(const uint8_t* hello) {
  const ibv_device_attr& device = shared_.memory->attributes();
  rdma_conn_param parameters = {};
  parameters.private_data = hello;
  parameters.private_data_len = kRdmaHelloBytes;
  parameters.responder_resources =
      static_cast<uint8_t>(std::min<int>(kReadsAtOnce, device.max_qp_rd_atom));
  parameters.initiator_depth =
      static_cast<uint8_t>(std::min<int>(kReadsAtOnce, device.max_qp_init_rd_atom));
  parameters.retry_count = kRetries;
  parameters.rnr_retry_count = kRetries;
  parameters.srq = 1;
  return parameters;
}

absl::StatusOr<PeerId> RdmaEndpoint::Connect(const std::string& text) {
  TANDEM_ASSIGN_OR_RETURN(const RdmaAddress address, ParseRdmaAddress(text));
  if (address.host == "*" || address.port == "*") {
    return absl::InvalidArgumentError(absl::StrCat("connect ", text, ": whereto?"));
  }
  auto peer = std::make_unique<RdmaPeer>();
  TANDEM_ASSIGN_OR_RETURN(peer->to, ResolveRdmaAddress(address));
  peer->id = next_peer_;
  peer->reported = true;
  peer->address = text;
  peer->connect_deadline = After(options_.connect_deadline);
  peer->retry_at = Clock::now();
  ScheduleAt(peer->retry_at);
  peers_[next_peer_] = std::move(peer);
  return next_peer_++;
}

absl::Status RdmaEndpoint::StartAttempt(RdmaPeer* peer) {
  peer->retry_at = Clock::time_point::max();
  rdma_cm_id* id = nullptr;
  auto* const context = reinterpret_cast<void*>(peer->id);
  if (rdma_create_id(manager_, &id, context, RDMA_PS_TCP) != 0) {
    return absl::ResourceExhaustedError(Error("rdma_create_id", errno));
  }
  peer->attempt = id;
  RdmaSocketAddress from = own_;  // any port
  if (from.bytes.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&from.bytes)->sin_port = 0;
  } else {
    reinterpret_cast<sockaddr_in6*>(&from.bytes)->sin6_port = 0;
  }
  if (rdma_resolve_addr(id, from.get(), peer->to.get(), kResolveMs) != 0) {
    return absl::UnavailableError(Error(absl::StrCat("resolve ", peer->address), errno));
  }
  return absl::OkStatus();
}

void RdmaEndpoint::GiveUpAttempt(RdmaPeer* peer) {
  if (peer->connection != nullptr) {
    by_queue_pair_.erase(peer->connection->qp_number());
    peer->connection.reset();
  }
  if (peer->attempt != nullptr) rdma_destroy_id(std::exchange(peer->attempt, nullptr));
}

void RdmaEndpoint::OnManagerEvents() {
  rdma_cm_event* event = nullptr;
  while (rdma_get_cm_event(manager_, &event) == 0) {
    // An event must be acknowledged before its id can be destroyed, which OnManagerEvent may do. So
    // it is copied and acknowledged first.
    const rdma_cm_event copy = *event;
    const auto* const data = static_cast<const uint8_t*>(event->param.conn.private_data);
    const bool carries = copy.event == RDMA_CM_EVENT_CONNECT_REQUEST ||
                         copy.event == RDMA_CM_EVENT_ESTABLISHED ||
                         copy.event == RDMA_CM_EVENT_REJECTED;
    std::vector<uint8_t> bytes;
    if (carries && data != nullptr) bytes.assign(data, data + event->param.conn.private_data_len);
    rdma_ack_cm_event(event);
    OnManagerEvent(copy, bytes);
  }
}

void RdmaEndpoint::OnManagerEvent(const rdma_cm_event& event, absl::Span<const uint8_t> data) {
  if (event.event == RDMA_CM_EVENT_CONNECT_REQUEST) return OnRequest(event.id, data);
  if (event.id == listener_) return;  // the device is removed; each connection gets an event too
  RdmaPeer* const peer = Find(reinterpret_cast<PeerId>(event.id->context));
  if (peer == nullptr) return;
  if (!peer->connected) return OnAttempt(peer, event, data);
  DrainCompletions(kAllCompletions);  // frames that came before the peer went are delivered first
  if (Find(reinterpret_cast<PeerId>(event.id->context)) != peer) return;
  switch (event.event) {
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
      return Break(peer, absl::UnavailableError("the peer has disconnected"));
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return Break(peer, absl::UnavailableError("the RDMA device was removed"));
    case RDMA_CM_EVENT_ESTABLISHED:  // known already: its first message came before this event
    case RDMA_CM_EVENT_ADDR_CHANGE:
      return;
    default:
      return Break(peer, absl::UnavailableError(
                             absl::StrCat("connection manager: ", rdma_event_str(event.event))));
  }
}

// Somebody wants to connect.
void RdmaEndpoint::OnRequest(rdma_cm_id* id, absl::Span<const uint8_t> data) {
  const absl::Status accepted = Accept(&id, data);
  if (id == nullptr) return;  // a connection owns it now
  // The reason travels back, as far as it fits.
  const std::string why(accepted.message().substr(0, 120));
  rdma_reject(id, why.data(), static_cast<uint8_t>(why.size()));
  rdma_destroy_id(id);
}

// Makes a connection for the id of a request. Sets *id_in to null once the connection owns it.
absl::Status RdmaEndpoint::Accept(rdma_cm_id** id_in, absl::Span<const uint8_t> data) {
  rdma_cm_id* const id = *id_in;
  TANDEM_ASSIGN_OR_RETURN(const RdmaHello theirs, DecodeRdmaHello(data));
  if (listener_ == nullptr || static_cast<int>(peers_.size()) >= max_peers_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this endpoint has its ", max_peers_, " peers already"));
  }
  TANDEM_RETURN_IF_ERROR(AddReceives());
  auto made = RdmaConnection::New(shared_, id, &paths_);
  TANDEM_RETURN_IF_ERROR(made.status());
  *id_in = nullptr;
  auto peer = std::make_unique<RdmaPeer>();
  peer->id = next_peer_++;
  peer->state = RdmaPeer::State::kAccepting;
  peer->connection = *std::move(made);
  peer->connection->SetPeer(theirs);
  id->context = reinterpret_cast<void*>(peer->id);
  SetOptions(id);
  uint8_t hello[kRdmaHelloBytes];
  EncodeRdmaHello(peer->connection->Grant(), hello);
  rdma_conn_param parameters = Parameters(hello);
  if (rdma_accept(id, &parameters) != 0) {
    return absl::UnavailableError(Error("rdma_accept", errno));
  }
  by_queue_pair_[peer->connection->qp_number()] = peer.get();
  peers_[peer->id] = std::move(peer);
  return absl::OkStatus();
}

// An event of a connection that is being made, by us or by a peer. Making one takes these phases,
// each begun by the event that ends the one before: our side resolves the address, then the route,
// then sends a request with its hello; the other side makes a queue pair and a ring and accepts
// with a hello of its own; both are then told that the connection is established.
void RdmaEndpoint::OnAttempt(RdmaPeer* peer, const rdma_cm_event& event,
                             absl::Span<const uint8_t> data) {
  const absl::Status next = ContinueAttempt(peer, event, data);
  if (next.ok()) return;
  if (peer->state == RdmaPeer::State::kAccepting || absl::IsInvalidArgument(next) ||
      absl::IsResourceExhausted(next)) {
    return Break(peer, next);
  }
  GiveUpAttempt(peer);
  peer->why = next;
  peer->retry_at = Clock::now() + ToClock(options_.connect_retry);
  ScheduleAt(peer->retry_at);
}

absl::Status RdmaEndpoint::ContinueAttempt(RdmaPeer* peer, const rdma_cm_event& event,
                                           absl::Span<const uint8_t> data) {
  switch (event.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      SetOptions(event.id);
      if (rdma_resolve_route(event.id, kResolveMs) == 0) return absl::OkStatus();
      return absl::UnavailableError(Error("rdma_resolve_route", errno));
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      return Request(peer);
    case RDMA_CM_EVENT_ESTABLISHED:
      return peer->state == RdmaPeer::State::kAccepting ? OnAccepted(peer)
                                                        : OnConnected(peer, data);
    case RDMA_CM_EVENT_REJECTED: {
      // An endpoint of ours sends the reason along. If there is none, no endpoint listens there.
      const std::string said(reinterpret_cast<const char*>(data.data()), data.size());
      const std::string why = said.substr(0, said.find('\0'));
      if (why.empty()) return absl::UnavailableError("nobody listens there");
      return absl::ResourceExhaustedError(absl::StrCat("refused: ", why));
    }
    default:
      return absl::UnavailableError(
          absl::StrCat(rdma_event_str(event.event), ", status ", event.status));
  }
}

absl::Status RdmaEndpoint::Request(RdmaPeer* peer) {
  rdma_cm_id* const id = peer->attempt;
  if (id == nullptr || id->verbs != shared_.memory->context()) {
    return absl::UnavailableError("the way there is over another device");
  }
  TANDEM_RETURN_IF_ERROR(AddReceives());
  auto made = RdmaConnection::New(shared_, id, &paths_);
  TANDEM_RETURN_IF_ERROR(made.status());
  peer->attempt = nullptr;
  peer->connection = *std::move(made);
  by_queue_pair_[peer->connection->qp_number()] = peer;
  uint8_t hello[kRdmaHelloBytes];
  EncodeRdmaHello(peer->connection->Grant(), hello);
  rdma_conn_param parameters = Parameters(hello);
  if (rdma_connect(id, &parameters) == 0) return absl::OkStatus();
  return absl::UnavailableError(Error("rdma_connect", errno));
}

absl::Status RdmaEndpoint::OnConnected(RdmaPeer* peer, absl::Span<const uint8_t> data) {
  TANDEM_ASSIGN_OR_RETURN(const RdmaHello theirs, DecodeRdmaHello(data));
  peer->connection->SetPeer(theirs);
  if (peer->state == RdmaPeer::State::kConnecting) peer->state = RdmaPeer::State::kOpen;
  peer->connected = true;
  peer->probe_at = After(options_.probe_interval);
  ScheduleAt(peer->probe_at);
  while (!peer->pending.empty()) peer->connection->QueueFrame(peer->pending.Pop());
  if (peer->state == RdmaPeer::State::kClosing) peer->connection->QueueGoodbye();
  return peer->connection->Open();
}

absl::Status RdmaEndpoint::OnAccepted(RdmaPeer* peer) {
  peer->state = RdmaPeer::State::kOpen;
  peer->connected = true;
  peer->probe_at = After(options_.probe_interval);
  ScheduleAt(peer->probe_at);
  return peer->connection->Open();
}

}  // namespace tandem
