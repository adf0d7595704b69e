#include "transport/zmq_transport.h"

#include <sys/epoll.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/owned_fd.h"
#include "base/status_macros.h"
#include "base/wake_fd.h"
#include "transport/zmq_parts.h"
#include "transport/zmq_sockets.h"

namespace tandem {
namespace {

using Clock = WaitableTransport::Clock;

constexpr int kFramesPerTurn = 64;  // of one socket, so that a fast sender starves nobody
// libzmq hands out parts of up to its 8 KiB read batch inside that batch: at odd addresses, and
// keeping all of it alive. Those are copied; larger ones have memory of their own.
constexpr size_t kCopiedBytes = 8192;
// As a ROUTER numbers peers: a zero byte, a big-endian number.
constexpr size_t kRoutingIdBytes = 5;
constexpr auto kProbeDelay = std::chrono::milliseconds(5);
constexpr auto kProbeSpacing = std::chrono::milliseconds(50);

// Keys of the epoll set: a peer number times two, plus one for the peer's monitor.
constexpr uint64_t kWakeKey = 0, kRouterKey = 2, kRouterMonitorKey = 3;
constexpr PeerId kFirstOutgoing = 2;
constexpr PeerId kFirstIncoming = PeerId{1} << 32;  // plus the number the ROUTER gave

Clock::duration ToClock(absl::Duration d) {
  return std::chrono::duration_cast<Clock::duration>(absl::ToChronoNanoseconds(d));
}

// The time point `d` from now; far ones are "never".
Clock::time_point After(absl::Duration d) {
  return d > absl::Hours(24 * 365) ? Clock::time_point::max() : Clock::now() + ToClock(d);
}

struct Peer {
  enum class State {
    kConnecting,  // frames wait in `pending`
    kOpen,
    kClosing,  // we said goodbye and wait for theirs
    kClosed,   // incoming only: goodbyes said, libzmq still has the connection
  };
  PeerId id = 0;
  State state = State::kOpen;
  bool gone = false;     // a send failed; reported once what it sent is read
  bool dirty = false;    // its DEALER may hold frames that epoll will not announce
  bool blocked = false;  // a Send was refused: the user waits for kWritable
  bool spoke = false;    // sent something valid, so an answer to our goodbye can be expected
  std::shared_ptr<Flow> flow;
  Clock::time_point close_deadline = Clock::time_point::max();
  // Outgoing peers only.
  void* dealer = nullptr;
  void* monitor = nullptr;
  std::string address;
  std::deque<SendRecord*> pending;
  Clock::time_point connect_deadline = Clock::time_point::max();
  Clock::time_point retry_at = Clock::time_point::max();

  bool incoming() const { return id >= kFirstIncoming; }
  bool closing() const { return close_deadline != Clock::time_point::max(); }
  bool live() const {
    return !gone && !closing() && (state == State::kConnecting || state == State::kOpen);
  }
};

struct Received {
  PeerId incoming = 0;  // from the ROUTER; 0 if the routing id is not one it gave
  Frame frame;
  int parts = 0;  // as sent; the frame keeps at most kMaxFrameParts
};

class ZmqTransport final : public WaitableTransport {
 public:
  explicit ZmqTransport(const ZmqOptions& options);
  ~ZmqTransport() override;
  absl::Status Bind();
  void Unbind();

  Buffer Alloc(size_t bytes) override { return heap_.Alloc(bytes); }
  const std::string& address() const override { return address_; }
  absl::StatusOr<PeerId> Connect(const std::string& address) override;
  absl::Status Send(PeerId id, Frame frame) override;
  void Close(PeerId id) override;
  void Poll(absl::Duration timeout, std::vector<TransportEvent>* events) override;
  void Wake() override;
  TransportCounters counters() const override { return counters_; }

  int wait_fd() const override { return epoll_fd_.get(); }
  bool BeginWait(Clock::time_point* until) override {
    *until = std::min(*until, next_timer_);
    return !router_dirty_ && dirty_.empty() && !wake_requested_.load();
  }
  void EndWait(bool) override {}

