// DescribeRun describes a job in the lines that `tandem run` prints first.
#ifndef TANDEM_CLI_DESCRIBE_RUN_H_
#define TANDEM_CLI_DESCRIBE_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cli/launch/start_flags.h"
#include "job/job.h"

namespace tandem::cli {

// "1 server", "2 servers".
std::string Counted(int64_t count, absl::string_view what);

// The processes of the job, its policies, what its asynchrony means, and where it resumes.
std::vector<std::string> DescribeRun(const job::ResolvedJob& plan, const StartFlags& start);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_DESCRIBE_RUN_H_
