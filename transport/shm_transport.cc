#include "transport/shm_transport.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <fstream>
#include <random>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/owned_fd.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/wake_fd.h"

namespace tandem::transport {
namespace {

using Clock = WaitableTransport::Clock;
using Kind = TransportEvent::Kind;

constexpr int kFramesPerTurn = 64;  // of one link; a fast sender must not starve others
constexpr size_t kMaxNewcomers = 4096;
constexpr uint64_t kWakeKey = 0, kListenerKey = 1;
constexpr PeerId kFirstPeer = 2;
constexpr absl::string_view kShmScheme = "shm:";
constexpr auto kNoDeadline = Clock::time_point::max();

std::string BootId() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id.empty() ? "unknown" : id;
}

// Returns the socket's name. Requires: the host has been checked.
absl::string_view NameOf(absl::string_view address) {
  return address.substr(address.find('/') + 1);
}

std::string NewName() {
  std::random_device entropy;
  return absl::StrFormat("tandem-%08x%08x%08x", entropy(), entropy(), entropy());
}

// A peer. After its end the object stays as long as the other process holds buffers of this one.
struct Peer {
  PeerId id = 0;
  std::unique_ptr<ShmChannel> link;  // null while nobody listens at the address
  bool known = false;                // an event has named it, or this side connected to it
  bool closed = false;               // by either side; kept only until the peer drops our buffers
  bool blocked = false;              // a kWritable event must follow
  absl::Status failed;               // error of a Send; the next Poll gives the link up
  std::string address;               // only of outgoing connections
  std::deque<Frame> pending;         // frames that wait for a link
  Clock::time_point deadline = kNoDeadline;  // for the link to open
  Clock::time_point retry_at = kNoDeadline;

  bool opening() const { return link == nullptr || !link->open(); }
};

class Endpoint final : public ShmTransport {
 public:
  explicit Endpoint(const ShmOptions& options)
      : options_(options), epoll_fd_(epoll_create1(EPOLL_CLOEXEC)) {
    TANDEM_CHECK(epoll_fd_.valid());
    Watch(wake_fd_.fd(), kWakeKey);
  }
  ~Endpoint() override {
    for (const auto& [id, peer] : peers_) {
      if (!peer->closed) Retire(peer.get(), /*orderly=*/true);
    }
  }
  absl::Status Bind();

  Buffer Alloc(size_t bytes) override { return arena_.Alloc(bytes); }
  const std::string& address() const override { return address_; }
  absl::StatusOr<PeerId> Connect(const std::string& address) override;
  absl::Status Send(PeerId id, Frame frame) override;
  void Close(PeerId id) override;
  void Poll(absl::Duration timeout, std::vector<TransportEvent>* events) override;
  void Wake() override;
  TransportCounters counters() const override { return counters_; }
  ShmStats stats() const override { return stats_; }

  int wait_fd() const override { return epoll_fd_.get(); }
  bool BeginWait(Clock::time_point* until) override;
  void EndWait(bool readable) override;

 private:
  void Watch(int fd, uint64_t key);
  Peer* Find(PeerId id);
  Peer* Add(std::unique_ptr<ShmChannel> link);
  void Link(Peer* peer, std::unique_ptr<ShmChannel> link);
  absl::Status TryConnect(Peer* peer);
  absl::Status SendOn(Peer* peer, const Frame& frame);
  void Block(Peer* peer);

  bool DrainAll();
  bool Drain(Peer* peer);
  void Discard(ShmChannel* link);
  void Handle(Peer* peer, Frame frame, size_t parts);
  void OnPeerEnd(Peer* peer);
  void Retire(Peer* peer, bool orderly);
  void Break(Peer* peer, const absl::Status& why);
  void Emit(Kind kind, Peer* peer, absl::Status why);
  void EmitWritable();
  void BreakFailed();
  void Sweep();

  void LookAtSockets(int timeout_ms);
  void OnReady(uint64_t key);
  void AcceptAll();
  bool HasNews() const;
  bool AnyOpen() const;
  void RunTimers(Clock::time_point now);
  bool Wait(Clock::time_point now, Clock::time_point deadline);

  const ShmOptions options_;
  ShmStats stats_;
  HeapBufferSource heap_;
  ShmArena arena_;
  const ReceivedSpansOwner spans_ = NewReceivedSpans();
  const ShmShared shared_ = {&arena_, &heap_, spans_.get(), &stats_};
  OwnedFd epoll_fd_;
  WakeFd wake_fd_;
  UnixListener listener_;
  std::string address_;
  std::atomic<bool> wake_requested_{false}, sleeping_{false};

