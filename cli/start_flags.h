// What a job begins with and leaves behind: flags of `tandem run` and of tandem-scheduler, which tells
// all nodes.
#ifndef TANDEM_CLI_START_FLAGS_H_
#define TANDEM_CLI_START_FLAGS_H_

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "job/job.h"
#include "scheduler/scheduler_core.h"

namespace tandem::cli {

struct StartFlags {
  std::string init_from;
  std::vector<std::string> only_tables;
  bool save = true;  // at the end, to OUT/model
};

void AddStartFlags(CLI::App* app, StartFlags* flags);

// What is to be said before such a job starts, a line each.
struct StartReport {
  std::vector<std::string> refused;  // it must not start
  std::vector<std::string> said;
  // The one save that --init-from stands for now; everything that loads is given this, so that a job
  // that goes on saving there cannot be read at two of its steps. Empty: it starts afresh.
  std::string save;
  std::string description;  // of the data that the save was trained on; empty: it starts afresh
};
StartReport CheckStart(const StartFlags& flags, const job::JobPlan& plan);

// `out`: the output folder, or empty. Paths from the root: nodes may have been started elsewhere.
scheduler::ModelPaths PathsOf(const StartFlags& flags, const std::string& out,
                              const job::JobPlan& plan);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_START_FLAGS_H_
