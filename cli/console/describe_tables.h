// DescribeTables says in one line how the parameters of a job are updated.
#ifndef TANDEM_CLI_CONSOLE_DESCRIBE_TABLES_H_
#define TANDEM_CLI_CONSOLE_DESCRIBE_TABLES_H_

#include <string>

#include "job/job.h"

namespace tandem::cli {

// How each table is updated, and the dense part: "table ids ASP, dense by ALLREDUCE(RING)". Counts
// tables that are updated alike, if there are more than a few.
std::string DescribeTables(const job::ResolvedJob& plan);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_CONSOLE_DESCRIBE_TABLES_H_
