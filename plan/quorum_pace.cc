#include "plan/quorum_pace.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "worker/quorum_leader.h"

namespace tandem::plan {
namespace {

using worker::QuorumLeader;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

// Workers and rank 0 as events in the order of time: a worker is through a step, or out of steps, or a
// grace ends.
class Run {
 public:
  Run(const Facts& facts, const Quorum& quorum, const QuorumSteps& steps)
      : facts_(facts),
        steps_(steps),
        count_(facts.step_seconds[0].size()),
        workers_(facts.step_seconds.size()),
        leader_(OptionsOf(quorum, static_cast<int>(workers_.size()))) {}

  QuorumPace Go() {
    for (size_t r = 0; r < workers_.size(); ++r) Begin(0, r);
    while (!events_.empty() || Wakes()) {
      // At() of a time beyond what absl::Time has is InfiniteFuture, as is a wake of none.
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
    bool held = false;    // by those who are too far behind
    double released = 0;  // when the sum has ended with which it goes on
  };
  using Event = std::pair<double, size_t>;

  static QuorumLeader::Options OptionsOf(const Quorum& quorum, int workers) {
    QuorumLeader::Options options;
    options.workers = workers;
    options.quorum = quorum.rule;
    options.count = std::min(quorum.count, workers);  // a plan may ask of fewer than the job has
    options.bound = quorum.bound;
    options.grace = absl::Seconds(quorum.grace_seconds);
    return options;
  }

  bool Wakes() const { return leader_.wake() < absl::InfiniteFuture(); }

  // Whether the slowest are further than before, now that this worker has come a step further.
  bool Moves(const Worker& worker) {
    if (!steps_.ahead.has_value() || worker.through != slowest_ + 1) return false;
    const auto less = [](const Worker& a, const Worker& b) { return a.through < b.through; };
    const size_t slowest = std::min_element(workers_.begin(), workers_.end(), less)->through;
    return std::exchange(slowest_, slowest) != slowest;
  }

  // The worker's next step, or that it has none.
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
  size_t slowest_ = 0;  // how far the least far are, where others are held by them
  QuorumLeader leader_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  double sum_ends_ = 0, end_ = 0, sums_ = 0;
};

}  // namespace

QuorumPace PaceOf(const Facts& facts, const Quorum& quorum, const QuorumSteps& steps) {
  if (facts.step_seconds.empty() || facts.step_seconds[0].empty()) return {};
  return Run(facts, quorum, steps).Go();
}

}  // namespace tandem::plan
