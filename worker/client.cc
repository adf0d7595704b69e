#include "worker/client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "worker/pooling.h"

namespace tandem {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);

absl::Status Cancelled() { return absl::CancelledError("the client was closed"); }

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::New(const JobPlan& plan,
                                                    std::unique_ptr<Transport> transport,
                                                    const Options& options) {
  if (options.rank < 0 || options.rank >= plan.workers() || options.incarnation == 0 ||
      options.max_in_flight < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "client: rank ", options.rank, " of ", plan.workers(), " workers, incarnation ",
        options.incarnation, " (never 0), max_in_flight ", options.max_in_flight, " (1 or more)"));
  }
  return std::unique_ptr<Client>(new Client(plan, std::move(transport), options));
}

Client::Client(const JobPlan& plan, std::unique_ptr<Transport> transport, const Options& options)
    : plan_(plan),
      options_(options),
      transport_(std::move(transport)),
      core_(plan, options.rank, options.incarnation, *transport_, options.core),
      peers_(*transport_),
      thread_([this] { Loop(); }) {}

Client::~Client() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  transport_->Wake();
  thread_.join();
}

absl::Status Client::SetView(const View& view) {
  TANDEM_ASSIGN_OR_RETURN(auto map, RangeMap::FromView(view, plan_));
  {
    absl::MutexLock lock(&mutex_);
    core_.OnView(absl::Now(), std::move(map));
    views_.push_back(view);
    have_view_ = true;
  }
  transport_->Wake();
  return absl::OkStatus();
}

ClientCore::Counters Client::counters() const {
  absl::MutexLock lock(&mutex_);
  return core_.counters();
}

// ---- callers' threads -------------------------------------------------------------------------

Future Client::Pull(uint32_t group, int64_t step, absl::Span<const TableKeys> keys,
                    absl::Span<const absl::Span<float>> rows, Ids ids) {
  auto call = std::make_unique<Call>(Future());
  call->info.group = group;
  call->info.first_step = call->info.step = step;
  call->keys.assign(keys.begin(), keys.end());
  call->rows.assign(rows.begin(), rows.end());
  return Start(std::move(call), ids);
}

Future Client::Push(uint32_t group, int64_t step, uint64_t samples,
                    absl::Span<const TableKeys> keys,
                    absl::Span<const absl::Span<const float>> gradients, Ids ids) {
  auto call = std::make_unique<Call>(Future());
  call->push = true;
  call->info.group = group;
  call->info.first_step = call->info.step = step;
  call->info.samples = samples;
  call->keys.assign(keys.begin(), keys.end());
  call->gradients.assign(gradients.begin(), gradients.end());
  return Start(std::move(call), ids);
}

// What the core takes for granted.
absl::Status Client::Check(const Call& call) const {
  const char* const what = call.push ? "push" : "pull";
  const size_t values = call.push ? call.gradients.size() : call.rows.size();
  if (call.info.group >= plan_.groups.size() || call.info.step < 0 || values != call.keys.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": group ", call.info.group, " of ", plan_.groups.size(), ", step ", call.info.step,
        ", ", call.keys.size(), " tables with ", values, " arrays of values"));
  }
  std::vector<bool> seen(plan_.tables.size(), false);
  for (size_t i = 0; i < call.keys.size(); ++i) {
    const uint32_t id = call.keys[i].table;
    if (id >= plan_.tables.size() || plan_.tables[id].group != call.info.group || seen[id]) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": table ", id, " is not of group ", call.info.group, ", or twice"));
    }
    seen[id] = true;
    const size_t floats = call.push ? call.gradients[i].size() : call.rows[i].size();
    const size_t want = call.keys[i].keys.size() * static_cast<size_t>(plan_.tables[id].dim);
    if (floats != want) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": ", call.keys[i].keys.size(),
                                                     " ids of table ", plan_.tables[id].name,
                                                     " with ", floats, " floats, want ", want));
    }
  }
  return absl::OkStatus();
}

void Client::MergeRepeated(Call* call) {
  for (size_t i = 0; i < call->keys.size(); ++i) {
    TableKeys& table = call->keys[i];
    Call::Unique unique;
    unique.input = i;
    {
      absl::MutexLock lock(&merge_mutex_);
      index_.Unique(table.keys, &ids_.keys, &ids_.index);
      if (ids_.keys.size() == table.keys.size()) continue;  // travel as they stand
      unique.ids = ids_;
    }
    const int dim = plan_.tables[table.table].dim;
    unique.floats.resize(unique.ids.keys.size() * static_cast<size_t>(dim));
    if (call->push) {
      MergeGradients(unique.ids, dim, call->gradients[i], absl::MakeSpan(unique.floats));
      call->gradients[i] = unique.floats;
    } else {
      unique.rows = call->rows[i];
      call->rows[i] = absl::MakeSpan(unique.floats);
    }
    table.keys = unique.ids.keys;
    call->unique.push_back(std::move(unique));  // moving a vector keeps its memory
  }
}

