// Reads the trace files of a job's service times (job/service_time.h).
#ifndef TANDEM_DATA_SERVICE_TRACE_H_
#define TANDEM_DATA_SERVICE_TRACE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job.h"
#include "job/service_time.h"

namespace tandem::data {

// The service times of worker `rank`. Reads the trace if the worker has one. `seed`: usually the
// job's seed. NOT_FOUND or INVALID_ARGUMENT, in one line, if the file is missing or no trace.
absl::StatusOr<job::ServiceTimes> OpenServiceTimes(const job::JobPlan& plan, uint64_t seed,
                                                   int rank);
// The service times of all workers, by rank. Each trace is read once.
absl::StatusOr<std::vector<job::ServiceTimes>> OpenServiceTimesOfAll(const job::JobPlan& plan,
                                                                     uint64_t seed);

// Checks, before a job starts, that all of its trace files can be read.
absl::Status CheckServiceTraces(const job::JobPlan& plan);

}  // namespace tandem::data

#endif  // TANDEM_DATA_SERVICE_TRACE_H_
