// CheckRowRules refuses contradictions in the rules of a table by which rows come and go:
// `admission` and `eviction`. Used by job_check.cc only.
#ifndef TANDEM_JOB_ROW_RULES_CHECK_H_
#define TANDEM_JOB_ROW_RULES_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace tandem::job {

// Like CheckJob (job_check.h), for the rules of one table. `path` is that of the table. Requires:
// the table is no KEY_VALUE table.
absl::Status CheckRowRules(const std::string& path, const Table& table, const Job& job);

}  // namespace tandem::job

#endif  // TANDEM_JOB_ROW_RULES_CHECK_H_