 private:
  // Sockets.
  absl::Status NewMonitoredSocket(int type, int zmq_events, uint64_t key, void** socket,
                                  void** monitor);
  void Watch(void* socket, uint64_t key);
  void CloseSocket(void* socket, void* monitor, int linger_ms);
  absl::Status OpenDealer(Peer* peer);

  // Sending.
  void Push(Peer* peer, Frame frame);
  bool Transmit(Peer* peer, SendRecord* record);
  bool SendRoutingId(PeerId id);
  void SendParts(void* socket, SendRecord* record);
  void SayGoodbye(Peer* peer);
  void MarkDirty(Peer* peer);

  // Receiving.
  void DrainDirty();
  void DrainRouter();
  void DrainPeer(PeerId id, int at_most);
  bool Receive(void* socket, bool routed, Received* out);
  bool ReceiveRoutingId(void* socket, Received* out);
  int ReceivePart(void* socket, Buffer* part);
  void Handle(PeerId id, Received received);
  void OnGoodbye(Peer* peer);

  // Connections.
  Peer* Find(PeerId id);
  Peer* FindOrAddIncoming(PeerId id);
  void OnRouterMonitor();
  void OnPeerMonitor(PeerId id);
  void OnConnected(Peer* peer);
  void Lose(PeerId id, absl::Status why);
  void Drop(PeerId id, absl::Duration linger);
  void ProbeIncoming();

  // Time.
  void RunTimers(Clock::time_point now);
  void TickPeer(Peer* peer, Clock::time_point now);
  void ScheduleAt(Clock::time_point at) { next_timer_ = std::min(next_timer_, at); }
  bool Wait(Clock::time_point now, Clock::time_point deadline);
  void OnReady(uint64_t key);
  void EmitWritable();
  void Emit(TransportEvent::Kind kind, PeerId id, absl::Status why);
  bool AnyClosing() const;

  const ZmqOptions options_;
  HeapBufferSource heap_;
  RecyclePool<SendRecord>::Owner records_ = RecyclePool<SendRecord>::New();
  RecyclePool<ReceivedPart>::Owner parts_ = RecyclePool<ReceivedPart>::New();
  const std::shared_ptr<WakeFd> waker_ = std::make_shared<WakeFd>();
  std::atomic<bool> wake_requested_{false};
  const OwnedFd epoll_fd_;
  Frame ping_, goodbye_;

  void* router_ = nullptr;
  void* router_monitor_ = nullptr;
  std::string address_, bound_;
  zmq_msg_t routing_id_;           // scratch of Receive
  ReceivedPart* spare_ = nullptr;  // scratch of ReceivePart

