// Python scripts in the place of tandem-worker: how `tandem run --python` checks and starts them; and
// commands that the Python package does. The interpreter is python3, or what TANDEM_PYTHON says.
#ifndef TANDEM_CLI_SCRIPT_H_
#define TANDEM_CLI_SCRIPT_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "job/job.h"

namespace tandem::cli {

// Refuses a job of a program without a script, a script for a job without a program, and an
// interpreter that cannot import what a script needs. `programs`: the folder of tandem itself.
absl::Status CheckScript(const std::string& script, const std::vector<std::string>& flags,
                         const job::JobPlan& plan, const std::string& programs);

// Files of the package that scripts import, and of the library below it, by whose contents builds
// are told apart; those of a folder beside the programs, or none.
std::vector<std::string> PackageFiles(const std::string& programs);

std::vector<std::string> ScriptCommand(const std::string& script,
                                       const std::vector<std::string>& flags);

// Its SHA-256, in hexadecimal; empty: it cannot be read.
std::string ScriptHash(const std::string& script);

// What a run leaves in its folder `out` of its script, for one that goes on; and what that says if the
// script is another one now, in one line: empty: it is the same, or nothing is known of the one before.
absl::Status NoteScript(const std::string& out, const std::string& script, const std::string& hash);
std::string ScriptChange(const std::string& out, const std::string& script,
                         const std::string& hash);

// What tandem.init() reads, names that other launchers set (RANK, WORLD_SIZE), the job's threads,
// and where the package is if it is beside the programs.
std::vector<std::pair<std::string, std::string>> ScriptEnvironment(const std::string& programs,
                                                                   const job::JobPlan& plan,
                                                                   const std::string& job,
                                                                   const std::string& scheduler,
                                                                   int rank);

// Names a file, where a script's evaluation is to leave its logits (float32) for `tandem predict`.
constexpr char kScoresVariable[] = "TANDEM_SCORES";

// Runs `python3 -m MODULE ARGUMENTS`, a module of the package `tandem`, in the place of this process.
// Returns only if it cannot: an interpreter without one of the modules that it `needs`.
absl::Status RunPackage(const std::string& module, const std::vector<std::string>& arguments,
                        const std::vector<std::string>& needs, const std::string& programs);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_SCRIPT_H_
