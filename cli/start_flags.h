// What a job begins with and leaves behind: flags of `tandem run` and of tandem-scheduler, which tells
// all nodes.
#ifndef TANDEM_CLI_START_FLAGS_H_
#define TANDEM_CLI_START_FLAGS_H_

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/owned_fd.h"
#include "cli/resume_point.h"
#include "job/job.h"
#include "scheduler/scheduler_core.h"

namespace tandem::cli {

struct StartFlags {
  std::string init_from;
  std::vector<std::string> only_tables;
  bool save = true;                     // to OUT/model, on the way and at the end
  std::string resume;                   // the output folder of a run that goes on; empty: a new run
  absl::optional<ResumePoint> resumed;  // where it does
};

void AddStartFlags(CLI::App* app, StartFlags* flags);

// With --resume: where the run goes on, and that `out` is its folder. Otherwise nothing.
absl::Status FindResume(StartFlags* flags, std::string* out);

// What is to be said before such a job starts, a line each.
struct StartReport {
  std::vector<std::string> refused;  // it must not start
  std::vector<std::string> said;
  // The one save that --init-from stands for now; everything that loads is given this, so that a job
  // that goes on saving there cannot be read at two of its steps. Empty: it starts afresh.
  std::string save;
  std::string description;  // of the data that the save was trained on; empty: it starts afresh
  OwnedFd kept;             // while it is open, the save stays (server::KeepSave)
};
StartReport CheckStart(const StartFlags& flags, const job::JobPlan& plan);

// `out`: the output folder, or empty. Paths from the root: nodes may have been started elsewhere.
scheduler::ModelPaths PathsOf(const StartFlags& flags, const std::string& out,
                              const job::JobPlan& plan);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_START_FLAGS_H_
