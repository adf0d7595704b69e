// Which fields of a job may change when a run resumes from a checkpoint, or is replayed. When a run
// resumes, a field may change if it decides neither the computation (which rows, in which order)
// nor the meaning of the checkpoint's numbers (docs/CHECKPOINTS.md). When a run is replayed in its
// recorded order, a field may change if the same workers still push the same rows to the same
// ranges (docs/REPLAY.md).
#ifndef TANDEM_JOB_RESUME_CHECK_H_
#define TANDEM_JOB_RESUME_CHECK_H_

#include <string>
#include <vector>

#include "job/job.h"
#include "proto/job.pb.h"

namespace tandem::job {

// The fields that have changed although they must not, one line each: "train.batch_size: 64 ->
// 128". Both jobs have their defaults filled in. Ignores values that were measured on the data.
// Compares the deal of the rows only if both jobs name it.
std::vector<std::string> ResumeDifferences(const Job& was, const Job& is);
// The same for a replay.
std::vector<std::string> ReplayDifferences(const Job& was, const Job& is);
// The changed fields that influence the numbers of the model.
std::vector<std::string> ModelDifferences(const Job& was, const Job& is);
// All changed fields, whether they may change or not.
std::vector<std::string> AllDifferences(const Job& was, const Job& is);

// Settings that a job file of an earlier version lacks, with the values that this version used: it
// counted the steps of ADAM in tables by row.
Overrides EarlierSettings(const Job& written);
// Copies the step count of the run that resumes, `was`, to each table of `job` whose optimizer is
// a kind of Adam without a step count. `job` is as the user wrote it.
void KeepStepCounts(const Job& was, Job* job);

}  // namespace tandem::job

#endif  // TANDEM_JOB_RESUME_CHECK_H_
