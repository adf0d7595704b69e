// Which fields of a job may change when a run goes on from a save: those that decide neither what is
// computed from which rows in which order nor what the numbers of the save mean (docs/SAVES.md). And
// which when it is run again in a recorded order: those that leave who pushes which rows of which
// ranges as it was (docs/REPLAY.md).
#ifndef TANDEM_JOB_RESUME_CHECK_H_
#define TANDEM_JOB_RESUME_CHECK_H_

#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace tandem::job {

// One line each field that has changed and may not: "train.batch: 64 -> 128". Both with defaults
// filled in; what was measured on the data is not compared.
std::vector<std::string> ResumeDifferences(const Job& was, const Job& is);
// The same for a replay.
std::vector<std::string> ReplayDifferences(const Job& was, const Job& is);
// What has changed of that of which the numbers of the model come.
std::vector<std::string> ModelDifferences(const Job& was, const Job& is);
// All that has changed, whether it may or not.
std::vector<std::string> AllDifferences(const Job& was, const Job& is);

}  // namespace tandem::job

#endif  // TANDEM_JOB_RESUME_CHECK_H_
