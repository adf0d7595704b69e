// What one run has left behind, as numbers: read from the folder of `tandem run`.
#ifndef TANDEM_STUDY_RUN_RECORD_H_
#define TANDEM_STUDY_RUN_RECORD_H_

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "study/study_plan.h"

namespace tandem::study {

enum class RunState {
  kAbsent,    // not run yet, or cut off: to be run, from fresh
  kComplete,  // its summary says so
  kDiverged,  // its loss, a logit or a gradient is no number, or the loss far above where it began
  kFailed,    // ended by itself without a summary
};
std::string StateName(RunState state);  // "absent", "complete", "diverged", "failed"

// A moment of a run. NaN where a value is unknown.
struct CurvePoint {
  double seconds = 0, samples = 0;
  double loss = 0;  // mean over the interval before, of rows that had not trained yet
  double auc = 0;   // of the same rows, each scored before it trained
};
struct EvaluationPoint {
  double seconds = 0, samples = 0;       // at its end
  std::map<std::string, double> values;  // "eval.auc"
  bool validation = false;               // rows of that kind, not test rows
};

struct StudyRun {
  std::string name, variation;
  Part part = Part::kUntuned;
  std::string value;
  uint64_t seed = 0;
  RunState state = RunState::kAbsent;
  std::string why;          // failed or diverged: one line
  double wall_seconds = 0;  // from start to end of the process; 0 = unknown
  std::string build;        // WriteRunBegin
  // Every number of summary.json under its path ("staleness.ids.version_staleness.mean"), but
  // "seconds" and "samples_per_second" without "start_seconds"; and "loss": of the last tenth of
  // the samples. No loss where nothing says it of the last samples.
  std::map<std::string, double> numbers;
  std::map<std::string, std::string> policy;  // by table
  std::vector<CurvePoint> curve;
  std::vector<EvaluationPoint> evaluations;
  // These parts of summary.json as they are: histograms, and lists by worker (docs/RESULTS.md).
  nlohmann::json staleness = nlohmann::json::object();
  nlohmann::json by_worker = nlohmann::json::array();
  // `by_workers` of ModelFile, if there is one.
  nlohmann::json model_curve = nlohmann::json::array();
  std::vector<std::string> not_counted;  // by that model, in words

  bool counts() const { return state == RunState::kComplete; }
  absl::optional<double> Number(const std::string& column) const;
};

// Before a run starts: its resolved job, which is what is started (RunJobFile), and whose run this folder
// is. `build`: any text that tells builds of Tandem apart.
absl::Status WriteRunBegin(const std::string& folder, const RunPlan& plan,
                           const std::string& build);
std::string RunJobFile(const std::string& folder);
// Where the twin of a live run lies, the same job simulated with the times that the run took.
std::string TwinFolder(const std::string& folder);

// What the model of `tandem plan` says of a run on hosts with limited links, as an object: `step_seconds` and
// `speed`, in samples a second; `step_rows`, of all workers; `full_step_seconds`, at full size;
// `by_workers`, a list of `workers`, `servers`, `step_seconds`, `speed`; and `assumed`, what else
// decides what it says.
std::string ModelFile(const std::string& folder);

// Leaves a word on how the process of a run ended, beside what the run has written itself.
absl::Status WriteRunEnd(const std::string& folder, double wall_seconds, bool ok,
                         const std::string& why);

// What is to stand beside a run of a study.
struct BesideRun {
  bool twin = false, model = false;
};
BesideRun BesideRunOf(const Study& study);

// Never fails: a folder that is not there, or half written, or of another job, is an absent run. So is
// one that lacks what is to stand beside it.
StudyRun ReadRun(const RunPlan& plan, const std::string& folder, const BesideRun& beside = {});

// What follows from the numbers of a run, under names of its own: "to_target.seconds" and
// "to_target.samples" (absent if the target was not reached, or the run diverged),
// "bytes_per_sample.KIND", "staleness.version_mean", "staleness.row_mean", "staleness.age_mean" and
// "staleness.in_flight_mean" of tables (of dense parameters where there is nothing else), of dense
// parameters beside tables "staleness.dense_version_mean" and so on, "staleness.clock_gap_max",
// "memory_bytes" of their rows; "steady.speed": samples a second without the first tenth of the
// samples, the first step, and all before; of a run with a model "steady.step_seconds" and
// "model.ratio", what it says of a step's seconds in these; "training_speed": samples a second,
// evaluations and saves left out, and of a run with a twin "twin.training_speed", "twin.ratio":
// that of both, and the twin's mean version staleness, "twin.version_mean".
void AddDerivedNumbers(const StudyPlan& plan, StudyRun* run);

// The way of a run towards the study's metric: its evaluations if there are several; else, for AUC and
// losses, what the rows said before they trained. Empty if nothing is known but the end.
struct QualityPoint {
  double seconds = 0, samples = 0, value = 0;
};
std::vector<QualityPoint> QualityCurve(const Metric& metric, const StudyRun& run);
// Is that curve one of training rows?
inline bool IsOfTraining(const Metric& metric, const StudyRun& run) {
  return !metric.of_evaluation || run.evaluations.size() <= 1;
}

// The parts of it, for tests.
std::map<std::string, double> NumbersOf(const nlohmann::json& summary);
// "" or why the run counts as diverged, from its curve and summary. `any_loss`: of the model, of which
// nobody knows what knowing nothing costs; else it is binary cross-entropy.
std::string WhyDiverged(const std::vector<CurvePoint>& curve, bool loss_lost, bool any_loss,
                        const nlohmann::json& summary);

}  // namespace tandem::study

#endif  // TANDEM_STUDY_RUN_RECORD_H_
