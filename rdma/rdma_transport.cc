#include "rdma/rdma_transport.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "rdma/connection.h"
#include "rdma/context.h"
#include "rdma/devices.h"
#include "rdma/memory.h"
#include "rdma/ring.h"
#include "rdma/wire.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kCompletionsPerTurn = 64;  // so that Poll ends although a fast sender goes on
constexpr int kAllCompletions = 1 << 16;
constexpr uint64_t kReceiveBit = uint64_t{1} << 63;  // in wr_id; the rest is the buffer's number
constexpr int kResolveMs = 2000;
constexpr int kBacklog = 128;
constexpr uint8_t kRetries =
    6;  // finite (7 can mean for ever), so that a dead peer is always reported
constexpr uint8_t kReadsAtOnce = 8;
constexpr unsigned kUnackedEvents = 64;  // completion events acknowledged together: it takes a lock
// How long connections may go unwatched while frames keep the thread from sleeping.
constexpr auto kLookAround = std::chrono::milliseconds(5);
constexpr auto kGoOnFor = absl::Milliseconds(10);

enum : uint64_t { kWakeKey, kCompletionKey, kManagerKey };

Clock::duration ToClock(absl::Duration d) {
  return std::chrono::duration_cast<Clock::duration>(absl::ToChronoNanoseconds(d));
}

Clock::time_point After(absl::Duration d) {
  return d > absl::Hours(24 * 365) ? Clock::time_point::max() : Clock::now() + ToClock(d);
}

std::string Error(absl::string_view what, int error) {
  return absl::StrCat(what, ": ", std::strerror(error));
}

// ---- addresses ----

struct Address {
  std::string host, port;  // "*": any
};

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  const absl::Status malformed =
      absl::InvalidArgumentError(absl::StrCat("address ", text, ": want rdma://HOST:PORT"));
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, "rdma://")) return malformed;
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return malformed;
  Address address;
  address.host = std::string(absl::StripSuffix(absl::StripPrefix(rest.substr(0, colon), "["), "]"));
  address.port = std::string(rest.substr(colon + 1));
  int port = 0;
  if (address.port != "*" && (!absl::SimpleAtoi(address.port, &port) || port < 1 || port > 65535)) {
    return malformed;
  }
  return address;
}

struct SocketAddress {
  sockaddr_storage bytes = {};
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
};

absl::StatusOr<SocketAddress> Resolve(const Address& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const char* const port = address.port == "*" ? nullptr : address.port.c_str();
  if (const int error = getaddrinfo(address.host.c_str(), port, &hints, &found); error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("host ", address.host, ": ", gai_strerror(error)));
  }
  SocketAddress out;
  std::memcpy(&out.bytes, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return out;
}

// The address behind an IPv4-mapped GID, which is how RoCE v2 devices show theirs.
std::string HostOfGid(const RdmaGid& gid) {
  static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (std::memcmp(gid.data(), kMapped, sizeof kMapped) != 0) return "";
  return absl::StrCat(gid[12], ".", gid[13], ".", gid[14], ".", gid[15]);
}

absl::StatusOr<std::string> FirstUsableHost() {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<RdmaDevice> devices, ListRdmaDevices());
  for (const RdmaDevice& device : devices) {
    for (const RdmaPort& port : device.ports) {
      if (port.state != RdmaPortState::kActive) continue;
      for (const RdmaGid& gid : port.gids) {
        if (const std::string host = HostOfGid(gid); !host.empty()) return host;
      }
    }
  }
  return absl::UnavailableError(
      "no RDMA device has an active port with an IPv4 address (name one: rdma://HOST:*)");
}

// ---- an endpoint ----

struct Peer {
  enum class State {
    kConnecting,  // ours, on its way
    kAccepting,   // theirs, on its way
    kOpen,
    kClosing,  // we said goodbye, or will when it is connected
    kClosed,   // it said goodbye and has ours; it disconnects
  };
  PeerId id = 0;
  State state = State::kConnecting;
  bool reported = false;  // the user knows of it
  bool blocked = false;   // owes a kWritable
  bool connected = false;
  bool closed_first = false;  // we said goodbye before it did
  bool gone = false;          // `why` it is lost; reported by the next Poll
  absl::Status why;
  std::unique_ptr<RdmaConnection> connection;
  // Ours only.
  std::string address;
  SocketAddress to;
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

class Endpoint final : public RdmaLeftover {
 public:
  explicit Endpoint(const RdmaOptions& options);
  ~Endpoint() override;
  absl::Status Start();
  // No new peers any more, goodbye to all; the context to be seen off by.
  std::shared_ptr<RdmaContextImpl> Retire();
  bool GoOn() override;
  bool empty() const { return peers_.empty(); }

