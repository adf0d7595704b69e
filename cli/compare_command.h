// tandem compare: runs a study, one `tandem run` after another, and writes its report.
// tandem report: writes the report again.
#ifndef TANDEM_CLI_COMPARE_COMMAND_H_
#define TANDEM_CLI_COMPARE_COMMAND_H_

#include <string>

#include <CLI/CLI.hpp>

namespace tandem::cli {

struct CompareFlags {
  std::string study;       // file
  std::string out;         // empty: out/NAME, of the study
  bool overwrite = false;  // what another study left in `out` may be lost
  bool retry_failed = false;
  bool check = false;  // say what would be run, and run nothing
};

struct ReportFlags {
  std::string folder;
};

void AddCompare(CLI::App* app, CompareFlags* flags);
void AddReport(CLI::App* app, ReportFlags* flags);

// Returns the exit code: 0; 1: a file could not be written, or no run came to its end; 2: the study or
// one of its jobs is refused, and nothing was started. Ctrl-C ends the process by its signal.
int CompareCommand(const CompareFlags& flags);
int ReportCommand(const ReportFlags& flags);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMPARE_COMMAND_H_
