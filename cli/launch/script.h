// Checks and starts Python scripts that replace tandem-worker (`tandem run --python`), and runs
// commands that are part of the Python package. The interpreter is python3, or TANDEM_PYTHON if it
// is set.
#ifndef TANDEM_CLI_LAUNCH_SCRIPT_H_
#define TANDEM_CLI_LAUNCH_SCRIPT_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "job/job.h"

namespace tandem::cli {

// Refuses a job with a program but no script, a script for a job without a program, and an
// interpreter that cannot import the modules that a script needs. `programs`: the folder of
// tandem itself.
absl::Status CheckScript(const std::string& script, const std::vector<std::string>& flags,
                         const job::ResolvedJob& plan, const std::string& programs);

// Files of the package that scripts import, and of its library. Their contents tell builds apart.
// Looks only in the folder next to the programs; empty if it is not there.
std::vector<std::string> PackageFiles(const std::string& programs);

std::vector<std::string> ScriptCommand(const std::string& script,
                                       const std::vector<std::string>& flags);

// The SHA-256 of the script, in hexadecimal; empty: it cannot be read.
std::string ScriptHash(const std::string& script);

// NoteScript writes the script and its hash to the run's folder `out`, for a resumed run.
// ScriptChange returns a line if the script is another one now. Empty: it is the same, or the
// folder has no note.
absl::Status NoteScript(const std::string& out, const std::string& script, const std::string& hash);
std::string ScriptChange(const std::string& out, const std::string& script,
                         const std::string& hash);

// Environment variables of a script: those that tandem.init() reads, those that other launchers set
// (RANK, WORLD_SIZE), the job's threads, and the path of the package if it is next to the programs.
std::vector<std::pair<std::string, std::string>> ScriptEnvironment(const std::string& programs,
                                                                   const job::ResolvedJob& plan,
                                                                   const std::string& job,
                                                                   const std::string& scheduler,
                                                                   int rank);

// Names the file to which a script's evaluation writes its logits (float32) for `tandem predict`.
constexpr char kScoresVariable[] = "TANDEM_SCORES";

// Replaces this process by `python3 -m MODULE ARGUMENTS`, a module of the package `tandem`. Returns
// only on an error, for example if the interpreter lacks one of the modules in `needs`.
absl::Status RunPackage(const std::string& module, const std::vector<std::string>& arguments,
                        const std::vector<std::string>& needs, const std::string& programs);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_SCRIPT_H_