  PeerId next_outgoing_ = kFirstOutgoing;
  absl::flat_hash_map<PeerId, std::unique_ptr<Peer>> peers_;
  bool router_dirty_ = false;
  std::vector<PeerId> dirty_;    // DEALERs that may hold frames
  std::vector<PeerId> gone_;     // incoming peers whose connection is gone, not yet reported
  std::vector<PeerId> blocked_;  // peers whose user waits for kWritable
  std::vector<PeerId> scratch_ids_;
  Clock::time_point next_timer_ = Clock::time_point::min();
  Clock::time_point next_ping_ = Clock::time_point::min();
  Clock::time_point last_ping_ = Clock::time_point::min();
  std::vector<TransportEvent>* events_ = nullptr;  // sink, during Poll
  bool waited_ = false;                            // during Poll: after a wait
  bool ending_ = false;  // in the destructor: the last goodbye ends a Poll
  TransportCounters counters_;
};

// ---- life ----

ZmqTransport::ZmqTransport(const ZmqOptions& options)
    : options_(options), epoll_fd_(epoll_create1(EPOLL_CLOEXEC)) {
  TANDEM_CHECK(epoll_fd_.valid());
  zmq_msg_init(&routing_id_);
  spare_ = parts_->Take();
  FrameHeader header;
  header.sender = options.self;
  header.incarnation = options.incarnation;
  header.kind = FrameKind::kPing;
  ping_ = EncodeDataFrame(heap_, header, {}, Buffer(), Buffer());
  header.kind = FrameKind::kGoodbye;
  goodbye_ = EncodeDataFrame(heap_, header, {}, Buffer(), Buffer());
  epoll_event wake = {.events = EPOLLIN, .data = {.u64 = kWakeKey}};
  TANDEM_CHECK(epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, waker_->fd(), &wake) == 0);
}

ZmqTransport::~ZmqTransport() {
  ending_ = true;
  for (const auto& [id, peer] : peers_) scratch_ids_.push_back(id);
  for (const PeerId id : std::exchange(scratch_ids_, {})) Close(id);
  const auto deadline = After(options_.goodbye_wait);
  std::vector<TransportEvent> ignored;
  while (AnyClosing() && Clock::now() < deadline) {
    Poll(absl::FromChrono(deadline - Clock::now()), &ignored);
    ignored.clear();
  }
  for (const auto& [id, peer] : peers_) scratch_ids_.push_back(id);
  for (const PeerId id : std::exchange(scratch_ids_, {})) Drop(id, options_.linger);
  if (router_ != nullptr) {
    Unbind();
    CloseSocket(router_, router_monitor_, Milliseconds(options_.linger));
  }
  parts_->Give(spare_);
  zmq_msg_close(&routing_id_);
}

// Frees the address before the destructor returns. libzmq closes in the background; until then
// others could still connect to an endpoint that no longer exists.
void ZmqTransport::Unbind() {
  if (zmq_unbind(router_, bound_.c_str()) != 0) return;  // it was never bound
  const auto deadline = After(options_.linger);
  bool closed = false;
  while (!closed && Clock::now() < deadline) {
    zmq_pollitem_t item = {router_monitor_, 0, ZMQ_POLLIN, 0};
    zmq_poll(&item, 1, 10);
    ForMonitorEvents(router_monitor_, [&closed](int event) {
      closed = event == ZMQ_EVENT_CLOSED;
      return !closed;
    });
  }
}

bool ZmqTransport::AnyClosing() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const auto& p) { return p.second->closing(); });
}

absl::Status ZmqTransport::Bind() {
  TANDEM_RETURN_IF_ERROR(NewMonitoredSocket(ZMQ_ROUTER, ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED,
                                            kRouterKey, &router_, &router_monitor_));
  const int on = 1;
  TANDEM_CHECK(zmq_setsockopt(router_, ZMQ_ROUTER_MANDATORY, &on, sizeof on) == 0);
  if (zmq_bind(router_, options_.bind.c_str()) != 0) {
    const bool in_use = zmq_errno() == EADDRINUSE || zmq_errno() == EACCES;
    const std::string what = absl::StrCat("bind ", options_.bind, ": ", ZmqError());
    return in_use ? absl::UnavailableError(what) : absl::InvalidArgumentError(what);
  }
  char bound[1024];
  size_t size = sizeof bound;
  TANDEM_CHECK(zmq_getsockopt(router_, ZMQ_LAST_ENDPOINT, bound, &size) == 0);
  address_ = bound_ = bound;
  if (!absl::StartsWith(address_, "tcp://")) return absl::OkStatus();
  const std::string port = address_.substr(address_.rfind(':'));
  if (!options_.advertised_host.empty()) {
    address_ = absl::StrCat("tcp://", options_.advertised_host, port);
  } else if (absl::StartsWith(address_, "tcp://0.0.0.0:")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bind ", options_.bind, " takes all hosts: others need an advertised host to connect to"));
  }
  return absl::OkStatus();
}

// ---- sockets ----

// Makes a socket and its monitor and adds them to the epoll set as `key` and `key` + 1.
absl::Status ZmqTransport::NewMonitoredSocket(int type, int zmq_events, uint64_t key, void** socket,
                                              void** monitor) {
  TANDEM_ASSIGN_OR_RETURN(void* const made, NewZmqSocket(options_, type));
  const absl::StatusOr<void*> watcher = NewZmqMonitor(*options_.context, made, zmq_events);
  if (!watcher.ok()) {
    zmq_close(made);
    return watcher.status();
  }
  *socket = made;
  *monitor = *watcher;
  Watch(*socket, key);
  Watch(*monitor, key + 1);
  return absl::OkStatus();
}

