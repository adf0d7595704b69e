// Flags for the start of a job and for its checkpoints. `tandem run` and tandem-scheduler have
// them. The scheduler passes them on to all nodes.
#ifndef TANDEM_CLI_LAUNCH_START_FLAGS_H_
#define TANDEM_CLI_LAUNCH_START_FLAGS_H_

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/owned_fd.h"
#include "cli/launch/resume_point.h"
#include "job/job.h"
#include "scheduler/scheduler_core.h"

namespace tandem::cli {

struct StartFlags {
  std::string init_from;
  std::vector<std::string> only_tables;
  bool checkpoint = true;               // write checkpoints to OUT/model
  std::string resume;                   // output folder of the run to resume; empty: a new run
  server::CheckpointSearch search;      // from which of its checkpoints
  absl::optional<ResumePoint> resumed;  // the point from which it resumes
};

void AddStartFlags(CLI::App* app, StartFlags* flags);

// With --resume: finds the point from which the run resumes, and sets `out` to its folder.
// Otherwise does nothing.
absl::Status FindResume(StartFlags* flags, std::string* out);

// The lines to print before a job starts.
struct StartReport {
  std::vector<std::string> refused;  // reasons why the job must not start
  std::vector<std::string> said;
  // The checkpoint that --init-from means now. Every process loads this one. Otherwise, if
  // another job still writes checkpoints there, two processes could load different steps. Empty:
  // no checkpoint.
  std::string checkpoint;
  std::string description;  // of the data that the checkpoint was trained on; empty: no checkpoint
  // while it is open, the checkpoint is not removed (server::KeepCheckpoint)
  OwnedFd kept;
};
StartReport CheckStart(const StartFlags& flags, const job::ResolvedJob& plan);

// `out`: the output folder, or empty. Returns absolute paths, because nodes may run in
// other folders.
scheduler::ModelPaths PathsOf(const StartFlags& flags, const std::string& out,
                              const job::ResolvedJob& plan);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_START_FLAGS_H_