  absl::StatusOr<PeerId> Connect(const std::string& address);
  absl::Status Send(PeerId id, Frame frame);
  void Close(PeerId id);
  void Poll(absl::Duration timeout, std::vector<TransportEvent>* events);
  void Wake();
  int wait_fd() const { return epoll_fd_; }
  bool BeginWait(Clock::time_point* until);
  void EndWait(bool readable);
  const std::string& address() const { return address_; }
  const std::string& device() const { return device_; }
  TransportCounters counters() const { return counters_; }
  RdmaCounters rdma_counters() const;
  Buffer Alloc(size_t bytes) { return shared_.memory->Alloc(bytes); }

 private:
  // Setting up.
  absl::Status Listen(const Address& address);
  absl::Status CheckDevice();
  absl::Status CreateQueues();
  absl::Status AddReceives();
  void PostReceive(uint64_t number);
  void FlushReceives();

  // Connections.
  void OnManagerEvents();
  void OnManagerEvent(const rdma_cm_event& event, absl::Span<const uint8_t> data);
  void OnRequest(rdma_cm_id* id, absl::Span<const uint8_t> data);
  absl::Status Accept(rdma_cm_id** id_in, absl::Span<const uint8_t> data);
  void OnAttempt(Peer* peer, const rdma_cm_event& event, absl::Span<const uint8_t> data);
  absl::Status ContinueAttempt(Peer* peer, const rdma_cm_event& event,
                               absl::Span<const uint8_t> data);
  absl::Status StartAttempt(Peer* peer);
  absl::Status Request(Peer* peer);
  absl::Status OnConnected(Peer* peer, absl::Span<const uint8_t> data);
  absl::Status OnAccepted(Peer* peer);
  void GiveUpAttempt(Peer* peer);
  void SetOptions(rdma_cm_id* id);
  rdma_conn_param Parameters(const uint8_t* hello);

  // Frames.
  void DrainCompletions(int at_most);
  void OnCompletion(const ibv_wc& wc);
  void OnReceive(const ibv_wc& wc, Peer* peer);
  void Deliver(Peer* peer, RdmaDelivery delivery);
  void OnGoodbye(Peer* peer);
  void Emit(TransportEvent::Kind kind, PeerId id, absl::Status why);
  void EmitWritable();

  // Ends.
  Peer* Find(PeerId id);
  void Break(Peer* peer, absl::Status why);
  void ReportGone();
  void Drop(PeerId id);
  bool Finished(const Peer& peer) const;

  // Time.
  void Turn();
  void RunTimers(Clock::time_point now);
  void TickPeer(Peer* peer, Clock::time_point now);
  void ScheduleAt(Clock::time_point at) { next_timer_ = std::min(next_timer_, at); }
  bool Spin(Clock::time_point until);
  bool PollEarly();
  bool Wait(Clock::time_point now, Clock::time_point deadline);
  int Look(int timeout_ms);
  void OnCompletionEvent();

