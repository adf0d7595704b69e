#include "client/client_engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace tandem::client {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);
// How often the engine's thread looks for work that no caller's thread does. While callers drive,
// it looks less and less often, because each wake-up takes a core away from them.
constexpr absl::Duration kGlance = absl::Milliseconds(1);
constexpr absl::Duration kLongestGlance = absl::Milliseconds(16);
// Looks without a request before the long sleep begins, which lasts until a call starts.
constexpr int kIdleGlances = 8;

}  // namespace

ClientEngine::ClientEngine(const job::ResolvedJob& plan,
                           std::unique_ptr<transport::Transport> transport, const Options& options)
    : plan_(plan),
      options_(options),
      transport_(std::move(transport)),
      core_(plan, options.self, options.incarnation, *transport_, options.core),
      store_(plan, options.self, options.incarnation, *transport_, options.core),
      peers_(*transport_) {
  core_.set_frame_ready([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { SendReady(); });
  thread_ = std::thread([this] { Background(); });
}

ClientEngine::~ClientEngine() = default;

// Order: stop the engine's thread; wait until no caller drives; then "drive" for ever, so that
// nobody else uses the transport; then finish all calls and close the transport.
void ClientEngine::Shutdown() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    started_.Signal();
    transport_->Wake();
  }
  thread_.join();
  {
    absl::MutexLock lock(&mutex_);
    while (driving_) changed_.Wait(&mutex_);
    driving_ = true;  // stays true: nobody drives after this
    CancelAll();
    Complete();
    changed_.SignalAll();
  }
  transport_.reset();
}

absl::Status ClientEngine::SetView(const View& view) {
  TANDEM_ASSIGN_OR_RETURN(auto map, RangeMap::FromView(view, plan_.sizes()));
  absl::MutexLock lock(&mutex_);
  store_.OnView(MonotonicNow(), map);
  core_.OnView(MonotonicNow(), std::move(map));
  views_.push_back(view);
  have_view_ = true;
  transport_->Wake();
  return absl::OkStatus();
}

ClientCore::Counters ClientEngine::counters() const {
  absl::MutexLock lock(&mutex_);
  return core_.counters();
}

std::string ClientEngine::Waiting() const {
  absl::MutexLock lock(&mutex_);
  return core_.Waiting(MonotonicNow()).text;
}

// ---- callers ----------------------------------------------------------------------------------

bool ClientEngine::HasRoom() const { return in_flight_ < options_.max_in_flight; }

absl::Status ClientEngine::PreparePush(uint32_t group, absl::Span<const TableKeys> keys,
                                       ClientCore::PreparedPush* push) {
  absl::MutexLock lock(&mutex_);
  if (!have_view_) return absl::FailedPreconditionError("client: no view has been set");
  core_.PreparePush(group, keys, push);
  return absl::OkStatus();
}

absl::Status ClientEngine::Start(std::shared_ptr<ClientCall> call) {
  absl::MutexLock lock(&mutex_);
  if (!have_view_) return absl::FailedPreconditionError("client: no view has been set");
  if (!options_.refuse_when_full) {
    DriveUntil([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                   mutex_) { return stop_ || !failure_.ok() || HasRoom(); },
               call->deadline);
  }
  TANDEM_RETURN_IF_ERROR(failure_);
  if (stop_) return absl::CancelledError("the client was closed");
  if (!HasRoom()) {
    if (!options_.refuse_when_full) {
      return absl::DeadlineExceededError(absl::StrCat(
          "client: ", in_flight_, " requests are in flight; ", core_.Waiting(MonotonicNow()).text));
    }
    return absl::ResourceExhaustedError(
        absl::StrCat("client: ", in_flight_, " requests are in flight"));
  }
  if (asleep_) started_.Signal();
  // If another thread drives, it sends the frames, so wake it. Otherwise this thread drives for the
  // duration of the call: it sends frames while the next ones are packed (SendReady).
  if (driving_) {
    Issue(std::move(call));
    transport_->Wake();
  } else {
    driving_ = issuing_ = true;
    Issue(std::move(call));
    issuing_ = false;
    Settle();
    driving_ = false;
    changed_.SignalAll();
  }
  return absl::OkStatus();
}

