// tandem run: a whole job on this machine. Starts scheduler, servers and workers as processes,
// shows progress, and leaves nothing behind however it ends.
#ifndef TANDEM_CLI_RUN_COMMAND_H_
#define TANDEM_CLI_RUN_COMMAND_H_

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "cli/start_flags.h"

namespace tandem::cli {

struct RunFlags {
  const char* program = "tandem run";  // that has been called, for its errors
  std::string job;
  std::vector<std::string> set;
  std::string out;         // empty: a new one under out/
  bool overwrite = false;  // what an earlier run left in `out` may be lost
  StartFlags start;
  int64_t trace_steps = 0;  // 0 = no trace
  // For `tandem predict`: workers write the scores of test rows (ScoresFile), and nothing is said but what
  // went wrong.
  bool scores = false;
  std::FILE* lines = stdout;  // where lines for people go
  std::string python;         // script that is each worker, for a job of a program
  std::vector<std::string> script_flags;
  // Each process on a virtual host of its own, with links of so many bytes a second; 0: all on this one.
  double link_bytes_per_second = 0;
  bool servers_beside_workers = false;  // with it: server i is on the host of worker i
  std::string replay;   // folder of a run whose order of updates this one takes; empty: none
  std::string command;  // as it was typed, for the summary
};

// The word, quoted where a shell would take it for something else.
std::string ForShell(const std::string& word);

// NOT_FOUND, with the command that builds it, if a program of Tandem does not lie beside this one.
absl::Status CheckProgram(absl::string_view name);

// In the folder of a run: the logits of a worker's test rows, float32 in their order.
std::string ScoresFile(const std::string& out, int rank);

// Returns the exit code: 0, 1 (the job failed) or 2 (bad job, data or flags; nothing was started).
int RunCommand(const RunFlags& flags);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_RUN_COMMAND_H_
