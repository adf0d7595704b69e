// The facts of a job (plan/facts.h) from its own files: batches of its rows are read to see how many
// distinct rows of each table a step touches, which is what the skew of the ids decides.
#ifndef TANDEM_PLAN_MEASURE_FACTS_H_
#define TANDEM_PLAN_MEASURE_FACTS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job.h"
#include "plan/facts.h"

namespace tandem::plan {

// What the job does not say.
struct Assumed {
  std::vector<double> compute_seconds;  // of a step, by rank
  double latency_seconds = 0;
  double bytes_per_second = 0;  // 0 = no limit
  // By table, of a run: its rows at the end, and bytes of memory that these took.
  struct Rows {
    double rows = 0, bytes = 0;
  };
  std::map<std::string, Rows> rows;
};

// INVALID_ARGUMENT for a job of which nobody can say what it costs before it runs: one whose rows a
// program brings, or whose module is a file.
absl::Status CheckKnown(const job::JobPlan& plan);

// Reads some batches of the first worker's training rows. A step takes what `assumed` says, or what the
// job's service_time draws where that is more. Tables without rows in `assumed` have the job's
// expected_rows. Errors: of the data, and of CheckKnown.
absl::StatusOr<Facts> MeasureFacts(const job::JobPlan& plan, const Assumed& assumed);

}  // namespace tandem::plan

#endif  // TANDEM_PLAN_MEASURE_FACTS_H_
