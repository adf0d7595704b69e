// `tandem status`, `tandem checkpoint` and `tandem stop`: look at a running job, and ask it for a
// checkpoint or for its end. All three speak to its scheduler.
#ifndef TANDEM_CLI_STATUS_COMMAND_H_
#define TANDEM_CLI_STATUS_COMMAND_H_

#include <string>

#include "node/role_options.h"

namespace tandem::cli {

struct StatusFlags {
  std::string where;  // the folder of a run, or the address of a scheduler
  bool json = false;
  bool once = false;
};
void AddStatus(CLI::App* app, StatusFlags* flags);
// Returns the exit code: 1 if no scheduler answers, 2 if there is no such run.
int StatusCommand(const StatusFlags& flags);

struct AskFlags {
  std::string where;
  bool now = false;  // stop without a checkpoint
};
void AddCheckpointAndStop(CLI::App* app, AskFlags* checkpoint, AskFlags* stop);
// Both return when the checkpoint is written or the job has ended. The exit code is also 1 if the
// scheduler refuses, or the checkpoint fails.
int CheckpointCommand(const AskFlags& flags);
int StopCommand(const AskFlags& flags);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_STATUS_COMMAND_H_