  PeerId next_peer_ = kFirstPeer;
  absl::flat_hash_map<PeerId, std::unique_ptr<Peer>> peers_;
  std::vector<PeerId> blocked_;
  std::vector<PeerId> failed_;
  std::vector<PeerId> gone_;  // peers to erase when no loop walks peers_
  Spin spin_{options_.spin};
  Clock::time_point next_sockets_ = Clock::time_point::min();
  Clock::time_point next_timer_ = kNoDeadline;
  std::vector<TransportEvent>* events_ = nullptr;  // receives events, during Poll
  TransportCounters counters_;
};

// ---- life ----

absl::Status Endpoint::Bind() {
  address_ = options_.address;
  if (address_.empty()) address_ = absl::StrCat(kShmScheme, BootId(), "/", NewName());
  TANDEM_RETURN_IF_ERROR(CheckShmAddress(address_));
  TANDEM_ASSIGN_OR_RETURN(listener_, UnixListener::Bind(NameOf(address_)));
  Watch(listener_.fd(), kListenerKey);
  return absl::OkStatus();
}

void Endpoint::Watch(int fd, uint64_t key) {
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = key}};
  TANDEM_CHECK(epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, fd, &event) == 0);
}

Peer* Endpoint::Find(PeerId id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

Peer* Endpoint::Add(std::unique_ptr<ShmChannel> link) {
  const PeerId id = next_peer_++;
  Peer* const peer = (peers_[id] = std::make_unique<Peer>()).get();
  peer->id = id;
  peer->deadline = After(options_.connect_deadline);
  next_timer_ = std::min(next_timer_, peer->deadline);
  if (link != nullptr) Link(peer, std::move(link));
  return peer;
}

void Endpoint::Link(Peer* peer, std::unique_ptr<ShmChannel> link) {
  peer->link = std::move(link);
  peer->retry_at = kNoDeadline;
  Watch(peer->link->fd(), peer->id);
}

absl::StatusOr<PeerId> Endpoint::Connect(const std::string& address) {
  if (!absl::StartsWith(address, kShmScheme)) {
    return absl::InvalidArgumentError(
        absl::StrCat("connect ", address, ": expected shm:host/name"));
  }
  TANDEM_RETURN_IF_ERROR(CheckShmAddress(address));
  Peer* const peer = Add(nullptr);
  peer->address = address;
  peer->known = true;
  const absl::Status tried = TryConnect(peer);
  if (tried.ok()) return peer->id;
  if (absl::IsUnavailable(tried) && options_.connect_retry > absl::ZeroDuration()) return peer->id;
  peers_.erase(peer->id);
  if (!absl::IsUnavailable(tried)) return tried;
  return absl::UnavailableError(
      absl::StrCat("no process listens there: it has ended, or is in another network namespace (",
                   tried.message(), ")"));
}

absl::Status Endpoint::TryConnect(Peer* peer) {
  peer->retry_at = After(options_.connect_retry);
  next_timer_ = std::min(next_timer_, peer->retry_at);
  TANDEM_ASSIGN_OR_RETURN(UnixLink socket, UnixLink::Connect(NameOf(peer->address)));
  TANDEM_ASSIGN_OR_RETURN(auto link,
                          ShmChannel::New(std::move(socket), shared_, options_.send_queue_frames));
  Link(peer, std::move(link));
  for (const Frame& frame : std::exchange(peer->pending, {})) {
    TANDEM_RETURN_IF_ERROR(SendOn(peer, frame));  // the ring has room for all pending frames
  }
  return absl::OkStatus();
}

// ---- sending ----

absl::Status Endpoint::SendOn(Peer* peer, const Frame& frame) {
  return peer->link->Send(absl::MakeConstSpan(frame.part, frame.parts));
}

void Endpoint::Block(Peer* peer) {
  if (!std::exchange(peer->blocked, true)) blocked_.push_back(peer->id);
}

absl::Status Endpoint::Send(PeerId id, Frame frame) {
  Peer* const peer = Find(id);
  if (peer == nullptr || peer->closed) {
    return absl::NotFoundError(absl::StrCat("no peer ", id, " (any more)"));
  }
  const size_t bytes = frame.TotalBytes();
  absl::Status sent;
  if (peer->link != nullptr) {
    sent = SendOn(peer, frame);
  } else if (peer->pending.size() >= static_cast<size_t>(options_.send_queue_frames)) {
    sent = absl::ResourceExhaustedError("the queue is full, and the peer has not connected yet");
  } else {
    peer->pending.push_back(std::move(frame));
  }
  if (absl::IsResourceExhausted(sent)) {
    Block(peer);
    return absl::ResourceExhaustedError(absl::StrCat("peer ", id, ": ", sent.message()));
  }
  if (!sent.ok()) {
    // Poll reports the loss. A peer that is gone (UNAVAILABLE) may have left frames, and Poll reads
    // these before it sees the end.
    if (!absl::IsUnavailable(sent) && peer->failed.ok()) {
      peer->failed = sent;
      failed_.push_back(id);
    }
    return absl::NotFoundError(absl::StrCat("peer ", id, ": ", sent.message()));
  }
  ++counters_.frames_sent;
  counters_.bytes_sent += bytes;
  return absl::OkStatus();
}

void Endpoint::Close(PeerId id) {
  Peer* const peer = Find(id);
  if (peer == nullptr || peer->closed) return;
  Retire(peer, /*orderly=*/true);
  Sweep();
}

// Ends a peer. Its link stays while the other process reads this side's memory.
void Endpoint::Retire(Peer* peer, bool orderly) {
  peer->closed = true;
  if (peer->link != nullptr) {
    if (orderly) {
      peer->link->Finish();
    } else {
      peer->link->HangUp();
    }
    peer->link->CollectReleased();
    if (peer->link->PeerMayRead()) return;
  }
  gone_.push_back(peer->id);
}

void Endpoint::Sweep() {
  for (const PeerId id : gone_) {
    Peer* const peer = Find(id);
    if (peer == nullptr) continue;
    if (peer->link != nullptr) {
      epoll_ctl(epoll_fd_.get(), EPOLL_CTL_DEL, peer->link->fd(), nullptr);
    }
    peers_.erase(id);
  }
  gone_.clear();
}

// ---- receiving ----

// One turn: read all rings, look at sockets now and then, run timers, then report room and broken
// links. Frames come first, so that a peer that sent frames and left is reported as gone only after
// its frames. Erasing peers comes last (Sweep), because the loops before it hold pointers to them.
void Endpoint::Poll(absl::Duration timeout, std::vector<TransportEvent>* events) {
  events_ = events;
  const size_t before = events->size();
  const auto deadline = After(timeout);
  bool timed_out = false;
  for (;;) {
    const bool more = DrainAll();
    const auto now = Clock::now();
    if (now >= next_sockets_) LookAtSockets(0);
    RunTimers(now);
    EmitWritable();
    BreakFailed();
    Sweep();
    const bool woken = wake_requested_.load() && wake_requested_.exchange(false);
    if (woken || timed_out || events->size() > before) break;
    if (!more) timed_out = Wait(now, deadline);
  }
  events_ = nullptr;
}

// Returns true if frames may be left.
bool Endpoint::DrainAll() {
  bool more = false;
  for (const auto& [id, peer] : peers_) {
    if (peer->link != nullptr) more |= Drain(peer.get());
  }
  return more;
}

// Reads and drops what a closed peer still sends. The peer cannot end its side before this side has
// given its buffers back, just as this side waits for its own buffers.
void Endpoint::Discard(ShmChannel* link) {
  Frame frame;
  size_t parts = 0;
  for (int left = kFramesPerTurn; left > 0; --left) {
    if (!link->Receive(&frame, &parts).value_or(false)) return;
  }
}

bool Endpoint::Drain(Peer* peer) {
  ShmChannel* const link = peer->link.get();
  link->CollectReleased();
  if (peer->closed) {
    Discard(link);
    if (!link->PeerMayRead()) gone_.push_back(peer->id);
    return false;
  }
  // Ask before the last look, so that no frame is missed.
  const bool end = link->peer_finished() || link->peer_gone();
  Frame frame;
  size_t parts = 0;
  for (int left = end ? options_.send_queue_frames * 2 : kFramesPerTurn; left > 0; --left) {
    const absl::StatusOr<bool> received = link->Receive(&frame, &parts);
    if (!received.ok()) {
      Break(peer, received.status());
      return false;
    }
    if (!*received) {
      if (end) OnPeerEnd(peer);
      return false;
    }
    Handle(peer, std::move(frame), parts);
  }
  return true;
}

void Endpoint::Handle(Peer* peer, Frame frame, size_t parts) {
  const size_t bytes = frame.TotalBytes();
  absl::StatusOr<ParsedFrame> parsed =
      parts > kMaxFrameParts
          ? absl::InvalidArgumentError(
                absl::StrCat("message of ", parts, " parts, a frame has 1 to ", kMaxFrameParts))
          : DecodeFrame(std::move(frame));
  if (!parsed.ok()) return Emit(Kind::kGarbage, peer, std::move(parsed).status());
  const FrameKind kind = parsed->header.kind;
  if (kind == FrameKind::kPing || kind == FrameKind::kGoodbye) return;  // only for other transports
  ++counters_.frames_received;
  counters_.bytes_received += bytes;
  peer->known = true;
  TransportEvent& event = events_->emplace_back();
  event.peer = peer->id;
  event.frame = *std::move(parsed);
}

// Ends a peer after everything that it sent has been read.
void Endpoint::OnPeerEnd(Peer* peer) {
  const bool orderly = peer->link->peer_finished();
  if (peer->known && orderly) {
    Emit(Kind::kPeerClosed, peer, absl::OkStatus());
  } else if (peer->known) {
    Emit(Kind::kPeerLost, peer,
         absl::UnavailableError("the process at the other end of the shared memory is gone, or "
                                "has no memory or descriptors (ulimit -n) left for it"));
  }
  Retire(peer, orderly);
}

// Gives a link up that cannot continue, although the other process may live.
void Endpoint::Break(Peer* peer, const absl::Status& why) {
  const bool known = peer->known;
  if (absl::IsInvalidArgument(why) || absl::IsDataLoss(why)) Emit(Kind::kGarbage, peer, why);
  if (known) Emit(Kind::kPeerLost, peer, why);
  Retire(peer, /*orderly=*/false);
}

void Endpoint::Emit(Kind kind, Peer* peer, absl::Status why) {
  peer->known = true;
  TransportEvent& event = events_->emplace_back();
  event.kind = kind;
  event.peer = peer->id;
  event.why = std::move(why);
}

void Endpoint::EmitWritable() {
  for (size_t i = 0; i < blocked_.size();) {
    Peer* const peer = Find(blocked_[i]);
    if (peer != nullptr && !peer->closed) {
      // The next Send will find an impossible cursor of the peer, too, and ends the link.
      if (peer->link == nullptr || !peer->link->RoomAgain().value_or(true)) {
        ++i;
        continue;
      }
      peer->blocked = false;
      Emit(Kind::kWritable, peer, absl::OkStatus());
    }
    blocked_.erase(blocked_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void Endpoint::BreakFailed() {
  for (const PeerId id : failed_) {
    Peer* const peer = Find(id);
    if (peer != nullptr && !peer->closed) Break(peer, absl::Status(peer->failed));
  }
  failed_.clear();
}

// ---- sockets ----

void Endpoint::LookAtSockets(int timeout_ms) {
  epoll_event ready[64];
  ++stats_.waits;
  const int count = epoll_wait(epoll_fd_.get(), ready, 64, timeout_ms);
  for (int i = 0; i < count; ++i) OnReady(ready[i].data.u64);
  next_sockets_ = After(options_.socket_interval);
}

void Endpoint::OnReady(uint64_t key) {
  if (key == kWakeKey) return wake_fd_.Clear();
  if (key == kListenerKey) return AcceptAll();
  Peer* const peer = Find(key);
  if (peer == nullptr || peer->link->peer_gone()) return;
  const absl::Status read = peer->link->ReadSocket();
  if (!read.ok() && !peer->closed) return Break(peer, read);
  if (peer->link->open()) peer->deadline = kNoDeadline;
  if (peer->link->peer_gone()) {
    epoll_ctl(epoll_fd_.get(), EPOLL_CTL_DEL, peer->link->fd(), nullptr);
  }
}

void Endpoint::AcceptAll() {
  for (size_t i = 0; i < kMaxNewcomers; ++i) {
    absl::StatusOr<UnixLink> socket = listener_.Accept();
    if (absl::IsNotFound(socket.status())) return;
    if (!socket.ok()) continue;  // refused
    auto link = ShmChannel::New(*std::move(socket), shared_, options_.send_queue_frames);
    // Otherwise the socket closes, which the newcomer notices.
    if (link.ok()) Add(*std::move(link));
  }
}

void Endpoint::RunTimers(Clock::time_point now) {
  if (now < next_timer_) return;
  next_timer_ = kNoDeadline;
  for (const auto& [id, owned] : peers_) {
    Peer* const peer = owned.get();
    if (peer->closed || !peer->opening()) continue;
    if (now >= peer->deadline) {
      Break(peer, absl::DeadlineExceededError(
                      absl::StrCat("no answer from ", peer->address, " within ",
                                   absl::FormatDuration(options_.connect_deadline))));
      continue;
    }
    if (peer->link == nullptr && now >= peer->retry_at) {
      const absl::Status tried = TryConnect(peer);
      if (!tried.ok() && !absl::IsUnavailable(tried)) {
        Break(peer, tried);
        continue;
      }
    }
    next_timer_ = std::min({next_timer_, peer->deadline, peer->retry_at});
  }
}

// ---- waiting ----

bool Endpoint::HasNews() const {
  if (wake_requested_.load(std::memory_order_relaxed)) return true;
  for (const auto& [id, peer] : peers_) {
    if (peer->link != nullptr && !peer->closed && peer->link->HasNews()) return true;
  }
  return false;
}

bool Endpoint::AnyOpen() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const auto& p) {
    return !p.second->closed && p.second->link != nullptr && p.second->link->open();
  });
}

void Endpoint::Wake() {
  wake_requested_.store(true);
  if (!sleeping_.load()) return;  // the endpoint's thread looks once more before it sleeps
  wake_fd_.Wake();
}

// Order: spin, then set sleeping_, then look at wake_requested_ again. Wake() sets wake_requested_
// first and then looks at sleeping_, so at least one of the two threads sees the other. Rings use
// the same pattern (transport/shm_ring.h).
bool Endpoint::BeginWait(Clock::time_point* until) {
  *until = std::min(*until, next_timer_);
  if (options_.spin != SpinMode::kNever && AnyOpen() &&
      spin_.Until([this] { return HasNews(); }, *until))
    return false;
  sleeping_.store(true);
  if (wake_requested_.load()) return false;
  bool may = true;
  for (const auto& [id, peer] : peers_) {
    if (peer->link != nullptr && !peer->closed) may &= peer->link->MaySleep(peer->blocked);
  }
  return may;
}

void Endpoint::EndWait(bool readable) {
  if (sleeping_.exchange(false)) spin_.Slept();
  if (readable) next_sockets_ = Clock::time_point::min();
  for (const auto& [id, peer] : peers_) {
    if (peer->link != nullptr && !peer->closed) peer->link->Awake();
  }
}

// Waits for events until the deadline or the next timer. Returns true if the deadline passed
// without events.
bool Endpoint::Wait(Clock::time_point now, Clock::time_point deadline) {
  if (now >= deadline) return true;
  Clock::time_point until = deadline;
  if (BeginWait(&until)) {
    int timeout_ms = -1;
    if (until != kNoDeadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
      timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
    }
    LookAtSockets(timeout_ms);
  }
  EndWait(/*readable=*/false);
  return deadline != kNoDeadline && Clock::now() >= deadline;
}

}  // namespace

