#include "worker/dense/quorum_leader.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "base/check.h"

namespace tandem::worker {

QuorumLeader::Options QuorumLeader::OptionsOf(const job::ResolvedJob& plan) {
  const Dense& dense = plan.job.dense();
  Options options;
  options.workers = plan.workers();
  options.quorum = dense.quorum();
  options.bound = dense.quorum_bound();
  options.count = dense.local_steps().quorum();
  options.grace = absl::Seconds(dense.local_steps().grace_seconds());
  return options;
}

QuorumLeader::QuorumLeader(const Options& options)
    : options_(options), workers_(static_cast<size_t>(options.workers)) {
  TANDEM_CHECK(options_.workers >= 1 && options_.bound >= 1);
}

size_t QuorumLeader::Needed() const {
  if (options_.count > 0) return static_cast<size_t>(options_.count);
  if (options_.quorum == Dense::SOLO) return 1;
  return options_.quorum == Dense::MAJORITY ? workers_.size() / 2 + 1 : workers_.size();
}

void QuorumLeader::Release(int worker) {
  of(worker).waits = false;
  released_.push_back(worker);
}

void QuorumLeader::OnGradient(int worker, int64_t step) {
  of(worker).through = step + 1;
  of(worker).waits = true;
  if (step < summed_) Release(worker);
}

void QuorumLeader::OnOutOfData(int worker) {
  of(worker).out = true;
  of(worker).through = std::max<int64_t>(of(worker).through, 0);
}

void QuorumLeader::OnSettle(int worker, bool new_epoch, int64_t step) {
  Worker& w = of(worker);
  w.settles = true;
  w.new_epoch = new_epoch;
  if (new_epoch) w.through = std::max(w.through, step);
}

QuorumLeader::Begins QuorumLeader::Next(absl::Time now) {
  // Settling goes first: once all workers have asked for it, only the last sum may begin.
  if (std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.settles; })) {
    return Settle();
  }
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  int64_t least = kAll, most = -1;
  sorted_.clear();
  for (const Worker& w : workers_) {
    sorted_.push_back(w.brings() ? w.through : kAll);
    if (!w.brings()) continue;
    least = std::min(least, w.through);
    most = std::max(most, w.through);
  }
  // A sum may begin up to the step `reached` that satisfies three conditions: a quorum has finished
  // it (workers without data count as if they had), some worker with data has finished it, and no
  // worker is further behind than the bound.
  if (most < 0 || least < 0) return Begins::kNothing;
  const auto needed = sorted_.begin() + static_cast<std::ptrdiff_t>(Needed()) - 1;
  std::nth_element(sorted_.begin(), needed, sorted_.end(), std::greater<>());
  const int64_t reached = std::min({*needed, most, least + options_.bound});
  if (reached <= summed_) {
    grace_ends_ = absl::InfiniteFuture();
    return Begins::kNothing;
  }
  // The grace is for workers that have finished the steps of all earlier sums, but not yet this
  // step. A worker that is further behind gets no grace.
  const bool others_may_come = std::any_of(workers_.begin(), workers_.end(), [&](const Worker& w) {
    return w.brings() && w.through >= summed_ && w.through < reached;
  });
  if (others_may_come && options_.grace > absl::ZeroDuration()) {
    if (grace_ends_ == absl::InfiniteFuture()) grace_ends_ = now + options_.grace;
    if (now < grace_ends_) return Begins::kNothing;
  }
  grace_ends_ = absl::InfiniteFuture();
  summed_ = reached;
  for (int w = 0; w < options_.workers; ++w) {
    if (of(w).waits && of(w).through <= summed_) Release(w);
  }
  return Begins::kSum;
}

QuorumLeader::Begins QuorumLeader::Settle() {
  grace_ends_ = absl::InfiniteFuture();
  for (int w = 0; w < options_.workers; ++w) {
    Worker& worker = of(w);
    summed_ = std::max(summed_, worker.through);
    worker.settles = false;
    if (std::exchange(worker.new_epoch, false)) worker.out = false;
    Release(w);
  }
  return Begins::kLastSum;
}

int QuorumLeader::WaitingFor() const {
  int slowest = -1;
  for (int w = 0; w < options_.workers; ++w) {
    if (of(w).waits || !of(w).brings()) continue;
    if (slowest < 0 || of(w).through < of(slowest).through) slowest = w;
  }
  return slowest;
}

}  // namespace tandem::worker
