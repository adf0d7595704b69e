// Children watches the processes of a job on this host: it starts commands, reports how they ended
// and what they logged last, and ends them. No process outlives this one: the kernel kills the
// children if their parent dies. The exception is a scheduler with the flag --driver: it notices
// the death itself, tells the agents, and then ends.
//
// Each child leads a process group of its own. If the child is killed or fails, Children kills the
// other processes of the group: those that a script has started, such as the workers of a data
// loader. A script that ends well has ended its processes itself, or leaves them on purpose.
//
// Not here: the commands of the roles (role_commands.h), and what the end of a process means for
// the job (supervisor.h). Thread safety: one thread.
#ifndef TANDEM_CLI_LAUNCH_CHILDREN_H_
#define TANDEM_CLI_LAUNCH_CHILDREN_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tandem::cli {

// The last whole lines of a file that are not blank, from its last 8 KiB.
std::vector<std::string> LastLines(const std::string& path);

class Children {
 public:
  struct Exit {
    static constexpr int kUnknown = -1;  // the exit status is lost: perhaps a failure
    std::string name;
    pid_t pid = 0;
    int code = 0;                     // exit status, if signal is 0; or kUnknown
    int signal = 0;                   // the signal that killed it
    std::string log;                  // its log file
    std::vector<std::string> lines;   // the last lines of the log that are not empty
    std::string HowItEnded() const;   // "was ended by signal 9 (Killed)"
    std::string DebugString() const;  // "worker 1 (pid 123) was ended by signal 9 (Killed)"
  };

  ~Children();  // kills the processes that still run, and waits for them

  struct Command {
    std::string name;               // for people, such as "worker 1"
    std::vector<std::string> argv;  // argv[0] is the path of the program
    std::string log;                // file that stdout and stderr are appended to; empty: ours
    int pipe_fd = -1;               // becomes descriptor 3; -1: none
    std::vector<std::pair<std::string, std::string>> environment = {};  // added to ours
    int network = -1;                                                   // namespace; -1: ours
    int stdin_fd = -1;                                                  // -1: /dev/null
  };
  absl::Status Start(const Command& command);

  // Returns the processes that have ended since the last call.
  std::vector<Exit> Reap();

  void Signal(int signal);  // to all running processes
  void SignalOne(const std::string& name, int signal);
  bool running() const { return !running_.empty(); }
  // The names of the running processes that begin with `prefix`.
  std::vector<std::string> Running(absl::string_view prefix) const;
  bool IsRunning(const std::string& name) const;
  // Asks all processes to end, waits up to `grace`, then kills the rest. Returns when all
  // have ended. A process that waits for a device or a file system may not end: after another
  // `patience`, one line on standard error names it.
  std::vector<Exit> StopAll(absl::Duration grace, absl::Duration patience = absl::Seconds(10));

 private:
  struct Child {
    std::string name;
    pid_t pid = 0;
    std::string log;
  };
  std::string WhoDoesNotEnd() const;

  std::vector<Child> running_;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_CHILDREN_H_