void ClientEngine::Issue(std::shared_ptr<ClientCall> call) {
  const absl::Time now = MonotonicNow();
  ++in_flight_;
  Running running;
  if (call->store.has_value()) {
    running.number = store_.Start(now, *call->store);
  } else if (call->push) {
    call->info.clock_gap = static_cast<int32_t>(
        std::max<int64_t>(0, call->info.step - core_.largest_min_clock(call->info.group)));
    call->info.in_flight = ++pushes_in_flight_;
    running.number = call->prepared != nullptr
                         ? core_.Push(now, call->info, std::exchange(call->prepared, nullptr))
                         : core_.Push(now, call->info, call->keys, call->gradients);
  } else if (!call->kept_rows.empty()) {
    running.number = core_.PullInPlace(now, call->info.group, call->info.step, call->keys,
                                       call->kept_rows, call->info.flags);
  } else {
    running.number = core_.Pull(now, call->info.group, call->info.step, call->keys, call->rows,
                                call->info.flags);
  }
  running.call = std::move(call);
  running_.push_back(std::move(running));
}

// Sends the frames that the core has made so far for a call that is being issued, so that they
// travel while the next one is packed.
void ClientEngine::SendReady() {
  if (!issuing_ || !views_.empty()) return;  // another thread drives, or addresses are not set yet
  for (Outgoing& out : core_.out()) SendNow(std::move(out));
  core_.out().clear();
}

// Gives a frame to the transport. The core resends a frame that cannot leave, as a lost one.
void ClientEngine::SendNow(Outgoing out) {
  const EndpointId to = out.to;
  const absl::Status sent = peers_.Send(std::move(out));
  if (sent.ok() || absl::IsResourceExhausted(sent)) return;
  lost_.push_back({to, std::string(sent.message())});
}

// Ends a call. The core forgets the request and ignores late answers to it.
void ClientEngine::End(std::vector<Running>::iterator running, absl::Status outcome) {
  const std::shared_ptr<ClientCall> call = std::move(running->call);
  if (call->store.has_value()) {
    store_.Cancel(MonotonicNow(), running->number);
  } else {
    core_.Cancel(running->number);
  }
  running_.erase(running);
  --in_flight_;
  if (call->push) --pushes_in_flight_;
  call->Finish(std::move(outcome));
  changed_.SignalAll();
}

void ClientEngine::Cancel(const ClientCall& call) {
  absl::MutexLock lock(&mutex_);
  const auto running = std::find_if(running_.begin(), running_.end(),
                                    [&call](const Running& r) { return r.call.get() == &call; });
  if (running != running_.end()) return End(running, absl::CancelledError("cancelled"));
  // The core has completed the request, and the driving thread is about to finish the call.
  DriveUntil([&call] { return call.done.load(std::memory_order_relaxed); }, absl::InfiniteFuture());
}

// Ends all calls with the first reason. Calls that come later find `failure_` in Start.
void ClientEngine::Fail(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return;
  failure_ = why;
  while (!running_.empty()) End(running_.begin(), why);
  changed_.SignalAll();
}

void ClientEngine::EndLateCalls(absl::Time now) {
  for (size_t i = 0; i < running_.size();) {
    if (now < running_[i].call->deadline) {
      ++i;
      continue;
    }
    const bool store = running_[i].call->store.has_value();
    End(running_.begin() + static_cast<std::ptrdiff_t>(i),
        absl::DeadlineExceededError(store ? store_.Waiting(now, running_[i].number)
                                          : core_.Waiting(now, running_[i].number).text));
  }
}

void ClientEngine::Wait(const ClientCall& call, absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  DriveUntil([&call] { return call.done.load(std::memory_order_relaxed); }, deadline);
}

// Waits until ready() is true, as one of two kinds of thread: while another thread drives, it waits
// for `changed_`; otherwise it drives itself, until ready() or the deadline. Every thread that
// stops driving signals all, so that another waiting thread takes over.
template <typename Ready>
void ClientEngine::DriveUntil(Ready ready, absl::Time deadline) {
  if (ready()) return;
  ++waiting_;
  if (background_) transport_->Wake();  // the engine's thread stops driving for this one
  while (!ready()) {
    if (driving_ || stop_) {
      if (changed_.WaitUntil(&mutex_, deadline)) break;
      continue;
    }
    driving_ = true;
    absl::Duration left = kTick;
    while (!ready() && !stop_ && left > absl::ZeroDuration()) {
      Turn(left);
      if (deadline != absl::InfiniteFuture()) left = std::min(kTick, deadline - MonotonicNow());
    }
    driving_ = false;
    changed_.SignalAll();
    if (left <= absl::ZeroDuration()) break;
  }
  --waiting_;
}

// ---- the engine's thread ----------------------------------------------------------------------