bool Client::HasRoom() const { return stop_ || in_flight_ < options_.max_in_flight; }

Future Client::Start(std::unique_ptr<Call> call, Ids ids) {
  const Future future = call->future;
  absl::Status status = Check(*call);
  if (status.ok()) {
    if (ids == Ids::kMayRepeat) MergeRepeated(call.get());
    status = Admit(std::move(call));
  }
  if (status.ok()) {
    transport_->Wake();
  } else {
    future.Set(std::move(status));
  }
  return future;
}

// Makes the frames of a call once there is room for it.
absl::Status Client::Admit(std::unique_ptr<Call> call) {
  absl::MutexLock lock(&mutex_);
  if (!have_view_) return absl::FailedPreconditionError("client: no view has been set");
  if (!options_.refuse_when_full) mutex_.Await(absl::Condition(this, &Client::HasRoom));
  if (stop_) return Cancelled();
  if (!HasRoom()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("client: ", in_flight_, " requests are in flight"));
  }
  const absl::Time now = absl::Now();
  ++in_flight_;
  uint64_t number = 0;
  if (call->push) {
    call->info.clock_gap = static_cast<int32_t>(
        std::max<int64_t>(0, call->info.step - core_.largest_min_clock(call->info.group)));
    call->info.in_flight = ++pushes_in_flight_;
    number = core_.Push(now, call->info, call->keys, call->gradients);
  } else {
    number = core_.Pull(now, call->info.group, call->info.step, call->keys, call->rows, 0);
  }
  calls_[number] = std::move(call);
  return absl::OkStatus();
}

// ---- the client's thread ----------------------------------------------------------------------

void Client::Loop() {
  std::vector<TransportEvent> events;
  absl::Time next_tick = absl::Now();
  for (bool stop = false; !stop;) {
    transport_->Poll(kTick, &events);
    const absl::Time now = absl::Now();
    for (const TransportEvent& event : events) peers_.OnEvent(event);
    {
      absl::MutexLock lock(&mutex_);
      for (const TransportEvent& event : events) {
        if (event.kind == TransportEvent::Kind::kFrame) core_.OnFrame(now, event.frame);
      }
      if (now >= next_tick) {
        next_tick = now + kTick;
        core_.OnTick(now);
      }
      TakeResults();
      stop = stop_;
    }
    events.clear();  // their memory goes back to the transport
    SetAddresses();
    SendAll();
    Complete();
  }
}

// What the core has produced, to be dealt with when others may use it again.
void Client::TakeResults() {
  new_views_.swap(views_);
  out_.swap(core_.out());
  for (ClientCore::Completion& completion : core_.completions()) {
    const auto found = calls_.find(completion.request);
    if (found == calls_.end()) continue;
    done_.push_back({std::move(found->second), std::move(completion.status)});
    calls_.erase(found);
  }
  core_.completions().clear();
  if (!stop_) return;
  for (auto& [number, call] : calls_) done_.push_back({std::move(call), Cancelled()});
  calls_.clear();
}

void Client::SetAddresses() {
  for (const View& view : new_views_) {
    for (int s = 0; s < view.server_size(); ++s) {
      for (int t = 0; t < view.server(s).endpoint_size(); ++t) {
        peers_.SetAddress(EndpointId::Shard(s, t), view.server(s).endpoint(t));
      }
    }
  }
  new_views_.clear();
}

void Client::SendAll() {
  for (Outgoing& out : out_) (void)peers_.Send(std::move(out));  // lost ones go out again
  out_.clear();
}

void Client::Complete() {
  for (Done& done : done_) {
    Call& call = *done.call;
    if (!call.push && done.status.ok()) {
      for (const Call::Unique& unique : call.unique) {
        PoolRows(unique.ids, plan_.tables[call.keys[unique.input].table].dim, unique.floats,
                 unique.rows);
      }
    }
    {
      absl::MutexLock lock(&mutex_);
      --in_flight_;
      if (call.push) --pushes_in_flight_;
    }
    call.future.Set(std::move(done.status));
  }
  done_.clear();
}

}  // namespace tandem
