// Starts, watches and ends the processes of a local cluster. No process outlives this one: the
// kernel kills the children if their parent dies.
//
// Thread safety: one thread.
#ifndef TANDEM_CLI_CHILDREN_H_
#define TANDEM_CLI_CHILDREN_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tandem::cli {

class Children {
 public:
  struct Exit {
    static constexpr int kUnknown = -1;  // the exit status is lost: perhaps a failure
    std::string name;
    pid_t pid = 0;
    int code = 0;                     // exit status, if signal is 0; or kUnknown
    int signal = 0;                   // the signal that killed it
    std::string log;                  // its log file
    std::string DebugString() const;  // "worker 1 (pid 123) was ended by signal 9 (Killed)"
  };

  ~Children();  // kills the processes that still run, and waits for them

  // Starts argv[0]; stdout and stderr go to the file `log`; `pipe_fd`, if not -1, becomes
  // descriptor 3. `environment` is added to ours. `network`, if not -1, is its network namespace.
  absl::Status Start(const std::string& name, const std::vector<std::string>& argv,
                     const std::string& log, int pipe_fd,
                     const std::vector<std::pair<std::string, std::string>>& environment,
                     int network = -1);

  // Returns the processes that have ended since the last call.
  std::vector<Exit> Reap();

  void Signal(int signal);  // to all running processes
  void SignalOne(const std::string& name, int signal);
  bool running() const { return !running_.empty(); }
  // Asks all processes to end, waits up to `grace`, then kills the rest. Returns when all
  // have ended.
  std::vector<Exit> StopAll(absl::Duration grace);

 private:
  struct Child {
    std::string name;
    pid_t pid = 0;
    std::string log;
  };
  std::vector<Child> running_;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_CHILDREN_H_
