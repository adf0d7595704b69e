// DIR/runs.csv: one row for each run, one column for every number that any run has, for tools of
// the user.
#ifndef TANDEM_TOOLS_STUDY_RUNS_CSV_H_
#define TANDEM_TOOLS_STUDY_RUNS_CSV_H_

#include <string>
#include <vector>

#include "tools/study/run_record.h"

namespace tandem::study {

// The columns are run, variation, part, value, seed, state, why, wall_seconds, restarts, build, and
// then numbers by name. An unknown number is an empty cell. Texts are quoted as in RFC 4180.
std::string RunsCsv(const std::vector<StudyRun>& runs);

}  // namespace tandem::study

#endif  // TANDEM_TOOLS_STUDY_RUNS_CSV_H_
