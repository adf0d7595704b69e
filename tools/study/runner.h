// Runs a study: one run after another, each as its own process. The study's folder records which
// runs are done, so a study that was cut off at any moment resumes with the first run that is not
// complete.
#ifndef TANDEM_TOOLS_STUDY_RUNNER_H_
#define TANDEM_TOOLS_STUDY_RUNNER_H_

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/study/manifest.h"
#include "tools/study/run_record.h"
#include "tools/study/study_runs.h"

namespace tandem::study {

// The folder of a run in the study's `folder`.
std::string RunFolder(const std::string& folder, const std::string& run);

// Starts one run and waits for its end.
class RunLauncher {
 public:
  struct End {
    bool ok = false;       // exit code 0
    bool stopped = false;  // told to end; the run must be repeated
    std::string why;       // not ok: one line
    double seconds = 0;    // wall time of the process
  };
  virtual ~RunLauncher() = default;
  // Starts RunJobFile(folder). `folder` has only the files of WriteRunBegin. `caption` ("[3/12] SSP
  // seed 1") and `seconds_left`, an estimate for the runs to come, are for a live line.
  virtual End Launch(const RunPlan& run, const std::string& folder, const std::string& caption,
                     double seconds_left) = 0;
  // Called for any run, done or not, before its results are read. Renews the companions of the run
  // (BesideRun) if the study or the programs have changed since.
  virtual void Renew(const RunPlan& /*run*/, const std::string& /*folder*/) {}
};

struct RunnerOptions {
  std::string folder;
  // Identifies the programs that make runs, in their present state.
  std::function<std::string()> build;
  bool retry_failed = false;                    // repeat runs that failed in an earlier session
  const std::atomic<bool>* stop = nullptr;      // ends the study when set
  std::function<void(const std::string&)> say;  // prints a line for the user
};

enum class StudyEnd { kDone, kStopped, kBudget };

// Makes all runs that are not done, chooses values if the study tunes, and keeps manifest.json and
// runs.csv up to date. A run that fails or diverges is recorded, and the study continues. Errors:
// files that cannot be written, jobs that no longer resolve.
absl::StatusOr<StudyEnd> RunStudy(const RunnerOptions& options, Manifest* manifest,
                                  RunLauncher* launcher);

// All runs of the manifest, read from the disk.
std::vector<StudyRun> ReadRuns(const std::string& folder, const Manifest& manifest);

// For each variation, the value whose tuning runs have the best mean over their seeds. A value with
// a missing, failed or diverged run is not chosen. A variation without any other value is absent.
std::map<std::string, std::string> ChooseValues(const StudyRuns& plan,
                                                const std::vector<StudyRun>& runs);

}  // namespace tandem::study

#endif  // TANDEM_TOOLS_STUDY_RUNNER_H_
