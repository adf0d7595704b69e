#include "transport/multi_transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/owned_fd.h"

namespace tandem::transport {
namespace {

using Clock = WaitableTransport::Clock;
constexpr auto kNever = Clock::time_point::max();

// One of the ways, and when to poll it again.
struct Way {
  TransportWay way;
  bool ready = true;  // the transport may have events
  Clock::time_point next_poll = Clock::time_point::min();

  Transport* operator->() const { return way.transport.get(); }
  bool Takes(absl::string_view address) const {
    return std::any_of(way.schemes.begin(), way.schemes.end(), [&](const std::string& scheme) {
      return absl::StartsWith(address, scheme);
    });
  }
};

// A peer's number is its number at its way, times the number of ways, plus the index of the way.
class MultiTransport final : public Transport {
 public:
  explicit MultiTransport(MultiOptions options);

  Buffer Alloc(size_t bytes) override { return ways_[0]->Alloc(bytes); }
  const std::string& address() const override { return address_; }
  absl::StatusOr<PeerId> Connect(const std::string& address) override;
  absl::Status Send(PeerId id, Frame frame) override;
  void Close(PeerId id) override;
  void Poll(absl::Duration timeout, std::vector<TransportEvent>* events) override;
  void Wake() override;
  TransportCounters counters() const override;

 private:
  // A connection that this endpoint has made.
  struct Outgoing {
    std::string address;  // as given to Connect
    std::string part;     // the part of `address` that was used
  };

  PeerId Outer(size_t way, PeerId inner) const {
    return inner == 0 ? 0 : inner * ways_.size() + way;
  }
  absl::Status TryWay(size_t way, const std::string& address, absl::string_view part, PeerId* peer);
  void PollWays(std::vector<TransportEvent>* events);
  void Translate(size_t way, TransportEvent* event);
  void Wait(Clock::time_point deadline);
  void Tell(PathChoice choice) const {
    if (on_path_) on_path_(choice);
  }

