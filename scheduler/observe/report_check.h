// ReportCheck checks reports of nodes before they are counted: numbers must be in bounds, and lists
// must fit the job. A peer therefore cannot make the scheduler hold more than this job needs, and
// the run record (JobBook::Record) fits one control message.
#ifndef TANDEM_SCHEDULER_OBSERVE_REPORT_CHECK_H_
#define TANDEM_SCHEDULER_OBSERVE_REPORT_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "job/job.h"
#include "proto/wire.pb.h"

namespace tandem::scheduler {

class ReportCheck {
 public:
  // A larger count is an error of its sender. Sums of smaller ones cannot overflow.
  static constexpr int64_t kMaxCount = int64_t{1} << 50;
  static constexpr int kMaxByteKinds = 64;
  static constexpr size_t kMaxEvaluationBytes = size_t{1} << 20;
  // A Progress without its evaluation and without the updates by table.
  static constexpr size_t kMaxProgressBytes = 8192;

  explicit ReportCheck(const job::ResolvedJob& plan);

  // INVALID_ARGUMENT for reports that do not belong to this job.
  absl::Status Check(const Progress& progress) const;
  absl::Status Check(const ShardReport& report) const;
  // The id of a table; -1: it is not in the job.
  int TableOf(const std::string& name) const;
  // Whether reports count the rows of this table (TableReport.row_counts).
  bool HasRowRules(int table) const { return has_row_rules_[static_cast<size_t>(table)]; }

 private:
  absl::Status CheckTables(const ShardReport& report) const;
  absl::Status CheckWaits(const ShardReport& report) const;

  const int workers_, servers_, shards_per_server_;
  // The most entries by rank, in a table and in a whole report: for updates and for waits.
  const int pairs_, totals_, waits_in_pairs_, waits_;
  std::map<std::string, int> tables_;  // ids by name
  std::vector<bool> has_row_rules_;    // by id
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_OBSERVE_REPORT_CHECK_H_
