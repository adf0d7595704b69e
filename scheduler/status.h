// The status of a job that runs, as JSON: the facts that `tandem status`, the live page,
// /status.json and /metrics show. Each of them reads this JSON and nothing else, so that they
// agree. docs/OBSERVE.md describes the fields.
//
// Thread safety: free functions without state. They belong to the thread of the scheduler core,
// whose parts they read.
#ifndef TANDEM_SCHEDULER_STATUS_H_
#define TANDEM_SCHEDULER_STATUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "job/job.h"
#include "nlohmann/json.hpp"
#include "proto/wire.pb.h"
#include "scheduler/failure/stalls.h"
#include "scheduler/job_checkpoints.h"
#include "scheduler/observe/job_report.h"
#include "scheduler/state/membership.h"

namespace tandem::scheduler {

// The memory that one process of a kind is expected to need, in bytes; 0: unknown.
struct MemoryEstimate {
  uint64_t server = 0, worker = 0;
};

// Everything that the status is made of. All pointers are to parts of one scheduler core.
struct StatusFacts {
  absl::Time now;
  absl::string_view state;  // "running"
  const job::ResolvedJob* plan = nullptr;
  const Membership* members = nullptr;
  const View* view = nullptr;
  const JobCheckpoints* checkpoints = nullptr;
  const std::vector<ShardReport>* shards = nullptr;
  absl::optional<JobProgress> progress;  // the last reporting interval
  JobReport report;                      // the whole job until now
  std::vector<WaitState> waits;          // of the members, in their order; empty: not known
  MemoryEstimate estimate;
  absl::optional<Failure> failure;
};

// The status without the scheduler's own process, which a core does not know.
nlohmann::json StatusJson(const StatusFacts& facts);

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_STATUS_H_
