#include "cli/launch/script.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/run_program.h"
#include "base/status_macros.h"
#include "models/script_file.h"
#include "tools/doctor/doctor.h"
#include "tools/doctor/doctor_python.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kScriptNote[] = "script.json";
constexpr size_t kShownDigits = 12;  // of a SHA-256

// `what`: the flag or the task that needs the interpreter.
absl::Status CheckInterpreter(absl::string_view what, const std::vector<std::string>& modules,
                              const std::string& programs) {
  const doctor::PythonFact fact = doctor::GatherPython(modules, /*load=*/false, programs);
  if (fact.timed_out) {  // the script may start all the same, and says itself what it lacks
    std::fprintf(stderr, "warning: %s: %s\n", fact.interpreter.c_str(), fact.error.c_str());
    return absl::OkStatus();
  }
  for (const doctor::Finding& finding : doctor::ExaminePython(fact)) {
    if (finding.level != doctor::Severity::kProblem) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", finding.found, "; hint: ", finding.advice));
  }
  return absl::OkStatus();
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

// Refuses a script that Python cannot parse, before each worker does.
absl::Status CheckSyntax(const std::string& script) {
  if (!absl::EndsWith(script, ".py")) return absl::OkStatus();  // perhaps an archive
  ProgramCall call = {{ScriptInterpreter(), "-I", "-c",
                       "import sys, tokenize\n"
                       "try: compile(tokenize.open(sys.argv[1]).read(), sys.argv[1], 'exec')\n"
                       "except SyntaxError as error: print(error.lineno or 1, error.msg)",
                       script}};
  call.limit = absl::Seconds(10);
  const ProgramResult checked = RunProgram(call);
  const std::vector<std::string> lines = absl::StrSplit(checked.output, '\n', absl::SkipEmpty());
  if (!checked.ok() || lines.empty()) return absl::OkStatus();  // workers say what else is wrong
  const std::pair<std::string, std::string> error =
      absl::StrSplit(lines[0], absl::MaxSplits(' ', 1));
  return absl::InvalidArgumentError(
      absl::StrCat("--python: ", script, ":", error.first, ": SyntaxError: ", error.second));
}

}  // namespace

absl::Status CheckScript(const std::string& script, const std::vector<std::string>& flags,
                         const job::ResolvedJob& plan, const std::string& programs) {
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
  const std::vector<std::string> needs = doctor::ScriptModules();
  TANDEM_RETURN_IF_ERROR(CheckNames(script, needs));
  TANDEM_RETURN_IF_ERROR(CheckInterpreter("--python", needs, programs));
  return CheckSyntax(script);
}

std::vector<std::string> PackageFiles(const std::string& programs) {
  std::vector<std::string> files;
  const std::string own = doctor::OwnPackage(programs);
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
  const ProgramResult hashed = RunProgram(
      {{ScriptInterpreter(), "-c",
        "import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())",
        script}});
  // The last line, because other packages may print when the interpreter starts.
  const std::vector<std::string> lines = absl::StrSplit(hashed.output, '\n', absl::SkipEmpty());
  return hashed.ok() && !lines.empty() ? lines.back() : "";
}

absl::Status NoteScript(const std::string& out, const std::string& script,
                        const std::string& hash) {
  const nlohmann::json note = {{"file", script}, {"sha256", hash}};
  // The name is for people; a file name need not be UTF-8.
  const std::string text = note.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return WriteFileAtomically(absl::StrCat(out, "/", kScriptNote), text + "\n");
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
  std::vector<std::string> command = {"/usr/bin/env", ScriptInterpreter(), script};
  command.insert(command.end(), flags.begin(), flags.end());
  return command;
}

std::vector<std::pair<std::string, std::string>> ScriptEnvironment(const std::string& programs,
                                                                   const job::ResolvedJob& plan,
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
          {"PYTHONPATH", doctor::PythonPath(programs)}};
}

absl::Status RunPackage(const std::string& module, const std::vector<std::string>& arguments,
                        const std::vector<std::string>& needs, const std::string& programs) {
  if (absl::Status there = CheckInterpreter("Python", needs, programs); !there.ok()) return there;
  setenv("PYTHONPATH", doctor::PythonPath(programs).c_str(), 1);
  std::vector<std::string> command = {ScriptInterpreter(), "-m", module};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::fflush(nullptr);
  execvp(argv[0], argv.data());
  return absl::NotFoundError(absl::StrCat(command[0], ": ", strerror(errno)));
}

}  // namespace tandem::cli