// The engine's own thread. The thread drives only if no caller waits, because a caller that drives
// processes its own answer without a hand-over. While requests are in flight, it looks every
// `glance`; after some looks without a request it sleeps until a call starts or a tick is due.
void ClientEngine::Background() {
  absl::MutexLock lock(&mutex_);
  absl::Duration glance = kGlance;
  for (int idle = 0; !stop_;) {
    const uint64_t turns = turns_;
    asleep_ = idle >= kIdleGlances;
    started_.WaitUntil(&mutex_, MonotonicNow() + (asleep_ ? kTick : glance));
    const bool slept = std::exchange(asleep_, false);
    idle = in_flight_ > 0 ? 0 : idle + 1;
    glance = slept ? kGlance : std::min(2 * glance, kLongestGlance);
    if (stop_ || driving_ || waiting_ > 0) continue;
    // A request that was just issued may still get a thread that waits for it and drives; look
    // again later.
    if (in_flight_ > 0 ? slept || turns_ != turns : MonotonicNow() < next_tick_) continue;
    if (in_flight_ > 0) glance = kGlance;
    driving_ = background_ = true;
    do {
      Turn(in_flight_ > 0 ? kTick : absl::ZeroDuration());
    } while (in_flight_ > 0 && waiting_ == 0 && !stop_);
    driving_ = background_ = false;
    changed_.SignalAll();
  }
}

// ---- driving ----------------------------------------------------------------------------------

// Waits for events and processes them. Losses and frames go to the cores before the ticks, because
// a tick decides which frames are sent again. Settle comes last: it sends what all of them have
// produced and finishes calls.
void ClientEngine::Turn(absl::Duration timeout) {
  ++turns_;
  mutex_.Unlock();
  transport_->Poll(timeout, &events_);
  const absl::Time now = MonotonicNow();
  for (const transport::TransportEvent& event : events_) {
    if (const EndpointId lost = peers_.OnEvent(event); lost != EndpointId()) {
      lost_.push_back({lost, std::string(event.why.message())});
    }
  }
  mutex_.Lock();
  for (const Lost& lost : lost_) {
    core_.OnLost(now, lost.shard, lost.why);
    store_.OnLost(now, lost.shard, lost.why);
  }
  lost_.clear();
  for (const transport::TransportEvent& event : events_) {
    if (event.kind != transport::TransportEvent::Kind::kFrame) continue;
    if (event.frame.header.kind == FrameKind::kStored) {
      store_.OnFrame(now, event.frame);
    } else {
      core_.OnFrame(now, event.frame);
    }
  }
  if (now >= next_tick_) {
    next_tick_ = now + kTick;
    core_.OnTick(now);
    store_.OnTick(now);
    EndLateCalls(now);
  }
  Settle();
}

// Sends what the cores have produced and finishes completed calls. The lock is released while the
// transport sends, so that other threads can issue calls meanwhile. Their results are taken in the
// next round, until nothing is left.
void ClientEngine::Settle() {
  while (TakeResults()) {
    mutex_.Unlock();
    events_.clear();  // returns their memory to the transport
    SetAddresses();
    for (Outgoing& out : out_) SendNow(std::move(out));
    out_.clear();
    mutex_.Lock();
    Complete();
  }
}

// Takes new views, frames and completed calls from under the lock. Returns false if there is
// nothing to do.
bool ClientEngine::TakeResults() {
  new_views_.swap(views_);
  out_.swap(core_.out());
  for (Outgoing& out : store_.out()) out_.push_back(std::move(out));
  store_.out().clear();
  const auto take = [this](bool store, auto* completions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto& completion : *completions) {
      const auto found = std::find_if(running_.begin(), running_.end(), [&](const Running& r) {
        return r.number == completion.request && r.call->store.has_value() == store;
      });
      if (found == running_.end()) continue;
      done_.push_back({std::move(found->call), std::move(completion.status)});
      running_.erase(found);
    }
    completions->clear();
  };
  take(false, &core_.completions());
  take(true, &store_.completions());
  return !new_views_.empty() || !out_.empty() || !done_.empty() || !events_.empty();
}

void ClientEngine::CancelAll() {
  for (Running& running : running_) {
    done_.push_back({std::move(running.call), absl::CancelledError("the client was closed")});
  }
  running_.clear();
}

void ClientEngine::SetAddresses() {
  for (const View& view : new_views_) {
    for (int s = 0; s < view.server_size(); ++s) {
      for (int t = 0; t < view.server(s).endpoint_size(); ++t) {
        const EndpointId shard = EndpointId::Shard(s, t);
        if (peers_.SetAddress(shard, view.server(s).endpoint(t))) lost_.push_back({shard, ""});
      }
    }
  }
  new_views_.clear();
}

void ClientEngine::Complete() {
  if (done_.empty()) return;
  for (Done& done : done_) {
    --in_flight_;
    if (done.call->push) --pushes_in_flight_;
    done.call->Finish(std::move(done.status));
  }
  done_.clear();
  changed_.SignalAll();
}

}  // namespace tandem::client
