// RunFlags has the flags of a run. `tandem run` and other commands that start a run fill it.
#ifndef TANDEM_CLI_LAUNCH_RUN_FLAGS_H_
#define TANDEM_CLI_LAUNCH_RUN_FLAGS_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/launch/launcher_watch.h"
#include "cli/launch/role_commands.h"
#include "cli/launch/start_flags.h"

namespace tandem::cli {

// WatchFlags::http if the run has no live page.
inline constexpr char kNoHttp[] = "none";

// How others may look at the run.
struct WatchFlags {
  std::string http;  // HOST:PORT, or kNoHttp; empty: a free loopback port
  bool insecure = false;
  std::string tensorboard;  // folder of an event file; empty: none
};

struct RunFlags {
  const char* program = "tandem run";  // the command that the user called, for error messages
  std::string job;
  std::vector<std::string> set;
  std::string out;         // empty: a new one under out/
  bool overwrite = false;  // results of an earlier run in `out` may be removed
  StartFlags start;
  WatchFlags watch;
  int64_t trace_steps = 0;  // 0 = no trace
  // For `tandem predict`: workers write the scores of test rows (ScoresFile), and the run prints
  // only errors.
  bool scores = false;
  std::FILE* lines = stdout;  // where lines for people go
  std::string python;         // script that runs as each worker, for a job with a program
  std::vector<std::string> script_flags;
  // Puts each process on its own virtual host, with links of this speed; 0: all are on this host.
  double link_bytes_per_second = 0;
  bool colocate_servers = false;  // server i is on the virtual host of worker i
  std::string replay;             // folder of a run whose order of updates is repeated; empty: none
  std::string command;            // as the user typed it, for the summary
  std::string hosts_file, host_list;  // of --hosts and -H: agents run there (ssh_command.h)
  // Number of agents (agent_command.h). This process is that of rank 0. Those of the other ranks
  // start their roles themselves.
  int ranks = 1;
  int ranks_here = 1;  // the ranks [0, ranks_here) are on this host
  // The agents of the other ranks were started by hand: nobody ends them if this process is killed.
  bool agents_by_hand = false;
  RoleNetwork network;
  LauncherWatch launcher{/*parent=*/0, /*lifeline=*/-1};
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_RUN_FLAGS_H_
