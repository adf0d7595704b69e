#include "transport/in_process.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/check.h"
#include "base/clock.h"

namespace tandem::transport {
namespace {

constexpr char kInProcessScheme[] = "inproc:";

// An event that waits for the next Poll.
struct Item {
  TransportEvent::Kind kind = TransportEvent::Kind::kFrame;
  PeerId peer = 0;
  Frame frame;
  absl::Status why;
};

struct Mailbox;

// One endpoint's end of a connection.
struct End {
  Mailbox* other = nullptr;  // null: still connecting, or a stranger without a mailbox
  PeerId other_id = 0;       // the other side's number for this endpoint
  int in_flight = 0;         // frames sent that the other side has not polled
  bool blocked = false;      // a kWritable event must follow
  bool closing = false;      // closed while still connecting
  std::string address;       // only while connecting
  absl::Time connect_deadline;
  std::deque<Frame> pending;  // only while connecting
  bool connecting() const { return !address.empty(); }
};

// The network's record of an endpoint. The network's mutex guards all of it.
struct Mailbox {
  std::string address;
  int send_queue_frames = 0;
  bool dead = false;
  bool wake = false;
  PeerId next_peer = 1;
  std::deque<Item> inbox;
  absl::flat_hash_map<PeerId, End> peers;
  CondVar changed;

  void Put(Item item) {
    inbox.push_back(std::move(item));
    changed.Signal();
  }
};

}  // namespace

struct InProcessNetwork::State {
  absl::Mutex mutex;
  absl::flat_hash_map<std::string, Mailbox*> mailboxes ABSL_GUARDED_BY(mutex);
  uint64_t next_name ABSL_GUARDED_BY(mutex) = 1;

  Mailbox* Find(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto found = mailboxes.find(address);
    return found == mailboxes.end() ? nullptr : found->second;
  }

  // The same connection's end at the other side; null if it no longer exists.
  static End* OtherEnd(const End& end) {
    if (end.other == nullptr) return nullptr;
    const auto found = end.other->peers.find(end.other_id);
    return found == end.other->peers.end() ? nullptr : &found->second;
  }

  // Joins a connecting end to the mailbox at its address and hands over the pending frames.
  void Join(Mailbox* from, PeerId id, Mailbox* to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const PeerId other_id = to->next_peer++;
    End& theirs = to->peers[other_id];
    theirs.other = from;
    theirs.other_id = id;
    // looked up after the insertion above, which may move it if from == to
    End& ours = from->peers[id];
    ours.other = to;
    ours.other_id = other_id;
    ours.address.clear();
    for (Frame& frame : std::exchange(ours.pending, {})) {
      to->Put({.peer = other_id, .frame = std::move(frame), .why = absl::OkStatus()});
    }
    if (ours.closing) Part(from, id, TransportEvent::Kind::kPeerClosed, absl::OkStatus());
  }

  // Ends a connection from this side. The other side gets the event `kind`.
  void Part(Mailbox* from, PeerId id, TransportEvent::Kind kind, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto found = from->peers.find(id);
    if (found == from->peers.end()) return;
    if (OtherEnd(found->second) != nullptr) {
      found->second.other->Put(
          {.kind = kind, .peer = found->second.other_id, .frame = Frame(), .why = why});
      OtherEnd(found->second)->other = nullptr;
    }
    from->peers.erase(found);
  }

  // Removes an endpoint from the network.
  void Remove(Mailbox* mailbox, TransportEvent::Kind kind, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    mailbox->dead = true;
    mailboxes.erase(mailbox->address);
    while (!mailbox->peers.empty()) Part(mailbox, mailbox->peers.begin()->first, kind, why);
    mailbox->inbox.clear();
    mailbox->changed.SignalAll();
  }
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(std::shared_ptr<InProcessNetwork::State> network,
                     const InProcessOptions& options)
      : network_(std::move(network)), options_(options) {}

  ~InProcessTransport() override {
    absl::MutexLock lock(&network_->mutex);
    if (!self_.dead) {
      network_->Remove(&self_, TransportEvent::Kind::kPeerClosed, absl::OkStatus());
    }
  }

