// Reads the times of steps and frames of a live run from its folder. A simulated run of such a
// cluster uses them (tandem simulate --calibrate), and compares its prediction with the speed of
// the live run.
#ifndef TANDEM_TOOLS_SIM_COMMAND_CALIBRATION_H_
#define TANDEM_TOOLS_SIM_COMMAND_CALIBRATION_H_

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "job/job.h"

namespace tandem::sim {

struct Calibration {
  std::string folder;
  std::vector<double> compute_seconds;  // for a step, by rank of the simulated job
  // Half of the shortest pull: the time from sending to receiving a frame, and a share of the
  // server's work. nullopt if the run has pulled nothing, or if its links were limited: pulls then
  // also wait for their bytes, which --bytes-per-second counts.
  absl::optional<double> latency_seconds;
  // By table: its rows at the end, and the bytes of memory of one copy of them.
  struct Rows {
    double rows = 0, bytes = 0;
  };
  std::map<std::string, Rows> tables;
  // Sizes that only the program or the module of a job knows; 0: the summary does not contain them.
  double dense_parameters = 0;
  double push_bytes = 0;          // of a step of one worker: gradients of rows, with their ids
  double samples_per_second = 0;  // of the run while it trained (TrainingSpeed)
  std::string untold;             // why latency_seconds is unknown; empty: it is known
  // Differences between `plan` and the run's job, restarts of the run, and `untold`. With any of
  // them the speed of the run does not judge the prediction. Empty: the summary shows none.
  std::string differs;
  bool same_job = false;  // the summary shows no difference between the jobs
  // `tandem run` started all processes on one host, so they shared its processors.
  bool one_host = false;
};

// Reads from the run in `folder` what `plan` has to assume. If the run had another number of
// workers, each worker gets the mean of the run's workers. If the run had other batches, times are
// scaled by the number of rows. Errors name the folder and the reason: no summary, a failed or
// simulated run, or a run without steps.
absl::StatusOr<Calibration> ReadCalibration(const std::string& folder,
                                            const job::ResolvedJob& plan);

// Samples a second of a summary.json, without evaluations, checkpoints and the start of an
// allreduce; 0 if the summary does not contain them.
double TrainingSpeed(const nlohmann::json& summary);

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_COMMAND_CALIBRATION_H_
