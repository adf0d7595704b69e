// Runs another program and waits for its end: interpreters, tools of the system, the dynamic
// loader. (The processes of a job are cli/children.h.)
//
// The child gets its own process group, so Ctrl-C does not reach it, and the kernel kills it if the
// calling thread ends. Thread safety: any thread.
#ifndef TANDEM_BASE_RUN_PROGRAM_H_
#define TANDEM_BASE_RUN_PROGRAM_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace tandem {

struct ProgramCall {
  std::vector<std::string> argv;  // argv[0]: a path, or a name that PATH leads to
  std::vector<std::pair<std::string, std::string>> environment = {};  // added to ours
  std::string input = {};                                             // standard input
  bool with_errors = false;                         // standard error joins the output
  absl::Duration limit = absl::InfiniteDuration();  // then the process group is killed
  int network = -1;                                 // namespace; -1: ours
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
