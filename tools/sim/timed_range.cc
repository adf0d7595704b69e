#include "tools/sim/timed_range.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tandem::sim {

TimedRange::TimedRange(const policies::UpdatePolicy& policy, int workers, int reads, bool lockstep,
                       Observer observer)
    : order_(policy, {.workers = workers, .reads = reads, .lockstep = lockstep}),
      observer_(std::move(observer)) {
  stats_.workers.resize(static_cast<size_t>(workers));
}

bool TimedRange::MayServe(int rank, int64_t step, int depth) const {
  return order_.policy().MayServe(progress(), rank, step, depth);
}

// A pull of a step that is pushed already is an old one, and no worker waits for it.
TimedRead TimedRange::Read(int64_t now_us, int rank, int64_t step) {
  if (!order_.HasAdmitted(rank, step)) order_.OnRead(rank, step);
  return {progress().version, progress().MinClock(), order_.last_closed_samples(), now_us};
}

bool TimedRange::Admit(int64_t now_us, TimedUpdate update) {
  constexpr uint64_t kIncarnation = 1;
  update.version_read = update.read.version;
  const int64_t first = update.first;
  const bool finished = update.finished;
  const policies::Admission admission =
      order_.Admit(now_us, kIncarnation, first, std::move(update), finished, this);
  TANDEM_CHECK(admission == policies::Admission::kAdmitted ||
               admission == policies::Admission::kLate);
  return admission == policies::Admission::kAdmitted;
}

void TimedRange::OnCounted(TimedUpdate* update) {
  now_us_ = update->admitted_at;
  if (!update->has_rows()) return;
  ++stats_.arrived;
  ++stats_.workers[static_cast<size_t>(update->rank)].arrived;
}

void TimedRange::Apply(const TimedUpdate& update, const policies::Transform& transform) {
  if (!update.has_rows()) return;
  Count(update, transform.factor == 0.0f ? server::kFateDropped : server::kFateApplied,
        transform.share());
}

void TimedRange::Drop(const TimedUpdate& update) {
  if (update.has_rows()) Count(update, server::kFateDropped, 0);
}

void TimedRange::Fold(const policies::HeldGroup<TimedUpdate>& group) {
  for (const TimedUpdate& update : group.updates) {
    const policies::Transform transform = order_.TransformOf(update, group.View());
    Count(update, transform.factor == 0.0f ? server::kFateDropped : server::kFateMerged,
          transform.share());
  }
}

void TimedRange::Count(const TimedUpdate& update, server::UpdateFate fate, float share) {
  WorkerStats& worker = stats_.workers[static_cast<size_t>(update.rank)];
  const auto count = [&](auto* stats) {
    stats->samples.Add(update, share);
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
    const int64_t staleness = progress().version - update.version_read;
    const int64_t age = std::max<int64_t>(0, now_us_ - update.read.at_us);
    stats_.version_staleness.Add(staleness);
    worker.version_staleness.Add(staleness);
    stats_.age.Add(age);
    worker.age.Add(age);
  }
  if (observer_ != nullptr) observer_({update, progress().version, now_us_, fate});
}

}  // namespace tandem::sim
