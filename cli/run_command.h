// tandem run: runs a whole job on this machine. Starts scheduler, servers and workers as processes
// and shows their progress. No process is left when it ends, even if it is killed.
#ifndef TANDEM_CLI_RUN_COMMAND_H_
#define TANDEM_CLI_RUN_COMMAND_H_

#include <string>

#include <CLI/CLI.hpp>

#include "cli/launch/run_flags.h"

namespace tandem::cli {

// Adds --http, --insecure and --tensorboard.
void AddWatchFlags(CLI::App* app, WatchFlags* flags);

// Adds the argument for the job file, which is optional with --resume.
void AddJobFile(CLI::App* app, const std::string& help, RunFlags* flags);

// Returns the exit code: 0, 1 (the job failed) or 2 (bad job, data or flags; no process
// was started).
int RunCommand(const RunFlags& flags);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_RUN_COMMAND_H_
