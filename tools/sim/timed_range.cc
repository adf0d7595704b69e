#include "tools/sim/timed_range.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tandem::sim {

TimedRange::TimedRange(const policies::UpdatePolicy& policy, int workers, bool lockstep,
                       Observer observer)
    : policy_(policy),
      properties_(policy.properties()),
      lockstep_(lockstep),
      observer_(std::move(observer)),
      clocks_(workers, properties_, &progress_) {
  if (properties_.measures_steps) progress_.paces.resize(progress_.workers.size());
  stats_.workers.resize(static_cast<size_t>(workers));
}

// ---- reads ------------------------------------------------------------------------------------

bool TimedRange::MayServe(int rank, int64_t step, int depth) const {
  return policy_.MayServe(progress_, rank, step, depth);
}

TimedRead TimedRange::Read(int64_t now_us, int rank, int64_t step) {
  TimedRead read;
  read.version = progress_.version;
  read.min_clock = progress_.MinClock();
  read.closed_samples = last_closed_samples_;
  read.at_us = now_us;
  // A pull of a step that is pushed already is an old one, and no worker waits for it.
  const bool awaited = step >= progress_.workers[static_cast<size_t>(rank)].admitted;
  if (properties_.counts_reads && awaited) read.number = next_read_++;
  return read;
}

// ---- updates ----------------------------------------------------------------------------------

// The steps are those of server::Range::Admit, in the same order and for the same reasons.
bool TimedRange::Admit(int64_t now_us, TimedUpdate update) {
  const policies::WorkerProgress& worker = progress_.workers[static_cast<size_t>(update.rank)];
  TANDEM_CHECK(update.first == worker.admitted && update.first <= update.step);
  TANDEM_CHECK(update.samples == 0 || update.step < properties_.switch_step ||
               progress_.version >= properties_.switch_step);
  const bool one_step = update.first == update.step;
  const int64_t steps = update.step + 1 - worker.admitted;
  now_us_ = update.admitted_at = now_us;
  update.version_read = update.read.version;
  update.read_number = update.read.number;
  const bool nothing = one_step && update.samples == 0;
  clocks_.Admit(update.rank, update.step + 1,
                update.finished || (properties_.batch > 0 && lockstep_ && nothing));
  if (!progress_.paces.empty()) {
    policies::MeasureStep(&progress_.paces[static_cast<size_t>(update.rank)], now_us,
                          one_step && update.samples > 0);
  }
  if (update.samples > 0) {
    ++stats_.arrived;
    ++stats_.workers[static_cast<size_t>(update.rank)].arrived;
  }
  bool late = false;
  switch (policy_.OnArrival(progress_, update)) {
    case policies::Arrival::kApply:
      if (update.samples > 0) {
        const bool drop = policy_.OnApply(progress_, update).factor == 0.0f;
        Count(update, drop ? server::kFateDropped : server::kFateApplied);
      }
      break;
    case policies::Arrival::kHold:
      if (one_step) Hold(update);
      break;
    case policies::Arrival::kDrop:
      late = update.samples > 0;
      if (late) Count(update, server::kFateDropped);
      break;
  }
  if (!properties_.holds) clocks_.ShowApplied();
  Tick(steps);
  return !late;
}

TimedRange::Group TimedRange::NewGroup() {
  if (spare_.empty()) return {};
  Group group = std::move(spare_.back());
  spare_.pop_back();
  group.updates.clear();
  group.contributions = 0;
  group.samples = 0;
  return group;
}

void TimedRange::Hold(const TimedUpdate& update) {
  const int64_t index = properties_.batch > 0 ? 0 : update.step - progress_.version;
  TANDEM_CHECK(index >= 0);
  while (static_cast<int64_t>(open_.size()) <= index) open_.push_back(NewGroup());
  Group& group = open_[static_cast<size_t>(index)];
  group.samples += update.samples;
  if (update.samples == 0) return;
  ++group.contributions;
  group.updates.push_back(update);
}

void TimedRange::Tick(int64_t steps) {
  for (;;) {
    const policies::Buffered buffered = {static_cast<int64_t>(open_.size()),
                                         open_.empty() ? 0 : open_.front().contributions};
    const int64_t ticks = policy_.Ticks(progress_, buffered, steps);
    if (ticks == 0) break;
    steps = 0;
    if (!properties_.holds) {
      progress_.version += ticks;
      return;
    }
    CloseGroups(ticks);
  }
  ShowApplied();
}

void TimedRange::ShowApplied() {
  if (!properties_.holds || (properties_.batch > 0 && !open_.empty())) return;
  clocks_.ShowApplied();
  if (properties_.counts_reads && progress_.Live() == 0) {
    next_read_ = progress_.version * properties_.batch;
  }
}

void TimedRange::CloseGroups(int64_t ticks) {
  for (; ticks > 0; --ticks) {
    if (open_.empty()) {
      last_closed_samples_ = 0;
      progress_.version += ticks;
      return;
    }
    last_closed_samples_ = open_.front().samples;
    delayed_.push_back(std::move(open_.front()));
    open_.pop_front();
    while (static_cast<int64_t>(delayed_.size()) > properties_.delay) {
      ApplyFold(delayed_.front());
      spare_.push_back(std::move(delayed_.front()));
      delayed_.pop_front();
    }
    ++progress_.version;
  }
}

void TimedRange::FinishDelayed() {
  if (properties_.batch > 0) {
    if (!open_.empty()) CloseGroups(1);
    ShowApplied();
  }
  for (; !delayed_.empty(); delayed_.pop_front()) ApplyFold(delayed_.front());
}

void TimedRange::ApplyFold(const Group& group) {
  for (const TimedUpdate& update : group.updates) {
    const bool nothing = policy_.OnApply(progress_, update).factor == 0.0f;
    Count(update, nothing ? server::kFateDropped : server::kFateMerged);
  }
}

void TimedRange::Count(const TimedUpdate& update, server::UpdateFate fate) {
  WorkerStats& worker = stats_.workers[static_cast<size_t>(update.rank)];
  const auto count = [fate](auto* stats) {
    (fate == server::kFateApplied  ? stats->applied
     : fate == server::kFateMerged ? stats->merged
                                   : stats->dropped) += 1;
  };
  count(&stats_);
  count(&worker);
  stats_.clock_gap.Add(update.clock_gap);
  worker.clock_gap.Add(update.clock_gap);
  stats_.in_flight.Add(update.in_flight);
  if (fate != server::kFateDropped) {
    const int64_t staleness = progress_.version - update.version_read;
    const int64_t age = std::max<int64_t>(0, now_us_ - update.read.at_us);
    stats_.version_staleness.Add(staleness);
    worker.version_staleness.Add(staleness);
    stats_.age.Add(age);
    worker.age.Add(age);
  }
  if (observer_ != nullptr) observer_({update, progress_.version, now_us_, fate});
}

}  // namespace tandem::sim
