// Service times of a job's workers (job/service_time.h) that are read from trace files.
#ifndef TANDEM_DATA_SERVICE_TRACE_H_
#define TANDEM_DATA_SERVICE_TRACE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job.h"
#include "job/service_time.h"

namespace tandem::data {

// Those of worker `rank`, its trace read if it has one. `seed`: that of the job, as a rule. NOT_FOUND or
// INVALID_ARGUMENT, in one line, for a file that is not there or no trace.
absl::StatusOr<job::ServiceTimes> OpenServiceTimes(const job::JobPlan& plan, uint64_t seed,
                                                   int rank);
// Those of all workers, by rank; each trace is read once.
absl::StatusOr<std::vector<job::ServiceTimes>> OpenServiceTimesOfAll(const job::JobPlan& plan,
                                                                     uint64_t seed);

// That all trace files of a job can be read, before it starts.
absl::Status CheckServiceTraces(const job::JobPlan& plan);

}  // namespace tandem::data

#endif  // TANDEM_DATA_SERVICE_TRACE_H_
