#include "tools/sim/timing.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "data/service_trace.h"

namespace tandem::sim {
namespace {

constexpr Ticks kNever = std::numeric_limits<Ticks>::max();
constexpr absl::Duration kProbePause = absl::Milliseconds(5);
constexpr uint64_t kAskEvery = 1 << 14;  // events between two calls of `stopped`

bool PoliciesTell(const job::ResolvedJob& plan) {
  const bool lockstep = std::any_of(plan.groups.begin(), plan.groups.end(),
                                    [](const auto& group) { return group.properties.lockstep; });
  return lockstep &&
         (plan.job.dense().synchroniser() != Dense::ALLREDUCE || job::SumsByQuorum(plan.job));
}

// The time of an allreduce with DIRECT, in which each worker sums a share.
Ticks DirectTicks(const job::ResolvedJob& plan, const TimingOptions& options) {
  Ticks takes = plan.workers() == 1 ? 0 : 2 * TicksOf(options.latency);
  if (options.bytes_per_second > 0) {
    const double others = 1.0 - 1.0 / plan.workers();
    takes += static_cast<Ticks>(std::llround(2 * others * options.dense_bytes /
                                             options.bytes_per_second * kTicksPerSecond));
  }
  return takes;
}

}  // namespace

// The gate of StepOrder::Next.
struct Timing::Gate {
  int64_t pushes() const {
    timing.TakeAcks(rank);
    return static_cast<int64_t>(timing.worker(rank).acks.size());
  }
  void AwaitPush() const { timing.AwaitWord(rank); }
  int groups() const { return static_cast<int>(timing.groups_.size()); }
  const Group& of(int group) const { return timing.groups_[static_cast<size_t>(group)]; }
  const policies::UpdatePolicy& policy(int group) const { return *of(group).policy; }
  int64_t told(int group) const { return of(group).told[static_cast<size_t>(rank)]; }
  void Refused(int /*group*/) const { timing.Ask(rank); }

