// LauncherWatch ends an agent whose launcher has gone: it sends SIGTERM to this process, as the
// launcher would have done. Without it the roles of a job would outlive a killed mpirun or ssh.
//
// A launcher that cannot signal its agents, such as ssh, has a lifeline to each: a pipe. The first
// line on it is the token of the job, or empty. Then each "t" stands for SIGTERM, and each "u" for
// SIGUSR1. The end of the pipe is the end of the launcher.
//
// Thread safety: one thread.
#ifndef TANDEM_CLI_LAUNCH_LAUNCHER_WATCH_H_
#define TANDEM_CLI_LAUNCH_LAUNCHER_WATCH_H_

#include <sys/types.h>

namespace tandem::cli {

class LauncherWatch {
 public:
  // `parent`: the launcher, which started this process; 0: nobody is watched. `lifeline`: a
  // descriptor; -1: none.
  LauncherWatch(pid_t parent, int lifeline) : parent_(parent), lifeline_(lifeline) {}

  // Sets TANDEM_TOKEN to the first line of the lifeline, unless the line is empty. Waits for it at
  // most ten seconds. Call it before other threads start.
  void TakeToken();
  // Call it often.
  void Check();

 private:
  pid_t parent_;
  int lifeline_;
  bool gone_ = false;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_LAUNCHER_WATCH_H_
