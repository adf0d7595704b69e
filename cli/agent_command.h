// tandem agent: starts those roles of a job that belong to one rank of a launch. A launcher such as
// mpirun or srun starts an agent for each rank, on one host or on many. The agent of rank 0 is
// `tandem run` with fewer roles: it starts the scheduler, shows progress and writes the summary.
// The other agents follow: the scheduler tells them the job and its end, and they tell the
// scheduler how their roles end (scheduler/agents.h).
#ifndef TANDEM_CLI_AGENT_COMMAND_H_
#define TANDEM_CLI_AGENT_COMMAND_H_

#include <string>

#include <CLI/CLI.hpp>

#include "cli/launch/run_flags.h"

namespace tandem::cli {

struct AgentFlags {
  RunFlags run;             // of the job; `out` may be empty
  bool resume_any = false;  // resume the run in `out` if it has a checkpoint, else begin it
  std::string scheduler;  // its address, tcp://HOST:PORT; empty: found by --out or by the launcher
  std::string bind;       // where the roles of this rank listen; empty: by the launch
  std::string advertise;  // host by which others reach them, if `bind` names all hosts
  bool lifeline = false;  // the end of standard input is a request to stop
};

void AddAgent(CLI::App* app, AgentFlags* flags);

// Returns the exit code, as RunCommand does.
int AgentCommand(const AgentFlags& flags);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_AGENT_COMMAND_H_
