#include "transport/zmq_transport.h"

#include <sodium.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <deque>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/wake_fd.h"
#include "transport/proof.h"
#include "transport/tcp_address.h"
#include "transport/zmq_frames.h"
#include "transport/zmq_parts.h"
#include "transport/zmq_sockets.h"

namespace tandem::transport {
namespace {

using Clock = WaitableTransport::Clock;

constexpr int kFramesPerTurn = 64;  // of one socket; a fast sender must not starve others
constexpr auto kProbeDelay = std::chrono::milliseconds(5);
constexpr auto kProbeSpacing = std::chrono::milliseconds(50);
constexpr auto kRefusalSpacing = std::chrono::minutes(1);  // between two reports of refused peers
// A peer that closes this many connections in the handshake refuses this side's keys. One closed
// connection may also come from a process that ends.
constexpr int kMaxRefusals = 3;
constexpr int kHandshakeFailed = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                                 ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                                 ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
constexpr char kTokenHint[] =
    "hint: give both the token of the job (TANDEM_TOKEN, or TANDEM_TOKEN_FILE=OUT/token)";

// Keys of the epoll set: a peer's number times two, plus one for the peer's monitor.
constexpr uint64_t kWakeKey = 0, kRouterKey = 2, kRouterMonitorKey = 3;
constexpr PeerId kFirstOutgoing = 2;
constexpr PeerId kFirstIncoming = PeerId{1} << 32;  // plus the ROUTER's number of the peer

struct Peer {
  enum class State {
    kConnecting,  // frames wait in `pending`
    kOpen,
    kClosing,  // this side said goodbye and waits for the peer's
    kClosed,   // incoming only: goodbyes said, libzmq still has the connection
  };
  PeerId id = 0;
  State state = State::kOpen;
  bool gone = false;     // a send failed; reported after its frames have been read
  bool dirty = false;    // its DEALER may hold frames that epoll will not announce
  bool blocked = false;  // a Send was refused: the user waits for kWritable
  bool spoke = false;    // sent something valid, so it will answer a goodbye
  std::shared_ptr<Flow> flow;
  // Null: the peer has shown its keys, or none are needed. Nothing else of the peer counts before.
  std::unique_ptr<Proof> proof;
  bool authenticated = false;  // outgoing only: by this connection
  Clock::time_point close_deadline = Clock::time_point::max();
  // Only for outgoing peers.
  MonitoredSocket dealer;
  std::string address;               // without the number of its endpoint
  std::string endpoint;              // this number; empty: the address has none
  std::vector<std::string> targets;  // the addresses behind `address`, tried in turn
  size_t next_target = 0;
  std::deque<SendRecord*> pending;
  Clock::time_point connect_deadline = Clock::time_point::max();
  Clock::time_point retry_at = Clock::time_point::max();
  int refusals = 0;  // connections that ended in the handshake

