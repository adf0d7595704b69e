// Decides which evaluation of validation rows is the best so far, and when to stop early
// (train.keep_best: early stopping with patience, as Prechelt describes it in "Early Stopping - But
// When?", 1998). Rank 0 judges. The other workers learn the verdict from the value of a barrier, so
// that all workers do the same.
//
// Thread safety: none needed; one thread.
#ifndef TANDEM_WORKER_EARLY_STOPPING_H_
#define TANDEM_WORKER_EARLY_STOPPING_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "proto/wire.pb.h"

namespace tandem::worker {

// The decision after one evaluation.
struct Verdict {
  bool best = false;  // the best so far
  bool stop = false;  // no more steps are taken

  // The verdict as the value of a barrier; not negative.
  int64_t Pack() const { return (best ? 1 : 0) + (stop ? 2 : 0); }
  static Verdict Unpack(int64_t value) { return {(value & 1) != 0, (value & 2) != 0}; }
};

class EarlyStopping {
 public:
  // `every_epochs`: how often evaluations are made; must be positive.
  EarlyStopping(const KeepBest& keep, int every_epochs)
      : keep_(keep), every_epochs_(every_epochs) {}

  // The run resumes: `best` was its best evaluation.
  void Resume(const BestEvaluation& best);
  // The run resumes: `first_epoch` was the first epoch that it judged. Patience counts from there
  // until an evaluation has finite scores.
  void ResumeAfter(int64_t first_epoch) { first_epoch_ = first_epoch; }

  // Judges the evaluation after `epoch` (from 0), at `step`. `result`: the measured values, as
  // JSON. The same result of the same epoch gets the same verdict again. Scores that are not finite
  // are worse than all others. INVALID_ARGUMENT: the rows cannot give the metric, or there were no
  // rows.
  absl::StatusOr<Verdict> Judge(int64_t epoch, int64_t step, const std::string& result);

  bool has_best() const { return has_best_; }
  int64_t first_epoch() const { return first_epoch_; }  // -1: no evaluation was judged
  const BestEvaluation& best() const { return best_; }

 private:
  bool Better(double value) const;
  absl::StatusOr<std::optional<double>> ValueIn(int64_t epoch, const std::string& result) const;

  const KeepBest keep_;
  const int every_epochs_;
  bool has_best_ = false;
  BestEvaluation best_;
  int64_t first_epoch_ = -1;  // first judged epoch; -1: none
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_EARLY_STOPPING_H_
