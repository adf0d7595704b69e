#include "worker/resume_position.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem::worker {
namespace {

struct Epochs {
  int64_t first = 0, last = 0;  // over all workers
  bool last_begun = false;      // some worker has trained in the last epoch
  bool first_over = true;       // all workers in the first epoch know that it is over
  int64_t first_step = 0;       // start of the first epoch
  // closing_steps of the first epoch and of the last one. The smallest of the first: in runs of
  // earlier versions that ended at the limit, workers that knew of the end have more.
  int64_t first_closing = std::numeric_limits<int64_t>::max(), last_closing = 0;
};

absl::StatusOr<Epochs> EpochsOf(const RunRecord& record, int workers) {
  if (record.worker_size() != workers) {
    return absl::DataLossError(absl::StrCat("run record has ", record.worker_size(),
                                            " workers, but the job has ", workers));
  }
  Epochs epochs;
  epochs.first = record.worker(0).position().epoch();
  for (const Progress& worker : record.worker()) {
    const TrainPosition& at = worker.position();
    if (!worker.has_position() || at.step() < 0 || at.epoch() < 0 || at.rows() < 0) {
      return absl::DataLossError("run record does not say where each worker stood");
    }
    const ReadPlace& place = at.place();
    if (at.has_place() && (place.rows() <= 0 || place.rows() > at.rows() || place.line() < 0 ||
                           place.offset() < 0 || place.bad_rows() < 0)) {
      return absl::DataLossError("run record has an invalid place in the data files");
    }
    epochs.first = std::min(epochs.first, at.epoch());
    epochs.last = std::max(epochs.last, at.epoch());
  }
  for (const Progress& worker : record.worker()) {
    const TrainPosition& at = worker.position();
    if (at.epoch() == epochs.last && (at.rows() > 0 || at.epoch_over())) epochs.last_begun = true;
    if (at.epoch() == epochs.last) epochs.last_closing = at.closing_steps();
    if (at.epoch() != epochs.first) continue;
    if (!at.epoch_over()) epochs.first_over = false;
    epochs.first_step = at.first_step();
    epochs.first_closing = std::min(epochs.first_closing, at.closing_steps());
  }
  if (epochs.last <= epochs.first + 1) return epochs;
  return absl::DataLossError(
      absl::StrCat("run record has workers in epochs ", epochs.first, " and ", epochs.last));
}

// Whether the step limit ended the epoch, and the resumed run has a larger limit or none.
bool TrainsOn(const TrainPosition& at, int64_t max_steps) {
  return at.epoch_over() && at.max_steps() > 0 && (max_steps == 0 || max_steps > at.max_steps());
}

}  // namespace

absl::StatusOr<TrainPosition> ResumePosition(const RunRecord& record, int rank, int workers,
                                             int64_t max_steps) {
  TANDEM_ASSIGN_OR_RETURN(const Epochs epochs, EpochsOf(record, workers));
  TrainPosition at = record.worker(rank).position();
  // Two cases. If some worker has trained in the later of two epochs, all workers are through with
  // the earlier one: a worker that still stood there begins the later epoch. Otherwise nobody has
  // trained in the later epoch, and all workers go back to the end of the earlier one.
  if (epochs.first != epochs.last && epochs.last_begun) {
    // No worker begins an epoch before all workers have left the previous one.
    if (at.epoch() == epochs.last) return at;
    if (!at.epoch_over()) {
      return absl::DataLossError(absl::StrCat("worker ", rank, " was still in epoch ", at.epoch(),
                                              " when others had trained in epoch ", epochs.last));
    }
    at.set_epoch(epochs.last);
    at.set_epoch_over(false);
    at.set_first_step(at.step());
    at.set_closing_steps(epochs.last_closing);
    at.clear_ended_at();
    at.set_rows(0);
    at.clear_place();
    return at;
  }
  // Workers that know more go back to what all workers know.
  at.set_closing_steps(epochs.first_closing);
  const bool ahead = at.epoch() != epochs.first || (at.epoch_over() && !epochs.first_over);
  if (ahead) {
    at.set_epoch(epochs.first);
    at.set_epoch_over(epochs.first_over);
    at.set_first_step(epochs.first_step);
  }
  // A worker that ended at the step limit may have rows left, so it keeps its place.
  if (ahead && at.max_steps() == 0) {
    at.clear_place();
    at.set_rows(kAllRows);
  }
  // The epoch continues after the steps that closed it at the limit.
  if (TrainsOn(at, max_steps)) {
    at.set_closing_steps(at.closing_steps() + at.step() - at.common_step() + 1);
    at.set_first_step(at.step());
    at.set_epoch_over(false);
    at.clear_ended_at();
  }
  return at;
}

}  // namespace tandem::worker
