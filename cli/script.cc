#include "cli/script.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "models/script_file.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kScriptNote[] = "script.json";
constexpr size_t kShownDigits = 12;  // of a SHA-256

// Looks for the modules that a script imports, without importing torch, which takes seconds. Prints
// the first one that is missing.
constexpr char kProbe[] = R"(
import sys
sys.path = [p for p in sys.path if p]
import importlib.util as u
for name in sys.argv[1:]:
    if not u.find_spec(name): sys.exit('there is no module ' + name)
import tandem._abi
tandem._abi.library()
)";

constexpr absl::string_view kNoModule = "there is no module";

std::string Interpreter() {
  const char* const told = getenv("TANDEM_PYTHON");
  return told == nullptr || *told == '\0' ? "python3" : told;
}

// The folder of the package if it is next to the programs, in a build folder or after installation;
// else empty.
std::string OwnPackage(const std::string& programs) {
  const std::string root = fs::path(programs).parent_path().string();
  std::error_code error;
  for (const char* below : {"/python", "/share/tandem/python"}) {
    if (fs::exists(absl::StrCat(root, below, "/tandem/__init__.py"), error)) return root + below;
  }
  return "";
}

// PYTHONPATH with the package's folder in front, if there is one; else PYTHONPATH unchanged.
std::string PythonPath(const std::string& programs) {
  const char* const there = getenv("PYTHONPATH");
  const std::string rest = there == nullptr ? "" : there;
  const std::string own = OwnPackage(programs);
  return own.empty() || rest.empty() ? own + rest : absl::StrCat(own, ":", rest);
}

std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// Runs a command. Returns whether it succeeded, and stores the last line of its output.
bool LastLine(const std::string& command, std::string* last) {
  std::FILE* const pipe = popen(command.c_str(), "re");
  if (pipe == nullptr) {
    *last = "it cannot be started";
    return false;
  }
  char line[1024];
  while (std::fgets(line, sizeof line, pipe) != nullptr) *last = line;
  const int status = pclose(pipe);
  *last = std::string(absl::StripSuffix(*last, "\n"));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  if (last->empty()) *last = absl::StrCat("it ended with status ", status);
  return false;
}

// The module that is missing, or the error of the interpreter; empty: all modules were found.
std::string Missing(const std::vector<std::string>& modules, const std::string& programs) {
  std::string why;
  const bool good = LastLine(
      absl::StrCat("PYTHONPATH=", Quoted(PythonPath(programs)), " ", Quoted(Interpreter()), " -c ",
                   Quoted(kProbe), " ", absl::StrJoin(modules, " "), " tandem 2>&1"),
      &why);
  return good ? "" : why;
}

absl::Status CheckInterpreter(absl::string_view what, const std::vector<std::string>& modules,
                              const std::string& programs) {
  const std::string missing = Missing(modules, programs);
  if (missing.empty()) return absl::OkStatus();
  // Other messages already have a hint.
  if (!absl::StartsWith(missing, kNoModule) && !absl::EndsWith(missing, "not found")) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", Interpreter(), ": ", missing));
  }
  std::vector<std::string> packages;
  for (const std::string& module : modules) packages.push_back("python3-" + module);
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": ", Interpreter(), ": ", missing, "; hint: apt install ",
                   absl::StrJoin(packages, " "), ", or say in TANDEM_PYTHON which interpreter"));
}

