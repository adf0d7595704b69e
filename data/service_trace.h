// Reads the trace files of a job's step times (job/step_time.h).
#ifndef TANDEM_DATA_SERVICE_TRACE_H_
#define TANDEM_DATA_SERVICE_TRACE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job.h"
#include "job/step_time.h"

namespace tandem::data {

// The step times of worker `rank`. Reads the trace if the worker has one. `seed`: usually the
// job's seed. NOT_FOUND or INVALID_ARGUMENT, in one line, if the file is missing or no trace.
absl::StatusOr<job::StepTimes> OpenStepTimes(const job::ResolvedJob& plan, uint64_t seed, int rank);
// The step times of all workers, by rank. Each trace is read once.
absl::StatusOr<std::vector<job::StepTimes>> OpenStepTimesOfAll(const job::ResolvedJob& plan,
                                                               uint64_t seed);

// Checks, before a job starts, that all of its trace files can be read.
absl::Status CheckServiceTraces(const job::ResolvedJob& plan);

}  // namespace tandem::data

#endif  // TANDEM_DATA_SERVICE_TRACE_H_