absl::Status CheckShmAddress(absl::string_view address) {
  const size_t slash = address.find('/');
  if (!absl::ConsumePrefix(&address, kShmScheme) || slash == absl::string_view::npos ||
      NameOf(address).empty() || NameOf(address).size() > UnixLink::kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory address ", address, ": expected shm:host/name"));
  }
  const absl::string_view host = address.substr(0, address.find('/'));
  if (const std::string here = BootId(); host != here) {
    return absl::FailedPreconditionError(
        absl::StrCat("it runs on another host (", host, "), this one is ", here));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ShmTransport>> NewShmTransport(const ShmOptions& options) {
  if (options.send_queue_frames < 1 || options.send_queue_frames > (1 << 16)) {
    return absl::InvalidArgumentError(
        absl::StrCat("send_queue_frames ", options.send_queue_frames, ", expected 1 to 65536"));
  }
  constexpr int kMaxDescriptors = 6;  // descriptors of an endpoint without peers
  TANDEM_RETURN_IF_ERROR(CheckDescriptorsLeft(kMaxDescriptors));
  // Without such memory rings could be made, but no large frame could ever be sent. So check now.
  TANDEM_RETURN_IF_ERROR(CreateMemoryForReaders(kPageBytes).status());
  auto endpoint = std::make_unique<Endpoint>(options);
  TANDEM_RETURN_IF_ERROR(endpoint->Bind());
  return endpoint;
}

}  // namespace tandem::transport
