#include "tools/plan/quorum_pace.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace tandem::plan {
namespace {

using worker::QuorumLeader;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

// Simulates workers and rank 0 as events in the order of time: a worker ends a step, a worker has
// no steps left, or a grace period ends.
class Run {
 public:
  Run(const Facts& facts, const QuorumLeader::Options& quorum, const QuorumSteps& steps)
      : facts_(facts),
        steps_(steps),
        count_(facts.step_seconds[0].size()),
        workers_(facts.step_seconds.size()),
        leader_(Among(static_cast<int>(workers_.size()), quorum)) {}

  QuorumPace Go() {
    for (size_t r = 0; r < workers_.size(); ++r) Begin(0, r);
    while (!events_.empty() || Wakes()) {
      // At() returns InfiniteFuture for a time that absl::Time cannot hold. wake() returns it if
      // there is no grace period.
      if (Wakes() && (events_.empty() || At(events_.top().first) >= leader_.wake())) {
        Call(absl::ToDoubleSeconds(leader_.wake() - absl::UnixEpoch()), leader_.wake());
        continue;
      }
      const auto [now, r] = events_.top();
      events_.pop();
      OnEvent(now, r);
      Call(now, At(now));
    }
    const double all = static_cast<double>(workers_.size() * count_);
    return {all / std::max(end_, kLeastSeconds), sums_ / static_cast<double>(count_)};
  }

 private:
  struct Worker {
    size_t through = 0;
    bool held = false;    // waits for workers that are too far behind
    double released = 0;  // the time from which it may continue, once it is not held
  };
  using Event = std::pair<double, size_t>;

  static QuorumLeader::Options Among(int workers, QuorumLeader::Options quorum) {
    quorum.workers = workers;
    quorum.count = std::min(quorum.count, workers);
    return quorum;
  }

  bool Wakes() const { return leader_.wake() < absl::InfiniteFuture(); }

  // Whether this worker's new step means that the slowest worker is further than before.
  bool Moves(const Worker& worker) {
    if (!steps_.ahead.has_value() || worker.through != slowest_ + 1) return false;
    const auto less = [](const Worker& a, const Worker& b) { return a.through < b.through; };
    const size_t slowest = std::min_element(workers_.begin(), workers_.end(), less)->through;
    return std::exchange(slowest_, slowest) != slowest;
  }

  // Begins the worker's next step, or notes that it has none.
  void Begin(double now, size_t r) {
    Worker& worker = workers_[r];
    if (worker.through == count_) return events_.push({now, r});
    if (steps_.ahead.has_value() &&
        worker.through > slowest_ + static_cast<size_t>(*steps_.ahead)) {
      worker.held = true;
      worker.released = now;
      return;
    }
    events_.push({now + facts_.step_seconds[r][worker.through] + steps_.rest, r});
  }

  void OnEvent(double now, size_t r) {
    end_ = std::max(end_, now);
    Worker& worker = workers_[r];
    if (worker.through == count_) return leader_.OnOutOfData(static_cast<int>(r));
    ++worker.through;
    const bool moved = Moves(worker);
    const auto every = static_cast<size_t>(steps_.every);
    if (worker.through % every == 0) {
      leader_.OnGradient(static_cast<int>(r), static_cast<int64_t>(worker.through / every) - 1);
    } else {
      Begin(now, r);
    }
    for (size_t other = 0; moved && other < workers_.size(); ++other) {
      if (!std::exchange(workers_[other].held, false)) continue;
      Begin(std::max(now, workers_[other].released), other);
    }
  }

  void Call(double now, absl::Time at) {
    for (bool more = true; more;) {
      more = leader_.Next(at) != QuorumLeader::Begins::kNothing;
      if (more) {
        sum_ends_ = std::max(sum_ends_, now) + steps_.sum_seconds;
        sums_ += 1;
      }
      const std::vector<int> released = leader_.released();
      leader_.ForgetReleased();
      for (const int r : released) Begin(std::max(now, sum_ends_), static_cast<size_t>(r));
    }
  }

  const Facts& facts_;
  const QuorumSteps& steps_;
  const size_t count_;  // steps of each worker
  std::vector<Worker> workers_;
  size_t slowest_ = 0;  // steps of the slowest worker; kept only if `ahead` is set
  QuorumLeader leader_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  double sum_ends_ = 0, end_ = 0, sums_ = 0;
};

}  // namespace

QuorumPace PaceOf(const Facts& facts, const QuorumLeader::Options& quorum,
                  const QuorumSteps& steps) {
  if (facts.step_seconds.empty() || facts.step_seconds[0].empty()) return {};
  return Run(facts, quorum, steps).Go();
}

}  // namespace tandem::plan
