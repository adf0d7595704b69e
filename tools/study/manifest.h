// DIR/manifest.json: everything that is needed to repeat a study, and to report on it without its
// other files. The manifest has the study, every run with its resolved job, the seeds, the chosen
// values, this build, this machine, and checksums of the data.
#ifndef TANDEM_TOOLS_STUDY_MANIFEST_H_
#define TANDEM_TOOLS_STUDY_MANIFEST_H_

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/study/study_runs.h"

namespace tandem::study {

struct Manifest {
  std::string study_file;
  StudyRuns plan;
  std::vector<RunPlan> runs;                  // all parts, except runs of values not chosen yet
  std::map<std::string, std::string> chosen;  // by variation
  nlohmann::json surroundings = nlohmann::json::object();  // build, machine, data, start time
};

// Describes the build, the machine and the time. Lists the files that each pattern of the runs'
// jobs stands for (without data files if the study reads no data), with size and XXH3 of each file.
absl::StatusOr<nlohmann::json> SurroundingsOf(const StudyRuns& plan,
                                              const std::vector<RunPlan>& runs);

absl::Status WriteManifest(const std::string& folder, const Manifest& manifest);
// NOT_FOUND if the folder has no manifest.
absl::StatusOr<Manifest> ReadManifest(const std::string& folder);

// "programs: XXH3" of the files, to tell builds apart. A missing file counts as empty.
std::string BuildOf(const std::vector<std::string>& programs);

// Checks that the study may resume where `old` has stopped. The study may have got more seeds,
// values and variations. At least one run must be in both. Runs that are in both must have the same
// job and the same data: the same files with the same contents. FAILED_PRECONDITION names the first
// difference.
absl::Status CheckGoesOn(const Manifest& old, const Manifest& now);

}  // namespace tandem::study

#endif  // TANDEM_TOOLS_STUDY_MANIFEST_H_
