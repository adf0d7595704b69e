// The plan of a study: from the text of a study to the runs that it asks for. The folder implements
// `tandem compare`, which plans and makes the runs, analyses them and writes the report.
//
// All errors are found here, before a run starts. A study is read with its base job, and the code
// of `tandem run` resolves the job of every run. A refusal names the file, the line, and the
// override that makes a job invalid.
#ifndef TANDEM_TOOLS_STUDY_STUDY_RUNS_H_
#define TANDEM_TOOLS_STUDY_STUDY_RUNS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "job/job.h"
#include "tools/study/study.pb.h"

namespace tandem::study {

inline constexpr size_t kMaxRuns = 10'000;

// A measure of a run, and whether more of it is better.
struct Metric {
  std::string name;    // name in the study: "auc", "hr_at_10", "samples_per_second", ...
  std::string column;  // column of StudyRun::numbers: "eval.auc"
  std::string label;   // for people: "AUC"
  bool higher_is_better = true;
  bool of_evaluation = true;  // measured on test (or validation) rows
  bool as_ratio = false;      // effects are factors and not differences: speeds and times
};
// INVALID_ARGUMENT lists the metrics that exist.
absl::StatusOr<Metric> MetricOf(absl::string_view name);

// A variation: runs that differ only in their seed.
struct VariationPlan {
  std::string name;
  job::Overrides set;
  std::string place;  // "FILE:12:5", for messages
  bool colocate_servers = false;
  std::string among;  // compared only with variations that have the same text here
};

// The purpose of a run.
enum class Part {
  kTuning,   // to choose a value; not reported as a result
  kUntuned,  // the job without a tuned value
  kTuned,    // with the chosen value
};
std::string PartName(Part part);  // "tuning", "untuned", "tuned"
absl::StatusOr<Part> PartOf(absl::string_view name);

// One run. Its folder is under DIR/runs.
struct RunPlan {
  std::string name;  // folder name: "SSP-4-seed1"; letters, digits, '-', '_' and '.'
  std::string variation;
  Part part = Part::kUntuned;
  std::string value;  // the tuned value; empty if the part is kUntuned
  uint64_t seed = 0;
  job::Overrides set;  // all overrides, in order
  bool colocate_servers = false;
  uint64_t job_hash = 0;
  std::string job_text;  // the resolved job
};

struct StudyRuns {
  Study study;               // with defaults filled in
  std::string job_file;      // path of the job, for `tandem run`
  std::string base_job;      // text of the job; empty in a plan that was parsed without it
  std::string script;        // path of the script, for `tandem run --python`; empty: none
  uint64_t script_hash = 0;  // hash of the script's contents; 0 if parsed without it
  Metric metric;
  std::vector<VariationPlan> variations;
  std::string baseline;

  // The baseline of a set of variations: `baseline` if it belongs to the set, else the first
  // variation of the set.
  std::string BaselineAmong(absl::string_view among) const;
  std::string BaselineOf(absl::string_view variation) const;
  // Each set once; one empty text if no variation names a set.
  std::vector<std::string> Amongs() const;

  bool tunes() const { return study.has_tune(); }
  // True if no run reads the job's data, because it solves a problem or only times steps.
  bool without_data() const {
    return study.simulate().has_problem() || study.simulate().timing_only();
  }
};

// Checks whether a job can be started here. Covers devices, files and transports, which parsing
// does not.
using JobCheck = std::function<absl::Status(const job::ResolvedJob&)>;

// Parses a study without reading any other file, as the report of a finished study needs it.
// `file_name` is used in messages and to find the folder of the job.
absl::StatusOr<StudyRuns> ParseStudy(absl::string_view text, const std::string& file_name);
// Parses a study and reads its base job once, so that all runs have the same text even if the file
// changes. Also hashes the script, if there is one: a run of a changed script is a different run.
absl::StatusOr<StudyRuns> ParseStudyWithJob(absl::string_view text, const std::string& file_name);
absl::StatusOr<StudyRuns> ReadStudyFile(const std::string& path);

// The runs of one part, with resolved jobs, in the order in which they are made: seed by seed, so
// that variations that are compared run close to each other in time. `chosen`: value by variation,
// for Part::kTuned. INVALID_ARGUMENT if one of the jobs is invalid. `plan` must have its base job.
absl::StatusOr<std::vector<RunPlan>> RunsOf(const StudyRuns& plan, Part part,
                                            const std::map<std::string, std::string>& chosen);

// Refuses a study if any of its runs could not be started, whatever value tuning may choose.
absl::Status CheckAllRuns(const StudyRuns& plan, const JobCheck& check);

// The study with everything that its runs depend on, as one text, so that two studies can be
// compared.
std::string StudyText(const Study& study);

}  // namespace tandem::study

#endif  // TANDEM_TOOLS_STUDY_STUDY_RUNS_H_
