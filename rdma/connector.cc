#include "rdma/connector.h"

#include <fcntl.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "transport/waitable.h"

namespace tandem::rdma {
namespace {

using Clock = RdmaPeer::Clock;

constexpr int kBacklog = 128;
constexpr int kResolveMs = 2000;
// Finite, so that a dead peer is always reported (7 can mean "forever").
constexpr uint8_t kRetries = 6;
constexpr uint8_t kReadsAtOnce = 8;

std::string Error(absl::string_view what, int error) {
  return absl::StrCat(what, ": ", std::strerror(error));
}

}  // namespace

// ---- own address ----

RdmaConnector::~RdmaConnector() {
  StopListening();
  if (channel_ != nullptr) rdma_destroy_event_channel(channel_);
}

absl::Status RdmaConnector::Bind() {
  TANDEM_ASSIGN_OR_RETURN(RdmaAddress address, ParseRdmaAddress(options_->bind));
  if (address.host == "*") {
    TANDEM_ASSIGN_OR_RETURN(address.host, FirstRdmaHost());
  }
  channel_ = rdma_create_event_channel();
  if (channel_ == nullptr) {
    return absl::UnavailableError(Error("no connection manager (module rdma_ucm)", errno));
  }
  fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  TANDEM_ASSIGN_OR_RETURN(own_, ResolveRdmaAddress(address));
  TANDEM_CHECK(rdma_create_id(channel_, &listener_, nullptr, RDMA_PS_TCP) == 0);
  if (rdma_bind_addr(listener_, own_.get()) != 0) {
    return absl::UnavailableError(
        Error(absl::StrCat("bind ", options_->bind,
                           ": no RDMA device has this address, or the port is in use"),
              errno));
  }
  if (listener_->verbs == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("bind ", options_->bind, ": no RDMA device has this address"));
  }
  const char* const open = absl::StrContains(address.host, ":") ? "[" : "";
  const char* const shut = *open == '[' ? "]" : "";
  address_ =
      absl::StrCat("rdma://", open, address.host, shut, ":", ntohs(rdma_get_src_port(listener_)));
  return CheckDevice();
}

