#include "rdma/endpoint.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "rdma/ring.h"
#include "transport/waitable.h"

namespace tandem::rdma {
namespace {

constexpr int kAllCompletions = 1 << 16;
constexpr int kCompletionsPerTurn = 64;  // so that Poll ends even if a fast sender continues
// As long as each turn brings something to hand over, the clock is read only once in this many
// turns.
constexpr int kUnwatchedTurns = 4;
// The longest time without a look at the sockets while frames keep the thread from sleeping.
constexpr auto kLookAround = std::chrono::milliseconds(5);

}  // namespace

void RdmaEndpoint::Poll(absl::Duration timeout, std::vector<transport::TransportEvent>* events) {
  events_ = events;
  const size_t before = events->size();
  const auto deadline = transport::WaitableTransport::After(timeout);
  bool timed_out = false;
  for (;;) {
    Turn();
    // Hand over frames before the timers run: reading the clock is a noticeable part of the cost of
    // a small frame.
    Clock::time_point now;
    if (events->size() == before || ++unwatched_ >= kUnwatchedTurns) {
      unwatched_ = 0;
      now = Clock::now();
      RunTimers(now);
      ReportGone();
    }
    const bool woken = wake_requested_.load() && wake_requested_.exchange(false);
    if (woken || timed_out || events->size() > before) break;
    if (!worked_) timed_out = Wait(now, deadline);
  }
  events_ = nullptr;
}

// One turn: handle completions, give credits back, drop finished peers. Lost peers are reported
// right after the completions, so that the frames that came before the loss are delivered first.
// Peers are dropped only after the loop, because Drop changes the map.
void RdmaEndpoint::Turn() {
  worked_ = false;
  DrainCompletions(kCompletionsPerTurn);
  ReportGone();
  ids_.clear();
  for (const auto& [id, peer] : peers_.all()) {
    if (!peer->connected || peer->gone) continue;
    if (absl::Status given = peer->connection->GiveBack(); !given.ok())
      peers_.Break(peer.get(), given);
    if (Finished(*peer)) ids_.push_back(id);
  }
  for (const transport::PeerId id : ids_) Drop(id);
  EmitWritable();
}

void RdmaEndpoint::Wake() {
  wake_requested_.store(true);
  shared_.waker->Wake();
}

// Waits for news until the deadline or the next timer. True if the deadline has passed without
// news.
bool RdmaEndpoint::Wait(Clock::time_point now, Clock::time_point deadline) {
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
  EndWait(/*readable=*/false);
  return count <= 0 && deadline != Clock::time_point::max() && Clock::now() >= deadline;
}

// Prepares to sleep; false if there is work and the thread must not sleep. The order matters: first
// spin, since that is cheaper than the kernel; then announce the sleep and arm the notification;
// only then look once more. News that comes after the second look makes a descriptor readable.
bool RdmaEndpoint::BeginWait(Clock::time_point* until) {
  *until = std::min(*until, peers_.next_timer());
  const auto news = [this] { return queues_.Poll() || wake_requested_.load(); };
  if (options_.spin != transport::SpinMode::kNever && spin_.Until(news, *until)) return false;
  shared_.waker->BeforeSleep();
  queues_.Arm();
  // Look once more. A completion that came before the notification was armed makes no event, and
  // buffers may have been released since the last turn.
  if (news()) return false;
  for (const auto& [id, peer] : peers_.all()) {
    if (!peer->connected || peer->gone) continue;
    if (absl::Status given = peer->connection->GiveBack(); !given.ok())
      peers_.Break(peer.get(), given);
  }
  if (!peers_.gone().empty()) return false;
  ++sleeps_;
  asleep_ = true;
  return true;
}

void RdmaEndpoint::EndWait(bool readable) {
  shared_.waker->AfterSleep();
  if (std::exchange(asleep_, false)) spin_.Slept();
  if (readable) next_look_ = Clock::time_point::min();
}

int RdmaEndpoint::Look(int timeout_ms) {
  epoll_event ready[4];
  const int count = epoll_wait(epoll_fd_.get(), ready, 4, timeout_ms);
  for (int i = 0; i < count; ++i) {
    if (ready[i].data.u64 == kWakeKey) shared_.waker->Clear();
    if (ready[i].data.u64 == kCompletionKey) queues_.OnEvents();
    if (ready[i].data.u64 == kManagerKey) OnManagerEvents();
  }
  next_look_ = Clock::now() + kLookAround;
  return count;
}

// Handles events of existing connections. The connector handles those of connections that are being
// made.
void RdmaEndpoint::OnManagerEvents() {
  RdmaConnector::Event event;
  while (connector_.Next(&event)) {
    // Deliver the frames first that came before the peer left.
    DrainCompletions(kAllCompletions);
    RdmaPeer* const peer = peers_.Find(event.peer);
    if (peer == nullptr) continue;
    switch (event.type) {
      case RDMA_CM_EVENT_DISCONNECTED:
      case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        peers_.Break(peer, absl::UnavailableError("the peer has disconnected"));
        break;
      case RDMA_CM_EVENT_DEVICE_REMOVAL:
        peers_.Break(peer, absl::UnavailableError("the RDMA device was removed"));
        break;
      // ESTABLISHED: known already, because the peer's first message came before this event.
      case RDMA_CM_EVENT_ESTABLISHED:
      case RDMA_CM_EVENT_ADDR_CHANGE:
        break;
      default:
        peers_.Break(peer, absl::UnavailableError(
                               absl::StrCat("connection manager: ", rdma_event_str(event.type))));
    }
  }
}

void RdmaEndpoint::RunTimers(Clock::time_point now) {
  if (now >= next_look_) Look(0);
  if (now < peers_.next_timer()) return;
  peers_.ClearTimer();
  ids_.clear();
  for (const auto& [id, peer] : peers_.all()) ids_.push_back(id);
  for (const transport::PeerId id : ids_) {
    if (RdmaPeer* const peer = peers_.Find(id); peer != nullptr && !peer->gone) TickPeer(peer, now);
  }
}

void RdmaEndpoint::TickPeer(RdmaPeer* peer, Clock::time_point now) {
  if (now >= peer->close_deadline) return Drop(peer->id);
  peers_.ScheduleAt(peer->close_deadline);
  if (now >= peer->probe_at) {
    if (absl::Status probed = peer->connection->Probe(); !probed.ok())
      return peers_.Break(peer, probed);
    peer->probe_at = now + transport::WaitableTransport::ToClock(options_.probe_interval);
  }
  peers_.ScheduleAt(peer->probe_at);
  if (peer->connected || peer->state == RdmaPeer::State::kAccepting) return;
  if (now >= peer->connect_deadline) {
    return peers_.Break(peer, absl::DeadlineExceededError(absl::StrCat(
                                  "no answer from ", peer->address, " within ",
                                  absl::FormatDuration(options_.connect_deadline),
                                  peer->why.ok() ? "" : absl::StrCat(": ", peer->why.message()))));
  }
  if (now >= peer->retry_at) {
    if (absl::Status started = connector_.Start(peer); !started.ok()) {
      connector_.RetryLater(peer, std::move(started));
    }
  }
  peers_.ScheduleAt(std::min(peer->connect_deadline, peer->retry_at));
}

}  // namespace tandem::rdma