  RdmaOptions options_;
  RdmaShared shared_;
  std::string address_, device_;
  SocketAddress own_;
  rdma_event_channel* manager_ = nullptr;
  rdma_cm_id* listener_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  const int epoll_fd_;
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
  absl::flat_hash_map<PeerId, std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<uint32_t, PeerId> by_queue_pair_;
  std::vector<PeerId> gone_, blocked_;
  std::vector<PeerId> ids_;  // scratch
  std::vector<RdmaDelivery> deliveries_;
  std::vector<TransportEvent>* events_ = nullptr;  // sink, during Poll
  TransportCounters counters_;
  RdmaPathCounters paths_;
  uint64_t sleeps_ = 0;
  bool worked_ = false;  // something completed in this turn
  bool has_early_ = false;
  ibv_wc early_ = {};   // taken from the queue while waiting
  bool armed_ = false;  // the next completion makes the channel readable
  unsigned unacked_ = 0;
  const unsigned processors_ = std::thread::hardware_concurrency();
  Clock::duration spin_ = Clock::duration::zero();
  Clock::time_point next_timer_ = Clock::time_point::min();
  Clock::time_point next_look_ = Clock::time_point::min();
  Clock::time_point leave_by_ = Clock::time_point::max();  // retired: when to give up
  std::atomic<bool> wake_requested_{false};
};

// ---- setting up ----

Endpoint::Endpoint(const RdmaOptions& options)
    : options_(options), epoll_fd_(epoll_create1(EPOLL_CLOEXEC)) {
  TANDEM_CHECK(epoll_fd_ >= 0);
  shared_.waker = std::make_shared<RdmaWaker>();
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
  receives_per_peer_ = RdmaConnection::ReceivesPerPeer(shape);
  to_post_.reserve(kRdmaReceiveBatch);
  deliveries_.reserve(static_cast<size_t>(options.credits));
  ids_.reserve(static_cast<size_t>(options.max_peers));
}

Endpoint::~Endpoint() {
  while (!peers_.empty()) Drop(peers_.begin()->first);
  if (listener_ != nullptr) rdma_destroy_id(listener_);
  if (shared_.srq != nullptr) ibv_destroy_srq(shared_.srq);
  if (shared_.cq != nullptr) {
    if (unacked_ > 0) ibv_ack_cq_events(shared_.cq, unacked_);
    ibv_destroy_cq(shared_.cq);
  }
  if (channel_ != nullptr) ibv_destroy_comp_channel(channel_);
  if (manager_ != nullptr) rdma_destroy_event_channel(manager_);
  close(epoll_fd_);
}

absl::Status Endpoint::Start() {
  TANDEM_ASSIGN_OR_RETURN(Address address, ParseAddress(options_.bind));
  if (address.host == "*") {
    TANDEM_ASSIGN_OR_RETURN(address.host, FirstUsableHost());
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
    TANDEM_CHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0);
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

absl::Status Endpoint::Listen(const Address& address) {
  TANDEM_ASSIGN_OR_RETURN(own_, Resolve(address));
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

absl::Status Endpoint::CheckDevice() {
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

// All that can ever complete fits into the queues, so they never overflow: what does not fit is the
// peer too many.
absl::Status Endpoint::CreateQueues() {
  const ibv_device_attr& device = shared_.memory->attributes();
  const auto per_peer = static_cast<int>(receives_per_peer_ + shared_.send_depth);
  max_peers_ = std::min({options_.max_peers, device.max_cqe / per_peer,
                         device.max_srq_wr / static_cast<int>(receives_per_peer_)});
  if (max_peers_ < 1 || device.max_srq < 1) {
    return absl::UnimplementedError(
        absl::StrCat(device_, ": its queues are too small: ", device.max_cqe, " completions, ",
                     device.max_srq_wr, " shared receives"));
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

// Receive buffers for one peer more; those of peers that went are still there.
absl::Status Endpoint::AddReceives() {
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

void Endpoint::PostReceive(uint64_t number) {
  to_post_.push_back(number);
  if (to_post_.size() == kRdmaReceiveBatch) FlushReceives();
}

// Several at once: posting may ring the device's bell.
void Endpoint::FlushReceives() {
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

// ---- connections ----

void Endpoint::SetOptions(rdma_cm_id* id) {
  auto timeout = static_cast<uint8_t>(options_.ack_timeout);
  // Older kernels do not have it and take a longer one.
  rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
}

rdma_conn_param Endpoint::Parameters(const uint8_t* hello) {
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

absl::StatusOr<PeerId> Endpoint::Connect(const std::string& text) {
  TANDEM_ASSIGN_OR_RETURN(const Address address, ParseAddress(text));
  if (address.host == "*" || address.port == "*") {
    return absl::InvalidArgumentError(absl::StrCat("connect ", text, ": whereto?"));
  }
  auto peer = std::make_unique<Peer>();
  TANDEM_ASSIGN_OR_RETURN(peer->to, Resolve(address));
  peer->id = next_peer_;
  peer->reported = true;
  peer->address = text;
  peer->connect_deadline = After(options_.connect_deadline);
  peer->retry_at = Clock::now();
  ScheduleAt(peer->retry_at);
  peers_[next_peer_] = std::move(peer);
  return next_peer_++;
}

absl::Status Endpoint::StartAttempt(Peer* peer) {
  peer->retry_at = Clock::time_point::max();
  rdma_cm_id* id = nullptr;
  auto* const context = reinterpret_cast<void*>(peer->id);
  if (rdma_create_id(manager_, &id, context, RDMA_PS_TCP) != 0) {
    return absl::ResourceExhaustedError(Error("rdma_create_id", errno));
  }
  peer->attempt = id;
  SocketAddress from = own_;  // any port
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

void Endpoint::GiveUpAttempt(Peer* peer) {
  if (peer->connection != nullptr) {
    by_queue_pair_.erase(peer->connection->qp_number());
    peer->connection.reset();
  }
  if (peer->attempt != nullptr) rdma_destroy_id(std::exchange(peer->attempt, nullptr));
}

void Endpoint::OnManagerEvents() {
  rdma_cm_event* event = nullptr;
  while (rdma_get_cm_event(manager_, &event) == 0) {
    // What an id says must be acknowledged before the id can go.
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

void Endpoint::OnManagerEvent(const rdma_cm_event& event, absl::Span<const uint8_t> data) {
  if (event.event == RDMA_CM_EVENT_CONNECT_REQUEST) return OnRequest(event.id, data);
  if (event.id == listener_) return;  // the device goes; the connections hear of it too
  Peer* const peer = Find(reinterpret_cast<PeerId>(event.id->context));
  if (peer == nullptr) return;
  if (!peer->connected) return OnAttempt(peer, event, data);
  DrainCompletions(kAllCompletions);  // what it said before it went
  if (Find(reinterpret_cast<PeerId>(event.id->context)) != peer) return;
  switch (event.event) {
    case RDMA_CM_EVENT_DISCONNECTED:
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
      return Break(peer, absl::UnavailableError("the peer has disconnected"));
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return Break(peer, absl::UnavailableError("the RDMA device was removed"));
    case RDMA_CM_EVENT_ESTABLISHED:  // its first message was faster
    case RDMA_CM_EVENT_ADDR_CHANGE:
      return;
    default:
      return Break(peer, absl::UnavailableError(
                             absl::StrCat("connection manager: ", rdma_event_str(event.event))));
  }
}

// Somebody wants to connect.
void Endpoint::OnRequest(rdma_cm_id* id, absl::Span<const uint8_t> data) {
  const absl::Status accepted = Accept(&id, data);
  if (id == nullptr) return;  // a connection has it
  // The reason travels back, as far as it fits.
  const std::string why(accepted.message().substr(0, 120));
  rdma_reject(id, why.data(), static_cast<uint8_t>(why.size()));
  rdma_destroy_id(id);
}

// Sets *id_in to null if it is not the caller's any more.
absl::Status Endpoint::Accept(rdma_cm_id** id_in, absl::Span<const uint8_t> data) {
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
  auto peer = std::make_unique<Peer>();
  peer->id = next_peer_++;
  peer->state = Peer::State::kAccepting;
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
  by_queue_pair_[peer->connection->qp_number()] = peer->id;
  peers_[peer->id] = std::move(peer);
  return absl::OkStatus();
}

// News of a connection that is being made.
void Endpoint::OnAttempt(Peer* peer, const rdma_cm_event& event, absl::Span<const uint8_t> data) {
  const absl::Status next = ContinueAttempt(peer, event, data);
  if (next.ok()) return;
  if (peer->state == Peer::State::kAccepting || absl::IsInvalidArgument(next) ||
      absl::IsResourceExhausted(next)) {
    return Break(peer, next);
  }
  GiveUpAttempt(peer);
  peer->why = next;
  peer->retry_at = Clock::now() + ToClock(options_.connect_retry);
  ScheduleAt(peer->retry_at);
}

absl::Status Endpoint::ContinueAttempt(Peer* peer, const rdma_cm_event& event,
                                       absl::Span<const uint8_t> data) {
  switch (event.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      SetOptions(event.id);
      if (rdma_resolve_route(event.id, kResolveMs) == 0) return absl::OkStatus();
      return absl::UnavailableError(Error("rdma_resolve_route", errno));
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      return Request(peer);
    case RDMA_CM_EVENT_ESTABLISHED:
      return peer->state == Peer::State::kAccepting ? OnAccepted(peer) : OnConnected(peer, data);
    case RDMA_CM_EVENT_REJECTED: {
      // A peer of ours says why; nobody at that port says nothing of the kind.
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

absl::Status Endpoint::Request(Peer* peer) {
  rdma_cm_id* const id = peer->attempt;
  if (id == nullptr || id->verbs != shared_.memory->context()) {
    return absl::UnavailableError("the way there is over another device");
  }
  TANDEM_RETURN_IF_ERROR(AddReceives());
  auto made = RdmaConnection::New(shared_, id, &paths_);
  TANDEM_RETURN_IF_ERROR(made.status());
  peer->attempt = nullptr;
  peer->connection = *std::move(made);
  by_queue_pair_[peer->connection->qp_number()] = peer->id;
  uint8_t hello[kRdmaHelloBytes];
  EncodeRdmaHello(peer->connection->Grant(), hello);
  rdma_conn_param parameters = Parameters(hello);
  if (rdma_connect(id, &parameters) == 0) return absl::OkStatus();
  return absl::UnavailableError(Error("rdma_connect", errno));
}

absl::Status Endpoint::OnConnected(Peer* peer, absl::Span<const uint8_t> data) {
  TANDEM_ASSIGN_OR_RETURN(const RdmaHello theirs, DecodeRdmaHello(data));
  peer->connection->SetPeer(theirs);
  if (peer->state == Peer::State::kConnecting) peer->state = Peer::State::kOpen;
  peer->connected = true;
  peer->probe_at = After(options_.probe_interval);
  ScheduleAt(peer->probe_at);
  while (!peer->pending.empty()) peer->connection->QueueFrame(peer->pending.Pop());
  if (peer->state == Peer::State::kClosing) peer->connection->QueueGoodbye();
  return peer->connection->Open();
}

absl::Status Endpoint::OnAccepted(Peer* peer) {
  peer->state = Peer::State::kOpen;
  peer->connected = true;
  peer->probe_at = After(options_.probe_interval);
  ScheduleAt(peer->probe_at);
  return peer->connection->Open();
}

// ---- sending ----

absl::Status Endpoint::Send(PeerId id, Frame frame) {
  Peer* const peer = Find(id);
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
  if (peer->state == Peer::State::kConnecting) {
    peer->pending.Push(std::move(frame));
  } else {
    peer->connection->QueueFrame(std::move(frame));
    if (absl::Status sent = peer->connection->Pump(); !sent.ok()) {
      Break(peer, std::move(sent));
      return absl::NotFoundError(absl::StrCat("peer ", id, " is gone"));
    }
  }
  ++counters_.frames_sent;
  counters_.bytes_sent += bytes;
  return absl::OkStatus();
}

void Endpoint::Close(PeerId id) {
  Peer* const peer = Find(id);
  if (peer == nullptr || !peer->live()) return;
  if (peer->state == Peer::State::kConnecting && peer->pending.empty()) return Drop(id);
  const bool connected = peer->state == Peer::State::kOpen;
  peer->state = Peer::State::kClosing;
  peer->close_deadline = After(options_.linger);
  ScheduleAt(peer->close_deadline);
  if (!connected) return;  // goodbye when it is
  peer->connection->QueueGoodbye();
  if (absl::Status sent = peer->connection->Pump(); !sent.ok()) Break(peer, std::move(sent));
}

// ---- receiving ----

void Endpoint::DrainCompletions(int at_most) {
  ibv_wc completions[16];
  if (std::exchange(has_early_, false)) {
    worked_ = true;
    OnCompletion(early_);
  }
  for (int left = at_most; left > 0;) {
    const int count = ibv_poll_cq(shared_.cq, 16, completions);
    TANDEM_CHECK(count >= 0);
    for (int i = 0; i < count; ++i) OnCompletion(completions[i]);
    worked_ = worked_ || count > 0;
    if (count < 16) break;
    left -= count;
  }
  FlushReceives();
}

void Endpoint::OnCompletion(const ibv_wc& wc) {
  const auto known = by_queue_pair_.find(wc.qp_num);
  Peer* const peer = known == by_queue_pair_.end() ? nullptr : Find(known->second);
  if ((wc.wr_id & kReceiveBit) != 0) {
    OnReceive(wc, peer);
    PostReceive(wc.wr_id & ~kReceiveBit);
  } else if (peer != nullptr && !peer->gone) {
    absl::Status done = peer->connection->OnSent(wc, &deliveries_);
    for (RdmaDelivery& delivery : deliveries_) Deliver(peer, std::move(delivery));
    deliveries_.clear();
    if (!done.ok()) Break(peer, std::move(done));
  }
}

void Endpoint::OnReceive(const ibv_wc& wc, Peer* peer) {
  if (peer == nullptr || peer->gone) return;
  if (wc.status != IBV_WC_SUCCESS) {
    return Break(peer, absl::UnavailableError(
                           absl::StrCat("the connection broke: ", ibv_wc_status_str(wc.status))));
  }
  absl::Status taken;
  // It may speak before the connection manager has told us that it is connected.
  if (peer->state == Peer::State::kAccepting) taken = OnAccepted(peer);
  const uint64_t number = wc.wr_id & ~kReceiveBit;
  const uint8_t* const at = groups_[number / receives_per_peer_].bytes.data() +
                            number % receives_per_peer_ * options_.message_bytes;
  if (taken.ok()) {
    taken = peer->connection->OnReceived(wc, {at, options_.message_bytes}, &deliveries_);
  }
  for (RdmaDelivery& delivery : deliveries_) Deliver(peer, std::move(delivery));
  deliveries_.clear();
  if (taken.ok()) return;
  if (absl::IsInvalidArgument(taken)) {
    peer->reported = true;
    if (peer->state == Peer::State::kOpen) Emit(TransportEvent::Kind::kGarbage, peer->id, taken);
  }
  Break(peer, std::move(taken));
}

void Endpoint::Deliver(Peer* peer, RdmaDelivery delivery) {
  if (delivery.kind == RdmaDelivery::Kind::kGoodbye) return OnGoodbye(peer);
  if (peer->state != Peer::State::kOpen) return;
  peer->reported = true;
  const size_t bytes = delivery.frame.TotalBytes();
  absl::StatusOr<ParsedFrame> parsed = delivery.kind == RdmaDelivery::Kind::kGarbage
                                           ? std::move(delivery.why)
                                           : DecodeFrame(std::move(delivery.frame));
  if (!parsed.ok()) {
    return Emit(TransportEvent::Kind::kGarbage, peer->id, std::move(parsed).status());
  }
  ++counters_.frames_received;
  counters_.bytes_received += bytes;
  TransportEvent& event = events_->emplace_back();
  event.peer = peer->id;
  event.frame = *std::move(parsed);
}

// Nothing more comes from it. Whoever said goodbye first disconnects, once it has the other's.
void Endpoint::OnGoodbye(Peer* peer) {
  if (peer->state == Peer::State::kOpen) {
    if (peer->reported) Emit(TransportEvent::Kind::kPeerClosed, peer->id, absl::OkStatus());
    peer->connection->QueueGoodbye();
    if (absl::Status sent = peer->connection->Pump(); !sent.ok()) return Break(peer, sent);
  }
  if (peer->state == Peer::State::kClosing) {
    // All it had is here; what we had is there once our goodbye is acknowledged.
    peer->close_deadline = std::min(peer->close_deadline, After(options_.goodbye_wait));
  } else {
    peer->close_deadline = After(options_.goodbye_wait);
  }
  peer->closed_first = peer->state == Peer::State::kClosing;
  peer->state = Peer::State::kClosed;
  ScheduleAt(peer->close_deadline);
}

// Both goodbyes have arrived, and it is this end that has to disconnect.
bool Endpoint::Finished(const Peer& peer) const {
  const bool retired = leave_by_ != Clock::time_point::max();
  return peer.state == Peer::State::kClosed && (peer.closed_first || retired) &&
         peer.connection->goodbye_left();
}

void Endpoint::Emit(TransportEvent::Kind kind, PeerId id, absl::Status why) {
  TransportEvent& event = events_->emplace_back();
  event.kind = kind;
  event.peer = id;
  event.why = std::move(why);
}

void Endpoint::EmitWritable() {
  const auto low = static_cast<size_t>(options_.send_queue_frames / 2);
  for (size_t i = 0; i < blocked_.size();) {
    Peer* const peer = Find(blocked_[i]);
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

Peer* Endpoint::Find(PeerId id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

// Ends a peer without a goodbye; the next turn of Poll says so.
void Endpoint::Break(Peer* peer, absl::Status why) {
  if (std::exchange(peer->gone, true)) return;
  peer->why = std::move(why);
  gone_.push_back(peer->id);
}

void Endpoint::ReportGone() {
  for (size_t i = 0; i < gone_.size(); ++i) {
    Peer* const peer = Find(gone_[i]);
    if (peer == nullptr) continue;
    const bool lost = peer->reported && (peer->state == Peer::State::kOpen ||
                                         peer->state == Peer::State::kConnecting);
    if (lost) Emit(TransportEvent::Kind::kPeerLost, peer->id, peer->why);
    Drop(peer->id);
  }
  gone_.clear();
}

void Endpoint::Drop(PeerId id) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  Peer& peer = *found->second;
  if (peer.connection != nullptr) peer.connection->Disconnect();
  GiveUpAttempt(&peer);
  peers_.erase(found);
}

// ---- time ----

void Endpoint::Poll(absl::Duration timeout, std::vector<TransportEvent>* events) {
  events_ = events;
  const size_t before = events->size();
  const auto deadline = After(timeout);
  bool timed_out = false;
  for (;;) {
    const auto now = Clock::now();
    Turn();
    RunTimers(now);
    ReportGone();
    const bool woken = wake_requested_.load() && wake_requested_.exchange(false);
    if (woken || timed_out || events->size() > before) break;
    if (worked_) continue;
    timed_out = Wait(now, deadline);
  }
  events_ = nullptr;
}

void Endpoint::Turn() {
  worked_ = false;
  DrainCompletions(kCompletionsPerTurn);
  ReportGone();
  ids_.clear();
  for (const auto& [id, peer] : peers_) {
    if (!peer->connected || peer->gone) continue;
    if (absl::Status given = peer->connection->GiveBack(); !given.ok()) Break(peer.get(), given);
    if (Finished(*peer)) ids_.push_back(id);
  }
  for (const PeerId id : ids_) Drop(id);
  EmitWritable();
}

void Endpoint::Wake() {
  wake_requested_.store(true);
  shared_.waker->Wake();
}

// Looks for a completion without sleeping. It pays off where the other side answers at once and has
// a processor of its own; where it does not, it looks ever shorter.
bool Endpoint::Spin(Clock::time_point until) {
  const Clock::duration longest =
      processors_ < 2 ? Clock::duration::zero() : ToClock(options_.spin);
  if (spin_ <= longest / 16) {  // once in a while it is tried again
    spin_ += longest / 256;
    return false;
  }
  const auto end = std::min(until, Clock::now() + spin_);
  while (Clock::now() < end) {
    if (PollEarly()) {
      spin_ = std::min(longest, spin_ * 2);
      return true;
    }
    if (wake_requested_.load()) return true;
  }
  spin_ /= 2;
  return false;
}

// Takes a completion for the next turn.
bool Endpoint::PollEarly() {
  if (!has_early_) has_early_ = ibv_poll_cq(shared_.cq, 1, &early_) == 1;
  return has_early_;
}

// Waits for news until the deadline or the next timer. True if the deadline passed without any.
bool Endpoint::Wait(Clock::time_point now, Clock::time_point deadline) {
  if (deadline <= now) return true;
  Clock::time_point until = deadline;
  int timeout_ms = -1;
  int count = 1;
  if (BeginWait(&until)) {
    if (until != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
      timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
    }
    count = Look(timeout_ms);
  }
  shared_.waker->AfterSleep();
  return count <= 0 && deadline != Clock::time_point::max() && Clock::now() >= deadline;
}

bool Endpoint::BeginWait(Clock::time_point* until) {
  *until = std::min(*until, next_timer_);
  if (Spin(*until)) return false;
  shared_.waker->BeforeSleep();
  if (!armed_) {
    TANDEM_CHECK(ibv_req_notify_cq(shared_.cq, 0) == 0);
    armed_ = true;
  }
  // What came before the bell was armed, or was released after the last turn.
  if (PollEarly() || wake_requested_.load()) return false;
  for (const auto& [id, peer] : peers_) {
    if (!peer->connected || peer->gone) continue;
    if (absl::Status given = peer->connection->GiveBack(); !given.ok()) Break(peer.get(), given);
  }
  if (!gone_.empty()) return false;
  ++sleeps_;
  return true;
}

void Endpoint::EndWait(bool readable) {
  shared_.waker->AfterSleep();
  if (readable) next_look_ = Clock::time_point::min();
}

int Endpoint::Look(int timeout_ms) {
  epoll_event ready[4];
  const int count = epoll_wait(epoll_fd_, ready, 4, timeout_ms);
  for (int i = 0; i < count; ++i) {
    if (ready[i].data.u64 == kWakeKey) shared_.waker->Clear();
    if (ready[i].data.u64 == kCompletionKey) OnCompletionEvent();
    if (ready[i].data.u64 == kManagerKey) OnManagerEvents();
  }
  next_look_ = Clock::now() + kLookAround;
  return count;
}

void Endpoint::OnCompletionEvent() {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(channel_, &cq, &context) == 0) {
    armed_ = false;
    if (++unacked_ >= kUnackedEvents) ibv_ack_cq_events(shared_.cq, std::exchange(unacked_, 0));
  }
}

void Endpoint::RunTimers(Clock::time_point now) {
  if (now >= next_look_) Look(0);
  if (now < next_timer_) return;
  next_timer_ = Clock::time_point::max();
  ids_.clear();
  for (const auto& [id, peer] : peers_) ids_.push_back(id);
  for (const PeerId id : ids_) {
    if (Peer* const peer = Find(id); peer != nullptr && !peer->gone) TickPeer(peer, now);
  }
}

void Endpoint::TickPeer(Peer* peer, Clock::time_point now) {
  if (now >= peer->close_deadline) return Drop(peer->id);
  ScheduleAt(peer->close_deadline);
  if (now >= peer->probe_at) {
    if (absl::Status probed = peer->connection->Probe(); !probed.ok()) return Break(peer, probed);
    peer->probe_at = now + ToClock(options_.probe_interval);
  }
  ScheduleAt(peer->probe_at);
  if (peer->connected || peer->state == Peer::State::kAccepting) return;
  if (now >= peer->connect_deadline) {
    return Break(peer, absl::DeadlineExceededError(absl::StrCat(
                           "no answer from ", peer->address, " within ",
                           absl::FormatDuration(options_.connect_deadline),
                           peer->why.ok() ? "" : absl::StrCat(": ", peer->why.message()))));
  }
  if (now >= peer->retry_at) {
    if (absl::Status started = StartAttempt(peer); !started.ok()) {
      GiveUpAttempt(peer);
      peer->why = std::move(started);
      peer->retry_at = now + ToClock(options_.connect_retry);
    }
  }
  ScheduleAt(std::min(peer->connect_deadline, peer->retry_at));
}

// ---- leaving ----

std::shared_ptr<RdmaContextImpl> Endpoint::Retire() {
  rdma_destroy_id(std::exchange(listener_, nullptr));
  std::vector<PeerId> all;
  for (const auto& [id, peer] : peers_) all.push_back(id);
  for (const PeerId id : all) {
    Close(id);
    // Nobody heard of those that only connected.
    Peer* const peer = Find(id);
    if (peer != nullptr && peer->state == Peer::State::kAccepting) Drop(id);
  }
  leave_by_ = After(options_.linger);
  return std::static_pointer_cast<RdmaContextImpl>(std::exchange(options_.context, nullptr));
}

bool Endpoint::GoOn() {
  std::vector<TransportEvent> ignored;
  Poll(kGoOnFor, &ignored);
  return !peers_.empty() && Clock::now() < leave_by_;
}

RdmaCounters Endpoint::rdma_counters() const {
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

class RdmaTransportImpl final : public RdmaTransport {
 public:
  explicit RdmaTransportImpl(const RdmaOptions& options)
      : endpoint_(std::make_unique<Endpoint>(options)) {}
  ~RdmaTransportImpl() override {
    if (!started_) return;
    const std::shared_ptr<RdmaContextImpl> context = endpoint_->Retire();
    if (!endpoint_->empty()) context->SeeOff(std::move(endpoint_));
  }
  absl::Status Start() {
    TANDEM_RETURN_IF_ERROR(endpoint_->Start());
    started_ = true;
    return absl::OkStatus();
  }

  Buffer Alloc(size_t bytes) override { return endpoint_->Alloc(bytes); }
  const std::string& address() const override { return endpoint_->address(); }
  absl::StatusOr<PeerId> Connect(const std::string& address) override {
    return endpoint_->Connect(address);
  }
  absl::Status Send(PeerId id, Frame frame) override {
    return endpoint_->Send(id, std::move(frame));
  }
  void Close(PeerId id) override { endpoint_->Close(id); }
  void Poll(absl::Duration timeout, std::vector<TransportEvent>* events) override {
    endpoint_->Poll(timeout, events);
  }
  void Wake() override { endpoint_->Wake(); }
  int wait_fd() const override { return endpoint_->wait_fd(); }
  bool BeginWait(Clock::time_point* until) override { return endpoint_->BeginWait(until); }
  void EndWait(bool readable) override { endpoint_->EndWait(readable); }
  TransportCounters counters() const override { return endpoint_->counters(); }
  RdmaCounters rdma_counters() const override { return endpoint_->rdma_counters(); }
  const std::string& device() const override { return endpoint_->device(); }

 private:
  std::unique_ptr<Endpoint> endpoint_;
  bool started_ = false;
};

absl::Status CheckOptions(const RdmaOptions& options) {
  if (options.context == nullptr) return absl::InvalidArgumentError("an RdmaContext is required");
  if (options.send_queue_frames < 1 || options.max_peers < 1 || options.max_part_bytes < 1 ||
      options.max_part_bytes > kMaxPartBytes || options.send_depth < 32 ||
      options.send_depth > 16384 || options.credits > 16384 || options.ack_timeout < 1 ||
      options.ack_timeout > 31) {
    return absl::InvalidArgumentError(
        absl::StrCat("send_queue_frames ", options.send_queue_frames, ", max_peers ",
                     options.max_peers, ", max_part_bytes ", options.max_part_bytes,
                     ", send_depth ", options.send_depth, ", credits ", options.credits));
  }
  RdmaHello hello;
  hello.small_slots = static_cast<uint16_t>(options.small_slots);
  hello.large_slots = static_cast<uint16_t>(options.large_slots);
  hello.small_slot_bytes = static_cast<uint32_t>(options.small_slot_bytes);
  hello.large_slot_bytes = static_cast<uint32_t>(options.large_slot_bytes);
  hello.credits = static_cast<uint16_t>(options.credits);
  hello.message_bytes = static_cast<uint32_t>(options.message_bytes);
  uint8_t bytes[kRdmaHelloBytes];
  EncodeRdmaHello(hello, bytes);
  return DecodeRdmaHello(bytes).status();  // what a peer would refuse
}

}  // namespace

absl::StatusOr<std::unique_ptr<RdmaTransport>> NewRdmaTransport(const RdmaOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(options));
  auto transport = std::make_unique<RdmaTransportImpl>(options);
  TANDEM_RETURN_IF_ERROR(transport->Start());
  return transport;
}

}  // namespace tandem
