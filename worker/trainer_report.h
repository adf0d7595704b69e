// Collects what a worker reports to the scheduler about its training: sums since the start, and
// since the last report.
//
// Thread safety: none needed; one thread.
#ifndef TANDEM_WORKER_TRAINER_REPORT_H_
#define TANDEM_WORKER_TRAINER_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/client_core.h"
#include "job/job.h"
#include "proto/histogram.h"
#include "proto/wire.pb.h"
#include "worker/loss_history.h"
#include "worker/row_fingerprint.h"
#include "worker/trainer_task.h"

namespace tandem::worker {

class TrainerReport {
 public:
  // The rows of this worker's share of an epoch; 0 = unknown.
  void set_estimated_rows(int64_t rows) { estimated_rows_ = rows; }
  // `rows`: rows of the epoch that an earlier attempt of the run has trained on.
  void BeginEpoch(int64_t rows = 0) {
    epoch_samples_ = rows;
    if (samples_ > 0 || rows > 0) rows_.EndEpoch(/*whole=*/rows == 0);
  }
  // The program chooses the rows of this worker. The report then carries fingerprints of the rows,
  // which show whether workers train on the same ones.
  void WatchRows() { watch_rows_ = true; }
  // A step has been computed. `in_flight`: steps begun and not acknowledged, including this one.
  void AddStep(const StepSlot& slot, int64_t in_flight);
  // The dead process whose place this one has taken has trained the step. This process has only
  // read the batch.
  void AddTrainedBefore(const StepSlot& slot);
  // ... and has sent this many updates of a table in that step.
  void AddSentBefore(uint32_t table, uint64_t updates);
  // Whether the worker pauses between two steps, to evaluate or to write a checkpoint.
  void SetPaused(absl::Time now, bool paused);
  // With quorum sums: for each gradient, how many sums it has missed.
  void AddMissedSums(absl::Span<const int64_t> missed);
  void AddCollectiveBytes(uint64_t bytes) { collective_bytes_ += bytes; }
  // Each report carries the evaluation until it is cleared, because a report may be lost. `aside`:
  // as in Progress.
  void SetEvaluation(int64_t number, std::string json, bool aside) {
    evaluation_ = number;
    evaluation_json_ = std::move(json);
    evaluation_aside_ = aside;
  }
  void ClearEvaluation() { evaluation_json_.clear(); }
  // The evaluation that was set last is the result of the run.
  void EvaluationCounts() { evaluation_aside_ = false; }
  // Requires: the model of `best` is in a checkpoint, if the job writes any.
  void SetBest(const BestEvaluation& best) { best_ = best; }
  void SetEpochsToFirstJudged(int64_t epochs) { epochs_to_first_judged_ = epochs; }
  bool has_evaluation() const { return !evaluation_json_.empty(); }

  // After a timed report: from here on the reported AUC covers only the following rows.
  void BeginInterval() {
    interval_auc_ = 0;
    interval_begins_ = true;
  }
  // True for the first step that is computed in an interval.
  bool TakeIntervalBegins() { return std::exchange(interval_begins_, false); }
  // An evaluation or the end of the job follows this many epochs.
  void SetEpochsTrained(int64_t epochs) { epochs_trained_ = epochs; }

  // Makes a report, and restarts the sums of the loss since the last report.
  Progress Take(absl::Time now, const job::ResolvedJob& plan, const client::ClientCore& client,
                int64_t epoch, int64_t step, bool done);

 private:
  int64_t estimated_rows_ = 0;
  bool watch_rows_ = false;
  RowFingerprint rows_;
  int64_t samples_ = 0, epoch_samples_ = 0;
  double loss_sum_ = 0;
  int64_t loss_samples_ = 0;
  LossHistory losses_;
  double interval_auc_ = 0;
  bool interval_begins_ = false;
  int64_t epochs_trained_ = 0;
  int64_t evaluation_ = 0;
  std::string evaluation_json_;
  bool evaluation_aside_ = false;
  std::optional<BestEvaluation> best_;
  int64_t epochs_to_first_judged_ = 0;
  absl::Duration fetched_, computed_, slept_, joined_, paused_;
  std::optional<absl::Time> paused_since_;
  uint64_t steps_ = 0;
  int64_t trained_steps_ = 0, skipped_steps_ = 0;
  double in_flight_sum_ = 0, in_flight_max_ = 0;
  uint64_t collective_bytes_ = 0;
  std::vector<uint64_t> sent_before_;  // by table
  Histogram missed_sums_;
  uint64_t gradients_summed_ = 0;
  double missed_sum_ = 0, missed_max_ = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_REPORT_H_
