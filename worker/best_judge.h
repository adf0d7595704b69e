// Which evaluation of validation rows is the best one so far, and whether better ones are still to be
// expected (train.keep_best: early stopping with patience, as Prechelt describes it in "Early Stopping
// - But When?", 1998). Rank 0 judges; the others learn of it by the value of a barrier, so that all do
// the same.
//
// Thread safety: none needed; one thread.
#ifndef TANDEM_WORKER_BEST_JUDGE_H_
#define TANDEM_WORKER_BEST_JUDGE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "proto/wire.pb.h"

namespace tandem::worker {

// What an evaluation comes to.
struct Verdict {
  bool best = false;  // so far
  bool stop = false;  // no more steps are taken

  // As the value of a barrier; not negative.
  int64_t Pack() const { return (best ? 1 : 0) + (stop ? 2 : 0); }
  static Verdict Unpack(int64_t value) { return {(value & 1) != 0, (value & 2) != 0}; }
};

class BestJudge {
 public:
  // `every_epochs`: how often evaluations are made. Requires: it is positive.
  BestJudge(const KeepBest& keep, int every_epochs) : keep_(keep), every_epochs_(every_epochs) {}

  // The run goes on: this was its best one.
  void Resume(const BestEvaluation& best);
  // The run goes on: this was the first epoch that it judged. Patience counts from there while no
  // evaluation had finite scores.
  void ResumeAfter(int64_t first_epoch) { first_epoch_ = first_epoch; }

  // Of the evaluation after `epoch` (from 0), at `step`; `result`: what it measured, as JSON. The same
  // result of the same epoch again is judged as it was the first time. Scores that are not finite are worse than all
  // others. INVALID_ARGUMENT: the rows cannot give the metric, or there were none.
  absl::StatusOr<Verdict> Judge(int64_t epoch, int64_t step, const std::string& result);

  bool has_best() const { return has_best_; }
  int64_t first_epoch() const { return first_epoch_; }  // -1: none was judged
  const BestEvaluation& best() const { return best_; }

 private:
  bool Better(double value) const;

  const KeepBest keep_;
  const int every_epochs_;
  bool has_best_ = false;
  BestEvaluation best_;
  int64_t first_epoch_ = -1;  // that was judged
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_BEST_JUDGE_H_