// Refuses a file next to the script that has the name of a package: Python would import the file.
absl::Status CheckNames(const std::string& script, std::vector<std::string> modules) {
  modules.push_back("tandem");
  const fs::path folder = fs::absolute(script).parent_path();
  std::error_code error;
  for (const std::string& module : modules) {
    const fs::path hides = folder / (module + ".py");
    if (!fs::exists(hides, error)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--python: ", hides.string(), " hides the module ", module,
                     " that a script imports; hint: give the file another name"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckScript(const std::string& script, const std::vector<std::string>& flags,
                         const job::JobPlan& plan, const std::string& programs) {
  const bool program = plan.job.model().has_program();
  if (script.empty() && program) {
    return absl::InvalidArgumentError(
        "the job's model is a program's; say which: --python SCRIPT (docs/PYTHON.md)");
  }
  if (script.empty() && !flags.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", flags[0], "': flags of a script, and there is no --python SCRIPT"));
  }
  if (script.empty() && plan.job.model().has_script()) {
    return models::ReadScriptFile(plan.job.model().script()).status();
  }
  if (script.empty()) return absl::OkStatus();
  if (!program) {
    return absl::InvalidArgumentError(
        "--python: the job has a model of its own; for a script say data { format: PROGRAM } and "
        "model "
        "{ program {} }");
  }
  const std::vector<std::string> needs = {"torch", "numpy"};
  TANDEM_RETURN_IF_ERROR(CheckNames(script, needs));
  return CheckInterpreter("--python", needs, programs);
}

std::vector<std::string> PackageFiles(const std::string& programs) {
  std::vector<std::string> files;
  const std::string own = OwnPackage(programs);
  std::error_code error;
  if (own.empty()) return files;
  for (const auto& entry : fs::directory_iterator(own + "/tandem", error)) {
    if (entry.path().extension() == ".py") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  files.push_back(fs::path(programs).parent_path().string() + "/lib/libtandem.so");
  return files;
}

std::string ScriptHash(const std::string& script) {
  std::string hash;
  const bool good = LastLine(
      absl::StrCat(
          Quoted(Interpreter()),
          " -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], \"rb\").read())"
          ".hexdigest())' ",
          Quoted(script), " 2>/dev/null"),
      &hash);
  return good ? hash : "";
}

absl::Status NoteScript(const std::string& out, const std::string& script,
                        const std::string& hash) {
  const nlohmann::json note = {{"file", script}, {"sha256", hash}};
  return WriteFileAtomically(absl::StrCat(out, "/", kScriptNote), note.dump() + "\n");
}

std::string ScriptChange(const std::string& out, const std::string& script,
                         const std::string& hash) {
  const absl::StatusOr<std::string> text = ReadWholeFile(absl::StrCat(out, "/", kScriptNote));
  if (!text.ok()) return "";
  const auto note = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!note.is_object()) return "";
  const std::string was = note.value("sha256", "");
  if (was == hash) return "";
  return absl::StrCat("--resume ", out, ": the script has changed: ", note.value("file", ""),
                      " had SHA-256 ", was.substr(0, kShownDigits), "..., ", script, " has ",
                      hash.substr(0, kShownDigits), "...");
}

std::vector<std::string> ScriptCommand(const std::string& script,
                                       const std::vector<std::string>& flags) {
  std::vector<std::string> command = {"/usr/bin/env", Interpreter(), script};
  command.insert(command.end(), flags.begin(), flags.end());
  return command;
}

std::vector<std::pair<std::string, std::string>> ScriptEnvironment(const std::string& programs,
                                                                   const job::JobPlan& plan,
                                                                   const std::string& job,
                                                                   const std::string& scheduler,
                                                                   int rank) {
  return {{"TANDEM_JOB", job},
          {"TANDEM_SCHEDULER", scheduler},
          {"TANDEM_INDEX", absl::StrCat(rank)},
          {"RANK", absl::StrCat(rank)},
          {"WORLD_SIZE", absl::StrCat(plan.workers())},
          {"OMP_NUM_THREADS", absl::StrCat(plan.job.cluster().threads_per_worker())},
          {"PYTHONUNBUFFERED", "1"},
          {"PYTHONPATH", PythonPath(programs)}};
}

absl::Status RunPackage(const std::string& module, const std::vector<std::string>& arguments,
                        const std::vector<std::string>& needs, const std::string& programs) {
  if (absl::Status there = CheckInterpreter("Python", needs, programs); !there.ok()) return there;
  setenv("PYTHONPATH", PythonPath(programs).c_str(), 1);
  std::vector<std::string> command = {Interpreter(), "-m", module};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::fflush(nullptr);
  execvp(argv[0], argv.data());
  return absl::NotFoundError(absl::StrCat(command[0], ": ", strerror(errno)));
}

}  // namespace tandem::cli