  Timing& timing;
  const int rank;
};

absl::Status Timing::Check(const job::ResolvedJob& plan) {
  if (plan.workers_serve) {
    return absl::InvalidArgumentError(
        "table.placement: only tables on servers are timed without rows; leave it out");
  }
  for (const job::GroupPlan& group : plan.trained_groups()) {
    if (!group.properties.keeps_rows) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("policy.kind: ", Policy::Kind_Name(group.policy.kind()),
                     " has workers keep rows, and which of them they need not read is not known "
                     "without rows; hint: SSP, with the same bound, is timed"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Timing>> Timing::New(const job::ResolvedJob& plan,
                                                    const TimingOptions& options) {
  TANDEM_RETURN_IF_ERROR(Check(plan));
  std::unique_ptr<Timing> timing(new Timing(plan, options));
  TANDEM_RETURN_IF_ERROR(timing->Init());
  return timing;
}

Timing::Timing(const job::ResolvedJob& plan, const TimingOptions& options)
    : plan_(plan),
      options_(options),
      depth_(plan.job.train().prefetch_steps()),
      batch_(plan.job.train().batch_size()),
      replicas_(plan.dense_table < 0),
      policies_tell_(PoliciesTell(plan)),
      slots_each_(plan.job.train().prefetch_steps() + plan.job.train().max_inflight_pushes() + 3),
      latency_(TicksOf(options.latency)),
      links_(plan.workers(), plan.servers(), latency_, options.bytes_per_second) {}

absl::Status Timing::Init() {
  const auto workers = static_cast<size_t>(plan_.workers());
  if (options_.step_ticks.empty()) {
    TANDEM_ASSIGN_OR_RETURN(times_, data::OpenStepTimesOfAll(plan_, options_.service_seed));
  }
  sums_.emplace(plan_, options_.sum_ticks.value_or(DirectTicks(plan_, options_)), latency_,
                &agenda_);
  ended_.resize(workers);
  const StepOrder::Options order = {depth_, slots_each_, plan_.job.train().max_inflight_pushes(),
                                    plan_.lockstep};
  StepOrder::Epoch epoch;
  epoch.limit = options_.steps;
  epoch.syncs_at_end = replicas_ && policies_tell_ && !sums_->by_quorum();
  workers_.assign(workers, Worker(order));
  for (Worker& w : workers_) w.order.Begin(epoch);
  slots_.resize(workers * static_cast<size_t>(slots_each_));
  for (const job::GroupPlan& config : plan_.trained_groups()) {
    Group group;
    TANDEM_ASSIGN_OR_RETURN(group.policy,
                            policies::NewUpdatePolicy(config.policy, plan_.workers()));
    TimedRange::Observer observer;
    if (options_.on_update) {
      observer = [this, id = config.id](const TimedFate& fate) { options_.on_update(id, fate); };
    }
    const int reads = 1 + depth_ + plan_.job.train().max_inflight_pushes();
    group.range = std::make_unique<TimedRange>(*group.policy, plan_.workers(), reads,
                                               plan_.lockstep, std::move(observer));
    group.front = group.range->front();
    group.told.resize(workers);
    group.waiting_of.resize(workers);
    group.reads.resize(slots_.size());
    group.acknowledged.resize(slots_.size());
    groups_.push_back(std::move(group));
  }
  waits_counted_to_.resize(workers, -1);
  waited_.resize(workers);
  awaited_.resize(workers);
  if (plan_.CountsWaitsInPairs()) pairs_.assign(workers, std::vector<double>(workers));
  return absl::OkStatus();
}

absl::Status Timing::Run() {
  // All workers begin at the same time. The first pulls of all workers come before any second pull.
  for (int ahead = 0; ahead <= depth_; ++ahead) {
    for (int rank = 0; rank < plan_.workers(); ++rank) {
      Fetch(rank);
      if (worker(rank).order.MayRead()) StartRead(rank);
    }
  }
  const Ticks limit = options_.limit == absl::InfiniteDuration() ? kNever : TicksOf(options_.limit);
  while (done_ < plan_.workers()) {
    if (agenda_.empty()) {
      return absl::InternalError(
          absl::StrCat(plan_.workers() - done_, " workers wait for what never happens"));
    }
    if (agenda_.next() > limit) {
      cut_at_ = limit;
      break;
    }
    Dispatch(agenda_.Take());
    if (agenda_.taken() % kAskEvery == 0 && options_.stopped && options_.stopped()) {
      return absl::CancelledError("stopped");
    }
    if (agenda_.now() > kNever / 4) {
      return absl::OutOfRangeError("more than ten years of virtual time");
    }
  }
  for (Group& group : groups_) group.range->FinishDelayed();
  return absl::OkStatus();
}

void Timing::Dispatch(const Event& event) {
  switch (event.kind) {
    case Kind::kReadArrives:
      return OnRead(event);
    case Kind::kRowsArrive:
      return OnRows(event);
    case Kind::kComputed:
      worker(event.rank).order.OnComputed();
      return Advance(event.rank);
    case Kind::kPushArrives:
      return OnPush(event);
    case Kind::kProbeArrives:
      return OnProbe(event.rank);
    case Kind::kWordArrives:
      worker(event.rank).awaits_word = false;
      worker(event.rank).order.OnOpenStep(event.step);
      return Advance(event.rank);
    case Kind::kSummed:
      return OnSummed(event.rank);
    case Kind::kNewsArrives:
      return sums_->OnNews(event);
    case Kind::kGraceEnds:
      return sums_->Begin();
  }
}

// ---- workers ----------------------------------------------------------------------------------

void Timing::Advance(int rank) {
  while (AdvanceOnce(rank)) {
  }
}

// As StepPipeline::Advance. Fetches take no time.
bool Timing::AdvanceOnce(int rank) {
  StepOrder& order = worker(rank).order;
  if (order.over()) return Leave(rank);
  switch (order.Next(std::numeric_limits<int64_t>::max(), Gate{*this, rank})) {
    case StepOrder::Act::kNothing:
    case StepOrder::Act::kDrop:  // no process takes the place of another
      return false;
    case StepOrder::Act::kPush:
      AfterCompute(rank);
      break;
    case StepOrder::Act::kEnd:
      order.End();
      sums_->Leave(rank);
      break;
    case StepOrder::Act::kSkip:
      Skip(rank);
      break;
    case StepOrder::Act::kFetch:
      Fetch(rank);
      break;
    case StepOrder::Act::kRead:
      StartRead(rank);
      break;
    case StepOrder::Act::kStart:
      StartCompute(rank);
      break;
    case StepOrder::Act::kFinish:
      if (HasSamples(order.step())) ended_[static_cast<size_t>(rank)] = agenda_.now();
      order.Finish(nobody_);
      break;
  }
  return true;
}

// The end of an epoch (worker/epoch_end.h), up to the barrier of all workers.
bool Timing::Leave(int rank) {
  Worker& w = worker(rank);
  if (w.stage == Worker::Stage::kDone || !AllAcknowledged(rank)) return false;
  if (w.stage == Worker::Stage::kDraining && !plan_.lockstep) {
    PushEmpty(rank, w.order.step(), /*finished=*/true);
    w.stage = Worker::Stage::kLeaving;
    return true;
  }
  w.stage = Worker::Stage::kDone;
  ++done_;
  return false;
}

void Timing::Skip(int rank) {
  Worker& w = worker(rank);
  const int64_t to = w.order.skips_to(std::numeric_limits<int64_t>::max());
  PushEmpty(rank, to - 1, /*finished=*/false);
  w.order.Skip(to);
  ++w.life;  // prefetched rows are pulled again
  if (sums_->Skip(rank, to - 1)) w.order.AwaitSkipped();
}

void Timing::Fetch(int rank) {
  StepOrder& order = worker(rank).order;
  if (order.BeginFetch()) order.OnFetched(/*samples=*/true);
}

void Timing::StartRead(int rank) {
  Worker& w = worker(rank);
  Event read;
  read.kind = Kind::kReadArrives;
  read.rank = rank;
  read.step = w.order.next_read();
  read.slot = SlotOf(rank, read.step);
  read.extra = w.life;
  slot(read.slot) = {static_cast<int>(groups_.size()), agenda_.now()};
  w.order.BeginRead();
  agenda_.Put(links_.Sent(rank, 0, agenda_.now()), read);
}

void Timing::OnRows(const Event& event) {
  Worker& w = worker(event.rank);
  if (event.extra != w.life) return;
  Slot& s = slot(event.slot);
  w.order.OnRows(event.slot - event.rank * slots_each_);
  const Ticks took = agenda_.now() - s.asked;
  w.shortest_read = w.shortest_read < 0 ? took : std::min(w.shortest_read, took);
  for (Group& group : groups_) {
    const TimedRead& read = group.reads[static_cast<size_t>(event.slot)];
    int64_t& told = group.told[static_cast<size_t>(event.rank)];
    told = std::max(told, read.min_clock);
    const bool tells = policies_tell_ && group.range->properties().lockstep;
    if (tells && read.closed_samples == 0 && w.order.MayTellEnd(event.step)) w.order.OnEmptyStep();
  }
  Advance(event.rank);
}

void Timing::StartCompute(int rank) {
  Worker& w = worker(rank);
  w.order.Start();
  if (!HasSamples(w.order.step())) return;
  w.computes = TakesOf(rank, w.order.step());
  Event computed;
  computed.kind = Kind::kComputed;
  computed.rank = rank;
  agenda_.Put(agenda_.now() + w.computes, computed);
}

Ticks Timing::TakesOf(int rank, int64_t step) const {
  const auto r = static_cast<size_t>(rank);
  if (!options_.step_ticks.empty()) {
    const std::vector<Ticks>& ticks = options_.step_ticks[r];
    return ticks[static_cast<size_t>(step) % ticks.size()];
  }
  const absl::Duration takes = times_[r].any() ? times_[r].Of(step) : options_.compute;
  return TicksOf(options_.min_compute.empty() ? takes : std::max(takes, options_.min_compute[r]));
}

void Timing::Ask(int rank) {
  if (std::exchange(worker(rank).awaits_word, true)) return;
  Event probe;
  probe.kind = Kind::kProbeArrives;
  probe.rank = rank;
  agenda_.Put(std::max(links_.Sent(rank, 0, agenda_.now()), agenda_.now() + TicksOf(kProbePause)),
              probe);
}

void Timing::AfterCompute(int rank) {
  Worker& w = worker(rank);
  TakeAcks(rank);
  const int64_t step = w.order.step();
  const int index = SlotOf(rank, step);
  const bool samples = HasSamples(step);
  Slot& s = slot(index);
  s.clock_gap = static_cast<int32_t>(w.order.clock_gap());
  s.in_flight = static_cast<int32_t>(w.order.InFlight(static_cast<int64_t>(w.acks.size())));
  Event push;
  push.kind = Kind::kPushArrives;
  push.rank = rank;
  push.step = step;
  push.slot = index;
  w.acks.push_back({step, index});
  agenda_.Put(links_.Sent(rank, samples ? options_.step_bytes : 0, agenda_.now()), push);
  if (samples) {
    ++w.taken;
    w.computed += w.computes;
    ++steps_since_;
  }
  const bool meets = replicas_ && sums_->Meets(w.order);
  w.order.Pushed(/*waits=*/meets);
  if (meets) sums_->Enter(rank, step);
}

void Timing::OnSummed(int rank) {
  if (rank >= 0) {
    worker(rank).order.OnSynchronised();
    return Advance(rank);
  }
  nobody_ = steps_since_ == 0 && !policies_tell_;
  steps_since_ = 0;
  for (Worker& w : workers_) w.order.OnSynchronised();
  for (int each = 0; each < plan_.workers(); ++each) Advance(each);
}

void Timing::PushEmpty(int rank, int64_t to, bool finished) {
  Worker& w = worker(rank);
  Event push;
  push.kind = Kind::kPushArrives;
  push.rank = rank;
  push.step = to;
  push.extra = static_cast<uint32_t>(to - w.order.step());
  push.finished = finished;
  w.acks.push_back({to, -1});
  agenda_.Put(links_.Sent(rank, 0, agenda_.now()), push);
}

// ---- acknowledgements -------------------------------------------------------------------------
//
// Acknowledgements are no entries of the agenda. The time of an acknowledgement is known once its
// push has arrived, and a worker checks it when needed. A worker that waits for an acknowledgement
// gets an event.

void Timing::TakeAcks(int rank) {
  std::vector<Ack>& acks = worker(rank).acks;
  while (!acks.empty() && acks.front().at >= 0 && acks.front().at <= agenda_.now()) {
    if (acks.front().slot >= 0) {
      for (Group& group : groups_) {
        int64_t& told = group.told[static_cast<size_t>(rank)];
        told = std::max(told, group.acknowledged[static_cast<size_t>(acks.front().slot)]);
      }
    }
    acks.erase(acks.begin());
  }
}

bool Timing::AllAcknowledged(int rank) {
  TakeAcks(rank);
  if (worker(rank).acks.empty()) return true;
  AwaitWord(rank);
  return false;
}

void Timing::AwaitWord(int rank) {
  Worker& w = worker(rank);
  if (w.awaits_word) return;
  w.awaits_word = true;
  if (w.acks.front().at < 0) return;  // OnPush adds the event
  Event word;
  word.kind = Kind::kWordArrives;
  word.rank = rank;
  agenda_.Put(w.acks.front().at, word);
}

// ---- servers ----------------------------------------------------------------------------------

void Timing::OnRead(const Event& event) {
  for (Group& group : groups_) {
    if (group.range->MayServe(event.rank, event.step, depth_)) {
      Answer(&group, event);
    } else {
      group.waiting_of[static_cast<size_t>(event.rank)].push_back(group.parked.size());
      group.parked.push_back({event, agenda_.now()});
    }
  }
}

void Timing::Answer(Group* group, const Event& read) {
  const TimedRead answer = group->range->Read(agenda_.now_us(), read.rank, read.step);
  if (read.extra != worker(read.rank).life) return;
  group->reads[static_cast<size_t>(read.slot)] = answer;
  if (--slot(read.slot).unread > 0) return;
  Event rows = read;
  rows.kind = Kind::kRowsArrive;
  agenda_.Put(
      links_.Received(read.rank, HasSamples(read.step) ? options_.step_bytes : 0, agenda_.now()),
      rows);
}

void Timing::OnPush(const Event& event) {
  Worker& w = worker(event.rank);
  TimedUpdate update;
  update.rank = event.rank;
  update.step = event.step;
  update.first = event.step - static_cast<int64_t>(event.slot < 0 ? event.extra : 0);
  update.finished = event.finished;
  if (event.slot >= 0) {
    update.samples = HasSamples(event.step) ? static_cast<uint64_t>(batch_) : 0;
    update.clock_gap = slot(event.slot).clock_gap;
    update.in_flight = slot(event.slot).in_flight;
  }
  const auto ack =
      std::find_if(w.acks.begin(), w.acks.end(), [](const Ack& a) { return a.at < 0; });
  TANDEM_CHECK(ack != w.acks.end() && ack->step == event.step);
  ack->at = agenda_.now() + latency_;
  int64_t open_step = 0;
  for (Group& group : groups_) {
    const size_t s = static_cast<size_t>(event.slot);
    if (event.slot >= 0) update.read = group.reads[s];
    const bool in_time = group.range->Admit(agenda_.now_us(), update);
    if (!in_time) open_step = std::max(open_step, group.range->progress().version);
    if (event.slot >= 0) group.acknowledged[s] = group.range->progress().MinClock();
  }
  if (w.awaits_word || open_step > 0) {
    Event word;
    word.kind = Kind::kWordArrives;
    word.rank = event.rank;
    word.step = open_step;
    agenda_.Put(ack->at, word);
  }
  for (Group& group : groups_) ServeWaitingReads(&group, event.rank);
}

void Timing::OnProbe(int rank) {
  for (Group& group : groups_) {
    int64_t& told = group.told[static_cast<size_t>(rank)];
    told = std::max(told, group.range->progress().MinClock());
  }
  Event word;
  word.kind = Kind::kWordArrives;
  word.rank = rank;
  agenda_.Put(agenda_.now() + latency_, word);
}

// A push may allow waiting reads of its own worker. If the front has changed, it may allow those of
// any worker.
void Timing::ServeWaitingReads(Group* group, int freed_by) {
  const policies::Front before = std::exchange(group->front, group->range->front());
  if (group->parked.empty()) return;
  std::vector<size_t>& own = group->waiting_of[static_cast<size_t>(freed_by)];
  if (before == group->front && 2 * group->served <= group->parked.size()) {
    for (const size_t place : own) ServeIfFreed(group, freed_by, &group->parked[place]);
    own.erase(std::remove_if(own.begin(), own.end(),
                             [&](size_t place) { return group->parked[place].served; }),
              own.end());
    return;
  }
  for (const WaitingRead& parked : group->parked) {
    group->waiting_of[static_cast<size_t>(parked.read.rank)].clear();
  }
  size_t kept = 0;
  for (WaitingRead& parked : group->parked) {
    if (!parked.served) ServeIfFreed(group, freed_by, &parked);
    if (parked.served) continue;
    group->waiting_of[static_cast<size_t>(parked.read.rank)].push_back(kept);
    group->parked[kept++] = parked;
  }
  group->parked.resize(kept);
  group->served = 0;
}

void Timing::ServeIfFreed(Group* group, int freed_by, WaitingRead* parked) {
  if (!group->range->MayServe(parked->read.rank, parked->read.step, depth_)) return;
  CountWait(parked->read.rank, parked->since, freed_by);
  parked->served = true;
  ++group->served;
  Answer(group, parked->read);
}

// Reads of a worker that wait at the same time count once (server/wait_log.h).
void Timing::CountWait(int rank, Ticks since, int freed_by) {
  Ticks& counted_to = waits_counted_to_[static_cast<size_t>(rank)];
  const Ticks from = std::max(since, counted_to);
  counted_to = agenda_.now();
  if (from >= agenda_.now()) return;
  const double seconds = static_cast<double>(agenda_.now() - from) / kTicksPerSecond;
  waited_[static_cast<size_t>(rank)] += seconds;
  awaited_[static_cast<size_t>(freed_by)] += seconds;
  if (pairs_.empty()) return;
  pairs_[static_cast<size_t>(rank)][static_cast<size_t>(freed_by)] += seconds;
}

// ---- results ----------------------------------------------------------------------------------

absl::Duration Timing::elapsed() const { return DurationOf(std::max(agenda_.now(), cut_at_)); }

namespace {

// Fills in the updates of a table, or of one of its workers. A frozen table applies no update.
template <typename Stats, typename Message>
void FillUpdates(const Stats& stats, bool frozen, Message* out) {
  out->set_sent(stats.arrived);
  out->set_applied(frozen ? 0 : stats.applied);
  out->set_merged(frozen ? 0 : stats.merged);
  out->set_dropped(frozen ? stats.arrived : stats.dropped);
  if (!frozen) server::FillSamples(stats.samples, out->mutable_samples());
  server::FillDistribution(stats.clock_gap, out->mutable_clock_gap());
  if (frozen) return;
  server::FillDistribution(stats.version_staleness, out->mutable_version_staleness());
  server::FillDistribution(stats.age, out->mutable_age());
}

}  // namespace

scheduler::JobReport Timing::Report() const {
  scheduler::JobReport report;
  // Steps of a live job at the end that are not simulated: two pushes that end the epoch. A run
  // that ended at the limit has none.
  const int64_t closing = cut_at_ > 0 || plan_.lockstep ? 0 : 2;
  report.seconds = absl::ToDoubleSeconds(elapsed());
  for (const Worker& w : workers_) {
    const double computed = static_cast<double>(w.computed) / kTicksPerSecond;
    const double read = static_cast<double>(std::max<Ticks>(0, w.shortest_read)) / kTicksPerSecond;
    report.samples_of.push_back(w.taken * batch_);
    report.samples += w.taken * batch_;
    report.trained_steps = std::max(report.trained_steps, w.taken);
    report.max_step = std::max(report.max_step, w.order.step() + closing);
    report.times_of.push_back({w.taken, computed, 0, 0, 0, read});
  }
  if (report.seconds > 0) {
    report.samples_per_second = static_cast<double>(report.samples) / report.seconds;
  }
  for (const job::TablePlan& table : plan_.tables) {
    TableReport& out = report.tables.emplace_back();
    out.set_table(table.name);
    if (table.store) continue;
    const TimedRange::Stats& stats = groups_[table.group].range->stats();
    FillUpdates(stats, table.frozen, &out);
    server::FillDistribution(stats.in_flight, out.mutable_in_flight_depth());
    for (const TimedRange::WorkerStats& worker : stats.workers) {
      FillUpdates(worker, table.frozen, out.add_worker());
    }
  }
  if (replicas_ && !groups_.empty()) {
    server::FillDistribution(groups_[0].range->stats().in_flight, &report.in_flight_depth);
  }
  report.waiting = pairs_;
  if (pairs_.empty()) {
    report.waited = waited_;
    report.awaited = awaited_;
  }
  return report;
}

}  // namespace tandem::sim
