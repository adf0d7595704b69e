// Where a run goes on: what its output folder says of it, and the newest whole save there.
#ifndef TANDEM_CLI_RESUME_POINT_H_
#define TANDEM_CLI_RESUME_POINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "job/job.h"
#include "proto/wire.pb.h"

namespace tandem::cli {

struct ResumePoint {
  std::string save;            // its folder
  std::string damaged;         // why newer ones are not it; empty: there is none
  int64_t step = 0;            // the steps before it are in the save
  uint64_t run = 0;            // View.run
  int64_t attempt = 0;         // the number of this going on: above all before it
  RunRecord record;            // what the run had done
  absl::optional<Job> job;     // as it was, with defaults filled in; none: the folder does not say
  bool finished = false;       // the run had come to its end
  bool stopped_early = false;  // ... since no better model came in time (train.keep_best)
};

// NOT_FOUND: there is no run in `folder`, or nothing of it was saved.
absl::StatusOr<ResumePoint> FindResumePoint(const std::string& folder);

struct ResumeReport {
  std::vector<std::string> refused;  // why the plan cannot go on there, a line each; none: it can
  std::vector<std::string> said;     // what of the job is not as it was
};
ResumeReport CheckResume(const std::string& folder, const ResumePoint& point,
                         const job::JobPlan& plan);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_RESUME_POINT_H_
