// RoleCommands makes the command of each role of a job on this host: program, flags, environment
// and log file. Children (children.h) starts it. Callers choose which roles run here.
//
// Thread safety: any thread; the object does not change.
#ifndef TANDEM_CLI_LAUNCH_ROLE_COMMANDS_H_
#define TANDEM_CLI_LAUNCH_ROLE_COMMANDS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "cli/launch/children.h"
#include "cli/launch/job_hosts.h"
#include "cli/launch/start_flags.h"
#include "job/job.h"

namespace tandem::cli {

// Where the roles of this host listen, if roles of the job are on other hosts.
struct RoleNetwork {
  std::string scheduler_bind;  // tcp://HOST:PORT; empty: loopback, any port
  std::string bind;            // of servers and workers, likewise
  std::string advertise;       // host by which others reach this one; empty: that of `bind`
  std::string launch;          // by which agents recognise the scheduler; may be empty
};

struct RoleOptions {
  std::string job;                        // the job file that all roles read
  std::string out;                        // the folder of the run
  std::string python;                     // script that runs as each worker; empty: none
  std::vector<std::string> script_flags;  // flags of the script
  std::string replay;                     // as in RunFlags
  int64_t trace_steps = 0;                // 0: no trace
  bool scores = false;                    // workers write the scores of test rows
  const JobHosts* hosts = nullptr;        // virtual hosts of the roles; null: none
  RoleNetwork network = {};
  std::vector<int> workers_here = {};  // the workers of this host, in the order of LOCAL_RANK
};

class RoleCommands {
 public:
  // `plan` must outlive the object.
  RoleCommands(const job::ResolvedJob& plan, RoleOptions options);

  // `pipe_fd`: the descriptor that gets the events of the scheduler.
  Children::Command Scheduler(const StartFlags& start, int pipe_fd) const;
  // `scheduler`: its address.
  Children::Command Server(int index, const std::string& scheduler) const;
  Children::Command Worker(int rank, const std::string& scheduler) const;

 private:
  Children::Command New(const std::string& name) const;
  void AddNetworkFlags(const std::string& bind, std::vector<std::string>* argv) const;
  // The command with the flags and the network of its virtual host.
  Children::Command OnItsHost(Children::Command command) const;
  // `name`: of the role, for the name of the file.
  void AddTraceFlags(absl::string_view name, std::vector<std::string>* argv) const;
  Children::Command Script(int rank, const std::string& scheduler) const;
  std::string Absolute(const std::string& name) const;

  const job::ResolvedJob& plan_;
  const RoleOptions options_;
};

// The file in a run's folder with the logits of a worker's test rows: float32, in their order.
std::string ScoresFile(const std::string& out, int rank);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_ROLE_COMMANDS_H_
