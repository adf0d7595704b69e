// DIR/manifest.json: all that is needed to repeat a study, and to report on it without its files: the
// study, every run with its resolved job, the seeds, the values chosen, this build, this machine, and
// checksums of the data.
#ifndef TANDEM_STUDY_MANIFEST_H_
#define TANDEM_STUDY_MANIFEST_H_

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "study/study_plan.h"

namespace tandem::study {

struct Manifest {
  std::string study_file;
  StudyPlan plan;
  std::vector<RunPlan> runs;                  // all parts, without those of values not chosen yet
  std::map<std::string, std::string> chosen;  // by variation
  nlohmann::json surroundings = nlohmann::json::object();  // build, machine, data, began
};

// Build, machine, time, the files that each pattern of the runs' jobs stands for (without their data, if the
// study reads none), and size and XXH3 of every one of them.
absl::StatusOr<nlohmann::json> SurroundingsOf(const StudyPlan& plan,
                                              const std::vector<RunPlan>& runs);

absl::Status WriteManifest(const std::string& folder, const Manifest& manifest);
// NOT_FOUND if there is none.
absl::StatusOr<Manifest> ReadManifest(const std::string& folder);

// "programs: XXH3" of the files, to tell builds apart. A file that is not there counts as empty.
std::string BuildOf(const std::vector<std::string>& programs);

// May the study go on where `old` has stopped? It may have grown by seeds, values and variations; some
// run must be in both, and runs of both must be of one job, on unchanged data: the same files with the
// same contents. FAILED_PRECONDITION names what differs.
absl::Status CheckGoesOn(const Manifest& old, const Manifest& now);

}  // namespace tandem::study

#endif  // TANDEM_STUDY_MANIFEST_H_
