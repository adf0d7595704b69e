// What the steps and frames of a live run took, as its folder tells: what a simulated run of such a
// cluster assumes (tandem simulate --calibrate), and the speed that its prediction is held against.
#ifndef TANDEM_CLI_CALIBRATION_H_
#define TANDEM_CLI_CALIBRATION_H_

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "job/job.h"

namespace tandem::cli {

struct Calibration {
  std::string folder;
  std::vector<double> compute_seconds;  // of a step, by rank of the job that is simulated
  // Half of the shortest read: from sending to receiving a frame, with its share of what a server does.
  // None if the run has read nothing, or over limited links, where reads wait for their bytes as
  // well: --bytes-per-second counts these.
  absl::optional<double> latency_seconds;
  // By table: its rows at the end, and the bytes of memory that one copy of them took.
  struct Rows {
    double rows = 0, bytes = 0;
  };
  std::map<std::string, Rows> tables;
  double samples_per_second = 0;  // of the run while it trained (TrainingSpeed)
  std::string untold;             // what hides latency_seconds, in words; empty: nothing
  // What makes `plan` another job than the run's, so that its speed is no bar for the prediction,
  // and `untold`; empty: nothing that the summary knows of.
  std::string differs;
  bool same_job = false;  // nothing that the summary knows of makes it another one
  // `tandem run` started it, without hosts of their own for its processes: they shared processors.
  bool one_host = false;
};

// What `plan` is to assume by the run in `folder`. A run of another number of workers lends all of them
// the mean of its own; one of other batches, time by the row. Errors name the folder, and what is wrong
// with it: no summary, one of a run that failed, was simulated, or took no step.
absl::StatusOr<Calibration> ReadCalibration(const std::string& folder, const job::JobPlan& plan);

// Samples a second, evaluations, saves and the start of an allreduce left out, as a summary.json
// says; 0 if it says nothing.
double TrainingSpeed(const nlohmann::json& summary);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_CALIBRATION_H_
