// Checks `catch_up` of the optimizer of a table. A row that makes up for missed steps is a function
// of the row and of the number of steps, so whatever else those steps would have depended on is
// refused.
#ifndef TANDEM_JOB_CATCH_UP_CHECK_H_
#define TANDEM_JOB_CATCH_UP_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace tandem::job {

// `path`: of the table, such as "table[0]". Requires: defaults are filled in, and the policy of the
// table has been checked.
absl::Status CheckCatchUp(const std::string& path, const Table& table, const Job& job);

}  // namespace tandem::job

#endif  // TANDEM_JOB_CATCH_UP_CHECK_H_
