// tandem run --hosts: starts an agent (agent_command.h) for each rank by ssh, and passes signals
// on. ssh never asks for a password. The standard input of each ssh is the lifeline of its agent:
// when this process ends, however it does, the agents end their roles.
#ifndef TANDEM_CLI_LAUNCH_SSH_COMMAND_H_
#define TANDEM_CLI_LAUNCH_SSH_COMMAND_H_

#include <string>
#include <vector>

#include "cli/launch/host_list.h"
#include "cli/launch/run_flags.h"

namespace tandem::cli {

// The ssh to use: $TANDEM_SSH, which may have flags ("ssh -p 2222"), or ssh.
//
// Returns the exit code, as RunCommand does.
int SshCommand(const RunFlags& flags, const std::vector<HostSlots>& hosts);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_SSH_COMMAND_H_
