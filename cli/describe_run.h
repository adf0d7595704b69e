// DescribeRun describes a job in the lines that `tandem run` prints first.
#ifndef TANDEM_CLI_DESCRIBE_RUN_H_
#define TANDEM_CLI_DESCRIBE_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cli/start_flags.h"
#include "job/job.h"

namespace tandem::cli {

// "1 server", "2 servers".
std::string Counted(int64_t count, absl::string_view what);

// How each table is updated, and the dense part: "table ids ASP, dense by ALLREDUCE(RING)". Counts
// tables that are updated alike, if there are more than a few.
std::string DescribeTables(const job::ResolvedJob& plan);

// The processes of the job, its policies, what its asynchrony means, and where it resumes.
std::vector<std::string> DescribeRun(const job::ResolvedJob& plan, const StartFlags& start);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_DESCRIBE_RUN_H_