  std::vector<Way> ways_;
  const std::string forced_;
  const std::vector<std::string> missing_;
  const OnPath on_path_;
  std::string address_;
  const OwnedFd epoll_fd_;
  std::atomic<bool> wake_requested_{false};
  absl::flat_hash_map<PeerId, Outgoing> outgoing_;
  absl::flat_hash_map<std::string, std::string> broken_;  // part of an address -> what happened
};

MultiTransport::MultiTransport(MultiOptions options)
    : forced_(std::move(options.forced)),
      missing_(std::move(options.missing)),
      on_path_(std::move(options.on_path)),
      epoll_fd_(epoll_create1(EPOLL_CLOEXEC)) {
  TANDEM_CHECK(!options.ways.empty() && epoll_fd_.valid());
  for (TransportWay& way : options.ways) {
    epoll_event event = {.events = EPOLLIN, .data = {.u64 = ways_.size()}};
    TANDEM_CHECK(epoll_ctl(epoll_fd_.get(), EPOLL_CTL_ADD, way.transport->wait_fd(), &event) == 0);
    ways_.push_back({.way = std::move(way)});
  }
  address_ = absl::StrJoin(
      ways_, " ", [](std::string* out, const Way& way) { absl::StrAppend(out, way->address()); });
}

absl::Status MultiTransport::TryWay(size_t way, const std::string& address, absl::string_view part,
                                    PeerId* peer) {
  if (const auto broken = broken_.find(part); broken != broken_.end()) {
    return absl::UnavailableError(broken->second);
  }
  const absl::StatusOr<PeerId> inner = ways_[way]->Connect(std::string(part));
  if (!inner.ok()) return inner.status();
  *peer = Outer(way, *inner);
  outgoing_[*peer] = {address, std::string(part)};
  return absl::OkStatus();
}

// Tries the ways of this side in their order. `reasons` says for each better way why it was not
// used; it becomes the `why` of the choice.
absl::StatusOr<PeerId> MultiTransport::Connect(const std::string& address) {
  const std::vector<absl::string_view> parts = absl::StrSplit(address, ' ');
  std::vector<std::string> reasons = missing_;
  absl::Status failed = absl::InvalidArgumentError(absl::StrCat(
      "connect ", address, ": no transport in common; this process listens at ", address_));
  for (size_t way = 0; way < ways_.size(); ++way) {
    const std::string& name = ways_[way].way.name;
    const auto part = std::find_if(parts.begin(), parts.end(),
                                   [&](absl::string_view p) { return ways_[way].Takes(p); });
    if (part == parts.end()) {
      reasons.push_back(absl::StrCat("no ", name, " there"));
      continue;
    }
    PeerId peer = 0;
    const absl::Status tried = TryWay(way, address, *part, &peer);
    if (tried.ok()) {
      if (name == forced_) reasons.push_back("the job asks for it");
      if (reasons.empty()) {
        reasons.push_back(way + 1 < ways_.size() ? "same host" : "no other transport");
      }
      Tell({peer, address, name, absl::StrJoin(reasons, "; ")});
      return peer;
    }
    if (name == forced_) return tried;
    failed = tried;
    reasons.push_back(absl::StrCat("no ", name, ": ", tried.message()));
  }
  return failed;
}

absl::Status MultiTransport::Send(PeerId id, Frame frame) {
  Way& way = ways_[id % ways_.size()];
  way.ready = true;  // sending may bring events that its descriptor does not announce
  return way->Send(id / ways_.size(), std::move(frame));
}

void MultiTransport::Close(PeerId id) {
  outgoing_.erase(id);
  ways_[id % ways_.size()]->Close(id / ways_.size());
}

TransportCounters MultiTransport::counters() const {
  TransportCounters sum;
  for (const Way& way : ways_) {
    const TransportCounters one = way->counters();
    sum.frames_sent += one.frames_sent;
    sum.frames_received += one.frames_received;
    sum.bytes_sent += one.bytes_sent;
    sum.bytes_received += one.bytes_received;
  }
  return sum;
}

void MultiTransport::Poll(absl::Duration timeout, std::vector<TransportEvent>* events) {
  const size_t before = events->size();
  const auto deadline = WaitableTransport::After(timeout);
  for (bool last = false;;) {
    PollWays(events);
    const bool woken = wake_requested_.load() && wake_requested_.exchange(false);
    if (woken || last || events->size() > before) return;
    if (Clock::now() < deadline) Wait(deadline);
    last = Clock::now() >= deadline;
  }
}

void MultiTransport::PollWays(std::vector<TransportEvent>* events) {
  Clock::time_point now = Clock::time_point::min();
  for (size_t i = 0; i < ways_.size(); ++i) {
    Way& way = ways_[i];
    const bool every_time = way.way.poll_every <= absl::ZeroDuration();
    if (!every_time && !way.ready) {
      if (now == Clock::time_point::min()) now = Clock::now();
      if (now < way.next_poll) continue;
    }
    way.ready = false;
    const size_t first = events->size();
    way->Poll(absl::ZeroDuration(), events);
    for (size_t e = first; e < events->size(); ++e) Translate(i, &(*events)[e]);
    if (!every_time) way.next_poll = WaitableTransport::After(way.way.poll_every);
    if (events->size() > first) way.ready = true;  // there may be more
  }
}

// Replaces the peer's number by the one that the user knows. Remembers a way that broke.
void MultiTransport::Translate(size_t way, TransportEvent* event) {
  event->peer = Outer(way, event->peer);
  const bool lost = event->kind == TransportEvent::Kind::kPeerLost;
  if (!lost && event->kind != TransportEvent::Kind::kPeerClosed) return;
  const auto found = outgoing_.find(event->peer);
  if (found == outgoing_.end()) return;
  if (lost && way + 1 < ways_.size() && ways_[way].way.name != forced_) {
    broken_[found->second.part] = absl::StrCat("it broke before: ", event->why.message());
  }
  outgoing_.erase(found);
}

// Sleeps until some way has events or is due, or until Wake is called.
void MultiTransport::Wait(Clock::time_point deadline) {
  Clock::time_point until = deadline;
  // BeginWait is called from the last way to the first, because the first one (shared memory) may
  // spin before it sleeps; the others are ready to wait by then. False means that a way may have
  // events already, so nothing sleeps. Each way that began must get EndWait.
  size_t begun = ways_.size();
  bool may = true;
  while (may && begun > 0) may = ways_[--begun].way.transport->BeginWait(&until);
  int count = 0;
  epoll_event ready[8];
  if (may) {
    int timeout_ms = -1;
    if (until != kNever) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
      timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
    }
    count = epoll_wait(epoll_fd_.get(), ready, 8, timeout_ms);
  }
  if (count <= 0) {  // a timer of a way, or events without a descriptor: poll all
    for (Way& way : ways_) way.ready = true;
  }
  for (int i = 0; i < count; ++i) ways_[ready[i].data.u64].ready = true;
  for (size_t i = begun; i < ways_.size(); ++i) {
    ways_[i].way.transport->EndWait(count > 0 && ways_[i].ready);
  }
}

void MultiTransport::Wake() {
  wake_requested_.store(true);
  ways_[0]->Wake();  // ends a wait on any of them
}

}  // namespace

std::unique_ptr<Transport> NewMultiTransport(MultiOptions options) {
  return std::make_unique<MultiTransport>(std::move(options));
}

}  // namespace tandem::transport
