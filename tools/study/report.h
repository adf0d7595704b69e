// Writes the report of a study from its folder: runs.csv, results.json, figures and report.html.
#ifndef TANDEM_TOOLS_STUDY_REPORT_H_
#define TANDEM_TOOLS_STUDY_REPORT_H_

#include <string>

#include "absl/status/statusor.h"

namespace tandem::study {

struct ReportEnd {
  std::string answer;                                      // Analysis::answer
  std::string missing;                                     // empty, or why there are no figures
  int complete = 0, diverged = 0, failed = 0, absent = 0;  // numbers of runs, with tuning runs
  int collapsed = 0;  // how many of the complete runs collapsed (tools/study/analysis.h)
};

// Reads the runs in the folder and writes the report anew. Starts no run. `script` draws the
// figures. NOT_FOUND if the folder is not the folder of a study.
absl::StatusOr<ReportEnd> WriteReport(const std::string& folder, const std::string& script);

}  // namespace tandem::study

#endif  // TANDEM_TOOLS_STUDY_REPORT_H_
