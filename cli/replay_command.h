// tandem replay: runs a recorded job once more in the order in which its ranges took updates, to the
// same bits, or with one thing changed under that order (docs/REPLAY.md).
#ifndef TANDEM_CLI_REPLAY_COMMAND_H_
#define TANDEM_CLI_REPLAY_COMMAND_H_

#include <CLI/CLI.hpp>

#include "cli/run_command.h"

namespace tandem::cli {

struct ReplayFlags {
  std::string recorded;  // the folder of a run with staleness.order
  bool serial = false;   // in one process, by tandem-simulator
  RunFlags run;          // of the new one; its job is the recorded one's
};

void AddReplay(CLI::App* app, ReplayFlags* flags);

// Returns the exit code: 0, 1 (the run failed, a model cannot be read, or nothing was changed and
// its model differs) or 2 (this run cannot be replayed so; nothing was started).
int ReplayCommand(const ReplayFlags& flags);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_REPLAY_COMMAND_H_