  bool incoming() const { return id >= kFirstIncoming; }
  bool closing() const { return close_deadline != Clock::time_point::max(); }
  bool live() const {
    if (incoming() && proof != nullptr) return false;
    return !gone && !closing() && (state == State::kConnecting || state == State::kOpen);
  }
};

template <typename Peers>
bool AnyClosing(const Peers& peers) {
  return std::any_of(peers.begin(), peers.end(), [](const auto& p) { return p.second->closing(); });
}

// A message of a proof. It is no frame, but travels as one.
Frame OnePart(BufferSource& source, const std::string& bytes) {
  Frame frame;
  frame.parts = 1;
  frame.part[0] =
      CopyToBuffer(source, {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  return frame;
}

// The number of an endpoint that binds there. No other endpoint has it.
std::string NumberOf(const ZmqOptions& options) {
  if (options.keys == nullptr) return "";
  if (std::string given = SplitEndpointNumber(options.bind).second; !given.empty()) return given;
  std::array<uint8_t, kEndpointNumberDigits / 2> random;
  randombytes_buf(random.data(), random.size());
  std::array<char, kEndpointNumberDigits + 1> text;
  sodium_bin2hex(text.data(), text.size(), random.data(), random.size());
  return text.data();
}

// Whether a connection to the address is encrypted.
bool EncryptsTowards(const ZmqOptions& options, const std::string& address) {
  return options.keys != nullptr && (options.encrypted || address == options.encrypted_peer);
}

bool ClosedByPeer(int event, uint32_t value) {
  return event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL && (value == EPIPE || value == ECONNRESET);
}

// Why a connection to this endpoint ended in the handshake. Empty if the peer closed it: such
// connections only look whether somebody listens.
absl::string_view WhyRefused(const ZmqOptions& options, int event, uint32_t value) {
  if (ClosedByPeer(event, value)) return "";
  if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) return "was silent";
  if (value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) {
    if (options.keys == nullptr) return "has a token, and this job has none";
    return options.encrypted ? "has no token"
                             : "has no token or is encrypted, and this port is not";
  }
  const bool other =
      event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH || value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC;
  if (!other) return "sent garbage";
  return options.encrypted ? "has another token"
                           : "has another token, or the address of an earlier process";
}

// Why the peer cannot be reached, after a handshake that failed; OK: try again.
absl::Status WhyUnreachable(const ZmqOptions& options, int event, uint32_t value, Peer* peer) {
  const bool encrypts = EncryptsTowards(options, peer->address);
  const bool no_detail = event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL;
  // A peer that asks for keys may close the connection before this side has heard so.
  const bool closes = (encrypts || options.keys == nullptr) && ClosedByPeer(event, value) &&
                      ++peer->refusals >= kMaxRefusals;
  absl::string_view why;
  if (!no_detail && value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) {
    why = options.keys == nullptr ? "asks for a token"
          : encrypts              ? "has no token, but this process has one"
                                  : "has no token or encrypts all connections, unlike this process";
  } else if (closes && options.keys == nullptr) {
    why = "closes each connection, so it asks for a token or is no process of Tandem";
  } else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH || closes || (encrypts && !no_detail)) {
    why = encrypts ? "does not accept the token of this process"
                   : "does not accept the token of this process, or is a later process there";
  }
  if (why.empty()) return absl::OkStatus();
  return absl::UnauthenticatedError(absl::StrCat(peer->address, " ", why, "; ", kTokenHint));
}

class ZmqTransport final : public WaitableTransport {
 public:
  explicit ZmqTransport(const ZmqOptions& options);
  ~ZmqTransport() override;
  absl::Status Bind();

  Buffer Alloc(size_t bytes) override { return heap_.Alloc(bytes); }
  const std::string& address() const override { return address_; }
  absl::StatusOr<PeerId> Connect(const std::string& address) override;
  absl::Status Send(PeerId id, Frame frame) override;
  void Close(PeerId id) override;
  void Poll(absl::Duration timeout, std::vector<TransportEvent>* events) override;
  void Wake() override;
  TransportCounters counters() const override { return counters_; }

  int wait_fd() const override { return sockets_.fd(); }
  bool BeginWait(Clock::time_point* until) override {
    *until = std::min(*until, next_timer_);
    return !router_dirty_ && dirty_.empty() && !wake_requested_.load();
  }
  void EndWait(bool) override {}

 private:
  // Sending.
  void Push(Peer* peer, Frame frame);
  bool Transmit(Peer* peer, SendRecord* record);
  void MarkDirty(Peer* peer);

  // Receiving.
  void DrainDirty();
  void DrainRouter();
  void DrainPeer(PeerId id, int at_most);
  void Handle(PeerId id, ZmqFrames::Received received);
  void OnGoodbye(Peer* peer);
  void TakeProof(Peer* peer, const ZmqFrames::Received& received);

  // Connections.
  Peer* Find(PeerId id);
  Peer* FindOrAddIncoming(PeerId id);
  absl::Status OpenDealer(Peer* peer);
  void OnRouterMonitor();
  void Refuse(absl::string_view why);
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

  const ZmqOptions options_;
  HeapBufferSource heap_;
  ZmqFrames frames_;
  const std::shared_ptr<WakeFd> waker_ = std::make_shared<WakeFd>();
  std::atomic<bool> wake_requested_{false};
  ZmqSocketSet sockets_;
  Frame ping_, goodbye_;

  MonitoredSocket router_;
  const std::string endpoint_;  // the number of this endpoint; empty without keys
  std::string address_, bound_;

