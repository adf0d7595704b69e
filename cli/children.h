// The processes of a local cluster: started, watched, ended. None outlives its parent (the kernel
// kills them if it dies), none is left behind.
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
    static constexpr int kUnknown = -1;  // nobody can say how it ended: perhaps not well
    std::string name;
    pid_t pid = 0;
    int code = 0;                     // exit status, if signal is 0; or kUnknown
    int signal = 0;                   // that killed it
    std::string log;                  // its log file
    std::string DebugString() const;  // "worker 1 (pid 123) was ended by signal 9 (Killed)"
  };

  ~Children();  // kills what is left, and waits for it

  // Starts argv[0]; stdout and stderr go to the file `log`; `pipe_fd`, if not -1, becomes
  // descriptor 3. `environment` is added to ours. `network`, if not -1, is the namespace that it is in.
  absl::Status Start(const std::string& name, const std::vector<std::string>& argv,
                     const std::string& log, int pipe_fd,
                     const std::vector<std::pair<std::string, std::string>>& environment,
                     int network = -1);

  // Those that have ended since the last call.
  std::vector<Exit> Reap();

  void Signal(int signal);  // to all that run
  void SignalOne(const std::string& name, int signal);
  bool running() const { return !running_.empty(); }
  // Asks all to end, gives them `grace`, then kills. Returns when none is left.
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
