// The results of one run as numbers, read from the folder of `tandem run`.
#ifndef TANDEM_TOOLS_STUDY_RUN_RECORD_H_
#define TANDEM_TOOLS_STUDY_RUN_RECORD_H_

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "tools/study/study_runs.h"

namespace tandem::study {

enum class RunState {
  kAbsent,    // not run yet, or cut off: to be run from the beginning
  kComplete,  // finished, by its summary
  kDiverged,  // a loss, logit or gradient was not a number, or the loss was far above its start
  kFailed,    // the process ended by itself without a summary
};
std::string StateName(RunState state);  // "absent", "complete", "diverged", "failed"

// A moment of a run. NaN stands for an unknown value.
struct CurvePoint {
  double seconds = 0, samples = 0;
  double loss = 0;  // mean over the last interval, of rows not yet trained
  double auc = 0;   // of the same rows, each scored before it trained
};
struct EvaluationPoint {
  double seconds = 0, samples = 0;       // at the end of the evaluation
  std::map<std::string, double> values;  // "eval.auc"
  bool validation = false;               // on validation rows instead of test rows
};

struct StudyRun {
  std::string name, variation;
  Part part = Part::kUntuned;
  std::string value;
  uint64_t seed = 0;
  RunState state = RunState::kAbsent;
  std::string why;          // failed or diverged: one line
  double wall_seconds = 0;  // from start to end of the process; 0 = unknown
  int restarts = 0;         // after failures, with replaced workers
  std::string build;        // the text given to WriteRunBegin
  // Every number of summary.json under its path ("staleness.ids.version_staleness.mean"). "seconds"
  // and "samples_per_second" exclude "start_seconds". "loss" is the loss of the last
  // tenth of the samples; absent if unknown.
  std::map<std::string, double> numbers;
  std::map<std::string, std::string> policy;  // by table
  std::vector<CurvePoint> curve;
  std::vector<EvaluationPoint> evaluations;
  // Parts of summary.json, unchanged: histograms, and lists by worker (docs/RESULTS.md).
  nlohmann::json staleness = nlohmann::json::object();
  nlohmann::json by_worker = nlohmann::json::array();
  // `by_workers` of ModelFile, if the file exists.
  nlohmann::json model_curve = nlohmann::json::array();
  std::vector<std::string> not_counted;  // what the model ignores, in words

  bool counts() const { return state == RunState::kComplete; }
  absl::optional<double> Number(const std::string& column) const;
};

// Must be called before a run starts. Writes the resolved job, with which the run is started
// (RunJobFile), and the identity of the run in this folder. `build`: any text that tells builds of
// Tandem apart.
absl::Status WriteRunBegin(const std::string& folder, const RunPlan& plan,
                           const std::string& build);
std::string RunJobFile(const std::string& folder);
// The folder of the twin of a live run: the same job, simulated with the times that the live run
// took.
std::string TwinFolder(const std::string& folder);

// The file with the prediction of the model of `tandem plan` for a run on hosts with limited links.
// The file has one object: `step_seconds` and `speed` (samples a second); `step_rows`, of all
// workers; `full_step_seconds`, at full size; `by_workers`, a list of `workers`, `servers`,
// `step_seconds`, `speed`; and `assumed`, everything else that the prediction depends on.
std::string ModelFile(const std::string& folder);

// Writes how the process of a run ended, next to the files of the run itself.
absl::Status WriteRunEnd(const std::string& folder, double wall_seconds, bool ok,
                         const std::string& why);

// The companions that each run of a study needs.
struct BesideRun {
  bool twin = false, model = false;
};
BesideRun BesideRunOf(const Study& study);

// Reads a run. Never fails: a folder that is missing, incomplete or of another job is an absent
// run. So is a folder that lacks a companion in `beside`.
StudyRun ReadRun(const RunPlan& plan, const std::string& folder, const BesideRun& beside = {});

// Adds the numbers that follow from the numbers of a run:
//   "to_target.seconds", "to_target.samples"
//       absent if the target was not reached or the run diverged; with the metric
//       seconds_to_target the time at which the problem reached its loss, and no samples
//   "bytes_per_sample.KIND"
//   "staleness.version_mean", ".row_mean", ".age_mean", ".in_flight_mean"
//       means over tables, or over dense parameters if the run has nothing else
//   "staleness.dense_version_mean" and so on
//       means over dense parameters, if the run has tables, too
//   "staleness.clock_gap_max"
//   "data_applied.least_worker"
//       share of data applied of the worker whose data counted least
//   "memory_bytes", "rows"
//       memory for the rows of tables; number of rows of ids
//   "found_share"
//       share of looked-up ids that had a row, over tables that count it
//   "steady.speed"
//       samples a second without the first tenth of the samples and the first step
//   "steady.step_seconds", "model.ratio"
//       for a run with a model: seconds of a step at the steady speed; the model's seconds
//       relative to them
//   "training_speed"
//       samples a second without evaluations and checkpoints
//   "twin.training_speed", "twin.ratio", "twin.version_mean"
//       for a run with a twin: the twin's training speed; that speed relative to the run's; the
//       twin's mean version staleness
void AddDerivedNumbers(const StudyRuns& plan, StudyRun* run);

// How a run approaches the study's metric. The points are its evaluations, if there are several.
// Otherwise, for AUC and losses, they are the values of training rows before they trained. Empty if
// only the final value is known.
struct QualityPoint {
  double seconds = 0, samples = 0, value = 0;
};
std::vector<QualityPoint> QualityCurve(const Metric& metric, const StudyRun& run);
// Whether that curve is one of training rows.
inline bool IsOfTraining(const Metric& metric, const StudyRun& run) {
  return !metric.of_evaluation || run.evaluations.size() <= 1;
}

// Parts of ReadRun, for tests.
std::map<std::string, double> NumbersOf(const nlohmann::json& summary);
// Why the run counts as diverged, judged by its curve and summary; "" if it does not. `any_loss`:
// the loss of the model has an unknown scale; otherwise it is binary cross-entropy.
std::string WhyDiverged(const std::vector<CurvePoint>& curve, bool loss_lost, bool any_loss,
                        const nlohmann::json& summary);

}  // namespace tandem::study

#endif  // TANDEM_TOOLS_STUDY_RUN_RECORD_H_