  absl::Status Join() {
    absl::MutexLock lock(&network_->mutex);
    self_.address = options_.address;
    while (self_.address.empty() ||
           (options_.address.empty() && network_->mailboxes.contains(self_.address))) {
      self_.address = absl::StrCat(kInProcessScheme, network_->next_name++);
    }
    self_.send_queue_frames = options_.send_queue_frames;
    if (!network_->mailboxes.emplace(self_.address, &self_).second) {
      self_.dead = true;
      return absl::AlreadyExistsError(absl::StrCat("address ", self_.address, " is taken"));
    }
    return absl::OkStatus();
  }

  Buffer Alloc(size_t bytes) override { return heap_.Alloc(bytes); }
  // The address does not change after Join, so no lock is needed.
  const std::string& address() const override { return self_.address; }

  absl::StatusOr<PeerId> Connect(const std::string& address) override {
    if (!absl::StartsWith(address, kInProcessScheme)) {
      return absl::InvalidArgumentError(
          absl::StrCat("connect ", address, ": expected inproc:name"));
    }
    absl::MutexLock lock(&network_->mutex);
    const PeerId id = self_.next_peer++;
    End& end = self_.peers[id];
    end.address = address;
    end.connect_deadline = MonotonicNow() + options_.connect_deadline;
    JoinWaiting();
    return id;
  }

  absl::Status Send(PeerId id, Frame frame) override {
    absl::MutexLock lock(&network_->mutex);
    const auto found = self_.peers.find(id);
    if (self_.dead || found == self_.peers.end() || found->second.closing ||
        (!found->second.connecting() && found->second.other == nullptr)) {
      return absl::NotFoundError(absl::StrCat("no peer ", id, " (any more)"));
    }
    End& end = found->second;
    if (end.in_flight >= options_.send_queue_frames) {
      end.blocked = true;
      return absl::ResourceExhaustedError(
          absl::StrCat("peer ", id, ": ", options_.send_queue_frames, " frames are queued"));
    }
    ++end.in_flight;
    ++counters_.frames_sent;
    counters_.bytes_sent += frame.TotalBytes();
    if (end.connecting()) {
      end.pending.push_back(std::move(frame));
    } else {
      end.other->Put({.peer = end.other_id, .frame = std::move(frame), .why = absl::OkStatus()});
    }
    return absl::OkStatus();
  }

  void Close(PeerId id) override {
    absl::MutexLock lock(&network_->mutex);
    const auto found = self_.peers.find(id);
    if (found == self_.peers.end()) return;
    if (found->second.connecting() && !found->second.pending.empty()) {
      found->second.closing = true;
    } else {
      network_->Part(&self_, id, TransportEvent::Kind::kPeerClosed, absl::OkStatus());
    }
  }

  void Poll(absl::Duration timeout, std::vector<TransportEvent>* events) override {
    const absl::Time deadline = MonotonicNow() + timeout;
    const size_t before = events->size();
    absl::MutexLock lock(&network_->mutex);
    for (;;) {
      JoinWaiting();
      while (!self_.inbox.empty()) {
        Item item = std::move(self_.inbox.front());
        self_.inbox.pop_front();
        Deliver(std::move(item), events);
      }
      const absl::Time now = MonotonicNow();
      if (events->size() > before || std::exchange(self_.wake, false) || now >= deadline) return;
      // A connecting end must look again from time to time, because no event announces new
      // addresses.
      const bool connecting = std::any_of(self_.peers.begin(), self_.peers.end(),
                                          [](const auto& p) { return p.second.connecting(); });
      self_.changed.WaitUntil(
          &network_->mutex,
          connecting ? std::min(deadline, now + absl::Milliseconds(10)) : deadline);
    }
  }

  void Wake() override {
    absl::MutexLock lock(&network_->mutex);
    self_.wake = true;
    self_.changed.Signal();
  }

  TransportCounters counters() const override {
    absl::MutexLock lock(&network_->mutex);
    return counters_;
  }

