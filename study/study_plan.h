// From the text of a study to the runs that it asks for.
//
// Everything that can be wrong is found here, before a run starts: a study is read with its base job,
// and the job of every run is resolved by the code of `tandem run`. A refusal names file, line, and the
// override that makes a job impossible.
#ifndef TANDEM_STUDY_STUDY_PLAN_H_
#define TANDEM_STUDY_STUDY_PLAN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "job/job.h"
#include "study/study.pb.h"

namespace tandem::study {

inline constexpr size_t kMaxRuns = 10'000;

// What is measured of a run, and which way is better.
struct Metric {
  std::string name;    // as in the study: "auc", "hr_at_10", "samples_per_second", ...
  std::string column;  // of StudyRun::numbers: "eval.auc"
  std::string label;   // for people: "AUC"
  bool higher_is_better = true;
  bool of_evaluation = true;  // on test (or validation) rows
  bool as_ratio = false;      // effects are factors, not differences: speeds and times
};
// INVALID_ARGUMENT lists what there is.
absl::StatusOr<Metric> MetricOf(absl::string_view name);

// Runs that differ in their seed alone.
struct VariationPlan {
  std::string name;
  job::Overrides set;
  std::string place;  // "FILE:12:5", for messages
  bool servers_beside_workers = false;
  std::string among;  // compared with variations of the same text here alone
};

// Why a run is there.
enum class Part {
  kTuning,   // to choose a value by; not reported as a result
  kUntuned,  // the job as it is
  kTuned,    // with the value chosen
};
std::string PartName(Part part);  // "tuning", "untuned", "tuned"
absl::StatusOr<Part> PartOf(absl::string_view name);

// One run: a folder under DIR/runs.
struct RunPlan {
  std::string name;  // of the folder: "SSP-4-seed1"; letters, digits, '-', '_' and '.'
  std::string variation;
  Part part = Part::kUntuned;
  std::string value;  // of what is tuned; empty if the part is kUntuned
  uint64_t seed = 0;
  job::Overrides set;  // all of them, in order
  bool servers_beside_workers = false;
  uint64_t job_hash = 0;
  std::string job_text;  // resolved
};

struct StudyPlan {
  Study study;               // with defaults filled in
  std::string job_file;      // as `tandem run` is given it
  std::string base_job;      // its text; empty in a plan that was parsed without it
  std::string script;        // as `tandem run --python` is given it; empty: none
  uint64_t script_hash = 0;  // of what is in it; 0 in a plan that was parsed without it
  Metric metric;
  std::vector<VariationPlan> variations;
  std::string baseline;

  // What the variations of the study, or those that are compared with each other, are compared with:
  // `baseline` where it is one of them, else their first.
  std::string BaselineAmong(absl::string_view among) const;
  std::string BaselineOf(absl::string_view variation) const;
  std::vector<std::string> Amongs() const;  // each once; one empty text if no variation says any

  bool tunes() const { return study.has_tune(); }
  // Nothing of the job's data is read: a problem, or nothing but times.
  bool without_data() const {
    return study.simulate().has_problem() || study.simulate().timing_only();
  }
};

// Is this job fit to be started here? What is asked beside parsing: devices, files, transports.
using JobCheck = std::function<absl::Status(const job::JobPlan&)>;

// `file_name` in messages and for the folder of the job. ParseStudy reads no file: for the report of a study
// that was run.
absl::StatusOr<StudyPlan> ParseStudy(absl::string_view text, const std::string& file_name);
// And the base job, once: whatever becomes of the file, all runs are made of one text. And the hash
// of the script, if there is one: a run of another script is another run.
absl::StatusOr<StudyPlan> ParseStudyWithJob(absl::string_view text, const std::string& file_name);
absl::StatusOr<StudyPlan> ReadStudyFile(const std::string& path);

// The runs of one part, with jobs resolved, in the order in which they are to run: seed by seed, so that
// variations that are compared run near to each other. `chosen`: by variation, for Part::kTuned.
// INVALID_ARGUMENT if one of their jobs is impossible. `plan` has its base job.
absl::StatusOr<std::vector<RunPlan>> RunsOf(const StudyPlan& plan, Part part,
                                            const std::map<std::string, std::string>& chosen);

// Refuses a study of which any run, whatever tuning may choose, could not be started.
absl::Status CheckAllRuns(const StudyPlan& plan, const JobCheck& check);

// The study with all that its runs are made of as one text, for comparing two.
std::string StudyText(const Study& study);

}  // namespace tandem::study

#endif  // TANDEM_STUDY_STUDY_PLAN_H_