absl::Status RdmaConnector::CheckDevice() {
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

absl::Status RdmaConnector::Listen() {
  if (rdma_listen(listener_, kBacklog) == 0) return absl::OkStatus();
  return absl::UnavailableError(Error(absl::StrCat("listen at ", address_), errno));
}

void RdmaConnector::StopListening() {
  if (listener_ != nullptr) rdma_destroy_id(std::exchange(listener_, nullptr));
}

// ---- own attempts ----

void RdmaConnector::SetOptions(rdma_cm_id* id) {
  auto timeout = static_cast<uint8_t>(options_->ack_timeout);
  // Older kernels do not support this option and use a longer timeout.
  rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
}

rdma_conn_param RdmaConnector::Parameters(const uint8_t* hello) {
  const ibv_device_attr& device = shared_->memory->attributes();
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

absl::Status RdmaConnector::Start(RdmaPeer* peer) {
  peer->retry_at = Clock::time_point::max();
  rdma_cm_id* id = nullptr;
  auto* const context = reinterpret_cast<void*>(peer->id);
  if (rdma_create_id(channel_, &id, context, RDMA_PS_TCP) != 0) {
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

void RdmaConnector::GiveUp(RdmaPeer* peer) {
  peers_->DropConnection(peer);
  if (peer->attempt != nullptr) rdma_destroy_id(std::exchange(peer->attempt, nullptr));
}

void RdmaConnector::RetryLater(RdmaPeer* peer, absl::Status why) {
  GiveUp(peer);
  peer->why = std::move(why);
  peer->retry_at = Clock::now() + transport::WaitableTransport::ToClock(options_->connect_retry);
  peers_->ScheduleAt(peer->retry_at);
}

// ---- events ----

bool RdmaConnector::Next(Event* out) {
  rdma_cm_event* event = nullptr;
  while (rdma_get_cm_event(channel_, &event) == 0) {
    // Handling an event may destroy its id, but an event must be acknowledged before its id is
    // destroyed. So the event is copied and acknowledged first.
    const rdma_cm_event copy = *event;
    const auto* const data = static_cast<const uint8_t*>(event->param.conn.private_data);
    const bool carries = copy.event == RDMA_CM_EVENT_CONNECT_REQUEST ||
                         copy.event == RDMA_CM_EVENT_ESTABLISHED ||
                         copy.event == RDMA_CM_EVENT_REJECTED;
    std::vector<uint8_t> bytes;
    if (carries && data != nullptr) bytes.assign(data, data + event->param.conn.private_data_len);
    rdma_ack_cm_event(event);
    if (copy.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
      OnRequest(copy.id, bytes);
      continue;
    }
    // The device was removed; each connection gets an event of its own.
    if (copy.id == listener_) continue;
    RdmaPeer* const peer = peers_->Find(reinterpret_cast<transport::PeerId>(copy.id->context));
    if (peer == nullptr) continue;
    if (peer->connected) {
      *out = {peer->id, copy.event};
      return true;
    }
    OnAttempt(peer, copy, bytes);
  }
  return false;
}

// Handles a connection request of a peer.
void RdmaConnector::OnRequest(rdma_cm_id* id, absl::Span<const uint8_t> data) {
  const absl::Status accepted = Accept(&id, data);
  if (id == nullptr) return;  // a connection owns it now
  // Send the reason to the peer, as far as it fits.
  const std::string why(accepted.message().substr(0, 120));
  rdma_reject(id, why.data(), static_cast<uint8_t>(why.size()));
  rdma_destroy_id(id);
}

// Makes a connection for the id of a request. Sets *id_in to null once the connection owns the id.
//
// All checks come first: the peer's hello, then the limit of peers. The receive buffers must be
// there before the connection can receive anything. The id is answered last, when the connection
// knows its peer.
absl::Status RdmaConnector::Accept(rdma_cm_id** id_in, absl::Span<const uint8_t> data) {
  rdma_cm_id* const id = *id_in;
  TANDEM_ASSIGN_OR_RETURN(const RdmaHello theirs, DecodeRdmaHello(data));
  if (listener_ == nullptr || static_cast<int>(peers_->size()) >= queues_->max_peers()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this endpoint already has its ", queues_->max_peers(), " peers and takes no more"));
  }
  TANDEM_RETURN_IF_ERROR(queues_->AddReceives(peers_->connections()));
  auto made = RdmaConnection::New(*shared_, id, counters_);
  TANDEM_RETURN_IF_ERROR(made.status());
  *id_in = nullptr;
  auto peer = std::make_unique<RdmaPeer>();
  peer->id = peers_->NewId();
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
  peers_->SetQueuePair(peer.get());
  peers_->Add(std::move(peer));
  return absl::OkStatus();
}

void RdmaConnector::OnAttempt(RdmaPeer* peer, const rdma_cm_event& event,
                              absl::Span<const uint8_t> data) {
  const absl::Status next = ContinueAttempt(peer, event, data);
  if (next.ok()) return;
  if (peer->state == RdmaPeer::State::kAccepting || absl::IsInvalidArgument(next) ||
      absl::IsResourceExhausted(next)) {
    return peers_->Break(peer, next);
  }
  RetryLater(peer, next);
}

absl::Status RdmaConnector::ContinueAttempt(RdmaPeer* peer, const rdma_cm_event& event,
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
      // An endpoint of Tandem sends the reason in the data. Without data no endpoint listens there.
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

absl::Status RdmaConnector::Request(RdmaPeer* peer) {
  rdma_cm_id* const id = peer->attempt;
  if (id == nullptr || id->verbs != shared_->memory->context()) {
    return absl::UnavailableError("the route to the peer uses another device");
  }
  TANDEM_RETURN_IF_ERROR(queues_->AddReceives(peers_->connections()));
  auto made = RdmaConnection::New(*shared_, id, counters_);
  TANDEM_RETURN_IF_ERROR(made.status());
  peer->attempt = nullptr;
  peer->connection = *std::move(made);
  peers_->SetQueuePair(peer);
  uint8_t hello[kRdmaHelloBytes];
  EncodeRdmaHello(peer->connection->Grant(), hello);
  rdma_conn_param parameters = Parameters(hello);
  if (rdma_connect(id, &parameters) == 0) return absl::OkStatus();
  return absl::UnavailableError(Error("rdma_connect", errno));
}

absl::Status RdmaConnector::OnConnected(RdmaPeer* peer, absl::Span<const uint8_t> data) {
  TANDEM_ASSIGN_OR_RETURN(const RdmaHello theirs, DecodeRdmaHello(data));
  peer->connection->SetPeer(theirs);
  if (peer->state == RdmaPeer::State::kConnecting) peer->state = RdmaPeer::State::kOpen;
  peer->connected = true;
  peer->probe_at = transport::WaitableTransport::After(options_->probe_interval);
  peers_->ScheduleAt(peer->probe_at);
  while (!peer->pending.empty()) peer->connection->QueueFrame(peer->pending.Pop());
  if (peer->state == RdmaPeer::State::kClosing) peer->connection->QueueGoodbye();
  return peer->connection->Open();
}

absl::Status RdmaConnector::OnAccepted(RdmaPeer* peer) {
  peer->state = RdmaPeer::State::kOpen;
  peer->connected = true;
  peer->probe_at = transport::WaitableTransport::After(options_->probe_interval);
  peers_->ScheduleAt(peer->probe_at);
  return peer->connection->Open();
}

}  // namespace tandem::rdma