  PeerId next_outgoing_ = kFirstOutgoing;
  absl::flat_hash_map<PeerId, std::unique_ptr<Peer>> peers_;
  // of names that were reached
  absl::flat_hash_map<std::string, std::vector<std::string>> targets_;
  bool router_dirty_ = false;
  std::vector<PeerId> dirty_;    // DEALERs that may hold frames
  std::vector<PeerId> gone_;     // incoming peers whose connection is gone, not yet reported
  std::vector<PeerId> blocked_;  // peers whose user waits for kWritable
  std::vector<PeerId> scratch_ids_;
  Clock::time_point next_timer_ = Clock::time_point::min();
  Clock::time_point next_ping_ = Clock::time_point::min();
  Clock::time_point last_ping_ = Clock::time_point::min();
  int64_t refused_ = 0;  // connections to this endpoint that ended in the handshake
  Clock::time_point next_refusal_ = Clock::time_point::min();  // earliest time of a report
  std::vector<TransportEvent>* events_ = nullptr;              // receives events, during Poll
  bool waited_ = false;                                        // during Poll: after a wait
  bool ending_ = false;  // in the destructor: the last goodbye ends a Poll
  TransportCounters counters_;
};

// ---- life ----

ZmqTransport::ZmqTransport(const ZmqOptions& options)
    : options_(options), sockets_(options, waker_->fd(), kWakeKey), endpoint_(NumberOf(options)) {
  FrameHeader header;
  header.kind = FrameKind::kPing;  // says nothing else, because peers without a proof get it, too
  ping_ = EncodeDataFrame(heap_, header, {}, Buffer(), Buffer());
  header.sender = options.self;
  header.incarnation = options.incarnation;
  header.kind = FrameKind::kGoodbye;
  goodbye_ = EncodeDataFrame(heap_, header, {}, Buffer(), Buffer());
}

ZmqTransport::~ZmqTransport() {
  // Two phases: say goodbye to every peer and wait for the answers, because ending a connection at
  // once can cost frames that the peer has not read. Then drop what is left, and close the
  // listening socket.
  ending_ = true;
  for (const auto& [id, peer] : peers_) scratch_ids_.push_back(id);
  for (const PeerId id : std::exchange(scratch_ids_, {})) Close(id);
  const auto deadline = After(options_.goodbye_wait);
  std::vector<TransportEvent> ignored;
  while (AnyClosing(peers_) && Clock::now() < deadline) {
    Poll(absl::FromChrono(deadline - Clock::now()), &ignored);
    ignored.clear();
  }
  for (const auto& [id, peer] : peers_) scratch_ids_.push_back(id);
  for (const PeerId id : std::exchange(scratch_ids_, {})) Drop(id, options_.linger);
  if (router_.socket != nullptr) {
    UnbindZmq(router_, bound_, options_.linger);
    sockets_.Close(&router_, options_.linger);
  }
  if (options_.keys != nullptr) options_.context->Unguard(endpoint_);
}

absl::Status ZmqTransport::Bind() {
  const absl::StatusOr<std::string> where = ResolveToBind(SplitEndpointNumber(options_.bind).first);
  if (!where.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("bind ", options_.bind, ": ", where.status().message()));
  }
  if (options_.keys != nullptr) {
    TANDEM_RETURN_IF_ERROR(options_.context->Guard({endpoint_, options_.keys, options_.encrypted}));
  }
  TANDEM_ASSIGN_OR_RETURN(
      router_,
      sockets_.Open(ZMQ_ROUTER, ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED | kHandshakeFailed,
                    kRouterKey, *where, options_.encrypted, endpoint_));
  const int on = 1;
  TANDEM_CHECK(zmq_setsockopt(router_.socket, ZMQ_ROUTER_MANDATORY, &on, sizeof on) == 0);
  if (zmq_bind(router_.socket, where->c_str()) != 0) {
    const bool in_use = zmq_errno() == EADDRINUSE || zmq_errno() == EACCES;
    const std::string what = absl::StrCat("bind ", options_.bind, ": ", ZmqError());
    return in_use ? absl::UnavailableError(what) : absl::InvalidArgumentError(what);
  }
  char bound[1024];
  size_t size = sizeof bound;
  TANDEM_CHECK(zmq_getsockopt(router_.socket, ZMQ_LAST_ENDPOINT, bound, &size) == 0);
  address_ = bound_ = bound;
  const TcpAddress at = SplitTcpAddress(address_);
  if (!options_.advertised_host.empty() && at.valid()) {
    address_ = absl::StrCat("tcp://", HostInAddress(options_.advertised_host), ":", at.port);
  } else if (at.AllHosts()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bind ", options_.bind, " names all hosts: others need an advertised host to connect to"));
  }
  if (options_.keys != nullptr && !options_.encrypted) {
    absl::StrAppend(&address_, "#", endpoint_);
  }
  return absl::OkStatus();
}

// Starts a connection attempt to a peer, or starts it anew.
absl::Status ZmqTransport::OpenDealer(Peer* peer) {
  sockets_.Close(&peer->dealer, absl::ZeroDuration());
  peer->retry_at = Clock::time_point::max();
  peer->proof.reset();
  peer->authenticated = false;
  const std::string& target = peer->targets[peer->next_target++ % peer->targets.size()];
  TANDEM_ASSIGN_OR_RETURN(
      peer->dealer, sockets_.Open(ZMQ_DEALER,
                                  ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_CONNECT_RETRIED |
                                      ZMQ_EVENT_DISCONNECTED | kHandshakeFailed,
                                  peer->id * 2, target, EncryptsTowards(options_, peer->address),
                                  peer->endpoint));
  if (zmq_connect(peer->dealer.socket, target.c_str()) == 0) {
    MarkDirty(peer);  // its monitor must be read once, see NewZmqMonitor
    return absl::OkStatus();
  }
  const absl::Status malformed =
      absl::InvalidArgumentError(absl::StrCat("connect ", peer->address, ": ", ZmqError()));
  sockets_.Close(&peer->dealer, absl::ZeroDuration());
  return malformed;
}

absl::StatusOr<PeerId> ZmqTransport::Connect(const std::string& to) {
  const auto [address, endpoint] = SplitEndpointNumber(to);
  if (!absl::StartsWith(address, "tcp://") && !absl::StartsWith(address, "ipc://")) {
    return absl::InvalidArgumentError(
        absl::StrCat("connect ", address, ": expected tcp://host:port or ipc://path"));
  }
  auto peer = std::make_unique<Peer>();
  peer->id = next_outgoing_;
  peer->state = Peer::State::kConnecting;
  peer->address = address;
  peer->endpoint = endpoint;
  // The numbers of a name are kept once they led to a connection. Connecting again then waits for
  // no name server, which could keep the thread from its other peers.
  const auto known = targets_.find(address);
  peer->targets = known == targets_.end() ? ResolveToConnect(address) : known->second;
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

// Sends the frame, or queues it while connecting. Sets `gone` if the connection no longer exists.
void ZmqTransport::Push(Peer* peer, Frame frame) {
  SendRecord* const record = frames_.NewRecord(std::move(frame), peer->flow);
  if (peer->state == Peer::State::kConnecting) {
    peer->pending.push_back(record);
  } else if (!Transmit(peer, record) && !std::exchange(peer->gone, true)) {
    gone_.push_back(peer->id);
  }
}

bool ZmqTransport::Transmit(Peer* peer, SendRecord* record) {
  MarkDirty(peer);  // sending makes libzmq take in events that epoll then no longer announces
  if (peer->incoming()) {
    return frames_.SendTo(router_.socket, static_cast<uint32_t>(peer->id - kFirstIncoming), record);
  }
  frames_.Send(peer->dealer.socket, record);
  return true;
}

void ZmqTransport::MarkDirty(Peer* peer) {
  if (peer->incoming()) {
    router_dirty_ = true;
  } else if (!std::exchange(peer->dirty, true)) {
    dirty_.push_back(peer->id);
  }
}

// Says goodbye and keeps the peer until it answers or the deadline passes: ending the connection at
// once could cost frames that the peer has not read. An incoming peer that never spoke gets no such
// wait, because it may not know what a GOODBYE is.
void ZmqTransport::Close(PeerId id) {
  Peer* const peer = Find(id);
  if (peer == nullptr || !peer->live()) return;
  const bool connecting = peer->state == Peer::State::kConnecting;
  if (connecting && peer->pending.empty()) return Drop(id, absl::ZeroDuration());
  Push(peer, goodbye_);
  if (peer->incoming() && !peer->spoke) {
    peer->state = Peer::State::kClosed;
    return;
  }
  // A peer that is still connecting keeps its state: it may connect and answer until the deadline.
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
    if (woken || timed_out || events->size() > before || (ending_ && !AnyClosing(peers_))) break;
    // A reply or a probe was sent meanwhile.
    if (router_dirty_ || !dirty_.empty()) {
      timed_out = now >= deadline;  // frames of strangers never end and make no events
      continue;
    }
    timed_out = Wait(now, deadline);
  }
  events_ = nullptr;
}

void ZmqTransport::Wake() {
  wake_requested_.store(true);
  waker_->Wake();
}

// Waits for events until the deadline or the next timer. Returns true if the deadline passed
// without events.
bool ZmqTransport::Wait(Clock::time_point now, Clock::time_point deadline) {
  const auto until = std::min(deadline, next_timer_);
  int timeout_ms = -1;
  if (until != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
    timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
  }
  waited_ = true;
  const int count = sockets_.Wait(timeout_ms, [this](uint64_t key) { OnReady(key); });
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
  if (!router_dirty_) {  // everything is read, so no frame of a lost peer is left
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

// A look at an empty socket costs a system call, and the next Poll must look again anyway. So after
// a wait one frame is enough. A Poll that finds frames before it waits reads as many as it may.
void ZmqTransport::DrainRouter() {
  ZmqFrames::Received received;
  router_dirty_ = false;  // replies sent below set it again
  for (int left = kFramesPerTurn; left > 0; --left) {
    if (!frames_.ReceiveFrom(router_.socket, &received)) return;
    Handle(received.from ? kFirstIncoming + *received.from : 0, std::move(received));
    if (waited_ && !events_->empty()) break;
  }
  router_dirty_ = true;
}

void ZmqTransport::DrainPeer(PeerId id, int at_most) {
  ZmqFrames::Received received;
  for (Peer* peer = Find(id); peer != nullptr; peer = Find(id)) {  // a goodbye ends the peer
    if (at_most-- == 0) return MarkDirty(peer);
    if (!frames_.Receive(peer->dealer.socket, &received)) return;
    Handle(id, std::move(received));
    if (waited_ && !events_->empty()) at_most = std::min(at_most, 0);
  }
}

void ZmqTransport::Handle(PeerId id, ZmqFrames::Received received) {
  if (id == 0) return Refuse("chose its own routing id");
  Peer* const peer = id >= kFirstIncoming ? FindOrAddIncoming(id) : Find(id);
  if (peer->proof != nullptr) return TakeProof(peer, received);
  // It came before this side has heard that the handshake is over. A process of ours waits for the
  // first frame of the side that connects.
  if (peer->state == Peer::State::kConnecting) return;
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
    Push(peer, goodbye_);
  }
  peer->state = Peer::State::kClosed;
  peer->close_deadline = Clock::time_point::max();
  // The peer no longer reads frames, so only this side's goodbye is worth sending. The peer may
  // also be gone already, and libzmq would need the whole linger to find that out.
  if (!peer->incoming()) Drop(peer->id, options_.goodbye_wait);
}

void ZmqTransport::TakeProof(Peer* peer, const ZmqFrames::Received& received) {
  const Buffer& bytes = received.frame.part[0];
  absl::StatusOr<std::string> answer = absl::UnauthenticatedError("has no token");
  if (received.parts == 1) {
    answer = peer->proof->Take({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  if (!answer.ok() && !peer->incoming()) {
    return Lose(peer->id, absl::UnauthenticatedError(absl::StrCat(
                              peer->address, " ", answer.status().message(), "; ", kTokenHint)));
  }
  if (!answer.ok()) {
    peer->proof.reset();
    peer->state = Peer::State::kClosed;
    return Refuse(answer.status().message());
  }
  if (!answer->empty()) {
    Transmit(peer, frames_.NewRecord(OnePart(heap_, *answer), peer->flow));
  }
  if (!peer->proof->done()) return;
  peer->proof.reset();
  peer->authenticated = true;
  if (!peer->incoming()) OnConnected(peer);
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
    if (options_.keys != nullptr && !options_.encrypted) {
      peer->proof = std::make_unique<Proof>(Proof::Side::kAccepts, options_.keys, endpoint_);
    }
  }
  return peer.get();
}

// Reacts to the end of an incoming connection. Only a send to each peer can tell which one ended.
// The monitor reports the end a moment before the ROUTER knows it, so the probe is sent a little
// later. If that is still too soon, the regular probe finds it.
void ZmqTransport::OnRouterMonitor() {
  ForMonitorEvents(router_.monitor, [this](int event, uint32_t value) {
    if ((event & kHandshakeFailed) != 0) {
      const absl::string_view why = WhyRefused(options_, event, value);
      if (!why.empty()) Refuse(why);
      return true;
    }
    next_ping_ = std::min(next_ping_, std::max(Clock::now() + kProbeDelay,
                                               last_ping_ + Clock::duration(kProbeSpacing)));
    ScheduleAt(next_ping_);
    return true;
  });
}

// Counts a connection of a stranger, and reports such connections from time to time.
void ZmqTransport::Refuse(absl::string_view why) {
  ++refused_;
  const auto now = Clock::now();
  if (now < next_refusal_ || events_ == nullptr) return;
  next_refusal_ = now + kRefusalSpacing;
  Emit(TransportEvent::Kind::kGarbage, 0,
       absl::UnauthenticatedError(
           absl::StrCat("connections to ", SplitEndpointNumber(address_).first,
                        " that were refused: ", refused_, ", the last one ", why)));
}

void ZmqTransport::OnPeerMonitor(PeerId id) {
  Peer* peer = Find(id);
  if (peer == nullptr) return;
  ForMonitorEvents(peer->dealer.monitor, [&](int event, uint32_t value) {
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
      OnConnected(peer);
    } else if ((event & kHandshakeFailed) != 0 && peer->state == Peer::State::kConnecting) {
      if (absl::Status why = WhyUnreachable(options_, event, value, peer); !why.ok()) {
        Lose(id, std::move(why));
        return false;
      }
      // After bytes that are no ZeroMQ at all, libzmq does not report CONNECT_RETRIED.
      peer->retry_at = Clock::now() + ToClock(options_.connect_retry);
      ScheduleAt(peer->retry_at);
    } else if (event == ZMQ_EVENT_CONNECT_RETRIED && peer->state == Peer::State::kConnecting) {
      peer->retry_at = Clock::now() + ToClock(options_.connect_retry);
      ScheduleAt(peer->retry_at);
    } else if (event == ZMQ_EVENT_DISCONNECTED && peer->state != Peer::State::kConnecting) {
      waited_ = false;
      absl::Status why =
          absl::UnavailableError(absl::StrCat("the connection to ", peer->address, " broke"));
      DrainPeer(id, options_.send_queue_frames + 1);  // all frames that libzmq can have stored
      Lose(id, std::move(why));                       // has no effect after a goodbye among them
      return false;
    }
    return true;
  });
}

// The handshake of libzmq is over, or the proof after it.
void ZmqTransport::OnConnected(Peer* peer) {
  const bool proves = options_.keys != nullptr && !EncryptsTowards(options_, peer->address);
  if (proves && !peer->authenticated) {
    peer->proof = std::make_unique<Proof>(Proof::Side::kConnects, options_.keys, peer->endpoint);
    Transmit(peer, frames_.NewRecord(OnePart(heap_, peer->proof->Hello()), peer->flow));
    return;
  }
  peer->state = peer->closing() ? Peer::State::kClosing : Peer::State::kOpen;
  // An address that is its own target is a number, or a name that only libzmq could look up.
  if (peer->targets.front() != peer->address) targets_[peer->address] = peer->targets;
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
  sockets_.Close(&peer.dealer, linger);
  peers_.erase(found);
}

void ZmqTransport::ProbeIncoming() {
  const int too_many = options_.send_queue_frames + 16;  // limit for a peer that reads nothing
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
    // An incoming peer stays known, so that a late frame of it does not look like one of a new
    // peer.
    peer->close_deadline = Clock::time_point::max();
    peer->state = Peer::State::kClosed;
    if (!peer->incoming()) Drop(peer->id, options_.linger);
    return;
  }
  ScheduleAt(peer->close_deadline);
  if (peer->state != Peer::State::kConnecting) return;
  if (now >= peer->connect_deadline) {
    targets_.erase(peer->address);  // the host may have moved: the next Connect looks it up
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
        options.max_part_bytes, ": expected at least 1, the latter at most ", kMaxPartBytes));
  }
  constexpr int kMaxDescriptors = 14;  // descriptors without peers, with the context's
  TANDEM_RETURN_IF_ERROR(CheckDescriptorsLeft(kMaxDescriptors));
  TANDEM_RETURN_IF_ERROR(options.context->MayStart());
  auto transport = std::make_unique<ZmqTransport>(options);
  TANDEM_RETURN_IF_ERROR(transport->Bind());
  return transport;
}

}  // namespace tandem::transport
