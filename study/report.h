// From the folder of a study to its report: runs.csv, results.json, figures and report.html.
#ifndef TANDEM_STUDY_REPORT_H_
#define TANDEM_STUDY_REPORT_H_

#include <string>

#include "absl/status/statusor.h"

namespace tandem::study {

struct ReportEnd {
  std::string answer;                                      // as Analysis::answer
  std::string missing;                                     // empty, or why there are no figures
  int complete = 0, diverged = 0, failed = 0, absent = 0;  // runs, tuning included
  int collapsed = 0;  // of the complete ones (study/analysis.h)
};

// Runs nothing; reads what is there, and writes the rest anew. `script` draws the figures. NOT_FOUND if
// the folder is no study's.
absl::StatusOr<ReportEnd> WriteReport(const std::string& folder, const std::string& script);

}  // namespace tandem::study

#endif  // TANDEM_STUDY_REPORT_H_
