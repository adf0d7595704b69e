#include "rdma/endpoint.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "rdma/ring.h"

namespace tandem {
namespace {

constexpr int kCompletionsPerTurn = 64;  // so that Poll ends although a fast sender goes on
constexpr unsigned kUnackedEvents = 64;  // completion events acknowledged together: it takes a lock
// Turns that may pass without a look at the clock while each brings something to hand over.
constexpr int kUnwatchedTurns = 4;
// How long connections may go unwatched while frames keep the thread from sleeping.
constexpr auto kLookAround = std::chrono::milliseconds(5);

}  // namespace

void RdmaEndpoint::Poll(absl::Duration timeout, std::vector<TransportEvent>* events) {
  events_ = events;
  const size_t before = events->size();
  const auto deadline = After(timeout);
  bool timed_out = false;
  for (;;) {
    Turn();
    // Frames that have come are handed over before the timers run: reading the clock is a
    // noticeable part of what a small frame costs.
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

void RdmaEndpoint::Turn() {
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

void RdmaEndpoint::Wake() {
  wake_requested_.store(true);
  shared_.waker->Wake();
}

// Waits for news until the deadline or the next timer. True if the deadline passed without any.
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

bool RdmaEndpoint::BeginWait(Clock::time_point* until) {
  *until = std::min(*until, next_timer_);
  const auto news = [this] { return PollQueue() || wake_requested_.load(); };
  if (options_.spin != SpinMode::kNever && spin_.Until(news, *until)) return false;
  shared_.waker->BeforeSleep();
  if (!armed_) {
    TANDEM_CHECK(ibv_req_notify_cq(shared_.cq, 0) == 0);
    armed_ = true;
  }
  // Look once more: a completion may have come before the notification was armed, which then says
  // nothing of it; and buffers may have been released since the last turn.
  if (news()) return false;
  for (const auto& [id, peer] : peers_) {
    if (!peer->connected || peer->gone) continue;
    if (absl::Status given = peer->connection->GiveBack(); !given.ok()) Break(peer.get(), given);
  }
  if (!gone_.empty()) return false;
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
    if (ready[i].data.u64 == kCompletionKey) OnCompletionEvent();
    if (ready[i].data.u64 == kManagerKey) OnManagerEvents();
  }
  next_look_ = Clock::now() + kLookAround;
  return count;
}

void RdmaEndpoint::OnCompletionEvent() {
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(channel_, &cq, &context) == 0) {
    armed_ = false;
    if (++unacked_ >= kUnackedEvents) ibv_ack_cq_events(shared_.cq, std::exchange(unacked_, 0));
  }
}

void RdmaEndpoint::RunTimers(Clock::time_point now) {
  if (now >= next_look_) Look(0);
  if (now < next_timer_) return;
  next_timer_ = Clock::time_point::max();
  ids_.clear();
  for (const auto& [id, peer] : peers_) ids_.push_back(id);
  for (const PeerId id : ids_) {
    if (RdmaPeer* const peer = Find(id); peer != nullptr && !peer->gone) TickPeer(peer, now);
  }
}

void RdmaEndpoint::TickPeer(RdmaPeer* peer, Clock::time_point now) {
  if (now >= peer->close_deadline) return Drop(peer->id);
  ScheduleAt(peer->close_deadline);
  if (now >= peer->probe_at) {
    if (absl::Status probed = peer->connection->Probe(); !probed.ok()) return Break(peer, probed);
    peer->probe_at = now + ToClock(options_.probe_interval);
  }
  ScheduleAt(peer->probe_at);
  if (peer->connected || peer->state == RdmaPeer::State::kAccepting) return;
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

}  // namespace tandem
