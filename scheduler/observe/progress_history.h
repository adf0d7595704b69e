// The course of a job for the curves of the live page: a bounded number of points, from the start
// to now. When there are too many, every second one is dropped, and from then on only every second
// interval becomes a point. The history also has the last evaluations.
//
// Thread safety: none; one thread.
#ifndef TANDEM_SCHEDULER_OBSERVE_PROGRESS_HISTORY_H_
#define TANDEM_SCHEDULER_OBSERVE_PROGRESS_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nlohmann/json.hpp"
#include "scheduler/observe/job_report.h"

namespace tandem::scheduler {

class ProgressHistory {
 public:
  static constexpr size_t kMax = 600;

  void Add(const JobProgress& progress) {
    seconds_ = progress.seconds;
    if (seen_++ % stride_ != 0) return;
    points_.push_back(progress);
    points_.back().limited_tables.clear();  // no curve shows them
    if (points_.size() < kMax) return;
    for (size_t i = 0; i < kMax / 2; ++i) points_[i] = points_[2 * i];
    points_.resize(kMax / 2);
    stride_ *= 2;
  }

  // The result of an evaluation, as in metrics.jsonl.
  void AddEvaluation(const nlohmann::json& evaluation);

  // An array for each measure, one value a point; null: the interval has none. `evaluations` has an
  // object for each evaluation: `seconds` of the last interval before, `step`, `data`, measures.
  nlohmann::json Json() const;

 private:
  std::vector<JobProgress> points_;
  int64_t seen_ = 0, stride_ = 1;
  double seconds_ = 0;  // at the end of the last interval
  std::vector<nlohmann::json> evaluations_;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_OBSERVE_PROGRESS_HISTORY_H_
