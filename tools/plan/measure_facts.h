// Measures the facts of a job (tools/plan/facts.h) from its own files. Reads some batches to count
// the distinct rows of each table that a step touches, because the skew of the ids decides this
// number.
#ifndef TANDEM_TOOLS_PLAN_MEASURE_FACTS_H_
#define TANDEM_TOOLS_PLAN_MEASURE_FACTS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job.h"
#include "tools/plan/facts.h"

namespace tandem::plan {

// Numbers that a job does not contain.
struct Assumed {
  std::vector<double> compute_seconds;  // for a step, by rank
  double latency_seconds = 0;
  double bytes_per_second = 0;  // 0 = no limit
  // By table, from an earlier run: rows at its end, and their bytes of memory.
  struct Rows {
    double rows = 0, bytes = 0;
  };
  std::map<std::string, Rows> rows;
  // From an earlier run, for jobs whose program or module knows them; 0: unknown.
  double dense_parameters = 0;
  double push_bytes = 0;  // of a step of one worker: gradients of rows, with their ids
};

// Reads some batches of the first worker's training rows. A step takes the seconds of `assumed`, or
// those of the job's fault_injection.slow_workers if these are more. Tables without rows in
// `assumed` have the job's expected_rows. Frozen tables have no rows then, because only updates
// create rows. If a program brings the rows, each table has the same share of the rows that a step
// touches. Errors: reading the data, and sizes that neither the job nor `assumed` contains.
absl::StatusOr<Facts> MeasureFacts(const job::ResolvedJob& plan, const Assumed& assumed);

}  // namespace tandem::plan

#endif  // TANDEM_TOOLS_PLAN_MEASURE_FACTS_H_