 private:
  // Joins connecting ends whose address exists by now. Gives up those past their deadline.
  void JoinWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mutex) {
    std::vector<PeerId> waiting;
    for (const auto& [id, end] : self_.peers) {
      if (end.connecting()) waiting.push_back(id);
    }
    for (const PeerId id : waiting) {
      const End& end = self_.peers[id];
      if (Mailbox* const to = network_->Find(end.address); to != nullptr && !self_.dead) {
        network_->Join(&self_, id, to);
      } else if (MonotonicNow() >= end.connect_deadline) {
        if (!end.closing) {
          self_.Put(
              {.kind = TransportEvent::Kind::kPeerLost,
               .peer = id,
               .frame = Frame(),
               .why = absl::DeadlineExceededError(absl::StrCat("no answer from ", end.address))});
        }
        self_.peers.erase(id);
      }
    }
  }

  void Deliver(Item item, std::vector<TransportEvent>* events)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mutex) {
    TransportEvent event;
    event.kind = item.kind;
    event.peer = item.peer;
    event.why = std::move(item.why);
    if (item.kind == TransportEvent::Kind::kFrame) {
      const auto from = self_.peers.find(item.peer);
      if (from == self_.peers.end()) return;  // this side has closed it meanwhile
      GiveCredit(from->second);
      absl::StatusOr<ParsedFrame> parsed = DecodeFrame(std::move(item.frame));
      if (parsed.ok()) {
        event.frame = *std::move(parsed);
        ++counters_.frames_received;
        counters_.bytes_received += event.frame.frame.TotalBytes();
      } else {
        event.kind = TransportEvent::Kind::kGarbage;
        event.why = std::move(parsed).status();
      }
    } else if (item.kind != TransportEvent::Kind::kWritable) {
      self_.peers.erase(item.peer);
    }
    events->push_back(std::move(event));
  }

  // Gives the sender of a frame that was just polled room for another frame.
  void GiveCredit(const End& from) ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mutex) {
    End* const sender = InProcessNetwork::State::OtherEnd(from);
    if (sender == nullptr) return;
    --sender->in_flight;
    if (sender->blocked && sender->in_flight <= from.other->send_queue_frames / 2) {
      sender->blocked = false;
      from.other->Put({.kind = TransportEvent::Kind::kWritable,
                       .peer = from.other_id,
                       .frame = Frame(),
                       .why = absl::OkStatus()});
    }
  }

  const std::shared_ptr<InProcessNetwork::State> network_;
  const InProcessOptions options_;
  HeapBufferSource heap_;
  Mailbox self_;                // guarded by network_->mutex
  TransportCounters counters_;  // guarded by network_->mutex
};

InProcessNetwork::InProcessNetwork() : state_(std::make_shared<State>()) {}

absl::StatusOr<std::unique_ptr<Transport>> InProcessNetwork::NewTransport(
    const InProcessOptions& options) const {
  if (options.send_queue_frames < 1 ||
      (!options.address.empty() && !absl::StartsWith(options.address, kInProcessScheme))) {
    return absl::InvalidArgumentError(absl::StrCat("address '", options.address, "', queue of ",
                                                   options.send_queue_frames,
                                                   ": expected inproc:name and at least 1"));
  }
  auto transport = std::make_unique<InProcessTransport>(state_, options);
  if (absl::Status joined = transport->Join(); !joined.ok()) return joined;
  return transport;
}

absl::Status InProcessNetwork::Kill(const std::string& address) const {
  absl::MutexLock lock(&state_->mutex);
  Mailbox* const victim = state_->Find(address);
  if (victim == nullptr) return absl::NotFoundError(absl::StrCat("nobody is at ", address));
  state_->Remove(victim, TransportEvent::Kind::kPeerLost,
                 absl::UnavailableError(absl::StrCat(address, " was killed")));
  return absl::OkStatus();
}

absl::Status InProcessNetwork::Inject(const std::string& address, Frame raw) const {
  absl::MutexLock lock(&state_->mutex);
  Mailbox* const to = state_->Find(address);
  if (to == nullptr) return absl::NotFoundError(absl::StrCat("nobody is at ", address));
  const PeerId id = to->next_peer++;
  to->peers[id] = End();
  to->Put({.peer = id, .frame = std::move(raw), .why = absl::OkStatus()});
  return absl::OkStatus();
}

}  // namespace tandem::transport
