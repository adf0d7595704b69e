// CheckRowRules refuses contradictions in the rules of a table by which rows come and go:
// `admission` and `eviction`. WarnOfRowRules names rules that are allowed but probably not meant.
#ifndef TANDEM_JOB_ROW_RULES_CHECK_H_
#define TANDEM_JOB_ROW_RULES_CHECK_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "job/job.h"
#include "proto/job.pb.h"

namespace tandem::job {

// Like CheckJob (job_check.h), for the rules of one table. `path` is that of the table. Requires:
// the table is no KEY_VALUE table.
absl::Status CheckRowRules(const std::string& path, const Table& table, const Job& job);

// A line for each table with LRU whose key ranges may hold only a few rows each.
std::vector<std::string> WarnOfRowRules(const ResolvedJob& plan);

}  // namespace tandem::job

#endif  // TANDEM_JOB_ROW_RULES_CHECK_H_
