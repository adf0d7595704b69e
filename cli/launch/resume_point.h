// The point from which a run resumes: the state in its output folder, and its newest
// complete checkpoint.
#ifndef TANDEM_CLI_LAUNCH_RESUME_POINT_H_
#define TANDEM_CLI_LAUNCH_RESUME_POINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "job/job.h"
#include "proto/wire.pb.h"
#include "server/checkpoint/checkpoint_directory.h"

namespace tandem::cli {

struct ResumePoint {
  std::string checkpoint;      // folder of the checkpoint
  std::string damaged;         // why newer checkpoints are not used; empty: none is newer
  int64_t step = 0;            // the checkpoint contains the steps before this one
  uint64_t run = 0;            // View.run
  int64_t attempt = 0;         // number of this attempt, above those of all earlier ones
  RunRecord record;            // counters of the run so far
  absl::optional<Job> job;     // of the run, with defaults filled in; nullopt: not in the folder
  bool finished = false;       // the run has finished
  bool stopped_early = false;  // ... because no better model came in time (train.keep_best)
};

// NOT_FOUND: there is no run in `folder`, or the run has no checkpoint.
absl::StatusOr<ResumePoint> FindResumePoint(const std::string& folder,
                                            const server::CheckpointSearch& search);
// For messages and first looks: whether there is something to resume from. Reads no range.
bool HasResumePoint(const std::string& folder);

// Whether the run of this folder has a checkpoint, even one that cannot be read.
absl::StatusOr<bool> HasCheckpoint(const std::string& folder);

struct ResumeReport {
  std::vector<std::string> refused;  // why the plan cannot resume, a line each; empty: it can
  std::vector<std::string> said;     // the changes of the job, a line each
};
ResumeReport CheckResume(const std::string& folder, const ResumePoint& point,
                         const job::ResolvedJob& plan);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_RESUME_POINT_H_
