// tandem compare: runs a study, one `tandem run` after another, and writes its report.
// With --report-only it runs nothing and writes the report of a study folder again.
#ifndef TANDEM_TOOLS_STUDY_COMPARE_COMMAND_H_
#define TANDEM_TOOLS_STUDY_COMPARE_COMMAND_H_

#include <string>

#include <CLI/CLI.hpp>

namespace tandem::study {

struct CompareFlags {
  std::string study;       // file
  std::string out;         // empty: out/NAME with the name of the study
  bool overwrite = false;  // results of another study in `out` may be removed
  bool retry_failed = false;
  bool check = false;       // list the runs, and start no run
  std::string report_only;  // the folder of a study; then nothing else is set
};

void AddCompare(CLI::App* app, CompareFlags* flags);

// Returns the exit code. 1: a file could not be written, or no run finished. 2: the study or one of
// its jobs is refused, and no run was started. Otherwise 0. Ctrl-C ends the process by its signal.
int CompareCommand(const CompareFlags& flags);

}  // namespace tandem::study

#endif  // TANDEM_TOOLS_STUDY_COMPARE_COMMAND_H_
