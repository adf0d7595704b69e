// DIR/runs.csv: a row a run, a column for every number that any run has, for tools of the reader's own.
#ifndef TANDEM_STUDY_RUNS_CSV_H_
#define TANDEM_STUDY_RUNS_CSV_H_

#include <string>
#include <vector>

#include "study/run_record.h"

namespace tandem::study {

// run, variation, part, value, seed, state, why, wall_seconds, then numbers by name. An unknown number is
// an empty cell; texts are quoted as in RFC 4180.
std::string RunsCsv(const std::vector<StudyRun>& runs);

}  // namespace tandem::study

#endif  // TANDEM_STUDY_RUNS_CSV_H_