void ZmqTransport::Watch(void* socket, uint64_t key) {
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = key}};
  TANDEM_CHECK(epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, SocketFd(socket), &event) == 0);
}

void ZmqTransport::CloseSocket(void* socket, void* monitor, int linger_ms) {
  for (void* const s : {socket, monitor}) {
    epoll_ctl(epoll_fd_.get(), EPOLL_CTL_DEL, SocketFd(s), nullptr);
  }
  zmq_socket_monitor(socket, nullptr, 0);
  zmq_close(monitor);
  zmq_setsockopt(socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
  zmq_close(socket);
}

// (Re)starts the connection attempt of a peer.
absl::Status ZmqTransport::OpenDealer(Peer* peer) {
  if (peer->dealer != nullptr) CloseSocket(peer->dealer, peer->monitor, 0);
  peer->dealer = peer->monitor = nullptr;
  peer->retry_at = Clock::time_point::max();
  TANDEM_RETURN_IF_ERROR(NewMonitoredSocket(
      ZMQ_DEALER,
      ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_CONNECT_RETRIED | ZMQ_EVENT_DISCONNECTED,
      peer->id * 2, &peer->dealer, &peer->monitor));
  if (zmq_connect(peer->dealer, peer->address.c_str()) == 0) {
    MarkDirty(peer);  // its monitor must be read once, see NewZmqMonitor
    return absl::OkStatus();
  }
  const absl::Status malformed =
      absl::InvalidArgumentError(absl::StrCat("connect ", peer->address, ": ", ZmqError()));
  CloseSocket(peer->dealer, peer->monitor, 0);
  peer->dealer = peer->monitor = nullptr;
  return malformed;
}

absl::StatusOr<PeerId> ZmqTransport::Connect(const std::string& address) {
  if (!absl::StartsWith(address, "tcp://") && !absl::StartsWith(address, "ipc://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("connect ", address, ": want tcp://host:port or ipc://path"));
  }
  auto peer = std::make_unique<Peer>();
  peer->id = next_outgoing_;
  peer->state = Peer::State::kConnecting;
  peer->address = address;
  peer->flow = std::make_shared<Flow>(options_.send_queue_frames, waker_);
  peer->connect_deadline = After(options_.connect_deadline);
  TANDEM_RETURN_IF_ERROR(OpenDealer(peer.get()));
  ScheduleAt(peer->connect_deadline);
  peers_[next_outgoing_] = std::move(peer);
  return next_outgoing_++;
}

// ---- sending ----

absl::Status ZmqTransport::Send(PeerId id, Frame frame) {
  Peer* const peer = Find(id);
  if (peer == nullptr || !peer->live()) {
    return absl::NotFoundError(absl::StrCat("no peer ", id, " (any more)"));
  }
  if (!peer->flow->HasRoom()) {
    if (!std::exchange(peer->blocked, true)) blocked_.push_back(id);
    return absl::ResourceExhaustedError(
        absl::StrCat("peer ", id, ": ", options_.send_queue_frames, " frames are queued"));
  }
  const size_t bytes = frame.TotalBytes();
  Push(peer, std::move(frame));
  if (peer->gone) return absl::NotFoundError(absl::StrCat("peer ", id, " is gone"));
  ++counters_.frames_sent;
  counters_.bytes_sent += bytes;
  return absl::OkStatus();
}

// Sends, or queues while connecting. Sets `gone` if the connection is no more.
void ZmqTransport::Push(Peer* peer, Frame frame) {
  peer->flow->Add();
  SendRecord* const record = records_->Take();
  record->frame = std::move(frame);
  record->flow = peer->flow;
  if (peer->state == Peer::State::kConnecting) {
    peer->pending.push_back(record);
  } else if (!Transmit(peer, record) && !std::exchange(peer->gone, true)) {
    gone_.push_back(peer->id);
  }
}

bool ZmqTransport::Transmit(Peer* peer, SendRecord* record) {
  MarkDirty(peer);  // sending makes libzmq take in events, which epoll then no longer announces
  if (peer->incoming() && !SendRoutingId(peer->id)) {
    record->Release();
    return false;
  }
  SendParts(peer->incoming() ? router_ : peer->dealer, record);
  return true;
}

bool ZmqTransport::SendRoutingId(PeerId id) {
  zmq_msg_t message;
  zmq_msg_init_size(&message, kRoutingIdBytes);  // small enough to live in the message itself
  auto* const at = static_cast<uint8_t*>(zmq_msg_data(&message));
  const uint64_t number = id - kFirstIncoming;
  at[0] = 0;
  for (int i = 1; i < 5; ++i) at[i] = static_cast<uint8_t>(number >> (8 * (4 - i)));
  if (zmq_msg_send(&message, router_, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0) return true;
  zmq_msg_close(&message);
  return false;
}

// A part that cannot be sent is dropped with the rest of its frame: libzmq has lost the connection,
// and says so to the monitor or to the next probe.
void ZmqTransport::SendParts(void* socket, SendRecord* record) {
  const int parts = record->frame.parts;
  record->parts_left.store(parts, std::memory_order_release);
  for (int i = 0; i < parts; ++i) {
    Buffer& part = record->frame.part[i];
    zmq_msg_t message;
    TANDEM_CHECK(zmq_msg_init_data(&message, part.mutable_data(), part.size(),
                                   &SendRecord::FreePart, record) == 0);
    const int flags = ZMQ_DONTWAIT | (i + 1 < parts ? ZMQ_SNDMORE : 0);
    HandOver(record);
    if (zmq_msg_send(&message, socket, flags) < 0) zmq_msg_close(&message);
  }
}

void ZmqTransport::SayGoodbye(Peer* peer) { Push(peer, goodbye_); }

void ZmqTransport::MarkDirty(Peer* peer) {
  if (peer->incoming()) {
    router_dirty_ = true;
  } else if (!std::exchange(peer->dirty, true)) {
    dirty_.push_back(peer->id);
  }
}

void ZmqTransport::Close(PeerId id) {
  Peer* const peer = Find(id);
  if (peer == nullptr || !peer->live()) return;
  const bool connecting = peer->state == Peer::State::kConnecting;
  if (connecting && peer->pending.empty()) return Drop(id, absl::ZeroDuration());
  SayGoodbye(peer);
  if (peer->incoming() && !peer->spoke) {
    peer->state = Peer::State::kClosed;
    return;
  }
  // A peer that is still connecting keeps its state: it may answer until the linger ends.
  peer->close_deadline = After(options_.goodbye_wait);
  ScheduleAt(peer->close_deadline);
  if (!connecting) peer->state = Peer::State::kClosing;
}

// ---- receiving ----

void ZmqTransport::Poll(absl::Duration timeout, std::vector<TransportEvent>* events) {
  events_ = events;
  waited_ = false;
  const size_t before = events->size();
  const auto deadline = After(timeout);
  bool timed_out = false;
  for (;;) {
    DrainDirty();
    EmitWritable();
    const auto now = Clock::now();
    RunTimers(now);
    const bool woken = wake_requested_.load() && wake_requested_.exchange(false);
    if (woken || timed_out || events->size() > before || (ending_ && !AnyClosing())) break;
    if (router_dirty_ || !dirty_.empty()) continue;  // a reply or a probe was sent meanwhile
    timed_out = Wait(now, deadline);
  }
  events_ = nullptr;
}

void ZmqTransport::Wake() {
  wake_requested_.store(true);
  waker_->Wake();
}

// Waits for news until the deadline or the next timer. True if the deadline passed without any.
bool ZmqTransport::Wait(Clock::time_point now, Clock::time_point deadline) {
  const auto until = std::min(deadline, next_timer_);
  int timeout_ms = -1;
  if (until != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
    timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
  }
  epoll_event ready[64];
  waited_ = true;
  const int count = epoll_wait(epoll_fd_.get(), ready, 64, timeout_ms);
  for (int i = 0; i < count; ++i) OnReady(ready[i].data.u64);
  return count <= 0 && deadline != Clock::time_point::max() && Clock::now() >= deadline;
}

void ZmqTransport::OnReady(uint64_t key) {
  if (key == kWakeKey) {
    waker_->Clear();
  } else if (key == kRouterKey) {
    router_dirty_ = true;
  } else if (key == kRouterMonitorKey) {
    OnRouterMonitor();
  } else if (key % 2 == 1) {
    OnPeerMonitor(key / 2);
  } else if (Peer* const peer = Find(key / 2); peer != nullptr) {
    MarkDirty(peer);
  }
}

void ZmqTransport::DrainDirty() {
  if (router_dirty_) DrainRouter();
  if (!router_dirty_) {  // everything is read, so no frame of a peer that is gone is left
    for (const PeerId id : gone_) Lose(id, absl::UnavailableError("the connection is closed"));
    gone_.clear();
  }
  scratch_ids_.swap(dirty_);
  for (const PeerId id : scratch_ids_) {
    if (Peer* const peer = Find(id); peer != nullptr) {
      peer->dirty = false;
      DrainPeer(id, kFramesPerTurn);
    }
  }
  scratch_ids_.clear();
}

// Finding a socket empty costs a system call, and the next Poll has to ask again anyway. So after a
// wait one frame is enough; a Poll that finds frames before it waits reads as many as it may.
void ZmqTransport::DrainRouter() {
  Received received;
  router_dirty_ = false;  // replies that are sent below set it again
  for (int left = kFramesPerTurn; left > 0; --left) {
    if (!Receive(router_, /*routed=*/true, &received)) return;
    Handle(received.incoming, std::move(received));
    if (waited_ && !events_->empty()) break;
  }
  router_dirty_ = true;
}

void ZmqTransport::DrainPeer(PeerId id, int at_most) {
  Received received;
  for (Peer* peer = Find(id); peer != nullptr; peer = Find(id)) {  // a goodbye ends it
    if (at_most-- == 0) return MarkDirty(peer);
    if (!Receive(peer->dealer, /*routed=*/false, &received)) return;
    Handle(id, std::move(received));
    if (waited_ && !events_->empty()) at_most = std::min(at_most, 0);
  }
}

// Reads one message, if there is one.
bool ZmqTransport::Receive(void* socket, bool routed, Received* out) {
  *out = Received();
  if (routed && !ReceiveRoutingId(socket, out)) return false;
  int more = routed ? zmq_msg_more(&routing_id_) : 1;
  while (more > 0) {
    Buffer part;
    more = ReceivePart(socket, &part);
    if (more < 0) return false;  // only before the first part: messages arrive whole
    if (out->parts < kMaxFrameParts) out->frame.part[out->parts] = std::move(part);
    ++out->parts;
  }
  out->frame.parts = std::min(out->parts, kMaxFrameParts);
  return true;
}

bool ZmqTransport::ReceiveRoutingId(void* socket, Received* out) {
  if (zmq_msg_recv(&routing_id_, socket, ZMQ_DONTWAIT) < 0) return false;
  const auto* const at = static_cast<const uint8_t*>(zmq_msg_data(&routing_id_));
  if (zmq_msg_size(&routing_id_) == kRoutingIdBytes && at[0] == 0) {
    uint64_t number = 0;
    for (int i = 1; i < 5; ++i) number = number << 8 | at[i];
    out->incoming = kFirstIncoming + number;
  }
  return true;
}

// -1: nothing there; 0: the last part of the message; 1: more follow.
int ZmqTransport::ReceivePart(void* socket, Buffer* part) {
  zmq_msg_t* const message = &spare_->message;
  if (zmq_msg_recv(message, socket, ZMQ_DONTWAIT) < 0) return -1;
  const int more = zmq_msg_more(message);
  auto* const data = static_cast<uint8_t*>(zmq_msg_data(message));
  const size_t size = zmq_msg_size(message);
  if (size == 0) return more;
  if (size <= kCopiedBytes || reinterpret_cast<uintptr_t>(data) % 8 != 0) {
    *part = CopyToBuffer(heap_, {data, size});
    zmq_msg_close(message);
    zmq_msg_init(message);
  } else {
    *part = Buffer(spare_, data, size);
    spare_ = parts_->Take();
  }
  return more;
}

void ZmqTransport::Handle(PeerId id, Received received) {
  if (id == 0) {
    return Emit(TransportEvent::Kind::kGarbage, 0,
                absl::InvalidArgumentError("message of a peer that chose its own routing id"));
  }
  Peer* const peer = id >= kFirstIncoming ? FindOrAddIncoming(id) : Find(id);
  const bool open = peer->state == Peer::State::kOpen;
  const size_t bytes = received.frame.TotalBytes();
  absl::StatusOr<ParsedFrame> parsed =
      received.parts > kMaxFrameParts
          ? absl::InvalidArgumentError(absl::StrCat("message of ", received.parts,
                                                    " parts, a frame has 1 to ", kMaxFrameParts))
          : DecodeFrame(std::move(received.frame));
  if (!parsed.ok()) {
    if (open) Emit(TransportEvent::Kind::kGarbage, id, std::move(parsed).status());
    return;
  }
  peer->spoke = true;
  if (parsed->header.kind == FrameKind::kGoodbye) return OnGoodbye(peer);
  if (parsed->header.kind == FrameKind::kPing || !open) return;
  ++counters_.frames_received;
  counters_.bytes_received += bytes;
  TransportEvent& event = events_->emplace_back();
  event.peer = id;
  event.frame = *std::move(parsed);
}

void ZmqTransport::OnGoodbye(Peer* peer) {
  if (peer->state == Peer::State::kOpen) {
    Emit(TransportEvent::Kind::kPeerClosed, peer->id, absl::OkStatus());
    SayGoodbye(peer);
  }
  peer->state = Peer::State::kClosed;
  peer->close_deadline = Clock::time_point::max();
  // The peer has stopped reading frames, so only our goodbye is worth sending. And it may be gone
  // already, which libzmq would need the whole linger to find out.
  if (!peer->incoming()) Drop(peer->id, options_.goodbye_wait);
}

void ZmqTransport::Emit(TransportEvent::Kind kind, PeerId id, absl::Status why) {
  TransportEvent& event = events_->emplace_back();
  event.kind = kind;
  event.peer = id;
  event.why = std::move(why);
}

void ZmqTransport::EmitWritable() {
  for (size_t i = 0; i < blocked_.size();) {
    Peer* const peer = Find(blocked_[i]);
    if (peer != nullptr && !peer->flow->Unblock()) {
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

// ---- connections ----

Peer* ZmqTransport::Find(PeerId id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

Peer* ZmqTransport::FindOrAddIncoming(PeerId id) {
  std::unique_ptr<Peer>& peer = peers_[id];
  if (peer == nullptr) {
    peer = std::make_unique<Peer>();
    peer->id = id;
    peer->flow = std::make_shared<Flow>(options_.send_queue_frames, waker_);
  }
  return peer.get();
}

// An incoming connection has ended; which one, only a send to each can tell. The monitor reports it
// a moment before the ROUTER knows, so the probe is sent a little later. If that was too soon, the
// regular probe finds it.
void ZmqTransport::OnRouterMonitor() {
  ForMonitorEvents(router_monitor_, [this](int) {
    next_ping_ = std::min(next_ping_, std::max(Clock::now() + kProbeDelay,
                                               last_ping_ + Clock::duration(kProbeSpacing)));
    ScheduleAt(next_ping_);
    return true;
  });
}

void ZmqTransport::OnPeerMonitor(PeerId id) {
  Peer* peer = Find(id);
  if (peer == nullptr) return;
  ForMonitorEvents(peer->monitor, [&](int event) {
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
      OnConnected(peer);
    } else if (event == ZMQ_EVENT_CONNECT_RETRIED && peer->state == Peer::State::kConnecting) {
      peer->retry_at = Clock::now() + ToClock(options_.connect_retry);
      ScheduleAt(peer->retry_at);
    } else if (event == ZMQ_EVENT_DISCONNECTED && peer->state != Peer::State::kConnecting) {
      waited_ = false;
      absl::Status why =
          absl::UnavailableError(absl::StrCat("the connection to ", peer->address, " broke"));
      DrainPeer(id, options_.send_queue_frames + 1);  // all that libzmq can have stored
      Lose(id, std::move(why));                       // unless a goodbye was among it
      return false;
    }
    return true;
  });
}

void ZmqTransport::OnConnected(Peer* peer) {
  peer->state = peer->closing() ? Peer::State::kClosing : Peer::State::kOpen;
  for (SendRecord* const record : std::exchange(peer->pending, {})) Transmit(peer, record);
}

// Ends a peer without a goodbye.
void ZmqTransport::Lose(PeerId id, absl::Status why) {
  Peer* const peer = Find(id);
  if (peer == nullptr) return;
  if (peer->state != Peer::State::kClosed && !peer->closing()) {
    Emit(TransportEvent::Kind::kPeerLost, id, std::move(why));
  }
  Drop(id, absl::ZeroDuration());
}

void ZmqTransport::Drop(PeerId id, absl::Duration linger) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  Peer& peer = *found->second;
  for (SendRecord* const record : peer.pending) record->Release();
  if (peer.dealer != nullptr) CloseSocket(peer.dealer, peer.monitor, Milliseconds(linger));
  peers_.erase(found);
}

void ZmqTransport::ProbeIncoming() {
  const int too_many = options_.send_queue_frames + 16;  // a peer that reads nothing
  for (const auto& [id, peer] : peers_) {
    if (peer->incoming() && !peer->gone && peer->flow->in_flight() < too_many) {
      Push(peer.get(), ping_);
    }
  }
}

// ---- time ----

void ZmqTransport::RunTimers(Clock::time_point now) {
  if (now < next_timer_) return;
  next_timer_ = Clock::time_point::max();
  if (now >= next_ping_) {
    ProbeIncoming();
    last_ping_ = now;
    next_ping_ = now + ToClock(options_.ping_interval);
  }
  ScheduleAt(next_ping_);
  scratch_ids_.clear();
  for (const auto& [id, peer] : peers_) scratch_ids_.push_back(id);
  for (const PeerId id : scratch_ids_) TickPeer(Find(id), now);
}

void ZmqTransport::TickPeer(Peer* peer, Clock::time_point now) {
  if (now >= peer->close_deadline) {
    // An incoming peer stays known, so that a late frame of it is not taken for one of a new peer.
    peer->close_deadline = Clock::time_point::max();
    peer->state = Peer::State::kClosed;
    if (!peer->incoming()) Drop(peer->id, options_.linger);
    return;
  }
  ScheduleAt(peer->close_deadline);
  if (peer->state != Peer::State::kConnecting) return;
  if (now >= peer->connect_deadline) {
    return Lose(peer->id, absl::DeadlineExceededError(
                              absl::StrCat("no answer from ", peer->address, " within ",
                                           absl::FormatDuration(options_.connect_deadline))));
  }
  if (now >= peer->retry_at) {
    if (absl::Status opened = OpenDealer(peer); !opened.ok()) {
      return Lose(peer->id, std::move(opened));
    }
  }
  ScheduleAt(std::min(peer->connect_deadline, peer->retry_at));
}

}  // namespace

absl::StatusOr<std::unique_ptr<WaitableTransport>> NewZmqTransport(const ZmqOptions& options) {
  if (options.context == nullptr) return absl::InvalidArgumentError("a ZmqContext is required");
  if (options.send_queue_frames < 1 || options.max_part_bytes < 1 ||
      options.max_part_bytes > kMaxPartBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "send_queue_frames ", options.send_queue_frames, " and max_part_bytes ",
        options.max_part_bytes, ": want at least 1, the latter at most ", kMaxPartBytes));
  }
  auto transport = std::make_unique<ZmqTransport>(options);
  TANDEM_RETURN_IF_ERROR(transport->Bind());
  return transport;
}

}  // namespace tandem
