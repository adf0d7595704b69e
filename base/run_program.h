// RunProgram starts another program and waits for its end: an interpreter, a tool of the system,
// the dynamic loader. cli/launch/children.h starts the processes of a job.
//
// The child has its own process group, so Ctrl-C does not reach it. The kernel kills the child when
// the calling thread ends. Requires: descriptors 0 to 2 are open (SetUpProcess).
// Thread safety: any thread.
#ifndef TANDEM_BASE_RUN_PROGRAM_H_
#define TANDEM_BASE_RUN_PROGRAM_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace tandem {

struct ProgramCall {
  std::vector<std::string> argv;  // argv[0]: a path, or a name to look up in PATH
  std::vector<std::pair<std::string, std::string>> environment = {};  // added to the caller's
  std::string input = {};                                             // standard input
  bool with_errors = false;                         // standard error joins the output
  absl::Duration limit = absl::InfiniteDuration();  // then the process group is killed
  int network = -1;                                 // namespace; -1: the caller's
};

struct ProgramResult {
  static constexpr int kUnknown = -1;
  int not_started = 0;  // errno of the attempt to start the program; 0: it started
  bool timed_out = false;
  // The exit status, 128 + the number of the signal that ended the program, or kUnknown: it did not
  // start, or other code asked for its status.
  int status = kUnknown;
  std::string output;

  bool ok() const { return status == 0 && !timed_out; }
};

ProgramResult RunProgram(const ProgramCall& call);

// The Python interpreter for scripts: TANDEM_PYTHON, or "python3".
std::string ScriptInterpreter();

}  // namespace tandem

#endif  // TANDEM_BASE_RUN_PROGRAM_H_
