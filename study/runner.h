// Runs what a study asks for, one run after another, each as a process of its own, and remembers in the
// study's folder what is done: a study that was cut off at any moment goes on with the first run that
// is not complete.
#ifndef TANDEM_STUDY_RUNNER_H_
#define TANDEM_STUDY_RUNNER_H_

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "study/manifest.h"
#include "study/run_record.h"
#include "study/study_plan.h"

namespace tandem::study {

// Where a run of a study in `folder` lies.
std::string RunFolder(const std::string& folder, const std::string& run);

// Starts one run and waits for its end.
class RunLauncher {
 public:
  struct End {
    bool ok = false;       // exit code 0
    bool stopped = false;  // told to end: it is to be run again
    std::string why;       // not ok: one line
    double seconds = 0;    // of the process
  };
  virtual ~RunLauncher() = default;
  // Starts RunJobFile(folder); but for the files of WriteRunBegin `folder` is empty. `caption` ("[3/12] SSP seed 1") and `seconds_left` of the runs to come are for a
  // live line.
  virtual End Launch(const RunPlan& run, const std::string& folder, const std::string& caption,
                     double seconds_left) = 0;
  // Of any run, whether it is done or not, before what there is of it is read: renews what is to stand beside it
  // where the study or the programs have changed since.
  virtual void Renew(const RunPlan& /*run*/, const std::string& /*folder*/) {}
};

struct RunnerOptions {
  std::string folder;
  std::function<std::string()> build;  // of the programs that runs are made by, as they are now
  bool retry_failed = false;           // runs that failed in an earlier session
  const std::atomic<bool>* stop = nullptr;      // ends the study when set
  std::function<void(const std::string&)> say;  // a line for people
};

enum class StudyEnd { kDone, kStopped, kBudget };

// Runs all that is not done, chooses values where the study tunes, and keeps manifest.json and runs.csv.
// A run that fails or diverges is noted, and the study goes on. Errors: files that cannot be written,
// jobs that no longer resolve.
absl::StatusOr<StudyEnd> RunStudy(const RunnerOptions& options, Manifest* manifest,
                                  RunLauncher* launcher);

// All runs of the manifest as they are on the disk.
std::vector<StudyRun> ReadRuns(const std::string& folder, const Manifest& manifest);

// By variation, the value whose tuning runs did best in the mean over their seeds. Values of which a run
// is missing, failed or diverged are not taken; a variation without any other is absent.
std::map<std::string, std::string> ChooseValues(const StudyPlan& plan,
                                                const std::vector<StudyRun>& runs);

}  // namespace tandem::study

#endif  // TANDEM_STUDY_RUNNER_H_
